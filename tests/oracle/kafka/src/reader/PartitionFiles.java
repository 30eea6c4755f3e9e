import java.io.*;
import java.nio.file.*;
import java.util.*;

/**
 * The files of a partition directory: listed, copied, compared; and the configuration beside it.
 */
class PartitionFiles {
  /** The .log files of a directory in order of base offset, or the one file that was given. */
  static List<File> logs(File dirOrFile) {
    if (dirOrFile.isFile()) return List.of(dirOrFile);
    return withSuffix(dirOrFile, ".log");
  }

  static List<File> withSuffix(File dir, String suffix) {
    File[] files = dir.listFiles((d, name) -> name.endsWith(suffix));
    Arrays.sort(files, Comparator.comparing(File::getName));
    return Arrays.asList(files);
  }

  static long baseOffset(File log) {
    return Long.parseLong(log.getName().substring(0, 20));
  }

  /** The file beside {@code log} of the same base offset with another suffix. */
  static File sibling(File log, String suffix) {
    String path = log.getPath();
    return new File(path.substring(0, path.length() - ".log".length()) + suffix);
  }

  /** A copy in a temporary directory of its own: real classes change what they open. */
  static File copy(File dir) throws IOException {
    File copy = new File(Files.createTempDirectory("oracle").toFile(), dir.getName());
    copyInto(dir, copy, StandardCopyOption.COPY_ATTRIBUTES);
    return copy;
  }

  static void copyInto(File dir, File target, CopyOption... options) throws IOException {
    target.mkdirs();
    for (File f : dir.listFiles())
      if (f.isFile()) Files.copy(f.toPath(), new File(target, f.getName()).toPath(), options);
  }

  static void delete(File f) {
    if (f.isDirectory()) for (File inside : f.listFiles()) delete(inside);
    f.delete();
  }

  /** File name to "size:first half of SHA-256", to see what a start changed. */
  static SortedMap<String, String> fingerprints(File dir) throws IOException {
    SortedMap<String, String> prints = new TreeMap<>();
    for (File f : dir.listFiles())
      if (f.isFile()) {
        String hash = Json.sha256(Files.readAllBytes(f.toPath()));
        prints.put(f.getName(), f.length() + ":" + hash.substring(0, 16));
      }
    return prints;
  }

  /**
   * Topic configuration: "config" of case.json beside the directory, then each system property
   * {@code config.KEY}. Without either, Kafka's defaults.
   */
  static Map<String, String> config(File dir) {
    Map<String, String> config = new TreeMap<>();
    File described = new File(dir.getParentFile(), "case.json");
    if (described.exists())
      try {
        String text = Files.readString(described.toPath());
        text = text.substring(text.indexOf("\"config\":{") + "\"config\":{".length());
        for (String pair : text.substring(0, text.indexOf('}')).replace("\"", "").split(",")) {
          String[] kv = pair.split(":", 2);
          config.put(kv[0].trim(), kv[1].trim());
        }
      } catch (IOException | RuntimeException e) {
        throw new IllegalArgumentException(described + " has no flat \"config\":{...}", e);
      }
    config.remove("message.format.version"); // of the writer; 4.x has none
    for (String name : System.getProperties().stringPropertyNames())
      if (name.startsWith("config."))
        config.put(name.substring("config.".length()), System.getProperty(name));
    return config;
  }
}
