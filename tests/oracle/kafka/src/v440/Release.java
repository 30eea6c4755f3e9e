import java.util.Optional;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.storage.internals.log.*;

/** what Kafka 4.4.0 does otherwise than earlier ones */
class Release {
  static final String VERSION = "4.4.0";

  /** TV_1 (the last argument): a marker has the epoch of its data. From TV_2 on 4.4 wants a higher one. */
  static LogAppendInfo appendMarker(UnifiedLog log, MemoryRecords records, int leaderEpoch)
      throws Exception {
    return log.appendAsLeader(
        records,
        leaderEpoch,
        AppendOrigin.COORDINATOR,
        RequestLocal.noCaching(),
        VerificationGuard.SENTINEL,
        (short) 1);
  }

  /** As LogManager: close() alone does not trim the indexes of the last segment any more. */
  static void beforeClose(UnifiedLog log) throws Exception {
    log.prepareActiveSegmentForClose();
  }

  /** first dirty offset, first uncleanable offset */
  static long[] cleanable(UnifiedLog log, Optional<Long> lastClean, long nowMs) throws Exception {
    return Peek.cleanable(log, lastClean, nowMs);
  }
}
