"""Reads DeepSpeed's checkpoints: ZeRO stages 1 to 3, and universal checkpoints. The docstrings of
the functions say how parameters are divided among ranks."""
import os
import re

from .imported_state import ImportedRun, element_count, flat_state
from .inert_pickle import BadFile, Inert, Tensor, TorchFile, printable, shown_type

OPTIM_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
UNIVERSAL_HINT = ("make a universal checkpoint of it (python -m "
                  "deepspeed.checkpoint.ds_to_universal) and import that")


def require_entry(value, key, kind, location):
    """Returns value[key], which must be of the given type; the error names the class that was
    found."""
    if not isinstance(value, dict) or key not in value:
        raise BadFile(f"{location}: has no {printable(key)}")
    if not isinstance(value[key], kind) or isinstance(value[key], bool):
        raise BadFile(f"{location}: {printable(key)} is {shown_type(value[key])}, which is not "
                      "supported")
    return value[key]


def optional_number(value, location):
    """Returns a number, which may be stored in a tensor; None if there is none."""
    if isinstance(value, Tensor) and value.elements == 1:
        value = value.number()
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise BadFile(f"{location}: expected a number, found {shown_type(value)}")


def shapes_of(value, location):
    """Returns one dictionary {name: shape} for each group."""
    groups = [value] if isinstance(value, dict) else value
    if not isinstance(groups, list):
        raise BadFile(f"{location}: param_shapes is {shown_type(groups)}, which is not supported")
    for group in groups:
        if not isinstance(group, dict) or not all(
                isinstance(n, str) and isinstance(s, tuple)
                and all(type(d) is int and d >= 0 for d in s)
                for n, s in group.items()):
            raise BadFile(f"{location}: param_shapes does not map names to shapes")
    return groups


def flat_tensors(value, key, location):
    """Returns value[key], a list of flat tensors, one for each group."""
    tensors = require_entry(value, key, list, location)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise BadFile(f"{location}: {key} holds {shown_type(tensor)}, which is not supported")
    return tensors


# ---- the folder ----


def rank_files(folder):
    """Returns the optimizer files of all data-parallel ranks, in the order of ranks."""
    files = {}
    for name in sorted(os.listdir(folder)):
        if re.match(r"expp_rank_\d+|layer_\d+_expert_", name):
            raise BadFile(f"{folder}/{name}: belongs to an expert; mixture-of-experts models are "
                          "not supported")
        if match := OPTIM_FILE.fullmatch(name):
            if int(match[2]) > 0:
                raise BadFile(f"{folder}/{name}: belongs to a tensor-parallel or pipeline rank; "
                              f"{UNIVERSAL_HINT}")
            files[int(match[1])] = os.path.join(folder, name)
    missing = sorted(set(range(len(files))) - set(files))
    if missing:
        raise BadFile(f"{folder}: the file of rank {missing[0]} is missing, but the file of rank "
                      f"{max(files)} exists")
    return [files[rank] for rank in range(len(files))]


