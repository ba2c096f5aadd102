#!/usr/bin/env python3
"""Sends what a run writes to a tracker, with the tracker's own client: while it trains, or
afterwards.

  scripts/follow_run.py runs/mine --to wandb
  scripts/follow_run.py runs/mine --to mlflow --project chats
  scripts/follow_run.py runs/mine --to trackio --name first

The script reads metrics.jsonl and run.json and changes nothing in the run folder. It ends when the
run has ended, or --patience seconds after a run has failed or was killed. The charts have
TensorBoard's names: train/loss, train/learning_rate, ..., and SET/loss, SET/perplexity,
SET/accuracy for each evaluated set. Steps that a resumed run trains again are sent once. With
wandb, a later start of the script continues after the last step that wandb has. The client's own
log-in and environment variables (WANDB_MODE, MLFLOW_TRACKING_URI, ...) say where the values go.
"""
import argparse
import contextlib
import fcntl
import hashlib
import importlib
import json
import math
import os
import sys
import threading
import time

import script_errors
from script_errors import MissingPackage, UserError

# The tags are those of tensorboard_scalars() (lib/report/step_metrics.cc), which
# tests/house/tags_test.py compares.
STEP_TAGS = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate",
           "tokens_per_second": "train/tokens_per_second", "loss_scale": "train/loss_scale",
           "samples": "train/samples", "skipped": "train/skipped",
           "step_seconds": "time/step_seconds", "data_wait_seconds": "time/data_wait_seconds",
           "exposed_communication_seconds": "time/exposed_communication_seconds"}
MAX_PARAMETER_LENGTH = 500  # the limit of MLflow's oldest servers


def parse_number(value):
    """Returns a number in metrics.jsonl, where values that are not finite are written as strings;
    1 for a flag that is set; None if the value is not a number."""
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else None


def parse_metrics(line):
    """Returns a line of metrics.jsonl as (step, {name: number}); None for an incomplete or foreign
    line."""
    try:
        line = json.loads(line)
    except ValueError:
        return None
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        return None
    if isinstance(line.get("evaluation"), str):
        names = {key: f"{line['evaluation']}/{key}" for key in ("loss", "perplexity", "accuracy")}
    else:
        names = STEP_TAGS
    # These values mean nothing if no token counts in the loss.
    meaningless = ("loss", "perplexity", "accuracy") if line.get("tokens") == 0 else ()
    values = {name: parse_number(line[key]) for key, name in names.items() if key in line
              and key not in meaningless}
    if names is STEP_TAGS and isinstance(line.get("memory"), dict):
        values |= {f"memory/{name}": parse_number(value) for name, value in line["memory"].items()}
    return line["step"], {name: value for name, value in values.items() if value is not None}


def equal_or_nan(a, b):
    """Returns whether two numbers are equal or both NaN; `b` may be None."""
    return a == b or (b is not None and math.isnan(a) and math.isnan(b))


def flatten(config, prefix=""):
    """Yields (key, value) of a config; keys of sections are joined by dots."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Metrics:
    """Reads metrics.jsonl while it grows. A resumed run replaces the file by one without the steps
    that it trains again."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "metrics.jsonl")
        self.file, self.partial_line, self.unreadable, self.sent = None, "", 0, set()

    def reopen(self):
        """Opens the file if it is new or was replaced."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return
        if (self.file is None or (status.st_ino, status.st_dev) != self.file_id
                or status.st_size < self.file.tell()):
            if self.file:
                self.file.close()
            self.file, self.partial_line = open(self.path, encoding="utf-8", errors="replace"), ""
            status = os.fstat(self.file.fileno())
            self.file_id = (status.st_ino, status.st_dev)

    def read_new(self):
        """Returns the values that were written since the last call, by step, in order of steps."""
        self.reopen()
        steps = {}
        if self.file is None:
            return steps
        lines = (self.partial_line + self.file.read()).split("\n")
        self.partial_line = lines.pop()
        for line in lines:
            record = parse_metrics(line)
            if record is None:
                self.unreadable += 1
                continue
            step, values = record
            new_values = {name: value for name, value in values.items()
                          if (step, name) not in self.sent}
            self.sent |= {(step, name) for name in new_values}
            if new_values:
                steps.setdefault(step, {}).update(new_values)
        return dict(sorted(steps.items()))


class Wandb:
    """Sends values with the client of Weights & Biases."""

    package = "wandb"

    def __init__(self, client, project, name, config, key, group=None, team=None):
        owners = {word: value for word, value in (("group", group), ("entity", team)) if value}
        self.run = client.init(project=project, name=name, config=config, id=key, resume="allow",
                               **owners)
        # Charts use our own step as their axis, because wandb drops values that are sent for an
        # earlier step of its own.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        is_resumed = getattr(self.run, "resumed", False)
        summary = getattr(self.run, "summary", None) if is_resumed else None
        last_step = summary.get("step") if summary is not None else None
        self.first_step = last_step if isinstance(last_step, int) else 0
        # An evaluation of the last step may not have been sent. wandb knows the last value of each
        # name, so only other values are sent.
        self.last_values = {name: parse_number(summary.get(name))
                            for name in summary.keys()} if isinstance(last_step, int) else {}

    def log(self, step, values):
        """Sends the values of a step."""
        if step == self.first_step:
            values = {name: value for name, value in values.items()
                      if not equal_or_nan(value, self.last_values.get(name))}
        if values:
            self.run.log({**values, "step": step})

    def finish(self, code):
        """Ends the tracker's run with an exit code."""
        self.run.finish(exit_code=code)


