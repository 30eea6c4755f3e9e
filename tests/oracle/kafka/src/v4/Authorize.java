import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Answers questions about ACLs by the StandardAuthorizer: 1 for allowed, 0 for denied, a line each. Input, by tabs:
 *   new SUPER_USERS ALLOW_EVERYONE
 *   acl TYPE NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION
 *   ask PRINCIPAL HOST OPERATION TYPE NAME
 *   some PRINCIPAL HOST OPERATION TYPE          (authorizeByResourceType)
 */
public final class Authorize {
    private record Client(String name, String host) implements AuthorizableRequestContext {
        public String listenerName() {
            return "X";
        }

        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.SASL_PLAINTEXT;
        }

        public KafkaPrincipal principal() {
            int colon = name.indexOf(':');
            return new KafkaPrincipal(name.substring(0, colon), name.substring(colon + 1));
        }

        public InetAddress clientAddress() {
            try {
                return InetAddress.getByName(host);
            } catch (UnknownHostException e) {
                throw new IllegalArgumentException(e);
            }
        }

        public int requestType() {
            return 0;
        }

        public int requestVersion() {
            return 0;
        }

        public String clientId() {
            return "client";
        }

        public int correlationId() {
            return 0;
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StandardAuthorizer authorizer = null;
        Map<Uuid, StandardAcl> acls = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] of = line.split("\t", -1);
            if (of[0].equals("new")) {
                authorizer = new StandardAuthorizer();
                authorizer.configure(Map.of(
                    "super.users", of[1], "allow.everyone.if.no.acl.found", of[2], "node.id", "1"));
                authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), new LinkedHashMap<>()));
                acls = new HashMap<>();
            } else if (of[0].equals("acl")) {
                acls.put(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.valueOf(of[1]), of[2], PatternType.valueOf(of[3]), of[4], of[5],
                    AclOperation.valueOf(of[6]), AclPermissionType.valueOf(of[7])));
            } else {
                if (acls != null) {
                    authorizer.loadSnapshot(acls);
                    authorizer.completeInitialLoad();
                    acls = null;
                }
                Client client = new Client(of[1], of[2]);
                AclOperation operation = AclOperation.valueOf(of[3]);
                ResourceType type = ResourceType.valueOf(of[4]);
                AuthorizationResult result = of[0].equals("some")
                    ? authorizer.authorizeByResourceType(client, operation, type)
                    : authorizer.authorize(client, List.of(new Action(
                        operation, new ResourcePattern(type, of[5], PatternType.LITERAL), 1, true, true))).get(0);
                System.out.println(result == AuthorizationResult.ALLOWED ? "1" : "0");
            }
        }
    }
}
