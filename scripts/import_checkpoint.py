#!/usr/bin/env python3
"""Reads a checkpoint of DeepSpeed (ZeRO stages 1 to 3, universal) or of PyTorch's DCP (FSDP2,
torchtitan) and writes its weights, Adam's moments and numbers as safetensors, from which `ftrun
convert` makes a checkpoint of a run:

  scripts/import_checkpoint.py out/global_step500 --model models/base --out imported
  ftrun convert imported --run runs/mine
  ftrun --config mine.yaml --resume auto            # output_dir: runs/mine

No code in the checkpoint is run, and neither DeepSpeed nor torch is needed. Only a few MiB
of the checkpoint are in memory at a time."""
import argparse
import json
import os
import re
import shlex
import shutil
import struct
import sys

if __name__ == "__main__":
    import environment

    environment.require_packages("numpy", "xxhash")

from checkpoint_import.dcp_state import read_dcp
from checkpoint_import.deepspeed_state import read_universal, read_zero
from checkpoint_import.imported_state import KINDS, element_count
from checkpoint_import.inert_pickle import OPEN_FILES, BadFile, TorchFile, printable
from output_mark import new_folder, resolve_output
import script_errors
from script_errors import MachineError, UserError
from text_files import read_text, refuse_pointers

LARGEST_FILE = 4 << 30
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
            "_forward_module"}
PREFIXES = {"model", "base_model", "app", "state_dict", "trainer"}
ROOT, HEAD, EMBEDDING = "model.", "lm_head.weight", "model.embed_tokens.weight"
FIRST_LAYER = re.compile(r"((?:.*\.)?)layers\.0\.input_layernorm\.weight")
NOT_WEIGHTS = (".inv_freq", ".masked_bias")
MAX_NAMES = 20  # in a message


# ---- reading ----


def open_checkpoint(folder, tag):
    """Reads the checkpoint, in any known format, in the folder or in the folder that its file
    `latest` names."""
    if not os.path.isdir(folder):
        raise UserError(f"{folder}: is not a folder")
    if os.path.exists(os.path.join(folder, ".metadata")):
        return read_dcp(folder)
    if os.path.isdir(os.path.join(folder, "zero")):
        return read_universal(folder)
    if any(name.endswith("_optim_states.pt") for name in os.listdir(folder)):
        return read_zero(folder)
    if any(name.endswith("_model_states.pt") for name in os.listdir(folder)):
        raise UserError(f"{folder}: holds *_model_states.pt but no *_optim_states.pt: the "
                        "optimizer's state was not saved in its own file (ZeRO stage 0), or is "
                        "missing; train one step at ZeRO stage 1 and save again")
    inner = tagged_folder(folder, tag)
    if inner is None:
        raise UserError(f"{folder}: holds no checkpoint of DeepSpeed (*_optim_states.pt, zero/, "
                        "latest) or DCP (.metadata)")
    return open_checkpoint(inner, None)


def tagged_folder(folder, tag):
    """Returns the folder of the checkpoint that `tag` or the file `latest` names; None if there is
    neither."""
    names = [tag] if tag else []
    for pointer in ("latest", "latest_universal"):
        path = os.path.join(folder, pointer)
        if not names and os.path.exists(path):
            with open(path, "rb") as file:
                names.append(file.read(4096).decode("utf-8", errors="replace").strip())
    if not names:
        return None
    if not re.fullmatch(r"[\w.+=-]+", names[0]) or names[0] in (".", ".."):
        raise UserError(f"{folder}: the tag {printable(names[0])!r} is not a plain folder name")
    inner = os.path.join(folder, names[0])
    if not os.path.isdir(inner):
        raise UserError(f"{folder}: its newest checkpoint is called {names[0]!r}, which does not "
                        "exist; name another one with --tag")
    return inner


# ---- names ----


