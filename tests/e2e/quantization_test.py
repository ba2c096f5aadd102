"""Checks adapters on a quantized base: they train as PEFT trains them on the numbers that the
quantized weights represent, on any layout; a merge adds to these numbers; plans count quantized
bytes; and wrong settings are refused before anything starts."""
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from runner import (Job, ShardedJob, case, checkpoints, config, exported_adapter, ftrun,
                    kill_before_last_save, must, preload, reproducible_metrics, require_near,
                    run_cases, same_tensors, start, steps, write_config)
from safetensors.numpy import load_file, save_file

SOURCE = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(SOURCE / "tests/model"))
from quantized_reference import ALL, CASES, dequantized, write_quantized  # noqa: E402

CPU = {"device": "cpu"}
STAGE3 = {"stage": 3, "stage3_param_persistence_threshold": 0}
# Name: the number of ranks, and changes of the config.
LAYOUTS = {
    "one": (1, {}),
    "stage 3": (2, {"zero_optimization": STAGE3}),
    "stage 2, recompute": (2, {"zero_optimization": {"stage": 2, "offload_optimizer": CPU},
                               "recompute": "full"}),
    "tensor": (2, {"parallel": {"tensor": 2}}),
    "pipeline": (2, {"parallel": {"pipeline": 2}}),
    "offload": (2,
                {"zero_optimization": STAGE3 | {"offload_param": CPU, "offload_optimizer": CPU}}),
    "tensor, stage 3": (4, {"parallel": {"tensor": 2}, "zero_optimization": STAGE3}),
    "secondary shards": (4, {"zero_optimization": STAGE3 | {"zero_hpz_partition_size": 2},
                             "recompute": "full",
                             "train_micro_batch_size_per_gpu": 1,
                             "gradient_accumulation_steps": 1}),
}
EACH = {"nf4": list(LAYOUTS), "plain": ["one", "stage 3", "tensor"],
        "int8": ["one", "tensor", "pipeline", "stage 3"]}


def is_quantized(tensor, values):
    return values.ndim == 2 and tensor.split(".")[-2] in ALL


def quantized_bytes(section, elements):
    """Returns the size of records of 256 weights: their codes, plus four scales or the codes of
    four scales."""
    if section["type"] == "int8":
        return elements // 256 * (256 + 16)
    scales = 12 if section.get("double", True) else 4 * 256 // section.get("block", 64)
    return elements // 256 * (128 + scales)


