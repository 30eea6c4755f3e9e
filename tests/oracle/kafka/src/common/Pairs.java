import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.nio.file.attribute.FileTime;
import java.security.MessageDigest;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.Record;

/**
 * Pairs before/after, all by the REAL classes of Shim.VERSION (2.8.2, 3.9.1, 4.1.1): clean DIR
 * NOW_MS [key=value...] one round of the real Cleaner on a copy -> DIR.cleaned, JSON line retain
 * DIR NOW_MS [key=value...] real deleteOldSegments() on a copy -> JSON line (out=DIR2: keep the
 * resulting dir) roll-run SEQDIR... replay appends.bin by steps.json with the real log ->
 * after-VERSION/, result-VERSION.json gen OUT SEED golden|variant [regex] / clean-all OUT /
 * retain-all OUT / roll-gen OUT SEED golden|variant / describe OUT oracle keys: roll=1, hw=,
 * log.start.offset=, first.dirty= (cleaner checkpoint), io.buffer=, max.io.buffer=, dedupe.bytes=,
 * load.factor=, mtime.all=MS, mtime.BASE=MS; every other key is a topic config
 */
public class Pairs {
  static final ObjectMapper M = new ObjectMapper();
  static final String V = Shim.VERSION;
  static final Set<String> OPT =
      new HashSet<>(
          Arrays.asList(
              "roll",
              "hw",
              "log.start.offset",
              "first.dirty",
              "io.buffer",
              "max.io.buffer",
              "dedupe.bytes",
              "load.factor",
              "out"));

  static boolean isOpt(String k) {
    return OPT.contains(k) || k.startsWith("mtime.");
  }

  static String sha(byte[] b) throws Exception {
    StringBuilder s = new StringBuilder();
    for (byte x : MessageDigest.getInstance("SHA-256").digest(b))
      s.append(String.format("%02x", x));
    return s.toString();
  }

  static String hex(byte[] b) {
    StringBuilder s = new StringBuilder();
    for (byte x : b) s.append(String.format("%02x", x));
    return s.toString();
  }

  static File[] logs(File d) {
    File[] f = d.listFiles((x, n) -> n.endsWith(".log"));
    Arrays.sort(f);
    return f;
  }

  static long base(File f) {
    return Long.parseLong(f.getName().substring(0, 20));
  }

  static void del(File f) {
    Gen.del(f);
  }

  static void copyTo(File d, File t) throws Exception {
    del(t);
    t.mkdirs();
    for (File f : d.listFiles())
      if (f.isFile())
        Files.copy(
            f.toPath(), new File(t, f.getName()).toPath(), StandardCopyOption.COPY_ATTRIBUTES);
  }

  static File tmp(File d) throws Exception {
    File t = new File(Files.createTempDirectory("pairs").toFile(), d.getName());
    copyTo(d, t);
    return t;
  }

  static void mtimes(File d, Map<String, String> o) throws Exception {
    for (File f : logs(d)) {
      String m = o.getOrDefault("mtime." + base(f), o.get("mtime.all"));
      if (m != null) setM(d, base(f), Long.parseLong(m));
    }
  }

  static void setM(File d, long base, long ms) throws Exception {
    for (String e : new String[] {".log", ".index", ".timeindex"}) {
      Path p = new File(d, String.format("%020d", base) + e).toPath();
      if (Files.exists(p)) Files.setLastModifiedTime(p, FileTime.fromMillis(ms));
    }
  }

  static void tidy(File d) {
    for (File f : d.listFiles())
      if (f.getName().endsWith(".deleted") || f.getName().equals(".lock")) f.delete();
  }

  /** bytes, batches, records of all .log files */
  static long[] count(File d) throws Exception {
    long[] r = new long[3];
    for (File f : logs(d)) {
      r[0] += f.length();
      FileRecords fr = FileRecords.open(f, false, 0, false);
      for (RecordBatch b : fr.batches()) {
        r[1]++;
        for (Record x : b) r[2]++;
      }
      fr.close();
    }
    return r;
  }

  static ArrayNode segs(Shim s) throws Exception {
    ArrayNode a = M.createArrayNode();
    for (long[] x : s.segs()) {
      ObjectNode o = a.addObject();
      o.put("base_offset", x[0]);
      o.put("size", x[1]);
      o.put("largest_timestamp", x[2]);
      o.put("mtime", x[3]);
    }
    return a;
  }

  static ArrayNode files(File d) throws Exception {
    ArrayNode a = M.createArrayNode();
    File[] fs = d.listFiles();
    Arrays.sort(fs);
    for (File f : fs) {
      ObjectNode o = a.addObject();
      o.put("name", f.getName());
      o.put("size", f.length());
      o.put("sha256", sha(Files.readAllBytes(f.toPath())));
    }
    return a;
  }

  static Map<String, String> cfgOf(Map<String, String> o) {
    Map<String, String> c = new TreeMap<>();
    for (String k : o.keySet()) if (!isOpt(k)) c.put(k, o.get(k));
    c.putIfAbsent("file.delete.delay.ms", "60000");
    return c;
  }

  static String err(Throwable t) {
    StringBuilder s = new StringBuilder(t.toString());
    int i = 0;
    for (StackTraceElement e : t.getStackTrace()) if (i++ < 3) s.append(" at ").append(e);
    return s.toString();
  }

  static ObjectNode clean(File src, File dst, long now, Map<String, String> o) throws Exception {
    File d = tmp(src);
    mtimes(d, o);
    ObjectNode j = M.createObjectNode();
    j.put("kafka", V);
    j.put("dir", src.getName());
    j.put("now", now);
    Map<String, String> cfg = cfgOf(o);
    cfg.putIfAbsent("cleanup.policy", "compact");
    Shim s = null;
    long[] r = {-1, -1, -1, -1, -1, -1};
    try {
      s =
          new Shim(
              d,
              cfg,
              Long.parseLong(o.getOrDefault("log.start.offset", "0")),
              0L,
              true,
              new FixedTime(now));
      long hw = Long.parseLong(o.getOrDefault("hw", "" + s.end()));
      s.hw(hw);
      if ("1".equals(o.get("roll"))) {
        s.roll();
        if (!o.containsKey("hw")) s.hw(s.end());
      }
      j.put("log_start_offset", s.start());
      j.put("log_end_offset", s.end());
      j.put("high_watermark", hw);
      j.put("last_stable_offset", s.lso());
      long[] c = count(d);
      j.put("bytes_before", c[0]);
      j.put("batches_before", c[1]);
      j.put("records_before", c[2]);
      j.set("segments_before", segs(s));
      String fd = o.get("first.dirty");
      try {
        s.cleanReal(
            new TopicPartition(
                d.getName().replaceAll("-\\d+$", ""),
                Integer.parseInt(d.getName().replaceAll(".*-", ""))),
            fd == null ? null : Long.valueOf(fd),
            Integer.parseInt(o.getOrDefault("dedupe.bytes", "" + (16 << 20))),
            Integer.parseInt(o.getOrDefault("io.buffer", "262144")),
            Integer.parseInt(o.getOrDefault("max.io.buffer", "1048588")),
            Double.parseDouble(o.getOrDefault("load.factor", "0.9")),
            r);
      } catch (Throwable t) {
        j.put("error", err(t));
      }
      j.put("first_dirty_offset", r[0]);
      j.put("first_uncleanable_offset", r[1]);
      j.put("first_uncleanable_segment", r[2]);
      j.put("end_offset", r[3]);
      j.put("clean_bytes", r[4]);
      j.put("cleanable_bytes", r[5]);
      ArrayNode sa = segs(s);
      s.flush();
      s.close();
      s = null;
      tidy(d);
      c = count(d);
      j.put("bytes_after", c[0]);
      j.put("batches_after", c[1]);
      j.put("records_after", c[2]);
      j.set("segments_after", sa);
      copyTo(d, dst);
    } catch (Throwable t) {
      j.put("error", err(t));
      if (s != null)
        try {
          s.close();
        } catch (Throwable x) {
        }
    } finally {
      del(d.getParentFile());
    }
    return j;
  }

  static ObjectNode retain(File src, long now, Map<String, String> o) throws Exception {
    File d = tmp(src);
    mtimes(d, o);
    ObjectNode j = M.createObjectNode();
    j.put("kafka", V);
    j.put("dir", src.getName());
    j.put("now", now);
    Shim s = null;
    try {
      s =
          new Shim(
              d,
              cfgOf(o),
              Long.parseLong(o.getOrDefault("log.start.offset", "0")),
              0L,
              true,
              new FixedTime(now));
      s.hw(Long.parseLong(o.getOrDefault("hw", "" + s.end())));
      if ("1".equals(o.get("roll"))) s.roll();
      j.put("log_start_offset_before", s.start());
      j.put("log_end_offset", s.end());
      j.set("segments_before", segs(s));
      j.put("deleted", s.deleteOld());
      j.put("log_start_offset_after", s.start());
      j.put("log_end_offset_after", s.end());
      j.set("segments_after", segs(s));
      s.flush();
      s.close();
      s = null;
      ArrayNode del = j.putArray("renamed_to_deleted");
      File[] fs = d.listFiles();
      Arrays.sort(fs);
      for (File f : fs) if (f.getName().endsWith(".deleted")) del.add(f.getName());
      tidy(d);
      j.set("files_after", files(d));
      if (o.containsKey("out")) copyTo(d, new File(o.get("out")));
    } catch (Throwable t) {
      j.put("error", err(t));
      if (s != null)
        try {
          s.close();
        } catch (Throwable x) {
        }
    } finally {
      del(d.getParentFile());
    }
    return j;
  }

