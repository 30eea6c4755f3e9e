# What changed its name or its shape by Kafka 4.4.0, over a copy of the sources that all versions share: packages moved,
# and entries of indexes became records.
s/^import org\.apache\.kafka\.common\.record\.\*;/import org.apache.kafka.common.record.*; import org.apache.kafka.common.record.internal.*;/
s/org\.apache\.kafka\.common\.record\.(Record|SimpleRecord|MemoryRecords|FileRecords|RecordBatch|Records|MemoryRecordsBuilder|DefaultRecordBatch|RecordVersion|ControlRecordType|FileLogInputStream)\b/org.apache.kafka.common.record.internal.\1/g
s/^import org\.apache\.kafka\.common\.utils\.\*;/import org.apache.kafka.common.utils.*; import org.apache.kafka.common.utils.internals.*;/
s/\b(e|entry|last|previous|readMaxTimestampAndOffsetSoFar\(\))\.(offset|position|timestamp)\b(\(\))?/\1.\2()/g
s/\bresult\.(validatedRecords|messageSizeMaybeChanged|maxTimestampMs)\b(\(\))?/result.\1()/g
s/for \(AbortedTxn t :/for (org.apache.kafka.common.message.AbortedTxn t :/
s/\(int\) t\.version\(\)/0/
s/\bp\.lastSeq\(\)/Peek.lastSeq(p)/
s/\bindex\.closeHandler\(\)/index.close()/
s/\.findOffsetByTimestamp\(target, base\)/.findOffsetByTimestamp(target, base, Integer.MAX_VALUE)/
s/^( *)BufferSupplier\.NO_CACHING\);$/\1BufferSupplier.NO_CACHING, Integer.MAX_VALUE);/
