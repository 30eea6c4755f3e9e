import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.record.*;

/**
 * Load DIR...: opens a copy of each partition directory as after a kill, so that the real log checks every batch, and
 * prints what it then holds. A line a directory: end offset, whether the loader left the .log files as they were, and the
 * records as [offset, timestamp, base64 of the value]. For every version, 2.8.2 too.
 */
public class Load {
  public static void main(String[] dirs) throws Exception {
    for (String dir : dirs) {
      Path top = Files.createTempDirectory("load");
      Path copy = Files.createDirectory(top.resolve(Paths.get(dir).getFileName()));
      for (File file : logs(Paths.get(dir))) Files.copy(file.toPath(), copy.resolve(file.getName()));
      Map<String, String> config = new HashMap<>();
      config.put("retention.ms", "-1");
      Shim shim = new Shim(copy.toFile(), config, 0, 0, false, new FixedTime(1_700_000_000_000L));
      long end = shim.end();
      shim.close();
      boolean unchanged = true;
      for (File file : logs(Paths.get(dir)))
        unchanged &=
            Arrays.equals(
                Files.readAllBytes(file.toPath()),
                Files.readAllBytes(copy.resolve(file.getName())));
      StringBuilder out = new StringBuilder();
      out.append("{\"end\": ").append(end).append(", \"unchanged\": ").append(unchanged);
      out.append(", \"records\": [");
      String comma = "";
      for (File file : logs(copy)) {
        try (FileRecords records = FileRecords.open(file, false)) {
          for (RecordBatch batch : records.batches()) {
            batch.ensureValid();
            for (org.apache.kafka.common.record.Record r : batch) {
              out.append(comma).append('[').append(r.offset()).append(", ").append(r.timestamp());
              out.append(", \"").append(base64(r.value())).append("\"]");
              comma = ", ";
            }
          }
        }
      }
      System.out.println(out.append("]}"));
    }
    System.out.flush();
    Runtime.getRuntime().halt(0); // threads of schedulers
  }

  static File[] logs(Path dir) {
    File[] files = dir.toFile().listFiles((d, name) -> name.endsWith(".log"));
    Arrays.sort(files);
    return files;
  }

  static String base64(ByteBuffer value) {
    byte[] bytes = new byte[value.remaining()];
    value.duplicate().get(bytes);
    return Base64.getEncoder().encodeToString(bytes);
  }
}
