import java.io.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.*;

/**
 * ConvUp4 OUT PARTITION_DIR... : the real MemoryRecords.filterTo of 4.1.1 with a filter that keeps
 * everything = what the 4.x cleaner does to v0/v1 batches at rest (offsets kept).
 */
public class ConvUp4 {
  public static void main(String[] a) throws Exception {
    File out = new File(a[0]);
    int n = 0, err = 0;
    for (int i = 1; i < a.length; i++) {
      File d = new File(a[i]).getAbsoluteFile();
      int k = 0;
      for (File f : PartitionFiles.logs(d)) {
        if (k++ >= 2) break;
        byte[] b = Files.readAllBytes(f.toPath());
        if (b.length == 0 || b.length > 250000) continue;
        File o = new File(out, d.getName().replaceAll("-0$", "") + "-seg" + k);
        o.mkdirs();
        Files.write(new File(o, "input.log").toPath(), b);
        Map<String, Object> m =
            new Json()
                .with("kind", "up-at-rest")
                .with("kafka", Shim.VERSION)
                .with("api", "MemoryRecords.filterTo, retain all")
                .with("source", d.getName() + "/" + f.getName())
                .with("filter_current_time", 1800000000000L)
                .with("filter_delete_retention_ms", 60000)
                .with(
                    "note",
                    "a batch that holds a record with null value gets the delete horizon flag"
                        + " (current time + retention)");
        try {
          ByteBuffer dst = ByteBuffer.allocate(b.length * 4 + 100000);
          MemoryRecords.FilterResult r =
              MemoryRecords.readableRecords(ByteBuffer.wrap(b))
                  .filterTo(
                      new MemoryRecords.RecordFilter(1800000000000L, 60000L) {
                        protected BatchRetentionResult checkBatchRetention(RecordBatch x) {
                          return new BatchRetentionResult(BatchRetention.DELETE_EMPTY, false);
                        }

                        protected boolean shouldRetainRecord(RecordBatch x, Record y) {
                          return true;
                        }
                      },
                      dst,
                      BufferSupplier.NO_CACHING);
          ByteBuffer g = r.outputBuffer();
          g.flip();
          byte[] z = new byte[g.remaining()];
          g.get(z);
          Files.write(new File(o, "output.log").toPath(), z);
          m.put("messages_read", r.messagesRead());
          m.put("messages_retained", r.messagesRetained());
          m.put("max_timestamp", r.maxTimestamp());
          PrintStream p = Json.to(new File(o, "output.jsonl"));
          Decode.records(new File(o, "output.log"), p);
          p.close();
          p = Json.to(new File(o, "output-batches.jsonl"));
          Decode.batches(new File(o, "output.log"), p);
          p.close();
          n++;
        } catch (Throwable t) {
          m.put("error", t.toString());
          err++;
        }
        Files.write(new File(o, "meta.json").toPath(), (Json.text(m) + "\n").getBytes());
      }
    }
    System.out.println("at-rest up-conversions " + n + ", errors " + err);
    System.exit(0);
  }
}
