import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;

/**
 * Generator of golden partition directories. All bytes on disk are written by the real Kafka
 * classes of Shim.VERSION. usage: Gen OUTDIR SEED golden|variant [case-name-regex]
 */
public class Gen {
  static File out;
  static long seed;
  static boolean hold;
  static String re = ".*";
  static int made = 0;
  static final String K = "k" + Shim.VERSION.replace(".", "");
  static long T0 = 1_700_000_000_000L;

  static class Case {
    String name, desc;
    Map<String, String> cfg = new TreeMap<>();
    FixedTime time;
    Random r;
    File dir;
    Shim s;
    TopicPartition tp;
    byte magic;
    long ts;
    long leaderEpoch = 0;
    long logStart = 0;
    boolean stop = false;

    Case(String n, int magic, boolean lat, String d) {
      name = n;
      desc = d;
      this.magic = (byte) magic;
      r = new Random(seed * 1000003L + n.hashCode());
      time = new FixedTime(T0 + (hold ? 987654321L : 0));
      ts = T0 + r.nextInt(1000000);
      cfg.put("segment.bytes", "" + (hold ? 3000 + r.nextInt(4000) : 5000));
      cfg.put("index.interval.bytes", "" + (hold ? 150 + r.nextInt(500) : 256));
      cfg.put("segment.index.bytes", "8192");
      cfg.put("message.format.version", magic == 0 ? "0.9.0" : magic == 1 ? "0.10.0" : "2.8");
      if (lat) cfg.put("message.timestamp.type", "LogAppendTime");
      cfg.put("file.delete.delay.ms", "0");
      cfg.put("max.message.bytes", "2000000");
      dir = new File(new File(out, n), n + "-0");
      tp = new TopicPartition(n, 0);
    }

    void open() throws Exception {
      s = new Shim(dir, cfg, logStart, 0L, true, time);
    }

    void reopen(String k, String v) throws Exception {
      s.close();
      cfg.put(k, v);
      open();
    }

    void add(MemoryRecords m) throws Exception {
      s.append(m, (int) leaderEpoch, "client");
      time.now += r.nextInt(2000);
    }

    void add(int magic, String codec, int n) throws Exception {
      add(
          Shim.build(
              (byte) magic,
              codec,
              TimestampType.CREATE_TIME,
              0L,
              -1L,
              -1L,
              (short) -1,
              -1,
              false,
              -1,
              recs(this, n, Math.min(magic, this.magic))));
    }

    void crash() throws Exception {
      s.flush();
      File t = new File(dir.getPath() + ".copy");
      t.mkdirs();
      for (File f : dir.listFiles()) Files.copy(f.toPath(), new File(t, f.getName()).toPath());
      s.close();
      del(dir);
      t.renameTo(dir);
      finish();
    }

    void done() throws Exception {
      s.flush();
      s.close();
      finish();
    }

    void finish() throws Exception {
      for (File f : dir.listFiles()) if (f.getName().endsWith(".deleted")) f.delete();
      StringBuilder b =
          new StringBuilder(
              "{\"case\":\""
                  + name
                  + "\",\"description\":\""
                  + desc.replace("\"", "'")
                  + "\",\"writer\":\"kafka "
                  + Shim.VERSION
                  + "\",\"seed\":"
                  + seed
                  + ",\"config\":{");
      int i = 0;
      for (Map.Entry<String, String> e : cfg.entrySet()) {
        if (i++ > 0) b.append(",");
        b.append("\"" + e.getKey() + "\":\"" + e.getValue() + "\"");
      }
      b.append("}}\n");
      Files.write(
          new File(dir.getParentFile(), "case.json").toPath(),
          b.toString().getBytes(StandardCharsets.UTF_8));
      made++;
    }
  }

  interface Body {
    void run(Case c) throws Exception;
  }

  static void go(String name, int magic, boolean lat, String desc, Body b) throws Exception {
    if (!name.matches(re)) return;
    Case c = new Case(name, magic, lat, desc);
    File cd = new File(out, name);
    if (cd.exists()) del(cd);
    cd.mkdirs();
    try {
      b.run(c);
    } catch (Throwable t) {
      System.out.println("FAILED " + name + ": " + t);
      t.printStackTrace(System.out);
      try {
        c.s.close();
      } catch (Throwable x) {
      }
    }
  }

