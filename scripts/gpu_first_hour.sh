#!/usr/bin/env bash
# What has to be seen on a GPU, in steps of ten minutes at most that can be taken up again where they stopped.
#
#   scripts/gpu_first_hour.sh pack [FOLDER]            builds and strips what is carried (default: build/gpu_pack)
#   scripts/gpu_first_hour.sh run [options]            on the machine with the GPU
#     --pack FOLDER      what was packed (default: build/gpu_pack)
#     --results FOLDER   verdicts, logs and figures; steps that have a verdict there are not run again
#                        (default: build/gpu_results)
#     --only WORD        steps with this in their name;  --again  runs them even so
#     --minutes N        starts no step after N minutes (default: no end)
#     --torch FOLDER     the torch package of version 2.11.0 (default: that of python3 or of .venv)
#   scripts/gpu_first_hour.sh table [--results FOLDER] the table again
#
# Verdicts: pass, fail, figure (numbers to be read in the step's log), no GPU, absent (a tool that the machine lacks).
# Nothing is assumed of the machine but a driver, LibTorch and what was packed; compute-sanitizer, ncu and python3 are
# used where they are. Ends with 1 when a step failed, 77 when there was no GPU for any, else 0.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
skipped=77
pack=$root/build/gpu_pack
results=$root/build/gpu_results
only=''
again=no
minutes=''
torch=''
step_limit=600
most_bytes=$((64 << 20))
binaries=(ftrun test_cuda test_exec_cuda test_nccl_gpu gpu_kernel_bench)
libraries=(libftrun_engine.so libftrun_cuda.so libftrun_nccl.so)
# What a packed folder has, and the file by which it is known as one.
packed=(bin lib tests scripts resources.txt)
pack_mark=.ftrun-gpu-pack

say() { printf '[gpu] %s\n' "$*"; }
die() { printf '[gpu] error: %s\n' "$*" >&2; exit 5; }

# ---- packing ----

pack_files() {
  [ $# -gt 0 ] && pack=$1
  if [ -e "$pack" ] && [ ! -e "$pack/$pack_mark" ] && { [ ! -d "$pack" ] || [ -n "$(ls -A "$pack")" ]; }; then
    die "$pack holds what this script did not pack: give a folder that is empty or not there"
  fi
  (cd "$root" && cmake --preset release -DFTRUN_BENCH=ON >/dev/null &&
    cmake --build --preset release -- "${binaries[@]}" ftrun_engine ftrun_cuda ftrun_nccl) || die "the build failed"
  (cd "$pack" 2>/dev/null && rm -rf -- "${packed[@]}")
  mkdir -p "$pack/bin" "$pack/lib" "$pack/tests/bench" "$pack/scripts" && touch "$pack/$pack_mark" || die "cannot write $pack"
  local name
  for name in "${binaries[@]}"; do strip -o "$pack/bin/$name" "$root/build/release/bin/$name" || die "no $name"; done
  for name in "${libraries[@]}"; do strip -o "$pack/lib/$name" "$root/build/release/lib/$name" || die "no $name"; done
  cp "$root"/tests/bench/{gpu_bench,gpu_checks,gpu_kernel_bench,random_model}.py "$pack/tests/bench/"
  cp "$root/scripts/gpu_first_hour.sh" "$pack/scripts/"
  resource_use > "$pack/resources.txt" || die "the kernels do not compile for sm_90"
  local bytes
  bytes=$(du -sb "$pack" | cut -f1)
  say "$pack: $((bytes / 1024)) KiB in $(find "$pack" -type f | wc -l) files"
  [ "$bytes" -le "$most_bytes" ] || die "more than $((most_bytes >> 20)) MiB"
}

# What ptxas says of registers and spills of every kernel.
resource_use() {
  local source
  for source in "$root"/lib/kernels/cuda/*.cu; do
    nvcc -std=c++20 -O3 -I "$root/lib" -arch=sm_90 -lineinfo -Xptxas=-v -cubin -o /dev/null "$source" 2>&1 |
      c++filt || return
  done
}

# ---- verdicts ----

json_text() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/ /g' | tr -d '\r' | tr '\n' ' ' | cut -c 1-400; }

# keep NAME VERDICT SECONDS: one file a step, so that a step that is cut off leaves the others as they are.
keep() {
  local words
  words=$(tail -n 3 "$results/$1.log" 2>/dev/null | json_text)
  printf '{"step": "%s", "verdict": "%s", "seconds": %s, "says": "%s"}\n' "$1" "$2" "$3" "$words" > "$results/$1.json.part"
  mv "$results/$1.json.part" "$results/$1.json"
}

verdict_of() { sed -n 's/.*"verdict": "\([^"]*\)".*/\1/p' "$results/$1.json" 2>/dev/null; }

# What an exit code means; $2 is the verdict of a step that went well.
verdict() {
  case $1 in
    0) echo "$2" ;;
    "$skipped") has_driver && echo fail || echo 'no GPU' ;;  # with a GPU at hand a skip is a failure
    127) echo absent ;;
    *) echo fail ;;
  esac
}

