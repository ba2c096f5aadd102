"""Checks adapters with magnitudes (use_dora): they train as PEFT trains them, on any layout and on
a quantized base; they start as in PEFT; their folders are exchanged with PEFT and merge as in PEFT;
and a run continues bit for bit from a checkpoint."""
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from runner import (ShardedJob, accumulation_of_ranks, case, config,
                    copy_without_last_save, exported_adapter, ftrun, kill_before_last_save, must,
                    preload, reproducible_metrics, require_near, run_cases, same_tensors, start,
                    steps, write_config)
from safetensors.numpy import load_file, save_file

SOURCE = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(SOURCE / "tests/model"))
from lora_reference import logits_of, model_of, write_cases  # noqa: E402
from quantized_reference import dequantized  # noqa: E402

CPU = {"device": "cpu"}
STAGE3 = {"stage": 3, "stage3_param_persistence_threshold": 0}
# For each case of the reference: the number of ranks, and changes of the config.
LAYOUTS = {
    "dora": {"one": (1, {}), "stage 3": (2, {"zero_optimization": STAGE3}),
             "offload, recompute": (2,
                                    {"zero_optimization": STAGE3
                                     | {"offload_param": CPU, "offload_optimizer": CPU},
                                     "recompute": "full"})},
    "dora_fused": {"one": (1, {}), "tensor": (2, {"parallel": {"tensor": 2}})},
    "dora_biases": {"one": (1, {}), "stage 3": (2, {"zero_optimization": STAGE3}),
                    "pipeline": (2, {"zero_optimization": {"stage": 1},
                                     "parallel": {"pipeline": 2, "schedule": "zb-h1"}})},
    "dora_dropout": {"one": (1, {}),
                     "stage 2, recompute": (2, {"zero_optimization": {"stage": 2},
                                                "recompute": "selective"})},
}
DORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "use_dora": True}
FAST = {"type": "AdamW", "params": {"lr": 0.02}}


def require_near_tensors(tensors, expected, bound):
    """Asserts that the relative error of each tensor is at most `bound`."""
    assert set(tensors) == set(expected), set(tensors) ^ set(expected)
    for name, values in expected.items():
        error = np.linalg.norm(tensors[name] - values) / np.linalg.norm(values)
        assert error <= bound, f"{name}: {error}"


def module_matrices(adapter, tensor):
    """Returns A, B and the magnitudes of the module that a weight belongs to, or None."""
    module = "base_model.model." + tensor.removesuffix(".weight")
    if f"{module}.lora_A.weight" not in adapter:
        return None
    return (*(adapter[f"{module}.lora_{x}.weight"].astype(np.float64) for x in "AB"),
            adapter[f"{module}.lora_magnitude_vector"])


