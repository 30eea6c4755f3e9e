import java.io.*;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.*;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.storage.internals.log.*;

/**
 * Runs programs on the real log: {@code Program DIR FILE [DIR FILE ...]}
 *
 * <p>DIR is the partition directory that a program begins with, made where it is missing, and is left as the program
 * leaves it. FILE has a step a line; each is answered by a line of JSON, with the log end offset and the last stable
 * offset after it:
 *
 * <pre>
 *   append client|coord BATCHES             bytes in base64; first and last offset, or what refused it
 *   hw OFFSET                               the high watermark, 0 at first
 *   roll
 *   truncate OFFSET                         and the high watermark is the end
 *   aborted OFFSET                          what a reader of committed data is told who reads a segment from there
 *   reopen MS                               closes, sets the clock, opens as after a clean stop; likewise
 * </pre>
 */
class Program {
  private static final long BEGINNING_MS = 1_700_000_000_000L;

  public static void main(String[] args) throws Exception {
    for (int i = 0; i + 1 < args.length; i += 2) {
      File dir = new File(args[i]);
      System.out.println(new Json().with("dir", args[i]));
      Program program = new Program(dir);
      for (String line : Files.readAllLines(new File(args[i + 1]).toPath()))
        System.out.println(program.answer(line.split(" ")));
      program.log.close();
      for (File f : PartitionFiles.withSuffix(dir, ".deleted")) f.delete();
    }
  }

  private final File dir;
  private Shim log;

  private Program(File dir) throws Exception {
    this.dir = dir;
    open(BEGINNING_MS);
  }

  private void open(long nowMs) throws Exception {
    // Without index entries a read reaches to the end of its segment.
    Map<String, String> config = Map.of("index.interval.bytes", "1000000000");
    log = new Shim(dir, config, 0L, 0L, true, new FixedTime(nowMs));
  }

  private Json answer(String[] words) throws Exception {
    Json answer = new Json();
    switch (words[0]) {
      case "append" -> append(words, answer);
      case "hw" -> log.hw(Long.parseLong(words[1]));
      case "roll" -> log.roll();
      case "truncate" -> {
        log.log.truncateTo(Long.parseLong(words[1]));
        log.hw(log.end());
      }
      case "aborted" -> answer.with("aborted", aborted(Long.parseLong(words[1])));
      case "reopen" -> {
        log.close();
        open(Long.parseLong(words[1]));
        log.hw(log.end());
      }
      default -> throw new IllegalArgumentException(words[0]);
    }
    return answer.with("end", log.end()).with("stable", log.lso());
  }

  private void append(String[] words, Json answer) throws Exception {
    MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Base64.getDecoder().decode(words[2])));
    try {
      LogAppendInfo info = log.append(records, 0, words[1]);
      answer.with("first", info.firstOffset()).with("last", info.lastOffset());
    } catch (org.apache.kafka.common.errors.ApiException e) {
      answer.with("refused", e.getClass().getSimpleName()).with("why", e.getMessage());
    }
  }

  private List<Object> aborted(long offset) throws Exception {
    List<Object> found = new ArrayList<>();
    for (var t : log.readCommitted(offset, Integer.MAX_VALUE).abortedTransactions.get())
      found.add(List.of(t.producerId(), t.firstOffset()));
    return found;
  }
}
