#!/usr/bin/env python3
"""Writes a trained model as a GGUF file, for llama.cpp, Ollama and others that read it.

  scripts/export_gguf.py runs/mine --out mine.gguf
  scripts/export_gguf.py MODEL_FOLDER --out mine-q8.gguf --type q8_0

Reads a run's exported model (RUN/export/model) or any model folder of a family that is handed over: llama, mistral,
qwen2, qwen3. An adapter is merged first (ftrun convert RUN --merge --out FOLDER). The file gets the weights, the
tokenizer, its special tokens and the chat template; a Modelfile for Ollama is written beside it.

The file is proven before it gets its name: the package gguf reads every tensor back, and llama.cpp (the package xllamacpp,
which scripts/setup.sh installs) must give the model's own token ids, chat layout and next-token probabilities. Where that
package is not installed the line at the end says so. What is not right is not written. Nothing that is there is replaced.
"""
import argparse
import errno
import json
import os
import shutil
import sys

if __name__ == "__main__":
    import environment

    environment.need("numpy", "gguf", "safetensors", "transformers", "torch")

import numpy as np

import script_errors
from gguf_export import proof
from gguf_export.architectures import Tensors, read_config, write_settings
from gguf_export.vocabulary import load_tokenizer, write_vocabulary
from own_output import sync_folder
from script_errors import UserError
from text_files import refuse_pointers
from training_data import hub

FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}


def model_folder(path):
    """The folder to read: of a run, what it exported."""
    if os.path.isfile(os.path.join(path, "config.json")):
        return path
    exported = os.path.join(path, "export", "model")
    if os.path.isfile(os.path.join(exported, "config.json")):
        return exported
    for adapter in (path, os.path.join(path, "export", "adapter")):
        if os.path.isfile(os.path.join(adapter, "adapter_config.json")):
            raise UserError(f"{adapter}: is an adapter; merge it with its base first: ftrun convert {path} --merge --out FOLDER")
    raise UserError(f"{path}: is neither a model folder nor a run that exported one" if os.path.isdir(path) else f"{path}: no such folder")


def tensor_type(name, shape, wanted):
    """Vectors stay fp32, as llama.cpp computes with them; rows that blocks of 32 do not divide stay f16."""
    import gguf
    if len(shape) == 1:
        return gguf.GGMLQuantizationType.F32
    if wanted == "q8_0" and shape[-1] % 32 != 0:
        return gguf.GGMLQuantizationType.F16
    return gguf.GGMLQuantizationType[wanted.upper()]


def check_range(name, values, kind):
    if kind.name in ("F16", "Q8_0") and np.abs(values).max() > 65504:
        raise UserError(f"tensor {name} holds a value above 65504, which f16 has not; --type bf16 or f32")


def add_tensor_infos(writer, tensors, wanted):
    """Announces every tensor; the bytes that they take."""
    import gguf
    total = 0
    for name in tensors.names():
        shape = tensors.shape(name)
        kind = tensor_type(name, shape, wanted)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // block * block_bytes
        stored = shape if kind == gguf.GGMLQuantizationType.F32 else (*shape[:-1], shape[-1] // block * block_bytes)
        writer.add_tensor_info(name, stored, np.dtype(np.float32 if kind == gguf.GGMLQuantizationType.F32 else np.uint8), size, kind)
        total += size
    return total


def write_tensors(writer, tensors, wanted):
    """One tensor in memory at a time."""
    import gguf
    for name in tensors.names():
        values = tensors.values(name)
        kind = tensor_type(name, values.shape, wanted)
        check_range(name, values, kind)
        writer.write_tensor_data(np.ascontiguousarray(gguf.quants.quantize(values, kind)))


def write_gguf(path, folder, config, tensors, kinds):
    import gguf
    writer = gguf.GGUFWriter(path, tensors.architecture)
    try:
        writer.add_name(os.path.basename(os.path.realpath(folder)))
        writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[kinds]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        write_settings(writer, config, os.path.join(folder, "config.json"))
        special = write_vocabulary(writer, folder, config["vocab_size"])
        require_space(path, add_tensor_infos(writer, tensors, kinds))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        write_tensors(writer, tensors, kinds)
    except OSError as error:
        if error.errno is None:  # numpy's, when not all bytes were written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) from None
        raise
    finally:
        writer.close()
    return special


def require_space(path, size):
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < size:
        raise OSError(errno.ENOSPC, f"{size / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free", path)


def modelfile(name, folder, special, config):
    """For `ollama create`: the chat template is in the file; generation ends at the end-of-text token."""
    lines = [f"# ollama create NAME -f {name}.Modelfile", f"FROM ./{name}", f"PARAMETER num_ctx {min(config['max_position_embeddings'], 8192)}"]
    end = end_token(folder, special)
    return "\n".join(lines + ([f"PARAMETER stop {end}"] if end else [])) + "\n"


def end_token(folder, special):
    token = load_tokenizer(folder).eos_token
    return json.dumps(token, ensure_ascii=False) if token and "eos" in special.special_token_ids else ""


def refuse_existing(*paths):
    for path in paths:
        if os.path.lexists(path):
            raise UserError(f"{path}: is there already, and is not replaced; name another file, or move it away")


def quiet_transformers():
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def export(a):
    folder = model_folder(hub.find(a.model, "model", print))
    quiet_transformers()
    config = read_config(folder)
    out, beside = a.out, a.out + ".Modelfile"
    refuse_existing(out, beside)
    place = os.path.dirname(os.path.abspath(out))
    os.makedirs(place, exist_ok=True)
    tensors = Tensors(folder, config)
    refuse_pointers([os.path.join(folder, "tokenizer.json")])
    part = os.path.join(place, f".{os.path.basename(out)}.{os.getpid()}.part")
    try:
        special = write_gguf(part, folder, config, tensors, a.type)
        proof.compare_tensors(part, tensors, lambda name: tensor_type(name, tensors.shape(name), a.type))
        said = (proof.compare_with_llama_cpp(part, folder, a.type) if proof.has_llama_cpp() else
                "not tried in llama.cpp: the package xllamacpp is not installed (scripts/setup.sh)")
        os.link(part, out)  # fails where a file of that name has come meanwhile
    except FileExistsError:
        refuse_existing(out)
        raise
    except UserError as error:
        raise type(error)(str(error).replace(part, out)) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, out if error.filename == part else error.filename) from None
    finally:
        if os.path.lexists(part):
            os.remove(part)
    with open(beside, "x", encoding="utf-8") as file:
        file.write(modelfile(os.path.basename(out), folder, special, config))
    sync_folder(place)
    print(f"{out}: {os.path.getsize(out) / 1e6:.1f} MB, {a.type}, {len(tensors.names())} tensors, each read back")
    print(said)
    print(f"{beside}: ollama create NAME -f {os.path.basename(beside)}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run, or a model folder")
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--type", choices=list(FILE_TYPES), default="f16", help="how matrices are stored (default: f16)")
    script_errors.add_debug(parser)
    a = parser.parse_args(arguments)
    return script_errors.run("export_gguf", lambda: export(a))


if __name__ == "__main__":
    sys.exit(main())
