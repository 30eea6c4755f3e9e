import java.io.File;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** version-specific calls into the real classes of Kafka 4; where its releases differ, Release */
public class Shim {
  public static final String VERSION = Release.VERSION;

  public static Compression comp(String c) {
    return Compression.of(c).build();
  }

  public static LogValidator validator(
      MemoryRecords records,
      TopicPartition partition,
      Time time,
      CompressionType source,
      Compression target,
      boolean compacted,
      byte magic,
      TimestampType timestampType,
      long beforeMaxMs,
      long afterMaxMs,
      int leaderEpoch,
      AppendOrigin origin) {
    return new LogValidator(
        records,
        partition,
        time,
        source,
        target,
        compacted,
        magic,
        timestampType,
        beforeMaxMs,
        afterMaxMs,
        leaderEpoch,
        origin);
  }

  public static MemoryRecords build(
      byte magic,
      String codec,
      TimestampType tt,
      long base,
      long lat,
      long pid,
      short ep,
      int seq,
      boolean txn,
      int leaderEpoch,
      List<SimpleRecord> rs) {
    int sz = 1024;
    for (SimpleRecord r : rs)
      sz +=
          200
              + (r.key() == null ? 0 : r.key().remaining())
              + (r.value() == null ? 0 : r.value().remaining());
    MemoryRecordsBuilder b =
        new MemoryRecordsBuilder(
            ByteBuffer.allocate(sz),
            magic,
            comp(codec),
            tt,
            base,
            lat,
            pid,
            ep,
            seq,
            txn,
            false,
            leaderEpoch,
            sz);
    for (SimpleRecord r : rs) b.append(r);
    return b.build();
  }

  public static MemoryRecords buildAt(
      byte magic,
      String codec,
      TimestampType tt,
      long lat,
      int leaderEpoch,
      long[] offs,
      List<SimpleRecord> rs) {
    int sz = 1024;
    for (SimpleRecord r : rs)
      sz +=
          200
              + (r.key() == null ? 0 : r.key().remaining())
              + (r.value() == null ? 0 : r.value().remaining());
    MemoryRecordsBuilder b =
        new MemoryRecordsBuilder(
            ByteBuffer.allocate(sz),
            magic,
            comp(codec),
            tt,
            offs[0],
            lat,
            -1L,
            (short) -1,
            -1,
            false,
            false,
            leaderEpoch,
            sz);
    int i = 0;
    for (SimpleRecord r : rs) b.appendWithOffset(offs[i++], r);
    return b.build();
  }

  public static MemoryRecords marker(long ts, long pid, short ep, boolean commit, int coordEpoch) {
    return MemoryRecords.withEndTransactionMarker(
        ts,
        pid,
        ep,
        new EndTransactionMarker(
            commit ? ControlRecordType.COMMIT : ControlRecordType.ABORT, coordEpoch));
  }

  public final UnifiedLog log;
  final KafkaScheduler sch = new KafkaScheduler(1, true, "golden-");
  final Time time;
  final LogConfig cfg;
  final int recVer;

  public Shim(
      File dir, Map<String, String> c, long logStart, long recovery, boolean clean, Time time)
      throws Exception {
    this.time = time;
    sch.startup();
    dir.mkdirs();
    Map<String, String> m = new HashMap<>(c);
    String mf = m.remove("message.format.version");
    recVer = mf == null ? 2 : mf.startsWith("0.9") ? 0 : mf.startsWith("0.10") ? 1 : 2;
    m.remove("message.timestamp.difference.max.ms");
    String sb = m.remove("segment.bytes");
    if (sb != null) m.put("internal.segment.bytes", sb);
    this.cfg = new LogConfig(m);
    log =
        UnifiedLog.create(
            dir,
            this.cfg,
            logStart,
            recovery,
            sch,
            new BrokerTopicStats(false),
            time,
            900000,
            new ProducerStateManagerConfig(86400000, false),
            600000,
            new LogDirFailureChannel(1),
            clean,
            Optional.empty());
  }

