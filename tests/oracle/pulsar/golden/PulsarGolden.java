package golden;

import io.netty.buffer.*;
import java.io.*;
import java.util.*;
import org.apache.pulsar.client.api.RawMessage;
import org.apache.pulsar.client.impl.RawMessageImpl;
import org.apache.pulsar.common.api.proto.*;
import org.apache.pulsar.common.compression.*;
import org.apache.pulsar.common.intercept.*;
import org.apache.pulsar.common.protocol.Commands;

public class PulsarGolden {
  static final CompressionType[] CT = CompressionType.values();

  static class FixedTs implements BrokerEntryMetadataInterceptor {
    long ts;

    public BrokerEntryMetadata intercept(BrokerEntryMetadata m) {
      return m.setBrokerTimestamp(ts);
    }

    public BrokerEntryMetadata interceptWithNumberOfMessages(BrokerEntryMetadata m, int n) {
      return m;
    }
  }

  static byte[] payload(Random r, int n) {
    byte[] b = new byte[n];
    String w = "the quick brown fox jumps over the lazy dog 0123456789 ";
    if (r.nextInt(3) == 0) r.nextBytes(b);
    else for (int i = 0; i < n; i++) b[i] = (byte) w.charAt((i + r.nextInt(2)) % w.length());
    return b;
  }

  static byte[] bytes(ByteBuf b) {
    byte[] x = new byte[b.readableBytes()];
    b.readBytes(x);
    b.release();
    return x;
  }

  static MessageMetadata base(Random r, long seq) {
    return new MessageMetadata()
        .setProducerName("prod-" + r.nextInt(4))
        .setSequenceId(seq)
        .setPublishTime(1700000000000L + seq * 7 + r.nextInt(5));
  }

  /**
   * plain (non batched) entry; Java clients leave num_messages_in_batch unset only when not
   * batching with single.
   */
  static byte[] plain(MessageMetadata m, byte[] val, boolean ck) {
    CompressionType c = m.hasCompression() ? m.getCompression() : CompressionType.NONE;
    ByteBuf p = Unpooled.directBuffer(Math.max(1, val.length)).writeBytes(val);
    if (m.getEncryptionKeysCount() == 0 && c != CompressionType.NONE && !m.hasNumChunksFromMsg()) {
      m.setUncompressedSize(val.length);
      ByteBuf e = CompressionCodecProvider.getCompressionCodec(c).encode(p);
      p.release();
      p = e;
    }
    byte[] out =
        bytes(
            Commands.serializeMetadataAndPayload(
                ck ? Commands.ChecksumType.Crc32c : Commands.ChecksumType.None, m, p));
    p.release();
    return out;
  }

  static byte[] batch(
      MessageMetadata m, List<SingleMessageMetadata> s, List<byte[]> v, boolean ck) {
    ByteBuf b = Unpooled.directBuffer(1024);
    for (int i = 0; i < s.size(); i++)
      Commands.serializeSingleMessageInBatchWithPayload(
          s.get(i), Unpooled.wrappedBuffer(v.get(i)), b);
    CompressionType c = m.hasCompression() ? m.getCompression() : CompressionType.NONE;
    m.setNumMessagesInBatch(s.size());
    m.setUncompressedSize(b.readableBytes());
    ByteBuf e = CompressionCodecProvider.getCompressionCodec(c).encode(b);
    byte[] out =
        bytes(
            Commands.serializeMetadataAndPayload(
                ck ? Commands.ChecksumType.Crc32c : Commands.ChecksumType.None, m, e));
    e.release();
    b.release();
    return out;
  }

  static byte[] withBroker(byte[] e, Set<BrokerEntryMetadataInterceptor> set, int n) {
    return bytes(Commands.addBrokerEntryMetadata(Unpooled.wrappedBuffer(e), set, n));
  }

