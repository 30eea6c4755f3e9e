import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;

/** AdminCalls ADDRESS: makes every call of Kafka's Admin about the topic "orders", and prints its name and the exceptions
 *  that it ended with. */
public final class AdminCalls {
    private static final Map<String, Callable<Object>> CALLS = new LinkedHashMap<>();

    private static void wait(Object result, Set<String> errors) throws Exception {
        if (result instanceof KafkaFuture<?> future) {
            try {
                wait(future.get(20, TimeUnit.SECONDS), errors);
            } catch (ExecutionException e) {
                errors.add(e.getCause().getClass().getSimpleName());
            } catch (TimeoutException e) {
                errors.add("NoAnswer");
            }
        } else if (result instanceof Map<?, ?> map) {
            for (Object one : map.values()) {
                wait(one, errors);
            }
        } else if (result instanceof Collection<?> all) {
            for (Object one : all) {
                wait(one, errors);
            }
        }
    }

    /** The exceptions in all futures that a result has. */
    private static Set<String> errors(Object result) throws Exception {
        Set<String> errors = new TreeSet<>();
        for (Method method : result.getClass().getMethods()) {
            Class<?> type = method.getReturnType();
            boolean isFuture = KafkaFuture.class.isAssignableFrom(type) || Map.class.isAssignableFrom(type);
            if (isFuture && method.getParameterCount() == 0 && !Modifier.isStatic(method.getModifiers())) {
                method.setAccessible(true);
                try {
                    wait(method.invoke(result), errors);
                } catch (InvocationTargetException e) {
                    errors.add(e.getCause().getClass().getSimpleName());
                }
            }
        }
        return errors;
    }

