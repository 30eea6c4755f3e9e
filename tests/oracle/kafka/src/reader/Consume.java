import java.io.*;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a whole partition with the real consumer, and asks it for offsets by time. */
class Consume implements Closeable {
  private static final long PATIENCE_MS = 1000L * Broker.PATIENCE_S;
  private static final long FAR_FUTURE = 4999999999999L;

  private final TopicPartition partition;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final List<Long> timestamps = new ArrayList<>();

  Consume(String bootstrap, TopicPartition partition, String isolation) {
    this.partition = partition;
    Properties p = new Properties();
    p.put("bootstrap.servers", bootstrap);
    p.put("isolation.level", isolation);
    p.put("enable.auto.commit", "false");
    p.put("key.deserializer", ByteArrayDeserializer.class.getName());
    p.put("value.deserializer", ByteArrayDeserializer.class.getName());
    p.put("default.api.timeout.ms", "" + PATIENCE_MS);
    p.put("fetch.max.wait.ms", "100");
    p.put("auto.offset.reset", "none");
    consumer = new KafkaConsumer<>(p);
    consumer.assign(Set.of(partition));
  }

  /**
   * Every record from the beginning to the end, a line each; what happened goes to {@code result}.
   */
  void everything(PrintStream out, String isolation, Json result) {
    long begin = consumer.beginningOffsets(Set.of(partition)).get(partition);
    long end = consumer.endOffsets(Set.of(partition)).get(partition);
    result.with(isolation + "_begin", begin).with(isolation + "_end", end);
    consumer.seek(partition, begin);
    long deadline = System.currentTimeMillis() + PATIENCE_MS;
    String error = null;
    try {
      while (consumer.position(partition) < end && System.currentTimeMillis() < deadline)
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
          deadline = System.currentTimeMillis() + PATIENCE_MS;
          timestamps.add(record.timestamp());
          out.println(json(record));
        }
      long position = consumer.position(partition);
      if (position < end) error = "timeout at position " + position;
    } catch (Exception e) {
      error = e.toString();
    }
    result.with(isolation + "_records", timestamps.size());
    if (error != null) result.with(isolation + "_error", error);
  }

  private static Json json(ConsumerRecord<byte[], byte[]> r) {
    List<Object> headers = new ArrayList<>();
    for (Header h : r.headers()) headers.add(Arrays.asList(h.key(), Json.base64(h.value())));
    return new Json()
        .with("offset", r.offset())
        .with("timestamp", r.timestamp())
        .with("timestamp_type", r.timestampType().name)
        .withBytes("key", r.key() == null ? null : ByteBuffer.wrap(r.key()))
        .withBytes("value", r.value() == null ? null : ByteBuffer.wrap(r.value()))
        .with("headers", headers)
        .with("leader_epoch", r.leaderEpoch().orElse(null));
  }

  /**
   * offsetsForTimes for a sample of the timestamps read, with the first record after a seek there.
   */
  List<Object> times() {
    TreeSet<Long> targets = new TreeSet<>(List.of(0L, FAR_FUTURE));
    int step = Math.max(1, timestamps.size() / 12);
    for (int i = 0; i < timestamps.size(); i += step)
      if (timestamps.get(i) >= 0) targets.addAll(List.of(timestamps.get(i), timestamps.get(i) + 1));
    List<Object> answers = new ArrayList<>();
    for (long target : targets) {
      Json answer = new Json().with("target", target);
      try {
        OffsetAndTimestamp found = at(target);
        answer.with(
            "result",
            found == null
                ? null
                : new Json().with("offset", found.offset()).with("timestamp", found.timestamp()));
        if (found != null && answers.size() < 8)
          answer.with("first_record_after_seek", firstFrom(found.offset()));
      } catch (Exception e) {
        answer.with("error", e.toString());
      }
      answers.add(answer);
    }
    return answers;
  }

  /** offsetsForTimes of one time: null where no record is as late. */
  OffsetAndTimestamp at(long timestamp) {
    return consumer.offsetsForTimes(Map.of(partition, timestamp)).get(partition);
  }

  private Long firstFrom(long offset) {
    consumer.seek(partition, offset);
    for (int tries = 0; tries < 10 * Broker.PATIENCE_S; tries++)
      for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100)))
        return record.offset();
    return null;
  }

  @Override
  public void close() {
    consumer.close();
  }
}
