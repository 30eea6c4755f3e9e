import java.io.*;
import java.util.*;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.storage.internals.log.*;

/**
 * Kafka's own sanity check of each index, then every entry against the log. "bad": a lookup could
 * go wrong. "notes": loose, but as a real Kafka writes it.
 */
class IndexCheck {
  private final List<Object> bad = new ArrayList<>();
  private final List<Object> notes = new ArrayList<>();
  private int offsetEntries;
  private int timeEntries;

  static Json of(File dir) throws IOException {
    IndexCheck check = new IndexCheck();
    for (File log : PartitionFiles.logs(dir)) check.segment(log);
    return new Json()
        .with("dir", dir.getName())
        .with("kafka", Shim.VERSION)
        .with("offset_index_entries", check.offsetEntries)
        .with("time_index_entries", check.timeEntries)
        .with("bad", check.bad)
        .with("notes", check.notes);
  }

  private void segment(File log) throws IOException {
    try (FileRecords records = FileRecords.open(log, false, 0, false)) {
      long base = PartitionFiles.baseOffset(log);
      File offsetIndex = PartitionFiles.sibling(log, ".index");
      if (offsetIndex.length() > 0)
        offsets(log, new OffsetIndex(offsetIndex, base, -1, false), records);
      File timeIndex = PartitionFiles.sibling(log, ".timeindex");
      if (timeIndex.length() > 0) times(log, new TimeIndex(timeIndex, base, -1, false), records);
    } catch (RuntimeException e) { // a damaged log says nothing about its index
      bad.add(new Json().with("segment", log.getName()).with("unreadable", e.toString()));
    }
  }

  private void offsets(File log, OffsetIndex index, FileRecords records) throws IOException {
    TreeMap<Integer, FileChannelRecordBatch> byPosition = new TreeMap<>();
    for (FileChannelRecordBatch batch : records.batches()) byPosition.put(batch.position(), batch);
    sanity(log, "index", index);
    OffsetPosition previous = new OffsetPosition(-1, -1);
    for (int i = 0; i < index.entries(); i++) {
      offsetEntries++;
      OffsetPosition entry = index.entry(i);
      FileChannelRecordBatch batch = byPosition.get(entry.position);
      var earlier = byPosition.lowerEntry(entry.position);
      Json where =
          new Json()
              .with("segment", log.getName())
              .with("index_entry", i)
              .with("offset", entry.offset)
              .with("position", entry.position);
      if (entry.offset <= previous.offset || entry.position <= previous.position)
        bad.add(where.with("error", "not increasing"));
      else if (batch == null) bad.add(where.with("error", "position is not the start of a batch"));
      else if (earlier != null && earlier.getValue().lastOffset() >= entry.offset)
        bad.add(
            where.with(
                "error",
                "earlier batch ends at "
                    + earlier.getValue().lastOffset()
                    + ": lookups would miss records"));
      else if (entry.offset < batch.baseOffset() || entry.offset > batch.lastOffset())
        notes.add(
            where.with(
                "note",
                String.format(
                    "offset not in the batch at position (%d..%d), lookups still correct",
                    batch.baseOffset(), batch.lastOffset())));
      else if (entry.offset != batch.lastOffset())
        notes.add(
            where.with(
                "note",
                "offset is inside the batch but not its last offset " + batch.lastOffset()));
      previous = entry;
    }
    index.closeHandler();
  }

  private void times(File log, TimeIndex index, FileRecords records) throws IOException {
    // In log order, which is not offset order in a damaged log.
    List<long[]> seen = new ArrayList<>(); // offset, timestamp, max timestamp of the batch
    for (FileChannelRecordBatch batch : records.batches())
      for (Record r : batch) seen.add(new long[] {r.offset(), r.timestamp(), batch.maxTimestamp()});
    sanity(log, "timeindex", index);
    TimestampOffset previous = new TimestampOffset(-2, -1);
    for (int i = 0; i < index.entries(); i++) {
      timeEntries++;
      TimestampOffset entry = index.entry(i);
      Json where =
          new Json()
              .with("segment", log.getName())
              .with("timeindex_entry", i)
              .with("timestamp", entry.timestamp)
              .with("offset", entry.offset);
      String error = null;
      boolean found = false;
      if (entry.timestamp < previous.timestamp || entry.offset < previous.offset)
        error = "not monotonic";
      else
        for (long[] record : seen) {
          if (record[0] == entry.offset) {
            found = true;
            if (record[1] != entry.timestamp && record[2] != entry.timestamp)
              error = "record " + record[0] + " has timestamp " + record[1];
          }
          if (record[0] <= entry.offset && record[1] > entry.timestamp) {
            error = "record at offset " + record[0] + " <= entry has larger timestamp " + record[1];
            break;
          }
        }
      if (error != null) bad.add(where.with("error", error));
      else if (!found)
        notes.add(
            where.with(
                "note",
                "no record with this offset (compacted hole or base offset of an empty index)"));
      previous = entry;
    }
    index.closeHandler();
  }

  private void sanity(File log, String which, AbstractIndex index) {
    Object answer = Decode.sanity(index);
    if (!Boolean.TRUE.equals(answer))
      bad.add(new Json().with("segment", log.getName()).with(which, "sanityCheck: " + answer));
  }
}
