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
        4.1.1) folders="common reader v411" ;;
        *) echo "no Shim for Kafka $version: 2.8.2, 3.9.1 or 4.1.1" >&2; exit 2 ;;
    esac
    sources=$(cd "$here/src" && find $folders -name '*.java' | sort)
    if [ ! -e "$classes" ] || [ -n "$(cd "$here/src" && find $folders -newer "$classes" -name '*.java')" ]; then
        echo "compiling the oracle for Kafka $version" >&2
        rm -rf "$classes" "$classes.new"
        mkdir "$classes.new"
        (cd "$here/src" && javac -nowarn -Xlint:none --release 17 -d "$classes.new" -cp "$(cat "$classpath")" $sources)
        mv "$classes.new" "$classes"
        touch "$classes"
    fi
done
