import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.*;

/** Just enough JSON to write: an object that keeps its order, as text in ASCII. */
class Json extends LinkedHashMap<String, Object> {
  /** Keys and values longer than this are given as size and SHA-256. */
  static final int LONGEST_VALUE = 4096;

  Json with(String key, Object value) {
    put(key, value);
    return this;
  }

  /** {@code key} in base64, or {@code key_size} and {@code key_sha256} where it is long. */
  Json withBytes(String key, ByteBuffer buffer) {
    byte[] bytes = null;
    if (buffer != null) buffer.duplicate().get(bytes = new byte[buffer.remaining()]);
    if (bytes == null) return with(key, null);
    if (bytes.length > LONGEST_VALUE)
      return with(key + "_size", bytes.length).with(key + "_sha256", sha256(bytes));
    return with(key, base64(bytes));
  }

  @Override
  public String toString() {
    return text(this);
  }

  static String base64(byte[] bytes) {
    return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
  }

  static String sha256(byte[] bytes) {
    try {
      StringBuilder hex = new StringBuilder();
      for (byte b : MessageDigest.getInstance("SHA-256").digest(bytes))
        hex.append(String.format("%02x", b));
      return hex.toString();
    } catch (java.security.NoSuchAlgorithmException e) {
      throw new IllegalStateException(e);
    }
  }

  static String text(Object value) {
    if (value == null || value instanceof Number || value instanceof Boolean) return "" + value;
    if (value instanceof Map) {
      StringJoiner fields = new StringJoiner(",", "{", "}");
      for (Map.Entry<?, ?> e : ((Map<?, ?>) value).entrySet())
        fields.add(quoted("" + e.getKey()) + ":" + text(e.getValue()));
      return fields.toString();
    }
    if (value instanceof Iterable) {
      StringJoiner items = new StringJoiner(",", "[", "]");
      for (Object item : (Iterable<?>) value) items.add(text(item));
      return items.toString();
    }
    return quoted(value.toString());
  }

  private static String quoted(String s) {
    StringBuilder b = new StringBuilder("\"");
    for (char c : s.toCharArray()) {
      if (c == '"' || c == '\\') b.append('\\').append(c);
      else if (c < 32 || c > 126) b.append(String.format("\\u%04x", (int) c));
      else b.append(c);
    }
    return b.append('"').toString();
  }

  static PrintStream to(OutputStream out) {
    return new PrintStream(new BufferedOutputStream(out, 1 << 16), false, StandardCharsets.UTF_8);
  }

  static PrintStream to(File file) throws IOException {
    return to(new FileOutputStream(file));
  }
}
