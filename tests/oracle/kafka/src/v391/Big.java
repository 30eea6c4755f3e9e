import java.io.*;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.storage.internals.log.*;

/**
 * Big gen DIR magic codec records valueBytes batchRecords segmentBytes [seed] : a real partition
 * directory of any size (UnifiedLog of 3.9.1) Big bench DIR [runs] : single thread timings of the
 * real code over all segments of DIR
 */
public class Big {
  static void gen(String[] a) throws Exception {
    File d = new File(a[1]);
    byte magic = Byte.parseByte(a[2]);
    String codec = a[3];
    long n = Long.parseLong(a[4]);
    int vb = Integer.parseInt(a[5]), br = Integer.parseInt(a[6]);
    String sb = a[7];
    Random r = new Random(a.length > 8 ? Long.parseLong(a[8]) : 42);
    Map<String, String> c = new TreeMap<>();
    c.put("segment.bytes", sb);
    c.put("max.message.bytes", "20000000");
    c.put("segment.ms", "9223372036854775807");
    c.put("message.format.version", magic == 0 ? "0.9.0" : magic == 1 ? "0.10.0" : "2.8");
    FixedTime t = new FixedTime(1_700_000_000_000L);
    Shim s = new Shim(d, c, 0L, 0L, true, t);
    long ts = 1_700_000_000_000L;
    long done = 0;
    byte[] text =
        "The quick brown fox jumps over the lazy dog; 0123456789 lorem ipsum dolor sit amet, consectetur. "
            .getBytes();
    long t0 = System.nanoTime();
    while (done < n) {
      int k = (int) Math.min(br, n - done);
      List<SimpleRecord> l = new ArrayList<>(k);
      for (int i = 0; i < k; i++) {
        byte[] v = new byte[vb];
        int off = r.nextInt(text.length);
        for (int j = 0; j < vb; j++)
          v[j] = (j & 3) == 0 ? (byte) (32 + r.nextInt(90)) : text[(off + j) % text.length];
        ts += r.nextInt(3);
        l.add(new SimpleRecord(ts, ("key-" + (done + i) % 100000).getBytes(), v, new Header[0]));
      }
      s.append(
          Shim.build(
              magic, codec, TimestampType.CREATE_TIME, 0L, -1L, -1L, (short) -1, -1, false, -1, l),
          0,
          "client");
      t.now += 5;
      done += k;
    }
    s.flush();
    s.close();
    long sz = 0;
    for (File f : PartitionFiles.logs(d)) sz += f.length();
    System.out.printf(
        "{\"gen\":\"%s\",\"magic\":%d,\"codec\":\"%s\",\"records\":%d,\"log_bytes\":%d,\"segments\":%d,\"seconds\":%.2f}%n",
        d.getName(),
        magic,
        codec,
        n,
        sz,
        PartitionFiles.logs(d).size(),
        (System.nanoTime() - t0) / 1e9);
    System.exit(0);
  }

  interface Op {
    long run() throws Exception;
  }

  static void time(String name, int runs, long recs, long bytes, Op op) throws Exception {
    java.lang.management.ThreadMXBean mx = java.lang.management.ManagementFactory.getThreadMXBean();
    double best = 1e9, bc = 1e9;
    StringBuilder all = new StringBuilder();
    long got = 0;
    for (int i = 0; i < runs; i++) {
      System.gc();
      long c0 = mx.getCurrentThreadCpuTime(), t0 = System.nanoTime();
      got = op.run();
      double s = (System.nanoTime() - t0) / 1e9, c = (mx.getCurrentThreadCpuTime() - c0) / 1e9;
      all.append(i > 0 ? "," : "").append(String.format("%.3f", c));
      best = Math.min(best, s);
      bc = Math.min(bc, c);
    }
    System.out.printf(
        "{\"op\":\"%s\",\"items\":%d,\"cpu_s_each_run\":[%s],\"best_cpu_s\":%.4f,\"best_wall_s\":%.4f,\"records_per_cpu_s\":%.0f,\"MB_per_cpu_s\":%.1f}%n",
        name, got, all, bc, best, recs / bc, bytes / bc / 1e6);
    System.out.flush();
  }

  static MemoryRecords load(File f) throws Exception {
    ByteBuffer b = ByteBuffer.allocate((int) f.length());
    try (FileChannel c = FileChannel.open(f.toPath())) {
      while (b.hasRemaining() && c.read(b) >= 0)
        ;
    }
    b.flip();
    return MemoryRecords.readableRecords(b);
  }

