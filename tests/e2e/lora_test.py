"""Checks low-rank adapters: they train as in PEFT, on any layout; their folders are exchanged with
PEFT; checkpoints hold what trains, and runs continue bit for bit; parts of a model train by name;
and wrong settings are refused before anything starts."""
import json
import pathlib
import re
import shutil
import sys
import tempfile

import numpy as np
from runner import (Job, ShardedJob, accumulation_of_ranks, case, checkpoints, config,
                    copy_without_last_save, exported_adapter, ftrun, kill_before_last_save, must,
                    preload, reproducible_metrics, require_near, run_cases, same_tensors, start,
                    steps, write_config)
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

SOURCE = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(SOURCE / "tests/model"))
from lora_reference import CASES, logits_of, model_of, write_cases  # noqa: E402

CPU = {"device": "cpu"}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# A second layout for each comparison, in turn: the number of ranks, and changes of the config.
# (Tensor ranks have a separate case.)
LAYOUTS = [
    (2, {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}),
    (2, {"zero_optimization": {"stage": 2, "offload_optimizer": CPU}, "recompute": "full"}),
    (2, {"zero_optimization": {"stage": 1}, "recompute": "selective"}),
    (2, {"zero_optimization": {"stage": 1}, "parallel": {"pipeline": 2}}),
    (2, {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
                               "offload_param": CPU, "offload_optimizer": CPU}}),
]


