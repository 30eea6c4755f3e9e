import java.io.*;
import java.nio.ByteBuffer;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.*;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.metadata.*;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.record.*;
import org.apache.kafka.coordinator.common.runtime.*;

/**
 * What the records of internal topics say, by the classes that kafka-dump-log of this version calls; its jar is not
 * in the repository: {@code Internal offsets|transactions|share|metadata FILE...}. Lines as of that tool.
 */
public class Internal {
  public static void main(String[] args) throws Exception {
    for (int i = 1; i < args.length; i++) {
      System.out.println("Dumping " + args[i]);
      try (FileRecords records = FileRecords.open(new File(args[i]), false)) {
        for (RecordBatch batch : records.batches())
          for (org.apache.kafka.common.record.Record record : batch)
            if (!batch.isControlBatch()) System.out.println("| offset: " + record.offset() + said(args[0], record));
      }
    }
  }

  private static String said(String decoder, org.apache.kafka.common.record.Record record) {
    try {
      if (decoder.equals("metadata")) {
        var read = new org.apache.kafka.metadata.MetadataRecordSerde()
            .read(new ByteBufferAccessor(record.value()), record.valueSize());
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        json.set("type", new TextNode(MetadataRecordType.fromId(read.message().apiKey()).toString()));
        json.set("version", new IntNode(read.version()));
        json.set("data", MetadataJsonConverters.writeJson(read.message(), read.version()));
        return " payload: " + json;
      }
      CoordinatorRecordSerde serde = switch (decoder) {
        case "offsets" -> new org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde();
        case "transactions" -> new org.apache.kafka.coordinator.transaction.TransactionCoordinatorRecordSerde();
        default -> new org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde();
      };
      CoordinatorRecord read = serde.deserialize(record.key(), record.value());
      ObjectNode key = JsonNodeFactory.instance.objectNode();
      key.set("type", new TextNode("" + read.key().apiKey()));
      key.set("data", keyOf(decoder, read.key()));
      if (read.value() == null) return " key: " + key + " payload: <DELETE>";
      ObjectNode value = JsonNodeFactory.instance.objectNode();
      value.set("version", new TextNode("" + read.value().version()));
      value.set("data", valueOf(decoder, read.value().message(), read.value().version()));
      return " key: " + key + " payload: " + value;
    } catch (Exception e) {
      return " key: Error, skipping. " + e;
    }
  }

  /** As the tool, what the members of a classic group of consumers say instead of its bytes. */
  private static JsonNode withMembers(JsonNode group) throws IOException {
    if (!group.path("protocolType").asText().equals("consumer")) return group;
    for (JsonNode member : group.get("members")) {
      replace((ObjectNode) member, "subscription", (readable, version) ->
          ConsumerProtocolSubscriptionJsonConverter.write(new ConsumerProtocolSubscription(readable, version), version));
      replace((ObjectNode) member, "assignment", (readable, version) ->
          ConsumerProtocolAssignmentJsonConverter.write(new ConsumerProtocolAssignment(readable, version), version));
    }
    return group;
  }

  private static void replace(ObjectNode member, String field, java.util.function.BiFunction<ByteBufferAccessor, Short, JsonNode> read)
      throws IOException {
    ByteBufferAccessor readable = new ByteBufferAccessor(ByteBuffer.wrap(member.get(field).binaryValue()));
    try {
      member.replace(field, read.apply(readable, readable.readShort()));
    } catch (RuntimeException e) {
      return; // the bytes stay
    }
  }

  private static JsonNode keyOf(String decoder, ApiMessage key) {
    return switch (decoder) {
      case "offsets" -> org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters.writeRecordKeyAsJson(key);
      case "transactions" ->
          org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordJsonConverters.writeRecordKeyAsJson(key);
      default -> org.apache.kafka.coordinator.share.generated.CoordinatorRecordJsonConverters.writeRecordKeyAsJson(key);
    };
  }

  private static JsonNode valueOf(String decoder, ApiMessage value, short version) throws IOException {
    return switch (decoder) {
      case "offsets" -> withMembers(
          org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters.writeRecordValueAsJson(value, version));
      case "transactions" ->
          org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordJsonConverters.writeRecordValueAsJson(value, version);
      default ->
          org.apache.kafka.coordinator.share.generated.CoordinatorRecordJsonConverters.writeRecordValueAsJson(value, version);
    };
  }
}
