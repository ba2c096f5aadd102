"""Checks that commands answer --json with one object on standard output that fits the schema of
`ftrun schema --answers`, on success and on every kind of failure, and that each failure's code has
a section in docs/errors.md."""
import json
import os
import pathlib
import shutil
import sys
import tempfile
import textwrap

import jsonschema

from runner import Job, case, ftrun, must, preload, run_cases

SOURCE = pathlib.Path(sys.argv[1])
# The lines before and after README's names of model families.
NAMES_BEGIN = ("<!-- The families of `ftrun schema --support`; tests/e2e/answers_test.py compares. "
               "-->\n")
NAMES_END = "\n<!-- The end of the families. -->"
preload()

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    job = Job(scratch)
    schema = json.loads(must(ftrun("schema", "--answers")).stdout)
    validator = jsonschema.Draft202012Validator(schema)
    job.run("run", train={"steps": 1}, checkpoint={"every": 1})

    def answer(*arguments, code=0):
        result = must(ftrun(*arguments, "--json"), code)
        envelope = json.loads(result.stdout)
        validator.validate(envelope)
        assert envelope["exit_code"] == code and envelope["command"] in ("", arguments[0]), envelope
        assert ("result" in envelope) == (code == 0)
        assert (code == 0
                or envelope["error"]["message"].splitlines()[0] in result.stderr), (
            envelope, result.stderr)
        return envelope.get("result") or envelope["error"]

    @case
    def the_schema_is_one_and_refuses_what_it_does_not_know():
        jsonschema.Draft202012Validator.check_schema(schema)
        said = {"format": "ftrun-answer", "version": 1, "command": "verify", "exit_code": 0,
                "result": {"path": "x", "undamaged": True}}
        assert validator.is_valid(said)
        for wrong in ({"version": 2}, {"result": {"path": "x"}}, {"more": 1}, {"command": "check"}):
            assert not validator.is_valid(said | wrong), wrong

    @case
    def check_and_plan_answer_with_numbers():
        config = job.config("checked", train={"steps": 3}, model={"path": str(job.model)})
        checked = answer("check", "--config", config)
        assert ((checked["ranks"], checked["model"]["family"],
                 checked["runs_here"]) == (1, "llama", True)), checked
        assert (checked["config"]["train"]["steps"] == 3
                and any("scheduler" in line for line in checked["notices"]))
        planned = answer("plan", "--config", config, "--nproc", 2)
        assert (planned["ranks"], planned["programs"]) == (2, 1)
        assert planned["parameters"] == checked["model"]["parameters"]
        device = planned["memory"]["device"]
        assert (device["total"] > sum(device["categories"][name]
                                      for name in ("parameters", "gradients")) > 0), device
        assert planned["traffic"]["bytes"] == sum(row["bytes"]
                                                  for row in planned["traffic"]["collectives"]) > 0
        table = answer("plan", "--table", "--params", "1B", "--gpus", "2")["table"]
        assert [(row["zero_stage"], row["gpus"]) for row in table["rows"]] == [
            (stage, 2) for stage in range(4)], table
        later_check = answer("check", "--config", job.config("run"))
        assert (any("a run without --resume would not start" in warning
                    for warning in later_check["warnings"])), later_check["warnings"]

    @case
    def a_plan_has_its_time_and_a_search_its_layouts():
        machine = scratch / "machine.yaml"
        machine.write_text("machine: m\nrates:\n  - memory: 10 GB/s\n    products: {fp32: 1 "
                           "TFLOP/s}\n")
        config = job.config("searched", train={"steps": 3}, model={"path": str(job.model)},
                            threads=None)
        planned = answer("plan", "--config", config, "--machine", machine)
        assert planned["time"]["machine"] == "m" and planned["time"]["seconds"] > 0, planned["time"]
        found = answer("plan", "--search", "--config", config, "--machine", machine)["search"]
        assert (found["proved"]
                and found["layouts"][0]["seconds"] <= planned["time"]["seconds"]), found
        assert (found["counts"]["legal"] > 0
                and any(why["reason"] == "chosen" for why in found["why_not"])), found
        failed = answer("plan", "--search", "--config", config, "--machine", machine,
                        "--device-memory", 1, code=5)
        assert failed["code"] == "environment", failed

    @case
    def folders_and_data_are_described_by_name_and_value():
        for path, kind, fact in ((job.model, "model", ("model_type", "llama")),
                                 (job.data, "data", ("tokens", "4097")),
                                 (job.out("run") / "checkpoints" / "step-00000001", "checkpoint",
                                  ("step", "1"))):
            described = answer("inspect", path)
            assert described["kind"] == kind and described["path"] == str(path)
            assert {"name": fact[0], "value": fact[1]} in described["facts"], described
        assert {"name": "lm_head.weight",
                "value": "F32 [211, 32]"} in answer("inspect", job.model)["tensors"]

    @case
    def checkpoints_are_verified_and_converted():
        assert answer("verify", job.out("run")) == {"path": str(job.out("run")), "undamaged": True}
        out = scratch / "converted"
        assert answer("convert", job.out("run"), "--out",
                      out) == {"from": str(job.out("run")), "to": str(out)}
        shutil.copytree(job.out("run"), scratch / "damaged")
        for file in (scratch / "damaged" / "checkpoints" / "step-00000001").glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        error = answer("verify", scratch / "damaged", code=4)
        assert error["code"] == "bad_input" and len(error["problems"]) >= 1, error

    @case
    def failures_have_a_code_and_the_place_of_each_problem():
        error = answer("check", "--config",
                       job.config("bad", train={"stepz": 1}, gradient_clipping="x"), code=2)
        assert error["code"] == "usage", error
        assert [(problem["line"], problem["message"]) for problem in error["problems"]] == sorted(
            (problem["line"], problem["message"]) for problem in error["problems"]), error
        assert (any("unknown key" in problem["message"] and problem["column"] > 1
                    for problem in error["problems"])), error
        error = answer("check", "--config",
                       job.config("none", model={"path": str(scratch / "none")}), code=4)
        assert (error["code"] == "bad_input"
                and error["problems"][0]["message"]
                == f"{scratch}/none: there is no such folder"), error
        assert answer("check", "--config", job.config("context", parallel={"context": 2}),
                      code=3)["code"] == "unsupported"
        assert answer("plan", "--config", job.config("small"), "--device-memory", "1KiB",
                      code=5)["code"] == "environment"
        assert answer("inspect", code=2)["code"] == "usage"
        assert answer("check", "--nonsense",
                      code=2)["message"].startswith("the option --nonsense is unknown")
        assert answer("schema", code=2)["message"].startswith("the option --json is unknown")

    @case
    def every_code_has_a_section():
        sections = [line.removeprefix("### `").removesuffix("`")
                    for line in (SOURCE / "docs" / "errors.md").read_text().splitlines()
                    if line.startswith("### `")]
        codes = schema["oneOf"][-1]["properties"]["error"]["properties"]["code"]["enum"]
        assert sections == codes, (sections, codes)

    @case
    def support_names_what_runs_where():
        support = json.loads(must(ftrun("schema", "--support")).stdout)
        keys = {row["key"]: row for row in support["keys"]}
        assert keys["train.steps"] == {"key": "train.steps", "processors": "yes", "gpus": "yes"}
        assert (keys["parallel.context"]["processors"] == "no"
                and keys["parallel.tensor"]["gpus"] == "emulated"), keys["parallel.tensor"]
        assert (keys["optimizer.type"]["processors"] == "in part"
                and "Lamb" in keys["optimizer.type"]["note"])
        assert {"model_type": "llama", "architecture": "LlamaForCausalLM"} in support["families"]
        assert support["quantized_models"] == ["bitsandbytes", "fp8"]

    @case
    def docs_of_models_say_what_the_code_does():
        written = must(ftrun("schema", "--models")).stdout
        docs = SOURCE / "docs" / "models.md"
        if os.environ.get("FTRUN_UPDATE_GOLDENS"):
            docs.write_text(written)
        assert docs.read_text() == written, (
            "docs/models.md is outdated; ftrun schema --models > docs/models.md writes it")
        families = json.loads(must(ftrun("schema", "--support")).stdout)["families"]
        for family in families:
            assert f"| {family['model_type']} | {family['architecture']} |" in written, family
        # README lists the names of the families between two marks.
        names = textwrap.fill(", ".join(f"`{family['model_type']}`" for family in families), 100)
        readme = SOURCE / "README.md"
        before, rest = readme.read_text().split(NAMES_BEGIN)
        shown, after = rest.split(NAMES_END)
        if os.environ.get("FTRUN_UPDATE_GOLDENS"):
            shown = names
            readme.write_text(before + NAMES_BEGIN + shown + NAMES_END + after)
        assert shown == names, (
            "README's list of model families is outdated; FTRUN_UPDATE_GOLDENS=1 writes it")

    run_cases()
