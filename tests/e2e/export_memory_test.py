"""Checks that writing a model needs the same memory for a large model as for a small one: with
`convert --out`, with `convert --merge`, and with the export at the end of a run, in addition to the
memory for training."""
import json
import pathlib
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

from runner import BINARY, Job, case, peak_kib, run_cases, tiny_model, tiny_weights

VOCABULARIES = {"small": 400, "large": 600_000}  # two matrices of 77 MB in the large one
# Pieces of 1 Mi elements (4 MiB each), as they are read and as they are written, and pages of files
# in between. This is less than one matrix.
MOST_KIB = 64 << 10


def adapter_of(folder, model):
    """Writes an adapter in PEFT's layout."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        "base_model_name_or_path": str(model)}))
    random = np.random.default_rng(1)
    save_file({f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight":
               random.standard_normal(shape).astype(np.float32) for layer in range(2)
               for part, shape in (("A", (2, 32)), ("B", (32, 2)))},
              folder / "adapter_model.safetensors")
    return folder


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    weights = {size: tiny_weights(vocabulary=vocabulary)
               for size, vocabulary in VOCABULARIES.items()}
    models = {size: tiny_model(scratch / f"{size}-model", weights[size], vocab_size=vocabulary)
              for size, vocabulary in VOCABULARIES.items()}
    jobs = {size: Job(scratch, model) for size, model in models.items()}

    def trained(size, **changes):
        """Trains one step on one rank, which is this process alone. Returns its peak memory in KiB,
        and its folder."""
        name = f"{size}-{'-'.join(changes)}"
        config = jobs[size].config(name, train={"steps": 1}, data={"sequence_length": 8},
                                   train_micro_batch_size_per_gpu=1,
                                   gradient_accumulation_steps=1, **changes)
        return peak_kib(BINARY, "--config", config, "--nproc", 1), jobs[size].out(name)

    def require_no_growth(what, peaks):
        more = peaks["large"] - peaks["small"]
        print(f"  {what}: {peaks['small']} KiB, {more} KiB more for the large model", flush=True)
        assert more < MOST_KIB, f"{what}: {more} KiB more for a model of 154 MB"

    @case
    def an_export_of_a_run_or_checkpoint_needs_the_same_memory_for_each_size():
        beside, peaks = {}, {}
        for size in VOCABULARIES:
            without, _ = trained(size, export={"enabled": False})
            with_export, out = trained(size)
            beside[size] = with_export - without
            exported = out / "export" / "model" / "model.safetensors"
            peaks[size] = peak_kib(BINARY, "convert", out, "--out", scratch / f"{size}-converted")
            assert exported.read_bytes() == (
                scratch / f"{size}-converted" / "model.safetensors").read_bytes()
        require_no_growth("the export at the end of a run", beside)
        require_no_growth("convert --out", peaks)

    @case
    def a_merge_needs_the_same_memory_for_each_size():
        peaks = {}
        for size in VOCABULARIES:
            adapter, merged = adapter_of(scratch / f"{size}-adapter",
                                         models[size]), scratch / f"{size}-merged"
            peaks[size] = peak_kib(BINARY, "convert", adapter, "--merge", "--out", merged)
            tensors = load_file(merged / "model.safetensors")
            assert tensors.keys() == weights[size].keys()
            changed = {name for name, values in tensors.items()
                       if not np.array_equal(values, weights[size][name])}
            assert (changed == {f"model.layers.{layer}.self_attn.q_proj.weight"
                                for layer in range(2)}), changed
        require_no_growth("convert --merge", peaks)

    run_cases()
