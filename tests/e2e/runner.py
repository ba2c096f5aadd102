"""Runs the ftrun binary for the end-to-end tests: configs as dicts, a small random model, and
metrics that are read back."""
import concurrent.futures
import contextlib
import ctypes
import gc
import hashlib
import itertools
import json
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

gc.set_threshold(100_000)  # as in scripts/environment.py
BINARY = os.environ["FTRUN_BINARY"]
TIMEOUT = 300  # seconds; no run takes longer, however busy the machine is
ATTEMPTS = 20  # tries to catch a moment of a run, which a busy machine may miss
WAITING_CODE = 6  # a peer was lost, or a wait timed out (docs/errors.md)
VOCABULARY = 211
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                      "MASTER_ADDR", "MASTER_PORT")
# What a process prints when it ends by a defect instead of an error message.
TRACES = ("terminate called", "Exception raised from", "Segmentation fault", "core dumped",
          "Aborted", "what():",
          "frame #", "threads in the process that forks", "thread in the process that forks",
          "internal error", "bug in ftrun", "Traceback")


def config(model, data, out, **changes):
    """Returns a config with the tests' usual settings; `changes` replaces whole top-level keys."""
    base = {
        "model": {"path": str(model)},
        "data": {"train": str(data), "sequence_length": 32, "shuffle": False},
        "train": {"steps": 20, "weight_decay_exempt": "none"},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "checkpoint": {"every": 0},
        "output_dir": str(out),
    }
    base.update(changes)
    return base


def write_config(folder, value, name="config.json"):
    """Writes a config to a folder; returns its path."""
    path = pathlib.Path(folder) / name
    path.write_text(json.dumps(value, indent=1))
    return path


def environment(extra=None):
    """Returns this process's environment without variables that a launcher around the tests may
    have set."""
    variables = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    variables.update(extra or {})
    return variables


# --- failures that a busy machine may cause ----------------------------------------------------


class TimedOut(AssertionError):
    """A wait of the test that timed out, or a program whose exit code says that a wait of its own
    did. If an entry fails only by such waits, or by an assertion that shows the output of such a
    program, its last line says so, and it is run again (scripts/ctest_runs.py)."""


def fail_by_timeout(what, text=""):
    """Fails by a timeout. Ends all processes that the test has started, which would otherwise run
    on during the following tests."""
    for running in Running.started:
        running.end()
    refuse_traces(text)
    raise TimedOut(f"{what}\n{text[-3000:]}" if text else what)


def require_exit(found, expected, text):
    """Fails if a program ended with another exit code than expected; the failure counts as a wait
    if that code says that the program waited."""
    if found == expected:
        return
    if found == WAITING_CODE:
        fail_by_timeout(f"exit {found}, expected {expected}", text)
    raise AssertionError(f"exit {found}, expected {expected}\n{text}")


