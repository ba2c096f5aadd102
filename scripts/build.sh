#!/usr/bin/env bash
# Builds a CMake preset. The programs are written to build/<preset>/bin.
#
#   scripts/build.sh [PRESET] [TARGET...]
#
#   PRESET   default: release
#   TARGET   default: all targets
#
# The script runs scripts/setup.sh first, unless FTRUN_SETUP=done is set. It exits with 5 if CMake
# cannot configure the preset.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
[ $# -gt 0 ] && shift
[ "${FTRUN_SETUP:-}" = done ] || scripts/setup.sh  # test.sh has run setup already
# ccache hashes paths below the checkout as relative paths, so that builds of different checkouts
# share cached objects. Builds with debug information do not share them, because they contain the
# checkout's path.
CCACHE_BASEDIR=$(pwd -P)
export CCACHE_BASEDIR
printf '[build] configuring %s\n' "$preset"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; exit 5; }
printf '[build] compiling (the first time takes some minutes)\n'
cmake --build --preset "$preset" -- -k 0 "$@"
