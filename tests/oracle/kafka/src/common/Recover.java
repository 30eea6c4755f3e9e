import java.io.File;
import java.nio.file.*;
import java.util.*;

/**
 * Recover FILE: opens partition directories as after a kill, and leaves them as the real loader does, the log closed again. A
 * line of FILE is one directory: {@code DIR LOG_START_OFFSET RECOVERY_POINT NOW_MS [KEY=VALUE...]}, with the checkpoints of its
 * log dir and the configuration of its topic. A line of output each: log start and end offset, or what failed. For every
 * version, 2.8.2 too.
 */
public class Recover {
  public static void main(String[] args) throws Exception {
    for (String line : Files.readAllLines(Paths.get(args[0]))) {
      String[] words = line.split(" ");
      File dir = new File(words[0]);
      Map<String, String> config = new HashMap<>();
      for (String pair : Arrays.asList(words).subList(4, words.length))
        config.put(pair.split("=", 2)[0], pair.split("=", 2)[1]);
      String answer;
      try {
        Shim log =
            new Shim(
                dir,
                config,
                Long.parseLong(words[1]),
                Long.parseLong(words[2]),
                false,
                new FixedTime(Long.parseLong(words[3])));
        answer = "\"start\": " + log.start() + ", \"end\": " + log.end();
        log.flush();
        log.close();
      } catch (Throwable e) { // errors of a map, too
        answer = "\"failed\": \"" + e.toString().replace("\\", "\\\\").replace("\"", "'").replace("\n", " ") + "\"";
      }
      for (File file : dir.listFiles()) if (file.getName().endsWith(".deleted")) file.delete();
      System.out.println("{" + answer + "}");
    }
    System.out.flush();
    Runtime.getRuntime().halt(0); // threads of schedulers
  }
}