with tempfile.TemporaryDirectory() as scratch:
    preload()
    scratch = pathlib.Path(scratch)
    references = scratch / "references"
    write_quantized(references)

    def settings(name, run, ranks=1, **changes):
        folder = references / name
        value = config(folder / "model", folder / "data" / "train.bin", scratch / run, threads=1,
                       adapter=str(folder / "adapter"),
                       quantization=CASES[name][3])
        # Tensor ranks and pipeline stages read the same samples.
        data = ranks // (changes.get("parallel", {}).get("tensor",
                                                         1) * changes.get("parallel",
                                                                          {}).get("pipeline", 1))
        return value | {"gradient_accumulation_steps": max(1, 2 // data)} | changes

    def train(name, run, ranks=1, *arguments, **changes):
        must(ftrun("--config", write_config(scratch, settings(name, run, ranks, **changes),
                                            f"{run}.json"), "--nproc", ranks, *arguments))
        return scratch / run

    @case
    def losses_norms_and_adapters_of_20_steps_are_those_of_peft_on_any_layout():
        for name, layouts in EACH.items():
            reference = json.loads((references / name / "reference.json").read_text())
            expected = load_file(references / name / "trained" / "adapter_model.safetensors")
            for layout in layouts:
                out = train(name, f"{name}-{layout}", LAYOUTS[layout][0], **LAYOUTS[layout][1])
                loss = require_near("loss", [m["loss"] for m in steps(out)],
                                    reference["losses"], 1e-5)
                norm = require_near("gradient norm", [m["grad_norm"] for m in steps(out)],
                                    reference["grad_norms"], 5e-5)
                trained = exported_adapter(out)
                assert set(trained) == set(expected), set(trained) ^ set(expected)
                for tensor, values in expected.items():
                    far = np.linalg.norm(trained[tensor] - values) / np.linalg.norm(values)
                    assert far <= 1e-4, f"{name}, {layout}: {tensor}: {far} from PEFT's"
                print(f"{name}, {layout}: loss within {loss:.1e}, gradient norm within {norm:.1e}",
                      flush=True)

    @case
    def the_unquantized_base_has_other_losses():
        """The previous case needs this one: alone, its equal losses would not show that the base is
        quantized."""
        plain = train("nf4", "unquantized", quantization={"type": "none"}, train={"steps": 2})
        losses = json.loads((references / "nf4" / "reference.json").read_text())["losses"]
        assert abs(steps(plain)[0]["loss"] / losses[0] - 1) > 1e-4, steps(plain)[0]["loss"]

    @case
    def any_size_is_quantized_or_refused():
        """Rows that are not whole blocks can be quantized, and so can matrices in several parts."""
        for what, sizes, section in (("rows", {"hidden_size": 96, "intermediate_size": 104,
                                               "head_dim": 24}, {"type": "nf4"}),
                                     ("parts", {"hidden_size": 576, "intermediate_size": 640,
                                                "head_dim": 144, "num_hidden_layers": 1},
                                      {"type": "nf4", "block": 128}),
                                     ("parts int8", {"hidden_size": 576, "intermediate_size": 640,
                                                     "head_dim": 144, "num_hidden_layers": 1},
                                      {"type": "int8"})):
            job = ShardedJob(scratch / what, **sizes)
            lora = {"adapter": {"r": 4, "target_modules": "all-linear"}, "quantization": section,
                    "train": {"steps": 2}}
            job.run("one", **(job.settings(1) | lora))
            job.run("two", "--nproc", 2, **(job.settings(2, stage=3) | lora))
            require_near("loss", [m["loss"] for m in steps(job.out("two"))],
                         [m["loss"] for m in steps(job.out("one"))], 1e-6)
            quantized = {tensor: torch.from_numpy(values)
                      for tensor, values in load_file(job.model / "model.safetensors").items()
                      if is_quantized(tensor, values)}
            assert what == "rows" or max(values.numel() for values in quantized.values()) > 2**18
            merged = scratch / f"merged-{what}"
            must(ftrun("convert", job.out("one"), "--merge", "--out", merged, "--dtype", "fp32"))
            adapter = exported_adapter(job.out("one"))
            found = load_file(merged / "model.safetensors")
            for tensor, values in quantized.items():
                module = f"base_model.model.{tensor.removesuffix('.weight')}"
                a, b = (adapter[f"{module}.lora_{x}.weight"].astype(np.float64) for x in "AB")
                expected = dequantized(values, section).numpy() + 8 / 4 * (b @ a)
                assert np.abs(found[tensor] - expected).max() <= 2e-7, f"{what}: {tensor}"

    @case
    def bf16_trains_as_fp32():
        train("nf4", "bf16", 2, bf16={"enabled": True}, zero_optimization=STAGE3,
              train={"steps": 8})
        require_near("loss", [m["loss"] for m in steps(scratch / "bf16")],
                     [m["loss"] for m in steps(scratch / "nf4-one")][:8], 5e-3)

    @case
    def a_killed_run_continues_bit_for_bit():
        """The base is quantized again from the model folder, before and after the kill, and on
        other ranks."""
        saving = {"zero_optimization": STAGE3, "checkpoint": {"every": 1, "keep_last": 0},
                  "train": {"steps": 8}}
        straight = train("nf4", "straight", 2, **saving)
        out = scratch / "cut"
        cut = write_config(scratch, settings("nf4", "cut", 2, **saving), "cut.json")
        kill_before_last_save(out, 8, lambda: start("--config", cut, "--nproc", 2))
        train("nf4", "cut", 2, "--resume", "auto", **saving)
        assert reproducible_metrics(out) == reproducible_metrics(straight)
        one, two = exported_adapter(straight), exported_adapter(out)
        assert same_tensors(one, two)
        other = settings("nf4", "cut", 2, **saving) | {"quantization": {"type": "int8"},
                                                       "train": {"steps": 9}}
        refused = ftrun("--config", write_config(scratch, other, "other.json"), "--nproc", 2,
                        "--resume", "auto")
        assert (refused.returncode == 2 and "config.quantization.type" in refused.stdout
                + refused.stderr), refused.stderr[-2000:]

    @case
    def a_merged_model_is_the_numbers_that_were_trained_on_with_the_adapter():
        for name in EACH:
            run = scratch / f"{name}-one"
            base, adapter = load_file(
                references / name / "model" / "model.safetensors"), exported_adapter(run)
            lora, section = json.loads(
                (references / name / "adapter" / "adapter_config.json").read_text()), CASES[name][3]
            for source, path in {"run": run, "folder": run / "export" / "adapter"}.items():
                out = scratch / f"merged-{name}-{source}"
                result = must(ftrun("convert", path, "--merge", "--out", out, "--dtype", "fp32"))
                assert f"values of their {section['type']} codes" in result.stdout, result.stdout
                merged = load_file(out / "model.safetensors")
                assert set(merged) == set(base)
                for tensor, values in base.items():
                    expected = values
                    if is_quantized(tensor, values):
                        expected = dequantized(torch.from_numpy(values), section).numpy()
                        assert np.abs(expected - values).max() > 1e-4, tensor
                    module = "base_model.model." + tensor.removesuffix(".weight")
                    if f"{module}.lora_A.weight" in adapter:
                        a, b = (adapter[f"{module}.lora_{x}.weight"].astype(np.float64)
                                for x in "AB")
                        expected = (expected
                                    + lora["lora_alpha"] / lora["r"] * (b @ a)).astype(np.float32)
                    assert np.abs(merged[tensor] - expected).max() <= 2e-7, tensor

    @case
    def an_adapter_remembers_its_base():
        """An adapter's file may name any base."""
        folder = scratch / "nf4-one" / "export" / "adapter"
        for section in ({"type": "none"}, {"type": "int8"}, {"type": "nf4", "double": False}):
            result = ftrun("check", "--config",
                           write_config(scratch, settings("nf4", "never", adapter=str(folder),
                                                          quantization=section)))
            assert (result.returncode == 0 and "was trained on a base quantized as" in result.stdout
                    + result.stderr), result.stdout + result.stderr
        same = ftrun("check", "--config",
                     write_config(scratch, settings("nf4", "never", adapter=str(folder))))
        assert (same.returncode == 0 and "was trained on a base" not in same.stdout
                + same.stderr), same.stdout + same.stderr
        for i, recorded in enumerate(('{"type":"nf4","block":255}', '{"type":"nf4","block":96}',
                                      "{}", "null", "[", '{"type":"fp4"}',
                                      '{"type":"nf4","path":"x"}')):
            forged = scratch / f"forged-{i}"
            shutil.copytree(folder, forged)
            save_file(load_file(folder / "adapter_model.safetensors"),
                      forged / "adapter_model.safetensors",
                      metadata={"format": "pt", "ftrun.base_quantization": recorded})
            refused = ftrun("convert", forged, "--merge", "--out", scratch / "never-merged")
            assert (refused.returncode == 4
                    and "ftrun.base_quantization"
                    in refused.stderr), f"{recorded}: {refused.returncode} {refused.stderr}"
            assert not (scratch / "never-merged").exists()

    @case
    def the_base_of_an_adapter_without_a_record_is_given_by_an_option():
        folder = scratch / "nf4-one" / "export" / "adapter"
        shown = must(ftrun("inspect", folder)).stdout
        assert ('{"type":"nf4","double":true,"block":64}' in shown and "lora_A.weight" in shown
                and "base_model_name_or_path" in shown), shown
        out = scratch / "nf4-one"
        shown = must(ftrun("inspect", out / "checkpoints" / checkpoints(out)[-1])).stdout
        assert ("base quantized as" in shown and '"type":"nf4"' in shown
                and "lora_alpha" in shown), shown
        silent = scratch / "silent"
        shutil.copytree(folder, silent)
        save_file(load_file(folder / "adapter_model.safetensors"),
                  silent / "adapter_model.safetensors", metadata={"format": "pt"})
        assert "(the file does not say)" in must(ftrun("inspect", silent)).stdout
        must(ftrun("convert", folder, "--merge", "--dtype", "fp32", "--out", scratch / "said"))
        must(ftrun("convert", silent, "--merge", "--dtype", "fp32", "--out", scratch / "plain"))
        must(ftrun("convert", silent, "--merge", "--dtype", "fp32", "--out", scratch / "told",
                   "--quantization", "nf4"))
        by_record, plain, by_option = (load_file(scratch / name / "model.safetensors")
                                       for name in ("said", "plain", "told"))
        assert same_tensors(by_record, by_option)
        assert by_record.keys() == plain.keys() and not same_tensors(by_record, plain)
        for words, part in ((("--quantization", "nf5"), "nf5"),
                            (("--quantization", '{"type": "nf4", "block": 96}'), "block is 96")):
            refused = ftrun("convert", silent, "--merge", "--out", scratch / "never", *words)
            assert refused.returncode == 2 and part in refused.stderr, refused.stderr
        refused = ftrun("convert", folder, "--merge", "--out", scratch / "never", "--quantization",
                        "int8")
        assert (refused.returncode == 2
                and "was trained on a base quantized as" in refused.stderr), refused.stderr
        refused = ftrun("convert", scratch / "nf4-one", "--merge", "--out", scratch / "never",
                        "--quantization", "nf4")
        assert (refused.returncode == 2
                and "is not an adapter in PEFT's layout" in refused.stderr), refused.stderr
        assert not (scratch / "never").exists()

    @case
    def plans_count_records_and_runs_allocate_what_was_planned():
        for name in EACH:
            shapes = load_file(references / name / "model" / "model.safetensors")
            quantized = sum(quantized_bytes(CASES[name][3], values.size)
                         for tensor, values in shapes.items() if is_quantized(tensor, values))
            adapter = exported_adapter(scratch / f"{name}-one")
            trained = sum(values.size for values in adapter.values())
            rest = sum(values.size for tensor, values in shapes.items()
                       if not is_quantized(tensor, values))
            memory = json.loads((scratch / f"{name}-one" / "run.json").read_text())["memory"]
            found = memory["allocated"]["device_parameters"]
            least = quantized + 4 * (rest + trained)
            assert least <= found <= 1.1 * least + 65536, (
                f"{name}: {found} bytes of parameters, expected {least} and padding")

    @case
    def wrong_settings_are_refused_by_name():
        small = Job(scratch / "small")  # hidden size 32
        lora = {"adapter": {"r": 4, "target_modules": "all-linear"}}
        nf4 = {"quantization": {"type": "nf4"}}
        model = references / "nf4" / "model"
        for what, code, changes, parts in (
                ("all", 1, nf4, ["quantized weights cannot train", "q_proj.weight"]),
                ("saved", 1, nf4 | {"adapter": {"r": 4, "modules_to_save": ["o_proj"]},
                                    "model": {"path": str(model)}},
                 ["quantized weights cannot train", "o_proj.weight"]),
                ("fp4", 1, lora | {"quantization": {"bnb_4bit_quant_type": "fp4"}}, ["fp4", "nf4"]),
                ("untyped", 1, lora | {"quantization": {"double": False}},
                 ["quantization has no type"]),
                ("both", 1, lora | {"quantization": {"type": "nf4", "load_in_8bit": True}},
                 ["load_in_8bit", "the type is nf4"]),
                ("skipped", 1,
                 lora | {"quantization": {"type": "nf4", "llm_int8_skip_modules": ["o_proj"]}},
                 ["llm_int8_skip_modules", "supported only for lm_head and embed_tokens"]),
                ("block", 1, lora | {"quantization": {"type": "nf4", "block": 96}},
                 ["block is 96", "64, 128 or 256"]),
                ("tensor", 1, lora | {"quantization": {"type": "int8"},
                                      "model": {"path": str(references / "int8" / "model")},
                                      "parallel": {"tensor": 4}},
                 ["down_proj: rows of 96 elements are not a multiple of 64",
                  "4 tensor-parallel ranks"]),
                ("disk", 3, lora | nf4 | {"model": {"path": str(model)}, "zero_optimization": {
                    "stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(scratch)}}},
                 ["quantized weights on a disk"])):
            ranks = changes.get("parallel", {}).get("tensor", 1)
            for command in (("check",), ()):
                refused = ftrun(*command, "--config", small.config(what, **changes), "--nproc",
                                ranks)
                text = refused.stdout + refused.stderr
                assert refused.returncode in (code, 1, 2), (
                    f"{what}: {refused.returncode}\n{text[-2000:]}")
                for part in parts:
                    assert part in text, f"{what}: {part!r} is not in\n{text[-2000:]}"
            assert not small.out(what).exists(), what
        broken = scratch / "broken"
        shutil.copytree(model, broken)
        weights = load_file(broken / "model.safetensors")
        weights["model.layers.1.mlp.down_proj.weight"][3, 5] = np.nan
        save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
        refused = ftrun("--config",
                        write_config(scratch, settings("nf4", "nan", model={"path": str(broken)}),
                                     "nan.json"))
        assert (refused.returncode == 4 and "layers.1.mlp.down_proj.weight: holds a number that is "
                                            "not finite" in refused.stderr), refused.stderr[-2000:]

    run_cases()
