package golden;

import java.util.*;

public class J {
  public static String s(Object o) {
    StringBuilder b = new StringBuilder();
    w(b, o);
    return b.toString();
  }

  static void w(StringBuilder b, Object o) {
    if (o == null) {
      b.append("null");
      return;
    }
    if (o instanceof Number || o instanceof Boolean) {
      b.append(o);
      return;
    }
    if (o instanceof byte[]) {
      b.append('"').append(HexFormat.of().formatHex((byte[]) o)).append('"');
      return;
    }
    if (o instanceof long[]) {
      b.append('[');
      boolean f = true;
      for (long x : (long[]) o) {
        if (!f) b.append(',');
        f = false;
        b.append(x);
      }
      b.append(']');
      return;
    }
    if (o instanceof Map) {
      b.append('{');
      boolean f = true;
      for (Map.Entry<?, ?> e : ((Map<?, ?>) o).entrySet()) {
        if (!f) b.append(',');
        f = false;
        w(b, String.valueOf(e.getKey()));
        b.append(':');
        w(b, e.getValue());
      }
      b.append('}');
      return;
    }
    if (o instanceof Collection) {
      b.append('[');
      boolean f = true;
      for (Object x : (Collection<?>) o) {
        if (!f) b.append(',');
        f = false;
        w(b, x);
      }
      b.append(']');
      return;
    }
    String s = o.toString();
    b.append('"');
    for (int i = 0; i < s.length(); i++) {
      char c = s.charAt(i);
      if (c == '"' || c == '\\') b.append('\\').append(c);
      else if (c < 0x20 || c > 0x7e) b.append(String.format("\\u%04x", (int) c));
      else b.append(c);
    }
    b.append('"');
  }

  public static LinkedHashMap<String, Object> m(Object... kv) {
    LinkedHashMap<String, Object> r = new LinkedHashMap<>();
    for (int i = 0; i < kv.length; i += 2) r.put((String) kv[i], kv[i + 1]);
    return r;
  }
}
