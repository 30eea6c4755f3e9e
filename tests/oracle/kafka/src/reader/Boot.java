import java.io.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.common.TopicPartition;

/**
 * Puts partition directories under a real broker and reads them with the real consumer: {@code Boot
 * WORKDIR clean|unclean PARTITION_DIR... [--beside DIR...]}
 *
 * <ol>
 *   <li>formats a KRaft storage in WORKDIR (which is deleted first) and starts the broker;
 *   <li>creates the topics of the directories' names and stops it;
 *   <li>puts the files of each directory in place, keeping the new partition.metadata; directories
 *       after {@code --beside} go into the log dir under their own names;
 *   <li>starts it again, for {@code unclean} without the mark of a clean shutdown, so that every
 *       log is recovered;
 *   <li>consumes everything, uncommitted and committed, and asks for offsets by time.
 * </ol>
 *
 * Writes WORKDIR/out/NAME.jsonl, NAME.committed.jsonl and NAME.times.json; prints a line per
 * directory and a last line about the whole. Exit 1 where consuming failed.
 */
public class Boot {
  public static void main(String[] args) throws Exception {
    long began = System.nanoTime();
    File work = new File(args[0]).getAbsoluteFile();
    boolean clean = args[1].equals("clean");
    List<File> dirs = new ArrayList<>(), beside = new ArrayList<>();
    List<File> into = dirs;
    for (String arg : Arrays.asList(args).subList(2, args.length))
      if (arg.equals("--beside")) into = beside;
      else into.add(new File(arg).getAbsoluteFile());

    PartitionFiles.delete(work);
    File out = new File(work, "out");
    out.mkdirs();
    Broker broker = new Broker(work);
    double firstStart = broker.start();
    broker.createTopics(topics(dirs));
    broker.stop();
    for (File dir : dirs) replaceFiles(dir, new File(broker.logDir, dir.getName()));
    for (File dir : beside) PartitionFiles.copyInto(dir, new File(broker.logDir, dir.getName()));
    File mark = new File(broker.logDir, ".kafka_cleanshutdown");
    boolean marked = mark.exists();
    if (!clean) mark.delete();
    double secondStart = broker.start();

    // Several at a time: a consumer waits more than it works.
    ExecutorService consumers = Executors.newFixedThreadPool(6);
    List<Future<Json>> consumed = new ArrayList<>();
    for (File dir : dirs) consumed.add(consumers.submit(() -> consume(broker, dir.getName(), out)));
    List<Json> results = new ArrayList<>();
    int errors = 0;
    for (Future<Json> one : consumed) {
      Json result = one.get();
      for (String key : result.keySet()) if (key.endsWith("_error")) errors++;
      results.add(result);
    }
    for (int tries = 0; tries < 10 * Broker.PATIENCE_S && !deleted(broker.logDir); tries++) Thread.sleep(100);
    broker.stop();
    for (int i = 0; i < dirs.size(); i++) {
      File served = new File(broker.logDir, dirs.get(i).getName());
      System.out.println(results.get(i).with("log_bytes_unchanged", sameLogs(dirs.get(i), served)));
    }
    System.out.println(
        new Json()
            .with("kafka", Shim.VERSION)
            .with("mode", args[1])
            .with("marked_clean_before_second_start", marked)
            .with("directories", directories(broker.logDir))
            .with("first_start_s", firstStart)
            .with("second_start_s", secondStart)
            .with("total_s", (System.nanoTime() - began) / 1000000 / 1e3)
            .with("consume_errors", errors));
    System.out.flush();
    Runtime.getRuntime().halt(errors > 0 ? 1 : 0); // the broker's threads would keep the JVM alive
  }

  private static TopicPartition partition(String name) {
    int dash = name.lastIndexOf('-');
    return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
  }

  private static Map<String, Integer> topics(List<File> dirs) {
    Map<String, Integer> topics = new TreeMap<>();
    for (File dir : dirs) {
      TopicPartition p = partition(dir.getName());
      topics.merge(p.topic(), p.partition() + 1, Math::max);
    }
    return topics;
  }

  private static void replaceFiles(File source, File target) throws IOException {
    for (File f : target.listFiles()) if (!f.getName().equals("partition.metadata")) f.delete();
    for (File f : source.listFiles())
      if (f.isFile() && !f.getName().equals("partition.metadata"))
        Files.copy(f.toPath(), new File(target, f.getName()).toPath());
  }

  private static Json consume(Broker broker, String name, File out) throws IOException {
    Json result = new Json().with("dir", name);
    long began = System.nanoTime();
    for (String isolation : List.of("read_uncommitted", "read_committed")) {
      boolean committed = isolation.equals("read_committed");
      File records = new File(out, name + (committed ? ".committed" : "") + ".jsonl");
      try (PrintStream lines = Json.to(records);
          Consume consume = new Consume(broker.bootstrap, partition(name), isolation)) {
        consume.everything(lines, isolation, result);
        if (!committed)
          try (PrintStream times = Json.to(new File(out, name + ".times.json"))) {
            times.println(Json.text(consume.times()));
          }
      }
    }
    return result.with("consume_s", (System.nanoTime() - began) / 1000000 / 1e3);
  }

  /** Whether the broker has removed what it found under a name that ends in -delete. */
  private static boolean deleted(File logDir) {
    return directories(logDir).stream().noneMatch(name -> name.endsWith("-delete"));
  }

  private static List<String> directories(File logDir) {
    File[] found = logDir.listFiles(File::isDirectory);
    return Arrays.stream(found).map(File::getName).sorted().toList();
  }

  private static boolean sameLogs(File source, File served) throws IOException {
    for (File log : PartitionFiles.logs(source)) {
      File there = new File(served, log.getName());
      if (!there.exists() || Files.mismatch(log.toPath(), there.toPath()) >= 0) return false;
    }
    return true;
  }
}
