#!/bin/bash
# prepare.sh VERSION...: fetch the jars of real Kafka releases from Maven Central and compile src/ against them, where that is
# not done yet. Needs Maven and a JDK 17.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
source "$here/fetch_classpath.sh"

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
    if [ ! -e "$classes" ] || [ -n "$(cd "$here/src" && find $folders -newer "$classes" -type f)" ]; then
        echo "compiling the oracle for Kafka $version" >&2
        rm -rf "$classes" "$classes.new" "$cache/sources-$version"
        mkdir "$classes.new"
        cp -r "$here/src" "$cache/sources-$version"
        (
            cd "$cache/sources-$version"
            port=$(find $folders -name port.sed)
            sources=$(find $folders -name '*.java' | sort)
            [ -z "$port" ] || sed -i -E -f "$port" $sources
            javac -nowarn -Xlint:none --release 17 -d "$classes.new" -cp "$(cat "$classpath")" $sources
        )
        mv "$classes.new" "$classes"
        touch "$classes"
    fi
done
