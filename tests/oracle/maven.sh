#!/bin/bash
# maven.sh POM GOAL OPTIONS...: run Maven without its messages. One at a time: two would write the same files of its local
# repository.
set -euo pipefail
exec 9>"${TMPDIR:-/tmp}/seglog-maven-$(id -u).lock"
if command -v flock >/dev/null; then flock 9; fi
exec mvn -q -B -f "$@"
