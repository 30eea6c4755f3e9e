#!/bin/bash
# prepare.sh VERSION...: fetch the jars of old Kafka releases from Maven Central into build/oracle/old_brokers/VERSION.jars,
# and compile the clients in src/ against them, where that is not done yet; of 2.8.2, 3.9.1 and 4.1.1 the clients alone. Needs Maven and a JDK 17.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SEGLOG_OLD_BROKERS_CACHE:-$here/../../../build/oracle/old_brokers}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
# Two test workers may be first at the same time.
exec 8>"$cache/.lock"
if command -v flock >/dev/null; then flock 8; fi

fetch_jars() { # fetch_jars VERSION SCALA DIR
    local version=$1 scala=$2 dir=$3 pom exclusions= more= artifact
    # What old Kafka asks for and no registry has any more; and a second binding of slf4j.
    for artifact in com.sun.jdmk:jmxtools com.sun.jmx:jmxri javax.jms:jms org.slf4j:slf4j-log4j12; do
        exclusions+="<exclusion><groupId>${artifact%:*}</groupId><artifactId>${artifact#*:}</artifactId></exclusion>"
    done
    dependency() {
        more+="<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version>"
        more+="<exclusions>$exclusions</exclusions></dependency>"
    }
    case $version in
        0.8.* | 0.9.* | 0.10.0.*) dependency log4j log4j 1.2.17 ;;
        # Java 17 has no JAXB any more, which these use for Base64.
        0.10.2.* | 0.11.* | 1.*) dependency log4j log4j 1.2.17; dependency javax.xml.bind jaxb-api 2.3.1 ;;
        # kafka.tools, in a jar of its own since 3.3.
        3.*) dependency org.apache.kafka kafka-tools "$version" ;;
    esac
    # Clients alone need no broker.
    if [ -n "$scala" ]; then dependency org.apache.kafka "kafka_$scala" "$version"; fi
    pom=$(mktemp -d)
    cat >"$pom/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>seglog</groupId><artifactId>old-brokers</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>$version</version></dependency>
    $more
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
    "$here/../maven.sh" "$pom/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DoutputDirectory="$dir" -DincludeScope=runtime >&2
    rm -rf "$pom"
}

for version in "$@"; do
    case $version in
        0.8.2.2) scala=2.11 sources="Common SimpleConsume Produce ScalaProduce Commands" ;;
        0.9.0.1 | 0.10.0.1) scala=2.11 sources="Common Consume Produce ScalaProduce Commands" ;;
        0.10.2.2 | 0.11.0.3 | 1.1.1) scala=2.12 sources="Common Consume Produce ScalaProduce Commands" ;;
        2.4.1 | 3.3.2) scala=2.13 sources="Common Consume Produce Commands" ;;
        2.8.2 | 3.9.1 | 4.1.1) scala="" sources="Common Consume Produce" ;;
        *) echo "not one of the old brokers: $version" >&2; exit 2 ;;
    esac
    jars=$cache/$version.jars classes=$cache/$version.classes
    if [ ! -e "$jars/.whole" ]; then
        echo "fetching the jars of Kafka $version" >&2
        fetch_jars "$version" "$scala" "$jars"
        touch "$jars/.whole"
    fi
    if [ ! -e "$classes" ] || [ -n "$(find "$here/src" -newer "$classes" -name '*.java')" ]; then
        rm -rf "$classes" "$classes.new"
        mkdir "$classes.new"
        (cd "$here/src" && javac -nowarn -Xlint:none -d "$classes.new" -cp "$jars/*" $(printf '%s.java ' $sources)) >&2
        mv "$classes.new" "$classes"
        touch "$classes"
    fi
done
