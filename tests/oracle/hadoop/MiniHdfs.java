import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.server.datanode.DataNode;

/**
 * A real namenode and two datanodes on loopback, until standard input ends.
 *
 * <p>MiniHdfs DIRECTORY prints one line: the port of the namenode's web address, then those of the datanodes'.
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
        while (System.in.read() >= 0) {
            // Nothing is asked of it here.
        }
        Runtime.getRuntime().halt(0);
    }
}