def await_that(condition, what, *running, seconds=TIMEOUT, pause=0.01):
    """Waits until a condition holds, and returns its value. Fails at once if one of the given
    programs has ended before that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if ended := [each for each in running if each.process.poll() is not None]:
            for each in ended:
                each.reader.join(10)
            if found := condition():
                return found
            require_exit(ended[0].process.returncode, f"one of a program that goes on until {what}",
                         ended[0].text()[-3000:])
        if time.monotonic() > end:
            fail_by_timeout(f"{what}: not after {seconds} s",
                           "\n".join(each.text()[-3000:] for each in running))
        time.sleep(pause)
    return found


def require_in_time(begin, seconds, what):
    """Fails by a timeout if more than `seconds` have passed since `begin`."""
    if (elapsed := time.monotonic() - begin) > seconds:
        fail_by_timeout(f"{what} took {elapsed:.1f} s, at most {seconds} s were expected")


WAIT_MESSAGES = set()


def record_exit(code, text):
    """Records what a program printed about its own wait. A busy machine may change which peers it
    names, and when."""
    if code == WAITING_CODE:
        WAIT_MESSAGES.update(re.findall(r"rank \d+ (?:waited|lost) .*", text))


def is_timeout(error):
    """Returns whether an exception is a wait that timed out."""
    text = str(error) if isinstance(error, AssertionError) else ""
    return (isinstance(error, (TimedOut, subprocess.TimeoutExpired))
            or any(message in text for message in WAIT_MESSAGES))


def is_caused_by_timeouts(error):
    """Returns whether an exception is a wait, and so is each exception during whose handling it was
    raised."""
    while error is not None:
        if not is_timeout(error):
            return False
        error = error.__cause__ or error.__context__
    return True


def report_failure(kind, error, trace):
    """Prints an exception that ends the test, and a last line if the test timed out."""
    sys.__excepthook__(kind, error, trace)
    if is_caused_by_timeouts(error):
        print(f"timed out: {str(error).splitlines()[0]}", flush=True)


sys.excepthook = report_failure


def refuse_traces(text):
    """Fails if an output shows a defect instead of an error message."""
    for trace in TRACES:
        assert trace not in text, f"the output holds {trace!r}:\n{text[-3000:]}"


# --- runs that find the engine loaded, and agents that find torch imported ------------------------


class PreloadedRun:
    """A process started by Preloaded; it has the methods of subprocess.Popen that the tests use."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None
        self.end = os.pidfd_open(pid)
        self.turn = threading.Lock()  # a failing case ends runs for which other threads wait

    def wait(self, timeout=None):
        """Waits; returns the exit code, negative for a signal, as subprocess does."""
        if self.returncode is None:
            ended = select.poll()
            ended.register(self.end, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            with self.turn:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def __del__(self):
        os.close(self.end)

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Preloaded:
    """A process that has loaded what its runs need, and forks them. Each run becomes a child of
    this process, with this process's environment and folder at the time of the call. The process is
    the binary with the engine (preloaded.cc), or Python with torchrun (preloaded_torchrun.py).
    Tests of how the binary starts do not use it."""

    def __init__(self, program, server, **variables):
        self.program = program
        own_end, server_end = socket.socketpair()
        self.socket = own_end
        self.turn = threading.Lock()
        PR_SET_CHILD_SUBREAPER = 36
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        with server_end:
            variables["FTRUN_PRELOADED_SOCKET"] = str(server_end.fileno())
            self.server = subprocess.Popen(server, env=environment(variables),
                                           pass_fds=[server_end.fileno()])

    def start(self, arguments, output, errors, cwd=None, env=None):
        words = [self.program, *map(str, arguments)]
        variables = [f"{name}={value}" for name, value in environment(env).items()]
        texts = b"".join(os.fsencode(text) + b"\0"
                         for text in (str(cwd or os.getcwd()), *words, *variables))
        head = struct.pack("=III", len(texts), len(words), len(variables))
        with self.turn:
            socket.send_fds(self.socket, [head], [output.fileno(), errors.fileno()])
            self.socket.sendall(texts)
            answer = self.socket.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, f"{self.server.args} has ended: {self.server.wait()}"
        return PreloadedRun(struct.unpack("=i", answer)[0])

    def run(self, arguments, timeout, cwd=None):
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = self.start(arguments, output, errors, cwd)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            texts = [file.seek(0) or file.read() for file in (output, errors)]
        return subprocess.CompletedProcess([BINARY, *arguments], process.returncode, *texts)


PRELOADED = None
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
PRELOADED_TORCHRUN = None


def supports_pidfds():
    """Returns whether the kernel can report the end of a process through a descriptor."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def preload():
    """Loads the engine in a process from which each later training of ftrun() and start() is
    forked."""
    global PRELOADED
    library = os.environ.get("FTRUN_PRELOADED")
    if library and supports_pidfds():
        PRELOADED = Preloaded(BINARY, [BINARY], LD_PRELOAD=library)


def preload_torchrun():
    """Imports torch in a process from which each later agent in Running is forked, which saves
    three seconds of CPU time."""
    global PRELOADED_TORCHRUN
    if supports_pidfds():
        server = pathlib.Path(__file__).with_name("preloaded_torchrun.py")
        PRELOADED_TORCHRUN = Preloaded(TORCHRUN, [sys.executable, server])


def uses_preloaded_engine(arguments, env):
    """Returns whether the run is forked from Preloaded: it is a training (the other commands do not
    load the engine), and `env` is not given, not even empty."""
    return PRELOADED is not None and env is None and list(arguments[:1]) == ["--config"]


def ftrun(*arguments, env=None, timeout=TIMEOUT, cwd=None, wrapper=()):
    """Runs the binary; returns the finished process with stdout and stderr as text."""
    if not wrapper and uses_preloaded_engine(arguments, env):
        process = PRELOADED.run(arguments, timeout, cwd)
        refuse_traces(process.stdout + process.stderr)
        return process
    process = subprocess.run([*wrapper, BINARY, *map(str, arguments)], capture_output=True,
                             text=True,
                             env=environment(env), timeout=timeout, cwd=cwd)
    refuse_traces(process.stdout + process.stderr)
    return process


def must(process, code=0):
    """Fails unless a finished process ended with this exit code; returns the process."""
    record_exit(process.returncode, process.stdout + process.stderr)
    require_exit(process.returncode, code, f"stdout:\n{process.stdout[-3000:]}\nstderr:\n"
                                           f"{process.stderr[-3000:]}")
    return process


def peak_kib(*command):
    """Returns the peak memory of a process in KiB. A small helper process starts it, because this
    process's own memory would count before the exec."""
    script = ("import os, subprocess, sys\np = subprocess.Popen(sys.argv[1:], "
              "stdout=subprocess.DEVNULL)\n_, status, used = os.wait4(p.pid, 0)\n"
              "print(used.ru_maxrss)\nsys.exit(os.waitstatus_to_exitcode(status))")
    result = must(subprocess.run([sys.executable, "-c", script, *map(str, command)],
                                 capture_output=True, text=True, env=environment()))
    return int(result.stdout)


def metrics(out):
    """Returns the lines of a run's metrics.jsonl."""
    with open(pathlib.Path(out) / "metrics.jsonl") as lines:
        return [json.loads(line) for line in lines]


def step_lines(lines):
    """Returns the lines of metrics that belong to steps."""
    return [m for m in lines if "loss" in m and "evaluation" not in m]


def steps(out):
    """Returns the lines of a run's metrics that belong to steps."""
    return step_lines(metrics(out))


def losses(out):
    """Returns the loss of each training step of a run."""
    return [m["loss"] for m in steps(out)]


def steps_so_far(out):
    """Returns the steps that a run has recorded so far. The file may be missing, and a reader may
    see only the beginning of its last line."""
    path = pathlib.Path(out) / "metrics.jsonl"
    if not path.exists():
        return []
    complete_lines, _, _ = path.read_text().rpartition("\n")
    return step_lines(json.loads(line) for line in complete_lines.splitlines())


def evaluations(out, name="validation"):
    """Returns the evaluation lines of one set."""
    return [m for m in metrics(out) if m.get("evaluation") == name]


def accumulation_of_ranks(changes, ranks, micro_batches):
    """Returns the gradient_accumulation_steps with which the ranks of a config's layout together
    train this number of micro-batches per step."""
    layout = changes.get("parallel", {})
    return micro_batches * layout.get("tensor", 1) * layout.get("pipeline", 1) // ranks


def require_near(name, found, expected, relative):
    """Returns the largest relative difference; fails if it is above `relative`, and for NaN."""
    worst = float(np.max([abs(f - e) / abs(e) for f, e in zip(found, expected, strict=True)]))
    assert worst <= relative, f"{name}: off by {worst:.3g} relative, {relative:g} allowed"
    return worst


# --- a small random model and its data ---------------------------------------------------------


def tiny_weights(seed=0, hidden=32, inner=48, layers=2, heads=4, kv_heads=2, vocabulary=VOCABULARY):
    random = np.random.default_rng(seed)
    head = hidden // heads

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) * 0.1).astype(np.float32)

    def norm():
        return (1 + 0.1 * random.standard_normal(hidden)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocabulary, hidden), "model.norm.weight": norm(),
               "lm_head.weight": matrix(vocabulary, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (("self_attn.q_proj", heads * head, hidden),
                                    ("self_attn.k_proj", kv_heads * head, hidden),
                                    ("self_attn.v_proj", kv_heads * head, hidden),
                                    ("self_attn.o_proj", hidden, heads * head),
                                    ("mlp.gate_proj", inner, hidden),
                                    ("mlp.up_proj", inner, hidden),
                                    ("mlp.down_proj", hidden, inner)):
            weights[f"{prefix}{name}.weight"] = matrix(rows, columns)
        weights[f"{prefix}input_layernorm.weight"] = norm()
        weights[f"{prefix}post_attention_layernorm.weight"] = norm()
    return weights


TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}


