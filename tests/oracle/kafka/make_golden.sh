#!/bin/bash
# make_golden.sh DIR SEED golden|variant: have real Kafka write a whole golden set, with its own answers, in about two minutes.
# tests/golden/kafka.tar.gz was made with seed 20240601 and "golden"; "variant" changes batch counts, segment and index sizes.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
set=$(mkdir -p "$1" && cd "$1" && pwd)
seed=$2
shape=$3
java="$here/java.sh"

# Gen and Conv say on standard error which cases they do not make for a version.
quietly() { "$@" 2> >(grep -v SLF4J >&2); }

export LOGLEVEL=error
for version in 2.8.2 3.9.1 4.1.1; do
    quietly "$java" $version Gen "$set/cases" "$seed" "$shape"
done
quietly "$java" 3.9.1 Oracle describe "$set"/cases/*/*-0

# Kafka's warnings are part of what a start is remembered for.
export LOGLEVEL=warn
for version in 3.9.1 4.1.1; do
    quietly "$java" $version Oracle check-to "$set"/cases/{crash,txn,compact-v1,mixed}*/*-0
done
python3 "$here/corrupt.py" "$set/cases" "$set/corrupt" "$seed" \
    v2-lz4-ct-k391 v1-none-ct-k391 v0-gzip-ct-k282 v2-none-ct-k411 txn-v2-k391
quietly "$java" 3.9.1 -Dkeep=1 Oracle check-to "$set"/corrupt/*/*-0
quietly "$java" 4.1.1 Oracle check-to "$set"/corrupt/*/*-0

quietly "$java" 3.9.1 Conv down "$set/convert/down" \
    "$set"/cases/{v1,v2,mixed,txn,idem,compact-v2-mixed,compact-v1,ts-odd,bigoffset-v1,bigoffset-v2}*k391/*-0
quietly "$java" 3.9.1 Conv up "$set/convert/up" "$seed"
quietly "$java" 4.1.1 ConvUp4 "$set/convert/up-at-rest" \
    "$set"/cases/{v0,v1,mixed,bigoffset-v0,bigoffset-v1,ts-odd-v1,compact-v0,compact-v1}*/*-0

find "$set" \( -name expected.jsonl -o -name batches.jsonl -o -name lookups.json -o -name input.jsonl -o -name output.jsonl \
    -o -name output-batches.jsonl \) -print0 | xargs -0 gzip -nf9
