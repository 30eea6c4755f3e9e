import static org.apache.hadoop.test.MetricsAsserts.getLongCounter;
import static org.apache.hadoop.test.MetricsAsserts.getMetrics;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.server.datanode.DataNode;

/**
 * A real namenode and two datanodes on loopback, until standard input ends.
 *
 * <p>MiniHdfs DIRECTORY prints one line: the port of the namenode's web address, then those of the datanodes'.
 * Each line of standard input is the name of a counter of datanodes (BytesRead), and is answered by their sum: as it is now, where
 * the pages of the datanodes tell what it was up to ten seconds ago.
 */
public final class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(arguments[0]).getAbsolutePath());
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(configuration).numDataNodes(2).build();
        cluster.waitActive();
        StringBuilder ports = new StringBuilder().append(cluster.getNameNode().getHttpAddress().getPort());
        for (DataNode node : cluster.getDataNodes()) {
            ports.append(' ').append(node.getInfoPort());
        }
        System.out.println(ports);
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (String counter = asked.readLine(); counter != null; counter = asked.readLine()) {
            long sum = 0;
            for (DataNode node : cluster.getDataNodes()) {
                sum += getLongCounter(counter, getMetrics(node.getMetrics().name()));
            }
            System.out.println(sum);
        }
        Runtime.getRuntime().halt(0);
    }
}