def tiny_model(folder, weights=None, **changes):
    """Writes a Llama of 2 layers with random weights as a Hugging Face folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | changes, indent=1))
    save_file(weights or tiny_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tiny_data(path, tokens=4097, seed=0, vocabulary=VOCABULARY):
    """Writes a flat uint16 file of ids that a model can partly learn."""
    path = pathlib.Path(path)
    random = np.random.default_rng(seed)
    ids = np.zeros(tokens, dtype=np.uint16)
    for i in range(1, tokens):
        ids[i] = (random.integers(vocabulary) if random.random() < 0.2
                  else (int(ids[i - 1]) * 3 + 11) % vocabulary)
    path.write_bytes(ids.tobytes())
    return path


def data_with_unknown_token(path):
    """Writes data where sample 3 has an id that the model lacks; returns the settings. If two ranks
    read two samples at a time, the second rank reads it."""
    ids = np.fromfile(tiny_data(path), dtype=np.uint16)
    ids[100] = 5000
    ids.tofile(path)
    return {"train": str(path), "token_dtype": "uint16", "shuffle": False}


class Job:
    """A scratch folder with the small model and its data, and configs that use these."""

    def __init__(self, scratch, model=None):
        self.scratch = pathlib.Path(scratch)
        self.model = model or tiny_model(self.scratch / "model")
        self.data = tiny_data(self.scratch / "train.bin")
        self.runs = 0

    def config(self, name, **changes):
        """Writes a config whose output_dir is scratch/name; returns its path. Each rank has one
        thread, so that concurrent tests do not wait for each other's spinning threads."""
        value = config(self.model, self.data, self.scratch / name, threads=1)
        value["data"] = {**value["data"], "shuffle": True}
        for key, change in changes.items():
            if isinstance(change, dict) and isinstance(value.get(key), dict):
                value[key] = {**value[key], **change}
            elif change is None:
                value.pop(key, None)
            else:
                value[key] = change
        self.runs += 1
        return write_config(self.scratch, value, f"{name}-{self.runs}.json")

    def out(self, name):
        return self.scratch / name

    def run(self, name, *arguments, code=0, env=None, **changes):
        """Trains into scratch/name and returns the finished process."""
        return must(ftrun("--config", self.config(name, **changes), *arguments, env=env), code)


