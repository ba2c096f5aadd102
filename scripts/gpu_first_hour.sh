#!/usr/bin/env bash
# Runs all checks that need a real GPU, the most informative first. Interrupted steps can be rerun.
#
#   scripts/gpu_first_hour.sh pack [FOLDER]
#     builds, strips and packs what the GPU machine needs (default: build/gpu_pack)
#
#   scripts/gpu_first_hour.sh run [OPTION...]
#     runs the steps on the GPU machine, from that package or from a checkout:
#     --pack FOLDER      the packed folder
#                        (default: the folder that contains this script, else build/gpu_pack)
#     --results FOLDER   receives verdicts, logs and figures; a step that already has a verdict
#                        there is not repeated (default: gpu_results beside the package)
#     --only REGEX       runs only the steps whose names match
#     --again            repeats steps that already have a verdict
#     --minutes N        stops after N minutes: starts no further step and cuts the running one
#                        (default: no limit)
#     --torch FOLDER     the torch package of version 2.11.0 (default: from .venv or python3)
#
#   scripts/gpu_first_hour.sh table [--results FOLDER]
#     prints the table of verdicts again
#
# `run --minutes 9`, given three times, completes the list in three commands of nine minutes.
#
# A step has one of these verdicts:
#   pass, fail
#   figure    the step's log holds measurements
#   cut       the time limit ended the step; the next `run` repeats it
#   no GPU
#   absent    the machine lacks a tool that the step needs
#
# The machine needs a driver, LibTorch with its CUDA libraries, and the package. compute-sanitizer,
# ncu and python3 are used if they exist. RESULTS.tar.gz holds all logs and is written after each
# step.
# The script exits with 1 if a step failed, with 77 if no step found a GPU, otherwise with 0.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
skipped=77
pack_mark=.ftrun-gpu-pack
pack=$root/build/gpu_pack
[ -e "$root/$pack_mark" ] && pack=$root
results=''
only=''
again=no
minutes=''
torch=''
step_limit=540
max_bytes=$((64 << 20))
binaries=(ftrun test_cuda test_engine_cuda test_nccl_gpu gpu_kernel_bench)
modules=(libftrun_engine.so libftrun_cuda.so libftrun_nccl.so)
# The entries of a packed folder. The last one is the file that marks a folder as packed.
packed=(bin lib tests scripts resources.txt)

say() { printf '[gpu] %s\n' "$*"; }
die() { printf '[gpu] error: %s\n' "$*" >&2; exit 5; }

# ---- packing ----

pack_files() {
  [ $# -gt 0 ] && pack=$1
  if [ -e "$pack" ] && [ ! -e "$pack/$pack_mark" ] && { [ ! -d "$pack" ] || [ -n "$(ls -A "$pack")" ]; }; then
    die "$pack contains files that this script did not pack: name an empty or new folder"
  fi
  (cd "$root" && cmake --preset release -DFTRUN_BENCH=ON >/dev/null &&
    cmake --build --preset release -- "${binaries[@]}" ftrun_engine_module ftrun_cuda ftrun_nccl) || die "the build failed"
  (cd "$pack" 2>/dev/null && rm -rf -- "${packed[@]}")
  mkdir -p "$pack/bin" "$pack/lib" "$pack/tests/bench" "$pack/scripts" && touch "$pack/$pack_mark" || die "cannot write $pack"
  local name
  for name in "${binaries[@]}"; do strip -o "$pack/bin/$name" "$root/build/release/bin/$name" || die "build/release/bin/$name cannot be copied"; done
  for name in "${modules[@]}"; do strip -o "$pack/lib/$name" "$root/build/release/lib/$name" || die "build/release/lib/$name cannot be copied"; done
  libraries_of "$pack"/bin/* "$pack"/lib/* | while read -r name; do cp -L "$name" "$pack/lib/" || exit; done || die "the libraries cannot be copied to $pack/lib"
  cp "$root"/tests/bench/{attention_choice,gpu_bench,gpu_checks,gpu_kernel_bench,random_model}.py "$pack/tests/bench/"
  cp "$root/scripts/gpu_first_hour.sh" "$pack/scripts/"
  resource_use > "$pack/resources.txt" || die "the kernels do not compile"
  local bytes
  bytes=$(du -sb "$pack" | cut -f1)
  say "$pack: $((bytes / 1024)) KiB in $(find "$pack" -type f | wc -l) files"
  [ "$bytes" -le "$max_bytes" ] || die "$pack is larger than $((max_bytes >> 20)) MiB"
}

# Lists the libraries that a machine with LibTorch may lack: all except those of glibc, gcc,
# LibTorch and a CUDA toolkit.
libraries_of() {
  ldd "$@" 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' | sort -u |
    sed -E -e '\#/(ld-linux[^/]*|lib(c|m|mvec|dl|rt|util|pthread|resolv|stdc\+\+|gcc_s|gomp|cuda))\.so[.0-9]*$#d' \
      -e '\#/site-packages/|/cuda[^/]*/|/nvidia/|/libftrun_#d'
}

# Shows what ptxas reports about registers and spills of every kernel, for both packed
# architectures.
resource_use() {
  local source architecture
  for architecture in sm_80 sm_90; do
    for source in "$root"/lib/kernels/cuda/*.cu "$root"/lib/ops/*/gpu*.cu; do
      nvcc -std=c++20 -O3 -I "$root/lib" -arch="$architecture" -lineinfo -Xptxas=-v -cubin -o /dev/null "$source" 2>&1 |
        c++filt || return
    done
  done
}

# ---- verdicts ----

json_text() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/ /g' | tr -d '\r' | tr '\n' ' ' | cut -c 1-400; }

# keep NAME VERDICT SECONDS: writes the verdict of a step to its own file, so that an interrupted
# step does not affect the others.
keep() {
  local words
  words=$(tail -n 3 "$results/$1.log" 2>/dev/null | json_text)
  printf '{"step": "%s", "verdict": "%s", "seconds": %s, "says": "%s"}\n' "$1" "$2" "$3" "$words" > "$results/$1.json.part"
  mv "$results/$1.json.part" "$results/$1.json"
  tar -C "$results" -czf "$results.tar.gz.part" --exclude=./scratch . && mv "$results.tar.gz.part" "$results.tar.gz"
}

verdict_of() { sed -n 's/.*"verdict": "\([^"]*\)".*/\1/p' "$results/$1.json" 2>/dev/null; }

# verdict CODE WORD: prints the verdict for an exit code; WORD is the verdict of a successful step.
# 127 is a failure: it means that the loader misses a library of one of our programs. For tools that
# the machine lacks, with_tool and python_with return 126.
verdict() {
  case $1 in
    0) echo "$2" ;;
    "$skipped") has_driver && echo fail || echo 'no GPU' ;;  # with a GPU at hand a skip is a failure
    126) echo absent ;;
    124 | 137) echo cut ;;
    *) echo fail ;;
  esac
}

