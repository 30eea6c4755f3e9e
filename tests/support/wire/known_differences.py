"""Where our server answers otherwise than a broker of Kafka 3.9.1, and of 4.4.0 in later versions, and why: patterns of
`path | theirs | ours`."""

KNOWN = [
    # --- on purpose
    (r"message \|.*<error_message>", "the texts of errors are our own"),
    (
        r"^ApiVersions .*\.api_keys\.\d+ \|.*<nothing>$",
        "APIs that the server does not have: brokers among themselves, quotas, …",
    ),
    (r"^ApiVersions .*\.api_keys\.\d+\.max_version \|", "versions that came after 3.9.1: newest_conversation.py"),
    (r"^ApiVersions .*_features", "two features: the others are of a controller and of share groups"),
    (
        r"\.configs\.[\w.]+ \|.*<nothing>",
        "keys that only Kafka has (replicas, remote storage), and our own (cleaner.dedupe.…)",
    ),
    (r"\.configs\.(flush\.ms|message\.timestamp\.after\.max\.ms)\.", "defaults of our logs; docs/config.md says why"),
    (r"\.configs\.message\.format\.version\.", "a topic without it keeps the formats that are sent"),
    (
        r"\.configs\.(file\.delete\.delay|retention)\.ms\.",
        "the broker of the oracle has these in its own configuration",
    ),
    (
        r"\.is_default \| False \| True$",
        "Kafka calls only what is set nowhere a default, in version 0; ours, what no topic sets",
    ),
    (r"^DescribeConfigs v\d: the broker\..*\.read_only \| False \| True$",
     "the settings of the server are those that it was started with"),
    (r"\.synonyms\b", "a topic's key has no synonyms: a server's keys have the names of topics' keys"),
    (
        r"^Fetch v[7-9]: a new session|^Fetch v1\d: a new session",
        "no sessions of fetches: id 0 tells a client to ask in full",
    ),
    (
        r"^Fetch v11: what Produce v[012] stored\.",
        "Kafka 3 stores old messages as v2; ours as they came, unless a topic says",
    ),
    (r"^Fetch v[234]: messages sent in format [01]\.", "the same"),
    (
        r"^Fetch v[0-3]: .*\.records \|",
        "Kafka cuts converted records at the size that they had before; ours sends them whole",
    ),
    (r"^DescribeTransactions v0: .*\.producer_id \| <producer of fetching> \| 0$",
     "of an error: 0, which is also the id of the broker's first producer"),
    (r"\.aborted_transactions \| None \| \[\]$", "of an error: a client reads an empty list and null alike"),
    (r"^WriteTxnMarkers v\d: of no (producer|epoch)\..*error_code \| -1 \| 42$",
     "what no marker can have: Kafka fails within, UNKNOWN_SERVER_ERROR; here the request is invalid"),
    (r"^UpdateFeatures v[01]: an unknown one\.error_code \| 0 \| 95$",
     "Kafka 4 says it of all features at once, and sarama looks there only"),
    (r"^OffsetCommit v0:|^OffsetFetch v0:|^OffsetDelete v0: one partition|^DescribeGroups v0: a group without members",
     "offsets of version 0 were in ZooKeeper, which KRaft has not: here they are the group's, for clients of 0.8"),
    (r"^OffsetFetch v8: (while a transaction is open|after its end)",
     "a commit of an old epoch makes Kafka forget the pending offset of the same producer: here it stays"),
    (r"^OffsetFetch v\d: .*simple-\d", "offsets of version 0, as above"),
    # --- smaller ones, each with why it stays
    (
        r"^CreateTopics v\d: (to see|a name that is taken but for a dot)\.",
        "of a topic that is only checked, Kafka tells the configuration, and an id that nobody keeps",
    ),
    (
        r"^IncrementalAlterConfigs v\d: an unknown operation\.",
        "Kafka fails within, UNKNOWN_SERVER_ERROR; here it is an invalid setting",
    ),
    (
        r"^ListOffsets v0: (earliest here|largest time|tiered|unknown|the same twice)\.",
        "no client sends them in version 0: Kafka answers a list of offsets twice, or that version 1 is needed",
    ),
    (r"^Metadata v12: by no name", "neither name nor id: Kafka fails within, UNKNOWN_SERVER_ERROR"),
    (r"^DescribeTopicPartitions v0: no name\.", "the same: Kafka fails within"),
    (
        r"^Produce v[012]: half a batch\.",
        "Kafka drops the torn end of a message set and says nothing; here its client hears that it is refused",
    ),
    (r"^Produce v[012]: (format [012]|two batches|zstd)\..*base_offset", "follows from it"),
    (
        r"^Produce v\d+: sequence 0 again\..*log_append_time_ms",
        "Kafka gives a repeated batch its largest time though it has CreateTime",
    ),
]

KNOWN_440 = [
    (r"^WriteTxnMarkers v\d: of no (producer|epoch)\..*error_code \| -1 \| 42$",
     "what no marker can have: Kafka fails within, UNKNOWN_SERVER_ERROR; here the request is invalid"),
    (r"message \|.*<error_message>", "the texts of errors are our own"),
    (
        r"^ApiVersions .*\.api_keys\.\d+ \|.*<nothing>$",
        "APIs that the server does not have: brokers among themselves, share groups, streams, …",
    ),
    (r"^ApiVersions .*\.api_keys\.\d+\.min_version \| [124] \| 0$", "versions that 4.0 dropped stay for old clients"),
    (r"^ApiVersions .*_features", "two features: the others are of a controller and of share groups"),
    (r"\.aborted_transactions \| None \| \[\]$", "of an error: a client reads an empty list and null alike"),
    (
        r"^DescribeConfigs v4: .*\.configs\.(errors|share|streams|consumer\.assign)\S+ \|.*<nothing>$",
        "settings of what the server does not have",
    ),
    (
        r"^OffsetFetch v\d+: by no id of consumers-\d, epoch 1\.",
        "an epoch without a member: Kafka fails within, UNKNOWN_SERVER_ERROR; here the member is unknown",
    ),
    (
        r"^Produce v\d+: sequence 0 again\..*log_append_time_ms",
        "Kafka gives a repeated batch its largest time though it has CreateTime",
    ),
]
