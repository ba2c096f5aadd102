"""Checks that `ftrun plan` needs only a config.json, says what it assumed, and checks the programs
of all ranks, also for Llama-3-405B on 16,384 of them. `ftrun check` and a training run still
require everything that a run needs."""
import json
import pathlib
import re
import sys
import tempfile

from runner import (TINY_CONFIG, case, ftrun, must, run_cases, tiny_data, tiny_model, tiny_weights,
                    write_config)

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
    def only_missing_data_is_reported():
        text = planned(config(train=str(scratch / "gone.bin"))).stdout
        assert ASSUMED + "cannot be read\n" in text, text
        text = planned(config(train=str(data))).stdout
        assert "assumed" not in text, text

    @case
    def the_plan_is_the_same_with_data_and_without():
        tables = [planned(config(**keys), "--nproc", 2).stdout.split("\n\n", 1)[1]
                  for keys in ({}, {"train": str(data)})]
        assert tables[0] == tables[1]

    @case
    def the_check_of_a_config_and_a_run_ask_for_data_and_weights():
        for command in (["check"], []):
            text = must(ftrun(*command, "--config", config()), 2).stderr
            assert "data.train is missing: it names the data to train on" in text, text
        text = must(ftrun("check", "--config", config(train=str(data))), 4).stderr
        assert "shape-only" in text and "safetensors" in text, text

    @case
    def tensor_ranks_on_different_nodes_are_warned_of_before_a_run():
        whole = tiny_model(scratch / "whole", tiny_weights(vocabulary=212), vocab_size=212)
        value = json.loads(config(train=str(data)).read_text()) | {
            "model": {"path": str(whole)},
            "parallel": {"tensor": 2},
        }
        split = write_config(scratch, value, "split.json")
        apart = ("warning: tensor ranks are on different nodes: ranks 0, 1 on node 0, node 1, and "
                 "1 more group. ")
        assert apart in planned(split, "--nproc", 4, "--nodes", 4).stdout
        assert "different nodes" not in planned(split, "--nproc", 4, "--nodes", 2).stdout
        checked = must(
            ftrun("check", "--quiet", "--config", split, "--nproc", 4, "--nodes", 4)
        ).stdout
        assert apart in checked, checked
        for command in (("check",), ("plan",), ("plan", "--program"), ("plan", "--schedule")):
            uneven = must(ftrun(*command, "--config", split, "--nproc", 4, "--nodes", 3), 2)
            assert "--nodes 3: 4 ranks cannot be spread evenly over them" in uneven.stderr
            assert uneven.stdout == "", uneven.stdout

    @case
    def all_ranks_are_checked_and_the_plan_says_so():
        text = planned(config(), "--nproc", 1).stdout
        assert "\nchecked: 1 rank, 1 program\n" in text, text
        for ranks in (2, 64, 5000):
            text = planned(config(), "--nproc", ranks, "--rank", ranks - 1).stdout
            match = re.search(rf"^checked: all {ranks} ranks, (\d+) different programs?: their "
                              r"collectives match, "
                              r"and no rank can wait forever$", text, re.M)
            assert match and 1 <= int(match[1]) <= 8, text

    @case
    def the_program_option_prints_only_the_program():
        text = planned(config(), "--nproc", 2, "--program").stdout
        assert text.startswith("rank 0 of 2, program "), text
        assert "checked" not in text and "assumed" not in text, text

    @case
    def the_program_of_texts_is_shown_where_a_run_writes_some():
        writes = ("--set", "train.generate.prompt_tokens=4", "--set", f"data.validation={data}")
        text = planned(config(), "--nproc", 2, *writes, "--text", "--program").stdout
        assert re.search(r"\blogits\b", text) and "update" not in text, text
        assert not re.search(r"\blogits\b", planned(config(), "--nproc", 2, *writes, "--evaluation",
                                                    "--program").stdout)
        assert "theory" not in planned(config(), "--nproc", 2, *writes, "--text").stdout
        refused = planned(config(), "--text", code=2).stderr
        assert ("--text: the run writes no samples of text\n  remedy: set "
                "train.generate.prompt_tokens" in refused), refused
        planned(config(), *writes, "--text", "--evaluation", code=2)

    @case
    def a_memory_that_is_too_small_fails_and_says_what_would_help():
        text = planned(config(), "--nproc", 2).stdout
        needed = int(re.search(r"^device +all +(\d+)", text, re.M)[1])
        assert planned(config(), "--nproc", 2, "--device-memory", needed).stdout == text
        refused = planned(config(), "--nproc", 2, "--device-memory", needed - 1, code=5)
        assert refused.stdout == text
        assert re.search(r"^ftrun: 2 ranks need more than \S+ \S+ of the device tier; rank 0 needs "
                         r"the most: \S+ \S+\n"
                         r"  remedy: make one or more of these changes \(savings per rank\): \S",
                         refused.stderr), refused.stderr
        assert "1.00 KiB of the device tier" in planned(config(), "--device-memory", "1KiB",
                                                        code=5).stderr

    @case
    def llama_3_405b_is_planned_and_checked_on_16384_ranks():
        process = must(ftrun("plan", "--config", SOURCE / "tests/sim/llama-3-405b/plan.yaml",
                             cwd=SOURCE))
        text = process.stdout
        assert text.startswith("rank 0 of 16384, 405.85 B parameters, ZeRO stage 1\n"), text
        match = re.search(r"^checked: all 16384 ranks, (\d+) different programs: their collectives "
                          r"match, and no rank can "
                          r"wait forever$", text, re.M)
        assert match and 1 < int(match[1]) <= 16, text
        assert ("\nassumed: every sequence has 8192 tokens (data.sequence_length), because "
                "data.train is not set\n" in text), text
        sent = {name: int(calls)
                for name, calls in re.findall(r"^  (\w+ over \d+ ranks along \S+), (\d+) calls",
                                              text, re.M)}
        assert (sent["reduce_scatter over 2048 ranks along data"] > 0
                and sent["all_gather over 8 ranks along tensor"] > 126), text

    def plan_pipeline(*arguments, code=0, layers=7, **parallel):
        folder = scratch / f"{layers}-layers"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(TINY_CONFIG | {"num_hidden_layers": layers}))
        value = {"model": {"path": str(folder)}, "data": {"sequence_length": 32},
                 "parallel": {"data": 1, **parallel},
                 "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8,
                 "output_dir": str(scratch / "out")}
        return must(ftrun("plan", "--config", write_config(scratch, value), "--schedule",
                          *arguments), code)

    @case
    def a_pipeline_is_drawn_with_what_its_stages_wait_and_keep():
        text = plan_pipeline(pipeline=2).stdout
        lines = text.splitlines()
        assert lines[0] == "schedule 1f1b: 2 stages, 8 micro-batches", text
        assert (re.match(r"stage 0 \| F0 +F1 +\.+B0 ", lines[1])
                and re.match(r"stage 1 \| \.+F0 +B0 +F1 ", lines[2])), text
        assert all(len(line) <= 120 for line in lines[1:3]), text
        rows = [re.split(r"  +", line.strip()) for line in lines if re.match(r" *[01]  ", line)]
        assert ([row[1] for row in rows] in (["embed, 0-3", "4-6, head"],
                                             ["embed, 0-2", "3-6, head"])), text
        assert [row[4] for row in rows] == ["2", "1"], text
        idle = [float(row[3].split()[0]) for row in rows]
        assert (abs(sum(idle) / 2 - float(re.search(r"^idle over all stages: (\S+) %$", text,
                                                    re.M)[1])) < 0.1), text
        zero_bubble = plan_pipeline(pipeline=2, schedule="zbv").stdout
        assert (zero_bubble.startswith("schedule zbv: 2 stages, 2 chunks each, 8 micro-batches\n"
                                       "stage 0 | F0a ")), zero_bubble
        assert ("embed, 0" in zero_bubble
                and "head" in zero_bubble.split("stage  layers")[1].splitlines()[2]), zero_bubble

    @case
    def layers_by_hand_are_what_is_drawn():
        text = plan_pipeline(pipeline=2, pipeline_layers=[6, 1]).stdout
        assert "embed, 0-5" in text and "6, head" in text, text

    @case
    def a_model_that_cannot_be_cut_is_refused_before_anything_is_built():
        for command, keys, message in (
                ("too many", {"pipeline": 8}, "12: error: the model's 7 decoder layers cannot be "
                 "cut into 8 chunks (pipeline 8)\n  remedy: use parallel.pipeline 7 or less\n"),
                ("wrong sum", {"pipeline": 2, "pipeline_layers": [4, 4]},
                 "error: parallel.pipeline_layers 4 + 4 = 8 ≠ the model's "
                 "7 decoder layers\n  remedy: write numbers with the sum 7\n")):
            refused = plan_pipeline(code=2, **keys).stderr
            assert (message.split(": ", 1)[1] in refused and "1 problem in the config; nothing was "
                                                          "started" in refused), (command, refused)
        alone = plan_pipeline(code=2).stderr
        assert alone == ("ftrun: --schedule: the config has no pipeline\n"
                         "  remedy: write parallel.pipeline, the number of stages\n"), alone

    @case
    def few_micro_batches_are_reported_with_what_they_cost():
        model = tiny_model(scratch / "four-layers", tiny_weights(layers=4), num_hidden_layers=4)

        def checked(*arguments, code=0, **parallel):
            value = {"model": {"path": str(model)},
                     "data": {"train": str(data), "sequence_length": 32},
                     "parallel": {"data": 1, "pipeline": 2, **parallel},
                     "train_micro_batch_size_per_gpu": 2,
                     "gradient_accumulation_steps": 4, "train": {"steps": 1},
                     "output_dir": str(scratch / "out")}
            return must(ftrun("check", "-q", "--config", write_config(scratch, value), *arguments),
                        code)

        match = re.search(r"notice: gradient_accumulation_steps .*", checked().stdout)
        assert (match and match[0] == ("notice: gradient_accumulation_steps 4 with pipeline 2: "
                                       "stages are idle 20 % of a step (schedule 1f1b, "
                                       "equal chunks); raise it to 8 for 11 %")), match
        assert "notice: gradient" not in checked("--set", "gradient_accumulation_steps=8").stdout
        assert "are idle 11 % of a step" in checked("--set", "parallel.schedule=interleaved").stdout
        refused = checked("--set", "parallel.pipeline=8", code=2).stderr
        assert ("--set parallel.pipeline=8: error: the model's 4 decoder layers cannot be cut into "
                "8 chunks (pipeline 8)\n  remedy: use parallel.pipeline 4 or less\n") in refused, (
            refused)

    @case
    def the_pipeline_of_16384_ranks_is_drawn():
        text = must(ftrun("plan", "--config", SOURCE / "tests/sim/llama-3-405b/plan.yaml",
                          "--schedule", "--set",
                          "parallel.pipeline=16", "--set", "gradient_accumulation_steps=64",
                          "--set", "parallel.data=auto",
                          "--nproc", 16384, "--set", "train_batch_size=auto", cwd=SOURCE)).stdout
        assert text.startswith("schedule 1f1b: 16 stages, 64 micro-batches\nstage 0  | F"), text
        assert len(re.findall(r"^stage ", text, re.M)) == 17, text  # 16 stages, and a heading
        assert "118-125, head" in text or "119-125, head" in text, text

    run_cases()
