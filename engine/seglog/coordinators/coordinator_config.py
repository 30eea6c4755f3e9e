"""Configuration of the group coordinator and the transaction coordinator: Kafka's broker keys."""

from seglog.config import MAX_LONG, Settings, setting


class CoordinatorConfig(Settings):
    """How groups and transactions work. Make one by `CoordinatorConfig.of({"offsets.retention.minutes": 60})`."""

    group_min_session_timeout_ms: int = setting(
        6_000, "group.min.session.timeout.ms", "ms",
        "the shortest session.timeout.ms that a member may ask for",
        "GroupCoordinatorConfig.GROUP_MIN_SESSION_TIMEOUT_MS_DEFAULT",
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "group.max.session.timeout.ms", "ms",
        "the longest session.timeout.ms that a member may ask for",
        "GroupCoordinatorConfig.GROUP_MAX_SESSION_TIMEOUT_MS_DEFAULT",
    )
    group_initial_rebalance_delay_ms: int = setting(
        0, "group.initial.rebalance.delay.ms", "ms",
        "how long the first member of an empty group waits for others to join; each one that joins prolongs it",
        "0, as in the server.properties that Kafka ships for development; "
        "GroupCoordinatorConfig.GROUP_INITIAL_REBALANCE_DELAY_MS_DEFAULT is 3000",
    )
    group_max_size: int = setting(
        5_000, "group.max.size", "count",
        "how many members a group may have",
        "5 000, since a group is stored in one record, which seldom has room for more; "
        "GroupCoordinatorConfig.GROUP_MAX_SIZE_DEFAULT is no limit",
        low=1,
    )
    consumer_session_timeout_ms: int = setting(
        45_000, "group.consumer.session.timeout.ms", "ms",
        "how long a member of the consumer protocol (KIP-848) may send no heartbeat",
        "GroupCoordinatorConfig.CONSUMER_GROUP_SESSION_TIMEOUT_MS_DEFAULT",
        low=1,
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000, "group.consumer.heartbeat.interval.ms", "ms",
        "how often members of the consumer protocol are told to send a heartbeat",
        "GroupCoordinatorConfig.CONSUMER_GROUP_HEARTBEAT_INTERVAL_MS_DEFAULT",
        low=1,
    )
    consumer_min_session_timeout_ms: int = setting(
        45_000, "group.consumer.min.session.timeout.ms", "ms",
        "the shortest consumer.session.timeout.ms that a group may get of its own",
        "GroupCoordinatorConfig.CONSUMER_GROUP_MIN_SESSION_TIMEOUT_MS_DEFAULT",
        low=1,
    )
    consumer_max_session_timeout_ms: int = setting(
        60_000, "group.consumer.max.session.timeout.ms", "ms",
        "the longest consumer.session.timeout.ms that a group may get of its own",
        "GroupCoordinatorConfig.CONSUMER_GROUP_MAX_SESSION_TIMEOUT_MS_DEFAULT",
        low=1,
    )
    consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "group.consumer.min.heartbeat.interval.ms", "ms",
        "the shortest consumer.heartbeat.interval.ms that a group may get of its own",
        "GroupCoordinatorConfig.CONSUMER_GROUP_MIN_HEARTBEAT_INTERVAL_MS_DEFAULT",
        low=1,
    )
    consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "group.consumer.max.heartbeat.interval.ms", "ms",
        "the longest consumer.heartbeat.interval.ms that a group may get of its own",
        "GroupCoordinatorConfig.CONSUMER_GROUP_MAX_HEARTBEAT_INTERVAL_MS_DEFAULT",
        low=1,
    )
    consumer_max_size: int = setting(
        5_000, "group.consumer.max.size", "count",
        "how many members a group of the consumer protocol may have",
        "5 000, as for classic groups; GroupCoordinatorConfig.CONSUMER_GROUP_MAX_SIZE_DEFAULT is no limit",
        low=1,
    )
    consumer_assignors: str = setting(
        "uniform,range", "group.consumer.assignors", "name",
        "which assignors members of the consumer protocol may ask for; the first one is the default",
        "GroupCoordinatorConfig.CONSUMER_GROUP_ASSIGNORS_DEFAULT; others, and names of classes, are not available",
        choices=("uniform,range", "range,uniform", "uniform", "range"),
    )
    max_groups: int = setting(
        50_000, "seglog.max.groups", "count",
        "how many groups clients may make; one more gets POLICY_VIOLATION",
        "seglog's own: Kafka has no limit",
        low=1,
    )
    group_members_max_bytes: int = setting(
        64 << 20, "seglog.group.members.max.bytes", "bytes",
        "what the members of all groups may hold together: their names, protocols and assignments, and 1 KiB for "
        "each; one more gets GROUP_MAX_SIZE_REACHED",
        "seglog's own: Kafka has no limit",
        low=1024, high=MAX_LONG,
    )
    group_offsets_max_bytes: int = setting(
        128 << 20, "seglog.group.offsets.max.bytes", "bytes",
        "what all groups and their committed offsets may hold together: 0.4 KiB and its metadata for each offset, 1.5 "
        "KiB and its name for each group; one more gets POLICY_VIOLATION",
        "seglog's own: Kafka has no limit",
        low=1024, high=MAX_LONG,
    )
    transactions_max_bytes: int = setting(
        128 << 20, "seglog.transactions.max.bytes", "bytes",
        "what all transactional ids may hold together: 0.5 KiB and its name for each, and 0.1 KiB for each partition "
        "of an open transaction; one more gets POLICY_VIOLATION",
        "seglog's own: Kafka has no limit",
        low=1024, high=MAX_LONG,
    )
    max_transactional_ids: int = setting(
        100_000, "seglog.max.transactional.ids", "count",
        "how many transactional ids clients may make; one more gets POLICY_VIOLATION",
        "seglog's own: Kafka has no limit",
        low=1,
    )
    offset_metadata_max_bytes: int = setting(
        4096, "offset.metadata.max.bytes", "bytes",
        "the longest metadata of a committed offset, in characters as Kafka counts them",
        "GroupCoordinatorConfig.OFFSET_METADATA_MAX_SIZE_DEFAULT",
    )
    offsets_topic_num_partitions: int = setting(
        50, "offsets.topic.num.partitions", "count",
        "number of partitions of __consumer_offsets when it is created",
        "GroupCoordinatorConfig.OFFSETS_TOPIC_PARTITIONS_DEFAULT",
        low=1,
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "offsets.topic.segment.bytes", "bytes",
        "segment.bytes of __consumer_offsets when it is created",
        "GroupCoordinatorConfig.OFFSETS_TOPIC_SEGMENT_BYTES_DEFAULT",
        low=14,
    )
    offsets_retention_minutes: int = setting(
        10_080, "offsets.retention.minutes", "minutes",
        "how long offsets are kept after the last member left their group, or after their commit if it has no members",
        "GroupCoordinatorConfig.OFFSETS_RETENTION_MINUTES_DEFAULT",
        low=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "offsets.retention.check.interval.ms", "ms",
        "how often expired offsets are removed",
        "GroupCoordinatorConfig.OFFSETS_RETENTION_CHECK_INTERVAL_MS_DEFAULT",
        low=1, high=MAX_LONG,
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "transaction.max.timeout.ms", "ms",
        "the longest transaction.timeout.ms that a producer may ask for",
        "TransactionStateManagerConfig.TRANSACTIONS_MAX_TIMEOUT_MS_DEFAULT",
        low=1,
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "transactional.id.expiration.ms", "ms",
        "how long a transactional id without a transaction is remembered",
        "TransactionStateManagerConfig.TRANSACTIONAL_ID_EXPIRATION_MS_DEFAULT",
        low=1,
    )
    transaction_abort_interval_ms: int = setting(
        10_000, "transaction.abort.timed.out.transaction.cleanup.interval.ms", "ms",
        "how often transactions that are open for longer than their producer's timeout are aborted",
        "TransactionStateManagerConfig.TRANSACTIONS_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS_DEFAULT",
        low=1,
    )
    transaction_expiration_interval_ms: int = setting(
        3_600_000, "transaction.remove.expired.transaction.cleanup.interval.ms", "ms",
        "how often expired transactional ids are removed",
        "TransactionStateManagerConfig.TRANSACTIONS_REMOVE_EXPIRED_TRANSACTIONAL_ID_CLEANUP_INTERVAL_MS_DEFAULT",
        low=1,
    )
    transaction_state_log_num_partitions: int = setting(
        50, "transaction.state.log.num.partitions", "count",
        "number of partitions of __transaction_state when it is created",
        "TransactionLogConfig.NUM_PARTITIONS_DEFAULT",
        low=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "transaction.state.log.segment.bytes", "bytes",
        "segment.bytes of __transaction_state when it is created",
        "TransactionLogConfig.SEGMENT_BYTES_DEFAULT",
        low=14,
    )
