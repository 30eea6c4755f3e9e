#!/bin/bash
# word_count.sh VERSION ARGUMENTS...: run WordCount.java with Kafka Streams of that version, after fetching its jars and
# compiling it where that is not done yet; without arguments only prepare. Needs Maven and a JDK 17.
set -euo pipefail
source "$(dirname "$0")/../../oracle/kafka/settings.sh"
source "$here/fetch_classpath.sh"
source_file=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/WordCount.java
version=$1
shift
classpath=$cache/$version.streams.classpath
classes=$cache/classes-$version-streams
fetch_classpath "$version" "$classpath" kafka-streams
if [ ! "$classes/WordCount.class" -nt "$source_file" ]; then
    javac -nowarn -d "$classes" -cp "$(cat "$classpath")" "$source_file"
fi
[ $# -gt 0 ] || exit 0
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel="${LOGLEVEL:-warn}" \
    -cp "$classes:$(cat "$classpath")" WordCount "$@"
