import java.io.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.storage.internals.log.*;

/**
 * Conv down OUT CASEDIR... : real FileRecords.downConvert of each segment; Conv up OUT SEED : real
 * LogValidator of producer batches. Kafka 3.9.1
 */
public class Conv {
  static LogValidator.MetricsRecorder MR =
      new LogValidator.MetricsRecorder() {
        public void recordInvalidMagic() {}

        public void recordInvalidOffset() {}

        public void recordInvalidSequence() {}

        public void recordInvalidChecksums() {}

        public void recordNoKeyCompactedTopic() {}
      };

  static void write(File f, ByteBuffer b) throws Exception {
    try (FileChannel c =
        FileChannel.open(
            f.toPath(),
            StandardOpenOption.CREATE,
            StandardOpenOption.WRITE,
            StandardOpenOption.TRUNCATE_EXISTING)) {
      ByteBuffer d = b.duplicate();
      while (d.hasRemaining()) c.write(d);
    }
  }

  static void text(File f, String s) throws Exception {
    Files.write(f.toPath(), (s + "\n").getBytes("UTF-8"));
  }

  static void down(File out, File dir, long firstOffDelta) throws Exception {
    int k = 0;
    for (File f : PartitionFiles.logs(dir)) {
      if (k++ >= 2) break;
      if (f.length() == 0 || f.length() > 150000) continue;
      FileRecords fr = FileRecords.open(f, false, 0, false);
      int maxMagic = 0;
      for (RecordBatch b : fr.batches()) maxMagic = Math.max(maxMagic, b.magic());
      for (int to = 0; to < maxMagic; to++) {
        long fo = PartitionFiles.baseOffset(f) + firstOffDelta;
        String n =
            dir.getName().replaceAll("-0$", "")
                + "-seg"
                + k
                + "-to"
                + to
                + (firstOffDelta > 0 ? "-from" + firstOffDelta : "");
        File o = new File(out, n);
        o.mkdirs();
        Files.copy(
            f.toPath(), new File(o, "input.log").toPath(), StandardCopyOption.REPLACE_EXISTING);
        Map<String, Object> m =
            new Json()
                .with("kind", "down")
                .with("kafka", Shim.VERSION)
                .with("api", "FileRecords.downConvert(toMagic, firstOffset, time)")
                .with("source", dir.getName() + "/" + f.getName())
                .with("to_magic", to)
                .with("first_offset", fo);
        try {
          ConvertedRecords<? extends Records> c = fr.downConvert((byte) to, fo, Time.SYSTEM);
          m.put("records_converted", c.recordConversionStats().numRecordsConverted());
          Records r = c.records();
          if (r instanceof MemoryRecords)
            write(new File(o, "output.log"), ((MemoryRecords) r).buffer());
          else {
            m.put("same_as_input", true);
            Files.copy(
                f.toPath(),
                new File(o, "output.log").toPath(),
                StandardCopyOption.REPLACE_EXISTING);
          }
          dumpTo(o, "output");
        } catch (Throwable t) {
          m.put("error", t.toString());
        }
        text(new File(o, "meta.json"), Json.text(m));
      }
      fr.close();
    }
  }

  static void dumpTo(File o, String n) throws Exception {
    PrintStream x = Json.to(new File(o, n + ".jsonl"));
    Decode.records(new File(o, n + ".log"), x);
    x.close();
  }

  static void up(File out, long seed) throws Exception {
    String[] legacy = {"none", "gzip", "snappy", "lz4"};
    Random r = new Random(seed);
    FixedTime time = new FixedTime(1_700_000_500_000L);
    Gen.Case c = null;
    for (int p = 0; p <= 2; p++)
      for (int t = 0; t <= 2; t++) {
        if (t < p) continue;
        for (String src : p == 2 ? new String[] {"none", "gzip", "snappy", "lz4", "zstd"} : legacy)
          for (String dst :
              new String[] {src, src.equals("none") ? "lz4" : "none", t == 2 ? "zstd" : "gzip"})
            for (boolean lat : new boolean[] {false, true}) {
              if (lat && t == 0) continue;
              if (p == 2 && !dst.equals(src) && r.nextInt(3) > 0) continue;
              String n = "v" + p + "-" + src + "-to-v" + t + "-" + dst + (lat ? "-lat" : "-ct");
              File o = new File(out, n);
              if (o.exists()) continue;
              o.mkdirs();
              Gen.seed = seed;
              Gen.out = out;
              c = new Gen.Case(n, p, false, "");
              List<SimpleRecord> rs = Gen.recs(c, 1 + r.nextInt(9), p);
              if (r.nextInt(4) == 0 && p > 0)
                rs.set(
                    0,
                    new SimpleRecord(-1L, rs.get(0).key(), rs.get(0).value(), rs.get(0).headers()));
              MemoryRecords in =
                  Shim.build(
                      (byte) p,
                      src,
                      TimestampType.CREATE_TIME,
                      0L,
                      -1L,
                      -1L,
                      (short) -1,
                      -1,
                      false,
                      -1,
                      rs);
              write(new File(o, "input.log"), in.buffer());
              dumpTo(o, "input");
              long start = 1000 + r.nextInt(1000);
              PrimitiveRef.LongRef ref = PrimitiveRef.ofLong(start);
              Map<String, Object> m =
                  new Json()
                      .with("kind", "up")
                      .with("kafka", Shim.VERSION)
                      .with("api", "LogValidator.validateMessagesAndAssignOffsets")
                      .with("from_magic", p)
                      .with("to_magic", t)
                      .with("source_codec", src)
                      .with("target_codec", dst)
                      .with("timestamp_type", lat ? "LogAppendTime" : "CreateTime")
                      .with("first_offset", start)
                      .with("log_append_time", time.now)
                      .with("leader_epoch", 7);
              try {
                LogValidator.ValidationResult v =
                    new LogValidator(
                            in,
                            new TopicPartition("t", 0),
                            time,
                            CompressionType.forName(src),
                            Compression.of(dst).build(),
                            false,
                            (byte) t,
                            lat ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME,
                            Long.MAX_VALUE,
                            Long.MAX_VALUE,
                            7,
                            AppendOrigin.CLIENT,
                            MetadataVersion.latestProduction())
                        .validateMessagesAndAssignOffsets(ref, MR, BufferSupplier.NO_CACHING);
                write(new File(o, "output.log"), v.validatedRecords.buffer());
                m.put("max_timestamp", v.maxTimestampMs);
                m.put("result_log_append_time", v.logAppendTimeMs);
                m.put("message_size_maybe_changed", v.messageSizeMaybeChanged);
                m.put("next_offset", ref.value);
                dumpTo(o, "output");
              } catch (Throwable e) {
                m.put("error", e.toString());
              }
              text(new File(o, "meta.json"), Json.text(m));
            }
      }
  }

  public static void main(String[] a) throws Exception {
    File out = new File(a[1]);
    out.mkdirs();
    if (a[0].equals("down"))
      for (int i = 2; i < a.length; i++) {
        down(out, new File(a[i]), 0);
        if (i % 5 == 0) down(out, new File(a[i]), 4);
      }
    else up(out, Long.parseLong(a[2]));
  }
}
