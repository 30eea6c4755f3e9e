package golden;

import io.netty.buffer.*;
import java.io.*;
import java.util.*;
import org.apache.pulsar.common.api.proto.*;
import org.apache.pulsar.common.compression.*;
import org.apache.pulsar.common.protocol.Commands;

/** Decoding through the real Pulsar classes into maps. */
public class Dec {
  public static List<byte[]> readStream(String f) throws IOException {
    List<byte[]> r = new ArrayList<>();
    try (DataInputStream d = new DataInputStream(new BufferedInputStream(new FileInputStream(f)))) {
      while (true) {
        int n;
        try {
          n = d.readInt();
        } catch (EOFException e) {
          break;
        }
        byte[] b = new byte[n];
        d.readFully(b);
        r.add(b);
      }
    }
    return r;
  }

  public static void writeStream(String f, List<byte[]> l) throws IOException {
    try (DataOutputStream d =
        new DataOutputStream(new BufferedOutputStream(new FileOutputStream(f)))) {
      for (byte[] b : l) {
        d.writeInt(b.length);
        d.write(b);
      }
    }
  }

  static List<Object> kvs(List<KeyValue> l) {
    List<Object> r = new ArrayList<>();
    for (KeyValue k : l) r.add(Arrays.asList(k.getKey(), k.getValue()));
    return r;
  }

  static Object call(Object o, String m, Object... a) {
    try {
      for (var x : o.getClass().getMethods())
        if (x.getName().equals(m) && x.getParameterCount() == a.length) return x.invoke(o, a);
      return null;
    } catch (ReflectiveOperationException e) {
      throw new RuntimeException(e);
    }
  }

  public static Map<String, Object> md(MessageMetadata m) {
    Map<String, Object> r = new LinkedHashMap<>();
    r.put("producer_name", m.getProducerName());
    r.put("sequence_id", m.getSequenceId());
    r.put("publish_time", m.getPublishTime());
    if (m.getPropertiesCount() > 0) r.put("properties", kvs(m.getPropertiesList()));
    if (m.hasReplicatedFrom()) r.put("replicated_from", m.getReplicatedFrom());
    if (m.hasPartitionKey()) r.put("partition_key", m.getPartitionKey());
    if (m.getReplicateTosCount() > 0) {
      List<String> l = new ArrayList<>();
      for (int i = 0; i < m.getReplicateTosCount(); i++) l.add(m.getReplicateToAt(i));
      r.put("replicate_to", l);
    }
    if (m.hasCompression()) r.put("compression", m.getCompression().name());
    if (m.hasUncompressedSize()) r.put("uncompressed_size", m.getUncompressedSize() & 0xffffffffL);
    if (m.hasNumMessagesInBatch()) r.put("num_messages_in_batch", m.getNumMessagesInBatch());
    if (m.hasEventTime()) r.put("event_time", m.getEventTime());
    if (m.getEncryptionKeysCount() > 0) {
      List<Object> l = new ArrayList<>();
      for (EncryptionKeys k : m.getEncryptionKeysList())
        l.add(J.m("key", k.getKey(), "value", k.getValue(), "metadata", kvs(k.getMetadatasList())));
      r.put("encryption_keys", l);
    }
    if (m.hasEncryptionAlgo()) r.put("encryption_algo", m.getEncryptionAlgo());
    if (m.hasEncryptionParam()) r.put("encryption_param", m.getEncryptionParam());
    if (m.hasSchemaVersion()) r.put("schema_version", m.getSchemaVersion());
    if (m.hasPartitionKeyB64Encoded())
      r.put("partition_key_b64_encoded", m.isPartitionKeyB64Encoded());
    if (m.hasOrderingKey()) r.put("ordering_key", m.getOrderingKey());
    if (m.hasDeliverAtTime()) r.put("deliver_at_time", m.getDeliverAtTime());
    if (m.hasMarkerType()) r.put("marker_type", m.getMarkerType());
    if (m.hasTxnidLeastBits())
      r.put("txnid_least_bits", Long.toUnsignedString(m.getTxnidLeastBits()));
    if (m.hasTxnidMostBits()) r.put("txnid_most_bits", Long.toUnsignedString(m.getTxnidMostBits()));
    if (m.hasHighestSequenceId()) r.put("highest_sequence_id", m.getHighestSequenceId());
    if (m.hasNullValue()) r.put("null_value", m.isNullValue());
    if (m.hasUuid()) r.put("uuid", m.getUuid());
    if (m.hasNumChunksFromMsg()) r.put("num_chunks_from_msg", m.getNumChunksFromMsg());
    if (m.hasTotalChunkMsgSize()) r.put("total_chunk_msg_size", m.getTotalChunkMsgSize());
    if (m.hasChunkId()) r.put("chunk_id", m.getChunkId());
    if (m.hasNullPartitionKey()) r.put("null_partition_key", m.isNullPartitionKey());
    Object n = call(m, "getCompactedBatchIndexesCount");
    if (n != null && (int) n > 0) {
      List<Object> l = new ArrayList<>();
      for (int i = 0; i < (int) n; i++) l.add(call(m, "getCompactedBatchIndexeAt", i));
      r.put("compacted_batch_indexes", l);
    }
    Object sid = call(m, "hasSchemaId");
    if (sid != null && (boolean) sid) r.put("schema_id", call(m, "getSchemaId"));
    return r;
  }

