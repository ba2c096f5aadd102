"""Tests `ftrun plan` for models without a config: presets, sizes and config.json files; the table
of textbook formulas beside plans; the machine files that ftrun contains, and the stacks of other
programs."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from runner import BINARY, Job, case, ftrun, must, run_cases

SOURCE = pathlib.Path(sys.argv[1])

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    machine = SOURCE / "configs/machines/h100-80gb.yaml"

    def planned(*arguments):
        return json.loads(must(ftrun("plan", *arguments, "--json")).stdout)["result"]

    @case
    def a_known_model_is_planned_without_config_data_and_weights():
        stdout = must(ftrun("plan", "--model", "llama-3.2-1b", "--machine", machine)).stdout
        assert stdout.startswith("rank 0 of 8, 1.24 B parameters, ZeRO stage "), stdout
        assert ("\nmodel: llama-3.2-1b: llama, 16 layers of width 2048, 32 heads, MLP 8192, "
                "vocabulary 128256 (" in stdout), stdout
        assert re.search(r"\ntime of a step on h100-80gb: [\d.]+ s", stdout), stdout
        answer = planned("--model", "llama-3.2-1b", "--machine", machine, "--nodes", 2,
                         "--set", "parallel.tensor=2", "--set", "zero_optimization.stage=3")
        assert (answer["ranks"], answer["zero_stage"]) == (16, 3), answer
        assert answer["parameters"] == 1235814400, answer
        assert answer["time"]["seconds"] > 0, answer

    @case
    def a_size_a_file_and_a_folder_are_models_too():
        size = planned("--params", "1B")
        assert size["ranks"] == 1 and abs(size["parameters"] / 1e9 - 1) < 0.005, size
        folder = SOURCE / "tests/sim/llama-3-405b"
        for named in (folder, folder / "config.json"):
            answer = planned("--model", named, "--machine", machine, "--nodes", 16, "--set",
                             "parallel.tensor=8", "--set", "zero_optimization.stage=3",
                             "--set", "recompute.policy=full")
            assert (answer["ranks"], answer["parameters"]) == (128, 405853388800), answer
        # A config without a model takes the model from the command line.
        config = job.scratch / "without.yaml"
        config.write_text("train_micro_batch_size_per_gpu: 2\nfp16: {enabled: true}\n"
                          "device: cuda\n")
        answer = planned("--model", "gpt2", "--config", config, "--nproc", 2)
        assert (answer["ranks"], answer["parameters"]) == (2, 124439808), answer

    @case
    def a_search_takes_a_model_too():
        answer = planned("--search", "--params", "1B", "--machine", machine, "--set",
                         "train_batch_size=8", "--seconds", 1)["search"]
        assert answer["batch"] == 8 and answer["layouts"], answer

    @case
    def contradictions_are_refused_with_remedies():
        config = job.config("named")
        stderr = must(ftrun("plan", "--model", "gpt2", "--config", config), 2).stderr
        assert re.search(r"model\.path: the config names the model .*, and the plan is for gpt2\n"
                         r" +remedy: remove --model and --params, or model\.path", stderr), stderr
        for arguments, code, word in (
                (("--model", "gpt2", "--params", "1B"), 2, "excludes --params"),
                (("--model", "gpt2x"), 2, 'did you mean "gpt2"?'),
                (("--params", "7"), 2, "expected a number of parameters from 50M to 10000B"),
                (("--model", "owner/none"), 4, "owner/none"),
                (("--table", "--config", config), 2, "--table"),
                (("--gpus", "8"), 2, "--table"),
                (("--model", "gpt2", "--stack", "x.yaml"), 2, "--machine"),
                ((), 2, "no config was given")):
            result = must(ftrun("plan", *arguments), code)
            assert word in result.stdout + result.stderr, (word, result.stdout, result.stderr)

    @case
    def the_table_has_formulas_and_plan_side_by_side():
        stdout = must(ftrun("plan", "--table", "--machine", machine)).stdout
        # 7 B on 8 GPUs at stage 3: 10.5 GB of states, and 2 x 4096 tokens x 4096 wide x 32 x 2
        # bytes.
        formula = 10.5 + 2 * 4096 * 4096 * 32 * 2 / 1e9
        assert re.search(rf"^ *7B +3 +8 +{formula:.2f} +[\d.]+ +\+[\d.]+ %  fits$", stdout,
                         re.M), stdout
        assert re.search(r"^master copy in fp32, 4 bytes +0\.00 +3\.50 +3\.50  updates are ",
                         stdout, re.M), stdout
        assert re.search(r"^ZeRO 0 +95 +94\.0 +-1\.1 %", stdout, re.M), stdout
        assert re.search(r"^FSDP, FULL_SHARD \(ZeRO 3\) +full +[\d.]+ +[\d.]+ +0\.\d+ +[\d.]+ %$",
                         stdout, re.M), stdout
        one = json.loads(must(ftrun("plan", "--table", "--model", "llama-2-7b", "--gpus", "2,8",
                                    "--json")).stdout)["result"]["table"]
        assert len(one["rows"]) == 8 and "stated" not in one, one
        for row in one["rows"]:
            for side in ("formula", "planned"):
                parts = sum(line[side] for line in row["lines"])
                assert abs(parts - row[side]) <= len(row["lines"]), row
            assert row["fits"]["A100, H100-80"]["planned"] == (row["planned"] <= 80e9), row

    @case
    def shipped_machines_and_stacks_plan():
        seconds = {}
        for file in sorted((SOURCE / "configs/machines").glob("*.yaml")):
            seconds[file.stem] = planned("--params", "1B", "--machine", file, "--nproc", 1,
                                         "--set", "recompute.policy=full")["time"]["seconds"]
        assert (seconds["b200-180gb"] < seconds["h200-141gb"] <= seconds["h100-80gb"]
                < seconds["a100-80gb"] <= seconds["a100-40gb"] < seconds["rtx4090-24gb"]), seconds
        stacks = sorted((SOURCE / "configs/stacks").glob("*.yaml"))
        assert len(stacks) >= 8, stacks
        for file in stacks:
            answer = planned("--params", "1B", "--machine", machine, "--stack", file)
            assert answer["time"]["machine"] == f"h100-80gb with {file.stem}", answer

    @case
    def rows_of_others_are_predicted_as_the_page_says():
        def check(page):
            return subprocess.run([sys.executable, SOURCE / "tests/bench/published_rows.py",
                                   "--check", "--binary", BINARY, "--only", "llmc", "--page", page],
                                  capture_output=True, text=True)

        page = SOURCE / "docs/plan.md"
        result = check(page)
        assert result.returncode == 0 and result.stdout.startswith("3 rows are those of "), result
        other = job.scratch / "plan.md"
        other.write_text(re.sub(r"(gpt2-124m, .* \| 64, 1 \| )[\d.]+", r"\g<1>0.1",
                                page.read_text()))
        result = check(other)
        assert result.returncode == 1, result
        assert re.fullmatch(r"not in .*plan\.md: \| llmc \| gpt2-124m, .*\n", result.stdout), result

    run_cases()
