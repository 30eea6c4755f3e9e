import java.io.PrintStream;
import java.security.MessageDigest;
import java.util.Random;

/** What the clients of all versions share: the lines that tell a record, and synthetic values. */
public class Common {
    static final String[] WORDS = ("order payment shipped cancelled customer invoice amount currency région Zürich 東京 "
        + "warehouse pallet retry timeout status code latency bytes alpha beta gamma delta").split(" ");

    /** The first 8 hex digits of SHA-256; "-" for null. */
    static String hash(byte[] bytes) throws Exception {
        if (bytes == null) return "-";
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
        return String.format("%02x%02x%02x%02x", digest[0], digest[1], digest[2], digest[3]);
    }

    /** A record as a line: offset, timestamp and its type ("-" where the client knows none), key, value, headers. */
    static void line(PrintStream out, long offset, Object timestamp, Object type, byte[] key, byte[] value, String headers)
        throws Exception {
        out.println(offset + " " + (timestamp == null ? "-" : timestamp) + " " + (type == null ? "-" : type)
            + " " + hash(key) + " " + hash(value) + " " + headers);
    }

    static byte[] text(Random random, int size) throws Exception {
        StringBuilder b = new StringBuilder("{\"id\":" + random.nextInt(1000000));
        while (b.length() < size)
            b.append(",\"").append(word(random)).append("\":\"").append(word(random)).append(random.nextInt(100)).append('"');
        return b.append('}').toString().getBytes("UTF-8");
    }

    static String word(Random random) {
        return WORDS[random.nextInt(WORDS.length)];
    }
}