# --- sharded runs ------------------------------------------------------------------------------

SHARDED = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "head_dim": 16,
           "vocab_size": 499}
PRECISIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}},
              "fp16": {"fp16": {"enabled": True, "initial_scale_power": 10,
                                "loss_scale_window": 2}}}


def sharded_model(folder, **changes):
    """Writes a model so large that each of four ranks holds a part of each layer, with uneven
    parts."""
    shape = SHARDED | changes
    weights = tiny_weights(hidden=shape["hidden_size"], inner=shape["intermediate_size"],
                           layers=shape["num_hidden_layers"],
                           vocabulary=shape["vocab_size"])
    if shape.get("tie_word_embeddings"):
        del weights["lm_head.weight"]
    return tiny_model(folder, weights, **shape)


class ShardedJob(Job):
    """A job on the larger model: a few steps of 12 samples on any number of ranks, with small
    buckets."""

    SAMPLES = 12

    def __init__(self, scratch, **model_changes):
        super().__init__(scratch, sharded_model(pathlib.Path(scratch) / "model", **model_changes))
        self.done = {}

    def settings(self, ranks, precision="fp32", stage=0, zero=None, accumulation=1, **changes):
        """Returns settings with which, at stage 3, everything but the norms is sharded."""
        return {
            "train": {"steps": 4},
            "scheduler": {"type": "cosine",
                          "params": {"warmup_num_steps": 2, "total_num_steps": 6}},
            "train_micro_batch_size_per_gpu": self.SAMPLES // ranks // accumulation,
            "gradient_accumulation_steps": accumulation,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 30000,
                                  "allgather_bucket_size": 30000,
                                  "stage3_param_persistence_threshold": 100} | (zero or {}),
        } | PRECISIONS[precision] | changes

    def train(self, name, ranks, *arguments, **settings):
        """Trains once for each name; returns the run's folder."""
        if name not in self.done:
            self.done[name] = self.run(name, "--nproc", ranks, *arguments,
                                       **self.settings(ranks, **settings))
        return self.out(name)

    def plan(self, name, ranks, *arguments, **settings):
        """Returns the output of `ftrun plan`."""
        config = self.config(f"plan-{name}", **self.settings(ranks, **settings))
        return must(ftrun("plan", "--config", config, "--nproc", ranks, *arguments)).stdout


