#!/usr/bin/env bash
# Packs the release build for other machines.
#
#   scripts/package.sh tree|wheel|deb [--out FOLDER]      (default: build/packages)
#   scripts/package.sh image [-- OPTION...]
#
#   tree    ftrun-VERSION.tar.gz: bin, lib and share, which run from any folder
#   wheel   ftrun-VERSION-py3-none-manylinux_….whl: pip installs it and the torch package it needs
#   deb     ftrun_VERSION_amd64.deb: /usr/bin/ftrun, which uses LibTorch from pip or from
#           /usr/lib/ftrun/torch
#   image   ftrun:VERSION, a container image, built by buildah, podman or docker (the first that is
#           installed), which receives each OPTION
#
# All four contain the same files. A tarball, wheel or .deb needs glibc and libstdc++ at least as new
# as those of the build machine, and no other system library. `ftrun --version` prints where it
# found LibTorch.
#
# The script builds first (scripts/build.sh). It builds the preset all-gpus, because the GPU of the
# target machine is unknown: without compiled kernels for it, the driver would translate kernels for
# minutes when each rank first starts. FTRUN_PRESET=release packs build/release instead, which has
# kernels for GPUs of compute capability 8.0 and 9.0. An image compiles its own build.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/packages
say() { printf '[package] %s\n' "$*"; }
die() { printf '[package] error: %s\n' "$*" >&2; exit "${2:-5}"; }

kind=${1:-}
usage='usage: scripts/package.sh tree|wheel|deb [--out FOLDER], or image [-- OPTION...]'
case $kind in tree | wheel | deb | image) shift ;; *) die "$usage" 2 ;; esac

if [ "$kind" = image ]; then
  [ "${1:---}" = -- ] || die "unknown option $1 of image: options of the build tool follow --; $usage" 2
  [ $# -eq 0 ] || shift
  version=$(sed -n 's/^project(ftrun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  for tool in buildah podman docker; do
    command -v "$tool" >/dev/null || continue
    say "$tool builds ftrun:$version (some ten minutes and 20 GB of disk)"
    "$tool" build "$@" -f scripts/container/Containerfile -t "ftrun:$version" . || die "$tool could not build the image"
    exit 0
  done
  die 'none of buildah, podman and docker is installed (Debian: apt-get install buildah)'
fi

while [ $# -gt 0 ]; do
  case $1 in
    --out) [ $# -ge 2 ] || die '--out needs a folder' 2; out=$2; shift ;;
    *) die "unknown option $1" 2 ;;
  esac
  shift
done

preset=${FTRUN_PRESET:-all-gpus}
if [ "${FTRUN_BUILT:-}" != done ]; then  # unless the tests have built it already
  scripts/build.sh "$preset" ftrun
  modules=()  # known only after the build is configured
  for module in ftrun_cuda ftrun_nccl; do
    if grep -q "lib$module.so" "build/$preset/build.ninja"; then modules+=("$module"); fi
  done
  [ ${#modules[@]} -eq 0 ] || FTRUN_SETUP=done scripts/build.sh "$preset" "${modules[@]}"
fi
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cmake --install "build/$preset" --prefix "$work/tree" --strip >/dev/null
version=$("$work/tree/bin/ftrun" --version | sed -n '1s/^ftrun \([^ ]*\).*/\1/p')
torch=$("$work/tree/bin/ftrun" --version | sed -n '2s/^LibTorch \([^+,]*\).*/\1/p')
[ -n "$version" ] || die 'the build does not print its version'
mkdir -p "$out"

# The newest glibc version that the files need, by their symbols: "2.34".
glibc=$(objdump -T "$work"/tree/bin/* "$work"/tree/lib/*.so | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1 | cut -d _ -f 2)

# put FILE: moves a file into the output folder atomically. A file with the same name is an earlier
# package of this version, and is replaced.
put() { mv -f -- "$1" "$out/.$(basename "$1").part" && mv -f -- "$out/.$(basename "$1").part" "$out/$(basename "$1")" && say "$out/$(basename "$1")"; }

pack_tree() {
  mv "$work/tree" "$work/ftrun-$version"
  tar -C "$work" --owner=0 --group=0 -czf "$work/ftrun-$version.tar.gz" "ftrun-$version"
  put "$work/ftrun-$version.tar.gz"
}

pack_wheel() {
  local data=$work/wheel/ftrun-$version.data info=$work/wheel/ftrun-$version.dist-info tag
  mkdir -p "$data/scripts" "$info"
  mv "$work/tree/bin/ftrun" "$data/scripts/"
  rmdir "$work/tree/bin"
  mv "$work/tree" "$data/data"
  tag=py3-none-manylinux_${glibc//./_}_$(uname -m)
  printf 'Wheel-Version: 1.0\nGenerator: ftrun\nRoot-Is-Purelib: false\nTag: %s\n' "$tag" > "$info/WHEEL"
  {
    printf 'Metadata-Version: 2.1\nName: ftrun\nVersion: %s\nSummary: Fine-tunes large language models, one binary\n' "$version"
    printf 'License: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch==%s\n' "$torch"
    # Packages for matrix multiplication where MKL is slow, and packages that the scripts next to
    # the binary import.
    sed -n 's/^matmul_packages=(\(.*\))/\1/p' scripts/setup.sh | tr ' ' '\n' | sed 's/^/Requires-Dist: /'
    printf 'Provides-Extra: scripts\n'
    printf 'Requires-Dist: %s; extra == "scripts"\n' numpy xxhash tokenizers jinja2 transformers safetensors gguf
    printf 'Description-Content-Type: text/markdown\n\n'
    cat README.md
  } > "$info/METADATA"
  .venv/bin/python -m wheel pack "$work/wheel" --dest-dir "$work" >/dev/null || die 'the wheel could not be packed: run scripts/setup.sh'
  put "$work"/ftrun-*.whl
}

pack_deb() {
  local root=$work/deb
  command -v dpkg-deb >/dev/null || die 'dpkg-deb is not installed; a .deb can be packed only on Debian'
  mkdir -p "$root/usr/lib/ftrun" "$root/usr/bin" "$root/DEBIAN"
  mv "$work/tree/bin" "$work/tree/lib" "$root/usr/lib/ftrun/"
  mv "$work/tree/share" "$root/usr/"
  ln -s ../lib/ftrun/bin/ftrun "$root/usr/bin/ftrun"
  gzip -9n "$root/usr/share/man/man1/ftrun.1"
  cat > "$root/DEBIAN/control" <<CONTROL
Package: ftrun
Version: $version
Architecture: amd64
Maintainer: The ftrun developers <ftrun@localhost>
Depends: libc6 (>= $glibc), libstdc++6 (>= 12), libgcc-s1
Recommends: python3
Section: science
Priority: optional
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Description: fine-tunes large language models, one binary
 Trains on CPUs and NVIDIA GPUs from one config file. LibTorch $torch is not
 in this package: ftrun takes it from the torch package of the virtual environment
 that is active, of /usr/local, or of the folder that FTRUN_TORCH or the link
 /usr/lib/ftrun/torch names. check, plan and the like need none.
CONTROL
  find "$root" -type d -exec chmod 755 {} +
  dpkg-deb -Zgzip --root-owner-group --build "$root" "$work/ftrun_${version}_amd64.deb" >/dev/null
  put "$work/ftrun_${version}_amd64.deb"
}

"pack_$kind"
