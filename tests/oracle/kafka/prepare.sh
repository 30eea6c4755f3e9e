#!/bin/bash
# prepare.sh VERSION...: fetch the jars of real Kafka releases from Maven Central and compile src/ against them, where that is
# not done yet. Needs Maven and a JDK 17.
set -euo pipefail
source "$(dirname "$0")/settings.sh"

fetch_classpath() { # fetch_classpath VERSION FILE: one line of jars, separated by ':'
    local version=$1 file=$2 pom
    pom=$(mktemp -d)
    cat >"$pom/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>seglog</groupId><artifactId>kafka-oracle</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <!-- First, so that Kafka's messages go to standard error whatever other binding its jars bring. -->
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
    mvn -q -B -f "$pom/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath \
        -Dmdep.outputFile="$file" -DincludeScope=runtime >&2
    rm -rf "$pom"
}

for version in "$@"; do
    classpath=$cache/$version.classpath
    classes=$cache/classes-$version
    jars_present() { [ -s "$classpath" ] && tr ':' '\n' <"$classpath" | while read -r jar; do [ -e "$jar" ] || return 1; done; }
    if ! jars_present; then
        echo "fetching the jars of Kafka $version" >&2
        fetch_classpath "$version" "$classpath"
    fi
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
