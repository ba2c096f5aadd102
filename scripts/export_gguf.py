#!/usr/bin/env python3
"""Writes a trained model as a GGUF file, for llama.cpp, Ollama and other programs that read GGUF.

  scripts/export_gguf.py runs/mine --out mine.gguf
  scripts/export_gguf.py MODEL_FOLDER --out mine-q8.gguf --type q8_0

The script reads a run's exported model (RUN/export/model) or any model folder of a supported
family. These are all families that ftrun trains except opt, with the settings that llama.cpp
supports (docs/checkpoint.md). The file contains the weights, the tokenizer, its special tokens and
the chat template. A Modelfile for Ollama is written next to the file.

An adapter becomes a separate file, to be used with the file of its base model (llama-server
--lora), if llama.cpp applies everything that the adapter holds. Otherwise merge it first
(ftrun convert RUN --merge --out FOLDER).

The file is checked before it gets its name: the package gguf reads every tensor back, and llama.cpp
(the package xllamacpp, which scripts/setup.sh installs) must give the model's own token ids, text
of a chat and next-token probabilities. If xllamacpp, or peft for an adapter, is not installed, the
last line says that llama.cpp did not check the file. A file that fails a check is not written.
Existing files are never replaced.
"""
import argparse
import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import sys

if __name__ == "__main__":
    import environment

    environment.require_packages("numpy", "gguf", "safetensors", "transformers", "torch")

import numpy as np

import script_errors
from gguf_models import adapter, verify_export
from gguf_models.families import FAMILIES
from gguf_models.model_folder import Tensors, read_config, write_settings
from gguf_models.vocabulary import load_tokenizer, write_vocabulary
from output_mark import move_into_place, sync, sync_folder
from script_errors import UserError
from text_files import refuse_pointers
from training_data import hub

NOT_CHECKED = ("llama.cpp did not check the file: the package xllamacpp, or for an adapter peft, "
               "is not installed (scripts/setup.sh installs both)")
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}


def find_export(path):
    """Returns (the folder to read, whether it holds an adapter); for a run's folder, its export."""
    candidates = ((path, "config.json", False),
                  (os.path.join(path, "export", "model"), "config.json", False),
                  (path, adapter.CONFIG, True),
                  (os.path.join(path, "export", "adapter"), adapter.CONFIG, True))
    for folder, name, is_adapter in candidates:
        if os.path.isfile(os.path.join(folder, name)):
            return folder, is_adapter
    raise UserError(f"{path}: is neither a model folder nor a run that exported one"
                    if os.path.isdir(path) else f"{path}: no such folder")


def tensor_type(name, shape, file_type):
    """Returns the GGUF type of a tensor. Vectors, norms of heads and position embeddings stay fp32,
    because llama.cpp computes with them in fp32. A matrix whose rows cannot be divided into blocks
    of 32 is stored as f16."""
    import gguf
    if len(shape) == 1 or name.endswith("_norm.weight") or name == "position_embd.weight":
        return gguf.GGMLQuantizationType.F32
    if file_type == "q8_0" and shape[-1] % 32 != 0:
        return gguf.GGMLQuantizationType.F16
    return gguf.GGMLQuantizationType[file_type.upper()]


def check_range(name, values, kind):
    """Raises an error if a value exceeds the range of its type."""
    if kind.name in ("F16", "Q8_0") and np.abs(values).max() > 65504:
        raise UserError(f"tensor {name} holds a value above 65504, the largest f16 "
                        "number; use --type bf16 or f32")


