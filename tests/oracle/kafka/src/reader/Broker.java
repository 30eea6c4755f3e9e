import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.TimeUnit;
import kafka.server.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.utils.Time;

/** A real single-node KRaft broker on loopback, with its log dir in {@code work/data}. */
class Broker {
  /** How long clients and tests wait for what takes milliseconds, on a machine of any speed. */
  static final int PATIENCE_S = 180;

  final File logDir;
  final String bootstrap;
  private final Properties properties = new Properties();
  private KafkaRaftServer server;

  /** Formats the storage where that was not done yet; start() starts it, as often as wanted. */
  Broker(File work) throws Exception {
    logDir = new File(work, "data");
    logDir.mkdirs();
    int[] ports = freePorts(2);
    int clients = ports[0], controller = ports[1];
    bootstrap = "127.0.0.1:" + clients;
    set("process.roles", "broker,controller");
    set("node.id", "1");
    set("listeners", "PLAINTEXT://127.0.0.1:" + clients + ",CONTROLLER://127.0.0.1:" + controller);
    set("advertised.listeners", "PLAINTEXT://127.0.0.1:" + clients);
    set("controller.listener.names", "CONTROLLER");
    set("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT");
    set("controller.quorum.voters", "1@127.0.0.1:" + controller);
    set("log.dirs", logDir.getPath());
    set("offsets.topic.replication.factor", "1");
    set("offsets.topic.num.partitions", "1");
    set("transaction.state.log.replication.factor", "1");
    set("transaction.state.log.min.isr", "1");
    set("auto.create.topics.enable", "false");
    set("log.retention.ms", "-1"); // or records with old timestamps go at once
    set("log.cleaner.enable", "false");
    // Directories that end in -delete go soon after the start instead of after a minute and a half.
    set("log.initial.task.delay.ms", "500");
    set("log.segment.delete.delay.ms", "500");
    set("num.io.threads", "2");
    set("num.network.threads", "1");
    set("group.initial.rebalance.delay.ms", "0");
    set("initial.broker.registration.timeout.ms", "" + 1000 * PATIENCE_S);
    // -Dbroker.KEY=VALUE: for one broker alone.
    for (String key : System.getProperties().stringPropertyNames())
      if (key.startsWith("broker.")) set(key.substring("broker.".length()), System.getProperty(key));
    File file = new File(work, "server.properties");
    try (FileOutputStream out = new FileOutputStream(file)) {
      properties.store(out, null);
    }
    if (new File(logDir, "meta.properties").exists()) return;
    String[] format = {"format", "-t", Uuid.randomUuid().toString(), "-c", file.getPath()};
    int status = kafka.tools.StorageTool.execute(format, System.err);
    if (status != 0) throw new IllegalStateException("StorageTool format ended with " + status);
  }

  private void set(String key, String value) {
    properties.put(key, value);
  }

  /** Different ones: each is held until all are known. */
  private static int[] freePorts(int count) throws IOException {
    ServerSocket[] held = new ServerSocket[count];
    int[] ports = new int[count];
    for (int n = 0; n < count; n++) {
      held[n] = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"));
      ports[n] = held[n].getLocalPort();
    }
    for (ServerSocket socket : held) socket.close();
    return ports;
  }

  /** Seconds that the start took. */
  double start() {
    long began = System.nanoTime();
    server = new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM);
    server.startup();
    return (System.nanoTime() - began) / 1e9;
  }

  void stop() {
    server.shutdown();
    server.awaitShutdown();
  }

  /** Topics with as many partitions as given; returns when their directories are there. */
  void createTopics(Map<String, Integer> partitions) throws Exception {
    createTopics(partitions, Map.of());
  }

  void createTopics(Map<String, Integer> partitions, Map<String, String> config) throws Exception {
    Properties client = new Properties();
    client.put("bootstrap.servers", bootstrap);
    Map<String, String> all = new HashMap<>(Map.of("retention.ms", "-1", "max.message.bytes", "2000000"));
    all.putAll(config);
    List<NewTopic> topics = new ArrayList<>();
    partitions.forEach(
        (topic, count) -> topics.add(new NewTopic(topic, count, (short) 1).configs(all)));
    try (Admin admin = Admin.create(client)) {
      admin.createTopics(topics).all().get(PATIENCE_S, TimeUnit.SECONDS);
    }
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
    while (!haveDirectories(partitions)) {
      if (System.nanoTime() > deadline) throw new IllegalStateException("no directories of " + partitions.keySet());
      Thread.sleep(50);
    }
  }

  /**
   * Waits for the markers of a transaction. Its end is answered when the coordinator has written it down; the markers
   * come later, in topics and in offsets, and until then the last stable offset is the one before.
   */
  void awaitMarkers(String transactionalId) throws Exception {
    Properties client = new Properties();
    client.put("bootstrap.servers", bootstrap);
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
    try (Admin admin = Admin.create(client)) {
      while (true) {
        TransactionState state =
            admin.describeTransactions(List.of(transactionalId)).all().get(PATIENCE_S, TimeUnit.SECONDS)
                .get(transactionalId).state();
        if (state == TransactionState.COMPLETE_COMMIT || state == TransactionState.COMPLETE_ABORT) return;
        if (System.nanoTime() > deadline) throw new IllegalStateException(transactionalId + " is still " + state);
        Thread.sleep(10);
      }
    }
  }

  private boolean haveDirectories(Map<String, Integer> partitions) {
    for (Map.Entry<String, Integer> e : partitions.entrySet())
      for (int i = 0; i < e.getValue(); i++)
        if (!new File(logDir, e.getKey() + "-" + i + "/partition.metadata").exists()) return false;
    return true;
  }
}
