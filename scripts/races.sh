#!/usr/bin/env bash
# The unit tests of the tensor-free folders and of comm under the thread sanitizer: what docs/reliability.md records. Builds its
# preset (comm needs LibTorch, which is not instrumented: races.suppressions); the longest test cases are left out, as under the other sanitizers.
#   scripts/races.sh [folder...]      all of them by default
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
