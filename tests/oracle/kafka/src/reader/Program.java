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
 *   append client|coord BATCHES [EPOCH]     bytes in base64; first and last offset, or what refused it
 *   follow BATCHES                          as from the leader, with the offsets and epochs that they have
 *   hw OFFSET                               the high watermark, 0 at first
 *   roll
 *   truncate OFFSET                         and the high watermark is the end
 *   aborted OFFSET                          what a reader of committed data is told who reads a segment from there
 *   reopen MS                               closes, sets the clock, opens as after a clean stop; likewise
 *   clock MS
 *   start OFFSET                            the log start offset goes up; segments below it go
 *   look                                    base offset and size of each segment
 * </pre>
 *
 * A first line {@code config MS START KEY=VALUE...} gives clock, log start offset and topic configuration; then the high
 * watermark is the log end offset after each step, as in a log without followers, and the log start offset is answered too.
 */
class Program {
  private static final long BEGINNING_MS = 1_700_000_000_000L;

  public static void main(String[] args) throws Exception {
    for (int i = 0; i + 1 < args.length; i += 2) {
      File dir = new File(args[i]);
      System.out.println(new Json().with("dir", args[i]));
      List<String> lines = Files.readAllLines(new File(args[i + 1]).toPath());
      boolean configured = !lines.isEmpty() && lines.get(0).startsWith("config ");
      Program program = configured ? new Program(dir, lines.get(0).split(" ")) : new Program(dir);
      for (String line : configured ? lines.subList(1, lines.size()) : lines)
        System.out.println(program.answer(line.split(" ")));
      program.log.close();
      for (File f : PartitionFiles.withSuffix(dir, ".deleted")) f.delete();
    }
  }

  private final File dir;
  // Without index entries a read reaches to the end of its segment.
  private final Map<String, String> config = new HashMap<>(Map.of("index.interval.bytes", "1000000000"));
  private final boolean hasFollowers;
  private FixedTime time;
  private Shim log;

  private Program(File dir) throws Exception {
    this.dir = dir;
    hasFollowers = true;
    open(BEGINNING_MS, 0);
  }

  private Program(File dir, String[] words) throws Exception {
    this.dir = dir;
    hasFollowers = false;
    for (String pair : Arrays.asList(words).subList(3, words.length))
      config.put(pair.split("=", 2)[0], pair.split("=", 2)[1]);
    open(Long.parseLong(words[1]), Long.parseLong(words[2]));
    log.hw(log.end());
  }

  private void open(long nowMs, long logStartOffset) throws Exception {
    time = new FixedTime(nowMs);
    log = new Shim(dir, config, logStartOffset, logStartOffset, true, time);
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
        long start = log.start();
        log.close();
        open(Long.parseLong(words[1]), start);
        log.hw(log.end());
      }
      case "clock" -> time.now = Long.parseLong(words[1]);
      case "follow" -> follow(words, answer);
      case "start" -> {
        log.log.maybeIncrementLogStartOffset(
            Long.parseLong(words[1]), LogStartOffsetIncrementReason.ClientRecordDeletion);
        log.deleteOld();
      }
      case "look" -> {
        List<Object> segments = new ArrayList<>();
        for (LogSegment s : log.segments()) segments.add(List.of(s.baseOffset(), s.size()));
        answer.with("segments", segments);
      }
      default -> throw new IllegalArgumentException(words[0]);
    }
    if (!hasFollowers) {
      log.hw(log.end());
      answer.with("start", log.start());
    }
    return answer.with("end", log.end()).with("stable", log.lso());
  }

  private void append(String[] words, Json answer) throws Exception {
    int epoch = words.length > 3 ? Integer.parseInt(words[3]) : 0;
    try {
      LogAppendInfo info = log.append(batches(words[2]), epoch, words[1]);
      answer.with("first", info.firstOffset()).with("last", info.lastOffset());
    } catch (org.apache.kafka.common.errors.ApiException e) {
      answer.with("refused", e.getClass().getSimpleName()).with("why", e.getMessage());
    }
  }

  private void follow(String[] words, Json answer) {
    try {
      log.appendFollower(batches(words[1]), Integer.MAX_VALUE);
    } catch (RuntimeException e) {
      answer.with("refused", e.getClass().getSimpleName()).with("why", e.getMessage());
    }
  }

  private static MemoryRecords batches(String base64) {
    return MemoryRecords.readableRecords(ByteBuffer.wrap(Base64.getDecoder().decode(base64)));
  }

  private List<Object> aborted(long offset) throws Exception {
    List<Object> found = new ArrayList<>();
    for (var t : log.readCommitted(offset, Integer.MAX_VALUE).abortedTransactions.get())
      found.add(List.of(t.producerId(), t.firstOffset()));
    return found;
  }
}