has_driver() { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; }

# step NAME pass|figure COMMAND...
steps=()
step() {
  local name=$1 good=$2 begin seconds code
  shift 2
  steps+=("$name")
  case $name in *"$only"*) ;; *) return ;; esac
  if [ "$again" = no ] && [ -n "$(verdict_of "$name")" ] && [ "$(verdict_of "$name")" != 'no GPU' ]; then return; fi
  if [ -n "$minutes" ] && [ $(($(date +%s) - started)) -ge $((minutes * 60)) ]; then return; fi
  begin=$(date +%s)
  say "$name"
  (cd "$pack" && timeout "$step_limit" bash -c '"$@"' step "$@") > "$results/$name.log" 2>&1
  code=$?
  [ "$code" -eq 124 ] && echo "took more than $step_limit s" >> "$results/$name.log"
  seconds=$(($(date +%s) - begin))
  keep "$name" "$(verdict "$code" "$good")" "$seconds"
  say "$name: $(verdict_of "$name") ($seconds s)"
}

# Runs a tool of the machine's, or says that it is not there.
with_tool() {
  has_driver || { echo "no GPU: there is no driver"; return "$skipped"; }
  command -v "$1" >/dev/null || { echo "$1 is not on this machine"; return 127; }
  "$@"
}

table() {
  {
    printf '[\n'
    local first=yes name
    for name in "${steps[@]}"; do
      [ -f "$results/$name.json" ] || continue
      [ "$first" = yes ] || printf ',\n'
      first=no
      printf '  %s' "$(cat "$results/$name.json")"
    done
    printf '\n]\n'
  } > "$results/verdicts.json"
  printf '| step | verdict | seconds |\n|---|---|---|\n' > "$results/verdicts.md"
  for name in "${steps[@]}"; do
    printf '| %s | %s | %s |\n' "$name" "$(v=$(verdict_of "$name"); echo "${v:-not run}")" \
      "$(sed -n 's/.*"seconds": \([0-9]*\).*/\1/p' "$results/$name.json" 2>/dev/null)"
  done >> "$results/verdicts.md"
  cat "$results/verdicts.md"
}

# ---- the steps ----

# No kernel may keep what it computes with outside of registers.
spills() {
  local spilled
  spilled=$(grep -B 1 'bytes spill stores' resources.txt | grep -v '^--' | paste - - |
    grep -v ' 0 bytes spill stores, 0 bytes spill loads')
  echo "$(grep -c 'bytes spill stores' resources.txt) kernels," \
    "$(grep -oE 'Used [0-9]+' resources.txt | sort -k 2 -n | tail -n 1 | cut -c 6-) registers at most"
  echo "spills: ${spilled:-none}"
  [ -z "$spilled" ]
}

python_with() {
  local python
  python=$(command -v "$root/.venv/bin/python" || command -v python3) || { echo "no python3"; return 127; }
  "$python" "$@"
}
check_training() { python_with tests/bench/gpu_checks.py "$1" --binary bin/ftrun --scratch "$results/scratch"; }