  // ------------------------------------------------------------------ compaction cases
  static File out;
  static String re = ".*";
  static long NOW0;
  static Map<String, String> fixed = new TreeMap<>();

  interface Body {
    void run(Gen.Case c, Map<String, String> o) throws Exception;
  }

  static class P {
    Gen.Case c;
    Map<String, String> o = new TreeMap<>();
    TreeMap<Long, Long> mt = new TreeMap<>();
  }

  static P cur;
  static List<ObjectNode> rounds = new ArrayList<>();

  static void pair(String name, int magic, boolean lat, String desc, Body b) throws Exception {
    if (!name.matches(re)) return;
    Gen.out = out;
    Gen.Case c = new Gen.Case(name.replaceAll("-(kept|gone)$", ""), magic, lat, desc);
    c.name = name;
    c.tp = new TopicPartition(name, 0);
    File root = new File(out, name);
    del(root);
    root.mkdirs();
    c.dir = new File(root, "before/" + name + "-0");
    c.dir.mkdirs();
    c.cfg.put("cleanup.policy", "compact");
    c.cfg.put("delete.retention.ms", "60000");
    c.cfg.put("segment.bytes", "" + (Gen.hold ? 2000 + c.r.nextInt(1200) : 2600));
    c.cfg.put("file.delete.delay.ms", "60000");
    c.cfg.put("min.cleanable.dirty.ratio", "0.0");
    P p = new P();
    p.c = c;
    cur = p;
    rounds = new ArrayList<>();
    try {
      b.run(c, p.o);
      if (c.s != null) shut(c);
      ObjectNode j = M.createObjectNode();
      j.put("name", name);
      j.put("description", desc);
      j.put("writer", "kafka " + V);
      j.put("seed", Gen.seed);
      Map<String, String> cfg = new TreeMap<>(c.cfg);
      cfg.remove("message.format.version");
      j.put("now", Long.parseLong(p.o.getOrDefault("now", "" + c.time.now)));
      p.o.remove("now");
      if (!p.o.containsKey("mtime.all"))
        for (Map.Entry<Long, Long> e : p.mt.entrySet())
          p.o.put("mtime." + e.getKey(), "" + e.getValue());
      for (String k : new ArrayList<>(p.o.keySet()))
        if (!isOpt(k)) {
          cfg.put(k, p.o.get(k));
          p.o.remove(k);
        }
      j.set("config", M.valueToTree(cfg));
      j.set("options", M.valueToTree(p.o));
      j.set("producer_id_expiration_ms", M.valueToTree(86400000));
      if (!rounds.isEmpty()) j.set("earlier_rounds", M.valueToTree(rounds));
      j.putObject("results");
      M.writerWithDefaultPrettyPrinter().writeValue(new File(root, "meta.json"), j);
      Gen.made++;
    } catch (Throwable t) {
      System.out.println("FAILED " + name + ": " + t);
      t.printStackTrace(System.out);
      try {
        c.s.close();
      } catch (Throwable x) {
      }
    }
  }

  static void shut(Gen.Case c) throws Exception {
    c.s.flush();
    Thread.sleep(5);
    c.s.close();
    c.s = null;
    tidy(c.dir);
    File[] ls = logs(c.dir);
    for (int i = 0; i < ls.length; i++) {
      long b = base(ls[i]);
      Long m = cur.mt.get(b);
      if (m == null || i == ls.length - 1) {
        long mx = -1;
        FileRecords fr = FileRecords.open(ls[i], false, 0, false);
        for (RecordBatch x : fr.batches()) mx = Math.max(mx, x.maxTimestamp());
        fr.close();
        if (mx < 0 || c.magic == 0) mx = Gen.T0 + i * 20000L;
        m = mx;
      }
      cur.mt.put(b, m);
      setM(c.dir, b, m);
    }
    cur.mt.keySet().removeIf(k -> !new File(c.dir, String.format("%020d", k) + ".log").exists());
  }

  /** run a real round now (in place), remember it, reopen the log */
  static void round(Gen.Case c, Map<String, String> o, long advance) throws Exception {
    c.time.now += advance;
    shut(c);
    Map<String, String> x = new TreeMap<>(c.cfg);
    x.putAll(o);
    if (!o.containsKey("mtime.all"))
      for (Map.Entry<Long, Long> e : cur.mt.entrySet())
        x.put("mtime." + e.getKey(), "" + e.getValue());
    File t = new File(c.dir.getPath() + ".r");
    ObjectNode j = clean(c.dir, t, c.time.now, x);
    if (j.has("error")) throw new RuntimeException(j.toString());
    for (String k : new String[] {"segments_before", "segments_after"}) j.remove(k);
    rounds.add(j);
    del(c.dir);
    t.renameTo(c.dir);
    cur.mt.clear();
    File[] ls = logs(c.dir);
    for (int i = 0; i < ls.length - 1; i++) cur.mt.put(base(ls[i]), ls[i].lastModified());
    o.put("first.dirty", "" + j.get("end_offset").asLong());
    c.open();
    c.s.hw(c.s.end());
  }

  static int key(Gen.Case c, int nk) {
    double u = c.r.nextDouble();
    return (int) (nk * u * u * u);
  }

