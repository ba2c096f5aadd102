"""Reads folders of torch.distributed.checkpoint (DCP), as FSDP2 trainers and torchtitan write them:
.metadata says in which file __RANK_N.distcp, and where in it, each box of a tensor lies."""
import functools
import os
import re

from .deepspeed_state import optional_number, record_updates
from .imported_state import ImportedRun, State, StateBox, element_count
from .inert_pickle import BadFile, Inert, Tensor, TorchFile, printable, read_pickle, shown_type

MOMENT = re.compile(r"(?:.*?\.)?state\.(.+)\.(exp_avg|exp_avg_sq|step)")
GROUP = re.compile(r"(?:^|\.)param_groups(?:\.|$)")
SETTING = re.compile(r"(?:^|\.)param_groups\..+\.(betas|eps|weight_decay)(?:\.\d+)?")
NUMBERS = {"step": ("step", "global_step", "global_steps"),
           "tokens": ("ntokens_seen", "tokens_seen", "tokens"),
           "samples": ("samples", "nsamples_seen", "samples_seen"),
           "last_batch_iteration": ("last_epoch",)}
# The maximum size in bytes of an object that is read: the objects that hold these numbers are
# small.
LARGEST_OBJECT = 16 << 20


def read_dcp(folder):
    """Returns the ImportedRun of a DCP folder."""
    path = os.path.join(folder, ".metadata")
    metadata = read_pickle(path)
    if not isinstance(metadata, Inert) or metadata.made_by.name != "Metadata":
        raise BadFile(f"{path}: holds {shown_type(metadata)} instead of DCP's Metadata")
    described, stored = metadata.field("state_dict_metadata"), metadata.field("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise BadFile(f"{path}: lacks state_dict_metadata or storage_data, which locate the "
                      "tensors")
    locations = find_locations(folder, path, stored)
    run = ImportedRun("PyTorch DCP")
    steps, settings = [], {}
    for key, what in described.items():
        if not isinstance(key, str) or not isinstance(what, Inert):
            raise BadFile(f"{path}: state_dict_metadata is not a list of tensors and objects by "
                          "name")
        moment = MOMENT.fullmatch(key)
        if what.made_by.name == "BytesStorageMetadata":
            record_object(run, steps, settings, key, lambda key=key: object_at(locations, key))
            continue
        state = tensor_state(path, key, what, locations)
        if moment:
            if moment[2] == "step":
                steps.append(
                    optional_number(state.parts[0].tensor(), path) if state.parts else None)
            else:
                run.states[moment[1], moment[2]] = state
        elif len(state.parts) == 1 and element_count(state.shape) == 1 and is_number(key):
            record_number(run, key, state.parts[0].tensor().number())
        elif not GROUP.search(key):
            run.states[key, "param"] = state
    record_updates(run, steps, path)
    for name, values in settings.items():
        if all(value == values[0] for value in values):
            run.known[f"optimizer.params.{name}"] = values[0]
    if run.step is None:
        run.step = run.updates
        if run.step is not None:
            run.notes.append("the folder records no step of the trainer; the optimizer's step is "
                             "used")
    return run


def find_locations(folder, path, stored):
    """Returns {(key, offsets): (file, offset, bytes)}. An object has no offsets; () stands for
    them."""
    locations = {}
    for index, info in stored.items():
        key, offsets = (index.field("fqn"),
                        index.field("offset")) if isinstance(index, Inert) else (None, None)
        name, offset, length = (info.field(f) for f in ("relative_path", "offset",
                                                        "length")) if isinstance(info, Inert) else (
                                                            None,) * 3
        if not isinstance(key, str) or type(offset) is not int or type(length) is not int:
            raise BadFile(f"{path}: storage_data holds {shown_type(index)} and {shown_type(info)}, "
                          "which are not supported")
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name in (".", ".."):
            raise BadFile(f"{path}: {printable(key)} lies in {printable(name)!r}, which is not "
                          "a plain file name")
        if info.field("transform_descriptors"):
            raise BadFile(f"{path}: {printable(key)} is stored transformed (compressed or "
                          "encrypted), which is not supported")
        locations[key, tuple(offsets or ())] = (os.path.join(folder, name), offset, length)
    return locations


