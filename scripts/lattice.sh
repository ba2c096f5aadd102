#!/usr/bin/env bash
# Trains one model on every layout of up to 8 ranks, compares each layout with one process, and
# writes the comparison to docs/lattice.md.
#
#   scripts/lattice.sh [RESULTS.tsv]      (default: build/lattice/results.tsv)
#
# The script takes up to an hour on two cores. A second run resumes an interrupted one. It exits
# with the exit code of the comparison.
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-build/lattice/results.tsv}
mkdir -p "$(dirname "$results")"
scripts/build.sh release test_engine
status=0
FTRUN_LATTICE_RESULTS=$results nice -n 19 build/release/bin/test_engine "all layouts of the lattice are trained and recorded" -r compact || status=$?
python3 scripts/lattice_table.py "$results" | tee docs/lattice.md
exit "$status"