  static List<SimpleRecord> recs(Gen.Case c, int n, int nk, int tombPct) {
    List<SimpleRecord> l = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      byte[] v = c.r.nextInt(100) < tombPct ? null : Gen.val(c.r);
      if (v == null && tombPct == 0) v = new byte[0];
      l.add(
          new SimpleRecord(
              Gen.nextTs(c),
              Gen.u8("key" + key(c, nk)),
              v,
              c.magic >= 2 ? Gen.hdr(c.r) : new Header[0]));
    }
    return l;
  }

  static MemoryRecords b(int magic, String codec, List<SimpleRecord> l) {
    return Shim.build(
        (byte) magic, codec, TimestampType.CREATE_TIME, 0L, -1L, -1L, (short) -1, -1, false, -1, l);
  }

  static MemoryRecords bp(
      String codec, long pid, int ep, int seq, boolean txn, List<SimpleRecord> l) {
    return Shim.build(
        (byte) 2, codec, TimestampType.CREATE_TIME, 0L, -1L, pid, (short) ep, seq, txn, -1, l);
  }

  static final String[] L = {"none", "gzip", "snappy", "lz4"},
      A = {"none", "gzip", "snappy", "lz4", "zstd"};

  static String cod(Gen.Case c, String codec, int magic) {
    return codec.equals("mixed") ? (magic >= 2 ? A[c.r.nextInt(5)] : L[c.r.nextInt(4)]) : codec;
  }

  static void fill(Gen.Case c, int magic, String codec, int batches, int nk, int tomb)
      throws Exception {
    for (int i = 0; i < batches; i++)
      c.add(b(magic, cod(c, codec, magic), recs(c, 1 + c.r.nextInt(8), nk, tomb)));
  }

  static int N(Gen.Case c) {
    return Gen.hold ? 18 + c.r.nextInt(12) : 24;
  }

  static void fmt(Gen.Case c, int m) throws Exception {
    c.s.flush();
    c.magic = (byte) m;
    c.reopen("message.format.version", m == 1 ? "0.10.0" : "2.8");
  }

  static void gen() throws Exception {
    boolean k2 = V.startsWith("2"), k3 = V.startsWith("3"), k4 = V.startsWith("4");
    if (k3) {
      for (String[] x :
          new String[][] {
            {"0", "none", ""},
            {"0", "gzip", ""},
            {"1", "none", ""},
            {"1", "lz4", ""},
            {"1", "snappy", "lat"},
            {"2", "none", ""},
            {"2", "gzip", ""},
            {"2", "lz4", "lat"},
            {"2", "snappy", ""},
            {"2", "zstd", ""},
            {"2", "mixed", ""}
          }) {
        int m = x[0].charAt(0) - '0';
        pair(
            "v" + x[0] + "-" + x[1] + (x[2].isEmpty() ? "" : "-lat"),
            m,
            !x[2].isEmpty(),
            "magic "
                + m
                + ", codec "
                + x[1]
                + (x[2].isEmpty() ? "" : ", LogAppendTime")
                + ": skewed keys, 15% tombstones, first round",
            (c, o) -> {
              c.open();
              fill(c, m, x[1], N(c), 40, 15);
            });
      }
      pair(
          "mixed-magic",
          0,
          false,
          "one log upgraded v0 -> v1 -> v2, mixed codecs",
          (c, o) -> {
            c.open();
            fill(c, 0, "mixed", 8, 25, 12);
            fmt(c, 1);
            fill(c, 1, "mixed", 8, 25, 12);
            fmt(c, 2);
            fill(c, 2, "mixed", 10, 25, 12);
          });
      for (int m = 0; m <= 1; m++) {
        final int mm = m;
        for (String when : new String[] {"kept", "gone"})
          pair(
              "v" + m + "-tombstones-r2-" + when,
              m,
              false,
              "legacy tombstones, second round; first dirty from the first; legacy horizon = mtime"
                  + " of the last clean segment - delete.retention.ms ("
                  + (when.equals("kept")
                      ? "not reached: one retention before"
                      : "reached: 10 s retention, last clean segment much later")
                  + ")",
              (c, o) -> {
                c.cfg.put("delete.retention.ms", when.equals("kept") ? "86400000" : "1");
                c.open();
                fill(c, mm, mm == 0 ? "none" : "gzip", 18, 40, 40);
                round(c, o, 1000);
                fill(c, mm, mm == 0 ? "none" : "gzip", 10, 40, 10);
                c.s.roll();
                c.time.now += 100000;
              });
      }
      for (String when : new String[] {"kept", "gone"})
        pair(
            "v2-tombstones-r2-" + when,
            2,
            false,
            "v2 tombstones, second round: clock "
                + (when.equals("kept")
                    ? "1 ms before the delete horizon set in round 1 (kept)"
                    : "exactly at the horizon (now < horizon false: removed)"),
            (c, o) -> {
              c.open();
              fill(c, 2, "mixed", 18, 60, 40);
              round(c, o, 1000);
              fill(c, 2, "mixed", 8, 60, 10);
              c.s.roll();
              o.put(
                  "now",
                  "" + (rounds.get(0).get("now").asLong() + 60000 - (when.equals("kept") ? 1 : 0)));
            });
      pair(
          "v2-tombstones-dirty-half",
          2,
          false,
          "second round without new data for most keys; only the small dirty part is in the map",
          (c, o) -> {
            c.open();
            fill(c, 2, "lz4", 20, 50, 30);
            round(c, o, 1000);
            fill(c, 2, "none", 5, 8, 50);
            c.s.roll();
            c.time.now += 30000;
          });
      for (int r = 1; r <= 3; r++) {
        final int rr = r;
        pair(
            "v2-txn-r" + r,
            2,
            false,
            "transactions: committed, aborted, interleaved with plain batches, last one open"
                + " (limits cleaning to the last stable offset); round "
                + r
                + (r == 1
                    ? ""
                    : r == 2
                        ? ": abort markers with no data left get a delete horizon"
                        : ": markers past their horizon removed"),
            (c, o) -> {
              c.open();
              int[] seq = new int[4];
              boolean[] op = new boolean[3];
              int steps = Gen.hold ? 36 : 44;
              for (int i = 0; i < steps; i++) {
                int p = c.r.nextInt(4);
                if (p == 3) {
                  c.add(b(2, A[c.r.nextInt(5)], recs(c, 1 + c.r.nextInt(4), 30, 10)));
                  continue;
                }
                if (op[p] && c.r.nextInt(3) == 0) {
                  c.s.append(
                      Shim.marker(c.time.now, 2000 + p, (short) 0, c.r.nextInt(2) == 0, 4),
                      0,
                      "coord");
                  op[p] = false;
                  c.time.now += 10;
                  continue;
                }
                int n = 1 + c.r.nextInt(4);
                c.add(bp(A[c.r.nextInt(5)], 2000 + p, 0, seq[p], true, recs(c, n, 30, 10)));
                seq[p] += n;
                op[p] = true;
              }
              for (int p = 0; p < 3; p++)
                if (op[p])
                  c.s.append(Shim.marker(c.time.now, 2000 + p, (short) 0, p == 0, 4), 0, "coord");
              if (rr == 1) {
                c.add(b(2, "none", recs(c, 6, 30, 0)));
                c.s.roll();
                c.add(bp("lz4", 2003, 0, 0, true, recs(c, 3, 30, 0)));
                fill(c, 2, "none", 6, 30, 0);
              } else {
                fill(c, 2, "gzip", 4, 30, 5);
                c.s.roll();
                round(c, o, 1000);
                for (int p = 0; p < 3; p++) {
                  c.add(bp("none", 2000 + p, 1, 0, true, recs(c, 2, 30, 0)));
                  c.s.append(Shim.marker(c.time.now, 2000 + p, (short) 1, p != 1, 4), 0, "coord");
                }
                fill(c, 2, "none", 3, 30, 5);
                c.s.roll();
                if (rr == 3) {
                  round(c, o, 1000);
                  fill(c, 2, "none", 3, 30, 5);
                  c.s.roll();
                  c.time.now += 61000;
                } else c.time.now += 1000;
              }
            });
      }
      pair(
          "v2-idempotent",
          2,
          false,
          "idempotent producers: the last batch of an active producer is kept EMPTY when all its"
              + " records are superseded; one producer with a bumped epoch",
          (c, o) -> {
            c.open();
            int[] seq = new int[6];
            short[] ep = new short[6];
            for (int i = 0; i < 22; i++) {
              int p = i < 8 ? c.r.nextInt(6) : i < 16 ? c.r.nextInt(3) : c.r.nextInt(2);
              if (i == 14) {
                ep[1]++;
                seq[1] = 0;
              }
              int n = 1 + c.r.nextInt(5);
              c.add(bp(A[c.r.nextInt(5)], 1000 + p, ep[p], seq[p], false, recs(c, n, 12, 5)));
              seq[p] += n;
            }
            fill(c, 2, "none", 6, 12, 0);
            c.s.roll();
          });
      pair(
          "v2-idempotent-expired",
          2,
          false,
          "the same producers but the clock is 2 days later: producers expired when the log is"
              + " opened, empty batches not kept",
          (c, o) -> {
            c.open();
            int[] seq = new int[6];
            for (int i = 0; i < 22; i++) {
              int p = c.r.nextInt(6);
              int n = 1 + c.r.nextInt(5);
              c.add(bp(A[c.r.nextInt(5)], 1000 + p, 0, seq[p], false, recs(c, n, 12, 5)));
              seq[p] += n;
            }
            fill(c, 2, "none", 6, 12, 0);
            c.s.roll();
            c.time.now += 2 * 86400000L;
          });
      pair(
          "v2-merge",
          2,
          false,
          "many small segments written with segment.bytes 700, cleaned with 4000: groups merged"
              + " into one (sizes BEFORE cleaning decide)",
          (c, o) -> {
            c.cfg.put("segment.bytes", "700");
            c.open();
            fill(c, 2, "none", 26, 30, 10);
            o.put("segment.bytes", "4000");
          });
      pair(
          "v2-merge-index-limit",
          2,
          false,
          "grouping limited by segment.index.bytes (sum of index sizes), not by segment.bytes",
          (c, o) -> {
            c.cfg.put("segment.bytes", "900");
            c.cfg.put("index.interval.bytes", "60");
            c.open();
            fill(c, 2, "none", 26, 30, 10);
            o.put("segment.bytes", "100000");
            o.put("segment.index.bytes", "108");
          });
      pair(
          "v2-min-lag",
          2,
          false,
          "min.compaction.lag.ms: segments whose largest timestamp is within the lag stay dirty",
          (c, o) -> {
            c.open();
            for (int i = 0; i < N(c) + 8; i++) {
              List<SimpleRecord> l = new ArrayList<>();
              int n = 1 + c.r.nextInt(8);
              for (int k = 0; k < n; k++)
                l.add(
                    new SimpleRecord(
                        c.ts += 900, Gen.u8("key" + key(c, 30)), Gen.val(c.r), Gen.hdr(c.r)));
              c.add(b(2, "lz4", l));
            }
            List<long[]> sg = c.s.segs();
            long[] mid = sg.get(sg.size() / 2);
            o.put("min.compaction.lag.ms", "100000");
            o.put("now", "" + (mid[2] + 100000 - 1));
          });
      pair(
          "v2-big-record",
          2,
          false,
          "one record larger than the cleaner I/O buffer (io.buffer=1024): buffer grows, then is"
              + " restored; others small",
          (c, o) -> {
            c.cfg.put("segment.bytes", "20000");
            c.open();
            fill(c, 2, "none", 6, 20, 10);
            c.add(
                b(
                    2,
                    "none",
                    Arrays.asList(
                        new SimpleRecord(Gen.nextTs(c), Gen.u8("key1"), Gen.blob(c.r, 5000, false)),
                        new SimpleRecord(
                            Gen.nextTs(c), Gen.u8("keyBIG"), Gen.blob(c.r, 3000, true)))));
            fill(c, 2, "zstd", 6, 20, 10);
            c.add(
                b(
                    2,
                    "gzip",
                    Arrays.asList(
                        new SimpleRecord(
                            Gen.nextTs(c), Gen.u8("key2"), Gen.blob(c.r, 9000, true)))));
            fill(c, 2, "none", 6, 20, 10);
            c.s.roll();
            o.put("io.buffer", "1024");
          });
      pair(
          "v2-max-message",
          2,
          false,
          "max.message.bytes (topic) lowered below existing batches: still cleaned, buffers grow to"
              + " the batch",
          (c, o) -> {
            c.cfg.put("segment.bytes", "20000");
            c.open();
            fill(c, 2, "none", 6, 20, 10);
            c.add(
                b(
                    2,
                    "none",
                    Arrays.asList(
                        new SimpleRecord(
                            Gen.nextTs(c), Gen.u8("keyBIG"), Gen.blob(c.r, 6000, false)))));
            fill(c, 2, "none", 6, 20, 10);
            c.s.roll();
            o.put("io.buffer", "512");
            o.put("max.io.buffer", "1000");
            o.put("max.message.bytes", "1000");
          });
      for (int m = 0; m <= 2; m++) {
        final int mm = m;
        pair(
            "v" + m + "-bigoffset-gaps",
            m,
            false,
            "offsets from 5e9, appended as follower with gaps inside and between batches, one gap >"
                + " 2^31 (a group never spans more than 2^31-1 offsets)",
            (c, o) -> {
              c.logStart = 5_000_000_000L + c.r.nextInt(1000);
              c.cfg.put("segment.bytes", "1000");
              c.open();
              long off = c.logStart;
              for (int i = 0; i < 18; i++) {
                int n = 1 + c.r.nextInt(6);
                long[] of = new long[n];
                for (int k = 0; k < n; k++) {
                  of[k] = off;
                  off += 1 + (c.r.nextInt(4) == 0 ? c.r.nextInt(1000) : 0);
                }
                c.s.appendFollower(
                    Shim.buildAt(
                        (byte) mm,
                        mm == 0 && n > 1 ? "gzip" : mm == 0 ? "none" : cod(c, "mixed", mm),
                        TimestampType.CREATE_TIME,
                        -1L,
                        1,
                        of,
                        recs(c, n, 25, 10)),
                    1);
                c.time.now += 500;
                off += c.r.nextInt(3) == 0 ? c.r.nextInt(100000) : 0;
                if (i == 8 || i == 13) off += 2_200_000_000L;
              }
              o.put("segment.bytes", "6000");
              o.put("log.start.offset", "" + c.logStart);
            });
      }
      pair(
          "v2-null-keys",
          2,
          false,
          "records without key (topic had cleanup.policy=delete): dropped from the cleaned part;"
              + " empty keys are normal keys",
          (c, o) -> {
            c.cfg.put("cleanup.policy", "delete");
            c.open();
            for (int i = 0; i < 20; i++)
              c.add(b(2, A[c.r.nextInt(5)], Gen.recs(c, 1 + c.r.nextInt(6), 2)));
            o.put("cleanup.policy", "compact");
          });
      pair(
          "v1-null-keys",
          1,
          false,
          "the same with magic 1, null keys also in the last record of the cleaned range (4.1.1 may"
              + " refuse an empty legacy batch)",
          (c, o) -> {
            c.cfg.put("cleanup.policy", "delete");
            c.open();
            for (int i = 0; i < 20; i++)
              c.add(b(1, L[c.r.nextInt(4)], Gen.recs(c, 1 + c.r.nextInt(6), 1)));
            c.add(
                b(
                    1,
                    "none",
                    Arrays.asList(
                        new SimpleRecord(Gen.nextTs(c), (byte[]) null, Gen.u8("nokey")))));
            c.s.roll();
            c.add(b(1, "none", recs(c, 2, 5, 0)));
            o.put("cleanup.policy", "compact");
          });
      pair(
          "v1-last-tombstone-r2",
          1,
          false,
          "nearly realistic form of the above: last record of the cleaned range is a legacy"
              + " tombstone that counts as expired because all files have the same mtime (as after"
              + " a restore) and delete.retention.ms=0",
          (c, o) -> {
            c.cfg.put("delete.retention.ms", "0");
            o.put("mtime.all", "" + Gen.T0);
            c.open();
            fill(c, 1, "none", 14, 20, 10);
            c.add(
                b(
                    1,
                    "none",
                    Arrays.asList(new SimpleRecord(Gen.nextTs(c), Gen.u8("gone"), (byte[]) null))));
            c.s.roll();
            c.add(b(1, "none", recs(c, 2, 5, 0)));
            round(c, o, 1000);
            c.add(b(1, "none", recs(c, 2, 5, 0)));
            c.s.roll();
            c.add(
                b(
                    1,
                    "none",
                    Arrays.asList(
                        new SimpleRecord(Gen.nextTs(c) + 100000, Gen.u8("gone2"), (byte[]) null))));
            c.s.roll();
            c.time.now += 1000;
          });
      pair(
          "v2-empty-values",
          2,
          false,
          "empty values are values, not tombstones; headers kept",
          (c, o) -> {
            c.open();
            for (int i = 0; i < N(c); i++) {
              List<SimpleRecord> l = new ArrayList<>();
              int n = 1 + c.r.nextInt(6);
              for (int k = 0; k < n; k++)
                l.add(
                    new SimpleRecord(
                        Gen.nextTs(c),
                        c.r.nextInt(8) == 0 ? new byte[0] : Gen.u8("key" + key(c, 30)),
                        c.r.nextInt(3) == 0
                            ? new byte[0]
                            : c.r.nextInt(6) == 0 ? null : Gen.val(c.r),
                        Gen.hdr(c.r)));
              c.add(b(2, A[c.r.nextInt(5)], l));
            }
          });
      pair(
          "v2-first-dirty-mid",
          2,
          false,
          "cleaner checkpoint in the middle of a segment: only records at or after it enter the"
              + " map, older segments are still rewritten",
          (c, o) -> {
            c.open();
            fill(c, 2, "mixed", N(c) + 4, 30, 10);
            o.put("first.dirty", "" + (c.s.end() / 2));
          });
      pair(
          "v2-dedupe-full",
          2,
          false,
          "offset map full (30 slots x 0.9): cleaning stops inside a segment; the rest stays dirty",
          (c, o) -> {
            c.open();
            for (int i = 0; i < 26; i++) {
              List<SimpleRecord> l = new ArrayList<>();
              int n = 1 + c.r.nextInt(6);
              for (int k = 0; k < n; k++)
                l.add(
                    new SimpleRecord(
                        Gen.nextTs(c),
                        Gen.u8("key" + c.r.nextInt(60)),
                        Gen.val(c.r),
                        Gen.hdr(c.r)));
              c.add(b(2, "none", l));
            }
            o.put("dedupe.bytes", "" + 24 * 30);
          });
      pair(
          "v2-log-start-mid",
          2,
          false,
          "log start offset in the middle of the second segment (DeleteRecords with"
              + " compact,delete)",
          (c, o) -> {
            c.cfg.put("cleanup.policy", "compact,delete");
            c.cfg.put("segment.bytes", "900");
            c.open();
            fill(c, 2, "lz4", N(c), 30, 10);
            long b = c.s.segs().get(1)[0];
            o.put("log.start.offset", "" + (b + 5));
          });
      pair(
          "v2-noop",
          2,
          false,
          "all keys different, no tombstones: every batch is copied byte for byte, segments may"
              + " merge",
          (c, o) -> {
            c.open();
            int k = 0;
            for (int i = 0; i < 20; i++) {
              List<SimpleRecord> l = new ArrayList<>();
              int n = 1 + c.r.nextInt(5);
              for (int q = 0; q < n; q++)
                l.add(
                    new SimpleRecord(
                        Gen.nextTs(c), Gen.u8("u" + k++), Gen.u8("v" + q), Gen.hdr(c.r)));
              c.add(b(2, A[c.r.nextInt(5)], l));
            }
          });
      pair(
          "v2-dead-segments",
          2,
          false,
          "whole segments superseded: 3.9.1 leaves empty segments (0 bytes), 4.1.1 keeps the last"
              + " batch of the round",
          (c, o) -> {
            c.cfg.put("segment.bytes", "900");
            c.open();
            fill(c, 2, "none", 14, 4, 0);
            c.s.roll();
            fill(c, 2, "gzip", 2, 4, 0);
            for (int q = 0; q < 4; q++)
              c.add(
                  b(
                      2,
                      "none",
                      Arrays.asList(
                          new SimpleRecord(Gen.nextTs(c), Gen.u8("key" + q), Gen.u8("last")))));
            c.s.roll();
            o.put("segment.bytes", "500");
          });
      pair(
          "v2-last-superseded",
          2,
          false,
          "last batch of the round holds only null keys (dropped): 4.1.1 keeps it as an EMPTY batch"
              + " so that the end offset is not lost, 3.9.1 drops it",
          (c, o) -> {
            c.cfg.put("cleanup.policy", "delete");
            c.open();
            fill(c, 2, "none", 12, 10, 0);
            c.add(
                b(
                    2,
                    "none",
                    Arrays.asList(
                        new SimpleRecord(Gen.nextTs(c), (byte[]) null, Gen.u8("nokey")))));
            c.s.roll();
            fill(c, 2, "none", 2, 10, 0);
            o.put("cleanup.policy", "compact");
          });
      pair(
          "v2-high-watermark",
          2,
          false,
          "high watermark below the log end: cleaning stops at the segment that holds it",
          (c, o) -> {
            c.open();
            fill(c, 2, "none", N(c), 30, 10);
            o.put("hw", "" + (c.s.end() * 2 / 3));
          });
      pair(
          "v2-roll-active",
          2,
          false,
          "option roll=1: the active segment is rolled first and cleaned too",
          (c, o) -> {
            c.open();
            fill(c, 2, "snappy", N(c), 30, 15);
            o.put("roll", "1");
          });
      pair(
          "v2-epochs",
          2,
          false,
          "several leader epochs, offsets in the epoch checkpoint are not touched by compaction",
          (c, o) -> {
            c.open();
            for (int i = 0; i < 24; i++) {
              if (i % 4 == 3) c.leaderEpoch += 1 + c.r.nextInt(2);
              c.add(b(2, "none", recs(c, 1 + c.r.nextInt(6), 20, 10)));
            }
          });
    }
    if (k2)
      for (int m = 1; m <= 2; m++) {
        final int mm = m;
        pair(
            "v" + m + "-w282-r2",
            m,
            false,
            "log written and first round by 2.8.2 (no delete horizon in v2), then the next round by"
                + " each version",
            (c, o) -> {
              c.open();
              fill(c, mm, mm == 1 ? "gzip" : "lz4", 18, 30, 30);
              round(c, o, 1000);
              fill(c, mm, "none", 8, 30, 10);
              c.s.roll();
              fill(c, mm, "none", 1, 30, 0);
              c.time.now += 5000;
            });
      }
    if (k4)
      for (int m = 0; m <= 1; m++) {
        final int mm = m;
        pair(
            "v" + m + "-w411-r2",
            m,
            false,
            "magic "
                + m
                + " log, first round by 4.1.1 (rewritten as v2), then legacy data appended by 4.1.1"
                + " as v2 and the next round by each version",
            (c, o) -> {
              c.open();
              fill(c, mm, mm == 0 ? "none" : "gzip", 16, 30, 30);
              round(c, o, 1000);
              c.magic = 2;
              c.s.close();
              c.cfg.put("message.format.version", "2.8");
              c.open();
              fill(c, 2, "lz4", 8, 30, 10);
              c.s.roll();
              c.time.now += 100000;
            });
      }
  }

  /**
   * files created in this run carry the wall clock as mtime: null in stored results, so that
   * regeneration is identical
   */
  static ObjectNode scrub(ObjectNode r) {
    for (String k : new String[] {"segments_before", "segments_after"})
      if (r.has(k))
        for (JsonNode x : r.get(k))
          if (x.get("mtime").asLong() > 1_790_000_000_000L) {
            if (x.get("largest_timestamp").asLong() == x.get("mtime").asLong())
              ((ObjectNode) x).putNull("largest_timestamp");
            ((ObjectNode) x).putNull("mtime");
          }
    return r;
  }

  static void cleanAll(File out) throws Exception {
    File[] ds = out.listFiles();
    Arrays.sort(ds);
    for (File d : ds) {
      File mf = new File(d, "meta.json");
      if (!mf.exists() || !d.getName().matches(re)) continue;
      ObjectNode j = (ObjectNode) M.readTree(mf);
      Map<String, String> o = new TreeMap<>();
      for (String k : new String[] {"config", "options"})
        j.get(k).fields().forEachRemaining(e -> o.put(e.getKey(), e.getValue().asText()));
      if (V.startsWith("2")) o.remove("x");
      File a = new File(d, "after-" + V);
      del(a);
      ObjectNode r =
          clean(
              new File(d, "before/" + d.getName() + "-0"),
              new File(a, d.getName() + "-0"),
              j.get("now").asLong(),
              o);
      if (r.has("error")) System.out.println(V + " " + d.getName() + " " + r.get("error").asText());
      if (r.has("error")) del(a);
      ((ObjectNode) j.get("results")).set(V, scrub(r));
      M.writerWithDefaultPrettyPrinter().writeValue(mf, j);
    }
  }

  // ------------------------------------------------------------------ retention
  static int rc = 0;

  static void rcase(
      File root, String dir, String desc, long now, Map<String, String> mt, String... kv)
      throws Exception {
    ObjectNode j = M.createObjectNode();
    j.put("dir", "dirs/" + dir + "/" + dir + "-0");
    j.put("description", desc);
    j.put("now", now);
    Map<String, String> cfg = new TreeMap<>(), o = new TreeMap<>(mt);
    cfg.put("cleanup.policy", "delete");
    cfg.put("retention.ms", "-1");
    cfg.put("retention.bytes", "-1");
    for (int i = 0; i < kv.length; i += 2)
      if (isOpt(kv[i])) o.put(kv[i], kv[i + 1]);
      else cfg.put(kv[i], kv[i + 1]);
    j.set("config", M.valueToTree(cfg));
    j.set("options", M.valueToTree(o));
    j.putObject("results");
    M.writerWithDefaultPrettyPrinter()
        .writeValue(new File(root, String.format("%02d-%s.json", ++rc, dir)), j);
  }

  static class RD {
    String n;
    List<long[]> sg;
    long size, end;
    Map<String, String> mt = new TreeMap<>();

    long largest(int i) {
      return sg.get(i)[2];
    }
  }

  interface RB {
    void run(Gen.Case c) throws Exception;
  }

  static RD rdir(File root, String n, int magic, RB b) throws Exception {
    Gen.out = new File(root, "dirs");
    Gen.Case c = new Gen.Case(n, magic, false, "retention " + n);
    c.dir = new File(root, "dirs/" + n + "/" + n + "-0");
    c.cfg.put("segment.bytes", "1000");
    c.cfg.put("file.delete.delay.ms", "60000");
    c.cfg.put("message.timestamp.after.max.ms", "9223372036854775807");
    cur = new P();
    cur.c = c;
    c.open();
    b.run(c);
    c.s.flush();
    RD r = new RD();
    r.n = n;
    Thread.sleep(5);
    shut(c);
    for (Map.Entry<Long, Long> e : cur.mt.entrySet())
      r.mt.put("mtime." + e.getKey(), "" + e.getValue());
    c.s = new Shim(c.dir, c.cfg, 0L, 0L, true, c.time);
    r.sg = c.s.segs();
    for (long[] x : r.sg) r.size += x[1];
    r.end = c.s.end();
    c.s.close();
    c.s = null;
    tidy(c.dir);
    for (Map.Entry<Long, Long> e : cur.mt.entrySet()) setM(c.dir, e.getKey(), e.getValue());
    return r;
  }

  static List<SimpleRecord> mono(Gen.Case c, int n, long step) {
    List<SimpleRecord> l = new ArrayList<>();
    for (int i = 0; i < n; i++)
      l.add(
          new SimpleRecord(
              step < 0 ? -1L : (c.ts += step), Gen.u8("k" + c.r.nextInt(9)), Gen.val(c.r)));
    return l;
  }

  static void retainGen(File root) throws Exception {
    del(root);
    root.mkdirs();
    int nb = Gen.hold ? 20 + 5 : 22;
    RD a =
        rdir(
            root,
            "plain",
            2,
            c -> {
              for (int i = 0; i < nb; i++) c.add(b(2, A[i % 5], mono(c, 2 + c.r.nextInt(6), 700)));
            });
    RD f =
        rdir(
            root,
            "future",
            2,
            c -> {
              for (int i = 0; i < nb; i++) {
                List<SimpleRecord> l = mono(c, 2 + c.r.nextInt(6), 700);
                if (i == nb / 2)
                  l.add(new SimpleRecord(Gen.T0 + 864000000L, Gen.u8("future"), Gen.u8("x")));
                c.add(b(2, "none", l));
              }
            });
    RD z =
        rdir(
            root,
            "no-timestamps",
            2,
            c -> {
              for (int i = 0; i < nb; i++)
                c.add(b(2, "none", mono(c, 2 + c.r.nextInt(6), i < nb / 2 ? -1 : 700)));
            });
    RD v0 =
        rdir(
            root,
            "magic0",
            0,
            c -> {
              for (int i = 0; i < nb; i++) c.add(b(0, "none", mono(c, 2 + c.r.nextInt(4), 700)));
            });
    RD e =
        rdir(
            root,
            "empty-active",
            2,
            c -> {
              for (int i = 0; i < nb / 2; i++)
                c.add(b(2, "none", mono(c, 2 + c.r.nextInt(6), 700)));
              c.s.roll();
            });
    RD t =
        rdir(
            root,
            "open-txn",
            2,
            c -> {
              for (int i = 0; i < nb; i++)
                if (i == 5) c.add(bp("none", 77, 0, 0, true, mono(c, 3, 700)));
                else c.add(b(2, "none", mono(c, 2 + c.r.nextInt(6), 700)));
            });
    RD g =
        rdir(
            root,
            "compacted",
            2,
            c -> {
              c.cfg.put("cleanup.policy", "compact,delete");
              c.cfg.put("segment.bytes", "700");
              for (int i = 0; i < nb; i++) c.add(b(2, "none", mono(c, 2 + c.r.nextInt(6), 700)));
              c.s.roll();
              Map<String, String> o = new TreeMap<>();
              o.put("segment.bytes", "300");
              Map<String, String> cf = c.cfg;
              cf.put("segment.bytes", "300");
              round(c, o, 1000);
            });
    long D = 1000000;
    RD[] x = {a};
    long end = a.end;
    int last = a.sg.size() - 1;
    rcase(root, "plain", "no limits: nothing deleted", a.largest(last) + D, a.mt);
    rcase(
        root,
        "plain",
        "now - largest(segment 1) == retention.ms exactly: segment 0 deleted, segment 1 not (strict"
            + " >)",
        a.largest(1) + D,
        a.mt,
        "retention.ms",
        "" + D);
    rcase(
        root,
        "plain",
        "one ms later: segments 0 and 1",
        a.largest(1) + D + 1,
        a.mt,
        "retention.ms",
        "" + D);
    rcase(
        root,
        "plain",
        "everything expired: active segment rolled at the log end, all old ones deleted",
        a.largest(last) + D + 1,
        a.mt,
        "retention.ms",
        "" + D);
    rcase(
        root,
        "plain",
        "everything but the active expired",
        a.largest(last) + D,
        a.mt,
        "retention.ms",
        "" + D);
    rcase(
        root,
        "plain",
        "retention.ms=0, now = largest of the last: all but the active (0 > 0 is false)",
        a.largest(last),
        a.mt,
        "retention.ms",
        "0");
    rcase(
        root,
        "plain",
        "retention.bytes = size - size(segment 0): exactly segment 0 (diff - segment >= 0)",
        a.largest(0),
        a.mt,
        "retention.bytes",
        "" + (a.size - a.sg.get(0)[1]));
    rcase(
        root,
        "plain",
        "one byte more: nothing",
        a.largest(0),
        a.mt,
        "retention.bytes",
        "" + (a.size - a.sg.get(0)[1] + 1));
    rcase(
        root,
        "plain",
        "retention.bytes = size: nothing",
        a.largest(0),
        a.mt,
        "retention.bytes",
        "" + a.size);
    rcase(
        root,
        "plain",
        "retention.bytes = 0: everything, active rolled",
        a.largest(0),
        a.mt,
        "retention.bytes",
        "0");
    rcase(
        root,
        "plain",
        "retention.bytes = 1: all but the last segment",
        a.largest(0),
        a.mt,
        "retention.bytes",
        "1");
    rcase(
        root,
        "plain",
        "log start offset inside segment 2: segments 0 and 1",
        a.largest(0),
        a.mt,
        "log.start.offset",
        "" + (a.sg.get(2)[0] + 1));
    rcase(
        root,
        "plain",
        "log start offset = base of segment 2",
        a.largest(0),
        a.mt,
        "log.start.offset",
        "" + a.sg.get(2)[0]);
    rcase(
        root,
        "plain",
        "log start offset = last offset of segment 1: only segment 0",
        a.largest(0),
        a.mt,
        "log.start.offset",
        "" + (a.sg.get(2)[0] - 1));
    rcase(
        root,
        "plain",
        "log start offset = log end offset: all but the active (an active segment is never deleted"
            + " for the start offset)",
        a.largest(0),
        a.mt,
        "log.start.offset",
        "" + end);
    rcase(
        root,
        "plain",
        "size and time together: size alone takes 1 segment, time alone 2: 2 in all (not 3)",
        a.largest(1) + D + 1,
        a.mt,
        "retention.ms",
        "" + D,
        "retention.bytes",
        "" + (a.size - a.sg.get(0)[1]));
    rcase(
        root,
        "plain",
        "size takes 3, time alone would take 1",
        a.largest(0) + D + 1,
        a.mt,
        "retention.ms",
        "" + D,
        "retention.bytes",
        "" + (a.size - a.sg.get(0)[1] - a.sg.get(1)[1] - a.sg.get(2)[1]));
    rcase(
        root,
        "plain",
        "cleanup.policy=compact: time and size ignored, log start offset still applies",
        a.largest(last) + 10 * D,
        a.mt,
        "cleanup.policy",
        "compact",
        "retention.ms",
        "1",
        "retention.bytes",
        "1",
        "log.start.offset",
        "" + a.sg.get(1)[0]);
    rcase(
        root,
        "plain",
        "high watermark inside segment 2: segments at or above it stay although expired",
        a.largest(last) + 10 * D,
        a.mt,
        "retention.ms",
        "1",
        "hw",
        "" + (a.sg.get(2)[0] + 1));
    rcase(
        root,
        "plain",
        "high watermark = base of segment 2",
        a.largest(last) + 10 * D,
        a.mt,
        "retention.ms",
        "1",
        "hw",
        "" + a.sg.get(2)[0]);
    rcase(
        root,
        "plain",
        "roll first (roll=1), then everything expired: the empty active stays, no second roll",
        a.largest(last) + 10 * D,
        a.mt,
        "retention.ms",
        "1",
        "roll",
        "1");
    rcase(
        root,
        "future",
        "a future timestamp in a middle segment stops time deletion there",
        f.largest(f.sg.size() - 1) + 10 * D,
        f.mt,
        "retention.ms",
        "" + D);
    rcase(
        root,
        "future",
        "the same with size: size does not care",
        f.largest(f.sg.size() - 1) + 10 * D,
        f.mt,
        "retention.ms",
        "" + D,
        "retention.bytes",
        "600");
    rcase(
        root,
        "future",
        "clock after the future timestamp + retention",
        Gen.T0 + 864000000L + D + 1,
        f.mt,
        "retention.ms",
        "" + D);
    Map<String, String> old = new TreeMap<>(z.mt);
    int q = 0;
    for (long[] y : z.sg) old.put("mtime." + y[0], "" + (Gen.T0 - 5 * D + (q++) * 10));
    rcase(
        root,
        "no-timestamps",
        "timestamps -1: mtime of the .log decides (old mtimes): only segments with no timestamp at"
            + " all are expired",
        Gen.T0,
        old,
        "retention.ms",
        "" + D);
    Map<String, String> mixm = new TreeMap<>(old);
    mixm.put("mtime." + z.sg.get(1)[0], "" + (Gen.T0 - 10));
    rcase(
        root,
        "no-timestamps",
        "segment 1 has a recent mtime: deletion stops there",
        Gen.T0,
        mixm,
        "retention.ms",
        "" + D);
    Map<String, String> oldv = new TreeMap<>(v0.mt);
    q = 0;
    for (long[] y : v0.sg) oldv.put("mtime." + y[0], "" + (Gen.T0 + (q++) * 1000));
    rcase(
        root, "magic0", "magic 0: mtime decides", Gen.T0 + 2000 + D, oldv, "retention.ms", "" + D);
    rcase(
        root,
        "magic0",
        "magic 0: all expired by mtime",
        Gen.T0 + 100000 + D,
        oldv,
        "retention.ms",
        "" + D);
    rcase(
        root,
        "empty-active",
        "all expired, active empty: active stays, no roll, log start = log end",
        e.largest(e.sg.size() - 2) + 10 * D,
        e.mt,
        "retention.ms",
        "1");
    rcase(
        root,
        "empty-active",
        "retention.bytes=0 with an empty active",
        e.largest(0),
        e.mt,
        "retention.bytes",
        "0");
    rcase(
        root,
        "open-txn",
        "open transaction: does not hold deletion back (high watermark = log end)",
        t.largest(t.sg.size() - 1) + 10 * D,
        t.mt,
        "retention.ms",
        "1");
    rcase(
        root,
        "compacted",
        "compact,delete log with EMPTY (0 byte) segments left by the cleaner: their time is the"
            + " mtime",
        g.largest(g.sg.size() - 1) + D,
        g.mt,
        "cleanup.policy",
        "compact,delete",
        "retention.ms",
        "" + (D / 2));
    rcase(
        root,
        "compacted",
        "the same, size",
        g.largest(0),
        g.mt,
        "cleanup.policy",
        "compact,delete",
        "retention.bytes",
        "200");
    System.out.println("retention cases " + rc);
  }

  static void retainAll(File root) throws Exception {
    File[] js = root.listFiles((d, n) -> n.endsWith(".json"));
    Arrays.sort(js);
    for (File f : js) {
      ObjectNode j = (ObjectNode) M.readTree(f);
      Map<String, String> o = new TreeMap<>();
      for (String k : new String[] {"config", "options"})
        j.get(k).fields().forEachRemaining(e -> o.put(e.getKey(), e.getValue().asText()));
      o.put("segment.bytes", "1000");
      ObjectNode r = retain(new File(root, j.get("dir").asText()), j.get("now").asLong(), o);
      if (r.has("error")) System.out.println(V + " " + f.getName() + " " + r.get("error").asText());
      ((ObjectNode) j.get("results")).set(V, scrub(r));
      M.writerWithDefaultPrettyPrinter().writeValue(f, j);
    }
  }

  // ------------------------------------------------------------------ roll
  static class Q {
    String name;
    Random r;
    long clock = Gen.T0, ts = Gen.T0, off = 0;
    ByteArrayOutputStream buf = new ByteArrayOutputStream();
    ArrayNode steps = M.createArrayNode();
    Map<String, String> cfg = new TreeMap<>();
    String desc;
    int epoch = 1;

    ObjectNode step(String op, String note) {
      ObjectNode s = steps.addObject();
      s.put("step", steps.size() - 1);
      s.put("op", op);
      s.put("clock", clock);
      if (note != null) s.put("note", note);
      return s;
    }

    void add(String mode, MemoryRecords m, String note) {
      ByteBuffer b = m.buffer().duplicate();
      byte[] x = new byte[b.remaining()];
      b.get(x);
      add(mode, x, note);
    }

    void add(String mode, byte[] x, String note) {
      ObjectNode s = step("append", note);
      s.put("mode", mode);
      s.put("leader_epoch", epoch);
      s.put("position", buf.size());
      s.put("length", x.length);
      buf.write(x, 0, x.length);
    }

    List<SimpleRecord> rs(int n, int size, long... t) {
      List<SimpleRecord> l = new ArrayList<>();
      for (int i = 0; i < n; i++) {
        byte[] v = new byte[size];
        r.nextBytes(v);
        l.add(
            new SimpleRecord(
                t.length == 0 ? (ts += 100) : t[Math.min(i, t.length - 1)], Gen.u8("k" + i), v));
      }
      return l;
    }

    MemoryRecords fol(int magic, String cd, List<SimpleRecord> l) {
      long[] o = new long[l.size()];
      for (int i = 0; i < o.length; i++) o[i] = off++;
      return Shim.buildAt((byte) magic, cd, TimestampType.CREATE_TIME, -1L, epoch, o, l);
    }

    void f(int magic, String cd, List<SimpleRecord> l, String note) {
      add("follower", fol(magic, cd, l), note);
    }

    void l(String cd, List<SimpleRecord> l, String note) {
      add("leader", b(2, cd, l), note);
    }
  }

  interface QB {
    void run(Q q) throws Exception;
  }

  static void seq(File root, String name, String desc, QB b) throws Exception {
    Q q = new Q();
    q.name = name;
    q.desc = desc;
    q.r = new Random(Gen.seed * 31 + name.hashCode());
    if (Gen.hold) {
      q.clock += 123456789L;
      q.ts += 123456789L;
    }
    q.cfg.put("segment.bytes", "100000");
    q.cfg.put("segment.index.bytes", "4096");
    q.cfg.put("index.interval.bytes", Gen.hold ? "300" : "256");
    q.cfg.put("segment.ms", "9223372036854775807");
    q.cfg.put("max.message.bytes", "1000000");
    q.cfg.put("message.timestamp.after.max.ms", "9223372036854775807");
    b.run(q);
    File d = new File(root, name);
    del(d);
    d.mkdirs();
    Files.write(new File(d, "appends.bin").toPath(), q.buf.toByteArray());
    ObjectNode j = M.createObjectNode();
    j.put("name", name);
    j.put("description", desc);
    j.put(
        "log_created_at_clock",
        q.steps.get(0).get("clock").asLong() - (name.equals("ms-empty-active") ? 100000 : 0));
    j.set("config", M.valueToTree(q.cfg));
    j.set("steps", q.steps);
    M.writerWithDefaultPrettyPrinter().writeValue(new File(d, "steps.json"), j);
  }

  static void rollGen(File root) throws Exception {
    del(root);
    root.mkdirs();
    int h = Gen.hold ? 1 : 0;
    seq(
        root,
        "size-exact",
        "segment size + append == segment.bytes fits; one byte over rolls",
        q -> {
          int one =
              Shim.buildAt(
                      (byte) 2,
                      "none",
                      TimestampType.CREATE_TIME,
                      -1L,
                      1,
                      new long[] {0},
                      q.rs(1, 100 + h))
                  .sizeInBytes();
          q.ts = q.clock;
          q.cfg.put("segment.bytes", "" + one * 4);
          for (int i = 0; i < 10; i++) q.f(2, "none", q.rs(1, 100 + h), null);
          q.f(2, "none", q.rs(1, 101 + h), "one byte more");
          for (int i = 0; i < 3; i++) q.f(2, "none", q.rs(1, 100 + h), null);
          q.f(2, "none", q.rs(1, 101 + h), "one byte more, would fill to exactly one over");
        });
    seq(
        root,
        "size-leader",
        "leader appends of random sizes and codecs, offsets assigned by the log",
        q -> {
          q.cfg.put("segment.bytes", "" + (1500 + h * 333));
          for (int i = 0; i < 24; i++) {
            q.clock += 50;
            q.l(A[i % 5], q.rs(1 + q.r.nextInt(5), q.r.nextInt(120)), null);
          }
        });
    seq(
        root,
        "ms-exact",
        "segment.ms against timestamps (first batch max timestamp of the segment against the append"
            + " max): == does not roll, +1 rolls; the clock does not matter",
        q -> {
          q.cfg.put("segment.ms", "10000");
          long t = q.ts;
          q.f(2, "none", q.rs(2, 20, t, t - 500), "first batch: max is t");
          q.clock += 999999;
          q.f(2, "none", q.rs(1, 20, t + 5000), null);
          q.f(2, "none", q.rs(1, 20, t + 10000), "exactly segment.ms: no roll");
          q.f(2, "none", q.rs(1, 20, t + 10001), "+1: roll");
          q.f(2, "none", q.rs(1, 20, t + 3), "older: no roll");
          q.f(2, "none", q.rs(2, 20, t + 20001, t), "exactly");
          q.f(2, "none", q.rs(2, 20, t, t + 20002), "roll");
        });
    seq(
        root,
        "ms-no-timestamp",
        "first batch of the segment has timestamp -1: the clock against the creation time of the"
            + " segment decides",
        q -> {
          q.cfg.put("segment.ms", "10000");
          q.f(2, "none", q.rs(1, 20, -1L), "first batch, created at clock");
          q.clock += 10000;
          q.f(2, "none", q.rs(1, 20, -1L), "clock exactly +10000: no");
          q.f(2, "none", q.rs(1, 20, q.ts + 9999999), "timestamp far ahead: no (clock decides)");
          q.clock += 1;
          q.f(2, "none", q.rs(1, 20, -1L), "+1: roll");
          q.clock += 5000;
          q.f(2, "none", q.rs(1, 20, q.ts), "real timestamp in a segment that starts with -1");
          q.clock += 5001;
          q.f(2, "none", q.rs(1, 20, q.ts), "roll; new segment starts with a real timestamp");
          q.clock += 50000;
          q.f(2, "none", q.rs(1, 20, q.ts + 1), "clock far ahead but timestamps decide: no");
          q.f(
              2,
              "none",
              q.rs(1, 20, -1L),
              "append with -1 in a segment with a real first timestamp: -1 - ts is negative: no");
        });
    seq(
        root,
        "ms-empty-active",
        "an empty active segment is not rolled by time; log created long before the first append",
        q -> {
          q.cfg.put("segment.ms", "10000");
          q.clock += 100000;
          q.f(2, "none", q.rs(1, 20, q.ts), "active is empty: no roll");
          q.clock += 20000;
          q.step("roll", "explicit roll()");
          q.clock += 20000;
          q.f(2, "none", q.rs(1, 20, q.ts + 50000), "empty again: no roll");
          q.step("roll", null);
          q.step("roll", "roll() on an empty active: recreated");
          q.f(2, "none", q.rs(1, 20, -1L), null);
          q.clock += 10001;
          q.f(2, "none", q.rs(1, 20, -1L), null);
        });
    seq(
        root,
        "ms-leader-lat",
        "leader with LogAppendTime: the clock is the timestamp",
        q -> {
          q.cfg.put("segment.ms", "10000");
          q.cfg.put("message.timestamp.type", "LogAppendTime");
          for (int i = 0; i < 14; i++) {
            q.clock += 1000 + q.r.nextInt(4000);
            q.l(A[i % 5], q.rs(1 + q.r.nextInt(3), 20), null);
          }
        });
    seq(
        root,
        "index-full",
        "offset index full: segment.index.bytes 32 = 4 entries, an entry for every batch but the"
            + " first",
        q -> {
          q.cfg.put("segment.index.bytes", "32");
          q.cfg.put("index.interval.bytes", "1");
          for (int i = 0; i < 20; i++)
            q.f(
                2,
                "none",
                q.rs(1, 20, Gen.T0),
                i == 0 ? "same timestamp always: the time index gets one entry" : null);
        });
    seq(
        root,
        "timeindex-full",
        "time index full first (12 byte entries; full when entries >= max - 1)",
        q -> {
          q.cfg.put("segment.index.bytes", "60");
          q.cfg.put("index.interval.bytes", "1");
          for (int i = 0; i < 20; i++) q.f(2, "none", q.rs(1, 20), null);
        });
    seq(
        root,
        "index-interval",
        "index.interval.bytes strict >, counted before the batch is added; equal sizes",
        q -> {
          int one =
              Shim.buildAt(
                      (byte) 2,
                      "none",
                      TimestampType.CREATE_TIME,
                      -1L,
                      1,
                      new long[] {0},
                      q.rs(1, 50))
                  .sizeInBytes();
          q.ts = q.clock;
          q.cfg.put("index.interval.bytes", "" + one * 3);
          for (int i = 0; i < 14; i++) q.f(2, "none", q.rs(1, 50), null);
          q.cfg.put("segment.bytes", "" + one * 10);
        });
    seq(
        root,
        "index-interval-0",
        "index.interval.bytes 0",
        q -> {
          q.cfg.put("index.interval.bytes", "0");
          q.cfg.put("segment.bytes", "900");
          for (int i = 0; i < 14; i++) q.f(2, A[i % 5], q.rs(1 + i % 3, 30), null);
        });
    seq(
        root,
        "multi-batch",
        "several batches in one follower append: size of ALL is tested at once; 2.8.2 one index"
            + " decision per append, 3.9.1/4.1.1 one per batch",
        q -> {
          q.cfg.put("segment.bytes", "1600");
          for (int i = 0; i < 10; i++) {
            ByteArrayOutputStream x = new ByteArrayOutputStream();
            int n = 1 + q.r.nextInt(4);
            for (int k = 0; k < n; k++) {
              ByteBuffer bb = q.fol(2, "none", q.rs(1 + q.r.nextInt(3), 40)).buffer().duplicate();
              byte[] y = new byte[bb.remaining()];
              bb.get(y);
              x.write(y);
            }
            q.add("follower", x.toByteArray(), n + " batches");
          }
        });
    seq(
        root,
        "gap-v2",
        "follower, magic 2, gaps: a new segment starts at the FIRST offset of the append (not at"
            + " the log end); relative offset over 2^31-1 forces a roll even into an empty log",
        q -> {
          q.off = 5_000_000_000L;
          q.f(2, "none", q.rs(2, 20), "first append into empty segment 0: cannot be relative");
          q.off += 100;
          q.f(2, "lz4", q.rs(3, 20), null);
          q.off += 2147483647L - 110;
          q.f(2, "none", q.rs(3, 20), "last offset near the limit");
          q.f(2, "none", q.rs(9, 20), null);
          q.off += 3_000_000_000L;
          q.f(2, "none", q.rs(2, 20), "gap > 2^31");
          q.cfg.put("segment.bytes", "700");
          for (int i = 0; i < 6; i++) {
            q.off += 10;
            q.f(2, "none", q.rs(2, 40), null);
          }
        });
    seq(
        root,
        "gap-v1",
        "the same with magic 1: uncompressed and compressed wrappers (base of the new segment"
            + " differs from v2)",
        q -> {
          q.off = 1000;
          q.cfg.put("segment.bytes", "500");
          for (int i = 0; i < 14; i++) {
            q.off += i % 3 == 0 ? 50 : 0;
            q.f(1, i % 2 == 0 ? "none" : "gzip", i % 2 == 0 ? q.rs(1, 60) : q.rs(3, 40), null);
          }
          q.off += 3_000_000_000L;
          q.f(1, "gzip", q.rs(3, 40), "gap > 2^31, compressed");
          q.off += 3_000_000_000L;
          q.f(1, "none", q.rs(1, 40), "gap > 2^31, not compressed");
        });
    seq(
        root,
        "v0-follower",
        "magic 0: no timestamps (clock decides for segment.ms), time index stays empty",
        q -> {
          q.cfg.put("segment.ms", "10000");
          q.cfg.put("segment.bytes", "900");
          for (int i = 0; i < 16; i++) {
            q.clock += 1500 + q.r.nextInt(1000);
            q.f(
                0,
                i % 2 == 0 ? "none" : "gzip",
                i % 2 == 0 ? q.rs(1, 60, -1L) : q.rs(3, 40, -1L),
                null);
          }
        });
    seq(
        root,
        "reopen",
        "close and reopen in the middle: bytes since the last index entry restart at 0, rolling"
            + " timestamp is read back from the first batch, creation time is the time of opening;"
            + " close writes the last time index entry",
        q -> {
          q.cfg.put("segment.ms", "10000");
          q.cfg.put("segment.bytes", "1500");
          for (int i = 0; i < 18; i++) {
            q.clock += 500;
            if (i % 5 == 4) q.step("reopen", null);
            q.f(2, "none", q.rs(1 + q.r.nextInt(3), 50), null);
          }
          q.ts += 20000;
          q.step("reopen", null);
          q.f(2, "none", q.rs(1, 20), "rolled by time after reopen");
        });
    seq(
        root,
        "ts-disorder",
        "timestamps out of order and -1 in the middle: time index (max so far, last offset of the"
            + " batch that had it)",
        q -> {
          q.cfg.put("index.interval.bytes", "100");
          q.cfg.put("segment.bytes", "1300");
          long[] d = {
            0, 5000, 3000, -1, 4000, 9000, 9000, 1000, -1, 20000, 100, 30000, 25000, 30000, 31000,
            2, 3, 4
          };
          for (long x : d)
            q.f(
                2,
                "none",
                q.rs(2, 30, x == -1 ? -1L : Gen.T0 + x, x == -1 ? -1L : Gen.T0 + x / 2),
                null);
        });
  }

  static ArrayNode idx(File f, boolean time) throws Exception {
    ArrayNode a = M.createArrayNode();
    if (!f.exists()) return a;
    ByteBuffer b = ByteBuffer.wrap(Files.readAllBytes(f.toPath()));
    while (b.remaining() >= (time ? 12 : 8)) {
      ArrayNode e = a.addArray();
      if (time) {
        e.add(b.getLong());
        e.add(b.getInt());
      } else {
        e.add(b.getInt());
        e.add(b.getInt());
      }
    }
    return a;
  }

  static void rollRun(File sd) throws Exception {
    ObjectNode in = (ObjectNode) M.readTree(new File(sd, "steps.json"));
    byte[] all = Files.readAllBytes(new File(sd, "appends.bin").toPath());
    String n = in.get("name").asText();
    File d = new File(Files.createTempDirectory("roll").toFile(), n + "-0");
    d.mkdirs();
    Map<String, String> cfg = new TreeMap<>();
    in.get("config").fields().forEachRemaining(e -> cfg.put(e.getKey(), e.getValue().asText()));
    if (!V.startsWith("2")) {
    } else cfg.remove("message.timestamp.after.max.ms");
    FixedTime t = new FixedTime(in.get("log_created_at_clock").asLong());
    Shim s = new Shim(d, cfg, 0L, 0L, true, t);
    ObjectNode j = M.createObjectNode();
    j.put("kafka", V);
    j.put("name", n);
    j.put("log_created_at_clock", t.now);
    ArrayNode rs = j.putArray("steps");
    for (JsonNode st : in.get("steps")) {
      t.now = st.get("clock").asLong();
      ObjectNode r = rs.addObject();
      r.put("step", st.get("step").asInt());
      List<long[]> b0 = s.segs();
      long before = s.end();
      try {
        switch (st.get("op").asText()) {
          case "roll":
            s.roll();
            break;
          case "reopen":
            s.flush();
            Thread.sleep(30);
            s.close();
            s = new Shim(d, cfg, 0L, 0L, true, t);
            break;
          default:
            byte[] x =
                Arrays.copyOfRange(
                    all,
                    st.get("position").asInt(),
                    st.get("position").asInt() + st.get("length").asInt());
            MemoryRecords m = MemoryRecords.readableRecords(ByteBuffer.wrap(x));
            if (st.get("mode").asText().equals("leader"))
              s.append(m, st.get("leader_epoch").asInt(), "client");
            else s.appendFollower(m, st.get("leader_epoch").asInt());
        }
      } catch (Throwable e) {
        r.put("error", err(e));
      }
      List<long[]> b1 = s.segs();
      r.put("op", st.get("op").asText());
      r.put(
          "new_segment",
          b1.size() > b0.size() || b1.get(b1.size() - 1)[0] != b0.get(b0.size() - 1)[0]);
      r.put("active_base_offset", b1.get(b1.size() - 1)[0]);
      r.put("active_size", b1.get(b1.size() - 1)[1]);
      r.put("segments", b1.size());
      r.put("log_end_offset_before", before);
      r.put("log_end_offset", s.end());
    }
    s.flush();
    Thread.sleep(20);
    s.close();
    tidy(d);
    ArrayNode sg = j.putArray("segments_after_close");
    for (File f : logs(d)) {
      ObjectNode o = sg.addObject();
      String p = f.getPath().substring(0, f.getPath().length() - 4);
      o.put("base_offset", base(f));
      o.put("log_size", f.length());
      o.put("log_sha256", sha(Files.readAllBytes(f.toPath())));
      o.put("index_hex", hex(Files.readAllBytes(new File(p + ".index").toPath())));
      o.put("timeindex_hex", hex(Files.readAllBytes(new File(p + ".timeindex").toPath())));
      o.set("index_relative_offset_position", idx(new File(p + ".index"), false));
      o.set("timeindex_timestamp_relative_offset", idx(new File(p + ".timeindex"), true));
    }
    j.set("files", files(d));
    M.writeValue(new File(sd, "result-" + V + ".json"), j);
    copyTo(d, new File(sd, "after-" + V + "/" + n + "-0"));
    del(d.getParentFile());
  }

  static Map<String, String> kv(String[] a, int from) {
    Map<String, String> o = new TreeMap<>();
    for (int i = from; i < a.length; i++) {
      String[] x = a[i].split("=", 2);
      o.put(x[0], x[1]);
    }
    return o;
  }

  public static void main(String[] a) throws Exception {
    System.setProperty("x", "y");
    switch (a[0]) {
      case "clean":
        {
          File d = new File(a[1]).getAbsoluteFile();
          ObjectNode j =
              clean(d, new File(d.getPath() + ".cleaned"), Long.parseLong(a[2]), kv(a, 3));
          System.out.println(j);
          System.exit(j.has("error") ? 1 : 0);
        }
      case "retain":
        {
          ObjectNode j = retain(new File(a[1]).getAbsoluteFile(), Long.parseLong(a[2]), kv(a, 3));
          System.out.println(j);
          System.exit(j.has("error") ? 1 : 0);
        }
      case "gen":
        out = new File(a[1]).getAbsoluteFile();
        Gen.seed = Long.parseLong(a[2]);
        Gen.hold = a[3].equals("variant");
        if (a.length > 4) re = a[4];
        out.mkdirs();
        gen();
        System.out.println(V + ": " + Gen.made + " pairs generated");
        break;
      case "clean-all":
        if (a.length > 2) re = a[2];
        cleanAll(new File(a[1]).getAbsoluteFile());
        break;
      case "retain-gen":
        Gen.seed = Long.parseLong(a[2]);
        Gen.hold = a[3].equals("variant");
        retainGen(new File(a[1]).getAbsoluteFile());
        break;
      case "retain-all":
        retainAll(new File(a[1]).getAbsoluteFile());
        break;
      case "roll-gen":
        Gen.seed = Long.parseLong(a[2]);
        Gen.hold = a[3].equals("variant");
        rollGen(new File(a[1]).getAbsoluteFile());
        break;
      case "roll-run":
        for (int i = 1; i < a.length; i++) rollRun(new File(a[i]).getAbsoluteFile());
        break;
      default:
        System.err.println("unknown " + a[0]);
        System.exit(2);
    }
    System.out.flush();
    System.exit(0);
  }
}