# --- what two runs are compared by -------------------------------------------------------------

TIMES = ("tokens_per_second", "step_seconds", "data_wait_seconds", "exposed_communication_seconds",
         "seconds", "counters", "memory")


def reproducible_metrics(out):
    """Returns the lines of metrics.jsonl without the values that depend on the clock or on the
    ranks."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in metrics(out)]


def exported_weights(out):
    """Returns the weights that a run exported, by name."""
    weights = {}
    for path in sorted((pathlib.Path(out) / "export" / "model").glob("*.safetensors")):
        weights.update(load_file(path))
    assert weights, f"{out}: no exported weights"
    return weights


def exported_adapter(out):
    """Returns the tensors of the adapter that a run has exported."""
    return load_file(pathlib.Path(out) / "export" / "adapter" / "adapter_model.safetensors")


def weights_hash(out):
    """Returns the SHA-256 of the files of weights that a run exported."""
    files = sorted((pathlib.Path(out) / "export" / "model").glob("*.safetensors"))
    assert files, f"{out}: no exported weights"
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def same_tensors(one, other):
    """Returns whether two sets of tensors have the same names and values; False if both are
    empty."""
    return bool(one) and one.keys() == other.keys() and all(np.array_equal(one[name], other[name])
                                                            for name in one)


def require_same_run(a, b):
    """Asserts that two runs have the same metrics, bit for bit, and the same exported weights."""
    first, second = reproducible_metrics(a), reproducible_metrics(b)
    assert len(first) == len(second), (
        f"the runs have {len(first)} and {len(second)} lines of metrics")
    for x, y in zip(first, second):
        assert x == y, f"metrics differ:\n{x}\n{y}"
    assert weights_hash(a) == weights_hash(b), "the exported weights differ"


def manifest(out):
    """Returns a run's run.json."""
    return json.loads((pathlib.Path(out) / "run.json").read_text())


def stored_boxes(folder, wanted=lambda tensor, kind: True, framework="np"):
    """Yields (slice of the manifest, its position in the whole tensor, values) for each slice of a
    checkpoint, read only with the information in docs/checkpoint.md."""
    for file in json.loads((folder / "checkpoint.json").read_text())["files"]:
        with safe_open(folder / file["file"], framework=framework) as held:
            for piece in file["slices"]:
                if not wanted(piece["tensor"], piece["kind"]):
                    continue
                place = tuple(slice(begin, begin + size)
                              for begin, size in zip(piece["offset"], piece["extent"]))
                name = f"{piece['tensor']}.{piece['kind']}"
                if piece["extent"] != piece["shape"]:
                    name += "[" + ",".join(f"{along.start}:{along.stop}" for along in place) + "]"
                yield piece, place, held.get_tensor(name)


def stored_arrays(folder, wanted=lambda tensor, kind: True, framework="np"):
    """Returns {(tensor, kind): the whole array} of a checkpoint; requires that each element occurs
    once. With the framework "pt", which reads every dtype, the arrays are in fp64."""
    tensors, written = {}, {}
    for piece, place, values in stored_boxes(folder, wanted, framework):
        key = (piece["tensor"], piece["kind"])
        values = values.double().numpy() if framework == "pt" else values
        done = written.setdefault(key, np.zeros(piece["shape"], dtype=bool))
        assert not done[place].any(), f"{key}: an element was written twice"
        done[place] = True
        tensors.setdefault(key, np.zeros(piece["shape"], dtype=values.dtype))[place] = values
    assert tensors and all(done.all() for done in written.values()), "an element is missing"
    return tensors


def checkpoints(out):
    """Returns the names of a run's checkpoints."""
    return sorted(p.name for p in (pathlib.Path(out) / "checkpoints").iterdir() if p.is_dir())


def kill_before_last_save(out, step, begin):
    """Starts a run with `begin`, and kills it after it has saved something and before it saves its
    last step, `step`."""
    last = f"step-{step:08}"
    for _ in range(ATTEMPTS):  # the kill may come too late
        shutil.rmtree(out, ignore_errors=True)
        running = begin()
        running.await_line("saved")
        running.kill_all()
        if last not in checkpoints(out):
            break
    assert last not in checkpoints(out), f"{ATTEMPTS} kills came after the last step"