def model_file(folder, rank=0):
    """Returns the file with the model's state of a rank."""
    for name in (f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt"):
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise BadFile(f"{folder}: holds no file zero_pp_rank_{rank}_mp_rank_00_model_states.pt or "
                  "mp_rank_00_model_states.pt")


def read_zero(folder):
    """Returns the ImportedRun of a checkpoint of ZeRO stage 1, 2 or 3."""
    files = rank_files(folder)
    optimizers = [require_entry(TorchFile(file).value(), "optimizer_state_dict", dict, file)
                  for file in files]
    path = model_file(folder)
    model = TorchFile(path).value()
    if not isinstance(model, dict):
        raise BadFile(f"{path}: holds {shown_type(model)}")
    stage_three = "fp32_flat_groups" in optimizers[0]
    require_ranks(optimizers, files)
    stage = 3 if stage_three else stage_of(optimizers[0])
    run = ImportedRun(f"DeepSpeed ZeRO stage {stage}, {len(files)} rank{'s' * (len(files) > 1)}"
                      f" ({printable(model.get('ds_version'), 40)})")
    if stage_three:
        read_stage_three(run, model, path, optimizers, files, folder)
    else:
        read_stage_one_or_two(run, model, path, optimizers, files)
    read_frozen(run, model, path)
    read_numbers(run, model, path)
    read_scaler(run, optimizers[0], files[0])
    return run


def stage_of(optimizer):
    """Returns the ZeRO stage, 1 or 2. It may be stored as the member of an enumeration, which is
    read by its number."""
    stage = optimizer.get("zero_stage")
    if isinstance(stage, Inert) and stage.arguments:
        stage = stage.arguments[0]
    return stage if stage in (1, 2) else 1


def require_ranks(optimizers, files):
    """Raises an error if files of ranks are missing."""
    for optimizer, file in zip(optimizers, files):
        counts = optimizer.get("partition_count", len(files))
        counts = counts if isinstance(counts, list) else [counts]
        if any(c != len(files) for c in counts):
            raise BadFile(f"{file}: was saved by {max(c for c in counts if type(c) is int)} "
                          f"data-parallel ranks, but the folder has the files of {len(files)}")


# ---- stages 1 and 2 ----


def read_stage_one_or_two(run, model, path, optimizers, files):
    """Reads stages 1 and 2. The parameters of a group lie one after another in a flat range, which
    is divided into equal parts in the order of ranks. param_slice_mappings says which part of a
    parameter a rank holds, and where. Older versions lack it; then the order of param_shapes
    decides."""
    shapes = shapes_of(model.get("param_shapes"), path)
    weights = [flat_tensors(o, "single_partition_of_fp32_groups", f)
               for o, f in zip(optimizers, files)]
    for groups, file in zip(weights, files):
        if len(groups) != len(shapes):
            raise BadFile(f"{file}: holds {len(groups)} groups of parameters, but {path} names "
                          f"{len(shapes)}")
    moments = [group_states(o, "base_optimizer_state", f, len(shapes))
               for o, f in zip(optimizers, files)]
    for group, names in enumerate(shapes):
        places = (recorded_places(optimizers, files, group)
                  or places_in_order(weights, group, names, path))
        for name, shape in names.items():
            fragments = [(rank, p[name]) for rank, p in enumerate(places) if name in p]
            for kind, tensors in (("param", [w[group] for w in weights]),
                                  ("exp_avg", [m[group].get("exp_avg") for m in moments]),
                                  ("exp_avg_sq", [m[group].get("exp_avg_sq") for m in moments])):
                if all(isinstance(tensors[rank], Tensor) for rank, _ in fragments):
                    run.states[name, kind] = flat_state(
                        shape, [(tensors[rank], first, size) for rank, (first, size) in fragments],
                        f"{path}: {printable(name)}")
    record_updates(run, [m[g].get("step") for m in moments for g in range(len(shapes))], files[0])
    record_settings(run, optimizers[0].get("base_optimizer_state"))


def group_states(optimizer, key, file, groups):
    """Returns the optimizer's state of each group; {} for a group without state."""
    base = optimizer.get(key)
    if isinstance(base, list):
        raise BadFile(f"{file}: is an elastic checkpoint (zero_optimization.elastic_checkpoint), "
                      f"which is not supported; {UNIVERSAL_HINT}")
    states = require_entry(base, "state", dict, f"{file}: {key}")
    by_group = [states.get(group, {}) for group in range(groups)]
    for state in by_group:
        if not isinstance(state, dict):
            raise BadFile(f"{file}: the optimizer's state is {shown_type(state)}, which is not "
                          "supported")
        others = sorted(k for k, v in state.items() if isinstance(k, str) and isinstance(v, Tensor)
                        and k not in ("exp_avg", "exp_avg_sq", "step"))
        if others:
            raise BadFile(f"{file}: the optimizer's state holds {printable(', '.join(others))}; "
                          "only the state of Adam is supported (exp_avg, exp_avg_sq)")
    return by_group


def recorded_places(optimizers, files, group):
    """Returns for each rank {name: (first element in the rank's flat part, number of elements)};
    None if the files do not record it."""
    places = []
    for optimizer, file in zip(optimizers, files):
        mappings = optimizer.get("param_slice_mappings")
        if not isinstance(mappings, list) or group >= len(mappings):
            return None
        if not isinstance(mappings[group], dict):
            raise BadFile(f"{file}: param_slice_mappings holds {shown_type(mappings[group])}, "
                          "which is not supported")
        by_name = {}
        for name, address in mappings[group].items():
            place = [address.field(f)
                     for f in ("start", "numel")] if isinstance(address, Inert) else [None]
            if any(type(number) is not int or number < 0 for number in place):
                raise BadFile(f"{file}: param_slice_mappings has {shown_type(address)} for "
                              f"{printable(str(name))}, which is not supported")
            by_name[name] = tuple(place)
        places.append(by_name)
    return places


def places_in_order(weights, group, names, path):
    """Returns the places as recorded_places(), computed from the order of parameters."""
    places, rank, at = [{} for _ in weights], 0, 0
    for name, shape in names.items():
        left = element_count(shape)
        while left > 0:
            if rank == len(weights):
                raise BadFile(f"{path}: group {group} has more elements than the ranks' files")
            size = min(left, weights[rank][group].elements - at)
            if size > 0:
                places[rank][name] = (at, size)
            at, left = at + size, left - size
            if at == weights[rank][group].elements:
                rank, at = rank + 1, 0
    return places


# ---- stage 3 ----


def read_stage_three(run, model, path, optimizers, files, folder):
    """Reads stage 3. Each parameter is divided separately: rank r holds elements [r c, (r + 1) c),
    where c = elements / ranks, rounded up. The flat group of a rank holds its parts of all
    parameters in the order of param_shapes, c elements for each."""
    shapes = shapes_of(model.get("param_shapes"), path)
    for rank in range(1, len(files)):
        file = model_file(folder, rank)
        if file != path and shapes_of(TorchFile(file).value().get("param_shapes"), file) != shapes:
            raise BadFile(f"{file}: names other parameters than {path}")
    weights = [flat_tensors(o, "fp32_flat_groups", f) for o, f in zip(optimizers, files)]
    moments = [group_states(o, "optimizer_state_dict", f, len(shapes))
               for o, f in zip(optimizers, files)]
    if any(len(w) != len(shapes) for w in weights):
        raise BadFile(f"{files[0]}: holds {len(weights[0])} groups of parameters, but {path} names "
                      f"{len(shapes)}")
    ranks = len(files)
    for group, names in enumerate(shapes):
        at = 0
        for name, shape in names.items():
            share = -(-element_count(shape) // ranks)
            sizes = [max(0, min(share,
                                element_count(shape) - rank * share)) for rank in range(ranks)]
            for kind, tensors in (("param", [w[group] for w in weights]),
                                  ("exp_avg", [m[group].get("exp_avg") for m in moments]),
                                  ("exp_avg_sq", [m[group].get("exp_avg_sq") for m in moments])):
                if all(isinstance(t, Tensor) for t in tensors):
                    run.states[name, kind] = flat_state(shape,
                                                        [(t, at, s)
                                                         for t, s in zip(tensors, sizes)],
                                                        f"{path}: {printable(name)}")
            at += share
        for groups, file in zip(weights, files):
            if groups[group].elements != at:
                raise BadFile(f"{file}: group {group} has {groups[group].elements} elements, but "
                              f"the parameters that {path} names need {at}")
    record_updates(run, [m[g].get("step") for m in moments for g in range(len(shapes))], files[0])
    record_settings(run, optimizers[0].get("optimizer_state_dict"))


# ---- universal checkpoints ----


def read_universal(folder):
    """Reads a universal checkpoint, which has a folder for each parameter. Each state is a whole
    tensor, stored in its shape ({"param": tensor}) or flat (stage 3)."""
    path = model_file(folder)
    model = TorchFile(path).value()
    if not isinstance(model, dict):
        raise BadFile(f"{path}: holds {shown_type(model)}")
    run = ImportedRun(f"DeepSpeed universal checkpoint ({printable(model.get('ds_version'), 40)})")
    shapes = {}
    if model.get("param_shapes") is not None:
        for group in shapes_of(model["param_shapes"], path):
            shapes.update(group)
    steps = []
    zero = os.path.join(folder, "zero")
    for name in sorted(os.listdir(zero)):
        parameter_folder = os.path.join(zero, name)
        if not os.path.isdir(parameter_folder):
            continue
        for kind, file in (("param", "fp32.pt"), ("exp_avg", "exp_avg.pt"),
                           ("exp_avg_sq", "exp_avg_sq.pt")):
            path_of_state = os.path.join(parameter_folder, file)
            if os.path.exists(path_of_state):
                read_universal_state(run, name, kind, path_of_state, shapes.get(name))
        path_of_step = os.path.join(parameter_folder, "step.pt")
        if os.path.exists(path_of_step):
            steps.append(TorchFile(path_of_step).value())
    file = os.path.join(zero, "optimizer_state.pt")
    optimizer = TorchFile(file).value() if os.path.exists(file) else {}
    inner = optimizer.get("optimizer_state_dict") if isinstance(optimizer, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("state"), dict):
        steps += [s.get("step") for s in inner["state"].values() if isinstance(s, dict)]
    record_updates(run, steps, zero)
    record_settings(run, optimizer)
    read_frozen(run, model, path)
    read_numbers(run, model, path)
    if isinstance(optimizer, dict):
        read_scaler(run, optimizer, file)
    return run


def read_universal_state(run, name, kind, file, shape):
    """Reads one state of a parameter from its file."""
    value = TorchFile(file).value()
    tensor = value.get("param") if isinstance(value, dict) else value
    if not isinstance(tensor, Tensor):
        raise BadFile(f"{file}: holds {shown_type(tensor)} instead of a tensor")
    run.states[name, kind] = flat_state(shape or tensor.shape, [(tensor, 0, tensor.elements)], file)


# ---- states and numbers of all kinds of checkpoints ----


def read_frozen(run, model, path):
    """Reads the parameters that are not trained. They have no master weights, so the model's
    weights are read, in whatever dtype they have."""
    module = model.get("module")
    shapes = model.get("frozen_param_shapes") or {}
    if isinstance(shapes, dict):
        run.frozen.update(n for n in shapes if isinstance(n, str))
    for alias, name in (model.get("shared_params")
                        or {}).items() if isinstance(model.get("shared_params"), dict) else ():
        if isinstance(alias, str) and isinstance(name, str):
            run.aliases[alias] = name
    if not isinstance(module, dict):
        return
    buffers = model.get("buffer_names") if isinstance(model.get("buffer_names"), list) else []
    for name, tensor in module.items():
        if isinstance(name, str) and isinstance(tensor,
                                                Tensor) and (name, "param") not in run.states \
                and name not in buffers and name not in run.aliases and tensor.elements > 0:
            run.working[name] = flat_state(tensor.shape, [(tensor, 0, tensor.elements)],
                                           f"{path}: {printable(name)}")


def read_numbers(run, model, path):
    """Reads the step, the samples, the schedule's position and known settings."""
    run.step = require_entry(model, "global_steps", int, path)
    run.skipped_steps = int(optional_number(model.get("skipped_steps"), path) or 0)
    run.samples = optional_number(model.get("global_samples"), path)
    schedule = model.get("lr_scheduler")
    if isinstance(schedule, dict):
        position = schedule.get("last_batch_iteration", schedule.get("last_epoch"))
        if position is not None:
            run.scheduler["last_batch_iteration"] = int(optional_number(position, path))
    if run.samples and run.step and run.samples % run.step == 0:
        run.known["train_batch_size"] = run.samples // run.step
    config = model.get("ds_config")
    if isinstance(config, dict) and type(config.get("gradient_clipping")) in (int, float):
        run.known["gradient_clipping"] = float(config["gradient_clipping"])


def read_scaler(run, optimizer, file):
    """Reads the state of a dynamic loss scale. A static loss scale is not read: it is in the
    config."""
    scaler = optimizer.get("loss_scaler")
    if not isinstance(scaler, Inert) or scaler.made_by.name != "DynamicLossScaler":
        return
    fields = {ours: optional_number(scaler.field(theirs), file) for ours, theirs in
              (("scale", "cur_scale"), ("iteration", "cur_iter"),
               ("last_overflow", "last_overflow_iter"), ("hysteresis", "cur_hysteresis"))}
    if any(value is None for value in fields.values()):
        raise BadFile(f"{file}: the loss scaler ({scaler.made_by}) has no cur_scale, cur_iter, "
                      "last_overflow_iter or cur_hysteresis")
    run.loss_scaler = {"scale": float(fields["scale"]),
                       **{name: int(fields[name])
                          for name in ("iteration", "last_overflow", "hysteresis")}}


def record_updates(run, steps, location):
    """Records the number of updates, which must be the same for all parameters."""
    counts = {int(optional_number(step, location)) for step in steps if step is not None}
    if len(counts) > 1:
        raise BadFile(f"{location}: the optimizer has made {min(counts)} updates of some "
                      f"parameters and {max(counts)} of others; ftrun needs the same count for all")
    run.updates = counts.pop() if counts else None


def record_settings(run, optimizer):
    """Reads the settings that all parameter groups share."""
    groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict)
                                                             for group in groups):
        return
    if run.updates is None:  # some of DeepSpeed's optimizers keep their count of steps here
        record_updates(run, [group.get("step") for group in groups], "param_groups")
    for name in ("betas", "eps", "weight_decay"):
        values = [group.get(name) for group in groups]
        parts = [value if isinstance(value, (tuple, list)) else (value,) for value in values]
        # The types are checked first, because other values may be nested endlessly.
        if all(type(part) in (int, float) for some in parts
               for part in some) and all(some == parts[0] for some in parts):
            parts = parts[0]
            run.known[f"optimizer.params.{name}"] = [float(p)
                                                     for p in parts] if name == "betas" else float(
                                                         parts[0])
