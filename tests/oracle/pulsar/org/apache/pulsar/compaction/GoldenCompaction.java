package org.apache.pulsar.compaction;

import golden.*;
import io.netty.buffer.*;
import java.io.*;
import java.lang.reflect.*;
import java.util.*;
import java.util.concurrent.*;
import org.apache.bookkeeper.client.*;
import org.apache.bookkeeper.mledger.impl.EntryImpl;
import org.apache.commons.lang3.tuple.ImmutableTriple;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.*;
import org.apache.pulsar.common.api.proto.*;
import org.apache.pulsar.common.protocol.Commands;
import org.mockito.Mockito;

/**
 * Runs the real two phase compactor (doCompaction) over a stream of RawMessage entries, with a fake
 * reader and ledger.
 */
public class GoldenCompaction {
  static byte[] by(ByteBuf b) {
    byte[] x = new byte[b.readableBytes()];
    b.getBytes(b.readerIndex(), x);
    return x;
  }

  static RawMessage raw(byte[] b) {
    return RawMessageImpl.deserializeFrom(Unpooled.wrappedBuffer(b));
  }

  static class Reader implements RawReader {
    List<byte[]> l;
    int p = 0;
    Map<String, Long> ack;
    MessageId ackId;

    Reader(List<byte[]> l) {
      this.l = l;
    }

    public String getTopic() {
      return "persistent://public/default/t";
    }

    public CompletableFuture<Boolean> hasMessageAvailableAsync() {
      return CompletableFuture.completedFuture(p < l.size());
    }

    public CompletableFuture<Void> seekAsync(MessageId id) {
      p = 0;
      while (p < l.size() && raw(l.get(p)).getMessageId().compareTo(id) < 0) p++;
      return CompletableFuture.completedFuture(null);
    }

    public CompletableFuture<RawMessage> readNextAsync() {
      if (p >= l.size()) return new CompletableFuture<>();
      return CompletableFuture.completedFuture(raw(l.get(p++)));
    }

    public CompletableFuture<Void> acknowledgeCumulativeAsync(MessageId id, Map<String, Long> pr) {
      ack = pr;
      ackId = id;
      return CompletableFuture.completedFuture(null);
    }

    public CompletableFuture<MessageId> getLastMessageIdAsync() {
      return CompletableFuture.completedFuture(raw(l.get(l.size() - 1)).getMessageId());
    }

    public CompletableFuture<Void> closeAsync() {
      return CompletableFuture.completedFuture(null);
    }
  }

  static List<Object> ids(List<ImmutableTriple<MessageId, String, Integer>> x) {
    List<Object> o = new ArrayList<>();
    for (var t : x) {
      BatchMessageIdImpl b = (BatchMessageIdImpl) t.getLeft();
      o.add(
          Arrays.asList(
              b.getLedgerId(), b.getEntryId(), b.getBatchIndex(), t.getMiddle(), t.getRight()));
    }
    return o;
  }

  static Object extract(byte[] e) {
    RawMessage m = raw(e);
    MessageMetadata md = Commands.parseMessageMetadata(m.getHeadersAndPayload());
    if (!RawBatchConverter.isReadableBatch(md)) return null;
    try {
      return ids(RawBatchConverter.extractIdsAndKeysAndSize(m));
    } catch (Throwable t) {
      return "error: " + t;
    }
  }

