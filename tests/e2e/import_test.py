"""Checks the move to ftrun in the middle of a run. Checkpoints that the real DeepSpeed and the real
DCP wrote are read without executing anything in them, become a run's first checkpoint bit for bit,
and training continues with the next losses of the other program. Files that are hostile, damaged or
of another kind are refused with their name and class."""
import contextlib
import hashlib
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import numpy as np
from safetensors.numpy import load_file

from runner import (BINARY, case, environment, ftrun, must, peak_kib, preload, require_near,
                    run_cases, steps, stored_boxes, tiny_model, tiny_weights, write_config)

SOURCE = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE / "scripts"))
import import_checkpoint as import_script  # noqa: E402
from checkpoint_import.inert_pickle import printable  # noqa: E402

GIVEN = SOURCE / "tests/checkpoint/imports"
MODEL = GIVEN / "model"
SCHEDULE = {"type": "WarmupLR", "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 3e-3,
                                           "warmup_num_steps": 12, "warmup_type": "linear"}}
# In fp32 only the order of sums differs. In 16 bits the two programs also round at other places.
TOLERANCE = {"fp32": 2e-6, "bf16": 1e-3, "fp16": 1e-4}
KINDS = ("param", "exp_avg", "exp_avg_sq")


def import_checkpoint(*arguments, code=0):
    """Runs the script's main() in this process, so that code hidden in a file would run here."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        exit_code = import_script.main([str(argument) for argument in arguments])
    result = subprocess.CompletedProcess(arguments, exit_code, stdout.getvalue(), stderr.getvalue())
    assert (code is None
            or exit_code == code), (
        f"exit {exit_code}, expected {code}\n{result.stdout}{result.stderr}")
    return result


def refusal(*arguments, code=4):
    """Returns the message of a refused import; requires that it has left nothing."""
    out = pathlib.Path(arguments[arguments.index("--out") + 1])
    before = sorted(out.parent.iterdir())
    text = import_checkpoint(*arguments, code=code).stderr
    assert sorted(out.parent.iterdir()) == before, "a refused import left files behind"
    return text


def require_in(text, *parts):
    for part in parts:
        assert str(part) in text, f"no {str(part)!r} in:\n{text}"


def config(out, expected, **changes):
    """Returns the config with which ftrun continues a fixture."""
    precision = {"fp32": {}, "bf16": {"bf16": {"enabled": True}},
                 "fp16": {"fp16": {"enabled": True, "initial_scale_power": 18,
                                   "loss_scale_window": 2, "hysteresis": 2}}}[expected["precision"]]
    schedule = {} if expected.get("constant_rate") else {"scheduler": SCHEDULE}
    return {"model": {"path": str(MODEL)}, "threads": 1,
            "data": {"train": str(GIVEN / "train.bin"), "token_dtype": "uint16",
                     "sequence_length": 16, "shuffle": False},
            "train": {"steps": expected["step"] + len(expected["losses"]),
                      "weight_decay_exempt": "none" if expected["groups"] == 1
                      else "norms_and_biases"},
            "train_batch_size": 6, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": expected["stage"]},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8,
                                                      "weight_decay": 0.1}},
            **schedule, "checkpoint": {"every": 0}, "export": {"enabled": False},
            "output_dir": str(out), **precision, **changes}


def state_hashes(folder):
    """Returns SHA-256 of each state of a checkpoint that is stored as a whole in its file."""
    found = {}
    for piece, _, values in stored_boxes(folder):
        assert piece["extent"] == piece["shape"]
        found[f"{piece['tensor']}.{piece['kind']}"] = hashlib.sha256(values.tobytes()).hexdigest()
    return found


def require_equal_states(found, expected):
    assert set(found) == set(expected), f"other states: {sorted(set(found) ^ set(expected))[:6]}"
    differing = [name for name in expected if found[name] != expected[name]]
    assert not differing, f"{len(differing)} states differ: {differing[:6]}"


def migrate(scratch, name, checkpoint, expected, *arguments):
    """Imports a checkpoint and converts it; returns the run folder and the import's output."""
    imported, run = scratch / f"{name}-imported", scratch / f"{name}-run"
    stdout = import_checkpoint(checkpoint, "--model", MODEL, "--out", imported, *arguments).stdout
    must(ftrun("verify", imported))
    require_in(must(ftrun("inspect", imported)).stdout, "imported from", "optimizer.params.betas")
    converted = must(ftrun("convert", imported, "--run", run)).stdout
    require_in(converted, "--resume auto", f"step {expected['step']}")
    must(ftrun("verify", run))
    step = run / "checkpoints" / f"step-{expected['step']:08}"
    require_equal_states(state_hashes(step), expected["states"])
    meta = json.loads((step / "checkpoint.json").read_text())["meta"]
    assert (meta["step"] == expected["step"]
            and meta["skipped_steps"] == expected["skipped_steps"]), meta
    scaler = meta["loss_scaler"]
    assert scaler == expected["loss_scaler"], f"{scaler} and {expected['loss_scaler']}"
    return run, stdout