def add_tensor_infos(writer, tensors, file_type):
    """Adds the name, shape and type of every tensor; returns the bytes of all tensors."""
    import gguf
    total = 0
    for name in tensors.names():
        shape = tensors.shape(name)
        kind = tensor_type(name, shape, file_type)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // block * block_bytes
        if kind == gguf.GGMLQuantizationType.F32:
            stored, stored_dtype = shape, np.dtype(np.float32)
        else:
            stored = (*shape[:-1], shape[-1] // block * block_bytes)
            stored_dtype = np.dtype(np.uint8)
        writer.add_tensor_info(name, stored, stored_dtype, size, kind)
        total += size
    return total


def write_tensors(writer, tensors, file_type):
    """Writes the tensors; only one at a time is in memory."""
    import gguf
    for name in tensors.names():
        values = tensors.values(name)
        kind = tensor_type(name, values.shape, file_type)
        check_range(name, values, kind)
        writer.write_tensor_data(np.ascontiguousarray(gguf.quants.quantize(values, kind)))


def write_model(path, folder, config, tensors, file_type):
    """Writes the file of a model; returns its special tokens."""
    with open_writer(path, tensors.architecture) as writer:
        writer.add_name(os.path.basename(os.path.realpath(folder)))
        add_file_type(writer, file_type)
        write_settings(writer, config, os.path.join(folder, "config.json"))
        special = write_vocabulary(writer, folder, config["vocab_size"])
        write_contents(writer, path, tensors, file_type)
    return special


def write_adapter(path, tensors):
    """Writes the file of an adapter, in fp32."""
    with open_writer(path, tensors.architecture) as writer:
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", tensors.alpha)
        add_file_type(writer, "f32")
        write_contents(writer, path, tensors, "f32")


def add_file_type(writer, file_type):
    """Writes the keys that name the type of matrices."""
    import gguf
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[file_type]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def write_contents(writer, path, tensors, file_type):
    """Writes the header, the keys and the tensors."""
    require_space(path, add_tensor_infos(writer, tensors, file_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    write_tensors(writer, tensors, file_type)


@contextlib.contextmanager
def open_writer(path, architecture):
    """Yields a writer of a GGUF file; a failed write raises OSError with its number."""
    import gguf
    writer = gguf.GGUFWriter(path, architecture)
    try:
        yield writer
    except OSError as error:
        if error.errno is None:  # numpy raises this if not all bytes were written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) from None
        raise
    finally:
        writer.close()


def require_space(path, size):
    """Raises OSError if the disk of a path has less than `size` free bytes."""
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < size:
        raise OSError(errno.ENOSPC, f"{size / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free",
                      path)


def modelfile_text(name, source, lines):
    """Returns a Modelfile for `ollama create`; the chat template is in the model's file."""
    return "\n".join([f"# ollama create NAME -f {shlex.quote(name + '.Modelfile')}",
                      f"FROM {source}", *lines]) + "\n"


def modelfile_parameters(folder, special, config):
    """Returns the lines of a Modelfile that set the context length, and the token at which
    generation ends."""
    positions = FAMILIES[config["model_type"]].key("context_length")
    end = end_token(folder, special)
    lines = [f"PARAMETER num_ctx {min(config[positions], 8192)}"]
    return lines + ([f"PARAMETER stop {end}"] if end else [])


def end_token(folder, special):
    """Returns the end-of-text token as JSON; "" if the file names none."""
    token = load_tokenizer(folder).eos_token
    known = token and "eos" in special.special_token_ids
    return json.dumps(token, ensure_ascii=False) if known else ""


def refuse_existing(*paths):
    """Raises an error if one of the paths exists."""
    for path in paths:
        if os.path.lexists(path):
            raise UserError(f"{path}: exists already and is not replaced; name another file, or "
                            "move it away")


def silence_transformers():
    """Turns off transformers' warnings and progress bars."""
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def export(options):
    """Runs the command for a model or an adapter."""
    folder, is_adapter = find_export(hub.find_snapshot(options.model, "model", print))
    silence_transformers()
    if is_adapter:
        export_adapter(options, folder)
    else:
        export_model(options, folder)


def export_model(options, folder):
    """Exports a model folder."""
    config = read_config(folder)
    with Publication(options.out) as output:
        tensors = Tensors(folder, config)
        refuse_pointers([os.path.join(folder, "tokenizer.json")])
        special = write_model(output.part, folder, config, tensors, options.type)
        verify_export.compare_tensors(output.part, tensors,
                              lambda name: tensor_type(name, tensors.shape(name), options.type))
        result = (verify_export.compare_with_llama_cpp(output.part, folder, options.type)
                  if verify_export.has_llama_cpp() else NOT_CHECKED)
        output.modelfile = modelfile_text(output.name, f"./{output.name}",
                                          modelfile_parameters(folder, special, config))
    output.print_summary(options.type, tensors)
    if tensors.left_out:
        print(f"the file holds only the decoder, without {tensors.left_out} tensors of other "
              "parts; to convert those, use llama.cpp's convert_hf_to_gguf.py --mmproj "
              f"{shlex.quote(folder)}")
    print(result)


def export_adapter(options, folder):
    """Exports an adapter for use with the GGUF file of its base. The base is written too, to test
    the adapter with it, and then removed."""
    base = find_base(options, folder)
    config = read_config(base)
    with Publication(options.out) as output:
        tensors = adapter.AdapterTensors(folder, config)
        write_adapter(output.part, tensors)
        verify_export.compare_tensors(output.part, tensors,
                              lambda name: tensor_type(name, tensors.shape(name), "f32"))
        result = NOT_CHECKED
        if verify_export.has_llama_cpp() and verify_export.has_peft():
            base_part = output.another_part()
            write_model(base_part, base, config, Tensors(base, config), options.type)
            result = verify_export.compare_with_llama_cpp(base_part, base, options.type,
                                                  (output.part, folder))
        output.modelfile = modelfile_text(output.name, "BASE.gguf", [f"ADAPTER ./{output.name}"])
    output.print_summary("f32", tensors)
    print(f"to export its base: scripts/export_gguf.py {shlex.quote(base)} --out BASE.gguf; to "
          f"serve both: llama-server -m BASE.gguf --lora {shlex.quote(options.out)}")
    print(result)


def find_base(options, folder):
    """Returns the folder of an adapter's base model."""
    base = hub.find_snapshot(options.base or adapter.base_of(folder), "model", print)
    if not os.path.isfile(os.path.join(base, "config.json")):
        raise UserError(f"{base}: is not a model folder, but the adapter {folder} names it as its "
                        "base model; give --base FOLDER")
    return base


class Publication:
    """Publishes an output file and its Modelfile together. Both get their names only after both are
    complete on the disk. If one of them cannot be written, or a signal ends the script, neither
    remains."""

    def __init__(self, out):
        self.out, self.modelfile_path = out, out + ".Modelfile"
        self.name = os.path.basename(out)
        self.folder = os.path.dirname(os.path.abspath(out))
        self.modelfile = ""
        self.parts, self.handlers = [], {}
        # While files are renamed and temporary files removed, a signal is only recorded.
        self.is_closing, self.ended_by = False, None

    def another_part(self):
        """Returns the path of a temporary file that is removed at the end."""
        number = f".{len(self.parts)}" if self.parts else ""
        self.parts.append(os.path.join(self.folder, f".{self.name}.{os.getpid()}{number}.part"))
        return self.parts[-1]

    def __enter__(self):
        refuse_existing(self.out, self.modelfile_path)
        os.makedirs(self.folder, exist_ok=True)
        self.part = self.another_part()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.handlers[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number, _):
        self.ended_by = number
        if not self.is_closing:
            self._raise_for_signal()

    def _raise_for_signal(self):
        if self.ended_by == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.ended_by)

    def __exit__(self, kind, error, trace):
        self.is_closing = True
        try:
            if error is None:
                self._publish()
        finally:
            for part in self.parts:
                if os.path.lexists(part):
                    os.remove(part)
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
        if self.ended_by:
            self._raise_for_signal()
        if isinstance(error, UserError):
            message = str(error)
            for part in self.parts:
                message = message.replace(part, self.out)
            raise type(error)(message) from None
        if isinstance(error, OSError) and error.errno is not None and error.filename in self.parts:
            raise OSError(error.errno, error.strerror, self.out) from None

    def _publish(self):
        modelfile_part = self.another_part()
        with open(modelfile_part, "x", encoding="utf-8") as file:
            file.write(self.modelfile)
            sync(file)
        with open(self.part, "rb") as file:
            os.fsync(file.fileno())
        published = []
        try:
            for part, name in ((modelfile_part, self.modelfile_path), (self.part, self.out)):
                move_into_place(part, name)
                published.append(name)
            sync_folder(self.folder)
        except BaseException as error:
            for name in published:
                os.remove(name)
            if isinstance(error, FileExistsError):  # another process has made a file of that name
                refuse_existing(self.out, self.modelfile_path)
            raise

    def print_summary(self, kind, tensors):
        """Prints the size of the file, and how to use the Modelfile."""
        print(f"{self.out}: {os.path.getsize(self.out) / 1e6:.1f} MB, {kind}, "
              f"{len(tensors.names())} tensors, each read back")
        print(f"{self.modelfile_path}: ollama create NAME -f "
              f"{shlex.quote(os.path.basename(self.modelfile_path))}")


def main(arguments=None):
    """Runs the script; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run, a model folder or an adapter")
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--base", help="the folder of an adapter's base model (default: the one "
                                       "that the adapter names)")
    parser.add_argument("--type", choices=list(FILE_TYPES), default="f16",
                        help="the type in which matrices are stored (default: f16)")
    script_errors.add_debug(parser)
    options = parser.parse_args(arguments)
    return script_errors.run("export_gguf", lambda: export(options))


if __name__ == "__main__":
    sys.exit(main())
