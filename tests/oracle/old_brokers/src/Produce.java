import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/**
 * Produce SERVER SEED topic,codec,count,letters[,first_ms]...: records by this version's own KafkaProducer, one after the other.
 *
 * Letters: k keys of all kinds, K never a null key and few of them, h headers, t timestamps of our own, i idempotent,
 * x transactions of which a third is aborted, f for ever, - none. What a version does not have is called by its name.
 */
public class Produce {
    static final int PATIENCE_S = 120;

    public static void main(String[] args) throws Exception {
        int failed = 0;
        for (int i = 2; i < args.length; i++) {
            String[] job = args[i].split(",");
            try {
                produce(args[0], Long.parseLong(args[1]) + i, job[0], job[1], Integer.parseInt(job[2]), job[3],
                    job.length > 4 ? Long.parseLong(job[4]) : 0);
                System.out.println("ok " + args[i]);
            } catch (Throwable e) {
                failed++;
                System.out.println("FAILED " + args[i] + " " + e);
            }
        }
        System.out.flush();
        Runtime.getRuntime().halt(failed);
    }

    static void call(Object on, String name) throws Exception {
        Method m = on.getClass().getMethod(name);
        try {
            m.invoke(on);
        } catch (InvocationTargetException e) {
            throw (Exception) e.getCause();
        }
    }

    static Properties config(String server, long seed, String topic, String codec, String letters, Random random) {
        Properties p = new Properties();
        boolean sequenced = letters.contains("i") || letters.contains("x");
        p.put("bootstrap.servers", server);
        p.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        p.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        p.put("compression.type", codec);
        p.put("batch.size", "" + (500 + random.nextInt(3000)));
        p.put("linger.ms", "5");
        p.put("acks", sequenced ? "all" : "1");
        p.put("client.id", "p" + seed);
        if (sequenced) {
            p.put("enable.idempotence", "true");
        }
        // On a machine of any speed: a broker that is not the leader yet, or is long in answering, is asked again.
        p.put("retries", "1000");
        p.put("request.timeout.ms", "60000");
        p.put("delivery.timeout.ms", "" + 1000 * PATIENCE_S);
        if (letters.contains("x")) p.put("transactional.id", "tx-" + topic + "-" + seed);
        return p;
    }

    static void produce(String server, long seed, String topic, String codec, int count, String letters, long firstMs)
        throws Exception {
        Random random = new Random(seed);
        boolean endless = letters.contains("f"), transactional = letters.contains("x"), open = false;
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<byte[], byte[]>(config(server, seed, topic, codec, letters, random));
        if (transactional) call(producer, "initTransactions");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        int left = 0;
        long ms = firstMs;
        for (int i = 0; i < count || endless; i++) {
            if (transactional && !open) {
                call(producer, "beginTransaction");
                open = true;
                left = 1 + random.nextInt(20);
            }
            ms += random.nextInt(2000) - 400;
            sent.add(producer.send(record(random, topic, letters, Math.max(0, ms))));
            if (endless && i % 10 == 0) {
                sent.clear();
                Thread.sleep(10);
            } else if (random.nextInt(40) == 0) Thread.sleep(random.nextInt(20));
            if (transactional && --left <= 0) {
                boolean abort = random.nextInt(3) == 0;
                if (abort) for (Future<?> each : sent) each.get(PATIENCE_S, TimeUnit.SECONDS);
                call(producer, abort ? "abortTransaction" : "commitTransaction");
                open = false;
            }
        }
        if (open) call(producer, "commitTransaction");
        for (Future<?> each : sent) each.get(PATIENCE_S, TimeUnit.SECONDS);
        producer.close();
        if (transactional) {
            // The last end was answered before its markers were written. The next producer of the id waits for those.
            KafkaProducer<byte[], byte[]> next =
                new KafkaProducer<byte[], byte[]>(config(server, seed, topic, codec, letters, random));
            call(next, "initTransactions");
            next.close();
        }
    }

    @SuppressWarnings("unchecked")
    static ProducerRecord<byte[], byte[]> record(Random random, String topic, String letters, long ms) throws Exception {
        byte[] key, value;
        if (letters.contains("K")) {
            key = ("user-" + random.nextInt(40)).getBytes();
            value = random.nextInt(9) == 0 ? null : Common.text(random, 20 + random.nextInt(60));
        } else {
            int kind = random.nextInt(8);
            key = kind == 0 ? null : kind == 1 ? new byte[0] : ("key-" + random.nextInt(500)).getBytes();
            kind = random.nextInt(12);
            value = kind == 0 ? null : kind == 1 ? new byte[0] : Common.text(random, 10 + random.nextInt(120));
        }
        Long time = letters.contains("t") ? (Long) ms : null;
        if (letters.contains("h")) {
            List<Object> headers = new ArrayList<>();
            Constructor<?> header = Class.forName("org.apache.kafka.common.header.internals.RecordHeader")
                .getConstructor(String.class, byte[].class);
            for (int n = random.nextInt(4); n > 0; n--)
                headers.add(header.newInstance("h" + n + "ü", random.nextInt(4) == 0 ? null : Common.text(random, 5)));
            return (ProducerRecord<byte[], byte[]>) ProducerRecord.class
                .getConstructor(String.class, Integer.class, Long.class, Object.class, Object.class, Iterable.class)
                .newInstance(topic, (Integer) 0, time, key, value, headers);
        }
        if (time != null)
            return (ProducerRecord<byte[], byte[]>) ProducerRecord.class
                .getConstructor(String.class, Integer.class, Long.class, Object.class, Object.class)
                .newInstance(topic, (Integer) 0, time, key, value);
        return new ProducerRecord<byte[], byte[]>(topic, 0, key, value);
    }
}
