import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.LongSerializer;

/**
 * ExactlyOnce ADDRESS COUNT SEED: writes COUNT numbers to the topic "in" and copies them to "out", a thread for each
 * partition, in transactions with the offsets of the group "copiers": some are aborted, some are empty, some are taken
 * over by another producer of the same id. What fails is done again, as programs do. Prints a line after each commit, and
 * at the end what was done.
 */
public final class ExactlyOnce {
  private static final int PARTITIONS = 3;
  private static final Duration PATIENCE = Duration.ofSeconds(110);
  private static final Map<String, AtomicInteger> DONE = new TreeMap<>();

  private final String bootstrap;
  private final TopicPartition from;
  private final TopicPartition to;
  private final Random random;
  private KafkaProducer<Long, Long> producer;

  private ExactlyOnce(String bootstrap, int partition, long seed) {
    this.bootstrap = bootstrap;
    from = new TopicPartition("in", partition);
    to = new TopicPartition("out", partition);
    random = new Random(seed + partition);
  }

  public static void main(String[] arguments) throws Exception {
    for (String what : List.of("commit", "abort", "empty", "fenced", "aborted after an error", "new after an error")) {
      DONE.put(what, new AtomicInteger());
    }
    String bootstrap = arguments[0];
    int count = Integer.parseInt(arguments[1]);
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
      admin.createTopics(List.of(new NewTopic("in", PARTITIONS, (short) 1), new NewTopic("out", PARTITIONS, (short) 1)))
        .all().get(60, TimeUnit.SECONDS);
    }
    try (KafkaProducer<Long, Long> writer = new KafkaProducer<>(settings(bootstrap), new LongSerializer(), new LongSerializer())) {
      for (long number = 0; number < count; number++) {
        writer.send(new ProducerRecord<>("in", (int) (number % PARTITIONS), number, number));
      }
    }
    List<Thread> threads = new ArrayList<>();
    List<Throwable> faults = Collections.synchronizedList(new ArrayList<>());
    for (int partition = 0; partition < PARTITIONS; partition++) {
      ExactlyOnce copier = new ExactlyOnce(bootstrap, partition, Long.parseLong(arguments[2]));
      threads.add(new Thread(() -> {
        try {
          copier.run();
        } catch (Throwable fault) {
          faults.add(fault);
        }
      }));
    }
    for (Thread thread : threads) thread.start();
    for (Thread thread : threads) thread.join();
    for (Throwable fault : faults) fault.printStackTrace();
    System.out.println("done " + new Json().with("done", DONE));
    System.exit(faults.isEmpty() ? 0 : 1);
  }

  private static Map<String, Object> settings(String bootstrap) {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("reconnect.backoff.max.ms", 200);
    settings.put("retry.backoff.max.ms", 200);
    return settings;
  }

  private KafkaProducer<Long, Long> newProducer() {
    Map<String, Object> settings = settings(bootstrap);
    settings.put("transactional.id", "copier-" + from.partition());
    settings.put("max.block.ms", PATIENCE.toMillis());
    KafkaProducer<Long, Long> made = new KafkaProducer<>(settings, new LongSerializer(), new LongSerializer());
    made.initTransactions();
    return made;
  }

  private void run() {
    Map<String, Object> settings = settings(bootstrap);
    settings.put("group.id", "copiers");
    settings.put("enable.auto.commit", false);
    settings.put("isolation.level", "read_committed");
    settings.put("max.poll.records", 15);
    settings.put("default.api.timeout.ms", (int) PATIENCE.toMillis());
    producer = newProducer();
    try (KafkaConsumer<Long, Long> consumer = new KafkaConsumer<>(settings, new LongDeserializer(), new LongDeserializer())) {
      consumer.assign(List.of(from));
      long end = consumer.endOffsets(List.of(from)).get(from);
      while (seek(consumer) < end) {
        ConsumerRecords<Long, Long> records = consumer.poll(Duration.ofMillis(500));
        if (!records.isEmpty()) copy(records);
      }
    }
    producer.close();
  }

  /** Goes to where the group is, and returns it. */
  private long seek(KafkaConsumer<Long, Long> consumer) {
    OffsetAndMetadata committed = consumer.committed(Set.of(from)).get(from);
    long offset = committed == null ? 0 : committed.offset();
    consumer.seek(from, offset);
    return offset;
  }

  private void copy(ConsumerRecords<Long, Long> records) {
    int chance = random.nextInt(100);
    try {
      producer.beginTransaction();
      if (chance < 10) {
        producer.abortTransaction();
        count("empty");
        return;
      }
      long next = 0;
      for (ConsumerRecord<Long, Long> record : records) {
        producer.send(new ProducerRecord<>(to.topic(), to.partition(), record.key(), record.value()));
        next = record.offset() + 1;
      }
      producer.sendOffsetsToTransaction(Map.of(from, new OffsetAndMetadata(next)), new ConsumerGroupMetadata("copiers"));
      if (chance < 30) {
        producer.abortTransaction();
        count("abort");
      } else if (chance < 40) {
        beFenced();
      } else {
        producer.commitTransaction();
        count("commit");
        System.out.println("commit");
      }
    } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
      throw fenced;   // nobody else has this id
    } catch (KafkaException error) {
      again(error);
    }
  }

  /** Another producer of the id comes, and this one can neither commit nor write any more. */
  private void beFenced() {
    producer.flush();
    KafkaProducer<Long, Long> old = producer;
    producer = newProducer();
    try {
      old.commitTransaction();
      throw new IllegalStateException("a fenced producer committed");
    } catch (ProducerFencedException | InvalidProducerEpochException expected) {
      count("fenced");
    } catch (KafkaException error) {
      System.err.println(from + ": " + error);    // its records were not sent, so it did not get so far
    }
    old.close(Duration.ZERO);
  }

  /** After an error the transaction is aborted; where that fails, too, there is a new producer. */
  private void again(KafkaException error) {
    System.err.println(from + ": " + error);
    try {
      producer.abortTransaction();
      count("aborted after an error");
    } catch (KafkaException second) {
      System.err.println(from + ": " + second);
      producer.close(Duration.ZERO);
      producer = newProducer();
      count("new after an error");
    }
  }

  private static void count(String what) {
    DONE.get(what).incrementAndGet();
  }
}