  public LogAppendInfo append(MemoryRecords r, int le, String origin) throws Exception {
    if (recVer < 2)
      return log.appendAsLeaderWithRecordVersion(r, le, recVer == 0 ? RecordVersion.V0 : RecordVersion.V1);
    if (origin.equals("coord")) return Release.appendMarker(log, r, le);
    return log.appendAsLeader(r, le, AppendOrigin.CLIENT);
  }

  public void appendFollower(MemoryRecords r, int le) {
    log.appendAsFollower(r, le);
  }

  public void roll() throws Exception {
    log.roll(Optional.empty());
  }

  public void flush() {
    log.flush(true);
  }

  public void close() throws Exception {
    Release.beforeClose(log);
    log.close();
    sch.shutdown();
  }

  public long end() {
    return log.logEndOffset();
  }

  public long start() {
    return log.logStartOffset();
  }

  public long activeBase() {
    return log.activeSegment().baseOffset();
  }

  public void hw(long v) throws Exception {
    log.updateHighWatermark(v);
  }

  public List<LogSegment> segments() {
    return new ArrayList<>(log.logSegments());
  }

  public FileRecords.TimestampAndOffset byTime(long ts) {
    return log.fetchOffsetByTimestamp(ts, Optional.empty()).timestampAndOffsetOpt().orElse(null);
  }

  public FetchDataInfo read(long off, int max) throws Exception {
    return log.read(off, max, FetchIsolation.LOG_END, true);
  }

  public FetchDataInfo readCommitted(long off, int max) throws Exception {
    return log.read(off, max, FetchIsolation.TXN_COMMITTED, true);
  }

  public long lso() {
    return log.lastStableOffset();
  }

  public long clean(TopicPartition tp, long firstDirty, long now) throws Exception {
    log.updateHighWatermark(log.logEndOffset());
    Cleaner c =
        new Cleaner(
            0,
            new SkimpyOffsetMap(1 << 16, "MD5"),
            65536,
            1 << 20,
            0.9,
            new org.apache.kafka.storage.internals.utils.Throttler(1e12, 300, "t", "e", time),
            time,
            t -> {});
    return c.doClean(new LogToClean(log, firstDirty, log.activeSegment().baseOffset(), false), now)
        .getKey();
  }

  /**
   * one round of the real cleaner: real cleanableOffsets, real clean(); r gets first dirty, first
   * uncleanable (manager), first uncleanable (segment boundary), end offset, clean bytes, cleanable
   * bytes
   */
  public void cleanReal(
      TopicPartition tp, Long lastClean, int mapBytes, int io, int maxIo, double lf, long[] r)
      throws Exception {
    long[] range = Release.cleanable(log, Optional.ofNullable(lastClean), time.milliseconds());
    r[0] = range[0];
    r[1] = range[1];
    LogToClean l = new LogToClean(log, r[0], r[1], false);
    r[2] = l.firstUncleanableOffset();
    r[4] = l.cleanBytes();
    r[5] = l.cleanableBytes();
    if (r[5] == 0)
      return; // the manager would not pick this log (LogCleanerManager.grabFilthiestCompactedLog)
    Cleaner c =
        new Cleaner(
            0,
            new SkimpyOffsetMap(mapBytes, "MD5"),
            io,
            maxIo,
            lf,
            new org.apache.kafka.storage.internals.utils.Throttler(1e12, 300, "t", "e", time),
            time,
            t -> {});
    r[3] = c.clean(l).getKey();
  }

  public int deleteOld() throws Exception {
    return log.deleteOldSegments();
  }

  public List<long[]> segs() throws Exception {
    List<long[]> l = new ArrayList<>();
    for (LogSegment s : log.logSegments())
      l.add(new long[] {s.baseOffset(), s.size(), s.largestTimestamp(), s.lastModified()});
    return l;
  }
}
