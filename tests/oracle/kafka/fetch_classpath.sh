# To be sourced after settings.sh. fetch_classpath VERSION FILE ARTIFACT...: one line of jars, separated by ':', from Maven
# Central; nothing if the file is there, and all of its jars.
fetch_classpath() {
    local version=$1 file=$2 pom jar missing= artifact
    shift 2
    if [ -s "$file" ]; then
        while read -r jar; do [ -e "$jar" ] || missing=1; done < <(tr ':' '\n' <"$file")
        [ "$missing" ] || return 0
    fi
    echo "fetching the jars of Kafka $version" >&2
    pom=$(mktemp -d)
    {
        cat <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>seglog</groupId><artifactId>kafka-oracle</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <!-- First, so that Kafka's messages go to standard error whatever other binding its jars bring. -->
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
POM
        for artifact in "$@"; do
            echo "<dependency><groupId>org.apache.kafka</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
        done
        echo "</dependencies></project>"
    } >"$pom/pom.xml"
    "$here/../maven.sh" "$pom/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath \
        -Dmdep.outputFile="$file.$$" -DincludeScope=runtime >&2
    mv "$file.$$" "$file"
    rm -rf "$pom"
}
