#!/usr/bin/env bash
# Installs what is missing, builds, runs every test: the tensor-free folders under the address and
# undefined-behaviour sanitizers first, then everything in the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release
printf '[test] tensor-free folders under sanitizers\n'
scripts/build.sh asan
ctest --preset asan --label-regex unit
.venv/bin/python scripts/make_model.py smollm2 --out models/smollm2-135m ||
  printf '[test] no SmolLM2-135M: its tests are skipped, and counted as such\n'
printf '[test] everything, release build\n'
ctest --preset release
