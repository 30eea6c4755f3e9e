import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Consume SERVER ISOLATION DIR topic-N...: what this version's own KafkaConsumer (0.9 and later) reads of each partition from
 * its beginning to its end, one line a record into DIR/topic-N; offsets are committed, for the group "g".
 *
 * Methods that came with a version, or changed their parameters, are called by their name.
 */
public class Consume {
    static final long PATIENCE_MS = 120000;

    static Method method(Class<?> type, String name, int parameters) {
        for (Method m : type.getMethods())
            if (m.getName().equals(name) && m.getParameterTypes().length == parameters) return m;
        return null;
    }

    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("isolation.level", args[1]);
        config.put("group.id", "g");
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("fetch.max.wait.ms", "100");
        config.put("max.partition.fetch.bytes", "4000000");
        int failed = 0;
        for (int i = 3; i < args.length; i++) {
            String answer;
            try {
                answer = consume(config, args[2], args[i]);
            } catch (Exception e) {
                answer = "FAILED " + e;
            }
            if (answer.contains("FAILED")) failed++;
            System.out.println(args[i] + " " + answer);
        }
        System.out.flush();
        Runtime.getRuntime().halt(failed);
    }

    static String consume(Properties config, String dir, String partition) throws Exception {
        int dash = partition.lastIndexOf('-');
        TopicPartition at = new TopicPartition(partition.substring(0, dash), Integer.parseInt(partition.substring(dash + 1)));
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<byte[], byte[]>(config);
        Object list = Collections.singletonList(at);
        method(KafkaConsumer.class, "assign", 1).invoke(consumer, list);
        Method toBeginning = method(KafkaConsumer.class, "seekToBeginning", 1);
        Method toEnd = method(KafkaConsumer.class, "seekToEnd", 1);
        Object one = toBeginning.isVarArgs() ? (Object) new TopicPartition[] {at} : list;
        toEnd.invoke(consumer, one);
        long end = consumer.position(at);
        toBeginning.invoke(consumer, one);
        long begin = consumer.position(at);
        PrintStream out = new PrintStream(new BufferedOutputStream(new FileOutputStream(dir + "/" + partition)), false, "UTF-8");
        long count = 0, deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (consumer.position(at) < end && System.currentTimeMillis() < deadline)
            for (ConsumerRecord<byte[], byte[]> record : poll(consumer)) {
                count++;
                deadline = System.currentTimeMillis() + PATIENCE_MS;
                Common.line(out, record.offset(), of(record, "timestamp"), of(record, "timestampType"), record.key(),
                    record.value(), headers(record));
            }
        out.close();
        boolean whole = consumer.position(at) >= end;
        if (count > 0) consumer.commitSync();
        consumer.close();
        return begin + " " + end + " " + count + (whole ? "" : " FAILED: only to " + count);
    }

    /** poll(long), or poll(Duration), which came with 2.0 and is alone since 4.0. */
    @SuppressWarnings("unchecked")
    static Iterable<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        Method m = method(KafkaConsumer.class, "poll", 1);
        Object wait = m.getParameterTypes()[0] == long.class ? (Object) 200L : Duration.ofMillis(200);
        return (Iterable<ConsumerRecord<byte[], byte[]>>) m.invoke(consumer, wait);
    }

    static Object of(Object record, String name) throws Exception {
        Method m = method(ConsumerRecord.class, name, 0);
        return m == null ? null : m.invoke(record);
    }

    /** key=value,...: hashes both; "-" where there are none. */
    static String headers(Object record) throws Exception {
        Object all = of(record, "headers");
        StringBuilder text = new StringBuilder();
        if (all != null)
            for (Object header : (Iterable<?>) all) {
                Class<?> type = Class.forName("org.apache.kafka.common.header.Header");
                if (text.length() > 0) text.append(',');
                text.append(Common.hash(((String) type.getMethod("key").invoke(header)).getBytes("UTF-8"))).append('=')
                    .append(Common.hash((byte[]) type.getMethod("value").invoke(header)));
            }
        return text.length() == 0 ? "-" : text.toString();
    }
}
