package org.apache.pulsar.broker.delayed.bucket;

import golden.*;
import io.netty.buffer.*;
import io.netty.util.*;
import java.io.*;
import java.lang.reflect.Proxy;
import java.time.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.GZIPOutputStream;
import org.apache.bookkeeper.mledger.*;
import org.apache.pulsar.broker.delayed.*;
import org.apache.pulsar.broker.delayed.proto.*;
import org.apache.pulsar.broker.service.persistent.*;
import org.mockito.Mockito;

/**
 * Drives the real BucketDelayedDeliveryTracker / InMemoryDelayedDeliveryTracker deterministically.
 */
public class BucketGolden {
  static final class Clk extends Clock {
    long ms;

    public ZoneId getZone() {
      return ZoneOffset.UTC;
    }

    public Clock withZone(ZoneId z) {
      return this;
    }

    public Instant instant() {
      return Instant.ofEpochMilli(ms);
    }

    public long millis() {
      return ms;
    }
  }

  static final class NoTimer implements io.netty.util.Timer {
    long n;
    long lastDelay = -1;

    public Timeout newTimeout(io.netty.util.TimerTask t, long d, TimeUnit u) {
      n++;
      lastDelay = d;
      return new Timeout() {
        boolean c;

        public io.netty.util.Timer timer() {
          return NoTimer.this;
        }

        public io.netty.util.TimerTask task() {
          return t;
        }

        public boolean isExpired() {
          return false;
        }

        public boolean isCancelled() {
          return c;
        }

        public boolean cancel() {
          c = true;
          return true;
        }
      };
    }

    public Set<Timeout> stop() {
      return Set.of();
    }
  }

  /**
   * Same bytes as BookkeeperBucketSnapshotStorage: entry 0 = SnapshotMetadata, entries 1.. =
   * SnapshotSegment.
   */
  static class Mem implements BucketSnapshotStorage {
    final Map<Long, List<byte[]>> m = new TreeMap<>();
    long next = 1000;
    java.util.function.BiConsumer<Long, List<byte[]>> onCreate;
    java.util.function.LongConsumer onDelete;
    String lastKey;

    static byte[] ser(SnapshotSegment s) {
      ByteBuf b = PooledByteBufAllocator.DEFAULT.directBuffer(Math.max(1, s.getSerializedSize()));
      s.writeTo(b);
      byte[] x = new byte[b.readableBytes()];
      b.readBytes(x);
      b.release();
      return x;
    }

    public CompletableFuture<Long> createBucketSnapshot(
        SnapshotMetadata md, List<SnapshotSegment> segs, String key, String topic, String cur) {
      List<byte[]> l = new ArrayList<>();
      l.add(md.toByteArray());
      for (var s : segs) l.add(ser(s));
      long id = next++;
      m.put(id, l);
      lastKey = key;
      if (onCreate != null) onCreate.accept(id, l);
      return CompletableFuture.completedFuture(id);
    }

    static SnapshotMetadata pm(byte[] b) {
      SnapshotMetadata x = new SnapshotMetadata();
      ByteBuf u = Unpooled.wrappedBuffer(b);
      x.parseFrom(u, u.readableBytes());
      for (int i = 0; i < x.getMetadataListCount(); i++) {
        SnapshotSegmentMetadata s = x.getMetadataAt(i);
        s.forEachDelayedIndexBitMap(s::putDelayedIndexBitMap);
      }
      return x;
    }

    static SnapshotSegment ps(byte[] b) {
      SnapshotSegment x = new SnapshotSegment();
      ByteBuf u = Unpooled.wrappedBuffer(b);
      x.parseFrom(u, u.readableBytes());
      return x;
    }

    public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long id) {
      var l = m.get(id);
      if (l == null) return CompletableFuture.failedFuture(new BucketNotExistException("no " + id));
      return CompletableFuture.completedFuture(pm(l.get(0)));
    }

    public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(
        long id, long a, long b) {
      List<SnapshotSegment> r = new ArrayList<>();
      for (long i = a; i <= b; i++) r.add(ps(m.get(id).get((int) i)));
      return CompletableFuture.completedFuture(r);
    }

    public CompletableFuture<Long> getBucketSnapshotLength(long id) {
      long n = 0;
      for (byte[] b : m.get(id)) n += b.length;
      return CompletableFuture.completedFuture(n);
    }

    public CompletableFuture<Void> deleteBucketSnapshot(long id) {
      m.remove(id);
      if (onDelete != null) onDelete.accept(id);
      return CompletableFuture.completedFuture(null);
    }

    public void start() {}

