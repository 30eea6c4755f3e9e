#!/bin/bash
# java.sh VERSION [-Dname=value...] CLASS ARGUMENTS...: run a class of src/ with the jars of that Kafka.
# Kafka's messages go to standard error; LOGLEVEL (default warn) says how many.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
version=$1
shift
"$here/prepare.sh" "$version"
# Codec libraries are unpacked there, and copies of logs; a JVM that is halted leaves them.
scratch=$(mktemp -d "$cache/tmp/XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# Benchmarks, which bring options of their own, shall have a JVM as everybody starts it.
archive=$cache/$version.jsa
if [ -e "$archive" ] && [[ " $* " != *" -XX:"* ]]; then options+=" -XX:SharedArchiveFile=$archive"; fi
java $options -Djava.io.tmpdir="$scratch" -Dorg.slf4j.simpleLogger.defaultLogLevel="${LOGLEVEL:-warn}" \
    -cp "$cache/classes-$version.jar:$(cat "$cache/$version.classpath")" "$@"