def copy_without_last_save(out, to, step):
    """Copies the folder of a run that saves every step, as it was before its last step, `step`, was
    saved."""
    shutil.copytree(out, to)
    shutil.rmtree(to / "checkpoints" / f"step-{step:08}")
    (to / "checkpoints" / "latest").write_text(f"step-{step - 1:08}")


# --- running processes -------------------------------------------------------------------------


class Running:
    """A run that continues in parallel with the test; collects the lines of its stdout and
    stderr."""

    started = []

    def __init__(self, command, env=None):
        preloaded = None
        if command[0] == BINARY and uses_preloaded_engine(command[1:], env):
            preloaded = PRELOADED
        elif command[0] == TORCHRUN:
            preloaded = PRELOADED_TORCHRUN
        if preloaded:
            reader, writer = os.pipe()
            self.output = open(reader)
            with open(writer, "w") as output:
                self.process = preloaded.start(command[1:], output, output, env=env)
        else:
            self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT,
                                            text=True, env=environment(env))
            self.output = self.process.stdout
        self.lines = []
        self.arrived = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        Running.started.append(self)

    def _read(self):
        for line in self.output:
            with self.arrived:
                self.lines.append(line.rstrip("\n"))
                self.arrived.notify_all()

    def text(self):
        return "\n".join(self.lines)

    def await_line(self, part, after=0):
        """Waits for a line with this text, after the first `after` lines; returns the number of the
        line after it."""
        def found():
            return next((at + 1 for at in range(after, len(self.lines)) if part in self.lines[at]),
                        None)

        with self.arrived:
            end = time.monotonic() + TIMEOUT
            while not found() and self.process.poll() is None and time.monotonic() < end:
                self.arrived.wait(0.2)
        return await_that(found, f"there is a line with {part!r}", self, seconds=0)

    def kill(self, number=signal.SIGKILL, pid=None):
        os.kill(pid or self.process.pid, number)

    @contextlib.contextmanager
    def paused(self):
        """Stops the started process, a run of one rank, while the test changes what the run is
        about to use."""
        self.kill(signal.SIGSTOP)
        await_that(lambda: process_state(self.process.pid) == "T", "the run is stopped", self)
        yield
        self.kill(signal.SIGCONT)

    def kill_all(self):
        """Kills the started process with kill -9; waits until it and its ranks are gone."""
        ranks = children(self.process.pid)
        self.kill()
        self.process.wait(TIMEOUT)
        await_gone(ranks)

    def end(self):
        """Kills the process if it still runs, which also ends its ranks; does not wait for
        these."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def await_ranks(self, count):
        """Waits until the run has `count` ranks; returns their process ids, by rank."""
        def found():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                ranks = self.ranks()
                return ranks if len(ranks) == count else None

        return await_that(found, f"{count} ranks have started", self, pause=0.005)

    def ranks(self):
        """Returns the process ids of the ranks that a supervisor has started, by rank."""
        found = {}
        for pid in children(self.process.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if named := re.fullmatch(r"ftrun-rank-(\d+)\n",
                                         pathlib.Path(f"/proc/{pid}/comm").read_text()):
                    found[int(named[1])] = pid
        return found

    def wait(self, code=None, timeout=TIMEOUT):
        """Waits; returns the exit code, negative for a signal, as subprocess does."""
        try:
            exit_code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            fail_by_timeout(f"still running after {timeout} s", self.text())
        self.reader.join(10)
        refuse_traces(self.text())
        record_exit(exit_code, self.text())
        if code is not None:
            require_exit(exit_code, code, self.text()[-3000:])
        return exit_code


def start(*arguments, env=None):
    """Starts the binary in parallel with the test."""
    return Running([BINARY, *arguments], env)


def children(pid):
    """Returns the ids of a process's children."""
    pids = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        # The thread may have ended in the meantime.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def process_state(pid):
    """Returns the state letter of a process in /proc: T if it is stopped, Z if it has ended."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def is_alive(pid):
    """Returns whether a thread of a process still runs."""
    try:
        state = process_state(pid)
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    # Other threads of a killed process may still hold its files when the first thread has ended.
    return state != "Z" or threads > 1


def incomplete_checkpoints(out, checkpoint="step-*"):
    """Returns the folders of a run's incomplete checkpoints whose names match."""
    return list((pathlib.Path(out) / "checkpoints").glob(f"{checkpoint}.tmp-*"))


