#!/usr/bin/env bash
# Builds a preset (default: release) after setup; binaries land in build/<preset>/bin.
#   scripts/build.sh [preset] [target...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
[ $# -gt 0 ] && shift
scripts/setup.sh
printf '[build] configuring %s\n' "$preset"
cmake --preset "$preset" >"/tmp/ftrun-configure-$$.log" 2>&1 ||
  { cat "/tmp/ftrun-configure-$$.log" >&2; rm -f "/tmp/ftrun-configure-$$.log"; exit 5; }
rm -f "/tmp/ftrun-configure-$$.log"
printf '[build] compiling (the first time takes some minutes)\n'
cmake --build --preset "$preset" -- -k 0 "$@"