has_driver() { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; }

seconds_left() {
  if [ -z "$minutes" ]; then echo "$step_limit"; return; fi
  local left=$((started + minutes * 60 - $(date +%s)))
  echo $((left < step_limit ? left : step_limit))
}

# step NAME pass|figure COMMAND...
steps=()
step() {
  local name=$1 good=$2 begin seconds code limit
  shift 2
  steps+=("$name")
  [[ $name =~ $only ]] || return
  case $(verdict_of "$name") in '' | 'no GPU' | cut) ;; *) [ "$again" = yes ] || return ;; esac
  limit=$(seconds_left)
  [ "$limit" -gt 5 ] || return
  begin=$(date +%s)
  (cd "$pack" && timeout -k 10 "$limit" bash -c '"$@"' step "$@") > "$results/$name.log" 2>&1
  code=$?
  [ "$code" -eq 124 ] && echo "cut after $limit s" >> "$results/$name.log"
  seconds=$(($(date +%s) - begin))
  keep "$name" "$(verdict "$code" "$good")" "$seconds"
  say "$name: $(verdict_of "$name") ($seconds s)"
  case $(verdict_of "$name") in fail | cut) tail -n 25 "$results/$name.log" | sed 's/^/    /' ;; esac
}

# Runs a tool of the machine, or prints that the machine lacks it.
with_tool() {
  has_driver || { echo "no GPU: this machine has no driver"; return "$skipped"; }
  command -v "$1" >/dev/null || { echo "$1 is not installed on this machine"; return 126; }
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

# Shows the machine, checks that the loader can start each program, and runs one kernel.
start() {
  command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
  uname -r
  bin/ftrun --version || return
  local file missing
  missing=$(for file in bin/* lib/libftrun_*; do ldd "$file" | grep 'not found' | sed "s|^|$file: |"; done)
  echo "${missing:-all libraries found}"
  [ -z "$missing" ] || return 1
  bin/gpu_kernel_bench --only "rms_norm 135M" --rounds 1
}

# Fails if a kernel spills registers to memory.
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
  python=$(command -v "$root/.venv/bin/python" || command -v python3) || { echo "python3 is not installed on this machine"; return 126; }
  "$python" "$@"
}
check_training() { python_with tests/bench/gpu_checks.py "$1" --binary bin/ftrun --scratch "$results/scratch"; }

# whole_steps SHAPE OPTIONS...: measures tokens/s of complete training runs.
whole_steps() {
  has_driver || { echo "no GPU: this machine has no driver"; return "$skipped"; }
  local model=$results/scratch/model-$1
  python_with tests/bench/random_model.py --shape "$1" --out "$model" || return
  shift
  python_with tests/bench/gpu_bench.py --binary bin/ftrun --model "$model" --data "$model/train.bin" --steps 12 "$@"
}

# Runs a program under a tool of compute-sanitizer, which checks only our kernels.
sanitize() {
  local tool=$1
  shift
  with_tool compute-sanitizer --tool "$tool" --kernel-name kernel_substring=ftrun --error-exitcode 9 "$@"
}

all_steps() {
  local watched='*attention*,*embedding*,*cross_entropy*' check tool kernel
  step start pass start
  step spills pass spills
  step kernels pass bin/test_cuda
  step training-runs pass bin/test_engine_cuda
  step nccl-one-rank pass bin/test_nccl_gpu
  for check in repeat captured cpu cudnn documents adapters precisions optimizers multipliers resume; do step "losses-$check" pass check_training "$check"; done
  step timings figure python_with tests/bench/gpu_kernel_bench.py --binary bin/gpu_kernel_bench
  step timings-cudnn figure python_with tests/bench/gpu_kernel_bench.py --binary bin/gpu_kernel_bench --attention cudnn --only attention
  step steps-smollm2 figure whole_steps smollm2 --baseline --setting "ZeRO 0" --setting "own attention" --setting captured --setting cuDNN --setting "cuDNN, captured" \
    --setting LoRA --setting "LoRA on NF4"
  step steps-8b figure whole_steps 8b-two-layers --micro-batch 1 --sequence 4096 --baseline --setting "ZeRO 0" --setting "own attention" --setting cuDNN --setting LoRA \
    --setting "LoRA, cuDNN" --setting "LoRA on NF4"
  step long-sequence pass check_training long
  step messages pass check_training messages
  for tool in memcheck racecheck; do step "$tool" pass sanitize "$tool" bin/test_cuda "$watched"; done
  step long-sequence-memcheck pass sanitize memcheck bin/gpu_kernel_bench --only "8B 1 x 32768" --rounds 1
  step steps-offload figure whole_steps smollm2 --hidden --setting "ZeRO 3" --setting "ZeRO 2, optimizer on the host" \
    --setting "ZeRO 3, parameters on the host" --setting "ZeRO 3, all on the host" --setting "full recompute" \
    --setting "full recompute, inputs on the host"
  # --clock-control none leaves the GPU's clocks unchanged, so that measurements are realistic and
  # other users of the GPU are not affected.
  for kernel in attention quantized_linear lora_up linear_cross_entropy adam; do
    step "profile-$kernel" figure with_tool ncu --clock-control none --set basic --launch-count 8 bin/gpu_kernel_bench \
      --only "$kernel" --rounds 1
  done
  step kernels-blocking pass env CUDA_LAUNCH_BLOCKING=1 bin/test_cuda
  for tool in synccheck initcheck; do step "$tool" pass sanitize "$tool" bin/test_cuda "$watched"; done
}

# Prints what the measurements mean for kernels.attention: auto, as a line for the table of the
# rule. Needs cuDNN's losses and both timings.
advise_attention() {
  [ "$(verdict_of losses-cudnn)" = pass ] && [ "$(verdict_of timings)" = figure ] && [ "$(verdict_of timings-cudnn)" = figure ] || return
  (cd "$pack" && python_with tests/bench/attention_choice.py "$results/timings.log" "$results/timings-cudnn.log") |
    tee "$results/attention.txt"
}

find_torch() {
  [ -n "$torch" ] || torch=$(ls -d "$root"/.venv/lib/python3*/site-packages/torch 2>/dev/null | head -1)
  [ -n "$torch" ] || torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null)
  [ -d "$torch/lib" ] || die "LibTorch was not found: name the folder of the torch package 2.11.0 with --torch FOLDER"
  local packages
  packages=$(dirname "$torch")
  export FTRUN_TORCH=$torch
  export LD_LIBRARY_PATH="$pack/lib:$torch/lib:$packages/nvidia/cu13/lib:$packages/nvidia/cudnn/lib:$packages/nvidia/nccl/lib:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"
}