by_stage() {
  has_driver || { echo "no GPU: there is no driver"; return "$skipped"; }
  python_with tests/bench/random_model.py --shape smollm2 --out "$results/scratch/model-smollm2" || return
  python_with tests/bench/gpu_bench.py --binary bin/ftrun --model "$results/scratch/model-smollm2" \
    --data "$results/scratch/model-smollm2/train.bin" --steps 12
}

# Attention of an 8B model at 32,768 tokens under the sanitizer: a whole step would take longer than a step may.
memcheck_long() {
  with_tool compute-sanitizer --tool memcheck --error-exitcode 9 bin/gpu_kernel_bench --only "8B 1 x 32768"
}

all_steps() {
  local watched='*attention*,*embedding*,*cross_entropy*'
  local tool
  step spills pass spills
  step kernels pass bin/test_cuda
  step kernels-blocking pass env CUDA_LAUNCH_BLOCKING=1 bin/test_cuda
  for tool in memcheck racecheck synccheck initcheck; do
    step "sanitizer-$tool" pass with_tool compute-sanitizer --tool "$tool" --error-exitcode 9 bin/test_cuda "$watched"
  done
  step trainings pass bin/test_exec_cuda
  step nccl-one-rank pass bin/test_nccl_gpu
  step timings figure bin/gpu_kernel_bench
  step timings-beside-torch figure python_with tests/bench/gpu_kernel_bench.py --binary bin/gpu_kernel_bench
  for tool in attention linear_cross_entropy adam rms_norm; do
    step "profile-$tool" figure with_tool ncu --set basic --launch-count 8 bin/gpu_kernel_bench --only "$tool"
  done
  step stages-and-offload figure by_stage
  step losses-repeat pass check_training repeat
  step losses-beside-the-processor pass check_training processor
  step checkpoint-to-the-processor pass check_training resume
  step long-sequence pass check_training long
  step long-sequence-memcheck pass memcheck_long
  step messages pass check_training messages
}

find_torch() {
  [ -n "$torch" ] || torch=$(ls -d "$root"/.venv/lib/python3*/site-packages/torch 2>/dev/null | head -1)
  [ -n "$torch" ] || torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null)
  [ -d "$torch/lib" ] || die "no LibTorch: give --torch FOLDER (the torch package of version 2.11.0)"
  local packages
  packages=$(dirname "$torch")
  export LD_LIBRARY_PATH="$torch/lib:$packages/nvidia/cu13/lib:$packages/nvidia/cudnn/lib:$packages/nvidia/nccl/lib:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"
}

run_steps() {
  [ -x "$pack/bin/test_cuda" ] || die "nothing is packed in $pack: scripts/gpu_first_hour.sh pack"
  mkdir -p "$results/scratch" || die "cannot write $results"
  pack=$(cd "$pack" && pwd)
  results=$(cd "$results" && pwd)
  find_torch
  started=$(date +%s)
  export -f spills python_with check_training by_stage memcheck_long with_tool has_driver
  export root results skipped
  all_steps
  table
  local name worst=0 ran=no
  for name in "${steps[@]}"; do
    case $(verdict_of "$name") in
      fail) worst=1 ;;
      pass | figure) [ "$name" = spills ] || ran=yes ;;
    esac
  done
  [ "$worst" -eq 1 ] && exit 1
  [ "$ran" = yes ] || exit "$skipped"
}

mode=${1:-}
[ $# -gt 0 ] && shift
if [ "$mode" = pack ]; then
  pack_files "$@"
  exit
fi
while [ $# -gt 0 ]; do
  case $1 in
    --pack) pack=$2; shift ;;
    --results) results=$2; shift ;;
    --only) only=$2; shift ;;
    --minutes) minutes=$2; shift ;;
    --torch) torch=$2; shift ;;
    --again) again=yes ;;
    *) die "unknown option $1" ;;
  esac
  shift
done
case $mode in
  run) run_steps ;;
  table) step() { steps+=("$1"); }; mkdir -p "$results"; all_steps; table ;;
  *) die "pack, run or table" ;;
esac
