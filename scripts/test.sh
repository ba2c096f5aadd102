#!/usr/bin/env bash
# Installs what is missing, builds, runs every test: the tensor-free folders under the address and
# undefined-behaviour sanitizers, and everything in the release build.
#   scripts/test.sh [--with-launchers]
# --with-launchers (and CI=true) installs mpirun and SLURM, so that the tests of both run; no service is started.
# At the end: what was skipped and why, the slowest entries, what broke its budget of seconds, and CTest's closing line.
set -euo pipefail
cd "$(dirname "$0")/.."
launchers=()
if [ "${CI:-}" = true ] || [ "${1:-}" = --with-launchers ]; then launchers=(--with-launchers); fi
if [ $# -gt 1 ] || { [ $# -eq 1 ] && [ "$1" != --with-launchers ]; }; then
  printf 'test.sh: unknown option; usage: scripts/test.sh [--with-launchers]\n' >&2
  exit 2
fi

# The sanitizers' build needs no LibTorch: it compiles while the wheels come.
scripts/setup.sh --only debian "${launchers[@]}"
scripts/setup.sh --only python &
python=$!
trap 'kill "$python" 2>/dev/null || true' EXIT
printf '[test] building the tensor-free folders with sanitizers\n'
FTRUN_SETUP=done scripts/build.sh asan unit_tests
wait "$python"
trap - EXIT
printf '[test] building everything\n'
FTRUN_SETUP=done scripts/build.sh release
.venv/bin/python scripts/make_model.py smollm2 --out models/smollm2-135m ||
  printf '[test] no SmolLM2-135M: its tests are skipped, and counted as such\n'

# One run over both builds, so that their entries fill two cores together; three at a time, as many wait for a rank or a
# time limit.
mkdir -p build/test
printf 'subdirs("%s")\n' "$PWD/build/asan" "$PWD/build/release" > build/test/CTestTestfile.cmake
status=0
ctest --test-dir build/test --parallel 3 --output-on-failure --output-junit "$PWD/build/test/results.xml" |
  tee build/test/output.txt || status=$?
.venv/bin/python scripts/test_summary.py build/test/results.xml tests/budgets.tsv || status=1
grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' build/test/output.txt || status=1
exit "$status"
