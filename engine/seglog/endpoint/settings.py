"""Configuration of a server: Kafka's broker-wide keys, for `seglog serve` and `seglog.serve`."""

from seglog.config import MAX_INT, MAX_LONG, Settings, setting


class ServerConfig(Settings):
    """How a server treats its clients. Make one by `ServerConfig.of({"num.partitions": 3})`."""

    node_id: int = setting(
        1, "node.id", "number", "the number of the only node, which clients see", "KRaftConfigs.NODE_ID_CONFIG",
    )
    listener_security_protocol_map: str = setting(
        "", "listener.security.protocol.map", "text",
        "the protocol of each listener whose name is no protocol, such as INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL",
        "SocketServerConfigs.LISTENER_SECURITY_PROTOCOL_MAP_DEFAULT, which names the four protocols themselves",
    )
    authorizer_class_name: str = setting(
        "", "authorizer.class.name", "text",
        "whether ACLs count: a class of Kafka's, StandardAuthorizer or AclAuthorizer, by its full name, or nothing",
        "ServerConfigs.AUTHORIZER_CLASS_NAME_DEFAULT",
    )
    super_users: str = setting(
        "", "super.users", "text",
        "who may do everything, whatever the ACLs say, such as User:alice;User:bob",
        "StandardAuthorizer.SUPER_USERS_CONFIG",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "allow.everyone.if.no.acl.found", "boolean",
        "whether everybody may do everything to a resource that no ACL is about",
        "StandardAuthorizer.ALLOW_EVERYONE_IF_NO_ACL_IS_FOUND_CONFIG",
    )
    auto_create_topics_enable: bool = setting(
        True, "auto.create.topics.enable", "boolean",
        "whether a topic is created when a client requests its metadata, if the client allows it",
        "ServerLogConfigs.AUTO_CREATE_TOPICS_ENABLE_DEFAULT",
    )
    num_partitions: int = setting(
        1, "num.partitions", "partitions", "how many partitions a topic gets if it is created without a number",
        "ServerLogConfigs.NUM_PARTITIONS_DEFAULT",
        low=1,
    )
    max_topic_partitions: int = setting(
        10_000, "seglog.max.topic.partitions", "partitions",
        "largest number of partitions of a topic, whether a client asks for it or the log dir has it: partition "
        "directories with higher numbers are not served, which is logged",
        "seglog's own: in Kafka, a directory does not make a topic, and one request creates at most 10 000 partitions",
        low=1,
    )
    max_partitions: int = setting(
        20_000, "seglog.max.partitions", "partitions",
        "how many partitions all topics together may have before a client makes another one, which gets "
        "POLICY_VIOLATION; a topic is not created on request of its metadata",
        "seglog's own: Kafka has no limit",
        low=1,
    )
    max_partition_producers: int = setting(
        100_000, "seglog.max.partition.producers", "count",
        "how many idempotent producers a partition remembers (producer.id.expiration.ms) before it refuses a new one "
        "with POLICY_VIOLATION",
        "seglog's own: Kafka has no limit",
        low=1,
    )
    max_producers: int = setting(
        500_000, "seglog.max.producers", "count",
        "how many idempotent producers all partitions together remember before a partition refuses a new one with "
        "POLICY_VIOLATION; a place that comes free counts within five seconds",
        "seglog's own: Kafka has no limit",
        low=1,
    )
    delete_topic_enable: bool = setting(
        True, "delete.topic.enable", "boolean", "whether clients may delete topics",
        "ServerConfigs.DELETE_TOPIC_ENABLE_DEFAULT",
    )
    socket_request_max_bytes: int = setting(
        100 << 20, "socket.request.max.bytes", "bytes",
        "largest request; a connection that announces a larger one is closed",
        "SocketServerConfigs.SOCKET_REQUEST_MAX_BYTES_DEFAULT",
        low=1,
    )
    sasl_server_max_receive_size: int = setting(
        16 << 10, "sasl.server.max.receive.size", "bytes", "largest request of a client that is not authenticated yet",
        "BrokerSecurityConfigs.DEFAULT_SASL_SERVER_MAX_RECEIVE_SIZE is 512 KiB, for Kerberos, which is not available",
        low=1,
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "connection.failed.authentication.delay.ms", "ms",
        "how long the answer to a wrong password is delayed",
        "BrokerSecurityConfigs / ServerConfigs.FAILED_AUTHENTICATION_DELAY_MS_DEFAULT",
    )
    connections_login_timeout_ms: int = setting(
        10_000, "seglog.connections.login.timeout.ms", "ms",
        "a connection is closed if it is not authenticated, or TLS is not set up, within this time",
        "seglog's own: in Kafka, connections.max.idle.ms is the only limit",
        low=1, high=MAX_LONG,
    )
    max_connections_logging_in: int = setting(
        200, "seglog.max.connections.logging.in", "connections",
        "maximum number of connections that are not authenticated yet, and at most a quarter of all; one more closes "
        "the oldest of them",
        "seglog's own: in Kafka, they count as any other connection",
        low=1,
    )
    queued_max_request_bytes: int = setting(
        -1, "queued.max.request.bytes", "bytes",
        "memory that the requests of all connections may take together, with what the batches being checked take "
        "uncompressed; while they do, no further one is read. -1: no limit",
        "ServerConfigs.QUEUED_MAX_REQUEST_BYTES_DEFAULT",
        low=1, high=MAX_LONG, besides=(-1,),
    )
    connections_max_idle_ms: int = setting(
        600_000, "connections.max.idle.ms", "ms",
        "a connection is closed if no complete request arrives, and no part of an answer is taken, for so long; a "
        "fetch waits no longer for records, whatever the client asks",
        "SocketServerConfigs.CONNECTIONS_MAX_IDLE_MS_DEFAULT; in Kafka, a part of a request counts, too",
        low=1, high=MAX_LONG,
    )
    max_connections: int = setting(
        MAX_INT, "max.connections", "connections",
        "maximum number of connections, and at most half of the files that the process may open, since logs need the "
        "others; further ones are closed at once",
        "SocketServerConfigs.MAX_CONNECTIONS_DEFAULT; in Kafka, they wait",
        low=1,
    )
    fetch_max_bytes: int = setting(
        55 << 20, "fetch.max.bytes", "bytes", "largest answer to a fetch, whatever the client allows",
        "ServerConfigs.DEFAULT_FETCH_MAX_BYTES",
        low=1024,
    )
    @classmethod
    def _name_of(cls, spelling: str) -> str:
        return spelling.replace("_", ".")
