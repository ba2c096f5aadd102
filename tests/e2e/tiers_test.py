"""Checks that the tier where state is stored between its uses (device, host, disk) changes no bit,
that errors of a disk are reported exactly, and that nothing is left on it. Whole runs are spot
checks: tests/engine/stages_test.cc trains all combinations of stages, precisions, replicas and
tiers in one process."""
import os
import pathlib
import re
import subprocess
import tempfile

from runner import (ShardedJob, await_that, case, ftrun, must, needs, preload, require_same_run,
                    run_cases, start, steps)

CPU = {"device": "cpu"}

with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = ShardedJob(scratch)
    disk = pathlib.Path(scratch) / "nvme"
    NVME = {"device": "nvme", "nvme_path": str(disk)}
    FORMS = {
        "host-states": {"offload_optimizer": CPU},
        "host-parameters": {"offload_param": CPU},
        "host-both": {"offload_optimizer": CPU, "offload_param": CPU},
        "half-host": {"offload_optimizer": CPU | {"ratio": 0.5}},
        "disk-states": {"offload_optimizer": NVME},
        "disk-parameters": {"offload_param": NVME},
        "disk-both": {"offload_optimizer": NVME, "offload_param": NVME},
        "disk-and-host": {"offload_optimizer": NVME, "offload_param": CPU},
        "piped": {"offload_optimizer": NVME | {"pipeline_read": True, "pipeline_write": True}},
    }
    AT_STAGE = {1: ("disk-states",), 2: ("host-states",), 3: tuple(FORMS)}

    def same_as_on_the_device(reference, forms, ranks=3, **settings):
        job.train(reference, ranks, **settings)
        for form in forms:
            name = f"{reference}-{form}"
            job.train(name, ranks, **settings | {"zero": FORMS[form]})
            require_same_run(job.out(reference), job.out(name))

    @case
    def tiers_have_the_same_bits():
        for stage, forms in AT_STAGE.items():
            same_as_on_the_device(f"fp32-{stage}", forms, stage=stage)

    @case
    def tiers_have_the_same_bits_in_bf16_and_fp16():
        same_as_on_the_device("bf16", ("disk-both", "half-host"), precision="bf16", stage=3)
        same_as_on_the_device("fp16", ("disk-states",), precision="fp16", stage=1)

    @case
    def tiers_have_the_same_bits_with_replicas_and_accumulated_steps():
        same_as_on_the_device("hybrid", ("disk-both",), ranks=4, stage=3,
                              parallel={"data": 4, "data_replicate": 2})
        same_as_on_the_device("accumulated", ("host-both",), ranks=2, stage=3, accumulation=3)
        # A shard group of one rank adds its micro-batches like any other, whether or not its
        # optimizer is on another tier.
        same_as_on_the_device("alone", ("host-states",), ranks=2, stage=2, accumulation=2,
                              parallel={"data": 2, "data_replicate": 2})

    @case
    def memory_moves_to_its_tier():
        """Memory that a setting removes from the device must be on the tier that the setting
        names."""
        def memory(form):
            return steps(job.out(f"fp32-3-{form}" if form else "fp32-3"))[-1]["memory"]

        states, parameters = memory("")["optimizer"], memory("")["parameters"]
        assert ("optimizer" not in memory("host-states")
                or memory("host-states")["optimizer"] < states / 2), memory("host-states")
        assert memory("host-states")["host_optimizer"] > states / 2, memory("host-states")
        assert memory("disk-states")["nvme_optimizer"] > states / 2, memory("disk-states")
        for tier, category in (("host", "host_parameters"), ("disk", "nvme_parameters")):
            held = memory(f"{tier}-parameters")
            assert held[category] > parameters / 2, held
        # The host has a copy of the weights in addition to the two moments.
        half = memory("half-host")
        assert (half["optimizer"] < 0.7 * states
                and 0.3 * states < half["host_optimizer"] * 2 / 3 < 0.7 * states), half

    @case
    def nothing_is_left_on_the_disk():
        assert disk.is_dir() and not list(disk.rglob("*")), list(disk.rglob("*"))

    # --- what a disk refuses -----------------------------------------------------------------

    def on_disk(name, folder, ranks=2, **changes):
        """Returns a config with parameters and optimizer state in this folder."""
        both = {key: {"device": "nvme", "nvme_path": str(folder)}
                for key in ("offload_optimizer", "offload_param")}
        return job.config(name, **job.settings(ranks, stage=3, zero=both, **changes))

    def refused(name, folder, message, code=5, wrapper=(), **changes):
        """Expects that a run on two ranks ends with `message`, where CONFIG is the config's path
        and PLACE the position of the key."""
        config = on_disk(name, folder, **changes)
        run = must(ftrun("--config", config, "--nproc", 2, wrapper=wrapper), code)
        stderr = run.stderr[re.search(r"^(ftrun|error): ", run.stderr, re.M).start():]
        lines = config.read_text().split("\n")
        at = [number for number, line in enumerate(lines, 1) if '"nvme_path"' in line][0]
        message = message.replace("PLACE",
                                  f"{config}:{at}:{lines[at - 1].index(':') + 3}").replace(
                                      "CONFIG", str(config))
        stderr = re.sub(r"[0-9.]+ .iB free\)", "SPACE free)", stderr)
        stderr = re.sub(r"\d\.\ds after", "N s after", re.sub(r"[0-9a-f]{16}", "HASH", stderr))
        assert stderr == message, f"found:\n{stderr}\nexpected:\n{message}"
        return stderr

    FOLDER_REMEDY = ("  remedy: point nvme_path at a folder on a local disk that this user may "
                     "write to\n")

    @case
    def a_missing_nvme_folder_is_made_and_reported():
        folder = pathlib.Path(scratch) / "deep" / "folder"
        job.train("made", 2, stage=3,
                  zero={"offload_optimizer": {"device": "nvme", "nvme_path": str(folder)}})
        stderr = job.done["made"].stderr
        assert (re.search(f"nvme_path {folder} did not exist: it was made on the file system of "
                          "/[^ ]* \\([0-9.]+ .iB free\\)\n", stderr)), stderr
        assert folder.is_dir() and not list(folder.iterdir())

    @case
    def an_nvme_path_that_is_a_file_is_refused():
        for folder in (job.data, job.data / "below"):
            refused("file", folder, f"ftrun: PLACE: nvme_path {folder}: {job.data} is not a "
                                    "folder\n" + FOLDER_REMEDY)
            # The folder may be on another machine, where the run will train.
            stdout = must(ftrun("check", "--quiet", "--config", on_disk("file", folder))).stdout
            assert (f": nvme_path {folder}: {job.data} is not a folder\n" + FOLDER_REMEDY in stdout
                    and "notice: this machine cannot run the config: " in stdout), stdout

    @case
    def a_missing_nvme_path_is_refused():
        remedy = ("  remedy: name a folder on the fastest local disk, for example nvme_path: "
                  "/mnt/nvme/ftrun\n")
        refused("none", "", "ftrun: CONFIG:47:14: error: zero_optimization.offload_optimizer: "
                            f"device nvme needs nvme_path\n{remedy}CONFIG:51:14: error: "
                            "zero_optimization.offload_param: device nvme needs nvme_path\n"
                            f"{remedy}2 problems in the config; nothing was started\n", code=2)

    @case
    def a_file_beyond_the_file_size_limit_is_refused():
        """The run uses Gloo, because shared memory is a file under the same limit; and it exports
        nothing, because the export's file would be refused first."""
        refused("limit", disk, "error: ranks 0, 1: exit code 5, N s after the start: allocating "
                f"memory: rank 0: {disk}/ftrun-HASH-rank0.swap: reserving space failed: File too "
                "large (1.22 MiB wanted, SPACE free)\n  remedy: raise the limit of file sizes "
                "(ulimit -f), or point nvme_path at a file system that takes files of this size; "
                "make one or more of these changes (savings per rank): "
                "zero_optimization.offload_optimizer.device: none saves 832.00 KiB\n",
                wrapper=("prlimit", "--fsize=1200000"), comm={"backend": "gloo"},
                export={"enabled": False})

    @needs("mount")
    def disk_that_is_full_or_read_only():
        small = pathlib.Path(scratch) / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "none", small], check=True)
        try:
            refused("full", small, f"ftrun: PLACE: nvme_path {small}: 2.44 MiB wanted on this "
                    f"machine, 700.00 KiB free on {small}\n  remedy: free space on that file "
                    "system, point nvme_path at another one, or offload less; make one or more "
                    "of these changes (savings per rank): "
                    "zero_optimization.offload_optimizer.device: none saves 832.00 KiB; each rank "
                    "lacks 898.00 KiB, so none is enough alone\n")
            subprocess.run(["mount", "-o", "remount,ro", small], check=True)
            refused("read-only", small, f"ftrun: PLACE: nvme_path {small}: this user may not write "
                                        f"to {small}: Read-only file system\n"
                    + FOLDER_REMEDY)
            subprocess.run(["mount", "-o", "remount,rw,size=20m", small], check=True)
            empty = used_space(small)
            must(ftrun("--config", on_disk("roomy", small), "--nproc", 2))
            killed_run_leaves_nothing("killed-roomy", small, empty)
        finally:
            subprocess.run(["umount", small], check=True)

    @needs("mount")
    def checkpoints_have_what_the_disk_tier_leaves():
        small = pathlib.Path(scratch) / "tight"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=7m", "none", small], check=True)

        def check(config, code=0):
            result = must(ftrun("check", "--quiet", "--config", config, "--nproc", 2), code)
            return result.stdout + result.stderr
        try:
            out = {"output_dir": str(small / "run")}
            message = check(on_disk("beside", small / "swap", **out, checkpoint={"every": 1}), 5)
            assert (f"ftrun: {small}/run/checkpoints: 1 checkpoint of 2.21 MiB: 2.21 MiB needed, "
                    "2.12 MiB free beside 4.88 MiB of the disk tier\n") in message, message
            # Checkpoints by the clock may be as many as those by steps.
            for when in ({"every": 1}, {"every": 0, "every_minutes": 1}):
                message = check(job.config("apart",
                                           **job.settings(2, stage=3, **out,
                                                          checkpoint=when | {"keep_last": 2})))
                assert (f"warning: {small}/run/checkpoints: 3 checkpoints of 2.21 MiB (keep_last "
                        "2, one under way, 0 there) and the exported model of 755.25 KiB: 7.38 MiB "
                        "needed, 7.00 MiB free: the run may end with a full disk\n") in message, (
                    message)
        finally:
            subprocess.run(["umount", small], check=True)

    # --- what is left ------------------------------------------------------------------------

    def used_space(folder):
        found = os.statvfs(folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def killed_run_leaves_nothing(name, folder, empty=None):
        """Checks that a killed run frees the space of its swap files, which have no name, when its
        last process ends."""
        def used_bytes():
            return used_space(folder)

        before = used_bytes() if empty is None else empty
        await_that(lambda: empty is None or used_bytes() == empty, "the run before gives its space "
                   f"back: {empty} bytes are used")
        running = start("--config", on_disk(name, folder, train={"steps": 100000}), "--nproc", 2)
        running.await_line("step 2/")
        on_tmpfs = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True,
                                  text=True).stdout.strip() == "tmpfs"
        assert not on_tmpfs or used_bytes() >= before + 2_400_000, (before, used_bytes())
        assert not list(folder.iterdir()), list(folder.iterdir())
        running.kill_all()
        assert not list(folder.iterdir()), list(folder.iterdir())
        # io_uring releases the files of a killed process a moment after the process is gone.
        await_that(lambda: not on_tmpfs or used_bytes() == before,
                   "a killed run gives its space back: "
                   f"{before} bytes are used")

    @case
    def killed_runs_leave_nothing():
        killed_run_leaves_nothing("killed", disk)

    run_cases()
