"""Checks that limits of machines, shells and launchers are respected, or named at once with what to
change, and that nothing is left behind."""
import os
import re
import tempfile

from runner import Job, case, ftrun, free_port, manifest, must, needs, run_cases

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    FEW = {"train": {"steps": 2}}
    # These settings need some gigabytes of activations.
    LARGE = {"train_micro_batch_size_per_gpu": 100_000, **FEW}

    def run_with_limit(limits, *arguments):
        return ftrun(*arguments, wrapper=("bash", "-c", f'ulimit {limits}; exec "$@"', "-"))

    def require_remedy(text, message, remedy):
        assert re.search(rf"^{message}\n  remedy: {remedy}$", text, re.M), text

    @needs("network")
    def loopback_that_is_down_is_named_at_once():
        alone = ("unshare", "--net")
        two = must(ftrun("--config", job.config("no-net", **FEW), "--nproc", 2, wrapper=alone), 5)
        assert two.stderr.endswith(
            "ftrun: the ranks of this machine cannot reach each other: no route to 127.0.0.1: "
            "Network is unreachable\n  remedy: bring the loopback interface of this network "
            "namespace up: ip link set lo up\n"), two.stderr
        assert not job.out("no-net").exists()
        must(ftrun("--config", job.config("one", **FEW), wrapper=alone))

    @needs("network")
    def rank_without_a_network_gets_an_error_at_once():
        def error_of_rank(rank, address, code):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                     "MASTER_ADDR": address, "MASTER_PORT": "29500"}
            return must(ftrun("--config", job.config("far", **FEW, comm={"timeout": 1}),
                              wrapper=("unshare", "--net"), env=place), code).stderr

        down = ("ftrun: the ranks of this machine cannot reach each other: no route to 127.0.0.1: "
                "Network is unreachable\n")
        for rank in (0, 1):
            assert down in error_of_rank(rank, "127.0.0.1", 5), rank
        assert ('warning: rank 1: no network of this machine leads to the rendezvous address '
                '"192.0.2.1": Network is unreachable; trying for 1.0s\n'
                "  remedy: bring up this machine's network, or set MASTER_ADDR to an address that "
                "is reachable from here\n") in error_of_rank(1, "192.0.2.1", 6)

    @case
    def variables_of_an_earlier_shell_are_named_in_the_first_line():
        port = free_port()
        lost = must(ftrun("--config", job.config("left-over", **FEW, comm={"timeout": 1}), env={
            "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}), 6)
        assert lost.stderr.splitlines()[0] == (
            "rank 1 of 4, by the variables of torchrun (RANK=1, WORLD_SIZE=4, LOCAL_RANK=1): it "
            f"waits for the 3 others at 127.0.0.1:{port}; unset them if no launcher has set "
            "them for this run"), lost.stderr

    @case
    def memory_limit_that_a_run_would_meet_is_known_to_check_and_plan():
        config = job.config("large", **LARGE)
        needs_more = (r"this rank needs [\d.]+ GiB of main memory \([\d.]+ GiB per rank; most of "
                      r"it activations [\d.]+ GiB per rank\), and [\d.]+ MiB are left of its "
                      r"address space \(ulimit -v\)")
        remedy = r".*; or raise that limit"
        for command in ("check", "plan"):
            stdout = must(run_with_limit("-v 1000000", command, "--config", config)).stdout
            require_remedy(stdout, "notice: this machine cannot run the config: " + needs_more,
                           remedy)
        stdout = must(run_with_limit("-v 1000000", "check", "--config", config)).stdout
        assert stdout.endswith("the config is good, but this machine cannot run it\n")
        require_remedy(must(run_with_limit("-v 1000000", "--config", config), 5).stderr,
                       "ftrun: the run does not fit into memory: " + needs_more, remedy)
        assert not job.out("large").exists()

    @case
    def file_that_may_not_be_so_large_is_refused_before_the_first_step():
        config = job.config("files", **FEW)
        require_remedy(must(run_with_limit("-f 1", "--config", config), 5).stderr,
                       rf"ftrun: {job.out('files')}/checkpoints: the run will write a file of "
                       r"[\d.]+ KiB or more, but the file size limit of this process "
                       r"\(ulimit -f\) is 1.00 KiB",
                       r"raise the limit of file sizes \(ulimit -f\), which is 1.00 KiB")
        assert not job.out("files").exists()

    @case
    def threads_that_cannot_be_started_are_named_with_their_limits():
        # The limit is on address space, which thread stacks need: a superuser has no limit on
        # processes.
        config = job.config("threads", **FEW, threads=4096)
        require_remedy(must(run_with_limit("-v 8000000 -s 8192", "--config", config), 5).stderr,
                       r"ftrun: cannot start 4096 threads for computing, only \d+: Resource "
                       r"temporarily unavailable",
                       r'raise .*the limit of address space \(ulimit -v\), which is [\d.]+ GiB; '
                       r'or end other programs of this user; or set threads: \d+')

    @case
    def threads_follow_the_affinity():
        must(ftrun("--config", job.config("pinned", **FEW),
                   wrapper=("taskset", "-c", str(min(os.sched_getaffinity(0))))))
        assert manifest(job.out("pinned"))["machine"]["threads"] == 1

    @case
    def limit_of_cpu_time_is_reported_at_the_start():
        stderr = must(run_with_limit("-t 600", "--config", job.config("time", **FEW))).stderr
        assert ("warning: the limit on CPU time (ulimit -t) kills each process after 600 seconds; "
                "set checkpoint.every and continue with --resume auto\n"
                in stderr), stderr

    run_cases()