  /**
   * Real PulsarTopicCompactionService.getLastMessagePosition (PIP-429), last entry = e. null on
   * releases without it
   */
  static Object lastPos(byte[] e) throws Exception {
    Method g;
    try {
      g = PulsarTopicCompactionService.class.getMethod("getLastMessagePosition");
    } catch (NoSuchMethodException x) {
      return null;
    }
    RawMessage m = raw(e);
    CompactedTopicImpl ct = Mockito.mock(CompactedTopicImpl.class);
    ByteBuf h = PooledByteBufAllocator.DEFAULT.directBuffer();
    h.writeBytes(m.getHeadersAndPayload());
    Mockito.when(ct.readLastEntryOfCompactedLedger())
        .thenReturn(
            CompletableFuture.completedFuture(
                EntryImpl.create(
                    m.getMessageIdData().getLedgerId(), m.getMessageIdData().getEntryId(), h)));
    PulsarTopicCompactionService s = new PulsarTopicCompactionService("t", null, () -> null);
    Field f = PulsarTopicCompactionService.class.getDeclaredField("compactedTopic");
    f.setAccessible(true);
    f.set(s, ct);
    try {
      Object p = ((CompletableFuture<?>) g.invoke(s)).get();
      List<Object> r = new ArrayList<>();
      for (RecordComponent c : p.getClass().getRecordComponents()) {
        Method a = c.getAccessor();
        a.setAccessible(true);
        r.add(a.invoke(p));
      }
      return r;
    } catch (InvocationTargetException | ExecutionException x) {
      return "error: " + x.getCause();
    }
  }

  /**
   * what getLastMessagePosition is meant to return: (ledger, entry, batchIndex, publishTime); null
   * = no live message
   */
  static Object intended(byte[] e) {
    try {
      RawMessage m = raw(e);
      MessageMetadata md = Commands.parseMessageMetadata(m.getHeadersAndPayload());
      long L = m.getMessageIdData().getLedgerId(), E = m.getMessageIdData().getEntryId();
      int n = md.getNumMessagesInBatch();
      int bi;
      if (n <= 1) bi = -1;
      else if (md.getEncryptionKeysCount() > 0) bi = n - 1;
      else {
        var x = RawBatchConverter.extractIdsAndKeysAndSize(m);
        if (x.isEmpty()) return null;
        bi = ((BatchMessageIdImpl) x.get(x.size() - 1).getLeft()).getBatchIndex();
      }
      return Arrays.asList(L, E, bi, md.getPublishTime());
    } catch (Throwable t) {
      return "error: " + t;
    }
  }

  static void describe(PrintWriter j, List<byte[]> l) throws Exception {
    for (int i = 0; i < l.size(); i++) {
      RawMessage m = raw(l.get(i));
      Map<String, Object> d = J.m("i", i, "id", Dec.mid(m.getMessageIdData()));
      Map<String, Object> e = Dec.entry(by(m.getHeadersAndPayload()));
      e.remove("size");
      d.putAll(e);
      d.put("extract", extract(l.get(i)));
      d.put("last_position_if_last", lastPos(l.get(i)));
      d.put("last_position_intended", intended(l.get(i)));
      j.println(J.s(d));
    }
  }

  /** The real compactor, once, over a fake reader into a fake ledger; and the CPU time of its thread. */
  static class Run {
    final Long id;
    final double cpuSeconds;

    Run(boolean retain, Reader rd, List<byte[]> out, Map<String, byte[]> lmeta) throws Exception {
      ServiceConfiguration conf = new ServiceConfiguration();
      conf.setTopicCompactionRetainNullKey(retain);
      var quick = Mockito.withSettings().stubOnly();
      BookKeeper bk = Mockito.mock(BookKeeper.class, quick);
      LedgerHandle lh = Mockito.mock(LedgerHandle.class, quick);
      Mockito.when(lh.getId()).thenReturn(4242L);
      Mockito.doAnswer(
              iv -> {
                lmeta.putAll((Map<String, byte[]>) iv.getArgument(7));
                ((AsyncCallback.CreateCallback) iv.getArgument(5)).createComplete(0, lh, null);
                return null;
              })
          .when(bk)
          .asyncCreateLedger(
              Mockito.anyInt(),
              Mockito.anyInt(),
              Mockito.anyInt(),
              Mockito.any(),
              Mockito.any(),
              Mockito.any(),
              Mockito.any(),
              Mockito.any());
      Mockito.doAnswer(
              iv -> {
                out.add(by(iv.getArgument(0)));
                ((AsyncCallback.AddCallback) iv.getArgument(1))
                    .addComplete(0, lh, out.size() - 1, null);
                return null;
              })
          .when(lh)
          .asyncAddEntry(Mockito.any(ByteBuf.class), Mockito.any(), Mockito.any());
      Mockito.doAnswer(
              iv -> {
                ((AsyncCallback.CloseCallback) iv.getArgument(0)).closeComplete(0, lh, null);
                return null;
              })
          .when(lh)
          .asyncClose(Mockito.any(), Mockito.any());
      ScheduledExecutorService ex = Executors.newSingleThreadScheduledExecutor();
      Callable<Long> clock =
          () -> java.lang.management.ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
      long begin = ex.submit(clock).get();
      PublishingOrderCompactor c = new PublishingOrderCompactor(conf, null, bk, ex);
      id = c.doCompaction(rd, bk).get(300, TimeUnit.SECONDS);
      cpuSeconds = (ex.submit(clock).get() - begin) / 1e9;
      ex.shutdownNow();
    }
  }

