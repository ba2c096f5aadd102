#!/usr/bin/env bash
# Tries the packages of scripts/package.sh on minimal installations of Linux distributions. The
# script needs root, debootstrap, the network and about 25 GB of disk.
#
#   scripts/try_packages.sh [--if-asked] [--keep FOLDER] [SUITE...]
#
#   SUITE           the name of a Debian or Ubuntu release whose keyring is installed
#                   (default: bookworm trixie)
#   --keep FOLDER   works in FOLDER and keeps it, except for containers and images
#   --if-asked      skips everything unless FTRUN_TRY_PACKAGES is set; CTest passes this option
#
# It tries four packages. All but the GPU package train the same small random model, and the metrics
# and weights of each run must equal those of the first run bit for bit.
#
#   wheel   pip installs it, with LibTorch, into a virtual environment in a minimal root file system
#           of the suite; two ranks train
#   deb     dpkg installs it in the same root; two ranks train as user 1000 on a read-only root
#           without a network, with 16 MB of /dev/shm
#   GPU     the package of scripts/gpu_first_hour.sh, tried if a CUDA compiler built its kernels: it
#           starts in the same root as user 1000, finds all libraries, and each step reports that
#           there is no GPU
#   image   buildah or podman builds it once, on a base made by debootstrap if docker.io cannot be
#           reached; podman runs it under the conditions of the .deb; a stop signal ends it, and it
#           resumes. If podman cannot start containers, the image's files run as those of the .deb
#
# The script exits with 77 and the reason if something cannot be tried. The containers and images
# are in the script's own folder and are removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '[try] %s\n' "$*"; }
die() { printf '[try] error: %s\n' "$*" >&2; exit 1; }
skip() { printf 'skipped: %s\n' "$*"; exit 77; }

if [ "${1:-}" = --if-asked ]; then
  shift
  [ -n "${FTRUN_TRY_PACKAGES:-}" ] || skip 'this needs root, the network and 25 GB of disk; set FTRUN_TRY_PACKAGES=1 to run it'
fi
[ "$(id -u)" -eq 0 ] || skip 'this needs root, to make a root file system'
command -v debootstrap >/dev/null || skip 'debootstrap is not installed (apt-get install debootstrap)'
unshare -mn true 2>/dev/null || skip 'this machine does not allow new mount and network namespaces'
if [ "${FTRUN_TRY_MOUNTS:-}" != own ]; then exec env FTRUN_TRY_MOUNTS=own unshare -m scripts/try_packages.sh "$@"; fi
base_folder=''
if [ "${1:-}" = --keep ]; then
  mkdir -p "${2:?--keep needs a folder}"
  base_folder=$(cd "$2" && pwd -P)
  kept=yes
  shift 2
fi
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
base_folder=${base_folder:-$(mktemp -d)}
work=$base_folder/work
containers=$base_folder/containers
storage=(--root "$containers/root" --runroot "$containers/run")
group=/ftrun-try-$$  # the control group of the containers
builder=$(basename "$(command -v buildah || command -v podman || true)")
image_runner=''  # how the image is run: podman or chroot
running=''       # the process of a run in the background
first=''         # the run that all others are compared with
certificates=/etc/ssl/certs/ca-certificates.crt
train=(--config config.json --nproc 2)

# remove_containers: removes the containers and images of buildah and podman; fails if one of their
# processes remains.
remove_containers() {
  local mounted
  [ -d "$containers" ] || return 0
  [ -z "$running" ] || stop_image || true
  if command -v podman >/dev/null; then podman "${storage[@]}" rm --all --force --time 0 >/dev/null || true; fi
  if command -v buildah >/dev/null; then buildah "${storage[@]}" rm --all >/dev/null || true; fi
  for _ in {1..60}; do
    find /sys/fs/cgroup -depth -type d \( -path "*$group" -o -path "*$group/*" \) -exec rmdir {} + 2>/dev/null || true
    [ -n "$(find /sys/fs/cgroup -type d -path "*$group")" ] || break
    sleep 0.5
  done
  while read -r mounted; do umount "$(printf %b "$mounted")"; done < <(
    cut -d ' ' -f 2 /proc/self/mounts | grep -F "$containers/" | tac || true)
  rm -rf --one-file-system -- "$containers"
  [ -z "$(find /sys/fs/cgroup -type d -path "*$group")" ] || die "processes remain in the control group $group"
}

finish() {
  remove_containers
  [ -n "${kept:-}" ] || rm -rf --one-file-system -- "$base_folder"
}
trap finish EXIT

