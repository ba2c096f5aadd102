"""Tests predicted and measured times of a step: `ftrun bench machine` measures this machine, `ftrun
plan --machine` predicts a step, and a run compares its own steps with the prediction. Errors in a
machine file are reported with their position."""
import json
import re
import tempfile

from browser import page_data
from runner import Job, case, ftrun, manifest, must, run_cases, steps, tiny_model

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch, tiny_model(f"{scratch}/model"))
    settings = {"train": {"steps": 8}, "parallel": {"data": 2}}
    cache = {"XDG_CACHE_HOME": f"{scratch}/cache"}
    own = job.scratch / "cache" / "ftrun" / "machine.yaml"

    @case
    def without_a_machine_file_a_run_says_how_to_make_one():
        run = job.run("before", env=cache, **settings)
        assert re.search(r"time of a step: [\d.e-]+ s measured \(median of 6 steps\); "
                         r"not predicted: ftrun bench machine has not measured this machine\n",
                         run.stdout), run.stdout
        assert list(manifest(job.out("before"))["time"]) == ["measured"]

    @case
    def a_machine_is_measured_and_its_file_kept():
        # Few samples are enough, because no case compares these rates with measured times.
        stdout = must(ftrun("bench", "machine", "--quick", "--passes", "1", "--rounds", "3",
                            "--name", "here", env=cache, timeout=300)).stdout
        assert (stdout == f"ftrun plan --machine {own} predicts the time of a step on this "
                        "machine; runs compare their steps with it\n"), stdout
        text = own.read_text()
        assert re.match(r"machine: here\ndevice: cpu\ndevices: \d+\n", text), text
        for word in ("linear fp32: {", "linear_wgrad bf16: {", "attention fp32: {", "update: {",
                     "products: {fp32: "):
            assert word in text, (word, text)

    @case
    def a_plan_says_what_a_step_takes():
        config = job.config("planned", **settings)
        stdout = must(ftrun("plan", "--config", config, "--machine", own)).stdout
        match = re.search(r"\ntime of a step on here: ([\d.e-]+) s, [\d.]+ ?[kM]? tokens/s, "
                          r"[\d.]+ % MFU, [\d.]+ % HFU \(predicted\)\n"
                          r"  layers +[\d.e-]+ s +[\d.]+ %\n  update +[\d.e-]+ s", stdout)
        assert match and float(match[1]) > 0, stdout

    @case
    def a_plan_says_what_the_run_takes_and_what_if():
        config = job.config("if", **settings, checkpoint={"every": 4})
        own.write_text(own.read_text() + "disk: {read: 1 GB/s, write: 1 MB/s}\nprice: 3 EUR/h\n")
        options = ("plan", "--config", config, "--machine", own)
        stdout = must(ftrun(*options)).stdout
        for word in (r"\n  waits for collectives +[\d.e-]+ s +[\d.]+ %\n    along data +[\d.e-]",
                     r"\nlinks: a rank moves at most [\d.]+ [KM]iB to ranks of its node\n",
                     r"\nrun: 8 steps, [\d.]+s, [\d.e-]+ device-hours, [\d.]+ EUR \(3 EUR/h per "
                     r"device\)\n",
                     r"\ncheckpoint: [\d.]+ [KM]iB, [\d.]+s at the disks' rate \([\d.]+ % of the "
                     r"time of 4 steps\)\n"):
            assert re.search(word, stdout), (word, stdout)
        plain = json.loads(must(ftrun(*options, "--json")).stdout)["result"]["time"]
        slow = json.loads(must(ftrun(*options, "--slow", "rank=1:2", "--price", "1.5",
                                     "--json")).stdout)["result"]["time"]
        assert plain["steps"] == 8 and plain["currency"] == "EUR", plain
        assert abs(plain["cost"] - 3 * plain["device_hours"]) < 1e-9, plain
        assert abs(slow["cost"] - 1.5 * slow["device_hours"]) < 1e-9, slow
        assert slow["what_if"] == {"assumed": "rank 1 takes 2 times as long",
                                   "seconds_as_filed": plain["seconds"]}, slow
        own_work = sum(plain["parts"][key] for key in ("layers", "update", "other"))
        assert abs((slow["seconds"] - plain["seconds"]) / own_work - 1) < 0.1, (plain, slow)
        stdout = must(ftrun(*options, "--slow", "rank=1:2")).stdout
        assert re.search(r"\nwhat if rank 1 takes 2 times as long: [\d.e-]+ s per step instead of "
                         r"[\d.e-]+ s, \+[\d.]+ %\n", stdout), stdout

    @case
    def wrong_questions_are_refused():
        config = job.config("wrong", **settings)
        options = ("plan", "--config", config, "--machine", own)
        for more, word in ((("--slow", "rank=2:2"), "the run has 2 ranks, counted from 0"),
                           (("--slow", "rank=1:0"), "is not a factor above 0"),
                           (("--slow", "1"), "expected a rank and how slow it is"),
                           (("--network", "200"), "has no unit"),
                           (("--network", "200Gb/s"), "nothing goes between nodes"),
                           (("--price", "cheap"), "is not a price of a device for an hour"),
                           (("--evaluation",), "--evaluation excludes --machine"),
                           (("--text",), "--text excludes --machine"),
                           (("--program",), "--program excludes --machine"),
                           (("--schedule",), "--schedule excludes --machine")):
            result = must(ftrun(*options, *more), 2)
            assert word in result.stdout + result.stderr, (word, result.stdout, result.stderr)
        result = must(ftrun("plan", "--config", config, "--slow", "rank=1:2"), 2)
        assert "--machine" in result.stdout + result.stderr, result.stderr

    @case
    def a_run_compares_its_steps():
        run = job.run("after", env=cache, **settings)
        assert re.search(r"time of a step: [\d.e-]+ s predicted \(here, measured 20\d\d-[^)]*\), "
                         r"[\d.e-]+ s measured "
                         r"\(median of 6 steps\): [\d.]+ % (less|more)\n", run.stdout), run.stdout
        record = manifest(job.out("after"))["time"]
        assert record["predicted"]["step"] > 0 and record["measured"]["step"] > 0, record
        # The parts add up to the whole, for both times, and the run's page shows them.
        parts = ("layers", "update", "exposed_communication", "other_stages", "rest")
        for side in ("predicted", "measured"):
            whole, sum_of_parts = (record[side]["step"], sum(record[side][key] for key in parts))
            assert record[side]["layers"] > 0 and sum_of_parts >= whole - len(parts), record
        assert set(record["load"]) == {"others_per_million", "stolen_per_million"}, record
        shown, = page_data(job.out("after") / "report.html")["runs"]
        times = {part["part"]: part for part in shown["times"]}
        assert round(times["step"]["measured"] * 1e6) == record["measured"]["step"], times
        assert round(times["layers"]["predicted"] * 1e6) == record["predicted"]["layers"], times

    def lanes_of(path):
        """Returns spans of time (begin, end, name), in order, by the names of process and lane."""
        names, lanes = {}, {}
        events = json.loads(path.read_text())["traceEvents"]
        for event in events:
            if event["ph"] == "M":
                names[event["name"], event["pid"], event["tid"]] = event["args"]["name"]
        for event in events:
            if event["ph"] == "X":
                process = names["process_name", event["pid"], 0]
                lane = names["thread_name", event["pid"], event["tid"]]
                lanes.setdefault(process, {}).setdefault(lane, []).append(
                    (event["ts"], event["ts"] + event["dur"], event["name"]))
        return {process: {lane: sorted(spans) for lane, spans in of.items()}
                for process, of in lanes.items()}

    def is_within(some, all_of):
        """Returns whether `some` is a subsequence of `all_of`."""
        rest = iter(name for _, _, name in all_of)
        return all(any(name == other for other in rest) for _, _, name in some)

    traced = {**settings, "zero_optimization": {
        "stage": 3, "stage3_param_persistence_threshold": 100}}

    @case
    def a_run_traces_steps_beside_the_predicted_one():
        run = job.run("traced", env=cache,
                      **{**traced, "train": {"steps": 8, "trace": {"steps": [4, 6],
                                                                   "ranks": [0, 1]}}})
        path = job.out("traced") / "trace.json"
        assert run.stdout.count(f"traced steps: {path}, for ui.perfetto.dev\n") == 1, run.stdout
        lanes = lanes_of(path)
        assert {name for name in lanes if name.startswith("measured")} == {
            f"measured rank {rank}, step {step}" for rank in (0, 1) for step in (4, 6)}, set(lanes)
        took = {line["step"]: line["step_seconds"] * 1e6 for line in steps(job.out("traced"))}
        for step in (4, 6):
            begins = []
            for rank in (0, 1):
                measured = lanes[f"measured rank {rank}, step {step}"]
                predicted = lanes.get(f"predicted rank {rank}", lanes["predicted rank 0"])
                assert set(measured) >= set(predicted) and "data" in measured, measured.keys()
                whole = (max(spans[-1][1] for spans in measured.values())
                         - min(spans[0][0] for spans in measured.values()))
                # Another rank may begin before rank 0, whose step is in the metrics, and then
                # waits.
                assert rank > 0 or whole <= took[step], (whole, took[step])
                for lane, spans in measured.items():
                    begins.append(spans[0][0])
                    assert all(one[1] <= two[0] + 0.01 for one, two in zip(spans, spans[1:])), spans
                    assert 0 < sum(end - begin for begin, end, _ in spans) <= whole + 0.01, lane
                    assert is_within(predicted.get(lane, []), spans), (lane, predicted, spans)
                # A layer's forward begins after its weights have been gathered.
                gathered = min(end for _, end, name in measured["data"])
                forward = min(begin for begin, _, name in measured["compute"]
                              if name.startswith("forward layer 0"))
                assert gathered <= forward + 0.01, (gathered, forward)
            assert min(begins) >= 0, begins
        facts = page_data(job.out("traced") / "report.html")["runs"][0]["facts"]
        assert "traced steps: trace.json in the run's folder, for ui.perfetto.dev" in facts, facts
        # A resumed run adds to the trace; a trace never replaces another file.
        more = {**traced, "train": {"steps": 10, "trace": {"steps": [10]}}}
        job.run("traced", "--resume", "auto", env=cache, **more)
        grown = lanes_of(path)
        assert {"measured rank 0, step 10", *lanes} <= set(grown), set(grown)
        assert grown["measured rank 1, step 6"] == lanes["measured rank 1, step 6"]
        path.write_text("mine")
        more["train"] = {"steps": 12, "trace": {"steps": [11]}}
        resumed = job.run("traced", "--resume", "auto", env=cache, **more)
        assert (f"step 11 is not traced: {path}: is not a trace that ftrun wrote"
                in resumed.stderr), resumed.stderr
        assert path.read_text() == "mine"

    @case
    def another_machines_file_is_not_believed():
        own.write_text(own.read_text().replace("processor: ", "processor: another ", 1))
        run = job.run("other", env=cache, **settings)
        assert (f"not predicted: {own} describes another CPU or number of cores; run ftrun "
                "bench machine to measure this one\n" in run.stdout), run.stdout
        own.write_text("machine: [\n")
        run = job.run("broken", env=cache, **settings)
        assert f"not predicted: {own}:" in run.stdout, run.stdout

    @case
    def bad_machine_files_are_refused_with_their_places():
        config, bad = job.config("bad", **settings), job.scratch / "bad.yaml"
        bad.write_text("machine: m\nrates:\n  - memory: 10 Gb/s\n    products: {fp32: 1 TFLOP/s}\n"
                       "links: {node: {latency: 3}}\n")
        output = must(ftrun("plan", "--config", config, "--machine", bad), 2).stderr
        assert (f"{bad}:3:13: error: \"10 Gb/s\" counts bits; this rate is in bytes: 8 Gb/s are 1 "
                "GB/s\n" in output), output
        assert (f"{bad}:5:25: error: \"3\" has no unit" in output
                and "links.node.bandwidth is missing" in output), output
        output = must(ftrun("plan", "--config", config, "--machine", job.scratch / "none.yaml"),
                      4).stderr
        assert "none.yaml" in output, output
        # The machine file has nothing over which two ranks could communicate, and is for GPUs: the
        # plan is printed without a time.
        bad.write_text("machine: m\nrates:\n  - memory: 10 GB/s\n    products: {fp32: 1 TFLOP/s}\n")
        output = must(ftrun("plan", "--config", config, "--machine", bad)).stdout
        assert ("time of a step: not predicted: the machine m has no links.node, the link "
                "between the ranks of a node\n" in output), output
        bad.write_text("machine: m\ndevice: gpu\nrates:\n  - memory: 10 GB/s\n    products: {fp32: "
                       "1 TFLOP/s}\n")
        output = must(ftrun("plan", "--config", config, "--machine", bad)).stdout
        assert ("not predicted: the run computes on CPUs, but the machine m is one of "
                "GPUs\n" in output), output
        # The file has rates that are impossible for any machine.
        bad.write_text("machine: m\nrates:\n  - memory: 1 KB/s\n    products: {fp32: 1 MFLOP/s}\n"
                       "links: {node: {latency: 1 s, bandwidth: 1 KB/s}}\n")
        output = must(ftrun("plan", "--config", config, "--machine", bad)).stdout
        assert (re.search(r"not predicted: on the machine m .* would take [\d.e+]+ s\n", output)
                or "time of a step on m" in output), output

    @case
    def files_of_users_are_not_overwritten():
        thesis = job.scratch / "thesis.txt"
        thesis.write_text("mine")
        stderr = must(ftrun("bench", "machine", "--quick", "--out", thesis, timeout=300), 2).stderr
        assert ("already exists, and is not overwritten" in stderr
                and thesis.read_text() == "mine"), stderr

    run_cases()