    public void close() {}
  }

  /** Snapshots in a file, so that only the tracker's own memory is measured. */
  static final class FileStore extends Mem {
    final RandomAccessFile f;
    final Map<Long, long[]> off = new HashMap<>();
    long pos = 0;

    FileStore(String p) throws IOException {
      new File(p).delete();
      f = new RandomAccessFile(p, "rw");
    }

    public CompletableFuture<Long> createBucketSnapshot(
        SnapshotMetadata md, List<SnapshotSegment> segs, String key, String topic, String cur) {
      try {
        long id = next++;
        long[] o = new long[segs.size() + 2];
        f.seek(pos);
        ByteArrayOutputStream bo = new ByteArrayOutputStream();
        o[0] = pos;
        bo.write(md.toByteArray());
        o[1] = pos + bo.size();
        int i = 2;
        for (var s : segs) {
          bo.write(ser(s));
          o[i++] = pos + bo.size();
        }
        f.write(bo.toByteArray());
        pos += bo.size();
        off.put(id, o);
        return CompletableFuture.completedFuture(id);
      } catch (IOException e) {
        throw new RuntimeException(e);
      }
    }

    byte[] rd(long id, int i) {
      try {
        long[] o = off.get(id);
        byte[] b = new byte[(int) (o[i + 1] - o[i])];
        f.seek(o[i]);
        f.readFully(b);
        return b;
      } catch (IOException e) {
        throw new RuntimeException(e);
      }
    }

    public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long id) {
      return CompletableFuture.completedFuture(pm(rd(id, 0)));
    }

    public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(
        long id, long a, long b) {
      List<SnapshotSegment> r = new ArrayList<>();
      for (long i = a; i <= b; i++) r.add(ps(rd(id, (int) i)));
      return CompletableFuture.completedFuture(r);
    }

    public CompletableFuture<Long> getBucketSnapshotLength(long id) {
      long[] o = off.get(id);
      return CompletableFuture.completedFuture(o[o.length - 1] - o[0]);
    }

    public CompletableFuture<Void> deleteBucketSnapshot(long id) {
      off.remove(id);
      return CompletableFuture.completedFuture(null);
    }
  }

  static class Env {
    Map<String, String> props = new TreeMap<>();
    Position md;
    Clk clk = new Clk();
    NoTimer timer = new NoTimer();
    AbstractPersistentDispatcherMultipleConsumers disp;

    Env() {
      ManagedLedger ml =
          (ManagedLedger)
              Proxy.newProxyInstance(
                  getClass().getClassLoader(),
                  new Class[] {ManagedLedger.class},
                  (p, m, a) -> m.getName().equals("getName") ? "ml" : null);
      ManagedCursor cur =
          (ManagedCursor)
              Proxy.newProxyInstance(
                  getClass().getClassLoader(),
                  new Class[] {ManagedCursor.class},
                  (p, m, a) -> {
                    switch (m.getName()) {
                      case "getName":
                        return "sub";
                      case "getCursorProperties":
                        return new TreeMap<>(props);
                      case "putCursorProperty":
                        props.put((String) a[0], (String) a[1]);
                        return CompletableFuture.completedFuture(null);
                      case "removeCursorProperty":
                        props.remove(a[0]);
                        return CompletableFuture.completedFuture(null);
                      case "getMarkDeletedPosition":
                        return md;
                      case "getManagedLedger":
                        return ml;
                      case "hashCode":
                        return 1;
                      case "equals":
                        return p == a[0];
                      case "toString":
                        return "cur";
                    }
                    return null;
                  });
      disp =
          Mockito.mock(
              AbstractPersistentDispatcherMultipleConsumers.class,
              Mockito.withSettings()
                  .stubOnly()
                  .defaultAnswer(
                      iv -> {
                        switch (iv.getMethod().getName()) {
                          case "getName":
                            return "persistent://public/default/t / sub";
                          case "getCursor":
                            return cur;
                        }
                        return null;
                      }));
    }
  }

  static class Cfg {
    String name;
    long minIdx;
    long step;
    int maxSeg;
    int maxBuckets;
    long tick;
    boolean strict;

    Cfg(String n, long a, long b, int c, int d, long t, boolean s) {
      name = n;
      minIdx = a;
      step = b;
      maxSeg = c;
      maxBuckets = d;
      tick = t;
      strict = s;
    }
  }

  static class Run {
    Cfg c;
    Env e = new Env();
    Mem st = new Mem();
    BucketDelayedDeliveryTracker t;
    InMemoryDelayedDeliveryTracker im;
    PrintWriter j;
    String dir;
    TreeMap<List<Long>, Long> out =
        new TreeMap<>(
            (x, y) -> {
              int q = Long.compare(x.get(0), y.get(0));
              return q != 0 ? q : Long.compare(x.get(1), y.get(1));
            });
    List<String> snaps = new ArrayList<>();
    long addn, schedn, retn;

    Run(String dir, Cfg c, long now, boolean gz) throws Exception {
      this.dir = dir;
      this.c = c;
      e.clk.ms = now;
      File d = new File(dir + "/" + c.name);
      d.mkdirs();
      OutputStream o = new FileOutputStream(dir + "/" + c.name + "/ops.jsonl" + (gz ? ".gz" : ""));
      j =
          new PrintWriter(
              new OutputStreamWriter(
                  gz ? new GZIPOutputStream(o) : new BufferedOutputStream(o), "UTF-8"));
      st.onCreate =
          (id, l) -> {
            try {
              String f = "bucket_" + id + ".bin";
              Dec.writeStream(dir + "/" + c.name + "/" + f, l);
              j.println(
                  J.s(
                      J.m(
                          "op",
                          "snapshot_create",
                          "id",
                          id,
                          "key",
                          st.lastKey,
                          "file",
                          f,
                          "entries",
                          l.size())));
            } catch (IOException x) {
              throw new UncheckedIOException(x);
            }
          };
      st.onDelete = id -> j.println(J.s(J.m("op", "snapshot_delete", "id", id)));
      j.println(
          J.s(
              J.m(
                  "op",
                  "config",
                  "min_index_count_per_bucket",
                  c.minIdx,
                  "time_step_per_segment_ms",
                  c.step,
                  "max_indexes_per_segment",
                  c.maxSeg,
                  "max_num_buckets",
                  c.maxBuckets,
                  "tick_ms",
                  c.tick,
                  "strict",
                  c.strict,
                  "now",
                  now)));
      open();
      im = new InMemoryDelayedDeliveryTracker(e.disp, e.timer, c.tick, e.clk, c.strict, 0);
    }

    void open() throws Exception {
      t =
          new BucketDelayedDeliveryTracker(
              e.disp,
              e.timer,
              c.tick,
              e.clk,
              c.strict,
              st,
              c.minIdx,
              c.step,
              c.maxSeg,
              c.maxBuckets);
    }

    void clock(long ms) {
      e.clk.ms = ms;
      j.println("{\"op\":\"clock\",\"now\":" + ms + "}");
    }

    void add(long l, long en, long at) {
      add(l, en, at, "add");
    }

    void add(long l, long en, long at, String op) {
      addn++;
      boolean r = t.addMessage(l, en, at);
      boolean r2 = im.addMessage(l, en, at);
      if (r) out.putIfAbsent(List.of(l, en), at);
      else if (op.equals("replay")) out.remove(List.of(l, en));
      j.println(
          "{\"op\":\""
              + op
              + "\",\"m\":["
              + l
              + ","
              + en
              + ","
              + at
              + "],\"ret\":"
              + r
              + (r2 != r ? ",\"inmem_ret\":" + r2 : "")
              + "}");
    }

    String pos(NavigableSet<Position> s) {
      StringBuilder b = new StringBuilder("[");
      boolean f = true;
      for (Position p : s) {
        if (!f) b.append(',');
        f = false;
        b.append('[').append(p.getLedgerId()).append(',').append(p.getEntryId()).append(']');
      }
      return b.append(']').toString();
    }

    int sched(int n) {
      schedn++;
      boolean has = t.hasMessageAvailable();
      var s = t.getScheduledMessages(n);
      retn += s.size();
      for (Position p : s) out.remove(List.of(p.getLedgerId(), p.getEntryId()));
      var s2 = im.getScheduledMessages(n);
      String a = pos(s), b = pos(s2);
      j.println(
          "{\"op\":\"sched\",\"n\":"
              + n
              + ",\"has\":"
              + has
              + ",\"ret\":"
              + a
              + ",\"left\":"
              + t.getNumberOfDelayedMessages()
              + ",\"buckets\":"
              + t.getImmutableBuckets().asMapOfRanges().size()
              + ",\"shared\":"
              + t.getSharedBucketPriorityQueue().size()
              + ",\"mutable\":"
              + t.getLastMutableBucket().size()
              + (a.equals(b) ? "" : ",\"inmem_ret\":" + b)
              + ",\"inmem_left\":"
              + im.getNumberOfDelayedMessages()
              + "}");
      return s.size();
    }

    void contains(long l, long en) {
      j.println(
          "{\"op\":\"contains\",\"m\":["
              + l
              + ","
              + en
              + "],\"ret\":"
              + t.containsMessage(l, en)
              + "}");
    }

    void mark(long l, long en) {
      e.md = PositionFactory.create(l, en);
      j.println("{\"op\":\"mark_delete\",\"m\":[" + l + "," + en + "]}");
    }

    void state() {
      List<Object> bs = new ArrayList<>();
      t.getImmutableBuckets()
          .asMapOfRanges()
          .values()
          .forEach(
              b -> {
                Map<String, Object> bm = new TreeMap<>();
                b.getDelayedIndexBitMap()
                    .forEach((k, v) -> bm.put(String.valueOf(k), v.getCardinality()));
                bs.add(
                    J.m(
                        "start",
                        b.getStartLedgerId(),
                        "end",
                        b.getEndLedgerId(),
                        "id",
                        b.getBucketId().orElse(null),
                        "messages",
                        b.getNumberBucketDelayedMessages(),
                        "current_segment",
                        b.getCurrentSegmentEntryId(),
                        "last_segment",
                        b.getLastSegmentEntryId(),
                        "bitmap_cardinalities",
                        bm));
              });
      j.println(
          J.s(
              J.m(
                  "op",
                  "state",
                  "immutable",
                  bs,
                  "mutable_start",
                  t.getLastMutableBucket().getStartLedgerId(),
                  "mutable_end",
                  t.getLastMutableBucket().getEndLedgerId(),
                  "mutable_size",
                  t.getLastMutableBucket().size(),
                  "shared",
                  t.getSharedBucketPriorityQueue().size(),
                  "delayed",
                  t.getNumberOfDelayedMessages(),
                  "cursor_properties",
                  new TreeMap<>(e.props))));
    }

    void metrics() {
      Map<String, Object> m = new TreeMap<>();
      t.genTopicMetricMap()
          .forEach(
              (k, v) -> {
                if (!k.contains("latency")) m.put(k, v.value);
              });
      j.println(J.s(J.m("op", "metrics", "values", m)));
    }

    void restart() throws Exception {
      t.close();
      open();
      j.println(
          "{\"op\":\"restart\",\"delayed\":"
              + t.getNumberOfDelayedMessages()
              + ",\"buckets\":"
              + t.getImmutableBuckets().asMapOfRanges().size()
              + ",\"shared\":"
              + t.getSharedBucketPriorityQueue().size()
              + "}");
    }

    /**
     * what the broker does after a restart: the cursor rewinds to the mark-delete position and
     * every outstanding message is read and added again
     */
    void replay() {
      im.clear();
      long ml = e.md == null ? -1 : e.md.getLedgerId(), me = e.md == null ? -1 : e.md.getEntryId();
      for (var x : new ArrayList<>(out.entrySet())) {
        long l = x.getKey().get(0), en = x.getKey().get(1);
        if (l < ml || (l == ml && en <= me)) {
          if (l < ml) out.remove(x.getKey());
          continue;
        }
        add(l, en, x.getValue(), "replay");
      }
    }

    void clear() throws Exception {
      out.clear();
      t.clear().get();
      im.clear();
      j.println(
          "{\"op\":\"clear\",\"delayed\":"
              + t.getNumberOfDelayedMessages()
              + ",\"buckets\":"
              + t.getImmutableBuckets().asMapOfRanges().size()
              + "}");
    }

    void end() {
      state();
      metrics();
      j.close();
      System.out.println(
          c.name
              + " adds="
              + addn
              + " sched="
              + schedn
              + " returned="
              + retn
              + " left="
              + t.getNumberOfDelayedMessages()
              + " inmemLeft="
              + im.getNumberOfDelayedMessages()
              + " snapshots="
              + (st.next - 1000)
              + " live="
              + st.m.size());
    }
  }

  static void workload(
      String dir,
      Cfg c,
      long seed,
      int n,
      int perLedger,
      int maxDelaySec,
      double disorder,
      double dup,
      boolean restarts,
      boolean trims,
      boolean clr,
      boolean drain,
      boolean gz)
      throws Exception {
    Random r = new Random(seed ^ c.name.hashCode());
    long now = 1700000000000L + (seed % 1000) * 1000;
    Run w = new Run(dir, c, now, gz);
    boolean big = c.name.equals("big-ids");
    long l = big ? 3_000_000_000L + r.nextInt(1000) : 10 + r.nextInt(5), en = 0;
    int inL = 0;
    List<long[]> all = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      if (r.nextInt(10) == 0) {
        now += r.nextInt(400);
        w.clock(now);
      }
      long at =
          now
              + (r.nextInt(30) == 0
                  ? r.nextInt(2000) - 1000
                  : (r.nextInt(4) == 0
                      ? 1000L * (1 + r.nextInt(5)) * maxDelaySec / 5
                      : 100 + (long) (r.nextDouble() * maxDelaySec * 1000)));
      if (r.nextInt(200) == 0) at = -1;
      if (all.size() > 0 && r.nextDouble() < dup) {
        long[] x = all.get(r.nextInt(all.size()));
        w.add(x[0], x[1], x[2]);
      } else if (all.size() > 0 && r.nextDouble() < disorder) {
        long[] x = all.get(Math.max(0, all.size() - 1 - r.nextInt(300)));
        w.add(x[0], x[1] + 100000, at);
      } else {
        w.add(l, en, at);
        all.add(new long[] {l, en, at});
        en += 1 + (r.nextInt(4) == 0 ? r.nextInt(big ? 2000 : 6) : 0);
        if (++inL >= perLedger / 2 + r.nextInt(perLedger)) {
          l += 1 + (r.nextInt(5) == 0 ? r.nextInt(3) : 0);
          en = 0;
          inL = 0;
        }
      }
      if (r.nextInt(40) == 0) w.sched(1 + r.nextInt(50));
      if (r.nextInt(60) == 0 && all.size() > 0) {
        long[] x = all.get(r.nextInt(all.size()));
        w.contains(x[0], x[1]);
      }
      if (r.nextInt(300) == 0) w.state();
      if (restarts && r.nextInt(n / 5) == 0) {
        now += r.nextInt(maxDelaySec * 200);
        w.clock(now);
        w.restart();
        w.state();
        w.replay();
        w.state();
      }
      if (trims && r.nextInt(n / 6) == 0) {
        long[] x = all.get(all.size() / 3);
        w.mark(x[0], x[1]);
      }
      if (clr && i == n / 2) {
        w.clear();
        all.clear();
        w.state();
      }
    }
    w.state();
    if (drain) {
      int guard = 0, idle = 0;
      while (w.t.getNumberOfDelayedMessages() > 0 && guard++ < 400 && idle < 45) {
        now += maxDelaySec * 1000L / 40 + r.nextInt(500);
        w.clock(now);
        int k;
        idle++;
        do {
          k = w.sched(100 + r.nextInt(400));
          if (k > 0) idle = 0;
        } while (k > 0);
      }
    }
    w.end();
  }

  public static void main(String[] a) throws Exception {
    if (a[0].equals("time")) {
      Timing.main(Arrays.copyOfRange(a, 1, a.length));
      return;
    }
    String dir = a[0];
    long s = Long.parseLong(a[1]);
    new File(dir).mkdirs();
    workload(
        dir,
        new Cfg("basic", 100, 30000, 50, -1, 1000, false),
        s,
        1500,
        60,
        300,
        0,
        0,
        false,
        false,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("strict", 80, 20000, 40, -1, 512, true),
        s,
        1500,
        60,
        200,
        0.03,
        0.03,
        false,
        false,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("merge", 40, 15000, 20, 4, 1000, false),
        s,
        1400,
        30,
        400,
        0.01,
        0.01,
        false,
        false,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("restart", 60, 15000, 30, -1, 1000, false),
        s,
        800,
        40,
        300,
        0,
        0,
        true,
        false,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("restart-merge", 60, 15000, 30, 3 + 1, 300, true),
        s,
        1000,
        40,
        300,
        0.01,
        0.01,
        true,
        false,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("clear", 60, 15000, 30, 6, 200, true),
        s,
        1200,
        30,
        200,
        0.02,
        0.02,
        false,
        false,
        true,
        true,
        false);
    workload(
        dir,
        new Cfg("trim", 60, 15000, 30, 8, 1000, false),
        s,
        1200,
        30,
        400,
        0,
        0,
        false,
        true,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("unlimited-seg", 400, 600000, -1, -1, 1000, false),
        s,
        1600,
        500,
        900,
        0,
        0,
        false,
        false,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("small-max-buckets", 20, 10000, 10, 2, 1000, false),
        s,
        600,
        20,
        200,
        0,
        0,
        false,
        false,
        false,
        true,
        false);
    workload(
        dir,
        new Cfg("big-ids", 300, 60000, 100, -1, 1000, false),
        s,
        1500,
        400,
        300,
        0,
        0,
        false,
        false,
        false,
        true,
        false);
    System.exit(0);
  }
}
