import java.io.*;
import java.util.*;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.storage.internals.log.*;

/**
 * Opens a copy of a partition directory with the real log loader, as after a clean shutdown and as
 * after a crash, and tells what it found and which files it changed.
 */
class LoadCheck {
  /** Keeps the files as recovery left them in {@code keep}, where that is not null. */
  static Json of(File dir, File keep) throws Exception {
    return new Json()
        .with("dir", dir.getName())
        .with("kafka", Shim.VERSION)
        .with("clean", open(dir, true, null))
        .with("unclean", open(dir, false, keep));
  }

  private static Json open(File original, boolean clean, File keep) throws Exception {
    File dir = PartitionFiles.copy(original);
    Json result = new Json().with("clean_shutdown", clean);
    SortedMap<String, String> before = PartitionFiles.fingerprints(dir);
    PrintStream stderr = System.err;
    ByteArrayOutputStream messages = new ByteArrayOutputStream();
    System.setErr(new PrintStream(messages, true));
    try {
      // A clean start trusts everything up to its recovery point; 0 makes it recover all.
      List<File> logs = PartitionFiles.logs(dir);
      long recoveryPoint = clean && !logs.isEmpty() ? PartitionFiles.baseOffset(logs.get(0)) : 0;
      long began = System.nanoTime();
      Shim log =
          new Shim(
              dir,
              PartitionFiles.config(original),
              0L,
              recoveryPoint,
              clean,
              new FixedTime(1_800_000_000_000L));
      result.with("load_ms", (System.nanoTime() - began) / 1000 / 1000.0);
      result.with("log_start_offset", log.start()).with("log_end_offset", log.end());
      long records = 0;
      List<Object> segments = new ArrayList<>();
      for (LogSegment s : log.segments()) {
        Json segment = segment(s);
        segments.add(segment);
        records += (Long) segment.get("records");
      }
      result.with("records", records).with("segments", segments);
      log.flush();
      log.close();
    } catch (Throwable e) { // Kafka throws errors as well: InternalError of a map, and its own
      result.with("open_failed", e.toString());
    } finally {
      System.setErr(stderr);
    }
    for (File f : PartitionFiles.withSuffix(dir, ".deleted")) f.delete();
    changes(before, PartitionFiles.fingerprints(dir), result);
    result.with("kafka_log_messages", lines(messages.toString(), dir));
    if (keep != null) {
      PartitionFiles.delete(keep);
      PartitionFiles.copyInto(dir, keep);
    }
    PartitionFiles.delete(dir.getParentFile());
    return result;
  }

  private static Json segment(LogSegment segment) throws Exception {
    long records = 0;
    boolean allValid = true;
    String readError = null;
    try {
      for (RecordBatch batch : segment.log().batches()) {
        allValid &= batch.isValid();
        for (Record record : batch) records++;
      }
    } catch (Exception e) {
      readError = e.toString();
    }
    String sanity = "ok";
    try {
      segment.offsetIndex().sanityCheck();
      segment.timeIndex().sanityCheck();
      segment.txnIndex().sanityCheck();
    } catch (Exception e) {
      sanity = e.toString();
    }
    Json result =
        new Json()
            .with("base_offset", segment.baseOffset())
            .with("size", segment.size())
            .with("records", records)
            .with("all_crc_valid", allValid)
            .with("index_entries", segment.offsetIndex().entries())
            .with("time_index_entries", segment.timeIndex().entries())
            .with("index_sanity", sanity);
    return readError == null ? result : result.with("read_error", readError);
  }

  private static void changes(
      SortedMap<String, String> before, SortedMap<String, String> after, Json result) {
    boolean logChanged = false, indexChanged = false;
    List<Object> changed = new ArrayList<>();
    TreeSet<String> names = new TreeSet<>(before.keySet());
    names.addAll(after.keySet());
    for (String name : names) {
      String was = before.get(name), is = after.get(name);
      if (Objects.equals(was, is)) continue;
      changed.add(new Json().with("file", name).with("before", was).with("after", is));
      logChanged |= name.endsWith(".log");
      indexChanged |= name.endsWith("index") && was != null;
    }
    result
        .with("log_truncated_or_changed", logChanged)
        .with("index_rebuilt_or_changed", indexChanged)
        .with("files_changed", changed);
  }

  /** What Kafka logged, without stack frames and without the name of the temporary directory. */
  private static List<Object> lines(String log, File dir) {
    List<Object> lines = new ArrayList<>();
    for (String line : log.split("\n"))
      if (!line.startsWith("SLF4J") && !line.isBlank() && !line.trim().startsWith("at "))
        lines.add(line.replace(dir.getParentFile().getPath(), "DIR"));
    return lines;
  }
}
