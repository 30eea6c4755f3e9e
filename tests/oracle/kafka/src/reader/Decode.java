import java.io.*;
import java.nio.file.Files;
import java.util.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.storage.internals.log.*;

/** What the real readers see in the files: records, batches, indexes. */
class Decode {
  /** A line for each record; a segment that cannot be read further ends in an "error" line. */
  static void records(File dirOrFile, PrintStream out) throws IOException {
    for (File log : PartitionFiles.logs(dirOrFile))
      try (FileRecords records = FileRecords.open(log, false, 0, false)) {
        for (FileChannelRecordBatch batch : records.batches()) {
          int index = 0;
          for (Record record : batch) out.println(record(log, batch, record, index++));
        }
      } catch (Exception e) {
        out.println(new Json().with("segment", log.getName()).with("error", e.toString()));
      }
  }

  /** A line for each batch, empty ones too. */
  static void batches(File dirOrFile, PrintStream out) throws IOException {
    for (File log : PartitionFiles.logs(dirOrFile))
      try (FileRecords records = FileRecords.open(log, false, 0, false)) {
        for (FileChannelRecordBatch batch : records.batches()) out.println(batch(log, batch));
      } catch (Exception e) {
        out.println(new Json().with("segment", log.getName()).with("error", e.toString()));
      }
  }

  private static Json record(File log, FileChannelRecordBatch b, Record r, int index) {
    List<Object> headers = new ArrayList<>();
    for (Header h : r.headers()) headers.add(Arrays.asList(h.key(), Json.base64(h.value())));
    Json line =
        new Json()
            .with("offset", r.offset())
            .with("timestamp", r.timestamp())
            .with("timestamp_type", b.timestampType().name)
            .withBytes("key", r.key())
            .withBytes("value", r.value())
            .with("headers", headers)
            .with("sequence", r.sequence())
            .with("record_size", r.sizeInBytes())
            .with("index_in_batch", index)
            .with("magic", (int) b.magic())
            .with("codec", b.compressionType().name)
            .with("batch_base_offset", b.baseOffset())
            .with("batch_last_offset", b.lastOffset())
            .with("batch_crc", b.checksum())
            .with("segment", log.getName())
            .with("batch_position", b.position())
            .with("batch_size", b.sizeInBytes())
            .with("producer_id", b.producerId())
            .with("producer_epoch", (int) b.producerEpoch())
            .with("base_sequence", b.baseSequence())
            .with("transactional", b.isTransactional())
            .with("control", b.isControlBatch());
    if (b.isControlBatch()) line.with("control_type", ControlRecordType.parse(r.key()).toString());
    line.with("leader_epoch", b.partitionLeaderEpoch());
    if (b.deleteHorizonMs().isPresent())
      line.with("delete_horizon_ms", b.deleteHorizonMs().getAsLong());
    return line;
  }

  private static Json batch(File log, FileChannelRecordBatch b) {
    OptionalLong horizon = b.deleteHorizonMs();
    return new Json()
        .with("segment", log.getName())
        .with("position", b.position())
        .with("size", b.sizeInBytes())
        .with("magic", (int) b.magic())
        .with("base_offset", b.baseOffset())
        .with("last_offset", b.lastOffset())
        .with("codec", b.compressionType().name)
        .with("timestamp_type", b.timestampType().name)
        .with("max_timestamp", b.maxTimestamp())
        .with("crc", b.checksum())
        .with("crc_valid", b.isValid())
        .with("count", b.countOrNull())
        .with("producer_id", b.producerId())
        .with("producer_epoch", (int) b.producerEpoch())
        .with("base_sequence", b.baseSequence())
        .with("last_sequence", b.lastSequence())
        .with("transactional", b.isTransactional())
        .with("control", b.isControlBatch())
        .with("leader_epoch", b.partitionLeaderEpoch())
        .with("delete_horizon_ms", horizon.isPresent() ? horizon.getAsLong() : null);
  }

