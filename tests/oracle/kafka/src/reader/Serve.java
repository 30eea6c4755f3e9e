import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A real broker on command: {@code Serve WORKDIR}, with its log dir in WORKDIR/data
 *
 * <p>Each line of standard input is a command, answered by a line of JSON, with {@code error} where it failed:
 *
 * <pre>
 *   start
 *   stop
 *   create TOPIC PARTITIONS [KEY=VALUE...]
 *   produce PARTITION FIRST COUNT MS CODEC              records FIRST, FIRST + 1, ... of times MS, MS + 1000, ...
 *   produce PARTITION FIRST COUNT MS CODEC ID commit|abort|open      in a transaction of that transactional id
 *   consume PARTITION read_uncommitted|read_committed FILE           every record into FILE, a line each
 *   times PARTITION MS...                               offsetsForTimes
 *   delete PARTITION OFFSET                             deleteRecords
 *   configure topic|broker NAME KEY=VALUE...            incrementalAlterConfigs; the name `default`: of all brokers
 *   delete-topic TOPIC
 *   topics                                              ids, partitions and settings of all, internal ones included
 * </pre>
 *
 * <p>and those of {@link Groups}.
 *
 * At the end of input it ends as it is: a broker that was not stopped dies.
 */
public class Serve {
  private final PrintStream answers;
  private final Broker broker;
  private final Groups groups;
  private final Map<String, KafkaProducer<byte[], byte[]>> transactional = new HashMap<>();

  private Serve(File work, PrintStream answers) throws Exception {
    this.answers = answers;
    this.broker = new Broker(work);
    this.groups = new Groups(broker);
  }