class Mlflow:
    """Sends values with the client of MLflow."""

    package = "mlflow"
    first_step = 0

    def __init__(self, client, project, name, config, key):
        self.client = client
        client.set_experiment(project)
        client.start_run(run_name=name, tags={"ftrun": key})
        texts = {key: str(value) for key, value in flatten(config)}
        parameters = {key: text for key, text in texts.items() if len(text) <= MAX_PARAMETER_LENGTH}
        for long_key in texts.keys() - parameters.keys():
            print(f"follow_run: {long_key}: is too long for an MLflow parameter and is left out",
                  file=sys.stderr)
        items = list(parameters.items())
        for begin in range(0, len(items), 100):
            client.log_params(dict(items[begin:begin + 100]))

    def log(self, step, values):
        """Sends the values of a step."""
        self.client.log_metrics(values, step=step)

    def finish(self, code):
        """Ends the tracker's run with an exit code."""
        self.client.end_run(status="FINISHED" if code == 0 else "FAILED")


class Trackio:
    """Sends values with the client of Trackio."""

    package = "trackio"
    first_step = 0

    def __init__(self, client, project, name, config, key):
        self.client = client
        client.init(project=project, name=name, config=dict(flatten(config)))

    def log(self, step, values):
        """Sends the values of a step."""
        self.client.log(values, step=step)

    def finish(self, code):
        """Ends the tracker's run."""
        self.client.finish()


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}


def import_client(tracker):
    """Imports the client of a tracker."""
    try:
        return importlib.import_module(tracker.package)
    except ImportError as error:
        if error.name != tracker.package:
            raise UserError(f"{tracker.package} cannot be imported: {error}") from error
        raise MissingPackage(f"the client of {tracker.package} is not installed; install it: "
                             f"{sys.executable} -m pip install {tracker.package}") from error


@contextlib.contextmanager
def client_errors(name):
    """Reports errors of a tracker's client as errors of the environment, such as the log-in, the
    network or the server."""
    try:
        yield
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise script_errors.MachineError(
            f"the client of {name} failed: {type(error).__name__}: {first}; check its log-in, its "
            "server and its environment variables, or see the stack trace with "
            f"{script_errors.DEBUG}") from error


