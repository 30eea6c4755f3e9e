#!/bin/sh
# Golden data of a broker's tier, as tests/golden/tiered.tar.gz: make_golden.sh PLUGIN CASES DIR
# PLUGIN: a checkout of Aiven's plug-in at v1.0.0 (its jars are in no Maven repository, so it is compiled here);
# CASES: tests/golden/unpacked/kafka/cases; DIR: a directory to work in, where tiered.tar.gz comes to be.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
plugin=$(cd "$1" && pwd) cases=$(cd "$2" && pwd)
mkdir -p "$3" && cd "$3"
mvn -q -B -f "$here/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath "-Dmdep.outputFile=$PWD/classpath"
jars=$(cat classpath)
mkdir -p classes
sources=$(find "$plugin/core" "$plugin/commons" "$plugin/storage/core" "$plugin/storage/filesystem" -path '*src/main*' -name '*.java')
# shellcheck disable=SC2086
javac -nowarn -Xlint:none -proc:none -d classes -cp "$jars" $sources "$here/WriteTiered.java"
write() { java -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "classes:$jars" WriteTiered "$@"; }
rm -rf tiered leaders && mkdir tiered
three="$cases/rollms-v2-k411/rollms-v2-k411-0 $cases/txn-v2-k411/txn-v2-k411-0 $cases/v1-none-ct-k411/v1-none-ct-k411-0"
# shellcheck disable=SC2086
write tiered/plain chunk.size=1000 $three
# shellcheck disable=SC2086
write tiered/compressed chunk.size=1000,compression.enabled=true,key.prefix=tier/ $three
openssl genrsa -out key.pem 2048
openssl rsa -in key.pem -pubout -out public.pem
openssl pkcs8 -topk8 -nocrypt -in key.pem -out private.pem
keys=encryption.key.pairs=k,encryption.key.pairs.k.public.key.file=$PWD/public.pem,encryption.key.pairs.k.private.key.file=$PWD/private.pem
write tiered/encrypted "chunk.size=1000,encryption.enabled=true,encryption.key.pair.id=k,$keys" "$cases/txn-v2-k411/txn-v2-k411-0"
# One log as two leaders rolled it: segments of both overlap in the tier.
"${PYTHON:-python3}" "$here/two_leaders.py" leaders
write tiered/leaders chunk.size=3000 leaders/first/moved-0
write tiered/leaders chunk.size=4096,first.id=1001 leaders/second/moved-0
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - tiered | gzip -9n > tiered.tar.gz