def safetensors_shapes(path):
    """Returns {name: shape} of the tensors in a safetensors file."""
    refuse_pointers([path])
    with open(path, "rb") as file:
        head = file.read(8)
        size = struct.unpack("<Q", head)[0] if len(head) == 8 else 1 << 62
        if size > 100_000_000 or size > os.path.getsize(path):
            raise UserError(f"{path}: is not a safetensors file")
        try:
            header = json.loads(file.read(size))
            return {name: tuple(entry["shape"]) for name, entry in header.items()
                    if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: its header is damaged") from None


def weight_files(folder):
    """Returns the files that hold the model's tensors; the folder may contain other *.safetensors
    files."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(os.path.join(folder, "model.safetensors")):
        return ["model.safetensors"]
    if not os.path.exists(index):
        return sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{index}: is not an index of shards; fetch it again") from None
    for name in names:
        if not isinstance(name,
                          str) or os.path.basename(name) != name or not os.path.exists(
                              os.path.join(folder, name)):
            raise UserError(f"{index}: the shard {printable(name)} is not in the folder; the "
                            "download of the model is not complete")
    return names


def with_ftrun_names(shapes):
    """Returns the shapes by the names that ftrun uses for the tensors: without wrappers, and with
    `model.` instead of the prefix of the layers (lib/model/stored_names.cc does the same in
    C++)."""
    plain = {".".join(part for part in name.split(".") if part not in WRAPPERS): shape
             for name, shape in shapes.items()}
    prefixes = {match[1] for match in map(FIRST_LAYER.fullmatch, plain) if match}
    if len(prefixes) != 1 or ROOT in prefixes:
        return plain
    prefix = prefixes.pop()
    heads = [name for name in plain if f".{name}".endswith(f".{HEAD}")]
    if len(heads) == 1:
        plain[HEAD] = plain.pop(heads[0])
    return {ROOT + name.removeprefix(prefix) if name.startswith(prefix) and name != HEAD
            else name: shape for name, shape in plain.items()}


def model_tensors(folder):
    """Returns the shapes of the model's tensors by name, without the second copy of a tied matrix,
    and whether the model is tied."""
    try:
        config = json.loads(read_text(os.path.join(folder, "config.json")))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}/config.json: cannot be read ({error}); --model must be the "
                        "model folder from which training began") from None
    shapes = {}
    for name in weight_files(folder):
        shapes.update(safetensors_shapes(os.path.join(folder, name)))
    if not shapes:
        raise UserError(f"{folder}: holds no *.safetensors file, from which the names of tensors "
                        "are read")
    shapes = with_ftrun_names(shapes)
    tied = bool(config.get("tie_word_embeddings",
                           HEAD not in shapes)) if isinstance(config, dict) else False
    if tied and HEAD in shapes:  # a tied matrix may be stored only as the head
        shapes.setdefault(EMBEDDING, shapes[HEAD])
    return {name: shape for name, shape in shapes.items()
            if not name.endswith(NOT_WEIGHTS) and not (tied and name == HEAD)}, tied


def possible_names(name):
    """Returns the names that a tensor may have in a model folder, the likeliest first."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    names = []
    while True:
        names += [".".join(parts), ".".join(["model", *parts])]
        if len(parts) < 2 or parts[0] not in PREFIXES:
            return names
        parts = parts[1:]


def model_name(name, shapes, tied):
    """Returns the tensor's name in the model folder, or None. The head of a tied model is its
    embedding."""
    names = possible_names(name)
    match = next((n for n in names if n in shapes), None)
    if match is None and tied and HEAD in names:
        match = next((n for n in shapes if n.endswith(("embed_tokens.weight", "wte.weight"))), None)
    return match


def match_names(run, shapes, tied):
    """Returns {(name in the model folder, kind): (name in the checkpoint, state)}, and the names
    that match no tensor of the model."""
    matches, unmatched = {}, []
    for (name, kind), state in run.states.items():
        target = model_name(name, shapes, tied)
        if target is None:
            unmatched.append(name)
            continue
        first = matches.get((target, kind))
        if first and is_alias(name, run, tied):
            continue
        if first and not is_alias(first[0], run, tied):
            raise UserError(f"{printable(first[0])} and {printable(name)} of the checkpoint are "
                            f"both called {target} in the model folder; remove one of them from "
                            "the checkpoint")
        matches[target, kind] = (name, state)
    for name, state in run.working.items():
        target = model_name(name, shapes, tied)
        if target is None:
            unmatched.append(name)
        elif (target, "param") not in matches:
            run.frozen.add(name)
            matches[target, "param"] = (name, state)
    for (target, _), (name, state) in matches.items():
        if tuple(state.shape) != shapes[target]:
            raise UserError(f"{printable(name)} has shape {list(state.shape)} in the checkpoint, "
                            f"but {target} has {list(shapes[target])} in the model folder; give "
                            "the model that was trained (--model)")
    return matches, sorted(set(unmatched))


def is_alias(name, run, tied):
    """Returns whether a name of the checkpoint is a second name of a tied tensor."""
    return name in run.aliases or (tied and HEAD in possible_names(name))


def list_lines(names):
    """Returns names as indented lines; names after the first are counted."""
    names = sorted(names)
    more = f"\n  and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return "".join(f"\n  {printable(name)}" for name in names[:MAX_NAMES]) + more


def require_all(matches, shapes, unmatched, run, zero_moments):
    """Adds zero moments if that was requested. Raises an error that names everything else that is
    missing."""
    missing = [name for name in shapes if (name, "param") not in matches]
    if missing:
        unmatched_text = (f"\nThe checkpoint has these tensors instead:{list_lines(unmatched)}"
                          if unmatched else "")
        raise UserError(f"the checkpoint has no weights for {len(missing)} of the model's "
                        f"{len(shapes)} tensors:{list_lines(missing)}{unmatched_text}\ngive the "
                        "model folder that was trained (--model)")
    without_moments = sorted({name for name in shapes for kind in KINDS[1:]
                              if (name, kind) not in matches})
    if without_moments and not zero_moments:
        frozen = [name for name in without_moments if matches[name, "param"][0] in run.frozen]
        all_frozen = len(frozen) == len(without_moments)
        what = "did not train (frozen), so they have" if all_frozen else "have"
        raise UserError(f"{len(without_moments)} of the model's {len(shapes)} tensors {what} no "
                        f"state of the optimizer:{list_lines(without_moments)}\nftrun trains all "
                        "tensors: --zero-moments lets these begin with moments of zero")
    for name in without_moments:
        for kind in KINDS[1:]:
            matches.setdefault((name, kind), (name, None))
    return without_moments


# ---- writing ----


def entry_name(target):
    """Returns the name of a state in the output file."""
    name, kind = target
    return f"{name}.{kind}"


def split_files(matches, shapes):
    """Divides the states into files: returns a list of states for each file, in the order in which
    the safetensors library stores them."""
    files, size = [[]], 0
    for target in sorted(matches, key=entry_name):
        state_bytes = 4 * element_count(shapes[target[0]])
        if files[-1] and size + state_bytes > LARGEST_FILE:
            files.append([])
            size = 0
        files[-1].append(target)
        size += state_bytes
    return files


def header_of(targets, shapes):
    """Returns (the header of a safetensors file, the bytes of its tensors)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for target in targets:
        size = 4 * element_count(shapes[target[0]])
        header[entry_name(target)] = {"dtype": "F32", "shape": list(shapes[target[0]]),
                                      "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def write_file(path, targets, matches, shapes):
    """Writes states to a safetensors file; states without a source are zeros."""
    head, size = header_of(targets, shapes)
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, len(head) + size)
        file.write(head)
        for target in targets:
            name, state = matches[target]
            if state is None:
                for at in range(0, 4 * element_count(shapes[target[0]]), 1 << 22):
                    file.write(bytes(min(1 << 22, 4 * element_count(shapes[target[0]]) - at)))
                continue
            for values in state.pieces(printable(name)):
                file.write(values.tobytes())


def refuse_small_disk(target, matches, shapes):
    """Raises an error if the disk has not enough free space for the output."""
    parent = target
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent) or "/"
    needed = sum(4 * element_count(shapes[name]) for name, _ in matches)
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise MachineError(f"{target}: {needed} bytes are needed, {free} are free; give an "
                           "--out on a larger disk")


def refuse_overlap(out, folder, model):
    """Refuses an output folder that contains an input, or is inside of an input."""
    target = resolve_output(out)
    for path in (folder, model):
        source = os.path.realpath(path)
        if os.path.commonpath([source, target]) in (source, target):
            raise UserError(f"--out {out}: overlaps with the input {path}; choose another folder")


def set_run_numbers(run, options):
    """Sets the numbers of the run; values on the command line take precedence. Returns the names of
    the numbers that are not known."""
    for name in ("step", "tokens", "samples"):
        if getattr(options, name) is not None:
            setattr(run, name, getattr(options, name))
    if run.step is None:
        raise UserError("the checkpoint does not say how many steps were done; give --step")
    if run.updates is None:
        run.updates = run.step - run.skipped_steps
    if run.updates > run.step:
        raise UserError(f"the optimizer has made {run.updates} updates in {run.step} steps, which "
                        "is impossible; give the number of steps with --step")
    if run.step - run.updates != run.skipped_steps:
        run.notes.append(f"the optimizer has made {run.updates} updates in {run.step} steps: "
                         f"{run.step - run.updates} count as skipped (the checkpoint says "
                         f"{run.skipped_steps})")
        run.skipped_steps = run.step - run.updates
    position = run.scheduler.get("last_batch_iteration")
    if position is not None and position != run.updates - 1:
        run.notes.append(f"the learning-rate schedule was at position {position} after "
                         f"{run.updates} updates; ftrun's schedule follows the updates "
                         f"({run.updates - 1})")
    unknown = [name for name in ("tokens", "samples") if getattr(run, name) is None]
    if not run.scheduler:
        unknown.append("scheduler position")
    if "train_batch_size" not in run.known:
        unknown.append("global batch")
    return unknown + ["data and its order", "seed"]


def utf8_path(path):
    """Returns a path for JSON, with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def import_record(run, options, folder, unknown, without_moments):
    """Returns the record of the import for import.json."""
    return {"format": "ftrun-import", "version": 1, "source": run.source,
            "path": utf8_path(os.path.realpath(folder)),
            "model": utf8_path(os.path.realpath(options.model)), "step": run.step,
            "skipped_steps": run.skipped_steps,
            "samples": run.samples, "tokens": run.tokens,
            "scheduler": {"last_batch_iteration": run.updates - 1},
            "loss_scaler": run.loss_scaler, "known": run.known, "unknown": unknown,
            "zero_moments": without_moments}


def import_checkpoint(options):
    """Runs the command."""
    TorchFile.check_sums = not options.ignore_crc
    shapes, tied = model_tensors(options.model)
    refuse_overlap(options.out, options.checkpoint, options.model)
    try:
        run = open_checkpoint(options.checkpoint, options.tag)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError,
            RecursionError) as error:
        raise BadFile(f"{options.checkpoint}: has not the structure of a checkpoint of DeepSpeed "
                      f"or DCP ({type(error).__name__}: {printable(str(error))})") from None
    matches, unmatched = match_names(run, shapes, tied)
    without_moments = require_all(matches, shapes, unmatched, run, options.zero_moments)
    unknown = set_run_numbers(run, options)
    refuse_small_disk(resolve_output(options.out), matches, shapes)
    with new_folder(options.out) as folder:
        files = split_files(matches, shapes)
        for number, targets in enumerate(files, 1):
            write_file(os.path.join(folder, f"state-{number:05}.safetensors"), targets, matches,
                       shapes)
        with open(os.path.join(folder, "import.json"), "x", encoding="utf-8") as file:
            record = import_record(run, options, options.checkpoint, unknown, without_moments)
            file.write(json.dumps(record, indent=2) + "\n")
    print(f"{options.checkpoint}: {run.source}, step {run.step}")
    if unmatched:
        print(f"{len(unmatched)} tensors of the checkpoint are not in the model and were left "
              f"out:{list_lines(unmatched)}")
    if without_moments:
        print(f"{len(without_moments)} tensors begin with moments of zero:"
              f"{list_lines(without_moments)}")
    for note in run.notes:
        print(f"note: {note}")
    print(f"not known: {', '.join(unknown)}")
    print(f"{options.out}: {len(shapes)} tensors with {', '.join(KINDS)}; next: ftrun convert "
          f"{shlex.quote(options.out)} --run RUN_FOLDER")