run_steps() {
  [ -x "$pack/bin/test_cuda" ] || die "$pack contains no package: run scripts/gpu_first_hour.sh pack first"
  pack=$(cd "$pack" && pwd)
  : "${results:=$(dirname "$pack")/gpu_results}"
  mkdir -p "$results/scratch" || die "cannot write $results"
  results=$(cd "$results" && pwd)
  find_torch
  started=$(date +%s)
  export -f start spills python_with check_training whole_steps sanitize with_tool has_driver
  export root results skipped
  all_steps
  table
  advise_attention
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

# Prints the value of an option; ends the script if there is none.
value_of() { [ $# -ge 2 ] || die "$1 needs a value"; printf '%s' "$2"; }

mode=${1:-}
[ $# -gt 0 ] && shift
if [ "$mode" = pack ]; then
  pack_files "$@"
  exit
fi
while [ $# -gt 0 ]; do
  case $1 in
    --pack) pack=$(value_of "$@") || exit; shift ;;
    --results) results=$(value_of "$@") || exit; shift ;;
    --only) only=$(value_of "$@") || exit; shift ;;
    --minutes) minutes=$(value_of "$@") || exit; shift ;;
    --torch) torch=$(value_of "$@") || exit; shift ;;
    --again) again=yes ;;
    *) die "unknown option $1" ;;
  esac
  shift
done
[[ $minutes =~ ^[0-9]*$ ]] || die "--minutes needs a whole number, found $minutes"
case $mode in
  run) run_steps ;;
  table) : "${results:=$(dirname "$pack")/gpu_results}"; step() { steps+=("$1"); }; mkdir -p "$results"; all_steps; table ;;
  *) die "unknown command; use pack, run or table" ;;
esac
