# Where things are; sourced by the scripts beside it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Class paths and classes are made once and kept outside the sources.
cache=${SEGLOG_ORACLE_CACHE:-$here/../../../build/oracle/kafka}
mkdir -p "$cache/tmp"
cache=$(cd "$cache" && pwd)
