"""Tests `ftrun plan --search`: the best layout is written as a config that plans to the same
numbers and trains; what rules out other layouts is reported with numbers; and what fits nowhere, or
has no layout at all, is refused."""
import json
import re
import tempfile

from machines import two_cores
from runner import Job, case, ftrun, must, preload, run_cases

preload()

# Seconds for a search whose answer need not be proved optimal.
SOME_TIME = 4

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    machine = job.scratch / "two.yaml"
    machine.write_text(two_cores())
    settings = {"threads": None, "train_batch_size": 8, "train_micro_batch_size_per_gpu": None,
                "gradient_accumulation_steps": None}

    def search(config, *arguments, code=0, machine=machine):
        # The search ends when its answer is proved, however busy the machine is.
        limit = () if "--seconds" in arguments else ("--seconds", 600)
        return must(ftrun("plan", "--search", "--config", config, "--machine", machine, *limit,
                          *arguments), code)

    # A search that several cases use runs once.
    found = job.scratch / "found.yaml"
    answer = json.loads(search(job.config("asked", **settings), "--out", found,
                               "--json").stdout)["result"]["search"]

    @case
    def the_layout_found_is_written_and_plans_to_the_same_figures():
        best, counts = answer["layouts"][0], answer["counts"]
        assert answer["config"] == str(found) and answer["proved"] and answer["batch"] == 8, answer
        assert counts["all"] == counts["tried"] == counts["legal"] + counts["refused"], counts
        assert 0 < counts["planned"], counts
        assert counts["planned"] + counts["pruned"] == counts["legal"], counts
        assert all(layout["seconds"] >= best["seconds"] for layout in answer["layouts"]), (
            answer["layouts"])
        repeated = json.loads(must(ftrun("plan", "--config", found, "--machine", machine,
                                         "--json")).stdout)["result"]
        assert repeated["time"]["machine"] == "two", repeated["time"]
        assert repeated["time"]["seconds"] == best["seconds"], (repeated["time"], best)
        assert (sum(tier["total"] for tier in repeated["memory"].values())
                == best["memory"]["device"]), (repeated["memory"], best)
        text = found.read_text()
        assert "# Found by ftrun plan --search for 2 cores (two): " in text, text
        assert (re.search(r"^train_batch_size: 8  # sequences of a step, as before the search$",
                          text, re.M)), text
        must(ftrun("check", "--config", found))
        must(ftrun("--config", found, "--set", "train.steps=2"))

    @case
    def the_found_layouts_are_printed():
        stdout = search(job.config("told", **settings)).stdout
        assert re.match(r"search: the memory of the machine is unknown: all layouts count as "
                        r"fitting\nsearch: \d+ layouts on 2 cores \(two\), 8 "
                        r"sequences per step: \d+ allowed, 0 estimated to need too much "
                        r"memory, \d+ fully planned\nproved: no other layout takes less\n",
                        stdout), stdout
        assert (re.search(r"^1 +(1 rank|data 2|tensor 2).*, ZeRO 0, micro-batch \d × \d +[\d.e-]+ "
                          r"s +[\d.]+ [KM]iB$", stdout, re.M)), stdout
        for choice in ("ZeRO 1", "ZeRO 2", "ZeRO 3", "tensor 2", "pipeline 2",
                       "offload of the optimizer", "recompute full"):
            assert re.search(rf"^{choice} +(chosen|[\d.e-]+ s, (as fast|[\d.]+ % slower), )",
                             stdout, re.M), (choice, stdout)
        assert "--out FILE writes the first one as a config\n" in stdout, stdout

    @case
    def memory_that_is_too_small_is_reported_with_what_is_missing():
        config = job.config("small", **settings)
        stderr = search(config, "--device-memory", "1KiB", code=5).stderr
        assert re.search(r"none of \d+ layouts fits on 2 cores \(two\): the smallest layout needs "
                         r"[\d.]+ [KM]iB per rank; a rank may use 1.00 KiB, "
                         r"so [\d.]+ [KM]iB are missing \(", stderr), stderr
        assert "remedy: train an adapter" in stderr, stderr
        # This is less memory than the fastest layout needs.
        best = answer["layouts"][0]
        nearest = json.loads(search(config, "--device-memory", best["memory"]["device"] - 1,
                                    "--json").stdout)["result"]["search"]
        assert nearest["layouts"][0]["memory"]["device"] < best["memory"]["device"], (nearest, best)
        assert nearest["layouts"][0]["seconds"] >= best["seconds"], (nearest, best)

    @case
    def a_plan_fits_a_machine_of_cpus_if_it_fits_by_the_rule_of_the_search():
        need = answer["layouts"][0]["memory"]["device"]
        planned = json.loads(must(ftrun("plan", "--config", found, "--json")).stdout)["result"]
        enough = -(-need * planned["ranks"] // 2)  # the ranks share the memory of both cores
        for memory, code in ((enough, 0), (enough - 1, 5)):
            cores = job.scratch / f"cores-{code}.yaml"
            cores.write_text(two_cores(memory=f"{memory} B"))
            result = must(ftrun("plan", "--config", found, "--machine", cores), code)
            assert bool(re.search("needs? more than", result.stderr)) == (code == 5), result.stderr

    @case
    def memory_that_is_missing_may_be_on_more_nodes():
        config = job.config("nodes", **settings)
        # Fractions of the memory that one node needs for its fastest layout; those for which few
        # nodes suffice come first.
        whole = answer["layouts"][0]["memory"]["device"]
        for part in range(5, 1, -1):
            result = ftrun("plan", "--search", "--config", config, "--machine", machine,
                           "--device-memory", whole * part // 12)
            if result.returncode == 5 and "use --nodes" in result.stderr:
                assert re.search(r"remedy: use --nodes \d+ \(\d+ devices: ", result.stderr), (
                    result.stderr)
                nodes = re.search(r"--nodes (\d+)", result.stderr)[1]
                # A layout that fits is found long before it is proved optimal.
                search(config, "--device-memory", whole * part // 12, "--nodes", nodes,
                       "--seconds", SOME_TIME)
                return
        raise AssertionError("no tried memory was too small for one node and enough for several")

    @case
    def files_of_users_are_not_overwritten():
        thesis = job.scratch / "thesis.yaml"
        thesis.write_text("mine")
        stderr = search(job.config("thesis", **settings), "--out", thesis, code=2).stderr
        assert ("--out" in stderr and "already exists, and is not overwritten" in stderr
                and thesis.read_text() == "mine"), stderr

    @case
    def a_place_that_cannot_be_written_to_is_reported_before_the_search():
        config = job.config("place", **settings)
        file = job.scratch / "file"
        file.write_text("")
        for option in ("--out", "--html"):
            for folder, why in ((file, "is not a folder"),
                                (job.scratch / "none", "does not exist")):
                result = search(config, option, folder / "new.yaml", code=5)
                assert f"{option} {folder}/new.yaml: {folder}: {why}" in result.stderr, (
                    result.stderr)
                assert result.stdout == "", result.stdout

    @case
    def the_clock_ends_a_search_where_nothing_fits():
        config = job.config("clock", **settings)
        stderr = search(config, "--device-memory", "1KiB", "--seconds", 0.001, code=5).stderr
        assert re.search(r"none of (\d+ layouts|the \d+ layouts planned so far \(of \d+\)) fits "
                         r"on 2 cores ", stderr), stderr
        assert ("remedy: raise --seconds: the time ended before 2 nodes were searched; or "
                "train an adapter" in stderr), stderr

    @case
    def another_programs_kernels_are_searched_with_and_named():
        stack, written = job.scratch / "stack.yaml", job.scratch / "stacked.yaml"
        stack.write_text("stack: slower\nproducts: 0.25\nattention: 0.25\nmemory: 0.25\n")
        config = job.config("stack", **settings)
        stdout = search(config, "--stack", stack, "--out", written, "--seconds", SOME_TIME,
                        "--json").stdout
        found = json.loads(stdout)["result"]["search"]
        assert found["machine"] == "two with slower", found
        assert found["layouts"][0]["seconds"] > 2 * answer["layouts"][0]["seconds"], found
        assert f" --stack {stack}" in written.read_text(), written.read_text()
        repeated = json.loads(must(ftrun("plan", "--config", written, "--machine", machine,
                                         "--stack", stack, "--json")).stdout)["result"]["time"]
        assert repeated["seconds"] == found["layouts"][0]["seconds"], (repeated, found)

    @case
    def another_network_is_searched_on_and_named_in_the_config():
        config, written = job.config("network", **settings), job.scratch / "network.yaml"
        stdout = search(config, "--nodes", 2, "--network", "8 Gb/s", "--out", written,
                        "--seconds", SOME_TIME).stdout
        assert stdout.startswith("what if the network has 1 GB/s\n"), stdout
        text = written.read_text()
        assert ", if the network has 1 GB/s." in text and "--network '8 Gb/s'" in text, text

    @case
    def contradictory_options_and_configs_are_refused():
        config = job.config("refused", **settings)
        for options, word in ((("--search",), "--machine"),
                              (("--out", "x.yaml", "--machine", machine), "--search"),
                              (("--search", "--machine", machine, "--program"), "--program"),
                              (("--search", "--machine", machine, "--seconds", "-1"), "--seconds"),
                              (("--search", "--machine", machine, "--price", "1"), "--price"),
                              (("--search", "--machine", machine, "--slow", "rank=0:2"),
                               "layouts on CPUs have different numbers of ranks")):
            result = must(ftrun("plan", "--config", config, *options), 2)
            assert word in result.stdout + result.stderr, (word, result.stdout, result.stderr)
        wrong = job.config("wrong", **settings | {"gradient_clipping": -1})
        assert "gradient_clipping" in search(wrong, code=2).stderr

    run_cases()
