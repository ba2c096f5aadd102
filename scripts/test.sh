#!/usr/bin/env bash
# Installs missing packages, builds, and runs every test: the folders that do not use tensors under
# the address and undefined-behavior sanitizers, and all folders in the release build.
#
#   scripts/test.sh [--with-launchers]
#
#   --with-launchers   installs mpirun and SLURM, so that their tests run too; no service is started
#                      (CI=true does the same)
#
# At the end the script prints the skipped entries with their reasons, the slowest entries, those
# beyond their budget of seconds, those that timed out and passed when they were rerun alone
# (CONTRIBUTING.md, "Flaky entries"), and CTest's closing line.
set -euo pipefail
cd "$(dirname "$0")/.."
launchers=()
if [ "${CI:-}" = true ] || [ "${1:-}" = --with-launchers ]; then launchers=(--with-launchers); fi
if [ $# -gt 1 ] || { [ $# -eq 1 ] && [ "$1" != --with-launchers ]; }; then
  printf 'test.sh: unknown option; usage: scripts/test.sh [--with-launchers]\n' >&2
  exit 2
fi

# The build with sanitizers needs no LibTorch, so it compiles while the wheels are downloaded.
scripts/setup.sh --only debian "${launchers[@]}"
scripts/setup.sh --only python --with-cuda &
python=$!
trap 'kill "$python" 2>/dev/null || true' EXIT
printf '[test] building the tensor-free folders with sanitizers\n'
FTRUN_SETUP=done scripts/build.sh asan unit_tests
wait "$python"
trap - EXIT
# This process imports what most Python entries import, so that Python compiles these modules once,
# into the cache folder that the entries share (tests/CMakeLists.txt), and not in each of the
# entries that start first. A failed import is reported by the entries.
PYTHONPYCACHEPREFIX="$PWD/build/release/pycache" PYTHONDONTWRITEBYTECODE='' .venv/bin/python -c \
  'import peft, torch; from transformers import AutoModelForCausalLM, AutoTokenizer' \
  >/dev/null 2>&1 &
imports=$!
printf '[test] building everything\n'
FTRUN_SETUP=done scripts/build.sh release
wait "$imports" || true
.venv/bin/python scripts/make_model.py smollm2 --out models/smollm2-135m ||
  printf '[test] SmolLM2-135M is not installed: its tests will be skipped\n'
.venv/bin/python scripts/make_model.py gemma3-270m --dtype bf16 --out models/gemma-3-270m ||
  printf '[test] Gemma 3 270M is not installed: its test will be skipped\n'

# One CTest run covers both builds, so that their entries together keep two cores busy. Three
# entries run at a time, because many of them only wait for a rank or a time limit.
mkdir -p build/test
printf 'subdirs("%s")\n' "$PWD/build/asan" "$PWD/build/release" > build/test/CTestTestfile.cmake
exec .venv/bin/python scripts/run_tests.py build/test tests/budgets.tsv --parallel 3
