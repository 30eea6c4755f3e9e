#!/bin/bash
# make_pairs.sh DIR SEED golden|variant: have real Kafka write DIR/pairs: logs before and after its cleaner, its retention and its
# rolling, by three versions. tests/golden/kafka.tar.gz was made with seed 77 and "golden".
set -euo pipefail
source "$(dirname "$0")/settings.sh"
pairs=$(mkdir -p "$1" && cd "$1" && pwd)/pairs
seed=$2
shape=$3
java="$here/java.sh"
quietly() { "$@" 2> >(grep -v SLF4J >&2); }

export LOGLEVEL=error
rm -rf "$pairs"
mkdir "$pairs"
for version in 3.9.1 2.8.2 4.1.1; do # the logs before; who wrote one is in its meta.json
    quietly "$java" $version Pairs gen "$pairs/compact" "$seed" "$shape"
done
quietly "$java" 3.9.1 Pairs retain-gen "$pairs/retention" "$seed" "$shape"
quietly "$java" 3.9.1 Pairs roll-gen "$pairs/roll" "$seed" "$shape"
for version in 3.9.1 2.8.2 4.1.1; do
    quietly "$java" $version Pairs clean-all "$pairs/compact"
    quietly "$java" $version Pairs retain-all "$pairs/retention"
    quietly "$java" $version Pairs roll-run "$pairs"/roll/*
done
quietly "$java" 3.9.1 Oracle describe-pair "$pairs"/compact/*/{before,after-*}/*-0