  /** Every entry of every index, the aborted transactions, the producer snapshots, the epochs. */
  static Json indexes(File dir) throws IOException {
    List<Object> segments = new ArrayList<>();
    for (File log : PartitionFiles.logs(dir)) segments.add(segment(log));
    List<Object> snapshots = new ArrayList<>();
    for (File f : PartitionFiles.withSuffix(dir, ".snapshot")) snapshots.add(snapshot(f));
    File epochs = new File(dir, "leader-epoch-checkpoint");
    return new Json()
        .with("read_by", "kafka " + Shim.VERSION)
        .with("segments", segments)
        .with("producer_snapshots", snapshots)
        .with(
            "leader_epoch_checkpoint", epochs.exists() ? Files.readString(epochs.toPath()) : null);
  }

  private static Json segment(File log) throws IOException {
    long base = PartitionFiles.baseOffset(log);
    Json segment =
        new Json()
            .with("segment", log.getName())
            .with("base_offset", base)
            .with("log_size", log.length());
    offsetIndex(PartitionFiles.sibling(log, ".index"), base, segment);
    timeIndex(PartitionFiles.sibling(log, ".timeindex"), base, segment);
    File aborted = PartitionFiles.sibling(log, ".txnindex");
    if (aborted.exists()) {
      List<Object> transactions = new ArrayList<>();
      try (TransactionIndex index = new TransactionIndex(base, aborted)) {
        for (AbortedTxn t : index.allAbortedTxns())
          transactions.add(
              new Json()
                  .with("version", (int) t.version())
                  .with("producer_id", t.producerId())
                  .with("first_offset", t.firstOffset())
                  .with("last_offset", t.lastOffset())
                  .with("last_stable_offset", t.lastStableOffset()));
      }
      segment.with("aborted_txns", transactions);
    }
    return segment;
  }

  private static void offsetIndex(File file, long base, Json segment) {
    if (!file.exists()) {
      segment.with("offset_index", null);
      return;
    }
    List<Object> entries = new ArrayList<>();
    segment.with("index_file_size", file.length());
    if (file.length() > 0)
      try {
        OffsetIndex index = new OffsetIndex(file, base, -1, false);
        for (int i = 0; i < index.entries(); i++) {
          OffsetPosition e = index.entry(i);
          entries.add(Arrays.asList(e.offset, e.position));
        }
        segment.with("index_last_offset", index.lastOffset());
        segment.with("index_sane", sanity(index));
        index.closeHandler();
      } catch (Exception e) {
        segment.with("index_error", e.toString());
      }
    segment.with("offset_index", entries);
  }

  private static void timeIndex(File file, long base, Json segment) {
    if (!file.exists()) {
      segment.with("time_index", null);
      return;
    }
    List<Object> entries = new ArrayList<>();
    segment.with("timeindex_file_size", file.length());
    if (file.length() > 0)
      try {
        TimeIndex index = new TimeIndex(file, base, -1, false);
        for (int i = 0; i < index.entries(); i++) {
          TimestampOffset e = index.entry(i);
          entries.add(Arrays.asList(e.timestamp, e.offset));
        }
        TimestampOffset last = index.lastEntry();
        segment.with("timeindex_last_entry", Arrays.asList(last.timestamp, last.offset));
        segment.with("timeindex_sane", sanity(index));
        index.closeHandler();
      } catch (Exception e) {
        segment.with("timeindex_error", e.toString());
      }
    segment.with("time_index", entries);
  }

  /** true, or what Kafka's own check says. */
  static Object sanity(AbstractIndex index) {
    try {
      index.sanityCheck();
      return true;
    } catch (Exception e) {
      return e.getMessage();
    }
  }

  private static Json snapshot(File file) {
    Json snapshot = new Json().with("file", file.getName());
    List<Object> producers = new ArrayList<>();
    try {
      for (ProducerStateEntry p : ProducerStateManager.readSnapshot(file)) {
        OptionalLong first = p.currentTxnFirstOffset();
        producers.add(
            new Json()
                .with("producer_id", p.producerId())
                .with("producer_epoch", (int) p.producerEpoch())
                .with("last_sequence", p.lastSeq())
                .with("last_offset", p.lastDataOffset())
                .with("coordinator_epoch", p.coordinatorEpoch())
                .with("current_txn_first_offset", first.isPresent() ? first.getAsLong() : null));
      }
      return snapshot.with("producers", producers);
    } catch (Exception e) {
      return snapshot.with("error", e.toString());
    }
  }
}
