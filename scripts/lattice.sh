#!/usr/bin/env bash
# Trains one model on every layout of up to 8 ranks and compares each with one process: docs/lattice.md is what it
# writes. An hour and less on two cores; a second start goes on where the first was stopped.
#   scripts/lattice.sh [results.tsv]
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-build/lattice/results.tsv}
mkdir -p "$(dirname "$results")"
scripts/build.sh release test_engine
status=0
FTRUN_LATTICE_RESULTS=$results nice -n 19 build/release/bin/test_engine "the lattice of all layouts" -r compact || status=$?
python3 scripts/lattice_table.py "$results" | tee docs/lattice.md
exit "$status"