def await_save(running, out, seconds, checkpoint="step-*"):
    """Waits until a checkpoint is being written, but at most `seconds`, and not after the run's
    end."""
    end = time.monotonic() + seconds
    while (not incomplete_checkpoints(out, checkpoint) and time.monotonic() < end
           and running.process.poll() is None):
        time.sleep(0.0005)


def await_gone(pids, seconds=60):
    """Waits until processes have ended."""
    await_that(lambda: not any(is_alive(pid)
                               for pid in pids), "processes of ranks are gone", seconds=seconds)


def link_python(folder, source):
    """Links the Python environment of `source` into a scratch checkout, at the same relative path.
    Under another path each import would compile torch and transformers again
    (FTRUN_PYTHON_CACHE)."""
    python = pathlib.Path(folder) / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{source}/.venv/bin/python" "$@"\n')
    python.chmod(0o755)


def publish_on_hub(cache, name, folder, commit, kind="models", ref="main"):
    """Stores a folder in a Hugging Face cache, as huggingface_hub stores a snapshot of `name`:
    blobs, relative links to them, and a ref that names the commit."""
    repository = pathlib.Path(cache) / f"{kind}--{name.replace('/', '--')}"
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / part).mkdir(parents=True, exist_ok=True)
    for path in pathlib.Path(folder).iterdir():
        blob = f"{commit[:8]}-{path.name}"
        shutil.copy(path, repository / "blobs" / blob)
        (repository / "snapshots" / commit / path.name).symlink_to(f"../../blobs/{blob}")
    (repository / "refs" / ref).write_text(commit)
    return repository


def free_port():
    """Returns a TCP port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


CASES = []
MAX_CONCURRENT = 3


def case(function):
    """Marks a test case; run_cases() runs the cases in their order in the file."""
    CASES.append(function)
    return function


def waiting_case(function):
    """Marks a test case that mostly waits and shares no run with its neighbors: run_cases() runs
    adjacent such cases at the same time."""
    function.waits = True
    return case(function)


def needs(what):
    """Marks a test case that some machines cannot run. It becomes a separate CTest entry: the same
    script with `--needs WHAT`, which runs only these cases."""
    def marked(function):
        function.needs = what
        return case(function)
    return marked


def mount_problem():
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", folder],
                                 capture_output=True, text=True)
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return mounted.stderr.strip().splitlines()[-1] if mounted.returncode else ""


def terminal_problem():
    try:
        for end in os.openpty():
            os.close(end)
    except OSError as error:
        return f"no pseudo-terminal: {error}"
    return ""


def network_problem():
    result = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if result.returncode == 0:
        return ""
    return f"no network namespace of one's own: {result.stderr.strip()}"


def pids_problem():
    result = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"],
                            capture_output=True, text=True)
    return f"no process ids of one's own: {result.stderr.strip()}" if result.returncode else ""


# Maps each need to a function that returns why this machine cannot run such cases; "" if it can.
MISSING = {"mount": mount_problem, "network": network_problem, "pids": pids_problem,
           "terminal": terminal_problem}
SKIPPED = 77


def skip(why):
    """Ends this CTest entry, and makes CTest count it as skipped."""
    print(f"skipped: {why}", flush=True)
    sys.exit(SKIPPED)


def run_cases():
    """Runs all cases and prints their names; the first failure ends the test."""
    what = sys.argv[sys.argv.index("--needs") + 1] if "--needs" in sys.argv else None
    chosen = [function for function in CASES if getattr(function, "needs", None) == what]
    assert chosen, f"no case needs {what}"
    if what and (why := MISSING[what]()):
        skip(why)
    for waits, group in itertools.groupby(chosen,
                                          lambda function: getattr(function, "waits", False)):
        if waits:
            run_concurrently(group)
            continue
        for function in group:
            run_case(function)


def run_concurrently(functions):
    """Runs cases at the same time, up to MAX_CONCURRENT."""
    with concurrent.futures.ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        running = [pool.submit(run_case, function) for function in functions]
        try:
            for future in running:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def cpu_seconds():
    """Returns the CPU seconds of this process and of the processes that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_case(function):
    """Runs a case and prints its name and its time."""
    begin, before = time.monotonic(), cpu_seconds()
    function()
    times = f"{time.monotonic() - begin:.1f} s"
    if not getattr(function, "waits", False):  # times of concurrent cases cannot be separated
        times += f", {cpu_seconds() - before:.1f} s of CPU time"
    print(f"{function.__name__.replace('_', ' ')}: {times}", flush=True)
