import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Consumer groups and transactional offsets, by Kafka's own clients: commands of {@link Serve}
 *
 * <pre>
 *   consume-in GROUP TOPIC COUNT [INSTANCE]           poll COUNT records as a member, commit, leave (a static one stays)
 *   join GROUP TOPIC COUNT                            as consume-in, by the protocol of KIP-848; stays
 *   commit GROUP PARTITION OFFSET [METADATA]          as no member
 *   commit-in ID GROUP PARTITION OFFSET commit|abort|open      in a transaction
 *   uncommit GROUP PARTITION                          delete an offset
 *   delete-group GROUP
 *   groups                                            state and offsets of all
 * </pre>
 */
class Groups {
  private final Broker broker;
  private final Properties client;
  private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
  private final List<KafkaConsumer<byte[], byte[]>> staying = new ArrayList<>();

  Groups(Broker broker) {
    this.broker = broker;
    client = new Properties();
    client.put("bootstrap.servers", broker.bootstrap);
  }

  /** Whether it was one of these commands. */
  boolean run(String[] words, Json answer) throws Exception {
    switch (words[0]) {
      case "consume-in" -> consume(words);
      case "join" -> join(words);
      case "commit" -> commit(words);
      case "commit-in" -> commitInTransaction(words);
      case "uncommit" -> {
        try (Admin admin = Admin.create(client)) {
          admin.deleteConsumerGroupOffsets(words[1], Set.of(partition(words[2]))).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
        }
      }
      case "delete-group" -> {
        try (Admin admin = Admin.create(client)) {
          admin.deleteConsumerGroups(List.of(words[1])).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
        }
      }
      case "groups" -> answer.with("groups", groups());
      default -> {
        return false;
      }
    }
    return true;
  }

  void close() {
    for (KafkaProducer<byte[], byte[]> producer : producers.values()) producer.close(Duration.ZERO);
    producers.clear();
  }

  private static TopicPartition partition(String name) {
    int dash = name.lastIndexOf('-');
    return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
  }

  private void consume(String[] words) {
    Properties of = new Properties();
    if (words.length > 4) of.put("group.instance.id", words[4]);
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(words, of)) {
      take(consumer, words);
    }
  }

  private void join(String[] words) {
    Properties of = new Properties();
    of.put("group.protocol", "consumer");
    KafkaConsumer<byte[], byte[]> consumer = consumer(words, of);
    staying.add(consumer);
    take(consumer, words);
  }

  private KafkaConsumer<byte[], byte[]> consumer(String[] words, Properties of) {
    of.putAll(client);
    of.put("group.id", words[1]);
    of.put("client.id", "member");
    of.put("auto.offset.reset", "earliest");
    of.put("enable.auto.commit", "false");
    of.put("max.poll.records", "5");
    of.put("key.deserializer", ByteArrayDeserializer.class.getName());
    of.put("value.deserializer", ByteArrayDeserializer.class.getName());
    return new KafkaConsumer<>(of);
  }

  private static void take(KafkaConsumer<byte[], byte[]> consumer, String[] words) {
    long until = System.currentTimeMillis() + 1000L * Broker.PATIENCE_S;
    consumer.subscribe(List.of(words[2]));
    int wanted = Integer.parseInt(words[3]);
    for (int count = 0; count < wanted; ) {
      if (System.currentTimeMillis() > until) throw new IllegalStateException(count + " of " + wanted + " records");
      count += consumer.poll(Duration.ofMillis(200)).count();
    }
    consumer.commitSync();
  }

  private void commit(String[] words) throws Exception {
    String metadata = words.length > 4 ? words[4] : "";
    OffsetAndMetadata offset = new OffsetAndMetadata(Long.parseLong(words[3]), Optional.of(0), metadata);
    try (Admin admin = Admin.create(client)) {
      admin.alterConsumerGroupOffsets(words[1], Map.of(partition(words[2]), offset)).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
    }
  }

  private void commitInTransaction(String[] words) throws Exception {
    KafkaProducer<byte[], byte[]> producer = producers.get(words[1]);
    if (producer == null) {
      Properties of = new Properties();
      of.putAll(client);
      of.put("key.serializer", ByteArraySerializer.class.getName());
      of.put("value.serializer", ByteArraySerializer.class.getName());
      of.put("transactional.id", words[1]);
      producer = new KafkaProducer<>(of);
      producer.initTransactions();
      producers.put(words[1], producer);
    }
    producer.beginTransaction();
    TopicPartition to = partition(words[3]);
    producer.send(new ProducerRecord<>(to.topic(), to.partition(), null, "in a transaction".getBytes()));
    OffsetAndMetadata offset = new OffsetAndMetadata(Long.parseLong(words[4]));
    producer.sendOffsetsToTransaction(Map.of(to, offset), new ConsumerGroupMetadata(words[2]));
    producer.flush();
    if (words[5].equals("commit")) producer.commitTransaction();
    if (words[5].equals("abort")) producer.abortTransaction();
    if (!words[5].equals("open")) broker.awaitMarkers(words[1]);
  }

  private Map<String, Object> groups() throws Exception {
    Map<String, Object> found = new TreeMap<>();
    try (Admin admin = Admin.create(client)) {
      for (ConsumerGroupListing group : admin.listConsumerGroups().all().get(Broker.PATIENCE_S, TimeUnit.SECONDS)) {
        String id = group.groupId();
        ConsumerGroupDescription description =
            admin.describeConsumerGroups(List.of(id)).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS).get(id);
        Map<String, Object> offsets = new TreeMap<>();
        admin.listConsumerGroupOffsets(id).partitionsToOffsetAndMetadata().get(Broker.PATIENCE_S, TimeUnit.SECONDS)
            .forEach((where, offset) -> offsets.put(where.toString(), List.of(offset.offset(), offset.metadata())));
        List<String> members = new ArrayList<>();
        description.members().forEach(member -> members.add(member.groupInstanceId().orElse("")));
        found.put(id, new TreeMap<>(Map.of(
            "state", description.state().toString(), "offsets", offsets, "members", members)));
      }
    }
    return found;
  }
}
