import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import kafka.javaapi.producer.Producer;
import kafka.producer.KeyedMessage;
import kafka.producer.ProducerConfig;

/** ScalaProduce SERVER SEED topic,codec,count...: records by the old Scala producer, which Kafka had up to 1.1. */
public class ScalaProduce {
    public static void main(String[] args) throws Exception {
        for (int i = 2; i < args.length; i++) {
            String[] job = args[i].split(",");
            Random random = new Random(Long.parseLong(args[1]) + i);
            Properties config = new Properties();
            config.put("metadata.broker.list", args[0]);
            config.put("serializer.class", "kafka.serializer.DefaultEncoder");
            config.put("compression.codec", job[1]);
            config.put("request.required.acks", "1");
            // Three tries, 0.1 s apart, are over before a slow broker has become the leader.
            config.put("message.send.max.retries", "100");
            config.put("request.timeout.ms", "60000");
            Producer<byte[], byte[]> producer = new Producer<byte[], byte[]>(new ProducerConfig(config));
            List<KeyedMessage<byte[], byte[]>> together = new ArrayList<>();
            int count = Integer.parseInt(job[2]);
            for (int n = 0; n < count; n++) {
                byte[] key = random.nextInt(6) == 0 ? null : ("key-" + random.nextInt(300)).getBytes();
                byte[] value = random.nextInt(10) == 0 ? null : Common.text(random, 10 + random.nextInt(120));
                together.add(new KeyedMessage<byte[], byte[]>(job[0], key, value));
                if (together.size() > random.nextInt(30) || n == count - 1) {
                    producer.send(together);
                    together.clear();
                }
            }
            producer.close();
            System.out.println("ok " + args[i]);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
