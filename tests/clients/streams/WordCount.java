import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts the words of topic "lines" into topic "counts", each count once: WordCount BOOTSTRAP STATE_DIR [KEY=VALUE...]
 *
 * <p>Nothing is cached, so that each word's counts go out as 1, 2, 3, … It says its state in lines on standard output,
 * and runs until it is ended.
 */
class WordCount {
  public static void main(String[] args) throws Exception {
    Properties settings = new Properties();
    settings.put("application.id", "word-count");
    settings.put("bootstrap.servers", args[0]);
    settings.put("state.dir", args[1]);
    settings.put("processing.guarantee", "exactly_once_v2");
    settings.put("commit.interval.ms", "100");
    settings.put("statestore.cache.max.bytes", "0");
    settings.put("default.key.serde", Serdes.StringSerde.class.getName());
    settings.put("default.value.serde", Serdes.StringSerde.class.getName());
    // So that what was killed is missed soon.
    settings.put("consumer.session.timeout.ms", "6000");
    settings.put("consumer.heartbeat.interval.ms", "1000");
    settings.put("producer.transaction.timeout.ms", "10000");
    for (String pair : Arrays.copyOfRange(args, 2, args.length))
      settings.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));

    StreamsBuilder builder = new StreamsBuilder();
    builder
        .<String, String>stream("lines")
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
        .count(Materialized.as("counted"))
        .toStream()
        .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setStateListener((now, before) -> {
      System.out.println(now);
      System.out.flush();
    });
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }
}
