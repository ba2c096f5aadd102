"""`ftrun plan` needs a config.json and no more, says what it took for granted, and checks the programs of all ranks:
Llama-3-405B on 16,384 of them too. `ftrun check` and a training run stay strict about what a run needs."""
import json
import pathlib
import re
import sys
import tempfile

from runner import TINY_CONFIG, ftrun, must, run_cases, case, tiny_data, write_config

SOURCE = pathlib.Path(sys.argv[1])
ASSUMED = "\nassumed: every sequence has 32 tokens (data.sequence_length), because data.train "

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    model = scratch / "shape-only"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY_CONFIG))
    data = tiny_data(scratch / "train.bin")

    def config(**data_keys):
        value = {"model": {"path": str(model)}, "data": {"sequence_length": 32, **data_keys},
                 "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                 "zero_optimization": {"stage": 2}, "output_dir": str(scratch / "out")}
        return write_config(scratch, value)

    def planned(path, *arguments, code=0):
        return must(ftrun("plan", "--config", path, *arguments), code)

    @case
    def a_config_json_is_all_that_a_plan_needs():
        text = planned(config(), "--nproc", 4).stdout
        assert text.startswith("rank 0 of 4, "), text
        assert ASSUMED + "is not set\n" in text, text
        assert re.search(r"^device +all +\d+", text, re.M), text
        assert [path.name for path in model.iterdir()] == ["config.json"]
        assert not (scratch / "out").exists()

    @case
    def data_that_is_not_there_is_said_and_data_that_is_there_is_not():
        text = planned(config(train=str(scratch / "gone.bin"))).stdout
        assert ASSUMED + "cannot be read\n" in text, text
        text = planned(config(train=str(data))).stdout
        assert "assumed" not in text, text

    @case
    def the_plan_is_the_same_with_data_and_without():
        tables = [planned(config(**keys), "--nproc", 2).stdout.split("\n\n", 1)[1] for keys in ({}, {"train": str(data)})]
        assert tables[0] == tables[1]

    @case
    def the_check_of_a_config_and_a_run_ask_for_data_and_weights():
        for command in (["check"], []):
            text = must(ftrun(*command, "--config", config()), 2).stderr
            assert "data.train is missing: what to train on" in text, text
        text = must(ftrun("check", "--config", config(train=str(data))), 4).stderr
        assert "shape-only" in text and "safetensors" in text, text

    @case
    def all_ranks_are_checked_and_the_plan_says_so():
        text = planned(config(), "--nproc", 1).stdout
        assert "\nchecked: 1 rank, 1 program\n" in text, text
        for ranks in (2, 64, 5000):
            text = planned(config(), "--nproc", ranks, "--rank", ranks - 1).stdout
            found = re.search(rf"^checked: all {ranks} ranks, (\d+) different programs?: their collectives match, "
                              r"and no rank can wait forever$", text, re.M)
            assert found and 1 <= int(found[1]) <= 8, text

    @case
    def the_program_alone_is_the_program_alone():
        text = planned(config(), "--nproc", 2, "--program").stdout
        assert text.startswith("rank 0 of 2, program "), text
        assert "checked" not in text and "assumed" not in text, text

    @case
    def a_memory_that_is_too_small_fails_and_says_what_would_help():
        text = planned(config(), "--nproc", 2).stdout
        needed = int(re.search(r"^device +all +(\d+)", text, re.M)[1])
        assert planned(config(), "--nproc", 2, "--device-memory", needed).stdout == text
        refused = planned(config(), "--nproc", 2, "--device-memory", needed - 1, code=5)
        assert refused.stdout == text
        assert re.search(r"^ftrun: 2 ranks need more than \S+ \S+ of the device tier; rank 0 needs the most: \S+ \S+\n"
                         r"  remedy: what saves most memory on each rank: \S", refused.stderr), refused.stderr
        assert "1.00 KiB of the device tier" in planned(config(), "--device-memory", "1KiB", code=5).stderr

    @case
    def llama_3_405b_is_planned_and_checked_on_16384_ranks():
        process = must(ftrun("plan", "--config", SOURCE / "tests/sim/llama-3-405b/plan.yaml", cwd=SOURCE))
        text = process.stdout
        assert text.startswith("rank 0 of 16384, 405.85 B parameters, ZeRO stage 1\n"), text
        found = re.search(r"^checked: all 16384 ranks, (\d+) different programs: their collectives match, and no rank can "
                          r"wait forever$", text, re.M)
        assert found and 1 < int(found[1]) <= 16, text
        assert "\nassumed: every sequence has 8192 tokens (data.sequence_length), because data.train is not set\n" in text, text
        sent = {name: int(calls) for name, calls in re.findall(r"^  (\w+ over \d+ ranks of \S+), (\d+) calls", text, re.M)}
        assert sent["reduce_scatter over 2048 ranks of dp_shard"] > 0 and sent["all_gather over 8 ranks of tp"] > 126, text

    run_cases()