  static void bench(String[] a) throws Exception {
    File d = new File(a[1]);
    int runs = a.length > 2 ? Integer.parseInt(a[2]) : 5;
    List<File> fs = PartitionFiles.logs(d);
    long bytes = 0, n0 = 0;
    List<MemoryRecords> ms = new ArrayList<>();
    int magic = -1;
    String codec = null;
    for (File f : fs) {
      bytes += f.length();
      MemoryRecords m = load(f);
      ms.add(m);
      for (RecordBatch b : m.batches()) {
        magic = b.magic();
        codec = b.compressionType().name;
        Integer c = b.countOrNull();
        if (c != null) n0 += c;
        else for (Record r : b) n0++;
      }
    }
    final long n = n0;
    final int mg = magic;
    final String cd = codec;
    System.out.printf(
        "{\"dir\":\"%s\",\"magic\":%d,\"codec\":\"%s\",\"records\":%d,\"log_bytes\":%d}%n",
        d.getName(), mg, cd, n, bytes);
    time(
        "shallow iterate FileRecords.batches() (headers only)",
        runs,
        n,
        bytes,
        () -> {
          long k = 0;
          for (File f : fs) {
            FileRecords fr = FileRecords.open(f, false, 0, false);
            for (RecordBatch b : fr.batches()) k += b.lastOffset() >= 0 ? 1 : 0;
            fr.close();
          }
          return k;
        });
    time(
        "shallow iterate MemoryRecords.batches() (in memory)",
        runs,
        n,
        bytes,
        () -> {
          long k = 0;
          for (MemoryRecords m : ms)
            for (RecordBatch b : m.batches()) k += b.lastOffset() >= 0 ? 1 : 0;
          return k;
        });
    time(
        "CRC verify, ensureValid of each batch (in memory)",
        runs,
        n,
        bytes,
        () -> {
          long k = 0;
          for (MemoryRecords m : ms)
            for (RecordBatch b : m.batches()) {
              b.ensureValid();
              k++;
            }
          return k;
        });
    time(
        "deep iterate, key+value+timestamp touched (in memory, streamingIterator)",
        runs,
        n,
        bytes,
        () -> {
          long k = 0, x = 0;
          BufferSupplier bs = BufferSupplier.create();
          for (MemoryRecords m : ms)
            for (RecordBatch b : m.batches())
              try (CloseableIterator<Record> it = b.streamingIterator(bs)) {
                while (it.hasNext()) {
                  Record r = it.next();
                  x +=
                      r.offset()
                          + r.timestamp()
                          + (r.hasKey() ? r.key().get(0) : 0)
                          + (r.hasValue() ? r.value().get(0) : 0);
                  k++;
                }
              }
          if (x == 1) System.out.print("");
          return k;
        });
    time(
        "deep iterate, FileRecords.records()",
        runs,
        n,
        bytes,
        () -> {
          long k = 0, x = 0;
          for (File f : fs) {
            FileRecords fr = FileRecords.open(f, false, 0, false);
            for (Record r : fr.records()) {
              x += r.offset() + r.timestamp() + r.valueSize();
              k++;
            }
            fr.close();
          }
          if (x == 1) System.out.print("");
          return k;
        });
    for (int to = 0; to < mg; to++) {
      final byte t = (byte) to;
      time(
          "down-convert v"
              + mg
              + " -> v"
              + to
              + " (MemoryRecords.downConvert, in memory, 1 MB slices of batches)",
          runs,
          n,
          bytes,
          () -> {
            long k = 0;
            for (MemoryRecords m : ms) {
              ByteBuffer b = m.buffer();
              int p = 0;
              while (p < b.limit()) {
                int e = p;
                while (e < b.limit() && e - p < 1000000) e += 12 + b.getInt(e + 8);
                ByteBuffer q = b.duplicate();
                q.position(p);
                q.limit(e);
                k +=
                    MemoryRecords.readableRecords(q.slice())
                        .downConvert(t, 0L, Time.SYSTEM)
                        .recordConversionStats()
                        .numRecordsConverted();
                p = e;
              }
            }
            return k;
          });
    }
    if (mg < 2)
      for (int to = mg + 1; to <= 2; to++) {
        final byte t = (byte) to;
        time(
            "up-convert v"
                + mg
                + " -> v"
                + to
                + " (LogValidator, wrapper by wrapper, or 1000 messages each when not compressed)",
            runs,
            n,
            bytes,
            () -> {
              long k = 0;
              PrimitiveRef.LongRef ref = PrimitiveRef.ofLong(0);
              FixedTime ft = new FixedTime(1_700_000_000_000L);
              BufferSupplier bs = BufferSupplier.create();
              for (MemoryRecords m : ms) {
                ByteBuffer b = m.buffer();
                int p = 0;
                while (p < b.limit()) {
                  int e = p, c = 0;
                  do {
                    e += 12 + b.getInt(e + 8);
                    c++;
                  } while (e < b.limit() && cd.equals("none") && c < 1000);
                  ByteBuffer q = b.duplicate();
                  q.position(p);
                  q.limit(e);
                  MemoryRecords in = MemoryRecords.readableRecords(q.slice());
                  LogValidator.ValidationResult v =
                      new LogValidator(
                              in,
                              new TopicPartition("t", 0),
                              ft,
                              CompressionType.forName(cd),
                              Compression.of(cd).build(),
                              false,
                              t,
                              TimestampType.CREATE_TIME,
                              Long.MAX_VALUE,
                              Long.MAX_VALUE,
                              0,
                              AppendOrigin.CLIENT,
                              MetadataVersion.latestProduction())
                          .validateMessagesAndAssignOffsets(ref, Conv.MR, bs);
                  k += v.validatedRecords.sizeInBytes();
                  p = e;
                }
              }
              return k;
            });
      }
    time(
        "LogSegment.recover (index rebuild + CRC) of a copy",
        Math.min(runs, 3),
        n,
        bytes,
        () -> {
          File c = PartitionFiles.copy(d);
          try {
            Shim s = new Shim(c, new TreeMap<>(), 0L, 0L, false, new FixedTime(1_800_000_000_000L));
            long e = s.end();
            s.close();
            return e;
          } finally {
            PartitionFiles.delete(c.getParentFile());
          }
        });
  }

  public static void main(String[] a) throws Exception {
    if (a[0].equals("gen")) gen(a);
    else {
      bench(a);
      System.exit(0);
    }
  }
}
