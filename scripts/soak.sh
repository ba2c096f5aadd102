#!/usr/bin/env bash
# Power cuts, failing calls, flipped bits, every stop point, and kill -9 at each call of a save and at moments drawn from
# seeds, many times, ten thousand wrong tokens, and whole configs drawn from a seed: what docs/reliability.md records. Three quarters of
# an hour on two cores; nothing outside temporary folders is touched.
#   scripts/soak.sh [power cuts, default 2000] [bit flips, 1000] [kills, 40] [seed of kills and configs, 1] [stop points a layout, 50] [configs, 200] [stop signals, 200]
set -euo pipefail
cd "$(dirname "$0")/.."
states=${1:-2000} flips=${2:-1000} kills=${3:-40} seed=${4:-1} stops=${5:-50} configs=${6:-200} signals=${7:-200}
scripts/build.sh release ftrun ftrun_engine_module test_checkpoint test_base test_comm test_training kill_at_call
failed=0
part() {
  printf '[soak] %s\n' "$1"
  shift
  "$@" || failed=1
}
export FTRUN_SOAK_STATES=$states FTRUN_SOAK_FLIPS=$flips FTRUN_SOAK_STOPS=$stops FTRUN_SOAK_CALLS=all
export FTRUN_BINARY=$PWD/build/release/bin/ftrun FTRUN_KILL_AT_CALL=$PWD/build/release/bin/kill_at_call
tests=build/release/bin/test_checkpoint
part 'power cuts over many saves' $tests 'a run that loses power at any moment*'
part 'a power cut at each call of a save' $tests 'after a power cut *'
part 'each call of a save fails in turn' $tests 'a full disk at any call*,an input or output error at any call*,a failure at any call*'
part 'short writes' build/release/bin/test_base 'a file that may not grow further*,a piece that cannot be written*'
part 'flipped bits' $tests 'every flipped bit*'
part 'wrong tokens' env FTRUN_SOAK_TOKENS=10000 build/release/bin/test_comm 'thousands of wrong tokens*'
part 'each stop point' build/release/bin/test_training 'a run that ends after any step*'
part 'kill -9 at each call of a save' .venv/bin/python tests/e2e/save_calls_test.py "$PWD"
part 'kill -9 at random moments' .venv/bin/python tests/e2e/soak.py "$PWD" --kills "$kills" --seed "$seed"
part 'stop signals at random instants' .venv/bin/python tests/e2e/preempt.py "$PWD" --signals "$signals" --seed "$seed"
part 'whole configs drawn at random' .venv/bin/python tests/e2e/random_configs.py "$PWD" --runs "$configs" --seed "$seed"
exit "$failed"