# python_of_tests CODE ARGUMENT...: runs code that uses functions of the end-to-end tests.
python_of_tests() {
  local code=$1
  shift
  FTRUN_BINARY=build/all-gpus/bin/ftrun PYTHONPATH=tests/e2e .venv/bin/python -c "$code" "$@"
}

# compare_with_first NAME: fails if a run's metrics or exported weights are not bit-identical to
# those of the first run.
compare_with_first() {
  first=${first:-$1}
  python_of_tests 'import sys; from runner import require_same_run; require_same_run(*sys.argv[1:])' "$work/$first" "$work/$1"
  [ "$1" = "$first" ] || say "$1: losses and weights equal those of $first bit for bit"
}

# bare_root ROOT SUITE [PACKAGE,...]: makes a minimal root file system of a suite, with some
# packages.
bare_root() {
  local root=$1 suite=$2 options=(--variant=minbase --force-check-gpg) script=/usr/share/debootstrap/scripts/$2
  [ ! -e "$root.made" ] || return 0
  rm -rf --one-file-system -- "$root"
  [ -z "${3:-}" ] || options+=("--include=$3")
  # An Ubuntu release that debootstrap does not know is made with the script of one that it knows.
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/gutsy
  [ "$(basename "$(readlink -f "$script")")" != gutsy ] || options+=("--components=main,universe")
  debootstrap "${options[@]}" "$suite" "$root" '' "$script" >"$root.log" 2>&1 ||
    skip "debootstrap $suite failed: $(tail -n 1 "$root.log")"
  touch "$root.made"
}

