#!/bin/bash
# prepare.sh DIR: fetch the clients by npm, the Go module proxy and PyPI into DIR, and build what is to be built.
# Needs node with npm, go, and Python 2.7 and 3.6 as $PYTHON27 and $PYTHON36: the old releases run on no newer one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1/node" "$1/go" "$1/python"
cd "$1"
cp "$here"/node/* node/ && (cd node && npm install --no-audit --no-fund)
cp "$here"/go/* go/ && (cd go && go build -o produce .)
"$PYTHON27" -m pip install --quiet --no-deps --target python/kafka-python-0.9 kafka-python==0.9.5 six
"$PYTHON36" -m pip install --quiet --no-deps --target python/kafka-python kafka-python==1.3.5
"$PYTHON36" -m pip install --quiet --target python/confluent-kafka confluent-kafka==0.11.6
