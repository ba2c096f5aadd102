"""Tests the ways to start the ranks: the supervisor, torchrun, and bare processes with RANK and
WORLD_SIZE; and what happens if the ranks cannot meet or were started differently."""
import os
import pathlib
import re
import socket
import tempfile
import threading

import numpy as np
from runner import (BINARY, TORCHRUN, Job, Running, await_that, case, free_port, ftrun, manifest,
                    must, require_same_run, run_cases, start, steps, waiting_case, weights_hash)

FEW = {"train": {"steps": 4}}

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)

    def start_without_launcher(config_of_rank, port, world=2, **more):
        """Starts one process per rank with only the four variables."""
        return [start("--config", config_of_rank[rank], env={
            "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), **more})
                for rank in range(world)]

    def compiled_code(pid):
        """Returns the address ranges of a process's code that is in no file: oneDNN's kernels."""
        maps = [line.split() for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()]
        return {words[0] for words in maps if "x" in words[1] and len(words) == 5}

    @case
    def ranks_multiply_with_code_that_the_supervisor_compiled():
        running = start("--config", job.config("compiled", train={"steps": 1000000}), "--nproc", 2)
        running.await_line("step 2/")
        code = {pid: compiled_code(pid) for pid in (running.process.pid, *running.ranks().values())}
        threads = os.listdir(f"/proc/{running.process.pid}/task")
        running.kill_all()
        assert len(threads) == 1, f"the supervisor forks with {len(threads)} threads"
        library = manifest(job.out("compiled"))["products"]["fp32"]
        assert len(code) == 3 and len({frozenset(each) for each in code.values()}) == 1, code
        assert bool(code[running.process.pid]) == library.startswith("onednn"), (library, code)

    @case
    def nproc_sets_the_number_of_ranks():
        result = job.run("nproc", "--nproc", 2, **FEW)
        assert ("2 ranks: --nproc 2\n" in result.stderr
                and "[rank 0] step 4/4" in result.stdout), result.stderr
        assert "[rank 1]" not in result.stdout + result.stderr, "a rank repeats what rank 0 says"

    @waiting_case
    def the_mesh_or_the_batch_sets_the_number_of_ranks():
        mesh = job.run("mesh", **FEW, parallel={"data": 2})
        assert "2 ranks: the mesh: data 2\n" in mesh.stderr, mesh.stderr
        batch = job.run("batch", **FEW, train_batch_size=8)
        assert "2 ranks: train_batch_size 8 / (micro 2 × accumulation 2)\n" in batch.stderr, (
            batch.stderr)
        for name in ("mesh", "batch"):
            require_same_run(job.out("nproc"), job.out(name))

    @waiting_case
    def torchrun_starts_two_ranks():
        command = [TORCHRUN, "--no-python", "--nproc-per-node", 2, "--master-port", free_port(),
                   BINARY, "--config",
                   job.config("torchrun", **FEW)]
        running = Running(command, {"OMP_NUM_THREADS": "1"})
        running.wait(0)
        assert "2 ranks: the launcher started 2 ranks" in running.text(), running.text()
        require_same_run(job.out("nproc"), job.out("torchrun"))

    @waiting_case
    def bare_processes_join_as_ranks():
        config = job.config("bare", **FEW)
        first, second = start_without_launcher([config, config], free_port())
        first.wait(0)
        second.wait(0)
        assert "2 ranks: WORLD_SIZE 2, one rank each" in first.text(), first.text()
        require_same_run(job.out("nproc"), job.out("bare"))

    @waiting_case
    def bare_processes_start_several_ranks_each():
        config = job.config("nodes", **FEW)
        first, second = start_without_launcher([config, config], free_port(), NPROC_PER_NODE="2")
        first.wait(0)
        second.wait(0)
        assert "4 ranks: WORLD_SIZE 2 × 2 ranks each" in first.text(), first.text()
        job.run("four", "--nproc", 4, **FEW)
        require_same_run(job.out("four"), job.out("nodes"))

    @waiting_case
    def nproc_under_a_launcher_is_refused():
        refused = must(ftrun("--config", job.config("both", **FEW), "--nproc", 4, env={
            "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500"}), 2)
        assert refused.stderr == ("ftrun: --nproc 4: torchrun has started 2 ranks already\n"
                                  "  remedy: remove --nproc, or start ftrun without that "
                                  "launcher\n"), refused.stderr

    @waiting_case
    def restarts_under_a_launcher_are_refused():
        refused = must(ftrun("--config", job.config("restarted", **FEW), "--restarts", 3, env={
            "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500"}), 2)
        assert refused.stderr.endswith(
            "ftrun: --restarts 3: torchrun starts the ranks, and ftrun restarts only ranks that it "
            "has started itself\n  remedy: remove --restarts, and let the launcher start the ranks "
            "again: torchrun --max-restarts, or a requeued job with --resume auto\n"
        ), refused.stderr

    @waiting_case
    def the_only_process_of_a_job_is_supervised_if_restarts_are_requested():
        for name, restarts, prefix in (("only", (), ""),
                                       ("restarted", ("--restarts", 1), "[rank 0] ")):
            result = must(ftrun("--config", job.config(name, **FEW), *restarts, env={
                "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port())}))
            assert f"\n{prefix}step 4/4" in result.stdout, result.stdout

    @waiting_case
    def a_port_in_use_is_reported():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            config = job.config("port", **FEW, comm={"timeout": 5})
            first, second = start_without_launcher([config, config], port)
            first.wait(5)
            assert first.lines[-2:] == [f"ftrun: port {port} on 127.0.0.1 is in use by another "
                                        "process",
                                        "  remedy: choose another MASTER_PORT, or end the other "
                                        "job"], first.text()
            second.wait(6)
            assert not pathlib.Path(f"{job.out('port')}.rendezvous").exists()
            assert (f"ftrun: rank 1 could not reach the rendezvous of rank 0 at 127.0.0.1:{port} "
                    "within 5.0s: rank 0 has not published its address yet"
                    ) in second.text(), second.text()
        assert not job.out("port").exists(), "a run whose ranks never met made its output folder"

    @waiting_case
    def a_rank_that_never_joins_is_named():
        config = job.config("alone", **FEW, comm={"timeout": 2})
        lonely = start("--config", config,
                       env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": str(free_port())})
        lonely.wait(6)
        match = re.search(r'rank 0 waited (\d+\.\d)s for "identity": rank 1 did not arrive in time',
                          lonely.text())
        assert match and float(match[1]) >= 2, lonely.text()
        assert not pathlib.Path(f"{job.out('alone')}.rendezvous").exists(), (
            "the token outlives the run")

    @waiting_case
    def strangers_on_the_rendezvous_change_nothing():
        # Garbage, silent connections and half greetings arrive as long as the run lasts; and
        # nothing listens on all interfaces.
        config, port = job.config("strangers", train={"steps": 4}), free_port()

        def join(rank):
            return start("--config", config, env={"RANK": str(rank), "WORLD_SIZE": "2",
                                                  "MASTER_ADDR": "127.0.0.1",
                                                  "MASTER_PORT": str(port)})

        ranks = [join(0)]
        random, over, tries, held = np.random.default_rng(3), threading.Event(), [0], []

        def send_garbage():
            while not over.is_set():
                try:
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=60)
                    stranger.send(random.bytes(int(random.integers(1, 300))))
                    tries[0] += 1
                    held.append(stranger)
                    if len(held) > 200:
                        held.clear()
                except OSError:
                    pass
                listening.update(line.split()[1]
                                 for line in open("/proc/net/tcp").read().splitlines()[1:]
                                 if line.split()[3] == "0A" and line.split()[9] in own_sockets())

        def own_sockets():
            inodes = set()
            for running in list(ranks):
                folder = pathlib.Path(f"/proc/{running.process.pid}/fd")
                try:
                    targets = [os.readlink(entry) for entry in folder.iterdir()]
                except OSError:
                    continue
                inodes |= {target[8:-1] for target in targets if target.startswith("socket:[")}
            return inodes

        listening, address = set(), f"0100007F:{port:04X}"
        disturber = threading.Thread(target=send_garbage)
        disturber.start()
        try:
            # Rank 0 waits for rank 1, which connects among all these strangers.
            await_that(lambda: tries[0] > 10 and address in listening,
                       "strangers came to the rendezvous", ranks[0])
            ranks.append(join(1))
            for running in ranks:
                running.wait(0)
        finally:
            over.set()
            disturber.join()
        require_same_run(job.out("nproc"), job.out("strangers"))
        assert tries[0] > 10, tries
        assert (address in listening
                and not any(at.startswith("00000000:") for at in list(listening))), listening

    @waiting_case
    def ranks_with_another_token_are_not_let_in():
        config, port = job.config("tokens", **FEW, comm={"timeout": 15}), str(free_port())
        ranks = [start("--config", config, env={
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "FTRUN_TOKEN": f"the token of rank {rank}"}) for rank in range(2)]
        for running in ranks:
            running.wait(6)
        assert "does not know this job's token" in ranks[1].text(), ranks[1].text()

    @waiting_case
    def two_jobs_with_one_token_do_not_mix():
        """Jobs started by hand have no launcher that tells them apart: a rank of the second job
        that reaches the first is refused, and the first job continues."""
        configs = {name: job.config(name, **FEW, comm={"timeout": 60})
                   for name in ("a-job", "b-job")}
        port = str(free_port())

        def join(name, rank):
            return start("--config", configs[name],
                         env={"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": port, "FTRUN_TOKEN": "one token of two jobs"})

        first = join("a-job", 0)
        stray = join("b-job", 1)
        stray.wait(2)
        assert (f"ftrun: rank 1 was refused by rank 0 at 127.0.0.1:{port}: rank 0 "
                "serves another job with the same FTRUN_TOKEN; this rank belongs to "
                f'job "output_dir {job.out("b-job")}, model.path {job.model}"\n'
                "  remedy: start each rank once; jobs that run at the same time need an "
                "FTRUN_TOKEN each: FTRUN_TOKEN=$(openssl rand -hex 32); ranks of one job have the "
                "same output_dir and model.path") in stray.text(), stray.text()
        for running in (first, join("a-job", 1)):
            running.wait(0)
        require_same_run(job.out("nproc"), job.out("a-job"))
        assert not job.out("b-job").exists()

    @waiting_case
    def different_configs_are_refused():
        configs = [job.config("unlike", **FEW, comm={"timeout": 60}),
                   job.config("unlike", comm={"timeout": 60}, train={"steps": 5, "seed": 1})]
        for running in start_without_launcher(configs, free_port()):
            running.wait(2)
            text = running.text()
            message = text[text.index("ftrun: "):]
            assert message == (
                "ftrun: the config differs from rank 0's on rank 1:\n"
                "  config.train.seed: rank 0 has 42, rank 1 has 1\n"
                "  config.train.steps: rank 0 has 4, rank 1 has 5\n"
                "  remedy: start every rank with the same binary, config and model folder"), message

    @waiting_case
    def different_data_behind_the_same_config_is_refused():
        # The same path leads to different data in two folders, as on two machines.
        for folder, tokens in (("a", 4097), ("b", 2049)):
            (job.scratch / folder).mkdir()
            (job.scratch / folder / "train.bin").write_bytes(job.data.read_bytes()[:tokens * 2])
        config = job.config("places", **FEW, data={"train": "train.bin"}, comm={"timeout": 60})
        port = str(free_port())
        ranks = [Running(["env", "-C", job.scratch / folder, BINARY, "--config", config], {
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
                 for rank, folder in enumerate(("a", "b"))]
        for running in ranks:
            running.wait(2)
            host = socket.gethostname()
            assert re.search(
                f"ftrun: the nodes differ:\n  {host} \\(rank 1\\): data.train is 64 sequences, .*; "
                f"on {host} "
                r"\(rank 0\): 128 sequences, ",
                running.text(),
            ), running.text()

    @case
    def numbers_do_not_depend_on_the_launcher():
        assert weights_hash(job.out("nproc")) == weights_hash(job.out("bare")) == weights_hash(
            job.out("torchrun"))
        assert len(steps(job.out("bare"))) == 4

    run_cases()
