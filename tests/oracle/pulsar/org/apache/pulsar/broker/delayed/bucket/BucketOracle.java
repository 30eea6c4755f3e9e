package org.apache.pulsar.broker.delayed.bucket;

import com.fasterxml.jackson.databind.*;
import golden.*;
import io.netty.buffer.*;
import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.delayed.proto.*;
import org.roaringbitmap.RoaringBitmap;

public class BucketOracle {
  static byte[] by(ByteBuf b) {
    byte[] x = new byte[b.readableBytes()];
    b.readBytes(x);
    return x;
  }

  /** record 0 = SnapshotMetadata, records 1.. = SnapshotSegment */
  public static void bucket(String f, PrintStream o) throws Exception {
    List<byte[]> l = Dec.readStream(f);
    SnapshotMetadata md = BucketGolden.Mem.pm(l.get(0));
    boolean ok = md.getMetadataListCount() == l.size() - 1;
    SnapshotMetadata md2 = new SnapshotMetadata();
    ByteBuf u = Unpooled.wrappedBuffer(l.get(0));
    md2.parseFrom(u, u.readableBytes());
    o.println(
        J.s(
            J.m(
                "record",
                0,
                "type",
                "metadata",
                "segments",
                md.getMetadataListCount(),
                "records",
                l.size(),
                "count_ok",
                ok,
                "canonical",
                Arrays.equals(l.get(0), md2.toByteArray()))));
    for (int i = 0; i < md.getMetadataListCount(); i++) {
      SnapshotSegmentMetadata m = md.getMetadataAt(i);
      Map<Long, RoaringBitmap> bms = new TreeMap<>();
      List<Object> order = new ArrayList<>(), nonCanon = new ArrayList<>();
      m.forEachDelayedIndexBitMap(
          (k, v) -> {
            RoaringBitmap b = new RoaringBitmap();
            try {
              b.deserialize(ByteBuffer.wrap(v));
            } catch (IOException e) {
              throw new UncheckedIOException(e);
            }
            bms.put(k, b);
            order.add(k);
            RoaringBitmap c = new RoaringBitmap();
            for (int x : b.toArray()) c.add((long) x, (long) x + 1);
            c.runOptimize();
            ByteBuffer bb = ByteBuffer.allocate(c.serializedSizeInBytes());
            c.serialize(bb);
            if (!Arrays.equals(bb.array(), v)) nonCanon.add(k);
          });
      Map<String, Object> r =
          J.m(
              "record",
              0,
              "segment",
              i + 1,
              "min_schedule_timestamp",
              m.getMinScheduleTimestamp(),
              "max_schedule_timestamp",
              m.getMaxScheduleTimestamp(),
              "ledger_order",
              order,
              "bitmaps_not_canonical",
              nonCanon);
      Map<String, Object> bm = new LinkedHashMap<>();
      bms.forEach((k, b) -> bm.put("" + k, b.stream().boxed().toList()));
      r.put("bitmaps", bm);
      if (i + 1 < l.size()) {
        SnapshotSegment s = BucketGolden.Mem.ps(l.get(i + 1));
        Map<Long, RoaringBitmap> w = new TreeMap<>();
        boolean sorted = true;
        DelayedIndex p = null;
        for (DelayedIndex d : s.getIndexesList()) {
          w.computeIfAbsent(d.getLedgerId(), k -> new RoaringBitmap()).add((int) d.getEntryId());
          if (p != null && DelayedIndexQueue.COMPARATOR.compare(p, d) > 0) sorted = false;
          p = d;
        }
        r.put("bitmaps_match_indexes", w.equals(bms));
        r.put("sorted", sorted);
        r.put(
            "min_max_ok",
            s.getIndexesCount() > 0
                && s.getIndexeAt(0).getTimestamp() == m.getMinScheduleTimestamp()
                && s.getIndexeAt(s.getIndexesCount() - 1).getTimestamp()
                    == m.getMaxScheduleTimestamp());
      }
      o.println(J.s(r));
    }
    for (int i = 1; i < l.size(); i++) {
      SnapshotSegment s = BucketGolden.Mem.ps(l.get(i));
      List<Object> x = new ArrayList<>();
      for (DelayedIndex d : s.getIndexesList())
        x.add(new long[] {d.getTimestamp(), d.getLedgerId(), d.getEntryId()});
      o.println(
          J.s(
              J.m(
                  "record",
                  i,
                  "type",
                  "segment",
                  "indexes",
                  x,
                  "canonical",
                  Arrays.equals(l.get(i), BucketGolden.Mem.ser(s)))));
    }
  }

