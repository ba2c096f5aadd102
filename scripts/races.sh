#!/usr/bin/env bash
# Runs the unit tests of the folders that do not use tensors, and of comm, under the thread
# sanitizer. docs/reliability.md records the results.
#
#   scripts/races.sh [FOLDER...]      (default: all of these folders)
#
# The script builds the preset tsan. comm needs LibTorch, which is not instrumented, so
# races.suppressions hides its reports. The longest test cases are left out, as under the other
# sanitizers. The script exits with 1 if the tests of a folder fail.
set -euo pipefail
cd "$(dirname "$0")/.."
folders=("$@")
[ $# -gt 0 ] || folders=(base config cluster model partition data report storage graph checkpoint program sim comm)
scripts/build.sh tsan "${folders[@]/#/test_}"
export TSAN_OPTIONS="suppressions=$PWD/scripts/races.suppressions"
failed=0
for folder in "${folders[@]}"; do
  printf '[races] %s\n' "$folder"
  "build/tsan/bin/test_$folder" '~[.]~[long]' || failed=1
done
exit "$failed"
