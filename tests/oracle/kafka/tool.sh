#!/bin/bash
# tool.sh VERSION CLASS ARGUMENTS...: run a class of the jar kafka-tools of that Kafka, such as
# org.apache.kafka.tools.VerifiableProducer. Kafka's messages go to standard error. Needs Maven and Java 17.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
source "$here/fetch_classpath.sh"
version=$1
shift
classpath=$cache/$version.tools.classpath
fetch_classpath "$version" "$classpath" kafka-tools connect-file
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel="${LOGLEVEL:-warn}" \
    -cp "$(cat "$classpath")" "$@"
