package org.apache.kafka.storage.internals.log;

import java.util.Optional;

/** what is not public any more in Kafka 4.4.0 */
public class Peek {
  public static long[] cleanable(UnifiedLog log, Optional<Long> lastClean, long nowMs)
      throws Exception {
    var found = LogCleanerManager.cleanableOffsets(log, lastClean, nowMs);
    return new long[] {found.firstDirtyOffset(), found.firstUncleanableDirtyOffset()};
  }

  public static int lastSeq(ProducerStateEntry entry) {
    return entry.lastSeq();
  }
}