  public static void main(String[] args) throws Exception {
    PrintStream answers = Json.to(new FileOutputStream(FileDescriptor.out));
    Serve serve = new Serve(new File(args[0]).getAbsoluteFile(), answers);
    BufferedReader commands =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      Json answer = new Json();
      try {
        serve.run(line.split(" "), answer);
      } catch (Exception e) {
        e.printStackTrace();
        answer.with("error", e.toString());
      }
      answers.println(answer);
      answers.flush();
    }
    Runtime.getRuntime().halt(0);
  }

  private void run(String[] words, Json answer) throws Exception {
    switch (words[0]) {
      case "start" -> answer.with("seconds", broker.start());
      case "stop" -> stop();
      case "create" -> create(words);
      case "produce" -> answer.with("last", produce(words));
      case "consume" -> {
        try (PrintStream lines = Json.to(new FileOutputStream(words[3]));
            Consume consume = new Consume(broker.bootstrap, partition(words[1]), words[2])) {
          consume.everything(lines, words[2], answer);
        }
      }
      case "times" -> answer.with("times", times(words));
      case "delete" -> delete(words);
      case "configure" -> configure(words);
      case "delete-topic" -> {
        try (Admin admin = Admin.create(client())) {
          admin.deleteTopics(List.of(words[1])).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
        }
      }
      case "topics" -> answer.with("topics", topics());
      default -> {
        if (!groups.run(words, answer)) throw new IllegalArgumentException(words[0]);
      }
    }
  }

  private void stop() {
    for (KafkaProducer<byte[], byte[]> producer : transactional.values())
      producer.close(Duration.ZERO);
    transactional.clear();
    groups.close();
    broker.stop();
  }

  private static TopicPartition partition(String name) {
    int dash = name.lastIndexOf('-');
    return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
  }

  private Properties client() {
    Properties client = new Properties();
    client.put("bootstrap.servers", broker.bootstrap);
    return client;
  }

  private void create(String[] words) throws Exception {
    Map<String, String> config = new HashMap<>();
    for (String pair : Arrays.asList(words).subList(3, words.length))
      config.put(pair.split("=", 2)[0], pair.split("=", 2)[1]);
    broker.createTopics(Map.of(words[1], Integer.parseInt(words[2])), config);
  }

  private long produce(String[] words) throws Exception {
    TopicPartition to = partition(words[1]);
    int first = Integer.parseInt(words[2]), count = Integer.parseInt(words[3]);
    long ms = Long.parseLong(words[4]);
    Properties client = client();
    client.put("key.serializer", ByteArraySerializer.class.getName());
    client.put("value.serializer", ByteArraySerializer.class.getName());
    client.put("compression.type", words[5]);
    client.put("linger.ms", "20");
    client.put("batch.size", "600");
    if (words.length == 6) {
      try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(client)) {
        return send(producer, to, first, count, ms);
      }
    }
    KafkaProducer<byte[], byte[]> producer = transactional.get(words[6]);
    if (producer == null) {
      client.put("transactional.id", words[6]);
      producer = new KafkaProducer<>(client);
      producer.initTransactions();
      transactional.put(words[6], producer);
    }
    producer.beginTransaction();
    long last = send(producer, to, first, count, ms);
    if (words[7].equals("commit")) producer.commitTransaction();
    if (words[7].equals("abort")) producer.abortTransaction();
    if (!words[7].equals("open")) broker.awaitMarkers(words[6]);
    return last;
  }

  private static long send(
      KafkaProducer<byte[], byte[]> producer, TopicPartition to, int first, int count, long ms)
      throws Exception {
    Future<RecordMetadata> sent = null;
    for (int n = first; n < first + count; n++) {
      ProducerRecord<byte[], byte[]> record =
          new ProducerRecord<>(
              to.topic(),
              to.partition(),
              ms + 1000L * (n - first),
              ("k" + n % 10).getBytes(),
              n % 9 == 8 ? null : ("from Kafka " + n).getBytes());
      record.headers().add("n", Integer.toString(n).getBytes());
      sent = producer.send(record);
    }
    producer.flush();
    return sent.get(Broker.PATIENCE_S, TimeUnit.SECONDS).offset();
  }

  private List<Object> times(String[] words) {
    TopicPartition of = partition(words[1]);
    List<Object> found = new ArrayList<>();
    try (Consume consume = new Consume(broker.bootstrap, of, "read_uncommitted")) {
      for (String ms : Arrays.asList(words).subList(2, words.length)) {
        OffsetAndTimestamp answer = consume.at(Long.parseLong(ms));
        found.add(answer == null ? null : List.of(answer.offset(), answer.timestamp()));
      }
    }
    return found;
  }

  private void configure(String[] words) throws Exception {
    ConfigResource.Type type = words[1].equals("topic") ? ConfigResource.Type.TOPIC : ConfigResource.Type.BROKER;
    List<AlterConfigOp> changes = new ArrayList<>();
    for (String pair : Arrays.asList(words).subList(3, words.length))
      changes.add(new AlterConfigOp(
          new ConfigEntry(pair.split("=", 2)[0], pair.split("=", 2)[1]), AlterConfigOp.OpType.SET));
    ConfigResource of = new ConfigResource(type, words[2].equals("default") ? "" : words[2]);
    try (Admin admin = Admin.create(client())) {
      admin.incrementalAlterConfigs(Map.of(of, changes)).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
    }
  }

  private Map<String, Object> topics() throws Exception {
    Map<String, Object> found = new TreeMap<>();
    try (Admin admin = Admin.create(client())) {
      Set<String> names =
          admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
      Map<String, TopicDescription> described =
          admin.describeTopics(names).allTopicNames().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
      for (TopicDescription topic : described.values()) {
        ConfigResource of = new ConfigResource(ConfigResource.Type.TOPIC, topic.name());
        Map<String, Object> settings = new TreeMap<>();
        for (ConfigEntry e : admin.describeConfigs(List.of(of)).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS).get(of).entries())
          settings.put(e.name(), List.of(e.value() == null ? "" : e.value(), e.source().toString()));
        List<Object> partitions = new ArrayList<>();
        topic.partitions().forEach(
            p -> partitions.add(new TreeMap<>(Map.of(
                "partition", p.partition(), "leader", p.leader() == null ? -1 : p.leader().id(),
                "replicas", p.replicas().stream().map(n -> n.id()).toList(),
                "isr", p.isr().stream().map(n -> n.id()).toList()))));
        found.put(topic.name(), new TreeMap<>(Map.of(
            "id", topic.topicId().toString(), "partitions", partitions, "settings", settings)));
      }
    }
    return found;
  }

  private void delete(String[] words) throws Exception {
    try (Admin admin = Admin.create(client())) {
      RecordsToDelete before = RecordsToDelete.beforeOffset(Long.parseLong(words[2]));
      admin.deleteRecords(Map.of(partition(words[1]), before)).all().get(Broker.PATIENCE_S, TimeUnit.SECONDS);
    }
  }
}
