#!/usr/bin/env bash
# Fuzzes the readers of untrusted files (configs, safetensors, data sidecars and indices,
# checkpoint.json, run.json) with libFuzzer, under the address and undefined-behavior sanitizers.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]
#
#   SECONDS   time for each target (default: 10)
#   TARGET    a folder of tests/fuzz/corpus (default: all)
#
# The script needs Debian's packages clang-14 and libclang-rt-14-dev. It adds new corpus entries to
# build/fuzz/corpus. It prints the path of an input that crashes a target, and then exits with 1;
# add that input to tests/fuzz/corpus in the commit that fixes the reader.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
[ $# -gt 0 ] && shift
case $seconds in '' | *[!0-9]*) printf 'fuzz.sh: SECONDS: expected a number, found %s\n' "$seconds" >&2; exit 2 ;; esac
if ! command -v clang++-14 >/dev/null || ! compgen -G '/usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null; then
  printf 'fuzz.sh: clang++-14 with libFuzzer is not installed\n  remedy: apt-get install clang-14 libclang-rt-14-dev\n' >&2
  exit 5
fi
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for folder in tests/fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done
FTRUN_SETUP=${FTRUN_SETUP:-done} scripts/build.sh fuzz "${targets[@]/#/fuzz_}"
# When a target finds an error, it ends before it can remove its files, so this script removes them.
scratch=$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)" ftrun_fuzz_XXXXXX)
trap 'rm -rf "$scratch"' EXIT
status=0
for target in "${targets[@]}"; do
  new_inputs=build/fuzz/corpus/$target
  mkdir -p "$new_inputs"
  log=build/fuzz/$target.log
  if TMPDIR=$scratch "build/fuzz/bin/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$target-" "$new_inputs" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    printf '%-20s %s inputs in %s s, no crash\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$seconds"
  else
    printf '%-20s crashed by: %s\n' "$target" "$(grep -oE "build/fuzz/$target-[a-z]+-[0-9a-f]+" "$log" | tail -1)"
    tail -40 "$log"
    status=1
  fi
done
exit "$status"
