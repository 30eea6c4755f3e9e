import golden.*;
import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;

/**
 * entries FILE | compacted FILE | compact FILE OUT RETAIN RUNS | bucket FILE | bitmaps FILE | recover NOW TICK STRICT s_e=FILE...
 * | replay OPS OUTDIR. Streams: u32 big endian length + bytes, repeated. JSON lines to stdout.
 */
public class PulsarOracle {
  public static void main(String[] a) throws Exception {
    PrintStream o = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, "UTF-8");
    switch (a[0]) {
      case "entries":
        {
          int i = 0;
          for (byte[] b : Dec.readStream(a[1])) {
            Map<String, Object> d = J.m("i", i++);
            d.putAll(Dec.entry(b));
            o.println(J.s(d));
          }
          break;
        }
      case "compacted":
        org.apache.pulsar.compaction.GoldenCompaction.main(new String[] {a[1], "x", "describe"});
        break;
      case "compact":
        org.apache.pulsar.compaction.GoldenCompaction.compact(
            a[1], a[2], Boolean.parseBoolean(a[3]), Integer.parseInt(a[4]), o);
        break;
      case "bucket":
        org.apache.pulsar.broker.delayed.bucket.BucketOracle.bucket(a[1], o);
        break;
      case "bitmaps":
        for (byte[] b : Dec.readStream(a[1])) {
          try {
            org.roaringbitmap.RoaringBitmap r = new org.roaringbitmap.RoaringBitmap();
            r.deserialize(ByteBuffer.wrap(b));
            o.println(J.s(r.stream().boxed().toList()));
          } catch (Exception e) {
            o.println(J.s(J.m("error", e.toString())));
          }
        }
        break;
      case "recover":
        org.apache.pulsar.broker.delayed.bucket.BucketOracle.recover(
            Arrays.copyOfRange(a, 1, a.length), o);
        break;
      case "replay":
        org.apache.pulsar.broker.delayed.bucket.BucketOracle.replay(a[1], a[2]);
        break;
      case "roaring-edge":
        {
          Random r = new Random(Long.parseLong(a[2]));
          List<byte[]> l = new ArrayList<>();
          for (int c = 0; c < (a.length > 3 ? Integer.parseInt(a[3]) : 90); c++) {
            org.roaringbitmap.RoaringBitmap b = new org.roaringbitmap.RoaringBitmap();
            int kind = c % 8;
            int span =
                new int[] {10, 100, 5000, 70000, 200000, 1000000, 65536, 131072}[r.nextInt(8)];
            List<Integer> v = new ArrayList<>();
            if (c < 20) {
              for (int i = 0; i < c; i++) v.add(i * (c % 3 + 1));
            } else
              switch (kind) {
                case 0:
                  for (int i = 0; i < r.nextInt(300); i++) v.add(r.nextInt(span));
                  break;
                case 1:
                  {
                    int s = r.nextInt(span);
                    for (int i = 0; i < 1 + r.nextInt(3000); i++) v.add(s + i);
                    break;
                  }
                case 2:
                  for (int i = 0, p = r.nextInt(9); i < 1 + r.nextInt(500); i++) {
                    int len = 1 + r.nextInt(3);
                    for (int q = 0; q < len; q++) v.add(p + q);
                    p += len + 1 + r.nextInt(3);
                  }
                  break;
                case 3:
                  for (int i = 0; i < 4090 + r.nextInt(12); i++) v.add(i * 2);
                  break;
                case 4:
                  for (int i = 0; i < 6000 + r.nextInt(3000); i++) v.add(r.nextInt(65536 * 2));
                  break;
                case 5:
                  for (int i = 0; i < 2 + r.nextInt(40); i++) {
                    int p = i * 20;
                    v.add(p);
                    v.add(p + 1);
                  }
                  break;
                case 6:
                  for (int i = 0; i < 2 + r.nextInt(40); i++) {
                    int p = i * 20;
                    for (int q = 0; q < 1 + r.nextInt(4); q++) v.add(p + q);
                  }
                  break;
                default:
                  for (int i = 0; i < 2048 + r.nextInt(3); i++) {
                    v.add(i * 32);
                    v.add(i * 32 + 1);
                  }
              }
            Collections.shuffle(v, r);
            for (int x : v) b.add((long) x, (long) x + 1);
            b.runOptimize();
            ByteBuffer bb = ByteBuffer.allocate(b.serializedSizeInBytes());
            b.serialize(bb);
            l.add(bb.array());
          }
          Dec.writeStream(a[1], l);
          break;
        }
      default:
        System.err.println("unknown command");
        System.exit(2);
    }
    o.flush();
    System.exit(0);
  }
}
