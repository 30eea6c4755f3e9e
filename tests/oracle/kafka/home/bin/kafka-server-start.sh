#!/bin/bash
# What lies in bin/ of a Kafka 4.1.1 that was unpacked: kafka-server-start.sh server.properties
set -euo pipefail
source "$(dirname "$0")/../../settings.sh"
"$here/prepare.sh" 4.1.1
exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=info \
    -cp "$(cat "$cache/4.1.1.classpath")" kafka.Kafka "$@"
