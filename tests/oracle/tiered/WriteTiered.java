import io.aiven.kafka.tieredstorage.RemoteStorageManager;
import io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/**
 * Copies partition directories as a broker has Aiven's plug-in copy them: WriteTiered ROOT SETTINGS DIRECTORY...
 *
 * <p>SETTINGS: chunk.size=1024,compression.enabled=true and so on. All segments are copied; a broker leaves the active one.
 * Ids of segments are numbers from first.id on (1), so that a second run writes the same names.
 */
public final class WriteTiered {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("storage.backend.class", FileSystemStorage.class.getName());
        settings.put("storage.root", arguments[0]);
        for (String setting : arguments[1].split(",")) {
            settings.put(setting.substring(0, setting.indexOf('=')), setting.substring(setting.indexOf('=') + 1));
        }
        settings.put("fetch.chunk.cache.class", "io.aiven.kafka.tieredstorage.fetch.cache.MemoryChunkCache");
        settings.put("fetch.chunk.cache.size", "-1");
        long ids = Long.parseLong((String) settings.getOrDefault("first.id", "1"));
        settings.remove("first.id");
        new File(arguments[0]).mkdirs();
        try (RemoteStorageManager manager = new RemoteStorageManager()) {
            manager.configure(settings);
            for (int slot = 2; slot < arguments.length; slot++) {
                copy(manager, Path.of(arguments[slot]), ids);
            }
        }
    }

    private static void copy(RemoteStorageManager manager, Path directory, long ids) throws Exception {
        String name = directory.getFileName().toString();
        int cut = name.lastIndexOf('-');
        String topic = name.substring(0, cut);
        TopicIdPartition partition = new TopicIdPartition(
            new Uuid(0x5e910a0000000000L + topic.hashCode(), 0x7031e00000000001L),
            new TopicPartition(topic, Integer.parseInt(name.substring(cut + 1))));
        File[] logs = directory.toFile().listFiles((where, file) -> file.endsWith(".log"));
        Arrays.sort(logs);
        for (int slot = 0; slot < logs.length; slot++) {
            Path log = logs[slot].toPath();
            long base = Long.parseLong(log.getFileName().toString().substring(0, 20));
            long last = base;
            long largest = -1;
            try (FileRecords records = FileRecords.open(log.toFile(), false)) {
                for (RecordBatch batch : records.batches()) {
                    last = batch.lastOffset();
                    largest = Math.max(largest, batch.maxTimestamp());
                }
            }
            Path snapshot = beside(log, last + 1, ".snapshot");
            if (!Files.exists(snapshot)) {
                snapshot = Files.createTempFile("none", ".snapshot");
            }
            Path transactions = beside(log, base, ".txnindex");
            Path epochs = directory.resolve("leader-epoch-checkpoint");
            LogSegmentData data = new LogSegmentData(
                log, beside(log, base, ".index"), beside(log, base, ".timeindex"),
                Files.exists(transactions) ? Optional.of(transactions) : Optional.empty(), snapshot,
                ByteBuffer.wrap(Files.exists(epochs) ? Files.readAllBytes(epochs) : new byte[0]));
            manager.copyLogSegmentData(
                new RemoteLogSegmentMetadata(
                    new RemoteLogSegmentId(partition, new Uuid(0x1122334455667788L, ids + slot)), base, last, largest, 1,
                    1700000000000L + slot, (int) Files.size(log), Map.of(0, base)),
                data);
            System.out.println(log + " " + base + " " + last);
        }
    }

    private static Path beside(Path log, long offset, String suffix) {
        return log.resolveSibling(String.format("%020d%s", offset, suffix));
    }
}