  /**
   * real recovery of foreign snapshot files: recover NOW TICK STRICT startLedger_endLedger=FILE ...
   * ; then drains, moving the clock to each next delivery time
   */
  public static void recover(String[] a, PrintStream o) throws Exception {
    BucketGolden.Env e = new BucketGolden.Env();
    e.clk.ms = Long.parseLong(a[0]);
    BucketGolden.Mem st = new BucketGolden.Mem();
    long id = 1;
    for (int i = 3; i < a.length; i++) {
      int q = a[i].indexOf('=');
      st.m.put(id, Dec.readStream(a[i].substring(q + 1)));
      e.props.put(
          BucketDelayedDeliveryTracker.DELAYED_BUCKET_KEY_PREFIX + "_" + a[i].substring(0, q),
          "" + id);
      id++;
    }
    BucketDelayedDeliveryTracker t =
        new BucketDelayedDeliveryTracker(
            e.disp,
            e.timer,
            Long.parseLong(a[1]),
            e.clk,
            Boolean.parseBoolean(a[2]),
            st,
            50000,
            300000,
            5000,
            -1);
    o.println(
        J.s(
            J.m(
                "recovered",
                t.getNumberOfDelayedMessages(),
                "buckets",
                t.getImmutableBuckets().asMapOfRanges().size())));
    while (t.getNumberOfDelayedMessages() > 0) {
      long nx = t.nextDeliveryTime();
      if (nx == Long.MAX_VALUE) break;
      if (nx > e.clk.ms) e.clk.ms = nx;
      List<Object> x = new ArrayList<>();
      for (Position p : t.getScheduledMessages(1000))
        x.add(new long[] {p.getLedgerId(), p.getEntryId()});
      o.println(J.s(J.m("now", e.clk.ms, "ret", x)));
    }
  }

  /**
   * runs an ops.jsonl written by anyone (config first) through the real trackers; writes ops.jsonl
   * + bucket files with the real answers to outdir
   */
  public static void replay(String f, String out) throws Exception {
    ObjectMapper om = new ObjectMapper();
    BucketGolden.Run w = null;
    try (BufferedReader br = new BufferedReader(new FileReader(f))) {
      String s;
      while ((s = br.readLine()) != null) {
        if (s.isBlank()) continue;
        JsonNode n = om.readTree(s);
        JsonNode m = n.get("m");
        switch (n.get("op").asText()) {
          case "config":
            w =
                new BucketGolden.Run(
                    out,
                    new BucketGolden.Cfg(
                        "replayed",
                        n.get("min_index_count_per_bucket").asLong(),
                        n.get("time_step_per_segment_ms").asLong(),
                        n.get("max_indexes_per_segment").asInt(),
                        n.get("max_num_buckets").asInt(),
                        n.get("tick_ms").asLong(),
                        n.get("strict").asBoolean()),
                    n.get("now").asLong(),
                    false);
            break;
          case "clock":
            w.clock(n.get("now").asLong());
            break;
          case "add":
          case "replay":
            w.add(m.get(0).asLong(), m.get(1).asLong(), m.get(2).asLong(), n.get("op").asText());
            break;
          case "sched":
            w.sched(n.get("n").asInt());
            break;
          case "contains":
            w.contains(m.get(0).asLong(), m.get(1).asLong());
            break;
          case "mark_delete":
            w.mark(m.get(0).asLong(), m.get(1).asLong());
            break;
          case "clear":
            w.clear();
            break;
          case "restart":
            w.restart();
            break;
          case "state":
            w.state();
            break;
          case "metrics":
            w.metrics();
            break;
        }
      }
    }
    w.j.close();
  }
}
