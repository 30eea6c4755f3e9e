import java.io.File;
import java.util.*;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.storage.internals.log.*;

/**
 * Answers of a real, cleanly opened log for a sample of offsets and times: per segment
 * (translateOffset, index lookups, findOffsetByTimestamp) and for the whole log (read,
 * fetchOffsetByTimestamp).
 */
class Lookups {
  private static final long FAR_FUTURE = 4999999999999L;
  private static final int SAMPLE = 8;

  private final Random random;
  private final List<Object> byOffset = new ArrayList<>();
  private final List<Object> byTimestamp = new ArrayList<>();
  private final TreeSet<Long> allTimestamps = new TreeSet<>();

  private Lookups(long seed) {
    random = new Random(seed);
  }

  static Json of(File dir, long seed) throws Exception {
    File copy = PartitionFiles.copy(dir);
    try {
      return new Lookups(seed).sample(copy, PartitionFiles.config(dir));
    } finally {
      PartitionFiles.delete(copy.getParentFile());
    }
  }

  private Json sample(File dir, Map<String, String> config) throws Exception {
    Shim log =
        new Shim(dir, config, 0L, Long.MAX_VALUE / 2, true, new FixedTime(1_800_000_000_000L));
    log.hw(log.end());
    Json result =
        new Json()
            .with("read_by", "kafka " + Shim.VERSION)
            .with("log_start_offset", log.start())
            .with("log_end_offset", log.end())
            .with("last_stable_offset", log.lso());
    for (LogSegment segment : log.segments())
      result.with("segment_" + segment.baseOffset(), segment(segment));
    result.with("by_offset_in_segment", byOffset).with("by_timestamp_in_segment", byTimestamp);
    result.with("whole_log_by_timestamp", byTime(log)).with("whole_log_read", reads(log));
    log.close();
    return result;
  }

  private Json segment(LogSegment segment) throws Exception {
    long base = segment.baseOffset(), next = segment.readNextOffset();
    TreeSet<Long> offsets = new TreeSet<>(List.of(base, next - 1, next, next + 5));
    List<Long> moreOffsets = new ArrayList<>(), moreTimestamps = new ArrayList<>();
    for (RecordBatch batch : segment.log().batches()) {
      moreOffsets.addAll(List.of(batch.baseOffset(), batch.lastOffset(), batch.lastOffset() + 1));
      for (Record record : batch) {
        moreOffsets.add(record.offset());
        long t = record.timestamp();
        moreTimestamps.addAll(List.of(t, t + 1, t - 1));
      }
    }
    Collections.shuffle(moreOffsets, random);
    Collections.shuffle(moreTimestamps, random);
    offsets.addAll(moreOffsets.subList(0, Math.min(SAMPLE, moreOffsets.size())));
    TreeSet<Long> timestamps =
        new TreeSet<>(moreTimestamps.subList(0, Math.min(SAMPLE, moreTimestamps.size())));
    long largest = segment.largestTimestamp();
    timestamps.addAll(List.of(0L, largest, largest + 1, FAR_FUTURE));

    for (long target : offsets.tailSet(base)) {
      FileRecords.LogOffsetPosition found = segment.translateOffset(target);
      OffsetPosition entry = segment.offsetIndex().lookup(target);
      byOffset.add(
          new Json()
              .with("segment_base", base)
              .with("target", target)
              .with("index_lookup", Arrays.asList(entry.offset, entry.position))
              .with(
                  "translate",
                  found == null
                      ? null
                      : new Json()
                          .with("offset", found.offset)
                          .with("position", found.position)
                          .with("size", found.size)));
    }
    for (long target : timestamps) {
      TimestampOffset entry = segment.timeIndex().lookup(target);
      byTimestamp.add(
          new Json()
              .with("segment_base", base)
              .with("target", target)
              .with("time_index_lookup", Arrays.asList(entry.timestamp, entry.offset))
              .with("find", json(segment.findOffsetByTimestamp(target, base).orElse(null))));
    }
    allTimestamps.addAll(timestamps);
    return new Json()
        .with("base_offset", base)
        .with("size", segment.size())
        .with("next_offset", next)
        .with("largest_timestamp", largest)
        .with("max_timestamp_so_far", segment.readMaxTimestampAndOffsetSoFar().timestamp)
        .with("offset_of_max_timestamp_so_far", segment.readMaxTimestampAndOffsetSoFar().offset);
  }

  private List<Object> byTime(Shim log) {
    List<Long> targets = new ArrayList<>(allTimestamps.tailSet(0L));
    targets.addAll(List.of(-1L, -2L, -3L)); // latest, earliest, largest timestamp
    List<Object> answers = new ArrayList<>();
    for (long target : targets)
      answers.add(new Json().with("target", target).with("result", json(log.byTime(target))));
    return answers;
  }

  private List<Object> reads(Shim log) {
    List<Long> offsets = new ArrayList<>();
    long span = log.end() - log.start();
    for (int i = 0; i < SAMPLE && span > 0; i++)
      offsets.add(log.start() + (long) (random.nextDouble() * span));
    offsets.addAll(List.of(log.start(), log.end() - 1, log.end()));
    Collections.sort(offsets);
    List<Object> answers = new ArrayList<>();
    for (long offset : offsets)
      for (int maxBytes : new int[] {1, 1000, 1000000}) {
        Json answer = new Json().with("target", offset).with("max_bytes", maxBytes);
        try {
          read(log, offset, maxBytes, answer);
        } catch (Exception e) {
          answer.with("error", e.toString());
        }
        answers.add(answer);
      }
    return answers;
  }

  private static void read(Shim log, long offset, int maxBytes, Json answer) throws Exception {
    FetchDataInfo fetched = log.read(offset, maxBytes);
    int batches = 0;
    long first = -1, last = -1;
    for (RecordBatch batch : fetched.records.batches()) {
      if (batches++ == 0) first = batch.lastOffset();
      last = batch.lastOffset();
    }
    answer
        .with("segment_base", fetched.fetchOffsetMetadata.segmentBaseOffset)
        .with("position", fetched.fetchOffsetMetadata.relativePositionInSegment)
        .with("bytes", fetched.records.sizeInBytes())
        .with("whole_batches", batches)
        .with("first_batch_last_offset", first)
        .with("last_batch_last_offset", last);
    if (maxBytes < 1000000) return;
    FetchDataInfo committed = log.readCommitted(offset, maxBytes);
    List<Object> aborted = new ArrayList<>();
    if (committed.abortedTransactions.isPresent())
      committed
          .abortedTransactions
          .get()
          .forEach(t -> aborted.add(Arrays.asList(t.producerId(), t.firstOffset())));
    answer.with(
        "read_committed",
        new Json().with("bytes", committed.records.sizeInBytes()).with("aborted", aborted));
  }

  private static Json json(FileRecords.TimestampAndOffset t) {
    if (t == null) return null;
    return new Json()
        .with("timestamp", t.timestamp)
        .with("offset", t.offset)
        .with("leader_epoch", t.leaderEpoch.orElse(null));
  }
}