def read_manifest(folder):
    """Returns the record in run.json; an empty one if it is missing or damaged."""
    try:
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            record = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def is_held(folder):
    """Returns whether a process holds the run's lock, which a run holds as long as its process
    lives."""
    try:
        lock = os.open(os.path.join(folder, ".lock"), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def quiet_seconds(folder):
    """Returns the seconds since the run last wrote a file. A run that failed or was killed may be
    started again within that time."""
    times = [os.stat(path).st_mtime for name in ("run.json", "metrics.jsonl")
             if os.path.exists(path := os.path.join(folder, name))]
    return time.time() - max(times, default=time.time())


def release_follow_lock(folder):
    """Releases the lock on the log (this process's standard output), which shows that the run is
    being followed. So another follower can start with a new start of the run while the tracker
    still receives the last steps. Returns False if a process holds the run again, which this
    process then continues to follow; otherwise True."""
    if is_held(folder):
        return False
    try:
        fcntl.flock(sys.stdout.fileno(), fcntl.LOCK_UN)
        if not is_held(folder):
            return True
        fcntl.flock(sys.stdout.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True  # another process follows the run now
    return False


def end_after(folder, seconds, poll):
    """Ends this process `seconds` after the last process that held the run has ended, even if the
    client is still waiting."""
    last_held = time.monotonic()
    while time.monotonic() - last_held < seconds:
        time.sleep(poll)
        if is_held(folder):
            last_held = time.monotonic()
    print(f"follow_run: the run ended {seconds:g} s ago, but the tracker has not received all of "
          "its steps; run scripts/follow_run.py to send the rest", file=sys.stderr, flush=True)
    os._exit(1)


def follow(options):
    """Sends the values of a run until it has ended."""
    if not any(os.path.isfile(os.path.join(options.run, name))
               for name in ("run.json", "metrics.jsonl")):
        raise UserError(f"{options.run}: holds no run (run.json); give the output_dir of a run "
                        "that has begun")
    client = import_client(TRACKERS[options.to])
    record = read_manifest(options.run)
    config = record.get("config") if isinstance(record.get("config"), dict) else {}
    folder = os.path.realpath(options.run)
    key = hashlib.sha256(f"{folder}\n{options.name or ''}".encode()).hexdigest()[:16]
    owners = {word: value for word, value in (("group", options.group), ("team", options.team))
              if value}
    if owners and options.to != "wandb":
        raise script_errors.UsageError(f"--{next(iter(owners))} works only with --to wandb; remove "
                                       f"it with --to {options.to}")
    if options.with_run is not None:
        os.nice(10)
        threading.Thread(target=end_after, args=(options.run, options.with_run, options.poll),
                         daemon=True).start()
    with client_errors(options.to):
        tracker = TRACKERS[options.to](client, options.project,
                                       options.name or os.path.basename(folder), config, key,
                                       **owners)
    metrics, sent = Metrics(options.run), 0
    last_running = -math.inf
    while True:
        running = is_held(options.run)  # checked before reading, so that nothing is missed
        for step, values in metrics.read_new().items():
            if step < tracker.first_step:
                continue
            with client_errors(options.to):
                tracker.log(step, values)
            sent += 1
        if running:
            last_running = time.monotonic()
        quiet = min(quiet_seconds(options.run), time.monotonic() - last_running)
        if not running and (read_manifest(options.run).get("exit_code") == 0
                            or quiet >= options.patience):
            if options.with_run is None or release_follow_lock(options.run):
                break
        time.sleep(options.poll)
    code = read_manifest(options.run).get("exit_code")
    with client_errors(options.to):
        tracker.finish(1 if code is None else code)
    ending = "the run was killed" if code is None else f"exit code {code}"
    skipped = f"; {metrics.unreadable} unreadable lines were skipped" if metrics.unreadable else ""
    print(f"sent {sent} steps of {options.run} to {options.to} ({ending}{skipped})")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder (output_dir)")
    parser.add_argument("--to", required=True, choices=sorted(TRACKERS))
    parser.add_argument("--project", default="ftrun",
                        help="the tracker's project or experiment (default: ftrun)")
    parser.add_argument("--name", help="the tracker's name for the run (default: the folder's "
                                       "name)")
    parser.add_argument("--group", help="group of runs, with --to wandb")
    parser.add_argument("--team", help="account or team of the project, with --to wandb")
    parser.add_argument("--with-run", type=float, metavar="SECONDS",
                        help="used by a run that starts the script itself (wandb.enabled): lowers "
                             "the priority, and ends the script at most SECONDS after the run")
    parser.add_argument("--poll", type=float, default=2.0, metavar="SECONDS",
                        help="seconds between two reads of a run that continues (default: 2)")
    parser.add_argument("--patience", type=float, default=60.0, metavar="SECONDS",
                        help="seconds to wait for a restart of a run that failed or was killed "
                             "(default: 60)")
    script_errors.add_debug(parser)
    options = parser.parse_args()
    return script_errors.run("follow_run", lambda: follow(options))


if __name__ == "__main__":
    script_errors.install_excepthook("follow_run")
    sys.exit(main())
