#!/usr/bin/env bash
# Finds unsteady entries before CI does: runs entries of CTest many times under load and says how often each failed.
#   scripts/unsteady.sh [entry...] [--times 50] [--load 4]
# An entry is a name or a pattern ('e2e.s*'); without one, all entries run that start processes, wait or measure (CTest's labels e2e
# and waits). --load 4 keeps four processes computing, one writing to the disk and one holding memory; --load 0 nothing. Runs
# what is in build/release and build/asan; the outputs of what failed are in build/unsteady. Ctrl-C ends it and its load.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" scripts/find_unsteady.py "$@"
