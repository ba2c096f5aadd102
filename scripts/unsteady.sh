#!/usr/bin/env bash
# Runs entries of CTest many times under load and prints how often each failed, to find flaky
# entries before CI does.
#
#   scripts/unsteady.sh [ENTRY...] [--times N] [--load N]
#
#   ENTRY       a name or a pattern ('e2e.s*'); default: all entries that start processes, wait or
#               measure (CTest's labels e2e and waits)
#   --times N   number of runs of each entry (default: 50)
#   --load N    keeps N processes computing, one writing to the disk and one holding memory
#               (default: 4); 0 means no load
#
# The entries are those of build/release and build/asan. Outputs of failures are in build/unsteady.
# Ctrl-C ends the script and its load. It exits with 1 if an entry failed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" scripts/find_unsteady.py "$@"