# run_in_root ROOT MODE COMMAND...: runs a command in a root file system, in the folder /work, which is
# $work. Its mounts disappear when it ends. MODE writable: as root. MODE read-only: as user 1000 on
# a read-only root, with only the loopback network.
run_in_root() {
  local namespaces=-m
  [ "$2" = writable ] || namespaces=-mn
  unshare "$namespaces" bash -euc '
    work=$1 root=$2 mode=$3 user=0:0
    shift 3
    mount --bind "$root" "$root"
    if [ "$mode" = read-only ]; then
      user=1000:1000
      mount -o remount,bind,ro "$root"
      .venv/bin/python -c "import fcntl, socket, struct
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack(\"16sh14x\", b\"lo\", IFF_UP))"
    fi
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o size=16m,mode=755 tmpfs "$root/dev"
    for device in null zero random urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
    mkdir -m 1777 "$root/dev/shm"
    mount --bind "$work" "$root/work"
    echo $$ >"$work/pid"
    exec chroot --userspec="$user" "$root" env -C /work HOME=/tmp "$@"' run_in_root "$work" "$@"
}

# try_wheel SUITE: installs the wheel with pip, and trains.
try_wheel() {
  local suite=$1 root=$base_folder/$1
  say "$suite: pip install of the wheel"
  cp /etc/resolv.conf "$root/etc/"
  [ ! -e "$certificates" ] || cp -L "$certificates" "$root/packages/ca.crt"
  run_in_root "$root" writable bash -euc '
    unset PIP_FIND_LINKS  # a folder of the host, which is not visible here
    # All four are set, because in older versions of pip the variables of its HTTP library take
    # precedence.
    [ ! -e /packages/ca.crt ] || export {PIP_CERT,SSL_CERT_FILE,REQUESTS_CA_BUNDLE,CURL_CA_BUNDLE}=/packages/ca.crt
    if [ -e /opt/v/bin/ftrun ]; then  # installed from an earlier wheel
      /opt/v/bin/pip install -q --no-cache-dir --force-reinstall --no-deps /packages/*.whl
    else
      python3 -m venv /opt/v
      /opt/v/bin/pip install -q --no-cache-dir /packages/*.whl
    fi
    /opt/v/bin/ftrun --version'
  run_in_root "$root" writable /opt/v/bin/ftrun "${train[@]}" --set "output_dir=wheel-$suite" | tail -n 3
  compare_with_first "wheel-$suite"
}

# try_deb SUITE: installs the .deb, and trains without root on a read-only root.
try_deb() {
  local suite=$1 root=$base_folder/$1
  say "$suite: the .deb without root, on a read-only root"
  chroot "$root" bash -euc 'dpkg -i /packages/*.deb >/dev/null && ln -sfn /opt/v/lib/python3*/site-packages/torch /usr/lib/ftrun/torch'
  run_in_root "$root" read-only ftrun "${train[@]}" --set "output_dir=deb-$suite" | tail -n 3
  compare_with_first "deb-$suite"
}

# try_gpu_package SUITE: runs the package of scripts/gpu_first_hour.sh as far as possible without a GPU.
try_gpu_package() {
  local suite=$1 results=$work/gpu-$1 code=0 step
  say "$suite: the package for the first hour on a GPU"
  run_in_root "$base_folder/$suite" read-only bash -c 'exec gpu_pack/scripts/gpu_first_hour.sh run --results "$1" \
    --torch "$(echo /opt/v/lib/python3*/site-packages/torch)" --only "^(start|kernels|training-runs|nccl-one-rank|timings)$"' \
    gpu_pack "gpu-$suite" >"$base_folder/gpu-$suite.log" 2>&1 || code=$?
  [ "$code" -eq 77 ] || die "the package ended with exit code $code, expected 77: $(tail -n 5 "$base_folder/gpu-$suite.log")"
  grep -q '^all libraries found$' "$results/start.log" || die "libraries are missing: $(cat "$results/start.log")"
  for step in start kernels training-runs nccl-one-rank timings; do
    grep -q '"verdict": "no GPU"' "$results/$step.json" || die "$step: $(cat "$results/$step.json")"
  done
}

# hide_state: mounts empty folders over those in which buildah and podman keep state outside of
# their storage.
hide_state() {
  local names folder
  names=$(readlink -f /etc/resolv.conf)
  cp "$names" "$containers/resolv.conf"
  for folder in /var/lib /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
  [ -e "$names" ] || install -D -m 644 "$containers/resolv.conf" "$names"
  cat >"$containers/containers.conf" <<CONF
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
[network]
network_config_dir = "$containers/network"
CONF
  export CONTAINERS_CONF=$containers/containers.conf TMPDIR=$containers/tmp
}

# make_base: adds the base images of the recipe to the storage, with the host's certificates in
# them.
make_base() {
  local release recipe=$containers/base/Containerfile
  mkdir "$containers/base"
  if timeout 120 "$builder" pull "${storage[@]}" docker.io/library/debian:12 >"$containers/pull.log" 2>&1; then
    say 'image: built on the base image of docker.io'
  else
    say "image: built on a base made by debootstrap (docker.io: $(tail -n 1 "$containers/pull.log" | sed "s|.*: ||"))"
    bare_root "$base_folder/base" bookworm
    tar -C "$base_folder/base" --one-file-system --numeric-owner -cf "$containers/base/root.tar" .
  fi
  [ ! -e "$certificates" ] || cp -L "$certificates" "$containers/base/ca.crt"
  for release in 12 12-slim; do
    if [ -e "$containers/base/root.tar" ]; then
      printf 'FROM scratch\nADD root.tar /\n' >"$recipe"
    else
      printf 'FROM docker.io/library/debian:%s\n' "$release" >"$recipe"
    fi
    [ ! -e "$certificates" ] || printf 'COPY ca.crt /ca.crt\nENV PIP_CERT=/ca.crt SSL_CERT_FILE=/ca.crt\n' >>"$recipe"
    "$builder" build "${storage[@]}" -t "docker.io/library/debian:$release" -f "$recipe" "$containers/base" >"$containers/base.log" 2>&1 ||
      die "the base could not be made: $(tail -n 3 "$containers/base.log")"
  done
}

# in_podman IMAGE ARGUMENT...: runs an image as docs/install.md says, with smaller limits.
in_podman() {
  # The limits are set because podman's defaults are higher than a root user without
  # CAP_SYS_RESOURCE may set.
  podman "${storage[@]}" run --rm --name trial --cgroup-parent "$group" --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 \
    --read-only --shm-size 16m --network none -v "$work:/work" "$@"
}

# train_image ARGUMENT...: runs the image's ftrun with the runner that choose_image_runner selected.
train_image() {
  case $image_runner in
    podman) in_podman ftrun:trial "$@" ;;
    chroot) run_in_root "$containers/files" read-only /opt/ftrun/bin/ftrun "$@" ;;
  esac
}

# stop_image: sends a stop signal to a run of the image, and kills the run after 30 seconds, as
# schedulers do (docs/errors.md).
stop_image() {
  local pid
  case $image_runner in
    podman) podman "${storage[@]}" stop --time 30 trial >/dev/null ;;
    chroot)
      pid=$(cat "$work/pid")
      kill -TERM "$pid"
      for _ in {1..300}; do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
      kill -KILL "$pid"
      ;;
  esac
}

# choose_image_runner: finds out how the image can be run here.
choose_image_runner() {
  image_runner=podman
  if ! command -v podman >/dev/null; then
    image_runner=chroot
    say 'image: run in a root folder of its own, because podman is not installed (apt-get install podman runc)'
  elif ! in_podman docker.io/library/debian:12 true >"$containers/podman.log" 2>&1; then
    image_runner=chroot
    say "image: run in a root folder of its own, because podman cannot start containers: $(tail -n 1 "$containers/podman.log")"
  fi
}

