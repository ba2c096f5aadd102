"""Checks that the packages of scripts/package.sh run after unpacking: a tree that was moved, a
wheel in a separate environment, and the files of a .deb. LibTorch is the build's own.
scripts/try_packages.sh tries whole distributions."""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

from runner import Job, await_that, case, environment, must, record_exit, run_cases, skip, steps

SOURCE = pathlib.Path(sys.argv[1])
BUILD = SOURCE / "build" / "release"
TORCH = next((SOURCE / ".venv" / "lib").glob("python3*/site-packages/torch"))

if pathlib.Path(os.environ["FTRUN_BINARY"]).resolve() != (BUILD / "bin" / "ftrun").resolve():
    skip("packages are made of build/release")

with tempfile.TemporaryDirectory(prefix="ftrun packages ") as scratch:
    scratch = pathlib.Path(scratch)
    job = Job(scratch)

    def package(kind):
        result = subprocess.run([SOURCE / "scripts" / "package.sh", kind, "--out", scratch / "out"],
                                capture_output=True, text=True,
                                env=environment({"FTRUN_BUILT": "done",
                                                 "FTRUN_PRESET": "release"}))
        assert result.returncode == 0, result.stdout + result.stderr
        made = [path for path in (scratch / "out").iterdir()
                if path.suffix in {"tree": ".gz", "wheel": ".whl", "deb": ".deb"}[kind]]
        assert len(made) == 1 and not list((scratch / "out").glob(".*")), made
        return made[0]

    def run(binary, *arguments, **variables):
        result = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True,
                                cwd=scratch,
                                env=environment({"LD_LIBRARY_PATH": "", **variables}))
        record_exit(result.returncode, result.stderr)
        return result

    def require_training(binary, name):
        """Trains on two ranks; checks that the losses equal those of the build itself."""
        changes = {"train": {"steps": 3, "weight_decay_exempt": "none"},
                   "train_micro_batch_size_per_gpu": 1}
        must(run(binary, "--config", job.config(name, **changes), "--nproc", 2,
                 FTRUN_TORCH=str(TORCH)))
        if not job.out("built").exists():
            must(run(BUILD / "bin" / "ftrun", "--config", job.config("built", **changes), "--nproc",
                     2))
        assert ([step["loss"] for step in steps(job.out(name))]
                == [step["loss"] for step in steps(job.out("built"))])

    def answer_help(scripts):
        """Requires that each program of a package's scripts finds the modules it imports."""
        programs = [path for path in sorted(scripts.glob("*.py")) if os.access(path, os.X_OK)]
        assert {path.name for path in programs} >= {"export_gguf.py", "make_model.py",
                                                    "prepare_data.py"}, programs
        for program in programs:
            result = subprocess.run([sys.executable, program, "--help"], capture_output=True,
                                    text=True, cwd=scratch)
            assert result.returncode == 0 and "usage" in result.stdout.lower(), (
                program, result.stderr)

    def needed(file):
        stdout = subprocess.run(["readelf", "-d", file], capture_output=True, text=True,
                                check=True).stdout
        return {line.split("[")[1].rstrip("]") for line in stdout.splitlines()
                if "(NEEDED)" in line}, stdout

    @case
    def a_tree_runs_where_it_is_moved():
        with tarfile.open(package("tree")) as archive:
            archive.extractall(scratch / "first")
        (tree,) = (scratch / "first").iterdir()
        moved = shutil.move(tree, scratch / "moved here")
        binary = pathlib.Path(moved) / "bin" / "ftrun"
        libraries, _ = needed(binary)
        assert (libraries <= {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6",
                              "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0"}), libraries
        for module in (pathlib.Path(moved) / "lib").glob("*.so"):
            assert str(SOURCE) not in needed(module)[1], f"{module} has a path of the build"
        lines = must(run(binary, "--version", FTRUN_TORCH=str(TORCH))).stdout.splitlines()
        assert lines[0].startswith("ftrun ") and lines[1].endswith(f"in {TORCH}"), lines
        require_training(binary, "tree")
        answer_help(pathlib.Path(moved) / "share" / "ftrun" / "scripts")
        # A run finds the script that sends it to a tracker; the client of this test only prints.
        client = scratch / "client"
        client.mkdir()
        (client / "wandb.py").write_text("raise SystemExit('the client was imported')\n")
        must(run(binary, "--config", job.config("sent", wandb={"enabled": True, "project": "p"}),
                 FTRUN_TORCH=str(TORCH), PYTHONPATH=str(client)))
        await_that(lambda: "the client was imported"
                   in (job.out("sent") / "follow_run.log").read_text(), "the run is sent")
        gone = must(run(binary, "--config", job.config("gone"),
                        FTRUN_TORCH=str(scratch / "nothing")), 5)
        assert "which this ftrun was built with, was not found" in gone.stderr, gone.stderr
        must(run(binary, "check", "--config", job.config("checked"),
                 FTRUN_TORCH=str(scratch / "nothing")))
        share = pathlib.Path(moved) / "share"
        page = (share / "man" / "man1" / "ftrun.1").read_text()
        help_text = must(run(binary, "convert", "--help")).stdout
        for option in ("--merge", "--quantization", "--dtype"):
            assert option in help_text and option.replace("-", "\\-") in page, option
        completes = subprocess.run(["bash", "-c", f". '{share}/bash-completion/completions/ftrun'; "
                                    "COMP_WORDS=(ftrun convert --q); COMP_CWORD=2; _ftrun; echo "
                                    "${COMPREPLY[@]}"], capture_output=True, text=True,
                                   check=True).stdout
        assert completes == "--quantization\n", completes

    @case
    def a_wheel_puts_the_program_into_its_environment():
        wheel = package("wheel")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", scratch / "venv"],
                       check=True)
        python = scratch / "venv" / "bin" / "python"
        subprocess.run([SOURCE / ".venv" / "bin" / "uv", "pip", "install", "-q", "--no-deps",
                        "--offline", "--python", python, wheel], check=True)
        require_training(scratch / "venv" / "bin" / "ftrun", "wheel")
        subprocess.run([SOURCE / ".venv" / "bin" / "uv", "pip", "uninstall", "-q", "--python",
                        python, "ftrun"], check=True)
        left = [path for path in (scratch / "venv").rglob("*ftrun*") if path.is_file()]
        assert not left, left

    @case
    def a_deb_holds_the_same():
        if shutil.which("dpkg-deb") is None:
            print("no dpkg-deb: the .deb is not tried")
            return
        deb = package("deb")
        subprocess.run(["dpkg-deb", "-x", deb, scratch / "root"], check=True)
        assert os.readlink(scratch / "root" / "usr" / "bin" / "ftrun") == "../lib/ftrun/bin/ftrun"
        stdout = must(run(scratch / "root" / "usr" / "bin" / "ftrun", "--version")).stdout
        assert stdout.startswith("ftrun "), stdout
        fields = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], capture_output=True, text=True,
                                check=True).stdout
        assert fields.startswith("libc6 (>= 2."), fields
        (scratch / "root" / "usr" / "lib" / "ftrun" / "torch").symlink_to(TORCH)
        assert f"in {scratch}/root/usr/lib/ftrun/torch" in must(
            run(scratch / "root" / "usr" / "bin" / "ftrun", "--version")).stdout

    @case
    def an_image_is_built_by_the_installed_tool():
        tools = scratch / "tools"
        tools.mkdir()
        for name in ("bash", "dirname", "sed"):
            (tools / name).symlink_to(shutil.which(name))
        arguments = [SOURCE / "scripts" / "package.sh", "image"]
        none = subprocess.run(arguments, capture_output=True, text=True, env={"PATH": str(tools)})
        assert (none.returncode == 5
                and "none of buildah, podman and docker" in none.stderr), none.stderr
        wrong = subprocess.run([*arguments, "--out", "x"], capture_output=True, text=True,
                               env={"PATH": str(tools)})
        assert (wrong.returncode == 2
                and "unknown option --out of image" in wrong.stderr), wrong.stderr
        (tools / "docker").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > "{scratch}/asked"\n')
        (tools / "docker").chmod(0o755)
        subprocess.run([*arguments, "--", "--pull=never"], check=True, env={"PATH": str(tools)})
        asked = (scratch / "asked").read_text().split("\n")
        version = run(BUILD / "bin" / "ftrun", "--version").stdout.split()[1]
        assert (asked == ["build", "--pull=never", "-f", "scripts/container/Containerfile", "-t",
                          f"ftrun:{version}", ".", ""]), asked
        recipe = (SOURCE / "scripts" / "container" / "Containerfile").read_text()
        for line in ("USER 1000:1000", "STOPSIGNAL SIGTERM", 'ENTRYPOINT ["ftrun"]'):
            assert f"\n{line}\n" in recipe, line

    run_cases()