  /** What the real compactor makes of the stream `file`, into the stream `out`; a line a run with its time. */
  public static void compact(String file, String out, boolean retain, int runs, PrintStream o)
      throws Exception {
    List<byte[]> in = Dec.readStream(file), made = null;
    for (int run = 0; run < runs; run++) {
      made = new ArrayList<>();
      Run done = new Run(retain, new Reader(in), made, new TreeMap<>());
      o.println(J.s(J.m("entries_in", in.size(), "entries_out", made.size(), "cpu_s", done.cpuSeconds)));
    }
    Dec.writeStream(out, made);
    o.flush();
    System.exit(0);
  }

  public static void main(String[] a) throws Exception {
    String dir = a[0], tag = a[1];
    if (tag.equals("redescribe")) {
      for (int run = 0; run < 5; run++)
        for (String f : new String[] {"retain", "drop"}) {
          String b = dir + "/topic" + run + ".old." + f;
          String first;
          try (BufferedReader br = new BufferedReader(new FileReader(b + ".jsonl"))) {
            first = br.readLine();
          }
          PrintWriter j = new PrintWriter(b + ".jsonl", "UTF-8");
          j.println(first);
          describe(j, Dec.readStream(b + ".bin"));
          j.close();
        }
      System.exit(0);
    }
    if (a.length > 2 && a[2].equals("describe")) {
      PrintWriter j = new PrintWriter(new OutputStreamWriter(System.out, "UTF-8"));
      describe(j, Dec.readStream(dir));
      j.flush();
      return;
    }
    for (int run = 0; run < 5; run++)
      for (boolean retain : new boolean[] {true, false}) {
        List<byte[]> in = Dec.readStream(dir + "/topic" + run + ".in.bin");
        if (retain && tag.equals("new")) {
          PrintWriter j = new PrintWriter(dir + "/topic" + run + ".in.jsonl", "UTF-8");
          describe(j, in);
          j.close();
        }
        List<byte[]> out = new ArrayList<>();
        Map<String, byte[]> lmeta = new TreeMap<>();
        Reader rd = new Reader(in);
        Run made = new Run(retain, rd, out, lmeta);
        Long id = made.id;
        String base = dir + "/topic" + run + "." + tag + (retain ? ".retain" : ".drop");
        Dec.writeStream(base + ".bin", out);
        PrintWriter j = new PrintWriter(base + ".jsonl", "UTF-8");
        j.println(
            J.s(
                J.m(
                    "summary",
                    true,
                    "retain_null_key",
                    retain,
                    "entries_in",
                    in.size(),
                    "entries_out",
                    out.size(),
                    "ledger",
                    id,
                    "ack",
                    String.valueOf(rd.ackId),
                    "ack_properties",
                    rd.ack,
                    "ledger_metadata",
                    lmeta)));
        describe(j, out);
        j.close();
        System.out.println(base + " " + in.size() + " -> " + out.size());
      }
    System.exit(0);
  }
}
