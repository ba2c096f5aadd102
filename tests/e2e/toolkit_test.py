"""Checks that a machine without a CUDA toolkit can build for GPUs with the compiler that
scripts/setup.sh installs from wheels. A mount namespace hides the machine's own toolkit. Python's
other packages are provided, because installing them takes longer than everything else; and only one
kernel file is compiled, because the whole module takes minutes."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from runner import case, mount_problem, run_cases, skip

SOURCE = pathlib.Path(sys.argv[1])
KERNEL = "pointwise.cu"
# uv prints one of these if the registry is unreachable; any other failure of setup.sh is an error.
UNREACHABLE = ("error sending request", "timed out", "dns error", "Connection refused",
               "Network is unreachable")
# This script empties toolkit folders and hides each nvcc in PATH, but only for its own command.
HIDE = """
for folder in /usr/local/cuda /usr/local/cuda-* /opt/cuda; do
  if [ -d "$folder" ] && [ ! -L "$folder" ]; then mount -t tmpfs tmpfs "$folder"; fi
done
for folder in ${PATH//:/ }; do
  if [ -x "$folder/nvcc" ]; then mount --bind "$empty" "$folder/nvcc"; fi
done
exec "$@"
"""

if why := mount_problem():
    skip(why)
if shutil.which("git") is None or not (SOURCE / ".git").exists():
    skip("the files of the project are those that git tracks, and this is no checkout")

with tempfile.TemporaryDirectory(prefix="ftrun-toolkit-") as scratch:
    scratch = pathlib.Path(scratch)
    checkout = scratch / "source"
    (scratch / "empty").touch(mode=0o644)

    def hidden(*command):
        """Runs a command in the copied checkout, where no toolkit is visible. Bytecode of the new
        environment is useless to others, and is removed with it. Wheels (2.3 GB) are kept
        in uv's default folder, where a later test finds them, not in the tests' own cache
        (tests/CMakeLists.txt: XDG_CACHE_HOME), which is empty in a fresh build. The kernel is
        compiled even if ccache has it."""
        variables = {name: value for name, value in os.environ.items()
                     if not name.startswith("CUDA") and name != "XDG_CACHE_HOME"}
        variables |= {"PYTHONPYCACHEPREFIX": str(scratch / "pycache"), "CCACHE_DISABLE": "1"}
        return subprocess.run(["unshare", "-m", "bash", "-euc", HIDE, "hide", *map(str, command)],
                              cwd=checkout, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**variables, "empty": str(scratch / "empty")})

    def give_environment():
        """Links SOURCE's Python packages into the checkout, except NVIDIA's."""
        given = checkout / ".venv"
        (packages,) = (SOURCE / ".venv").glob("lib/python3*/site-packages")
        for folder in (packages, SOURCE / ".venv" / "bin"):
            to = given / folder.relative_to(SOURCE / ".venv")
            to.mkdir(parents=True)
            for path in folder.iterdir():
                if not path.name.startswith("nvidia"):
                    (to / path.name).symlink_to(path)
        shutil.copy2(SOURCE / ".venv" / "pyvenv.cfg", given)

    @case
    def a_kernel_is_compiled_by_the_wheels():
        tracked = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], capture_output=True,
                                 text=True, check=True).stdout
        for name in tracked.split("\0"):
            if name and (SOURCE / name).exists():
                (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(SOURCE / name, checkout / name)
        give_environment()
        assert hidden("bash", "-c",
                      "! nvcc --version && [ ! -e /usr/local/cuda/bin/nvcc ]").returncode == 0
        installed = hidden("scripts/setup.sh", "--only", "python", "--with-cuda")
        if installed.returncode and any(word in installed.stdout for word in UNREACHABLE):
            skip("the compiler's wheels could not be fetched: "
                 f"{installed.stdout.strip().splitlines()[-1]}")
        assert installed.returncode == 0, installed.stdout
        assert ("this machine has no CUDA toolkit: installing its compiler as wheels"
                in installed.stdout), installed.stdout
        configured = hidden("cmake", "--preset", "release", "-DFTRUN_CUDA_ARCHITECTURES=90",
                            "-DFTRUN_UNITY=OFF", "-DFTRUN_TESTS=OFF")
        assert configured.returncode == 0, configured.stdout
        assert "-- CUDA: 13.0.88, architectures 90" in configured.stdout, configured.stdout
        objects = hidden("ninja", "-C", "build/release", "-t", "query",
                         "lib/libftrun_cuda.so").stdout
        (wanted,) = [line.strip() for line in objects.splitlines()
                     if line.strip().endswith(f"/{KERNEL}.o")]
        compiled = hidden("ninja", "-C", "build/release", wanted)
        assert compiled.returncode == 0, compiled.stdout
        # The object contains machine code for that architecture, not only host code.
        image = (checkout / "build" / "release" / wanted).read_bytes()
        assert b".nv_fatbin" in image and b"sm_90" in image, wanted

    run_cases()
