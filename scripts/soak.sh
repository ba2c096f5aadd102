#!/usr/bin/env bash
# Runs the long fault tests that docs/reliability.md records: simulated power cuts, failing system
# calls, bit flips, wrong tokens, a stop after each step, kill -9 at each call of a save and at
# random moments, stop signals, and random configs.
#
#   scripts/soak.sh [OPTION...]
#
#   --power-cuts N   number of simulated power cuts (default: 2000)
#   --bit-flips N    number of flipped bits (default: 1000)
#   --kills N        number of kills at random moments (default: 40)
#   --stops N        number of steps in each layout after which a run stops (default: 50)
#   --signals N      number of stop signals (default: 200)
#   --configs N      number of random configs (default: 200)
#   --seed N         seed of kills, stop signals and configs (default: 1)
#
# The script takes 45 minutes on two cores and writes only to temporary folders and build. It exits
# with 1 if a test fails.
set -euo pipefail
cd "$(dirname "$0")/.."
power_cuts=2000 bit_flips=1000 kills=40 stops=50 signals=200 configs=200 seed=1
while [ $# -gt 0 ]; do
  [[ ${2:-} =~ ^[0-9]+$ ]] || { printf 'soak.sh: %s: expected an option and a number\n' "$1" >&2; exit 2; }
  case $1 in
    --power-cuts) power_cuts=$2 ;;
    --bit-flips) bit_flips=$2 ;;
    --kills) kills=$2 ;;
    --stops) stops=$2 ;;
    --signals) signals=$2 ;;
    --configs) configs=$2 ;;
    --seed) seed=$2 ;;
    *) printf 'soak.sh: unknown option %s\n' "$1" >&2; exit 2 ;;
  esac
  shift 2
done
scripts/build.sh release ftrun ftrun_engine_module test_checkpoint test_base test_comm test_training kill_at_call
failed=0
run_part() {
  printf '[soak] %s\n' "$1"
  shift
  "$@" || failed=1
}
export FTRUN_SOAK_POWER_CUTS=$power_cuts FTRUN_SOAK_FLIPS=$bit_flips FTRUN_SOAK_STOPS=$stops FTRUN_SOAK_CALLS=all
export FTRUN_BINARY=$PWD/build/release/bin/ftrun FTRUN_KILL_AT_CALL=$PWD/build/release/bin/kill_at_call
tests=build/release/bin/test_checkpoint
run_part 'power cuts over many saves' $tests 'a run that loses power at any moment*'
run_part 'a power cut at each call of a save' $tests 'after a power cut *'
run_part 'each call of a save fails in turn' $tests 'a full disk at any call*,an input or output error at any call*,a failure at any call*'
run_part 'short writes' build/release/bin/test_base 'a file that may not grow further*,a piece that cannot be written*'
run_part 'flipped bits' $tests 'every flipped bit*'
run_part 'wrong tokens' env FTRUN_SOAK_TOKENS=10000 build/release/bin/test_comm 'thousands of wrong tokens*'
run_part 'each stop point' build/release/bin/test_training 'a run that was stopped after any step*'
run_part 'kill -9 at each call of a save' .venv/bin/python tests/e2e/save_calls_test.py "$PWD"
run_part 'kill -9 at random moments' .venv/bin/python tests/e2e/soak.py "$PWD" --kills "$kills" --seed "$seed"
run_part 'stop signals at random instants' .venv/bin/python tests/e2e/preempt.py "$PWD" --signals "$signals" --seed "$seed"
run_part 'whole configs drawn at random' .venv/bin/python tests/e2e/random_configs.py "$PWD" --runs "$configs" --seed "$seed"
exit "$failed"