  static void del(File f) {
    if (f.isDirectory()) for (File g : f.listFiles()) del(g);
    f.delete();
  }

  static final String[] U = {
    "héllo",
    "日本語",
    "Ω≈ç√",
    "👍🏽",
    "naïve café",
    "Привет",
    "\u0000nul",
    "line\nbreak",
    "\"quote\"\\"
  };

  static byte[] u8(String s) {
    return s.getBytes(StandardCharsets.UTF_8);
  }

  static byte[] key(Random r) {
    int x = r.nextInt(20);
    if (x < 3) return null;
    if (x == 3) return new byte[0];
    if (x == 4) return u8(U[r.nextInt(U.length)]);
    if (x == 5) {
      byte[] b = new byte[8];
      r.nextBytes(b);
      return b;
    }
    return u8("k-" + r.nextInt(50));
  }

  static byte[] val(Random r) {
    int x = r.nextInt(20);
    if (x < 2) return null;
    if (x == 2) return new byte[0];
    if (x == 3 || x == 4) return u8(U[r.nextInt(U.length)] + U[r.nextInt(U.length)]);
    if (x == 5) {
      byte[] b = new byte[r.nextInt(120)];
      r.nextBytes(b);
      return b;
    }
    StringBuilder sb = new StringBuilder("value-");
    int n = r.nextInt(8);
    for (int i = 0; i < n; i++) sb.append("abcdefgh".charAt(r.nextInt(8))).append("-lorem-");
    return u8(sb.toString());
  }

  static Header[] hdr(Random r) {
    int n = r.nextInt(6);
    if (n < 3) return new Header[0];
    Header[] h = new Header[n - 2];
    for (int i = 0; i < h.length; i++) {
      int x = r.nextInt(5);
      byte[] v = x == 0 ? null : x == 1 ? new byte[0] : u8("hv" + r.nextInt(1000));
      h[i] = new RecordHeader(x == 2 ? "" : x == 3 ? U[r.nextInt(6)] : "h" + r.nextInt(4), v);
    }
    return h;
  }

  /**
   * timestamps mostly increasing, with jitter back up to 30 s, sometimes equal, and (1 in 60) jump
   * forward/back
   */
  static long nextTs(Case c) {
    Random r = c.r;
    int x = r.nextInt(60);
    c.ts += r.nextInt(4) == 0 ? 0 : r.nextInt(900);
    if (x == 0) return c.ts + r.nextInt(60000);
    if (x < 10) return c.ts - r.nextInt(30000);
    return c.ts;
  }

  static List<SimpleRecord> recs(Case c, int n, int magic) {
    List<SimpleRecord> l = new ArrayList<>();
    for (int i = 0; i < n; i++)
      l.add(new SimpleRecord(nextTs(c), key(c.r), val(c.r), magic >= 2 ? hdr(c.r) : new Header[0]));
    return l;
  }