  public static Map<String, Object> smm(SingleMessageMetadata m) {
    Map<String, Object> r = new LinkedHashMap<>();
    if (m.getPropertiesCount() > 0) r.put("properties", kvs(m.getPropertiesList()));
    if (m.hasPartitionKey()) r.put("partition_key", m.getPartitionKey());
    r.put("payload_size", m.getPayloadSize());
    if (m.hasCompactedOut()) r.put("compacted_out", m.isCompactedOut());
    if (m.hasEventTime()) r.put("event_time", m.getEventTime());
    if (m.hasPartitionKeyB64Encoded())
      r.put("partition_key_b64_encoded", m.isPartitionKeyB64Encoded());
    if (m.hasOrderingKey()) r.put("ordering_key", m.getOrderingKey());
    if (m.hasSequenceId()) r.put("sequence_id", m.getSequenceId());
    if (m.hasNullValue()) r.put("null_value", m.isNullValue());
    if (m.hasNullPartitionKey()) r.put("null_partition_key", m.isNullPartitionKey());
    return r;
  }

  public static Map<String, Object> mid(MessageIdData m) {
    Map<String, Object> r = J.m("ledger_id", m.getLedgerId(), "entry_id", m.getEntryId());
    if (m.hasPartition()) r.put("partition", m.getPartition());
    if (m.hasBatchIndex()) r.put("batch_index", m.getBatchIndex());
    if (m.getAckSetsCount() > 0) {
      List<Object> l = new ArrayList<>();
      for (int i = 0; i < m.getAckSetsCount(); i++) l.add(m.getAckSetAt(i));
      r.put("ack_set", l);
    }
    if (m.hasBatchSize()) r.put("batch_size", m.getBatchSize());
    return r;
  }

  static byte[] rd(ByteBuf b) {
    byte[] x = new byte[b.readableBytes()];
    b.getBytes(b.readerIndex(), x);
    return x;
  }

  /** entry as stored (optional broker entry metadata, optional checksum). */
  public static Map<String, Object> entry(byte[] raw) {
    Map<String, Object> r = new LinkedHashMap<>();
    r.put("size", raw.length);
    try {
      ByteBuf b = Unpooled.wrappedBuffer(raw);
      BrokerEntryMetadata bem = Commands.parseBrokerEntryMetadataIfExist(b);
      if (bem != null) {
        Map<String, Object> x = new LinkedHashMap<>();
        if (bem.hasBrokerTimestamp()) x.put("broker_timestamp", bem.getBrokerTimestamp());
        if (bem.hasIndex()) x.put("index", bem.getIndex());
        r.put("broker_entry_metadata", x);
      }
      r.put("headers_offset", b.readerIndex());
      r.put("has_checksum", Commands.hasChecksum(b));
      if (Commands.hasChecksum(b)) {
        ByteBuf c = b.duplicate();
        int ck = Commands.readChecksum(c);
        r.put("checksum", Integer.toUnsignedLong(ck));
        r.put(
            "checksum_ok",
            com.scurrilous.circe.checksum.Crc32cIntChecksum.computeChecksum(c) == ck);
      }
      r.put("entry_timestamp", Commands.getEntryTimestamp(Unpooled.wrappedBuffer(raw)));
      MessageMetadata m = new MessageMetadata();
      Commands.parseMessageMetadata(b, m);
      {
        ByteBuf hb = Unpooled.wrappedBuffer(raw);
        Commands.skipBrokerEntryMetadataIfExist(hb);
        Commands.skipChecksumIfPresent(hb);
        int ms = (int) hb.readUnsignedInt();
        byte[] mb = new byte[ms];
        hb.readBytes(mb);
        MessageMetadata m2 = new MessageMetadata();
        m2.parseFrom(Unpooled.wrappedBuffer(mb), ms);
        ByteBuf ob = Unpooled.directBuffer(m2.getSerializedSize() + 1);
        m2.writeTo(ob);
        byte[] o2 = new byte[ob.readableBytes()];
        ob.readBytes(o2);
        ob.release();
        r.put("metadata_size", ms);
        r.put("metadata_canonical", java.util.Arrays.equals(mb, o2));
      }
      r.put("metadata", md(m));
      r.put("payload_offset", b.readerIndex());
      r.put("payload_size", b.readableBytes());
      if (m.getEncryptionKeysCount() > 0) {
        r.put("payload", rd(b));
        return r;
      }
      boolean chunk = m.hasNumChunksFromMsg() && m.getNumChunksFromMsg() > 1;
      CompressionCodec codec = CompressionCodecProvider.getCompressionCodec(m.getCompression());
      ByteBuf u = chunk ? b.retainedSlice() : codec.decode(b, m.getUncompressedSize());
      if (m.hasNumMessagesInBatch()) {
        List<Object> l = new ArrayList<>();
        int n = m.getNumMessagesInBatch();
        SingleMessageMetadata s = new SingleMessageMetadata();
        for (int i = 0; i < n; i++) {
          ByteBuf p = Commands.deSerializeSingleMessageInBatch(u, s, 0, n);
          Map<String, Object> x = new LinkedHashMap<>();
          x.put("single", smm(s));
          x.put("value", rd(p));
          l.add(x);
          p.release();
        }
        r.put("messages", l);
        r.put("trailing", u.readableBytes());
      } else {
        r.put(chunk ? "chunk" : "value", rd(u));
      }
      u.release();
    } catch (Throwable t) {
      r.put("error", t.getClass().getSimpleName() + ": " + t.getMessage());
    }
    return r;
  }
}
