import java.io.*;
import java.util.*;
import java.util.zip.GZIPOutputStream;

/**
 * Asks real Kafka classes about partition directories: {@code Oracle COMMAND DIR...}
 *
 * <pre>
 * dump DIR|FILE.log...     a line per record   }  a line {"dir": ...}
 * batches DIR|FILE.log...  a line per batch    }  opens each argument
 * index DIR...             every index entry, aborted transactions, snapshots, epochs
 * lookups DIR...           answers of the opened log for a sample of offsets and times
 * check DIR...             opens a copy with the real loader, clean and unclean
 * index-check DIR...       every index entry against the log; exit 1 where one is bad
 * describe DIR...          writes expected.jsonl, batches.jsonl, index.json, lookups.json beside
 * describe-pair DIR...     writes expected.jsonl.gz, batches.jsonl.gz beside
 * check-to DIR...          writes check-VERSION.json beside (-Dkeep=1: and recovered-VERSION/)
 * </pre>
 *
 * Directories are never changed: what opens a log opens a copy. Configuration: see
 * PartitionFiles.config.
 */
public class Oracle {
  private static final long SEED = 1;

  private final PrintStream out;
  private boolean failed;

  private Oracle(PrintStream out) {
    this.out = out;
  }

  public static void main(String[] args) throws Exception {
    Oracle oracle = new Oracle(Json.to(new FileOutputStream(FileDescriptor.out)));
    for (String path : Arrays.asList(args).subList(1, args.length))
      oracle.answer(args[0], new File(path).getAbsoluteFile());
    oracle.out.flush();
    System.exit(oracle.failed ? 1 : 0); // Kafka's threads would keep the JVM alive
  }

  private void answer(String command, File dir) throws Exception {
    File beside = dir.getParentFile();
    switch (command) {
      case "dump":
        out.println(new Json().with("dir", dir));
        Decode.records(dir, out);
        break;
      case "batches":
        out.println(new Json().with("dir", dir));
        Decode.batches(dir, out);
        break;
      case "index":
        out.println(Decode.indexes(dir));
        break;
      case "lookups":
        out.println(Lookups.of(dir, SEED));
        break;
      case "check":
        out.println(LoadCheck.of(dir, null));
        break;
      case "index-check":
        Json checked = IndexCheck.of(dir);
        out.println(checked);
        failed |= !((List<?>) checked.get("bad")).isEmpty();
        break;
      case "describe":
        describe(dir, beside);
        break;
      case "describe-pair":
        try (PrintStream records = gzipped(new File(beside, "expected.jsonl.gz"))) {
          Decode.records(dir, records);
        }
        try (PrintStream batches = gzipped(new File(beside, "batches.jsonl.gz"))) {
          Decode.batches(dir, batches);
        }
        break;
      case "check-to":
        File keep = new File(beside, "recovered-" + Shim.VERSION);
        Json check = LoadCheck.of(dir, System.getProperty("keep") == null ? null : keep);
        try (PrintStream file = Json.to(new File(beside, "check-" + Shim.VERSION + ".json"))) {
          file.println(check);
        }
        break;
      default:
        System.err.println("unknown command " + command);
        System.exit(2);
    }
  }

  private void describe(File dir, File beside) throws IOException {
    try (PrintStream records = Json.to(new File(beside, "expected.jsonl"))) {
      Decode.records(dir, records);
    }
    try (PrintStream batches = Json.to(new File(beside, "batches.jsonl"))) {
      Decode.batches(dir, batches);
    }
    try (PrintStream indexes = Json.to(new File(beside, "index.json"))) {
      indexes.println(Decode.indexes(dir));
    }
    try {
      Json lookups = Lookups.of(dir, SEED);
      try (PrintStream file = Json.to(new File(beside, "lookups.json"))) {
        file.println(lookups);
      }
    } catch (Exception e) {
      out.println("lookups failed for " + dir + ": " + e);
    }
  }

  private static PrintStream gzipped(File file) throws IOException {
    return Json.to(
        new GZIPOutputStream(new FileOutputStream(file)) {
          {
            def.setLevel(9);
          }
        });
  }
}
