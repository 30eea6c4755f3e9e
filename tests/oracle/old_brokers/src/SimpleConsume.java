import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import kafka.api.FetchRequestBuilder;
import kafka.api.PartitionOffsetRequestInfo;
import kafka.common.TopicAndPartition;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.OffsetRequest;
import kafka.javaapi.OffsetResponse;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.message.MessageAndOffset;

/** SimpleConsume SERVER - DIR topic-N...: as Consume, by the SimpleConsumer that 0.8.2 has. */
public class SimpleConsume {
    static final long EARLIEST = -2, LATEST = -1;
    static final int PATIENCE_MS = 120000;

    static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] copy = new byte[buffer.remaining()];
        buffer.get(copy);
        return copy;
    }

    /** A broker that was just started is not the leader at once: it is asked again. */
    static long ask(SimpleConsumer consumer, String topic, int number, long time) throws Exception {
        Map<TopicAndPartition, PartitionOffsetRequestInfo> wanted = new HashMap<>();
        wanted.put(new TopicAndPartition(topic, number), new PartitionOffsetRequestInfo(time, 1));
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            OffsetResponse got = consumer.getOffsetsBefore(new OffsetRequest(wanted, (short) 0, "simple"));
            if (!got.hasError()) return got.offsets(topic, number)[0];
            if (System.currentTimeMillis() > deadline)
                throw new IllegalStateException(topic + ": error " + got.errorCode(topic, number));
            Thread.sleep(100);
        }
    }

    public static void main(String[] args) throws Exception {
        String[] server = args[0].split(":");
        SimpleConsumer consumer = new SimpleConsumer(server[0], Integer.parseInt(server[1]), PATIENCE_MS, 1 << 20, "simple");
        int failed = 0;
        for (int i = 3; i < args.length; i++) {
            int dash = args[i].lastIndexOf('-'), number = Integer.parseInt(args[i].substring(dash + 1));
            String topic = args[i].substring(0, dash), problem = "";
            long begin = ask(consumer, topic, number, EARLIEST), end = ask(consumer, topic, number, LATEST);
            PrintStream out = new PrintStream(new BufferedOutputStream(new FileOutputStream(args[2] + "/" + args[i])), false, "UTF-8");
            long at = begin, count = 0;
            while (at < end && problem.isEmpty()) {
                FetchResponse got = consumer.fetch(
                    new FetchRequestBuilder().clientId("simple").addFetch(topic, number, at, 4000000).build());
                long before = at;
                if (got.hasError()) problem = " FAILED: error " + got.errorCode(topic, number);
                else for (MessageAndOffset each : got.messageSet(topic, number)) {
                    if (each.offset() < at) continue;
                    count++;
                    Common.line(out, each.offset(), null, null, bytes(each.message().key()),
                        each.message().isNull() ? null : bytes(each.message().payload()), "-");
                    at = each.nextOffset();
                }
                if (at == before && problem.isEmpty()) problem = " FAILED: nothing at " + at;
            }
            out.close();
            if (!problem.isEmpty()) failed++;
            System.out.println(args[i] + " " + begin + " " + end + " " + count + problem);
        }
        System.out.flush();
        Runtime.getRuntime().halt(failed);
    }
}