  static List<SimpleRecord> keyed(Case c, int n, int nk) {
    List<SimpleRecord> l = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      byte[] v = c.r.nextInt(5) == 0 ? null : val(c.r);
      l.add(
          new SimpleRecord(
              nextTs(c), u8("key" + c.r.nextInt(nk)), v, c.magic >= 2 ? hdr(c.r) : new Header[0]));
    }
    return l;
  }

  static void basic(int magic, String codec, boolean lat) throws Exception {
    go(
        "v" + magic + "-" + codec + (lat ? "-lat" : "-ct") + "-" + K,
        magic,
        lat,
        "basic: magic "
            + magic
            + ", "
            + codec
            + ", "
            + (lat ? "LogAppendTime" : "CreateTime")
            + "; producer batches through appendAsLeader (same magic), many segments",
        c -> {
          c.open();
          int n = hold ? 14 + c.r.nextInt(14) : 18;
          for (int i = 0; i < n; i++) {
            if (magic >= 2 && i == n / 2) c.leaderEpoch = 3;
            c.add(magic, codec, 1 + c.r.nextInt(14));
          }
          c.done();
        });
  }

  static byte[] blob(Random r, int n, boolean compressible) {
    byte[] b = new byte[n];
    if (!compressible) {
      r.nextBytes(b);
      return b;
    }
    for (int i = 0; i < n; i++)
      b[i] =
          (byte)
              ("The quick brown fox jumps over the lazy dog. ".charAt((i + (i / 997)) % 45)
                  ^ (r.nextInt(50) == 0 ? 1 : 0));
    return b;
  }

  public static void main(String[] a) throws Exception {
    out = new File(a[0]);
    seed = Long.parseLong(a[1]);
    hold = a[2].equals("variant");
    if (a.length > 3) re = a[3];
    out.mkdirs();
    String[] legacy = {"none", "gzip", "snappy", "lz4"},
        all = {"none", "gzip", "snappy", "lz4", "zstd"};
    boolean k2 = K.equals("k282"), k3 = K.equals("k391"), k4 = K.equals("k411");
    if (k2) {
      for (String c : legacy) {
        basic(0, c, false);
        basic(1, c, false);
      }
      basic(1, "lz4", true);
      basic(1, "none", true);
      for (String c : all) basic(2, c, false);
      basic(2, "none", true);
      basic(2, "gzip", true);
    }
    if (k3) {
      for (String c : legacy) {
        basic(0, c, false);
        basic(1, c, false);
        basic(1, c, true);
      }
      for (String c : all) {
        basic(2, c, false);
        basic(2, c, true);
      }
    }
    if (k4) {
      for (String c : all) basic(2, c, false);
      basic(2, "none", true);
      basic(2, "zstd", true);
      basic(1, "none", false);
      basic(1, "gzip", false);
      basic(0, "lz4", false);
    }
    // --- one log whose format was upgraded in steps (v0 -> v1 -> v2), with and without roll at the
    // upgrade; codecs mixed
    if (!k4)
      go(
          "mixed-formats-" + K,
          0,
          false,
          "message.format.version raised 0.9.0 -> 0.10.0 -> 2.8 on one log: segments with mixed"
              + " magic and mixed codecs",
          c -> {
            c.open();
            for (int i = 0; i < 6; i++) c.add(0, legacy[c.r.nextInt(4)], 1 + c.r.nextInt(9));
            c.reopen("message.format.version", "0.10.0");
            for (int i = 0; i < 6; i++) c.add(1, legacy[c.r.nextInt(4)], 1 + c.r.nextInt(9));
            c.reopen("message.format.version", "2.8");
            c.leaderEpoch = 5;
            for (int i = 0; i < 6; i++) c.add(2, all[c.r.nextInt(5)], 1 + c.r.nextInt(9));
            c.done();
          });
    // --- producer magic != topic magic: broker converts in LogValidator
    if (!k4)
      for (int pm = 0; pm <= 2; pm++)
        for (int tm = 0; tm <= 2; tm++)
          if (pm != tm) {
            final int p = pm, t = tm;
            go(
                "conv-p" + p + "-t" + t + "-" + K,
                tm,
                (pm + tm) % 2 == 1 && tm > 0,
                "producer magic "
                    + p
                    + " appended to topic of magic "
                    + t
                    + ": the real LogValidator converts",
                c -> {
                  c.open();
                  String[] cs = legacy;
                  for (int i = 0; i < 8; i++) c.add(p, cs[i % 4], 1 + c.r.nextInt(8));
                  c.done();
                });
          }
    // --- base offset beyond 2^32 and offset gaps through appendAsFollower
    for (int m = k4 ? 2 : 0; m <= 2; m++) {
      final int mm = m;
      go(
          "bigoffset-v" + m + "-" + K,
          m,
          false,
          "log starting at 5e9, appended as follower with gaps between batches (and for compressed"
              + " legacy wrappers gaps inside)",
          c -> {
            c.logStart = 5_000_000_000L + c.r.nextInt(1000);
            c.open();
            long off = c.logStart;
            String[] cs = mm == 2 ? all : legacy;
            for (int i = 0; i < 14; i++) {
              int n = 1 + c.r.nextInt(8);
              long[] o = new long[n];
              for (int j = 0; j < n; j++) {
                o[j] = off;
                off += 1 + (c.r.nextInt(4) == 0 ? c.r.nextInt(1000) : 0);
              }
              String cd = cs[c.r.nextInt(cs.length)];
              List<SimpleRecord> l = recs(c, n, mm);
              c.s.appendFollower(
                  Shim.buildAt((byte) mm, cd, TimestampType.CREATE_TIME, -1L, 1, o, l), 1);
              off += c.r.nextInt(3) == 0 ? c.r.nextInt(100000) : 0;
            }
            c.done();
          });
    }
    // --- timestamps -1 and extremes
    for (int m = k4 ? 2 : 1; m <= 2; m++) {
      final int mm = m;
      go(
          "ts-odd-v" + m + "-" + K,
          m,
          false,
          "records with timestamp -1 (NO_TIMESTAMP), 0, equal and far future; batches whose all"
              + " timestamps are -1",
          c -> {
            c.cfg.put("segment.ms", "9223372036854775807");
            c.cfg.put("segment.bytes", "20000");
            c.open();
            String[] cs = mm == 2 ? all : legacy;
            long[] odd = {-1L, 0L, 1L, 4102444800000L, T0};
            for (int i = 0; i < 16; i++) {
              int n = 1 + c.r.nextInt(6);
              List<SimpleRecord> l = new ArrayList<>();
              int mode = i % 4;
              for (int j = 0; j < n; j++) {
                long t =
                    mode == 0
                        ? -1L
                        : mode == 1 ? odd[c.r.nextInt(k4 ? 3 : 5)] : mode == 2 ? T0 + i : nextTs(c);
                l.add(new SimpleRecord(t, key(c.r), val(c.r), mm >= 2 ? hdr(c.r) : new Header[0]));
              }
              c.add(
                  Shim.build(
                      (byte) mm,
                      cs[c.r.nextInt(cs.length)],
                      TimestampType.CREATE_TIME,
                      0L,
                      -1L,
                      -1L,
                      (short) -1,
                      -1,
                      false,
                      -1,
                      l));
            }
            c.done();
          });
    }
    // --- big records: several compression blocks (snappy xerial 32 KiB chunks, lz4 64 KiB blocks)
    String[][] big =
        k2
            ? new String[][] {{"0", "lz4"}, {"1", "snappy"}}
            : k3
                ? new String[][] {
                  {"0", "snappy"}, {"0", "lz4"}, {"1", "lz4"}, {"2", "snappy"}, {"2", "gzip"}
                }
                : new String[][] {{"2", "lz4"}, {"2", "zstd"}, {"2", "none"}};
    for (String[] b : big)
      go(
          "big-v" + b[0] + "-" + b[1] + "-" + K,
          Integer.parseInt(b[0]),
          false,
          "large values: compressible 200 KB and incompressible 20-70 KB, several compression"
              + " blocks",
          c -> {
            c.cfg.put("segment.bytes", "400000");
            c.cfg.put("index.interval.bytes", "4096");
            c.open();
            int m = Integer.parseInt(b[0]);
            List<SimpleRecord> l = new ArrayList<>();
            boolean none = b[1].equals("none");
            l.add(
                new SimpleRecord(
                    nextTs(c),
                    u8("big"),
                    blob(c.r, none ? 40000 : 200000 + c.r.nextInt(1000), true),
                    new Header[0]));
            l.add(new SimpleRecord(nextTs(c), null, u8("small"), new Header[0]));
            c.add(
                Shim.build(
                    (byte) m,
                    b[1],
                    TimestampType.CREATE_TIME,
                    0L,
                    -1L,
                    -1L,
                    (short) -1,
                    -1,
                    false,
                    -1,
                    l));
            l = new ArrayList<>();
            l.add(
                new SimpleRecord(
                    nextTs(c),
                    u8("rnd"),
                    blob(
                        c.r,
                        b[1].equals("lz4") ? 70000 : b[1].equals("snappy") ? 36000 : 20000,
                        false),
                    new Header[0]));
            c.add(
                Shim.build(
                    (byte) m,
                    b[1],
                    TimestampType.CREATE_TIME,
                    0L,
                    -1L,
                    -1L,
                    (short) -1,
                    -1,
                    false,
                    -1,
                    l));
            c.add(m, b[1], 5);
            c.done();
          });
    // --- idempotent and transactional
    go(
        "idempotent-v2-" + K,
        2,
        false,
        "idempotent (not transactional) producers, sequences, epoch bump",
        c -> {
          c.open();
          int[] seq = new int[3];
          short[] ep = {0, 0, 7};
          for (int i = 0; i < 20; i++) {
            int p = c.r.nextInt(3);
            if (i == 12) {
              ep[1]++;
              seq[1] = 0;
            }
            int n = 1 + c.r.nextInt(6);
            c.add(
                Shim.build(
                    (byte) 2,
                    all[c.r.nextInt(5)],
                    TimestampType.CREATE_TIME,
                    0L,
                    -1L,
                    1000 + p,
                    ep[p],
                    seq[p],
                    false,
                    -1,
                    recs(c, n, 2)));
            seq[p] += n;
          }
          c.done();
        });
    go(
        "txn-v2-" + K,
        2,
        false,
        "transactions of 3 producers interleaved with plain batches; commit and abort markers;"
            + " aborted transactions in .txnindex; last transaction left open",
        c -> {
          c.open();
          int[] seq = new int[3];
          boolean[] op = new boolean[3];
          for (int i = 0; i < 34; i++) {
            int p = c.r.nextInt(4);
            if (p == 3) {
              c.add(2, all[c.r.nextInt(5)], 1 + c.r.nextInt(4));
              continue;
            }
            if (op[p] && c.r.nextInt(3) == 0) {
              c.s.append(
                  Shim.marker(c.time.now, 2000 + p, (short) p, c.r.nextInt(2) == 0, 4), 0, "coord");
              op[p] = false;
              c.time.now += 10;
              continue;
            }
            int n = 1 + c.r.nextInt(5);
            c.add(
                Shim.build(
                    (byte) 2,
                    all[c.r.nextInt(5)],
                    TimestampType.CREATE_TIME,
                    0L,
                    -1L,
                    2000 + p,
                    (short) p,
                    seq[p],
                    true,
                    -1,
                    recs(c, n, 2)));
            seq[p] += n;
            op[p] = true;
          }
          for (int p = 0; p < 2; p++)
            if (op[p])
              c.s.append(Shim.marker(c.time.now, 2000 + p, (short) p, p == 0, 4), 0, "coord");
          if (!op[2]) {
            c.add(
                Shim.build(
                    (byte) 2,
                    "none",
                    TimestampType.CREATE_TIME,
                    0L,
                    -1L,
                    2002,
                    (short) 2,
                    seq[2],
                    true,
                    -1,
                    recs(c, 2, 2)));
          }
          c.done();
        });
    // --- leader epochs
    go(
        "epochs-v2-" + K,
        2,
        false,
        "several leader epochs",
        c -> {
          c.open();
          for (int i = 0; i < 12; i++) {
            if (i % 3 == 2) c.leaderEpoch += 1 + c.r.nextInt(3);
            c.add(2, "none", 1 + c.r.nextInt(5));
          }
          c.done();
        });
    // --- time based roll
    go(
        "rollms-v" + (k4 ? 2 : 1) + "-" + K,
        k4 ? 2 : 1,
        false,
        "segments rolled by segment.ms (timestamps), not by size",
        c -> {
          c.cfg.put("segment.bytes", "1000000");
          c.cfg.put("segment.ms", "20000");
          c.open();
          for (int i = 0; i < 14; i++) {
            c.ts += c.r.nextInt(9000);
            c.time.now = Math.max(c.time.now, c.ts);
            c.add(c.magic, legacy[c.r.nextInt(4)], 1 + c.r.nextInt(5));
          }
          c.done();
        });
    // --- compaction by the real Cleaner
    for (int m = k4 ? 2 : 0; m <= 2; m++)
      for (String cd :
          m == 2 ? new String[] {"none", "lz4", "mixed"} : new String[] {"none", "gzip"})
        for (int pass = 1; pass <= 2; pass++) {
          if (k2 && (m == 0 || pass == 1)) continue;
          final int mm = m, ps = pass;
          final String codec = cd;
          go(
              "compact-v" + m + "-" + cd + "-pass" + pass + "-" + K,
              m,
              false,
              "compacted by the real Cleaner ("
                  + pass
                  + " pass"
                  + (pass > 1 ? "es, second after delete.retention.ms" : "")
                  + "): offset holes, tombstones"
                  + (m == 2
                      ? ", idempotent producers so that empty batches are kept, delete horizon,"
                          + " control batches"
                      : ""),
              c -> {
                c.cfg.put("cleanup.policy", "compact");
                c.cfg.put("delete.retention.ms", "60000");
                c.cfg.put("segment.bytes", hold ? "2500" : "3000");
                c.open();
                int seq = 0, seq2 = 0;
                int nk = hold ? 9 : 12;
                for (int i = 0; i < 22; i++) {
                  String cc = codec.equals("mixed") ? all[c.r.nextInt(5)] : codec;
                  int n = 1 + c.r.nextInt(7);
                  boolean idem = mm == 2 && c.r.nextInt(2) == 0;
                  if (mm == 2 && c.r.nextInt(5) == 0) {
                    c.add(
                        Shim.build(
                            (byte) 2,
                            cc,
                            TimestampType.CREATE_TIME,
                            0L,
                            -1L,
                            901,
                            (short) 0,
                            seq2,
                            true,
                            -1,
                            keyed(c, n, nk)));
                    seq2 += n;
                    c.s.append(
                        Shim.marker(c.time.now, 901, (short) 0, c.r.nextInt(3) > 0, 1), 0, "coord");
                  } else {
                    c.add(
                        Shim.build(
                            (byte) mm,
                            cc,
                            TimestampType.CREATE_TIME,
                            0L,
                            -1L,
                            idem ? 900 : -1L,
                            (short) (idem ? 0 : -1),
                            idem ? seq : -1,
                            false,
                            -1,
                            keyed(c, n, nk)));
                    if (idem) seq += n;
                  }
                }
                c.s.roll();
                long end = c.s.clean(c.tp, 0L, c.time.now);
                if (ps == 2) {
                  for (int i = 0; i < 8; i++) {
                    String cc = codec.equals("mixed") ? all[c.r.nextInt(5)] : codec;
                    c.add(
                        Shim.build(
                            (byte) mm,
                            cc,
                            TimestampType.CREATE_TIME,
                            0L,
                            -1L,
                            -1L,
                            (short) -1,
                            -1,
                            false,
                            -1,
                            keyed(c, 1 + c.r.nextInt(5), nk)));
                  }
                  c.s.roll();
                  c.time.now += 120000;
                  c.s.clean(c.tp, end, k2 ? System.currentTimeMillis() + 1000000L : c.time.now);
                }
                c.add(
                    Shim.build(
                        (byte) mm,
                        codec.equals("mixed") ? "none" : codec,
                        TimestampType.CREATE_TIME,
                        0L,
                        -1L,
                        -1L,
                        (short) -1,
                        -1,
                        false,
                        -1,
                        keyed(c, 3, nk)));
                Thread.sleep(30);
                c.done();
              });
        }
    for (int m = k4 ? 2 : 0; m <= 2; m++) {
      final int mm = m;
      go(
          "crash-v" + m + "-" + K,
          m,
          false,
          "files copied while the log was open: active segment with preallocated, zero-tailed"
              + " indexes; no clean shutdown snapshot",
          c -> {
            c.cfg.put("segment.index.bytes", "2048");
            c.open();
            for (int i = 0; i < 11; i++) c.add(mm, legacy[i % 4], 1 + c.r.nextInt(8));
            c.crash();
          });
    }
    System.out.println(Shim.VERSION + ": made " + made + " cases");
  }
}