def whole_number_tuple(value, path, key):
    """Returns a shape or offsets as a tuple; raises an error for anything else."""
    if isinstance(value,
                  (tuple, list)) and len(value) <= 8 and all(type(v) is int and 0 <= v < 1 << 48
                                                             for v in value):
        return tuple(value)
    raise BadFile(f"{path}: {printable(key)} has {shown_type(value)} as its shape or offsets")


def tensor_state(path, key, what, locations):
    """Returns the State of a tensor from its metadata."""
    shape = whole_number_tuple(what.field("size"), path, key)
    parts = []
    for chunk in what.field("chunks") or []:
        begin, size = ((whole_number_tuple(chunk.field(f), path, key) for f in ("offsets", "sizes"))
                       if isinstance(chunk, Inert) else ((), None))
        if size is None or len(begin) != len(shape) or len(size) != len(shape) \
                or any(b + s > extent for b, s, extent in zip(begin, size, shape)):
            raise BadFile(f"{path}: {printable(key)} of shape {list(shape)} has a part that is not "
                          "within it")
        if element_count(size) == 0:
            continue
        location = locations.get((key, begin))
        if not location and (element_count(begin) == 0 or not any(begin)):
            location = locations.get((key, ()))
        if location is None:
            raise BadFile(f"{path}: {printable(key)}: the part at {list(begin)} is in no file")
        parts.append(StateBox(begin, size, lambda location=location, size=size: tensor_at(
            location, key, size)))
    return State(shape, shape, parts)


@functools.lru_cache(maxsize=4)
def tensor_at(location, key, size):
    """Returns a tensor, whose elements are read piece by piece. The last tensors are cached, so
    that their checksums are computed only once."""
    file = TorchFile(*location)
    tensor = file.value()
    if not isinstance(tensor, Tensor):
        raise BadFile(f"{file.location}: {printable(key)} is {shown_type(tensor)} instead of a "
                      "tensor")
    if tuple(tensor.shape) != tuple(size):
        raise BadFile(f"{file.location}: {printable(key)} has shape {list(tensor.shape)}, "
                      f".metadata says {list(size)}")
    return tensor


def object_at(locations, key):
    """Returns an object of the folder; None if it is missing or too large to be a number."""
    location = locations.get((key, ()))
    return TorchFile(*location).value() if location and location[2] <= LARGEST_OBJECT else None


# ---- numbers ----


def is_number(key):
    """Returns whether a key names one of the NUMBERS."""
    return any(key.split(".")[-1] in names for names in NUMBERS.values())


def record_number(run, key, value):
    """Records a number of the run by its key."""
    if type(value) not in (int, float):
        return
    for ours, names in NUMBERS.items():
        if key.split(".")[-1] not in names:
            continue
        if ours == "last_batch_iteration":
            # A scheduler that is stepped after each update already stands at the next batch.
            run.scheduler[ours] = int(value) - 1
        elif getattr(run, ours) is None:
            setattr(run, ours, int(value))


def record_object(run, steps, settings, key, read):
    """Records an object that holds a step, a setting or a number. `read` returns the object."""
    moment = MOMENT.fullmatch(key)
    if moment and moment[2] == "step":
        steps.append(optional_number(read(), key))
    elif match := SETTING.fullmatch(key) or SETTING.search(key):
        record_setting(settings, match[1], read())
    elif GROUP.search(key):
        groups = read()
        for group in groups if isinstance(groups, list) else []:
            for name in ("betas", "eps", "weight_decay"):
                if isinstance(group, dict) and name in group:
                    record_setting(settings, name, group[name])
    elif is_number(key):
        value = read()
        record_number(run, key, value.number() if isinstance(value, Tensor) and value.elements == 1
                    else value)


def record_setting(settings, name, value):
    """Records a setting of the optimizer, if its value has the expected type."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    if all(type(part) in (int, float)
           for part in parts) and (name == "betas") == isinstance(value, (tuple, list)):
        settings.setdefault(name, []).append([float(p) for p in parts] if name == "betas"
                                             else float(value))
