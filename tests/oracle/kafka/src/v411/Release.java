import java.util.Optional;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.storage.internals.log.*;

/** what Kafka 4.1.1 does otherwise than later ones */
class Release {
  static final String VERSION = "4.1.1";

  static LogAppendInfo appendMarker(UnifiedLog log, MemoryRecords records, int leaderEpoch)
      throws Exception {
    return log.appendAsLeader(records, leaderEpoch, AppendOrigin.COORDINATOR);
  }

  static void beforeClose(UnifiedLog log) {}

  /** first dirty offset, first uncleanable offset */
  static long[] cleanable(UnifiedLog log, Optional<Long> lastClean, long nowMs) throws Exception {
    var found = LogCleanerManager.cleanableOffsets(log, lastClean, nowMs);
    return new long[] {found.firstDirtyOffset(), found.firstUncleanableDirtyOffset()};
  }
}