  static List<SingleMessageMetadata> smms(
      Random r, int n, int keys, long seq, List<byte[]> vals, double nullp, double nokeyp) {
    List<SingleMessageMetadata> l = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      SingleMessageMetadata s = new SingleMessageMetadata();
      if (r.nextDouble() >= nokeyp) {
        String k = "k" + r.nextInt(keys);
        if (r.nextInt(12) == 0) {
          s.setPartitionKey(Base64.getEncoder().encodeToString(k.getBytes()))
              .setPartitionKeyB64Encoded(true);
        } else s.setPartitionKey(k);
      } else if (r.nextInt(4) == 0) s.setNullPartitionKey(true);
      if (r.nextInt(3) == 0) s.addProperty().setKey("p\u00e9").setValue("v" + r.nextInt(9));
      if (r.nextInt(4) == 0) s.setEventTime(1690000000000L + r.nextInt(100000));
      if (r.nextInt(5) == 0) s.setOrderingKey(("o" + r.nextInt(5)).getBytes());
      s.setSequenceId(seq + i);
      boolean nul = r.nextDouble() < nullp;
      if (nul) s.setNullValue(true);
      vals.add(nul ? new byte[0] : payload(r, 1 + r.nextInt(60)));
      l.add(s);
    }
    return l;
  }

  static void entries(String dir, long seed) throws Exception {
    Random r = new Random(seed);
    List<byte[]> out = new ArrayList<>();
    PrintWriter j = new PrintWriter(dir + "/entries.jsonl", "UTF-8");
    FixedTs ft = new FixedTs();
    AppendIndexMetadataInterceptor ix = new AppendIndexMetadataInterceptor();
    Set<BrokerEntryMetadataInterceptor> both = new LinkedHashSet<>(List.of(ft, ix)),
        ts = new LinkedHashSet<>(List.of(ft)),
        io = new LinkedHashSet<>(List.of(ix));
    List<String> names = new ArrayList<>();
    long seq = seed % 1000;
    for (int wrap = 0; wrap < 4; wrap++)
      for (CompressionType c : CT)
        for (int kind = 0; kind < 11; kind++)
          for (int ck = 0; ck < 2; ck++) {
            if (ck == 0 && (kind % 3 != 0)) continue;
            MessageMetadata m = base(r, seq += 1 + r.nextInt(3));
            byte[] e;
            int n = 1;
            String k;
            if (c != CompressionType.NONE || r.nextBoolean()) m.setCompression(c);
            switch (kind) {
              case 0:
                k = "plain";
                e = plain(m, payload(r, r.nextInt(200)), ck == 1);
                break;
              case 1:
                k = "plain-key-props-event";
                m.setPartitionKey("key-\u4e2d-" + r.nextInt(10))
                    .setEventTime(1690000000000L + r.nextInt(1 << 20));
                for (int i = 0; i < 3; i++)
                  m.addProperty().setKey("prop" + i).setValue("v\u00fc" + r.nextInt());
                m.setOrderingKey(new byte[] {1, 2, (byte) r.nextInt()});
                m.setSchemaVersion(new byte[] {0, 0, 0, 0, 0, 0, 0, (byte) r.nextInt(5)});
                e = plain(m, payload(r, 300), ck == 1);
                break;
              case 2:
                k = "plain-null";
                m.setPartitionKey("k").setNullValue(true);
                e = plain(m, new byte[0], ck == 1);
                break;
              case 3:
                k = "plain-deliver-at";
                m.setDeliverAtTime(1700000000000L + r.nextInt(1 << 30));
                e = plain(m, payload(r, 50), ck == 1);
                break;
              case 4:
                k = "plain-txn-replicated";
                m.setTxnidLeastBits(r.nextLong())
                    .setTxnidMostBits(r.nextInt(100))
                    .setReplicatedFrom("cluster-a");
                m.addReplicateTo("cl-b");
                m.addReplicateTo("cl-c");
                m.setHighestSequenceId(seq + 3);
                e = plain(m, payload(r, 64), ck == 1);
                break;
              case 5:
                k = "chunk";
                m.setUuid("prod-" + seq)
                    .setNumChunksFromMsg(3)
                    .setTotalChunkMsgSize(3000)
                    .setChunkId(r.nextInt(3))
                    .setUncompressedSize(2900);
                e = plain(m, payload(r, 500), ck == 1);
                break;
              case 6:
                k = "encrypted-batch-marker";
                {
                  var ek = m.addEncryptionKey().setKey("client-rsa.pem").setValue(payload(r, 128));
                  ek.addMetadata().setKey("ver").setValue("1");
                }
                m.setEncryptionParam(payload(r, 12))
                    .setEncryptionAlgo("RSA")
                    .setNumMessagesInBatch(n = 5)
                    .setUncompressedSize(777);
                e = plain(m, payload(r, 400), ck == 1);
                break;
              case 7:
                k = "marker";
                m.setMarkerType(MarkerType.TXN_COMMIT.getValue())
                    .setTxnidLeastBits(r.nextInt(100))
                    .setTxnidMostBits(1);
                m.clearCompression();
                e = plain(m, new byte[0], ck == 1);
                break;
              case 8:
                {
                  k = "batch";
                  List<byte[]> v = new ArrayList<>();
                  n = 1 + r.nextInt(20);
                  var s = smms(r, n, 6, seq, v, 0.15, 0.2);
                  m.setHighestSequenceId(seq + n - 1);
                  e = batch(m, s, v, ck == 1);
                  break;
                }
              case 9:
                {
                  k = "batch-1-java-nonbatched";
                  List<byte[]> v = new ArrayList<>();
                  var s = smms(r, 1, 6, seq, v, 0.3, 0.2);
                  if (s.get(0).hasPartitionKey()) m.setPartitionKey(s.get(0).getPartitionKey());
                  e = batch(m, s, v, ck == 1);
                  break;
                }
              default:
                {
                  k = "batch-large";
                  List<byte[]> v = new ArrayList<>();
                  n = 100 + r.nextInt(200);
                  var s = smms(r, n, 50, seq, v, 0.1, 0.1);
                  m.setHighestSequenceId(seq + n - 1);
                  e = batch(m, s, v, ck == 1);
                  break;
                }
            }
            if (kind == 10 && wrap != 1 && wrap != seed % 4) continue;
            ft.ts = 1700000001000L + seq * 11;
            String w = new String[] {"none", "both", "timestamp", "index"}[wrap];
            if (wrap == 1) e = withBroker(e, both, n);
            else if (wrap == 2) e = withBroker(e, ts, n);
            else if (wrap == 3) e = withBroker(e, io, n);
            out.add(e);
            Map<String, Object> d =
                J.m(
                    "i",
                    out.size() - 1,
                    "case",
                    k + "/" + c + "/broker-" + w + (ck == 1 ? "/crc32c" : "/nocrc"));
            d.putAll(Dec.entry(e));
            j.println(J.s(d));
          }
    // adversarial: broken checksum, truncated, zero-size broker metadata
    MessageMetadata m = base(r, seq + 1);
    byte[] e = plain(m, payload(r, 40), true);
    e[e.length - 1] ^= 1;
    add(out, j, "corrupt-payload-crc", e);
    e = withBroker(plain(base(r, seq + 2), payload(r, 40), true), new LinkedHashSet<>(), -1);
    add(out, j, "empty-broker-metadata", e);
    j.close();
    Dec.writeStream(dir + "/entries.bin", out);
    System.out.println("entries " + out.size());
  }

  static void add(List<byte[]> out, PrintWriter j, String name, byte[] e) {
    out.add(e);
    Map<String, Object> d = J.m("i", out.size() - 1, "case", name);
    d.putAll(Dec.entry(e));
    j.println(J.s(d));
  }

  /** topic for the compaction: RawMessage.serialize stream of original entries */
  static void topic(String dir, long seed, int n, int run) throws Exception {
    Random r = new Random(seed * 31 + run);
    List<byte[]> out = new ArrayList<>();
    AppendIndexMetadataInterceptor ix = new AppendIndexMetadataInterceptor();
    FixedTs ft = new FixedTs();
    Set<BrokerEntryMetadataInterceptor> both = new LinkedHashSet<>(List.of(ft, ix));
    long seq = 0;
    long ledger = 100 + run * 10, entry = 0;
    int keys = run == 3 ? 3 : 40;
    for (int i = 0; i < n; i++) {
      MessageMetadata m = base(r, seq);
      CompressionType c = CT[r.nextInt(CT.length)];
      if (c != CompressionType.NONE) m.setCompression(c);
      byte[] e;
      int cnt = 1;
      int k = r.nextInt(20);
      boolean last = i == n - 1;
      if (last) { // last entry: a batch of which only a middle message survives
        cnt = 4;
        List<byte[]> v = List.of("v0".getBytes(), "v1".getBytes(), "v0".getBytes(), new byte[0]);
        List<SingleMessageMetadata> s = new ArrayList<>();
        for (int q = 0; q < 4; q++) {
          SingleMessageMetadata x =
              new SingleMessageMetadata()
                  .setPartitionKey(q < 2 ? "K0" : "K1")
                  .setSequenceId(seq + q);
          if (q == 3) x.setNullValue(true);
          s.add(x);
        }
        m.clearCompression();
        if (run % 2 == 0) m.setCompression(CompressionType.LZ4);
        e = batch(m, s, v, true);
      } else if (k < 4) {
        m.setPartitionKey("k" + r.nextInt(keys));
        boolean nul = r.nextInt(5) == 0;
        if (nul) m.setNullValue(true);
        e = plain(m, nul ? new byte[0] : payload(r, 1 + r.nextInt(80)), true);
      } else if (k == 4) {
        e = plain(m, payload(r, 30), true);
      } else if (k == 5) {
        m.setMarkerType(MarkerType.TXN_COMMIT.getValue());
        m.clearCompression();
        e = plain(m, new byte[0], true);
      } else if (k == 6 && run != 1) {
        m.addEncryptionKey().setKey("kk").setValue(payload(r, 16));
        m.setEncryptionParam(payload(r, 12))
            .setNumMessagesInBatch(cnt = 3)
            .setUncompressedSize(300);
        if (r.nextBoolean()) m.setPartitionKey("k" + r.nextInt(keys));
        e = plain(m, payload(r, 200), true);
      } else {
        List<byte[]> v = new ArrayList<>();
        cnt = 1 + r.nextInt(15);
        var s = smms(r, cnt, keys, seq, v, 0.15, 0.1);
        e = batch(m, s, v, true);
      }
      ft.ts = 1700000001000L + seq * 11;
      if (run != 2) e = withBroker(e, both, cnt);
      seq += cnt;
      RawMessage rm =
          new RawMessageImpl(
              new MessageIdData()
                  .setLedgerId(ledger)
                  .setEntryId(entry)
                  .setPartition(-1)
                  .setBatchIndex(-1),
              Unpooled.wrappedBuffer(e));
      out.add(bytes(rm.serialize()));
      entry++;
      if (r.nextInt(25) == 0) {
        ledger += 1 + r.nextInt(3);
        entry = 0;
      }
    }
    Dec.writeStream(dir + "/topic" + run + ".in.bin", out);
  }

  public static void main(String[] a) throws Exception {
    String dir = a[0];
    long seed = Long.parseLong(a[1]);
    new File(dir).mkdirs();
    entries(dir, seed);
    for (int run = 0; run < 5; run++) topic(dir, seed, run == 3 ? 8 : 60, run);
  }
}
