import java.io.*;
import java.nio.channels.FileLock;

/**
 * Locks a file as a broker locks its log dir (FileChannel.tryLock): {@code Lock hold|try FILE}
 *
 * <p>Prints "locked" or "refused". {@code hold} keeps the lock until its standard input ends.
 */
public class Lock {
  public static void main(String[] args) throws IOException {
    try (RandomAccessFile file = new RandomAccessFile(args[1], "rw");
        FileLock lock = file.getChannel().tryLock()) {
      System.out.println(lock == null ? "refused" : "locked");
      System.out.flush();
      if (lock != null && args[0].equals("hold")) System.in.readAllBytes();
    }
  }
}