with tempfile.TemporaryDirectory() as scratch:
    preload()
    scratch = pathlib.Path(scratch)
    references = scratch / "references"
    write_cases(references, LAYOUTS)

    @case
    def losses_norms_and_weights_of_20_steps_are_those_of_peft():
        for name, layouts in LAYOUTS.items():
            folder = references / name
            reference = json.loads((folder / "reference.json").read_text())
            for layout, (ranks, changes) in layouts.items():
                out = scratch / f"{name}-{layout}"
                value = config(folder / "model", folder / "data" / "train.bin", out, threads=1,
                               adapter=str(folder / "adapter"))
                value |= {"gradient_accumulation_steps":
                          accumulation_of_ranks(changes, ranks, 2), **changes}
                must(ftrun("--config", write_config(scratch, value), "--nproc", ranks))
                loss = require_near("loss", [m["loss"] for m in steps(out)],
                                    reference["losses"], 1e-5)
                norm = require_near("gradient norm", [m["grad_norm"] for m in steps(out)],
                                    reference["grad_norms"], 5e-5)
                trained, before = exported_adapter(out), load_file(
                    folder / "adapter" / "adapter_model.safetensors")
                require_near_tensors(
                    trained, load_file(folder / "trained" / "adapter_model.safetensors"), 1e-4)
                assert (all(np.abs(trained[tensor] - values).max() > 1e-3
                            for tensor, values in before.items())), "something does not train"
                print(f"{name}, {layout}: loss within {loss:.1e}, gradient norm within {norm:.1e}",
                      flush=True)

    @case
    def peft_loads_what_was_trained_and_merges_as_ftrun_does():
        for name in ("dora", "dora_dropout"):
            merged, adapter = (scratch / f"merged-{name}",
                               scratch / f"{name}-one" / "export" / "adapter")
            must(ftrun("convert", scratch / f"{name}-one", "--merge", "--out", merged, "--dtype",
                       "fp32"))
            must(ftrun("convert", adapter, "--merge", "--out", scratch / f"again-{name}", "--dtype",
                       "fp32"))
            one, other = load_file(merged / "model.safetensors"), load_file(
                scratch / f"again-{name}" / "model.safetensors")
            assert same_tensors(one, other)
            plain = logits_of(model_of(references / name / "model"))
            peft_logits = logits_of(
                model_of(references / name / "model", references / name / "trained"))
            model = model_of(references / name / "model", adapter)
            logits = logits_of(model)
            learned = (peft_logits - plain).abs().max().item()
            assert (peft_logits - logits).abs().max().item() < 1e-2 * learned, (
                name, "trained weights")
            alone = logits_of(model_of(merged))
            assert (alone - logits).abs().max().item() < 1e-4 * learned, (
                name, "logits of the merged model")
            expected = model.merge_and_unload().state_dict()
            apart = max((torch.from_numpy(one[tensor]) - values).abs().max().item()
                        for tensor, values in expected.items())
            assert (apart < 2e-6 and len(one) == len(expected)), (name, apart, len(one),
                                                                  len(expected))

    job = ShardedJob(scratch / "job", vocab_size=500)

    @case
    def a_new_adapter_begins_as_peft_begins_one():
        """Magnitudes are the lengths of the rows of W + scale B A, on every layout, and the model
        is the same as without them."""
        still = {"optimizer": {"type": "AdamW", "params": {"lr": 0.0}}}
        base = load_file(job.model / "model.safetensors")
        for begin in (True, "orthogonal", False):
            found = {}
            for name, settings in (("dora", DORA), ("lora", DORA | {"use_dora": False})):
                job.run(f"{begin}-{name}",
                        **(job.settings(1) | still
                           | {"adapter": settings | {"init_lora_weights": begin}}))
                found[name] = job.out(f"{begin}-{name}")
            require_near(f"begin {begin}", [steps(found["dora"])[0]["loss"]],
                         [steps(found["lora"])[0]["loss"]], 1e-6)
            adapter = exported_adapter(found["dora"])
            for tensor, weight in base.items():
                if matrices := module_matrices(adapter, tensor):
                    a, b, lengths = matrices
                    expected = np.linalg.norm(weight + 8 / 4 * (b @ a), axis=1)
                    assert np.abs(lengths / expected - 1).max() < 1e-6, tensor
        job.run("three", "--nproc", 3,
                **(job.settings(3, stage=3) | still
                   | {"adapter": DORA | {"init_lora_weights": False}}))
        one, three = exported_adapter(job.out("False-dora")), exported_adapter(job.out("three"))
        assert same_tensors(one, three)

    @case
    def tensor_ranks_train_what_one_process_trains():
        """The length of a row whose columns are divided among ranks follows from the parts of
        all ranks."""
        for dropout in (0, 0.25):
            same = {"adapter": DORA | {"init_lora_weights": False, "lora_dropout": dropout},
                    "optimizer": FAST}
            job.run(f"one-{dropout}", **(job.settings(1) | same))
            one = job.out(f"one-{dropout}")
            layouts = [("tensor", 2, {"tensor": 2}, {}),
                       ("whole tokens", 2, {"tensor": 2, "sequence": False}, {"recompute": "full"}),
                       ("copies", 4, {"tensor": 4}, {"zero_optimization": STAGE3})]
            for name, ranks, parallel, changes in layouts[:2] if dropout else layouts:
                out = f"{name}-{dropout}"
                job.run(out, "--nproc", ranks,
                        **(job.settings(1) | same | {"parallel": parallel} | changes))
                loss = require_near("loss", [m["loss"] for m in steps(job.out(out))],
                                    [m["loss"] for m in steps(one)], 1e-5)
                norm = require_near("gradient norm", [m["grad_norm"] for m in steps(job.out(out))],
                                    [m["grad_norm"] for m in steps(one)], 5e-5)
                require_near_tensors(exported_adapter(job.out(out)), exported_adapter(one), 1e-4)
                print(f"{name}, dropout {dropout}: loss within {loss:.1e}, gradient norm within "
                      f"{norm:.1e}", flush=True)

    @case
    def what_changes_no_bit_of_other_adapters_changes_none_of_these():
        usual = {"adapter": DORA | {"lora_dropout": 0.25}, "optimizer": FAST}
        job.run("two", "--nproc", 2, **(job.settings(2, stage=3) | usual))
        for name, change in (("full", {"recompute": "full"}), ("unsharded", job.settings(2))):
            job.run(name, "--nproc", 2, **(job.settings(2, stage=3) | usual | change))
            assert reproducible_metrics(job.out(name)) == reproducible_metrics(job.out("two")), name
            tensors, expected = exported_adapter(job.out(name)), exported_adapter(job.out("two"))
            assert same_tensors(tensors, expected), name

    @case
    def checkpoints_continue_bit_for_bit_and_on_other_ranks():
        saving = job.settings(2, stage=3) | {"adapter": DORA, "optimizer": FAST,
                                             "checkpoint": {"every": 1, "keep_last": 0},
                                             "train": {"steps": 8}}
        job.run("straight", "--nproc", 2, **saving)
        out = job.out("cut")
        kill_before_last_save(out, 8, lambda: start("--config", job.config("cut", **saving),
                                                    "--nproc", 2))
        job.run("cut", "--nproc", 2, "--resume", "auto", **saving)
        assert reproducible_metrics(out) == reproducible_metrics(job.out("straight"))
        straight, cut = exported_adapter(job.out("straight")), exported_adapter(out)
        assert same_tensors(straight, cut)
        copy_without_last_save(out, job.out("other"), 8)
        job.run("other", "--resume", "auto",
                **(saving | job.settings(1, stage=0) | {"train": {"steps": 8}}))
        require_near("loss", [steps(job.out("other"))[-1]["loss"]], [steps(out)[-1]["loss"]], 1e-5)
        refused = ftrun("--config",
                        job.config("other",
                                   **(saving | job.settings(1)
                                      | {"adapter": DORA | {"use_dora": False},
                                         "train": {"steps": 9}})),
                        "--resume", "auto")
        assert (refused.returncode == 2 and "config.adapter.use_dora" in refused.stdout
                + refused.stderr), refused.stderr[-2000:]

    @case
    def magnitudes_on_a_quantized_base_are_those_of_its_numbers():
        """Training and merging give the same as on an unquantized base with the same numbers."""
        section = {"type": "nf4"}
        quantized = ShardedJob(scratch / "quantized", hidden_size=128, intermediate_size=384,
                               head_dim=32)
        same = {"adapter": DORA | {"init_lora_weights": False}, "optimizer": FAST}
        quantized.run("nf4", "--nproc", 2,
                      **(quantized.settings(2, stage=3) | same | {"quantization": section}))
        plain = scratch / "dequantized"
        shutil.copytree(quantized.model, plain)
        base = {tensor: dequantized(torch.from_numpy(values), section).numpy() if values.ndim == 2
                and "_proj" in tensor else values
                for tensor, values in load_file(quantized.model / "model.safetensors").items()}
        save_file(base, plain / "model.safetensors", metadata={"format": "pt"})
        quantized.run("plain", **(quantized.settings(1) | same | {"model": {"path": str(plain)}}))
        require_near("loss", [m["loss"] for m in steps(quantized.out("nf4"))],
                     [m["loss"] for m in steps(quantized.out("plain"))], 1e-5)
        adapter = exported_adapter(quantized.out("nf4"))
        require_near_tensors(adapter, exported_adapter(quantized.out("plain")), 1e-4)
        must(ftrun("convert", quantized.out("nf4"), "--merge", "--out", scratch / "merged-nf4",
                   "--dtype", "fp32"))
        merged = load_file(scratch / "merged-nf4" / "model.safetensors")
        for tensor, weight in base.items():
            if matrices := module_matrices(adapter, tensor):
                a, b, magnitudes = matrices
                direction = weight + 8 / 4 * (b @ a)
                expected = direction * (magnitudes / np.linalg.norm(direction, axis=1))[:, None]
                assert np.abs(merged[tensor] - expected).max() < 1e-6, tensor

    @case
    def bf16_trains_as_fp32():
        """Magnitudes are not rounded to 16 bits: as exact lengths they leave the model unchanged,
        and small changes of them matter."""
        still = {"optimizer": {"type": "AdamW", "params": {"lr": 0.0}}}
        for precision in ("bf16", "fp16"):
            for begin in (True, False):
                first = {}
                for dora in (True, False):
                    name = f"still-{precision}-{begin}-{dora}"
                    adapter = DORA | {"init_lora_weights": begin, "use_dora": dora}
                    job.run(name,
                            **(job.settings(1, precision=precision) | still | {"adapter": adapter}))
                    first[dora] = steps(job.out(name))[0]["loss"]
                assert first[True] == first[False], (precision, begin, first)
            # Magnitudes are the lengths of the rows that layers read, which are rounded.
            dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
            adapter = exported_adapter(job.out(f"still-{precision}-False-True"))
            for tensor, weight in load_file(job.model / "model.safetensors").items():
                if matrices := module_matrices(adapter, tensor):
                    a, b, w = (torch.from_numpy(values).to(dtype).double()
                               for values in (*matrices[:2], weight))
                    expected = (w + 8 / 4 * (b @ a)).norm(dim=1).numpy()
                    assert np.abs(matrices[2] / expected - 1).max() < 1e-6, tensor
        for name, ranks, changes in (("fp32", 1, {}),
                                     ("bf16", 2, {"precision": "bf16", "stage": 2})):
            job.run(name, "--nproc", ranks,
                    **(job.settings(ranks, **changes) | {"adapter": DORA, "optimizer": FAST}))
        require_near("loss", [m["loss"] for m in steps(job.out("bf16"))],
                     [m["loss"] for m in steps(job.out("fp32"))], 5e-3)
        begun, fp32, bf16 = (exported_adapter(job.out(name))
                             for name in ("True-dora", "fp32", "bf16"))
        for tensor, lengths in begun.items():
            if not tensor.endswith(".lora_magnitude_vector"):
                continue
            change, other = fp32[tensor] - lengths, bf16[tensor] - lengths
            assert (np.abs(change).max() > 0.01
                    and np.abs(other).max() > 0.01), f"{tensor} does not train"
            far = np.linalg.norm(other - change) / np.linalg.norm(change)
            assert far < 0.2, f"{tensor}: {far}"

    @case
    def magnitudes_that_do_not_fit_are_refused_by_name():
        given = job.out("True-dora") / "export" / "adapter"
        vector = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"
        rows = exported_adapter(job.out("True-dora"))[vector].shape[0]
        missing = f"tensor {vector} is missing; expected shape [{rows}]"

        def refused(name, problem, change=None, file=None, use_dora=True, **settings):
            """Asserts that a folder is refused with `problem`, after `change` has changed its
            tensors or with the tensors of `file`."""
            folder = scratch / f"wrong-{name}"
            shutil.copytree(given, folder)
            adapter_config = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(
                json.dumps(adapter_config | {"use_dora": use_dora}))
            tensors = exported_adapter(job.out("True-dora") if file is None else file)
            if change:
                change(tensors)
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            process = ftrun("--config",
                            job.config(f"wrong-{name}",
                                       **(job.settings(1) | {"adapter": str(folder)} | settings)))
            must(process, 2)
            problems = problem if isinstance(problem, list) else [problem]
            expected = (f"error: {folder}: it is not an adapter of this model and config\n  "
                        + "\n  ".join(problems) +
                        "\n  remedy: give the adapter's own base model as model.path and its own "
                        "settings (adapter: FOLDER takes them)\n1 problem in the config; nothing "
                        "was started\n")
            found = process.stderr[process.stderr.index("error: "):]
            assert found == expected, f"found:\n{found}\nexpected:\n{expected}"

        def put(values):
            return lambda tensors: tensors.__setitem__(vector, values(tensors[vector]))

        def rename(tensors):
            tensors[vector + ".weight"] = tensors.pop(vector)

        vectors = {name: values.shape[0]
                   for name, values in exported_adapter(job.out("True-dora")).items()
                   if name.endswith("_vector")}
        assert len(vectors) == 21, vectors.keys()
        order = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        of_model = sorted(vectors, key=lambda name: (name.split(".layers.")[1].split(".")[0],
                                                     order.index(name.split(".")[-2])))
        refused("missing", missing, lambda tensors: tensors.pop(vector))
        refused("column", f"tensor {vector} has shape [{rows}, 1]; expected [{rows}]",
                put(lambda values: values[:, None]))
        refused("integers", f"tensor {vector} holds I32",
                put(lambda values: values.astype(np.int32)))
        refused("name", [missing, f"tensor {vector}.weight does not train in this run"], rename)
        # A tensor that is missing in every layer is reported for the first one.
        refused("none", [f"tensor {name} is missing; expected shape [{vectors[name]}] (and in 2 "
                         "more layers)"
                         for name in of_model if ".layers.0." in name], file=job.out("True-lora"))
        refused("unused", [f"tensor {name} does not train in this run (and in 2 more layers)"
                           for name in sorted(vectors) if ".layers.0." in name],
                use_dora=False)

    @case
    def gpus_are_not_refused():
        checked = ftrun("check", "--config", job.config("gpu", **job.settings(1), adapter=DORA,
                                                        device="cuda"))
        assert checked.returncode == 0, checked.stdout + checked.stderr

    run_cases()
