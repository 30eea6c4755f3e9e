import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.CorruptRecordException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.storage.internals.log.*;

/**
 * Validate FILE: what the real LogValidator makes of ready batches. A case is a line of FILE, a line
 * of JSON its answer:
 *
 * <pre>codec timestamp-type compacted before-max-ms after-max-ms max-bytes origin now first-offset epoch hex</pre>
 *
 * Sizes and checksums are asked before, as UnifiedLog.analyzeAndValidateRecords does, and the magic
 * stays that of the batch.
 */
public class Validate {
  static final LogValidator.MetricsRecorder SILENT =
      new LogValidator.MetricsRecorder() {
        public void recordInvalidMagic() {}

        public void recordInvalidOffset() {}

        public void recordInvalidSequence() {}

        public void recordInvalidChecksums() {}

        public void recordNoKeyCompactedTopic() {}
      };

  static Json answer(String[] c) {
    ByteBuffer raw = ByteBuffer.wrap(HexFormat.of().parseHex(c.length > 10 ? c[10] : ""));
    MemoryRecords records = MemoryRecords.readableRecords(raw);
    CompressionType source = CompressionType.NONE;
    int size = 0;
    byte magic = 2;
    for (RecordBatch batch : records.batches()) {
      if (size == 0) magic = batch.magic();
      size += batch.sizeInBytes();
      if (batch.sizeInBytes() > Integer.parseInt(c[5])) throw new RecordTooLargeException();
      if (!batch.isValid()) throw new CorruptRecordException();
      CompressionType codec = CompressionType.forId(batch.compressionType().id);
      if (codec != CompressionType.NONE) source = codec;
    }
    if (size != raw.limit()) throw new CorruptRecordException("a torn tail");
    Compression target =
        c[0].equals("producer") ? Compression.of(source).build() : Compression.of(c[0]).build();
    PrimitiveRef.LongRef offset = PrimitiveRef.ofLong(Long.parseLong(c[8]));
    LogValidator.ValidationResult result =
        Shim.validator(
                records,
                new TopicPartition("t", 0),
                new FixedTime(Long.parseLong(c[7])),
                source,
                target,
                Boolean.parseBoolean(c[2]),
                magic,
                TimestampType.forName(c[1]),
                Long.parseLong(c[3]),
                Long.parseLong(c[4]),
                Integer.parseInt(c[9]),
                AppendOrigin.valueOf(c[6]))
            .validateMessagesAndAssignOffsets(offset, SILENT, BufferSupplier.NO_CACHING);
    // As UnifiedLog.append, which measures again what the validator built.
    for (RecordBatch batch : result.validatedRecords.batches())
      if (batch.sizeInBytes() > Integer.parseInt(c[5])) throw new RecordTooLargeException();
    ByteBuffer stored = result.validatedRecords.buffer().duplicate();
    byte[] bytes = new byte[stored.remaining()];
    stored.get(bytes);
    return new Json()
        .with("next_offset", offset.value)
        .with("max_timestamp", result.maxTimestampMs)
        .with("rebuilt", result.messageSizeMaybeChanged)
        .with("raw", HexFormat.of().formatHex(bytes));
  }

  public static void main(String[] a) throws Exception {
    for (String line : Files.readAllLines(Path.of(a[0]), StandardCharsets.US_ASCII)) {
      Json answer;
      try {
        answer = answer(line.split(" "));
      } catch (Exception | OutOfMemoryError e) {
        Throwable cause =
            e instanceof RecordValidationException
                ? ((RecordValidationException) e).invalidException()
                : e;
        answer =
            new Json()
                .with("error", cause.getClass().getSimpleName())
                .with("message", "" + cause.getMessage());
      }
      System.out.println(answer);
    }
  }
}