    private static void prepare(Admin admin) {
        TopicPartition first = new TopicPartition("orders", 0);
        TopicPartitionReplica replica = new TopicPartitionReplica("orders", 0, 1);
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "orders");
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "readers");
        AclBinding acl = new AclBinding(
            new ResourcePattern(ResourceType.TOPIC, "x", PatternType.LITERAL),
            new AccessControlEntry("User:x", "*", AclOperation.READ, AclPermissionType.ALLOW));
        CALLS.put("createTopics", () -> admin.createTopics(List.of(new NewTopic("made", 1, (short) 1))));
        CALLS.put("deleteTopics", () -> admin.deleteTopics(List.of("made")));
        CALLS.put("listTopics", admin::listTopics);
        CALLS.put("describeTopics", () -> admin.describeTopics(List.of("orders")));
        CALLS.put("describeCluster", admin::describeCluster);
        CALLS.put("createAcls", () -> admin.createAcls(List.of(acl)));
        CALLS.put("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY));
        CALLS.put("deleteAcls", () -> admin.deleteAcls(List.of(AclBindingFilter.ANY)));
        CALLS.put("describeConfigs", () -> admin.describeConfigs(List.of(topic, broker)));
        CALLS.put("describeConfigs of a group", () -> admin.describeConfigs(List.of(group)));
        CALLS.put("incrementalAlterConfigs", () -> admin.incrementalAlterConfigs(Map.of(topic, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "1000000"), AlterConfigOp.OpType.SET)))));
        CALLS.put("incrementalAlterConfigs of a group", () -> admin.incrementalAlterConfigs(Map.of(group, List.of(
            new AlterConfigOp(new ConfigEntry("consumer.session.timeout.ms", "50000"), AlterConfigOp.OpType.SET)))));
        CALLS.put("describeLogDirs", () -> admin.describeLogDirs(List.of(1)));
        CALLS.put("alterReplicaLogDirs", () -> admin.alterReplicaLogDirs(Map.of(replica, "/nowhere")));
        CALLS.put("describeReplicaLogDirs", () -> admin.describeReplicaLogDirs(List.of(replica)));
        CALLS.put("createPartitions", () -> admin.createPartitions(Map.of("orders", NewPartitions.increaseTo(2))));
        CALLS.put("deleteRecords", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(0))));
        CALLS.put("createDelegationToken", admin::createDelegationToken);
        CALLS.put("renewDelegationToken", () -> admin.renewDelegationToken(new byte[] {1}));
        CALLS.put("expireDelegationToken", () -> admin.expireDelegationToken(new byte[] {1}));
        CALLS.put("describeDelegationToken", admin::describeDelegationToken);
        CALLS.put("alterConsumerGroupOffsets", () -> admin.alterConsumerGroupOffsets("readers", Map.of(
            first, new OffsetAndMetadata(0), new TopicPartition("orders", 1), new OffsetAndMetadata(0))));
        CALLS.put("describeConsumerGroups", () -> admin.describeConsumerGroups(List.of("readers")));
        CALLS.put("describeClassicGroups", () -> admin.describeClassicGroups(List.of("readers")));
        CALLS.put("listConsumerGroups", admin::listConsumerGroups);
        CALLS.put("listGroups", admin::listGroups);
        CALLS.put("listConsumerGroupOffsets", () -> admin.listConsumerGroupOffsets("readers"));
        CALLS.put("deleteConsumerGroupOffsets", () -> admin.deleteConsumerGroupOffsets("readers", Set.of(first)));
        CALLS.put("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of("readers")));
        CALLS.put("electLeaders", () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(first)));
        CALLS.put("alterPartitionReassignments", () -> admin.alterPartitionReassignments(Map.of(
            first, Optional.of(new NewPartitionReassignment(List.of(1))))));
        CALLS.put("listPartitionReassignments", admin::listPartitionReassignments);
        CALLS.put("listOffsets", () -> admin.listOffsets(Map.of(first, OffsetSpec.latest())));
        CALLS.put("listOffsets earliestPendingUpload",
            () -> admin.listOffsets(Map.of(first, OffsetSpec.earliestPendingUpload())));
        CALLS.put("describeClientQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()));
        CALLS.put("alterClientQuotas", () -> admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
            new ClientQuotaEntity(Map.of("user", "x")),
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1.0))))));
        CALLS.put("alterUserScramCredentials", () -> admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion(
                "alice", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret"))));
        CALLS.put("describeUserScramCredentials", admin::describeUserScramCredentials);
        CALLS.put("describeFeatures", admin::describeFeatures);
        CALLS.put("updateFeatures", () -> admin.updateFeatures(Map.of(
            "x", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE))));
        CALLS.put("describeMetadataQuorum", admin::describeMetadataQuorum);
        CALLS.put("unregisterBroker", () -> admin.unregisterBroker(77));
        CALLS.put("unregisterController", () -> admin.unregisterController(77));
        CALLS.put("describeProducers", () -> admin.describeProducers(List.of(first)));
        CALLS.put("fenceProducers", () -> admin.fenceProducers(List.of("writer")));
        CALLS.put("describeTransactions", () -> admin.describeTransactions(List.of("writer")));
        CALLS.put("listTransactions", admin::listTransactions);
        CALLS.put("abortTransaction", () -> admin.abortTransaction(new AbortTransactionSpec(first, 1, (short) 0, 0)));
        CALLS.put("forceTerminateTransaction", () -> admin.forceTerminateTransaction("writer"));
        CALLS.put("listConfigResources", admin::listConfigResources);
        CALLS.put("listClientMetricsResources", admin::listClientMetricsResources);
        CALLS.put("addRaftVoter", () -> admin.addRaftVoter(1, Uuid.ONE_UUID, Set.of()));
        CALLS.put("removeRaftVoter", () -> admin.removeRaftVoter(1, Uuid.ONE_UUID));
        CALLS.put("describeShareGroups", () -> admin.describeShareGroups(List.of("sharers")));
        CALLS.put("alterShareGroupOffsets", () -> admin.alterShareGroupOffsets("sharers", Map.of(first, 0L)));
        CALLS.put("listShareGroupOffsets",
            () -> admin.listShareGroupOffsets(Map.of("sharers", new ListShareGroupOffsetsSpec())));
        CALLS.put("deleteShareGroupOffsets", () -> admin.deleteShareGroupOffsets("sharers", Set.of("orders")));
        CALLS.put("describeStreamsGroups", () -> admin.describeStreamsGroups(List.of("streams")));
    }

    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.<String, Object>of(
                "bootstrap.servers", arguments[0], "request.timeout.ms", 8000, "default.api.timeout.ms", 12000))) {
            prepare(admin);
            for (Map.Entry<String, Callable<Object>> call : CALLS.entrySet()) {
                System.out.println(call.getKey() + "\t" + String.join(" ", errors(call.getValue().call())));
            }
        }
    }
}
