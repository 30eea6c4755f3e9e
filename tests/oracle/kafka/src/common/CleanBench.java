import java.io.File;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;

/** CleanBench DIR RUNS DEDUPE_BYTES [key=value...]: Kafka's cleaner on copies of DIR, in one JVM; a line a run. */
class CleanBench {
  public static void main(String[] a) throws Exception {
    File source = new File(a[0]).getAbsoluteFile();
    String name = source.getName();
    int dash = name.lastIndexOf('-');
    Map<String, String> config = new TreeMap<>();
    for (int i = 3; i < a.length; i++) config.put(a[i].split("=", 2)[0], a[i].split("=", 2)[1]);
    config.put("cleanup.policy", "compact");
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    for (int run = 0; run < Integer.parseInt(a[1]); run++) {
      File copy = Pairs.tmp(source);
      Shim log = new Shim(copy, config, 0L, 0L, true, new FixedTime(1_800_000_000_000L));
      log.hw(log.end());
      long[] answer = new long[6];
      TopicPartition where =
          new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
      long wall = System.nanoTime(), cpu = threads.getCurrentThreadCpuTime();
      log.cleanReal(where, null, Integer.parseInt(a[2]), 524288, 1048588, 0.9, answer);
      cpu = threads.getCurrentThreadCpuTime() - cpu;
      wall = System.nanoTime() - wall;
      System.out.printf("{\"cpu_s\":%f,\"wall_s\":%f,\"end_offset\":%d}%n", cpu / 1e9, wall / 1e9, answer[3]);
      log.close();
      Pairs.del(copy.getParentFile());
    }
    System.exit(0);
  }
}
