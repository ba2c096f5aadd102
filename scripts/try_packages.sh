#!/usr/bin/env bash
# Tries what scripts/package.sh makes on bare distributions: as root, with debootstrap, the network and some 12 GB of disk.
#   scripts/try_packages.sh [--keep FOLDER] [SUITE...]      (default: bookworm trixie)
# In each suite's smallest root: pip installs the wheel, with LibTorch, into a virtual environment; two ranks train a small
# random model; then the .deb beside it, without root, on a read-only root with 16 MB of /dev/shm. Ends with 77, and why,
# where that cannot be tried. --if-asked: only where FTRUN_TRY_PACKAGES is set, as CTest has it.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '[try] %s\n' "$*"; }
skip() { printf 'skipped: %s\n' "$*"; exit 77; }

if [ "${1:-}" = --if-asked ]; then
  shift
  [ -n "${FTRUN_TRY_PACKAGES:-}" ] || skip 'it takes root, the network and some 12 GB: FTRUN_TRY_PACKAGES=1 asks for it'
fi
place=''
if [ "${1:-}" = --keep ]; then place=${2:?--keep wants a folder}; shift 2; fi
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
[ "$(id -u)" -eq 0 ] || skip 'only root may make a root folder'
command -v debootstrap >/dev/null || skip 'no debootstrap (apt-get install debootstrap)'
unshare -m true 2>/dev/null || skip 'this machine allows no mount namespaces'
if [ -z "$place" ]; then
  place=$(mktemp -d)
  trap 'rm -rf --one-file-system -- "$place"' EXIT
fi
mkdir -p "$place"
scripts/package.sh wheel --out "$place/packages"
FTRUN_BUILT=done scripts/package.sh deb --out "$place/packages"
.venv/bin/python - "$place/data" <<'PYTHON'
import json, os, sys
sys.path.insert(0, "tests/e2e")
os.environ.setdefault("FTRUN_BINARY", "build/release/bin/ftrun")
import pathlib
from runner import config, tiny_data, tiny_model
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
tiny_model(folder / "model")
tiny_data(folder / "train.bin")
settings = config("/data/model", "/data/train.bin", "/tmp/run", train={"steps": 3}, train_micro_batch_size_per_gpu=1)
(folder / "config.json").write_text(json.dumps(settings))
PYTHON
certificates=/etc/ssl/certs/ca-certificates.crt

# inside ROOT: what follows runs in a mount namespace of its own, which takes the mounts with it.
inside() {
  local root=$1
  shift
  unshare -m bash -euc '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o size=16m,mode=755 tmpfs "$root/dev"
    for device in null zero random urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
    mkdir -m 1777 "$root/dev/shm"
    "$@"' inside "$root" "$@"
}

for suite in "${suites[@]}"; do
  root=$place/$suite
  if [ ! -e "$root/usr/bin/python3" ]; then
    debootstrap --variant=minbase --include=python3-venv,ca-certificates,libstdc++6 "$suite" "$root" >"$place/$suite.log" 2>&1 ||
      skip "debootstrap $suite failed: $(tail -n 1 "$place/$suite.log")"
  fi
  cp -r "$place/packages" "$place/data" "$root/"
  chmod -R a+rX "$root/data"
  cp /etc/resolv.conf "$root/etc/"
  [ ! -e "$certificates" ] || cp -L "$certificates" "$root/packages/ca.crt"
  say "$suite: pip install of the wheel"
  inside "$root" chroot "$root" bash -euc '
    # All of them: to older versions of pip the variables of its HTTP library come before its own.
    [ ! -e /packages/ca.crt ] || export {PIP_CERT,SSL_CERT_FILE,REQUESTS_CA_BUNDLE,CURL_CA_BUNDLE}=/packages/ca.crt
    [ -e /opt/v/bin/ftrun ] || { python3 -m venv /opt/v && /opt/v/bin/pip install -q /packages/*.whl; }
    /opt/v/bin/ftrun --version
    /opt/v/bin/ftrun --config /data/config.json --nproc 2 | tail -n 3'
  say "$suite: the .deb without root, on a read-only root"
  chroot "$root" bash -euc 'dpkg -i /packages/*.deb >/dev/null && ln -sfn /opt/v/lib/python3*/site-packages/torch /usr/lib/ftrun/torch'
  inside "$root" bash -euc '
    mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"
    mount -t proc proc "$1/proc"; mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"; mount -t tmpfs -o size=16m tmpfs "$1/dev"
    for device in null zero random urandom; do touch "$1/dev/$device"; mount --bind "/dev/$device" "$1/dev/$device"; done
    mkdir -m 1777 "$1/dev/shm"
    chroot --userspec=1000:1000 "$1" env HOME=/tmp ftrun --config /data/config.json --nproc 2 | tail -n 3' read-only "$root"
  say "$suite: both ran"
done