with tempfile.TemporaryDirectory() as scratch:
    preload()
    scratch = pathlib.Path(scratch)
    references = scratch / "references"

    def check_parity(folder, name, ranks, changes):
        reference = json.loads((folder / "reference.json").read_text())
        out = scratch / f"{folder.name}-{name}"
        value = config(folder / "model", folder / "data" / "train.bin", out, threads=1,
                       adapter=str(folder / "adapter"))
        value |= {"gradient_accumulation_steps": accumulation_of_ranks(changes, ranks, 2),
                  **changes}
        must(ftrun("--config", write_config(scratch, value), "--nproc", ranks))
        lines = steps(out)
        loss = require_near("loss", [m["loss"] for m in lines], reference["losses"], 1e-5)
        norm = require_near("gradient norm", [m["grad_norm"] for m in lines],
                            reference["grad_norms"], 5e-5)
        expected, trained = load_file(
            folder / "trained" / "adapter_model.safetensors"), exported_adapter(out)
        assert set(trained) == set(expected), set(trained) ^ set(expected)
        for tensor, values in expected.items():
            far = np.linalg.norm(trained[tensor] - values) / np.linalg.norm(values)
            assert far <= 1e-4, f"{tensor}: {far} from PEFT's"
        print(f"{folder.name}, {name}: loss within {loss:.1e}, gradient norm within {norm:.1e}",
              flush=True)
        return out

    @case
    def losses_norms_and_weights_of_20_steps_are_those_of_peft():
        write_cases(references, CASES)
        folders = sorted(references.iterdir())
        assert len(folders) >= 10 > len(LAYOUTS), folders
        for i, folder in enumerate(folders):
            check_parity(folder, "one", 1, {})
            check_parity(folder, "other", *LAYOUTS[i % len(LAYOUTS)])

    @case
    def peft_loads_what_was_trained_and_its_model_has_the_same_logits():
        """transformers computes each case with ftrun's folder, and with PEFT's own after 20
        steps."""
        for folder in sorted(references.iterdir()):
            plain = logits_of(model_of(folder / "model"))
            peft_logits = logits_of(model_of(folder / "model", folder / "trained"))
            ours = logits_of(model_of(folder / "model",
                                      scratch / f"{folder.name}-one/export/adapter"))
            learned = (peft_logits - plain).abs().max().item()
            apart = (peft_logits - ours).abs().max().item()
            assert apart < 1e-2 * learned, (folder, apart, learned)

    job = ShardedJob(scratch / "job")
    LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}

    @case
    def a_new_adapter_leaves_the_model_as_it_is():
        """B is zero, so the first loss is the base's, for each kind of initialization; drawn values
        are the same on any number of ranks."""
        job.run("base", **job.settings(1))
        first = steps(job.out("base"))[0]["loss"]
        for begin in (True, "gaussian", "orthogonal", False):
            name = f"begin-{begin}"
            job.run(name, **job.settings(1), adapter={**LORA, "init_lora_weights": begin},
                    optimizer={"type": "AdamW", "params": {"lr": 0.0}})
            loss = steps(job.out(name))[0]["loss"]
            if begin == "orthogonal":
                require_near(name, [loss], [first], 1e-6)
            else:
                assert (loss == first) == (begin is not False), begin
            for tensor, values in exported_adapter(job.out(name)).items():
                drawn = ".lora_A." in tensor or begin in (False, "orthogonal")
                assert (np.abs(values).max() > 0) == drawn, tensor
                if not drawn:
                    continue
                expected = 1 / 4 if begin == "gaussian" else 0.1 / np.sqrt(
                    2) if begin == "orthogonal" else (1 / np.sqrt(values.shape[1])) / np.sqrt(3)
                deviation = values.std() / expected
                assert 0.7 < deviation < 1.4 if begin == "orthogonal" else 0.8 < deviation < 1.2, (
                    f"{tensor}: standard deviation {deviation} of what was asked for")
                assert (begin in ("gaussian", "orthogonal")
                        or np.abs(values).max() <= 1 / np.sqrt(values.shape[1])), tensor
        job.run("begin-3", "--nproc", 3, **job.settings(3, stage=3), adapter=LORA,
                optimizer={"type": "AdamW", "params": {"lr": 0.0}})
        one, three = exported_adapter(job.out("begin-True")), exported_adapter(job.out("begin-3"))
        assert same_tensors(one, three)

    @case
    def checkpoints_hold_what_trains_and_continue_bit_for_bit():
        saving = job.settings(2, stage=3) | {"adapter": LORA,
                                             "checkpoint": {"every": 1, "keep_last": 0},
                                             "train": {"steps": 8}}
        job.run("straight", "--nproc", 2, **saving)
        out = job.out("cut")
        kill_before_last_save(out, 8, lambda: start("--config", job.config("cut", **saving),
                                                    "--nproc", 2))
        for step in checkpoints(out):
            if ".tmp-" in step:  # the killed run left it incomplete
                continue
            for path in (out / "checkpoints" / step).glob("*.safetensors"):
                with safe_open(path, framework="np") as held:
                    assert (held.keys() and all(".lora_" in name
                                                for name in held.keys())), sorted(held.keys())[:3]
        job.run("cut", "--nproc", 2, "--resume", "auto", **saving)
        assert reproducible_metrics(out) == reproducible_metrics(job.out("straight"))
        straight, cut = exported_adapter(job.out("straight")), exported_adapter(out)
        assert same_tensors(straight, cut)
        # On other ranks and with another stage, the numbers are the same except for rounding.
        copy_without_last_save(out, job.out("other"), 8)
        job.run("other", "--resume", "auto",
                **(saving | job.settings(1, stage=0) | {"train": {"steps": 8}}))
        require_near("loss", [steps(job.out("other"))[-1]["loss"]], [steps(out)[-1]["loss"]], 1e-5)

    @case
    def tensor_ranks_train_what_one_process_trains():
        mesh = ShardedJob(scratch / "mesh", vocab_size=500)
        same = mesh.settings(1, accumulation=2) | {"adapter": LORA,
                                                   "optimizer": {"type": "AdamW",
                                                                 "params": {"lr": 0.02}}}
        mesh.run("one", **same)
        for name, ranks, parallel in (("tensor", 2, {"tensor": 2}),
                                      ("whole tokens", 2, {"tensor": 2, "sequence": False}),
                                      ("copies", 4, {"tensor": 4}),
                                      ("both", 4, {"tensor": 2, "pipeline": 2})):
            mesh.run(name, "--nproc", ranks, **same, parallel=parallel)
            loss = require_near("loss", [m["loss"] for m in steps(mesh.out(name))],
                                [m["loss"] for m in steps(mesh.out("one"))], 1e-5)
            norm = require_near("gradient norm", [m["grad_norm"] for m in steps(mesh.out(name))],
                                [m["grad_norm"] for m in steps(mesh.out("one"))], 5e-5)
            tensors, expected = exported_adapter(mesh.out(name)), exported_adapter(mesh.out("one"))
            for tensor, values in expected.items():
                assert np.linalg.norm(tensors[tensor] - values) <= 1e-4 * np.linalg.norm(values), (
                    tensor)
            print(f"{name}: loss within {loss:.1e}, gradient norm within {norm:.1e}", flush=True)

    @case
    def bf16_adapters_train_as_fp32_ones():
        job.run("fp32", **job.settings(1), adapter=LORA)
        job.run("bf16", "--nproc", 2, **job.settings(2, precision="bf16", stage=2), adapter=LORA)
        require_near("loss", [m["loss"] for m in steps(job.out("bf16"))],
                     [m["loss"] for m in steps(job.out("fp32"))], 2e-3)

    @case
    def trained_and_unmoved_tensors_are_reported():
        name = "model.layers.0.self_attn.q_proj.lora_B.weight"
        few = {"adapter": {"r": 4, "target_modules": ["q_proj", "v_proj"]}, "train": {"steps": 2}}
        stdout = job.run("moved", **job.settings(1) | few).stdout
        assert re.search(r"trained: \d+ of \d+ parameters \(.* %\)\n  self_attn.q_proj  LoRA r 4  "
                         r"3 of 3 blocks, \d+ parameters\n"
                         r"  self_attn.v_proj  LoRA r 4  3 of 3 blocks, \d+ parameters\n  not "
                         r"trained: embed_tokens, ", stdout), stdout
        assert "moved" not in stdout.replace("/moved", ""), stdout
        still = job.run("still", "--nproc", 2, **job.settings(2, stage=3) | few
                        | {"optimizer": {"type": "AdamW", "params": {"lr": 0.0}}})
        unmoved = ("none of 12 trained tensors has changed since training began: "
                   f"{name.replace('_B', '_A')}, {name}, ")
        assert unmoved in still.stdout + still.stderr, still.stdout + still.stderr
        # An expression that misses a block and modules; and a block whose output is zero, so that
        # no gradient reaches its adapters. Log and report must name only these.
        missed = {"adapter": {"r": 4, "target_modules": r".*layers\.[02].*(q_proj|up_proj)"},
                  "train": {"steps": 4},
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}}}
        weights = load_file(job.model / "model.safetensors")
        weights["model.layers.2.self_attn.o_proj.weight"][:] = 0
        shutil.copytree(job.model, scratch / "deaf")
        save_file(weights, scratch / "deaf" / "model.safetensors", {"format": "pt"})
        partly = job.run("partly", **job.settings(1) | missed
                         | {"model": {"path": str(scratch / "deaf")}})
        assert re.search(r"  self_attn.q_proj  LoRA r 4  2 of 3 blocks \(not 1\), \d+ parameters\n"
                         r"  mlp.up_proj       LoRA r 4  2 of 3 blocks \(not 1\), \d+ parameters\n"
                         r"  not trained: embed_tokens, .*self_attn.k_proj.*mlp.gate_proj",
                         partly.stdout), partly.stdout
        deaf = "model.layers.2.self_attn.q_proj.lora_"
        named = ("2 of 8 trained tensors have not changed since training began: "
                 f"{deaf}A.weight, {deaf}B.weight; no gradient has reached them")
        assert named in partly.stdout + partly.stderr, partly.stdout + partly.stderr
        page = must(ftrun("report", job.out("partly"))).stdout.split()[-1]
        assert "2 of 8 trained tensors have not changed" in pathlib.Path(page).read_text(), page
        tiny = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-7, "weight_decay": 0.0}},
                "train": {"steps": 2}}
        bf16_run = job.run("lost", **job.settings(1) | tiny | {"export": {"dtype": "bf16"}})
        assert ("have learned is too small for bf16, so the export has their first values: "
                in bf16_run.stdout + bf16_run.stderr), bf16_run.stderr
        # If an adapter disappears while a run continues from it, only this check is lost, not the
        # export.
        shutil.copytree(job.out("moved") / "export" / "adapter", scratch / "begun")
        running = start("--config",
                        job.config("gone-adapter",
                                   **job.settings(1) | {"model": {"path": str(job.model)},
                                                        "adapter": str(scratch / "begun"),
                                               "train": {"steps": 400}}))
        running.await_line("step 1/")
        shutil.rmtree(scratch / "begun")
        running.wait(0)
        assert (
            job.out("gone-adapter") / "export" / "adapter" / "adapter_model.safetensors").exists()
        fp32_run = job.run("kept", **job.settings(1) | tiny | {"export": {"dtype": "fp32"}})
        assert "first values" not in fp32_run.stdout + fp32_run.stderr, fp32_run.stderr

    @case
    def a_merged_model_is_the_base_with_the_adapter():
        """W + scale B A is computed here from the files; merging a checkpoint and merging PEFT's
        folder must give the same."""
        name = "merged-run"
        job.run(name, **(job.settings(1) | {"adapter": {**LORA, "rank_pattern": {"q_proj": 2}},
                                            "optimizer": {"type": "AdamW",
                                                          "params": {"lr": 0.02}}}))
        base, adapter = load_file(job.model / "model.safetensors"), exported_adapter(job.out(name))
        sources = {"run": job.out(name), "folder": job.out(name) / "export" / "adapter"}
        refused = ftrun("convert", sources["folder"], "--merge", "--out", scratch / "never",
                        "--quantization", "nf4")
        assert (refused.returncode == 2
                and "a base that was not quantized" in refused.stderr), refused.stderr
        assert re.search("base quantized as +none",
                         must(ftrun("inspect", sources["folder"])).stdout)
        for source, path in sources.items():
            out = scratch / f"merged-{source}"
            must(ftrun("convert", path, "--merge", "--out", out, "--dtype", "fp32"))
            merged = load_file(out / "model.safetensors")
            assert set(merged) == set(base)
            for tensor, values in base.items():
                module = "base_model.model." + tensor.removesuffix(".weight")
                expected = values
                if f"{module}.lora_A.weight" in adapter:
                    a, b = (adapter[f"{module}.lora_{x}.weight"].astype(np.float64) for x in "AB")
                    expected = (values + 8 / a.shape[0] * (b @ a)).astype(np.float32)
                    assert np.abs(expected - values).max() > 1e-4, (
                        f"{tensor}: the adapter has learned nothing")
                assert np.abs(merged[tensor] - expected).max() <= 1e-7, tensor
        rounded = must(ftrun("convert", sources["run"], "--merge", "--out", scratch / "merged-bf16",
                             "--dtype", "bf16"))
        assert "% of the adapter's change (most in " in rounded.stdout, rounded.stdout
        repeated = must(ftrun("convert", sources["run"], "--out", scratch / "again"))
        assert ("again" in repeated.stdout
                and same_tensors(load_file(scratch / "again" / "adapter_model.safetensors"),
                                 adapter))
        refused = ftrun("convert", sources["folder"], "--out", scratch / "nothing")
        assert (refused.returncode != 0 and "--merge" in refused.stderr
                and not (scratch / "nothing").exists()), refused.stderr

    @case
    def another_base_is_noticed():
        """The other base has the same names and shapes, but one tensor has other values: a
        checkpoint of an adapter can be neither resumed nor merged with it."""
        base = load_file(job.model / "model.safetensors")
        name = "merged-run"  # from the previous case
        other_base = scratch / "other-base"
        shutil.copytree(job.model, other_base)
        base["model.layers.1.mlp.up_proj.weight"][0, 0] += 1
        save_file(base, other_base / "model.safetensors", metadata={"format": "pt"})
        settings = job.settings(1) | {
            "model": {"path": str(other_base)}, "train": {"steps": 9},
            "adapter": {**LORA, "rank_pattern": {"q_proj": 2}},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.02}}}
        for process in (ftrun("convert", job.out(name), "--merge", "--model", other_base, "--out",
                              scratch / "never"),
                        ftrun("--config", job.config(name, **settings), "--resume", "auto")):
            assert (process.returncode == 4
                    and "its weights differ from the base model that"
                    in process.stderr), process.stdout[-500:] + process.stderr[-1500:]
        assert not (scratch / "never").exists()

    @case
    def parts_of_a_model_train_by_name():
        before = load_file(job.model / "model.safetensors")
        for name, ranks, choice, trains in (
                ("only", 1, {"only": ["norm"]}, lambda tensor: "norm" in tensor),
                ("freeze", 2, {"freeze": ["embed_tokens", r"layers\.[01]\."]},
                 lambda tensor: "embed_tokens" not in tensor and "layers.0." not in tensor
                 and "layers.1." not in tensor)):
            settings = job.settings(ranks, stage=3 if ranks > 1 else 0)
            settings["train"] = settings["train"] | choice
            job.run(name, "--nproc", ranks, **settings)
            after = load_file(job.out(name) / "export" / "model" / "model.safetensors")
            moved = {tensor for tensor in before
                     if not np.array_equal(before[tensor], after[tensor])}
            assert moved == {tensor for tensor in before if trains(tensor)}, moved
            must(ftrun("convert", job.out(name), "--out", scratch / f"converted-{name}"))
            converted = load_file(scratch / f"converted-{name}" / "model.safetensors")
            assert same_tensors(converted, after)

    @case
    def wrong_settings_are_refused_by_name():
        folder = references / "all"
        small = Job(scratch / "small")
        for what, changes, parts in (
                ("nearest", {"adapter": {"target_modules": ["q_porj"]}},
                 ["q_porj", 'did you mean "q_proj"', "gate_proj"]),
                ("rank", {"adapter": {"r": 0}}, ["adapter.r", "from 1 to 65536"]),
                ("head", {"adapter": {"target_modules": ["lm_head"]}},
                 ["lm_head", "modules_to_save"]),
                ("everything", {"adapter": {"lora_dropout": 1.0}},
                 ["adapter.lora_dropout", "from 0 to below 1"]),
                ("layer", {"adapter": {"layers_to_transform": [7]}},
                 ["layers_to_transform 7", "0 to 1"]),
                ("expression", {"adapter": {"target_modules": "q_proj("}},
                 ["q_proj(", "regular expression"]),
                ("nothing", {"adapter": {"target_modules": "q_proj, v_proj"}},
                 ["no module of the model is chosen", "names are a list: [q_proj, v_proj]"]),
                ("spelling", {"adapter": {"target_modules": "all_linear"}},
                 ["no module of the model is chosen", 'did you mean "all-linear"']),
                ("bias", {"adapter": {"lora_bias": True}}, ["lora_bias", "not supported"]),
                ("unknown", {"adapter": {"rank": 8}}, ["adapter.rank", "unknown key"]),
                ("saved", {"adapter": {"modules_to_save": ["lm_haed"]}}, ["lm_haed", "lm_head"]),
                ("part", {"train": {"steps": 2, "freeze": ["k_proj"]}},
                 ["q_proj.weight", "one matrix", "[qkv]_proj"]),
                ("none", {"train": {"steps": 2, "freeze": ["."]}},
                 ["no parameter is left to train", "remove an expression"]),
                ("typo", {"train": {"steps": 2, "only": ["emded"]}}, ["emded", "no parameter"]),
                ("useless",
                 {"adapter": {"exclude_modules": ["q_porj"], "rank_pattern": {"v_porj": 3}}},
                 ["q_porj", "q_proj", "v_porj"]),
                ("cut", {"adapter": {"r": 4}, "train": {"steps": 2, "freeze": ["lora_A"]}},
                 ["parts of an adapter", "exclude_modules"]),
                ("others", {"adapter": {"target_modules": ".*(q_proj|lm_head)"}},
                 ["matches lm_head"]),
                ("base", {"adapter": str(folder / "adapter")},
                 ["lora_A.weight", "shape [4, 72]", "expected [4, 32]"]),
                ("folder", {"adapter": str(scratch / "nowhere")},
                 ["nowhere", "neither in the working directory nor"])):
            for command in (("check",), ()):
                refused = ftrun(*command, "--config", small.config(what, **changes))
                text = refused.stdout + refused.stderr
                assert refused.returncode in (1, 2), f"{what}: {refused.returncode}\n{text[-2000:]}"
                for part in parts:
                    assert part in text, f"{what}: {part!r} is not in\n{text[-2000:]}"
            assert not small.out(what).exists(), what

    @case
    def modules_without_adapters_may_be_excluded():
        for excluded, idle in ((["lm_head"], 1), (["o_proj", "embed_tokens"], 2),
                               (["layers.1.self_attn.k_proj"], 1), (["layers.1"], 1),
                               (["layers.1.self_attn.q_proj"], 0), (r".*\.mlp\..*", 1)):
            result = must(ftrun("check", "--config",
                                job.config("excluded", adapter={"target_modules": ["q_proj"],
                                                                "exclude_modules": excluded})))
            assert result.stdout.count("changes nothing") == idle, (excluded, result.stdout)

    @case
    def other_settings_do_not_go_on():
        run = {"adapter": LORA, "checkpoint": {"every": 2}}
        job.run("settings", **job.settings(1), **run)
        refused = ftrun("--config", job.config("settings", **job.settings(1),
                                               **(run | {"adapter": {**LORA, "lora_alpha": 16}})),
                        "--resume", "auto")
        assert (refused.returncode == 2 and "config.adapter.lora_alpha" in refused.stdout
                + refused.stderr), refused.stderr[-2000:]

    run_cases()
