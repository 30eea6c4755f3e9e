# Where things are; sourced by the scripts beside it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Class paths and classes are made once and kept outside the sources.
cache=${SEGLOG_ORACLE_CACHE:-$here/../../../build/oracle/kafka}
mkdir -p "$cache/tmp"
cache=$(cd "$cache" && pwd)
# Of every JVM. What the JVM itself has to say must not stand among the answers.
options='-Xmx1g -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:disable -Xlog:all=warning:stderr'
