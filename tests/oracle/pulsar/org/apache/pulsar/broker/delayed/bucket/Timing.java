package org.apache.pulsar.broker.delayed.bucket;

import java.lang.management.ManagementFactory;
import java.util.*;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.delayed.*;

public class Timing {
  static final int RECOVERIES = 8;
  static boolean recoverOnly;

  /** CPU time of this thread: on a shared machine wall time measures the neighbours. */
  static long cpuNanos() {
    return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
  }

  static long heap() throws Exception {
    for (int i = 0; i < 4; i++) {
      System.gc();
      Thread.sleep(120);
    }
    Runtime r = Runtime.getRuntime();
    return r.totalMemory() - r.freeMemory();
  }

  static void one(String kind, String dist, int n, boolean print, int perLedger) throws Exception {
    BucketGolden.Env e = new BucketGolden.Env();
    e.clk.ms = 1700000000000L;
    long base = heap();
    Random r = new Random(42);
    BucketGolden.FileStore fs =
        new BucketGolden.FileStore(System.getProperty("java.io.tmpdir") + "/bench.store");
    DelayedDeliveryTracker t;
    if (kind.equals("bucket"))
      t =
          new BucketDelayedDeliveryTracker(
              e.disp, e.timer, 1000, e.clk, false, fs, 50000, 300000, 5000, -1);
    else t = new InMemoryDelayedDeliveryTracker(e.disp, e.timer, 1000, e.clk, false, 0);
    long t0 = cpuNanos();
    long w0 = System.nanoTime();
    long now = e.clk.ms;
    long maxAt = 0;
    for (int i = 0; i < n; i++) {
      if ((i & 15) == 15) e.clk.ms = now + i / 16;
      long at =
          dist.equals("fixed")
              ? e.clk.ms + 3600_000L
              : e.clk.ms + 3600_000L + (long) (r.nextDouble() * 86400_000L);
      if (at > maxAt) maxAt = at;
      t.addMessage(10 + i / perLedger, i % perLedger, at);
    }
    double addS = (cpuNanos() - t0) / 1e9;
    double wallS = (System.nanoTime() - w0) / 1e9;
    long h = heap() - base;
    long buf = t.getBufferMemoryUsage();
    long left = t.getNumberOfDelayedMessages();
    double recS = -1;
    if (kind.equals("bucket")
        && n >= 1000000) { // recovery of the sealed snapshots into a fresh tracker
      // A JVM is warm after some of them only.
      for (int again = 0; again < RECOVERIES; again++) {
        long t1 = cpuNanos();
        BucketDelayedDeliveryTracker t2 =
            new BucketDelayedDeliveryTracker(
                e.disp, e.timer, 1000, e.clk, false, fs, 50000, 300000, 5000, -1);
        recS = (cpuNanos() - t1) / 1e9;
        long rn = t2.getNumberOfDelayedMessages();
        if (print)
          System.out.printf(
              "  recovery: %.3f s, %d buckets, %d messages (of %d)%n",
              recS, t2.getImmutableBuckets().asMapOfRanges().size(), rn, n);
        t2.close();
      }
    }
    if (recoverOnly) {
      t.close();
      fs.f.close();
      return;
    }
    long got = 0;
    long t2 = cpuNanos();
    long c = e.clk.ms;
    int calls = 0, empty = 0;
    long stall = 0;
    long start = e.clk.ms + 3600_000L - 2000;
    e.clk.ms = start;
    long stepMs = Math.max(1, (maxAt - start) / 2000);
    while (t.getNumberOfDelayedMessages() > 0 && stall < 5000) {
      NavigableSet<Position> s = t.getScheduledMessages(1000);
      calls++;
      if (s.isEmpty()) {
        e.clk.ms += stepMs;
        stall++;
      } else {
        got += s.size();
        stall = 0;
      }
    }
    double gS = (cpuNanos() - t2) / 1e9;
    if (print)
      System.out.printf(
          "%s %s n=%d perLedger=%d: add %.2f s = %.0f msg/s, on the clock %.0f msg/s; heap after GC %.1f B/msg,"
              + " buffer(direct) %.1f B/msg, snapshot bytes %.1f B/msg; getScheduledMessages(1000)"
              + " %.2f s = %.0f msg/s (%d calls, got %d of %d)%n",
          kind,
          dist,
          n,
          perLedger,
          addS,
          n / addS,
          n / wallS,
          h / (double) n,
          buf / (double) n,
          fs.pos / (double) n,
          gS,
          got / gS,
          calls,
          got,
          left);
    t.close();
    fs.f.close();
  }

  public static void main(String[] a) throws Exception {
    String kind = a[0], dist = a[1];
    int n = Integer.parseInt(a[2]);
    int per = a.length > 3 ? Integer.parseInt(a[3]) : 50000;
    recoverOnly = a.length > 4 && a[4].equals("recover");
    one(kind, dist, 200000, false, per);
    one(kind, dist, 200000, false, per);
    try {
      one(kind, dist, n, true, per);
      if (n <= 1000000) one(kind, dist, n, true, per);
    } catch (OutOfMemoryError x) {
      System.out.println(
          kind
              + " "
              + dist
              + " n="
              + n
              + ": OutOfMemoryError -Xmx="
              + Runtime.getRuntime().maxMemory() / 1048576
              + "m");
    }
    System.exit(0);
  }
}