# link_image_files: links the files of the image to the folder in which train_image expects them.
link_image_files() {
  local made
  case $builder in
    buildah) made=$(buildah mount "${storage[@]}" "$(buildah from "${storage[@]}" --pull-never ftrun:trial)") ;;
    podman) made=$(podman "${storage[@]}" mount "$(podman "${storage[@]}" create ftrun:trial)") ;;
  esac
  mkdir -p "$made/work"
  ln -s "$made" "$containers/files"
}

# stop_and_resume: stops a run of the image after some steps and checks its files; another run then
# resumes it.
stop_and_resume() {
  local out=$work/stopped code=0 begin next seen
  train_image "${train[@]}" --set output_dir=stopped --set train.steps=1000000 >"$base_folder/stopped.log" 2>&1 &
  running=$!
  for _ in {1..600}; do
    seen=$(grep -c '"loss"' "$out/metrics.jsonl" 2>/dev/null || true)
    [ "${seen:-0}" -lt 3 ] || break
    kill -0 "$running" || die "the run ended before the stop signal: $(tail -n 3 "$base_folder/stopped.log")"
    sleep 0.5
  done
  begin=$SECONDS
  stop_image
  wait "$running" || code=$?
  running=''
  [ "$code" -eq 143 ] || die "the run ended with exit code $code after the stop signal, expected 143: $(tail -n 3 "$base_folder/stopped.log")"
  next=$(python_of_tests '
import sys
from runner import checkpoints, manifest, steps
out = sys.argv[1]
done = len(steps(out))
assert manifest(out)["exit_reason"] == f"stopped by SIGTERM after step {done}", manifest(out)["exit_reason"]
assert checkpoints(out) == [f"step-{done:08}"], checkpoints(out)
print(done + 1)' "$out")
  say "image: the run stopped after step $((next - 1)), $((SECONDS - begin)) s after the signal, with exit code 143 and a checkpoint"
  train_image "${train[@]}" --set output_dir=stopped --set "train.steps=$next" --resume auto | tail -n 3
}

# try_image: builds the image, trains in it, and stops and resumes a run.
try_image() {
  local options=(--pull=never --network host -t ftrun:trial)
  mkdir -p "$containers/tmp" "$containers/network"
  hide_state
  make_base
  choose_image_runner
  [ "$image_runner" = podman ] || options+=(--isolation chroot)
  say "image: $builder builds it (10 minutes and more)"
  scripts/package.sh image -- "${storage[@]}" "${options[@]}" >"$base_folder/image.log" 2>&1 ||
    die "the image could not be built: $(tail -n 20 "$base_folder/image.log")"
  [ "$image_runner" = podman ] || link_image_files
  say "image: run by $image_runner without root and network, on a read-only root"
  train_image --version
  train_image "${train[@]}" --set output_dir=image | tail -n 3
  compare_with_first image
  stop_and_resume
  remove_containers
}

scripts/package.sh wheel --out "$base_folder/packages"
FTRUN_BUILT=done scripts/package.sh deb --out "$base_folder/packages"
rm -rf -- "$work"
mkdir "$work"
python_of_tests '
import pathlib, sys
from runner import config, tiny_data, tiny_model, write_config
work = pathlib.Path(sys.argv[1])
tiny_model(work / "model")
tiny_data(work / "train.bin")
write_config(work, config("model", "train.bin", "run", train={"steps": 3}, train_micro_batch_size_per_gpu=1))' "$work"
chown -R 1000:1000 "$work"
has_gpu_package=no
if [ -e build/all-gpus/lib/libftrun_cuda.so ]; then
  has_gpu_package=yes
  scripts/gpu_first_hour.sh pack "$work/gpu_pack" >"$base_folder/gpu_pack.log" 2>&1 || die "the package for GPUs could not be made: $(tail -n 5 "$base_folder/gpu_pack.log")"
fi
for suite in "${suites[@]}"; do
  bare_root "$base_folder/$suite" "$suite" python3-venv,ca-certificates,libstdc++6
  mkdir -p "$base_folder/$suite/work"
  cp -r "$base_folder/packages" "$base_folder/$suite/"
  try_wheel "$suite"
  try_deb "$suite"
  [ "$has_gpu_package" = no ] || try_gpu_package "$suite"
done
[ -n "$builder" ] || skip 'the image was not tried, all other packages were: it needs buildah or podman (apt-get install buildah podman runc)'
try_image
say 'all packages ran'
