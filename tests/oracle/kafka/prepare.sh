#!/bin/bash
# prepare.sh VERSION...: fetch the jars of real Kafka releases from Maven Central and compile src/ against them, where that is
# not done yet. Needs Maven and a JDK 17.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
source "$here/fetch_classpath.sh"
# Two test workers may be first at the same time.
exec 8>"$cache/.lock"
if command -v flock >/dev/null; then flock 8; fi

for version in "$@"; do
    classpath=$cache/$version.classpath
    classes=$cache/classes-$version
    fetch_classpath "$version" "$classpath" kafka_2.13 kafka-clients
    # 2.8.2 only generates: the readers need classes that came with 3.x.
    case $version in
        2.8.2) folders="common v282" ;;
        3.9.1) folders="common reader v391" ;;
        4.1.1) folders="common reader v4 v411" ;;
        4.4.0) folders="common reader v4 v440" ;;
        *) echo "no Shim for Kafka $version: 2.8.2, 3.9.1, 4.1.1 or 4.4.0" >&2; exit 2 ;;
    esac
    if [ ! -e "$classes.jar" ] || [ -n "$(cd "$here/src" && find $folders -newer "$classes.jar" -type f)" ]; then
        echo "compiling the oracle for Kafka $version" >&2
        rm -rf "$classes.new" "$cache/sources-$version"
        mkdir "$classes.new"
        cp -r "$here/src" "$cache/sources-$version"
        (
            cd "$cache/sources-$version"
            port=$(find $folders -name port.sed)
            sources=$(find $folders -name '*.java' | sort)
            [ -z "$port" ] || sed -i -E -f "$port" $sources
            javac -nowarn -Xlint:none --release 17 -d "$classes.new" -cp "$(cat "$classpath")" $sources
        )
        rm -f "$cache/$version.jsa"
        jar --create --file "$classes.jar.new" -C "$classes.new" .
        mv "$classes.jar.new" "$classes.jar"
        rm -rf "$classes.new"
        # The JVM keeps what it made of all these classes: the next broker takes two thirds of the processor time.
        [ $version != 2.8.2 ] || continue
        work=$(mktemp -d "$cache/tmp/XXXXXX")
        printf '%s\n' start 'create t 1' 'produce t-0 0 9 1700000000000 lz4 t commit' "consume t-0 read_committed $work/read" stop \
            | java $options -Djava.io.tmpdir="$work" -XX:ArchiveClassesAtExit="$cache/$version.jsa" \
            -cp "$classes.jar:$(cat "$classpath")" Serve "$work" >"$work/told" 2>&1 || cat "$work/told" >&2
        rm -rf "$work"
    fi
done