def resume(scratch, run, expected, *arguments, ranks=1, **changes):
    """Trains the next steps and compares the losses with those of the other program."""
    result = must(ftrun("--config", write_config(scratch, config(run, expected, **changes),
                                                 f"{run.name}.json"), "--nproc", ranks,
                        "--resume", "auto", *arguments))
    lines = steps(run)
    assert ([m["step"] for m in lines] == list(range(expected["step"] + 1, expected["step"] + 1
                                                     + len(expected["losses"])))), lines
    off = require_near("loss", [m["loss"] for m in lines], expected["losses"],
                       TOLERANCE[expected["precision"]])
    return result, lines, off


def torch_zip(path, pickled, entries=(), top="archive", storage=b""):
    """Writes a zip file like torch.save, but by hand."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
        made.writestr(f"{top}/data.pkl", pickled)
        made.writestr(f"{top}/version", "3\n")
        if storage:
            made.writestr(f"{top}/data/0", storage)
        for name, content in entries:
            made.writestr(name, content)


class PickledCall:
    """An object that is pickled as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def op_name(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def tensor_pickle(elements, shape, offset=0, stride=1, storage="FloatStorage"):
    """Returns the pickle of {"w": a tensor} as torch writes it."""
    number = lambda n: b"\x8a\x08" + struct.pack("<q", n)
    sizes = b"(" + b"".join(number(n) for n in shape) + b"t"
    strides = b"(" + b"".join(number(stride) for _ in shape) + b"t"
    return (b"\x80\x02}" + op_name("w") + b"ctorch._utils\n_rebuild_tensor_v2\n(("
            + op_name("storage") + f"ctorch\n{storage}\n".encode()
            + op_name("0") + op_name("cpu") + number(elements) + b"tQ" + number(offset) + sizes
            + strides + b"\x89}tRs.")


with tempfile.TemporaryDirectory() as scratch:
    preload()
    scratch = pathlib.Path(scratch)
    FIXTURES = scratch / "deepspeed"
    with tarfile.open(GIVEN / "deepspeed.tar.xz") as packed:
        # Python before 3.11.4, for example in Debian 12 without updates, has no filters.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(FIXTURES)
    fixtures = sorted(path.parent for path in FIXTURES.glob("*/expected.json"))
    assert len(fixtures) >= 8, fixtures

    def expected_of(name):
        return json.loads((FIXTURES / name / "expected.json").read_text())

    # ---- what DeepSpeed wrote ----

    @case
    def deepspeed_checkpoints_continue_in_ftrun():
        for folder in fixtures:
            expected = expected_of(folder.name)
            run, message = migrate(scratch, folder.name, folder / "checkpoint", expected)
            require_in(message, "not known: tokens", "universal" if "universal" in folder.name
                       else f"stage {expected['stage']}")
            done, found, off = resume(scratch, run, expected)
            require_in(done.stderr, "was imported from DeepSpeed", "not known: tokens")
            if expected["precision"] == "fp16":
                assert expected["loss_scaler"]["iteration"] == expected["step"]
                assert found[-1]["loss_scale"] == expected["scaler_after"]["scale"], (
                    found[-1], expected["scaler_after"])
            print(f"{folder.name}: every state equal, losses within {off:.1e}", flush=True)

    @case
    def it_continues_with_another_layout():
        expected = expected_of("zero3-fp32-2")
        run, _ = migrate(scratch, "layout", FIXTURES / "zero3-fp32-2/checkpoint", expected)
        resume(scratch, run, expected, ranks=2, zero_optimization={"stage": 2})
        # Afterwards it is a run like any other: its own checkpoint loads on another layout again.
        longer = config(run, expected)
        longer["data"]["train"] = str(GIVEN / "train.bin")
        longer["train"]["steps"] += 1
        must(ftrun("--config", write_config(scratch, longer), "--resume", "auto"))

    @case
    def missing_moments_are_reported_by_name():
        """The readers return a parameter that did not train without moments."""
        checkpoint = scratch / "frozen"
        shutil.copytree(FIXTURES / "universal-zero2-fp32-3/checkpoint", checkpoint)
        folder = next(checkpoint.glob("*_universal")) / "zero/model.norm.weight"
        (folder / "exp_avg.pt").unlink()
        out = scratch / "frozen-out"
        require_in(refusal(checkpoint, "--model", MODEL, "--out", out),
                   "1 of the model's 21 tensors have no state of the optimizer:\n  "
                   "model.norm.weight",
                   "--zero-moments")
        stdout = import_checkpoint(checkpoint, "--model", MODEL, "--out", out,
                                   "--zero-moments").stdout
        require_in(stdout, "1 tensors begin with moments of zero:\n  model.norm.weight")
        states = load_file(out / "state-00001.safetensors")
        assert (not states["model.norm.weight.exp_avg"].any()
                and states["model.norm.weight.exp_avg_sq"].any())
        shutil.rmtree(folder)
        require_in(refusal(checkpoint, "--model", MODEL, "--out", scratch / "none"),
                   "no state of the optimizer", "model.norm.weight")

    @case
    def names_may_have_prefixes():
        checkpoint = scratch / "prefixed"
        shutil.copytree(FIXTURES / "universal-zero2-fp32-3/checkpoint", checkpoint)
        zero = next(checkpoint.glob("*_universal")) / "zero"
        for folder in [f for f in zero.iterdir() if f.is_dir()]:
            folder.rename(zero / f"module._orig_mod.{folder.name}")
        stranger = shutil.copytree(next(f for f in zero.iterdir() if "q_proj" in f.name),
                                   zero / "value_head.weight")
        stdout = import_checkpoint(checkpoint, "--model", MODEL, "--out",
                                   scratch / "prefixed-out").stdout
        require_in(stdout, "1 tensors of the checkpoint are not in the model and were left out:\n  "
                           "value_head.weight")
        found = {}
        for path in (scratch / "prefixed-out").glob("*.safetensors"):
            found.update({name: hashlib.sha256(values.tobytes()).hexdigest()
                          for name, values in load_file(path).items()})
        require_equal_states(found, expected_of("universal-zero2-fp32-3")["states"])
        stranger.rename(zero / "module.lm_head.weight")
        require_in(refusal(checkpoint, "--model", MODEL, "--out", scratch / "two"),
                   "are both called lm_head.weight")
        shutil.rmtree(zero / "module.lm_head.weight")
        shutil.rmtree(zero / "module._orig_mod.lm_head.weight")
        # The model's file has this weight too, as it also has those that do not train.
        require_in(refusal(checkpoint, "--model", MODEL, "--out", scratch / "three"),
                   "1 of the model's 21 tensors did not train (frozen)",
                   "lm_head.weight", "--zero-moments")

    def universal_of(folder, weights):
        """Writes a universal checkpoint by hand, where every state of a tensor equals its
        weight."""
        for name, values in weights.items():
            (folder / "zero" / name).mkdir(parents=True)
            pickled = tensor_pickle(values.size,
                                    [values.size]).replace(op_name("w"), op_name("param"))
            for file in ("fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"):
                torch_zip(folder / "zero" / name / file, pickled, storage=values.tobytes())
        shapes = {name: values.shape for name, values in weights.items()}
        torch_zip(folder / "mp_rank_00_model_states.pt", pickle.dumps(
            {"global_steps": 3, "skipped_steps": 0, "global_samples": 12, "param_shapes": [shapes]},
            protocol=2))
        return folder

    @case
    def model_folders_with_other_tensor_names_are_imported():
        """The names in a model folder may have wrappers and prefixes, a tied matrix may be stored
        as the head, and other programs' files may be in the folder."""
        weights = tiny_weights()
        checkpoint = universal_of(scratch / "spelled-universal",
                                  {f"module.{name}": values for name, values in weights.items()})
        spellings = {"compiled": lambda name: f"module._orig_mod.{name}", "bare": lambda name:
                     name.removeprefix("model."),
                     "nested": lambda name: f"base_model.model.{name}"}
        for spelling, spell in spellings.items():
            model = tiny_model(scratch / f"{spelling}-model",
                               {spell(name): values for name, values in weights.items()})
            (model / "consolidated.safetensors").write_bytes(
                (MODEL / "model.safetensors").read_bytes())
            imported = scratch / f"{spelling}-imported"
            import_checkpoint(checkpoint, "--model", model, "--out", imported)
            assert ({name.rpartition(".")[0]
                     for name in load_file(imported / "state-00001.safetensors")}
                    == set(weights)), spelling
            must(ftrun("convert", imported, "--run", scratch / f"{spelling}-run"))
        tied = {name: values for name, values in weights.items() if name != "lm_head.weight"}
        head = {name.replace("model.embed_tokens", "lm_head"): values
                for name, values in tied.items()}
        model = tiny_model(scratch / "head-model", head, tie_word_embeddings=True)
        import_checkpoint(universal_of(scratch / "tied-universal", tied), "--model", model, "--out",
                          scratch / "head-imported")
        tensors = load_file(scratch / "head-imported" / "state-00001.safetensors")
        assert np.array_equal(tensors["model.embed_tokens.weight.param"],
                              weights["model.embed_tokens.weight"])
        must(ftrun("convert", scratch / "head-imported", "--run", scratch / "head-run"))

    @case
    def memory_is_bounded():
        """Import and convert need the same memory for small tensors and for 77 MB per state, except
        for the buffers of fixed size through which they read and write."""
        peaks = {}
        for size, vocabulary in (("small", 400), ("large", 600_000)):
            weights = tiny_weights(vocabulary=vocabulary)
            model = tiny_model(scratch / f"{size}-model", weights, vocab_size=vocabulary)
            checkpoint = universal_of(scratch / f"{size}-universal", weights)
            imported, run = scratch / f"{size}-imported", scratch / f"{size}-run"
            peaks[size] = (peak_kib(sys.executable, SOURCE / "scripts/import_checkpoint.py",
                                    checkpoint, "--model", model, "--out", imported),
                           peak_kib(BINARY, "convert", imported, "--run", run))
        tensors = load_file(imported / "state-00001.safetensors")
        assert all((tensors[f"{name}.exp_avg"] == values).all() for name, values in weights.items())
        more = [large - small for small, large in zip(peaks["small"], peaks["large"])]
        assert max(more) < 48 << 10, f"{more} KiB more for tensors of 77 MB"

    # ---- DCP ----

    @case
    def dcp_checkpoints_continue_in_ftrun():
        folder = scratch / "dcp"
        folder.mkdir()
        subprocess.run([sys.executable, GIVEN / "make_dcp.py", folder], check=True,
                       env=environment({"OMP_NUM_THREADS": "1"}))
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        assert names == ["bf16", "flattened", "fp32"], names
        for name in names:
            expected = json.loads((folder / name / "expected.json").read_text())
            run, message = migrate(scratch, f"dcp-{name}", folder / name / "checkpoint", expected)
            require_in(message, "PyTorch DCP", f"step {expected['step']}", "data and its order")
            assert ("tokens" in message.split("not known: ")[1]) == (expected["tokens"] is None), (
                message)
            _, _, off = resume(scratch, run, expected)
            print(f"DCP {name}: every state equal, losses within {off:.1e}", flush=True)
        damaged = scratch / "dcp-damaged"
        shutil.copytree(folder / "fp32/checkpoint", damaged)
        file = damaged / "__1_0.distcp"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        text = refusal(damaged, "--model", MODEL, "--out", scratch / "dcp-out")
        require_in(text, "__1_0.distcp")
        file.unlink()
        require_in(refusal(damaged, "--model", MODEL, "--out", scratch / "dcp-out", code=5),
                   "__1_0.distcp: No such file")

    # ---- guards of a resume ----

    @case
    def another_batch_or_optimizer_is_refused():
        expected = expected_of("zero2-fp32-3")
        run, _ = migrate(scratch, "guard", FIXTURES / "zero2-fp32-3/checkpoint", expected)
        other = config(run, expected, train_batch_size=3)
        other["optimizer"]["params"]["betas"] = [0.9, 0.999]
        result = must(ftrun("--config", write_config(scratch, other), "--resume", "auto"), 2)
        require_in(result.stderr, "config.train_batch_size: was 6, is now 3",
                   "config.optimizer.params.betas: was [0.9,0.95], is now [0.9,0.999]")
        must(ftrun("--config", write_config(scratch, other), "--resume", "auto", "--allow",
                   "config.train_batch_size", "--allow",
                   "config.optimizer.params.betas"))

    # ---- nothing is overwritten ----

    @case
    def outputs_are_never_overwritten():
        checkpoint = FIXTURES / "zero1-fp32-2/checkpoint"
        mine = scratch / "mine"
        mine.mkdir()
        (mine / "thesis.txt").write_text("mine")
        require_in(refusal(checkpoint, "--model", MODEL, "--out", mine), "is not replaced",
                   "ftrun-output.json")
        def inputs():
            return {p: p.read_bytes() for folder in (FIXTURES / "zero1-fp32-2", MODEL)
                    for p in folder.rglob("*") if p.is_file()}

        before = inputs()
        for out in (checkpoint, checkpoint / "new", MODEL, FIXTURES / "zero1-fp32-2"):
            require_in(import_checkpoint(checkpoint, "--model", MODEL, "--out", out, code=4).stderr,
                       "overlaps with")
            assert inputs() == before
        imported, run = scratch / "once", scratch / "once-run"
        import_checkpoint(checkpoint, "--model", MODEL, "--out", imported)
        # An import may replace its own output.
        import_checkpoint(checkpoint, "--model", MODEL, "--out", imported)
        must(ftrun("convert", imported, "--run", run))
        require_in(must(ftrun("convert", imported, "--run", run), 2).stderr, "holds a run already")
        require_in(must(ftrun("convert", imported, "--run", mine), 2).stderr, "thesis.txt")
        assert ((mine / "thesis.txt").read_text() == "mine"
                and sorted(p.name for p in mine.iterdir()) == ["thesis.txt"])
        require_in(must(ftrun("convert", imported), 2).stderr, "neither --out nor --run")
        require_in(must(ftrun("convert", imported, "--run", run, "--out", run), 2).stderr,
                   "both --out and --run")
        # The leftovers of a killed convert are removed, and the run folder can then be used.
        halfway = scratch / "halfway"
        must(ftrun("convert", imported, "--run", halfway))
        step = halfway / "checkpoints/step-00000004"
        step.rename(halfway / "checkpoints/step-00000004.tmp-0123abcd")
        must(ftrun("convert", imported, "--run", halfway))
        assert sorted(p.name
                      for p in (halfway / "checkpoints").iterdir()) == ["latest", "step-00000004"]

    @case
    def a_changed_import_is_refused():
        imported = scratch / "changed"
        import_checkpoint(FIXTURES / "zero1-fp32-2/checkpoint", "--model", MODEL, "--out", imported)
        state = imported / "state-00001.safetensors"
        content = bytearray(state.read_bytes())
        content[-1] ^= 1
        state.write_bytes(content)
        for command in (("convert", imported, "--run", scratch / "changed-run"),
                        ("verify", imported), ("inspect", imported)):
            require_in(must(ftrun(*command), 4).stderr, "state-00001.safetensors was changed")
        assert not (scratch / "changed-run").exists()
        state.unlink()
        require_in(must(ftrun("convert", imported, "--run", scratch / "changed-run"), 4).stderr,
                   "state-00001.safetensors was removed")

    # ---- hostile and damaged files ----

    def hostile(name, **content):
        """Returns the message with which a universal checkpoint of one tensor is refused; `content`
        (torch_zip) makes its model file."""
        folder = scratch / "hostile" / name
        (folder / "zero").mkdir(parents=True)
        torch_zip(folder / "mp_rank_00_model_states.pt", **content)
        return refusal(folder, "--model", MODEL, "--out", scratch / "hostile-out")

    @case
    def nothing_of_a_pickle_runs():
        marker = scratch / "marker"
        touch = f"touch {marker}"
        calls = {
            "system": PickledCall(os.system, touch),
            "popen": PickledCall(subprocess.Popen, ["touch", str(marker)]),
            "eval": PickledCall(eval, f"open({str(marker)!r}, 'w')"),
            "nested": {"a": [{"b": (PickledCall(os.system, touch), 1)}]},
            "posix": PickledCall(getattr(os, "mkdir"), str(marker)),
        }
        for name, value in calls.items():
            text = hostile(name, pickled=pickle.dumps({"module": value}, protocol=2))
            require_in(text, "mp_rank_00_model_states.pt", "which no checkpoint needs")
        for protocol in range(6):
            text = hostile(f"protocol-{protocol}",
                           pickled=pickle.dumps(PickledCall(os.system, touch), protocol=protocol))
            require_in(text, "posix.system")
        # Names that look harmless are kept as names: nothing is called, and what is built with them
        # is not accepted as data.
        require_in(hostile("getattr", pickled=pickle.dumps(PickledCall(getattr, {}, "clear"),
                                                           protocol=2)),
                   "an object of builtins.getattr")
        require_in(hostile("state", pickled=b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b."),
                   "the pickle sets a state of ")
        require_in(hostile("class", pickled=b"\x80\x02}" + op_name("global_steps")
                           + b"cevil.module\nCounter\n)\x81s."),
                   "global_steps is an object of evil.module.Counter")
        require_in(hostile("persistent", pickled=b"\x80\x02ctorch\nFloatStorage\nQ."),
                   "a persistent id does not name a tensor storage")
        require_in(hostile("extension", pickled=b"\x80\x02\x82\x01."), "EXT1")
        assert not marker.exists(), "code hidden in a pickle was run"

    @case
    def endless_nesting_is_not_unfolded():
        nested = ()
        for _ in range(100):
            nested = (nested, nested)
        assert printable(nested) == "a tuple", "a nested tuple is not shortened"

    @case
    def sizes_and_names_of_a_zip_are_checked():
        data = np.arange(4, dtype=np.float32).tobytes()
        wrong = {
            "long": (tensor_pickle(1 << 40, [4]), "need more"),
            "beyond": (tensor_pickle(4, [5]), "reaches beyond"),
            "offset": (tensor_pickle(4, [4], offset=1), "reaches beyond"),
            "negative": (tensor_pickle(4, [-1]), "not a list of whole numbers"),
            "huge": (tensor_pickle(4, [1 << 40, 1 << 40]), "not"),
            "strides": (tensor_pickle(4, [2], stride=2), "do not lie one after another"),
            "storage": (tensor_pickle(4, [4], storage="QUInt8Storage"),
                        "class torch.QUInt8Storage"),
        }
        for name, (pickled, message) in wrong.items():
            require_in(hostile(name, pickled=pickled, storage=data), message,
                       "mp_rank_00_model_states.pt")
        for entry in ("../../escape", "/etc/escape", "archive/../../escape", "archive//escape",
                      "archive\\..\\escape"):
            text = hostile(f"name-{abs(hash(entry))}", pickled=b"\x80\x02}.",
                           entries=[(entry, "x")])
            require_in(text, "is not named as torch names them")
        for n, junk in enumerate((b"", b"\x80", b"\x80\x02}", b"\x80\x02(", b"\x80\x02.",
                                  b"\x80\x02}}\x94s.", b"\x80\x02\x8a\xff.", b"\x80\x02h\x07.",
                                  b"\x80\x02X\xff\xff\xff\x7fabc.",
                                  b"\x80\x02((((tttt\x85" + b"\x85" * 100_000 + b"}" + b".")):
            require_in(hostile(f"junk-{n}", pickled=junk), "mp_rank_00_model_states.pt")
        # A key whose hash would recurse as deep as the key is nested; and lists that are copied
        # again and again.
        require_in(hostile("deep", pickled=b"\x80\x02}K\x01" + b"\x85" * 60_000 + b"K\x01s."),
                   "dictionary's key")
        require_in(hostile("objects", pickled=b"\x80\x02cx\ny\nq\x00" + b"h\x00" * 60_000 + b"N"
                           + b"\x85R" * 60_001 + b"."), "holds an object of x.y")
        many = (b"\x80\x02](" + b"K\x01" * 20_000 + b"eq\x000"
                + b"".join([b"ctorch\nSize\nq\x01"] + [b"h\x01h\x00\x85R"] * 2_000) + b".")
        require_in(hostile("copies", pickled=many), "copies its lists so often")

    @case
    def odd_layouts_are_refused():
        """The pickles are complete, but contain other objects than DeepSpeed stores."""
        whole = {"global_steps": 3, "skipped_steps": 0, "global_samples": 12,
                 "param_shapes": [{"w": (2, 2)}], "shared_params": {},
                 "lr_scheduler": {"last_batch_iteration": 2}, "ds_config": {},
                 "frozen_param_shapes": None, "buffer_names": []}
        for key in whole:
            for n, odd in enumerate((None, "x", [1], {"a": 1}, {1: 2}, 1.5, [[{}]], ({},))):
                text = hostile(f"odd-{key}-{n}",
                               pickled=pickle.dumps({**whole, key: odd}, protocol=2))
                require_in(text, "import_checkpoint: error: ")
        require_in(hostile("odd-steps", pickled=pickle.dumps({**whole, "global_steps": "many"},
                                                             protocol=2)), "global_steps is a str")
        folder = scratch / "odd-dcp"
        folder.mkdir()
        for n, odd in enumerate((1, {}, {"a": []}, PickledCall(os.getcwd))):
            (folder / ".metadata").write_bytes(pickle.dumps(odd))
            require_in(refusal(folder, "--model", MODEL, "--out", scratch / "odd-out"), ".metadata")

    @case
    def damaged_files_are_refused():
        checkpoint = scratch / "damaged"
        shutil.copytree(FIXTURES / "zero2-fp32-3/checkpoint", checkpoint)
        victim = next(checkpoint.glob("*/zero_pp_rank_1_*"))
        content = victim.read_bytes()
        arguments = (checkpoint, "--model", MODEL, "--out", scratch / "damaged-out")
        random = np.random.default_rng(5)
        for size in (0, 1, 100, len(content) // 2, len(content) - 1):
            victim.write_bytes(content[:size])
            require_in(refusal(*arguments), victim.name)
        unnoticed = 0
        reference = None
        for at in sorted(random.integers(0, len(content), 40)):
            changed = bytearray(content)
            changed[at] ^= 1 << int(random.integers(8))
            victim.write_bytes(changed)
            result = import_checkpoint(*arguments, code=None)
            assert result.returncode in (0, 4), result.stderr
            if result.returncode == 0:  # a byte without meaning: padding, a date
                reference = reference or reference_states()
                assert ((scratch / "damaged-out/state-00001.safetensors").read_bytes()
                        == reference), f"byte {at} changed the import unnoticed"
                unnoticed += 1
        assert unnoticed < 20, unnoticed
        victim.unlink()
        require_in(refusal(*arguments), "rank 1 is missing")

    def reference_states():
        out = scratch / "reference-out"
        import_checkpoint(FIXTURES / "zero2-fp32-3/checkpoint", "--model", MODEL, "--out", out)
        return (out / "state-00001.safetensors").read_bytes()

    @case
    def missing_files_are_reported():
        empty = scratch / "empty"
        empty.mkdir()
        out = scratch / "empty-out"
        require_in(refusal(empty, "--model", MODEL, "--out", out),
                   "holds no checkpoint of DeepSpeed")
        (empty / "latest").write_text("global_step9")
        require_in(refusal(empty, "--model", MODEL, "--out", out),
                   "'global_step9', which does not exist",
                   "--tag")
        (empty / "latest").write_text("../../etc")
        require_in(refusal(empty, "--model", MODEL, "--out", out), "not a plain folder name")
        require_in(refusal(FIXTURES / "zero1-fp32-2/checkpoint", "--model", empty, "--out", out),
                   "config.json")
        torch_zip(empty / "mp_rank_00_model_states.pt", pickle.dumps({}))
        require_in(refusal(empty, "--model", MODEL, "--out", out), "ZeRO stage 0")
        fewer = scratch / "fewer"
        shutil.copytree(FIXTURES / "zero3-fp32-2/checkpoint", fewer)
        next(fewer.glob("*/zero_pp_rank_1_*optim_states.pt")).unlink()
        require_in(refusal(fewer, "--model", MODEL, "--out", out), "saved by 2 data-parallel ranks")

    run_cases()
