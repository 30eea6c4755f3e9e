import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Takes and drops locks as org.apache.kafka.server.util.FileLock does, by command on standard input:
 *
 *   tryLock PATH    answers "locked" or "refused" (tryLock gave null)
 *   release         answers "released"
 *
 * Ends with its input; the locks go with the process. Run as `java HoldLock.java`.
 */
public class HoldLock {
    public static void main(String[] args) throws IOException {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        FileChannel channel = null;
        FileLock lock = null;
        System.out.println("ready");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", 2);
            if (words[0].equals("tryLock")) {
                channel = FileChannel.open(Path.of(words[1]),
                        StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE);
                lock = channel.tryLock();
                if (lock == null) {
                    channel.close();
                }
                System.out.println(lock == null ? "refused" : "locked");
            } else if (words[0].equals("release")) {
                lock.release();
                channel.close();
                System.out.println("released");
            } else {
                throw new IllegalArgumentException(line);
            }
        }
    }
}
