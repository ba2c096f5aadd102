"""Checks model folders as others publish them: quantized ones, which train as the bf16 numbers that
their codes represent, and folders that are refused or reported by name."""
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file

from runner import (Job, case, ftrun, must, preload, reproducible_metrics, run_cases, sharded_model,
                    weights_hash)

preload()
BLOCK = 48  # leaves incomplete blocks at the edges of matrices of 64 x 160
BF16 = {"torch_dtype": "bfloat16"}


def is_quantized(name):
    return "_proj." in name


def as_fp8(name, matrix):
    """Returns codes, a scale for each block, and the numbers that these represent."""
    rows, columns = (torch.arange(size) // BLOCK for size in matrix.shape)
    scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
    for r in range(scales.shape[0]):
        for c in range(scales.shape[1]):
            scales[r, c] = matrix[rows == r][:, columns == c].abs().max() / 448
    spread = scales[rows][:, columns]
    codes = (matrix / spread).to(torch.float8_e4m3fn)
    return {name: codes, f"{name}_scale_inv": scales}, codes.float() * spread


def as_int8(name, matrix):
    largest = matrix.abs().amax(1)
    codes = torch.round(matrix * (127 / largest[:, None])).to(torch.int8)
    module = name.removesuffix("weight")
    parts = {name: codes, f"{module}SCB": largest,
             f"{module}weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, codes.float() * largest[:, None] * torch.tensor(7.874015718698502e-3)


def as_nf4(name, matrix):
    """Quantizes twice: the scales minus their mean are 8-bit codes of a table."""
    table = torch.linspace(-1, 1, 16)
    blocks = matrix.flatten().view(-1, 64)
    scales = blocks.abs().amax(1)
    offset, nested_table = scales.mean(), torch.linspace(-1, 1, 256)
    nested = torch.stack([part.abs().max() for part in (scales - offset).split(16)])
    spread = nested.repeat_interleave(16)[:len(scales)]
    scale_codes = ((scales - offset) / spread).sub(nested_table[:, None]).abs().argmin(0)
    scales = nested_table[scale_codes] * spread + offset
    codes = (blocks / scales[:, None]).flatten().sub(table[:, None]).abs().argmin(0)
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16",
                        "shape": list(matrix.shape), "nested_blocksize": 16,
                        "nested_dtype": "float32", "nested_offset": offset.item()})
    pairs = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)
    parts = {name: pairs[:, None].contiguous(), f"{name}.absmax": scale_codes.to(torch.uint8),
             f"{name}.quant_map": table,
             f"{name}.nested_absmax": nested, f"{name}.nested_quant_map": nested_table,
             f"{name}.quant_state.bitsandbytes__nf4": torch.tensor(list(state.encode()),
                                                                   dtype=torch.uint8)}
    return parts, (table[codes].view(-1, 64) * scales[:, None]).view(matrix.shape)


QUANTIZED = {"fp8": ({"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK],
                      "activation_scheme": "dynamic"}, as_fp8),
             "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, as_int8),
             "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True,
                      "bnb_4bit_quant_type": "nf4"}, as_nf4)}

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    job = Job(scratch, sharded_model(scratch / "model", **BF16))
    weights = load_file(scratch / "model" / "model.safetensors")

    def quantized(name, quantization, quantize):
        """Writes a quantized folder, and one of the bf16 numbers that it represents."""
        codes, values = {}, {}
        for tensor, matrix in weights.items():
            parts, exact = quantize(tensor,
                                    matrix) if is_quantized(tensor) else ({tensor: matrix}, matrix)
            codes |= parts
            values[tensor] = exact.to(torch.bfloat16) if is_quantized(tensor) else exact
        sharded_model(scratch / f"{name}-codes", **BF16, quantization_config=quantization)
        sharded_model(scratch / f"{name}-values", **BF16)
        save_file(codes, scratch / f"{name}-codes" / "model.safetensors")
        save_file(values, scratch / f"{name}-values" / "model.safetensors")

    def check(folder, code=0, **changes):
        result = must(ftrun("check", "-q", "--config",
                            job.config("checked", model={"path": str(folder)}, **changes)), code)
        return result.stdout + result.stderr

    @case
    def quantized_models_train_as_what_their_codes_stand_for():
        for name, (quantization, quantize) in QUANTIZED.items():
            quantized(name, quantization, quantize)
            for kind in ("codes", "values"):
                job.run(f"{name}-{kind}-out", "--nproc", 2,
                        model={"path": str(scratch / f"{name}-{kind}")}, train={"steps": 3},
                        zero_optimization={"stage": 3})
            one, other = job.out(f"{name}-codes-out"), job.out(f"{name}-values-out")
            assert reproducible_metrics(one) == reproducible_metrics(other), name
            assert weights_hash(one) == weights_hash(other), name
            assert "quantization_config" not in json.loads(
                (one / "export" / "model" / "config.json").read_text())
        assert "21 of its matrices are quantized; they are read as the bf16 numbers" in check(
            scratch / "nf4-codes")

    @case
    def an_adapter_of_a_quantized_model_is_merged_into_its_numbers():
        lora = {"type": "lora", "r": 4, "lora_alpha": 8}
        for kind in ("codes", "values"):
            job.run(f"lora-{kind}", model={"path": str(scratch / f"fp8-{kind}")},
                    train={"steps": 2}, adapter=lora, checkpoint={"every": 2})
            must(ftrun("convert", job.out(f"lora-{kind}"), "--merge", "--out",
                       scratch / f"merged-{kind}"))
        merged = [load_file(scratch / f"merged-{kind}" / "model.safetensors")
                  for kind in ("codes", "values")]
        assert (merged[0].keys() == merged[1].keys()
                and all(torch.equal(tensor, merged[1][name]) for name, tensor in merged[0].items()))

    @case
    def formats_that_are_not_read_are_refused_by_name():
        for method, name in (("gptq", "GPTQ"), ("awq", "AWQ"), ("mxfp4", "MXFP4"),
                             ("compressed-tensors", "compressed-tensors")):
            folder = sharded_model(scratch / method, quantization_config={"quant_method": method})
            message = check(folder, 3)
            assert (f"{folder}/config.json: quantization_config: the weights are already "
                    f"quantized with {name}, which ftrun cannot read (it reads fp8 with scales, "
                    "and bitsandbytes); give the original model, which quantization quantizes "
                    "while it is loaded") in message, message

    @case
    def adapters_beside_and_in_the_place_of_a_model_are_reported():
        folder = scratch / "both"
        shutil.copytree(job.model, folder)
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", '
                                                    '"base_model_name_or_path": "acme/base"}')
        message = check(folder)
        assert (f"notice: model.path: {folder} also contains an adapter (adapter_config.json), "
                f"which is not read\n  remedy: to continue from it, write adapter: {folder}\n"
                ) in message, message
        (folder / "config.json").unlink()
        message = check(folder, 4)
        assert (f"error: {folder}: is an adapter (adapter_config.json), not a model\n  remedy: "
                f"write adapter: {folder} to continue from it, and its base model as model.path "
                "(its file says acme/base)\n") in message, message

    @case
    def a_file_of_a_model_is_no_model_folder():
        message = check(job.model / "config.json", 4)
        assert (f"error: {job.model}/config.json: is a file, expected a model folder\n  remedy: "
                f"name the folder that contains it, {job.model}\n") in message, message

    run_cases()