def parse_arguments(arguments):
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a folder of DeepSpeed (one with the file latest, or "
                                           "that of one step) or of DCP (with .metadata)")
    parser.add_argument("--model", required=True, help="the model folder from which training "
                                                       "began, which has names and shapes")
    parser.add_argument("--out", required=True, help="the folder to write")
    parser.add_argument("--tag", help="DeepSpeed: the checkpoint of the folder to read (default: "
                                      "the one that latest names)")
    parser.add_argument("--step", type=int, help="number of optimizer steps, if the checkpoint "
                                                 "does not record it")
    parser.add_argument("--tokens", type=int, help="number of trained tokens, if the checkpoint "
                                                   "does not record it")
    parser.add_argument("--samples", type=int, help="number of trained samples, if the checkpoint "
                                                    "does not record it")
    parser.add_argument("--zero-moments", action="store_true",
                        help="tensors without optimizer state (frozen ones) begin with moments of "
                             "zero")
    parser.add_argument("--ignore-crc", action="store_true",
                        help="do not compare checksums, for files that were saved without them "
                             "(torch.serialization.set_crc32_options)")
    script_errors.add_debug(parser)
    options = parser.parse_args(arguments)
    for name in ("step", "tokens", "samples"):
        if getattr(options, name) is not None and not 0 <= getattr(options, name) < 1 << 62:
            parser.error(f"--{name} must be 0 or more")
    return options


def main(arguments=None):
    """Runs the script; returns its exit code."""
    options = parse_arguments(arguments)
    try:
        return script_errors.run("import_checkpoint", lambda: import_checkpoint(options))
    finally:
        OPEN_FILES.close()


if __name__ == "__main__":
    sys.exit(main())
