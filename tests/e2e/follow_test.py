"""Tests scripts/follow_run.py with fake clients that record their calls: on a finished run, on one
that continues and is resumed meanwhile, on a torn line, and with a missing client."""
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

from runner import Job, await_that, case, ftrun, must, require_in_time, run_cases, start, steps

SCRIPT = pathlib.Path(sys.argv[1]) / "scripts" / "follow_run.py"
FAKE = {
    "wandb": """
        class Run:
            def define_metric(self, *a, **k): said("define_metric", *a, **k)
            def log(self, *a, **k): said("log", *a, **k)
            def finish(self, *a, **k): said("finish", *a, **k)
        def init(*a, **k):
            said("init", *a, **k)
            return Run()
    """,
    "mlflow": """
        def __getattr__(name):
            if name.startswith("__"): raise AttributeError(name)
            return lambda *a, **k: said(name, *a, **k)
    """}
FAKE["trackio"] = FAKE["mlflow"]
SAID = """
import json, os
def said(called, /, *a, **k):
    with open(os.environ["SAID"], "a") as file:
        file.write(json.dumps([called, a, k]) + "\\n")
"""


def line(step, **more):
    return json.dumps({"step": step, "loss": 4.0 / step, "grad_norm": 1.0, "lr": 0.1, "tokens": 8,
                       **more}) + "\n"


def evaluation(step, loss):
    return json.dumps({"step": step, "evaluation": "validation", "loss": loss,
                       "perplexity": "Infinity", "accuracy": 0.5, "tokens": 4}) + "\n"


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    modules = scratch / "modules"
    modules.mkdir()
    for name, body in FAKE.items():
        (modules / f"{name}.py").write_text(SAID + "\n".join(text[8:] for text in body.splitlines())
                                            + "\n")

    def run_folder(name, metrics, code=0):
        folder = scratch / name
        folder.mkdir()
        (folder / ".lock").write_text("")
        (folder / "metrics.jsonl").write_text(metrics)
        (folder / "run.json").write_text(json.dumps({"exit_code": code,
                                                     "config": {"train": {"steps": 3},
                                                                "long": "x" * 5000}}))
        return folder

    def command(folder, to, *more):
        return [sys.executable, str(SCRIPT), str(folder), "--to", to, "--poll", "0.05",
                "--patience", "0.2", *more]

    def place(name, path=modules):
        return {**os.environ, "PYTHONPATH": str(path), "SAID": str(scratch / f"{name}.said"),
                "PYTHONDONTWRITEBYTECODE": "1"}

    def calls_of(name):
        path = scratch / f"{name}.said"
        return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []

    def follow(folder, to, *more):
        result = subprocess.run(command(folder, to, *more), capture_output=True, text=True,
                                env=place(folder.name), timeout=60)
        assert "Traceback" not in result.stderr, result.stderr
        return result

    @case
    def a_run_that_has_ended_is_sent_completely():
        text = evaluation(0, 5.0) + line(1) + line(2, loss="NaN",
                                                   memory={"parameters": 64}) + evaluation(
                                                       2, 3.0) + line(3, loss="NaN", tokens=0) \
            + json.dumps({"step": 3, "evaluation": "none", "loss": "NaN", "perplexity": "NaN",
                          "tokens": 0}) + '\n{"step": 4, "lo\n'
        folder = run_folder("done", text)
        result = follow(folder, "wandb", "--project", "p")
        assert result.returncode == 0 and result.stdout == (
            f"sent 4 steps of {folder} to wandb (exit code 0; 1 unreadable lines were skipped)\n"
        ), result
        calls = calls_of("done")
        assert (calls[0][0] == "init" and calls[0][2]["project"] == "p"
                and calls[0][2]["name"] == "done"), calls[0]
        assert calls[0][2]["config"]["train"]["steps"] == 3 and calls[0][2]["resume"] == "allow"
        logs = [a[0] for name, a, _ in calls if name == "log"]
        assert (logs[0] == {"step": 0, "validation/loss": 5.0,
                            "validation/perplexity": float("inf"), "validation/accuracy": 0.5}), (
            logs)
        assert (logs[1] == {"step": 1, "train/loss": 4.0, "train/grad_norm": 1.0,
                            "train/learning_rate": 0.1}), logs
        assert (logs[2]["memory/parameters"] == 64
                and logs[2]["train/loss"] != logs[2]["train/loss"]
                and logs[2]["validation/loss"] == 3.0)
        assert logs[3] == {"step": 3, "train/grad_norm": 1.0, "train/learning_rate": 0.1}, (
            "what has no value is not sent")
        assert calls[-1] == ["finish", [], {"exit_code": 0}]

    @case
    def a_step_whose_update_was_skipped_is_sent_as_such():
        follow(run_folder("skips", line(1) + line(2, skipped=True, samples=8)), "wandb")
        logs = [a[0] for name, a, _ in calls_of("skips") if name == "log"]
        assert "train/skipped" not in logs[0] and logs[1]["train/skipped"] == 1, logs
        assert logs[1]["train/samples"] == 8, logs

    @case
    def the_other_clients_are_called_as_they_want():
        folder = run_folder("two", line(1) + evaluation(1, 2.0), code=7)
        result = follow(folder, "mlflow")
        assert (result.returncode == 0 and "follow_run: long: is too long for an MLflow parameter "
                                         "and is left out" in result.stderr), result
        names = [name for name, _, _ in calls_of("two")]
        assert names == ["set_experiment", "start_run", "log_params", "log_metrics", "end_run"], (
            names)
        assert (calls_of("two")[2][1] == [{"train.steps": "3"}]
                and calls_of("two")[3][2] == {"step": 1}), calls_of("two")
        assert calls_of("two")[-1][2] == {"status": "FAILED"}
        other = run_folder("three", line(1))
        follow(other, "trackio", "--name", "mine")
        names = [name for name, _, _ in calls_of("three")]
        assert names == ["init", "log", "finish"], calls_of("three")
        assert (calls_of("three")[0][2]["name"] == "mine"
                and calls_of("three")[0][2]["config"]["train.steps"] == 3)

    @case
    def a_run_is_followed_while_it_goes_on_and_through_a_resume():
        folder = run_folder("live", line(1), code=None)
        with open(folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            following = subprocess.Popen(command(folder, "wandb"), env=place("live"),
                                         stdout=subprocess.PIPE, text=True)

            def sent():
                return [a[0]["step"] for name, a, _ in calls_of("live") if name == "log"]

            def await_steps(steps):
                await_that(lambda: sent() == steps
                           or following.poll() is not None, f"steps {steps} are sent")
                assert sent() == steps, (sent(), steps)

            await_steps([1])
            with open(folder / "metrics.jsonl", "a") as file:
                file.write(line(2) + line(3)[:20])
                file.flush()
                await_steps([1, 2])
                file.write(line(3)[20:])
            await_steps([1, 2, 3])
            # A resume from step 1 replaces the file and trains steps 2 and 3 again.
            (folder / "new").write_text(line(1) + line(2))
            os.replace(folder / "new", folder / "metrics.jsonl")
            with open(folder / "metrics.jsonl", "a") as file:
                file.write(line(3) + line(4))
            await_steps([1, 2, 3, 4])
            with open(folder / "metrics.jsonl", "a") as file:
                file.write(evaluation(4, 1.0))
        out, _ = following.communicate(timeout=60)
        assert (following.returncode == 0 and "sent 5 steps" in out
                and "(the run was killed)" in out), out
        assert calls_of("live")[-1] == ["finish", [], {"exit_code": 1}]

    @case
    def a_missing_client_and_a_missing_run_are_reported():
        empty = scratch / "empty"
        empty.mkdir()
        folder = run_folder("none", line(1))
        # -S hides site packages, regardless of the packages on this machine.
        result = subprocess.run([sys.executable, "-S", *command(folder, "trackio")[1:]],
                                capture_output=True, text=True, env=place("none", empty),
                                timeout=60)
        assert result.returncode == 5 and result.stderr == (
            "follow_run: error: the client of trackio is not installed; install it: "
            f"{sys.executable} -m pip install trackio\n"), result.stderr
        result = follow(empty, "wandb")
        assert result.returncode == 4 and "holds no run" in result.stderr, result.stderr

    # The run itself starts the following cases' clients: DeepSpeed's wandb section.

    (scratch / "job").mkdir()
    job = Job(scratch / "job")
    WANDB = {"wandb": {"enabled": True, "project": "p", "team": "t", "group": None},
             "train": {"steps": 4}, "export": {"enabled": False}}

    def client(name, body):
        """Returns a folder for PYTHONPATH with a client module of this body."""
        folder = scratch / name
        folder.mkdir()
        (folder / "wandb.py").write_text(SAID + textwrap.dedent(body))
        return place(name, folder)

    SENDS = """
        import sys
        class Run:
            resumed, summary = "KNOWN" in os.environ, json.loads(os.environ.get("KNOWN", "{}"))
            def define_metric(self, *a, **k): pass
            def log(self, *a, **k): said("log", *a, **k)
            def finish(self, *a, **k): said("finish", *a, **k)
        def init(*a, **k):
            links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            files = {os.readlink(link) for link in links if os.path.exists(link)}
            said("init", session=os.getsid(0) == os.getpid(), nice=os.nice(0), files=sorted(files),
                 environment=[name for name in os.environ if name.startswith("FTRUN_")], **k)
            return Run()
    """

    @case
    def a_run_starts_what_sends_it_and_shares_nothing_with_it():
        env = client("sends", SENDS)
        result = job.run("sends", "--nproc", 2, env=env, train_batch_size=8,
                         gradient_accumulation_steps=None, **WANDB)
        assert "wandb" not in result.stdout + result.stderr, result.stdout + result.stderr
        out = job.out("sends")
        await_that(lambda: calls_of("sends")[-1:] == [["finish", [],
                                                       {"exit_code": 0}]], "the run is sent whole")
        _, _, init = calls_of("sends")[0]
        assert (init["project"] == "p" and init["entity"] == "t" and "group" not in init
                and init["config"]["train"]["steps"] == 4), init
        assert init["session"] and init["nice"] >= 10 and init["environment"] == [], init
        assert (not [name for name in init["files"] if ".lock" in name or "socket" in name
                     or "shm" in name]), init["files"]
        logs = [a[0] for name, a, _ in calls_of("sends") if name == "log"]
        assert [log["step"] for log in logs] == [m["step"] for m in steps(out)]
        await_that(lambda: "sent 4 steps" in (out / "follow_run.log").read_text(),
                   "its words are kept")
        # A resume starts no second sender while the one of an earlier start of the run lives.
        calls = len(calls_of("sends"))
        with open(out / "follow_run.log", "a") as log:
            await_that(lambda: not is_locked(log), "it has ended")
            repeated = must(ftrun("--config", job.config("sends", train_batch_size=8,
                                                         gradient_accumulation_steps=None,
                                                         **WANDB | {"train": {"steps": 6}}),
                                  "--nproc", 2, "--resume", "auto", env=env))
        assert len(calls_of("sends")) == calls, calls_of("sends")[calls:]
        stderr = repeated.stdout + repeated.stderr
        assert ("the process that sends an earlier start of the run was still running" in stderr
                and "--to wandb" in stderr), stderr
        # After that one has ended, a resume starts another one, if wandb is installed.
        must(ftrun("--config", job.config("sends", train_batch_size=8,
                                          gradient_accumulation_steps=None,
                                          **WANDB | {"train": {"steps": 8}}),
                   "--nproc", 2, "--resume", "auto",
                   env=env | {"KNOWN": json.dumps(logs[-1] | {"validation/loss": 1.0})}))
        await_that(lambda: calls_of("sends")[-1:] == [["finish", [], {"exit_code": 0}]]
                   and len(calls_of("sends")) > calls, "the rest is sent")
        assert ([a[0]["step"] for name, a, _ in calls_of("sends")[calls:]
                 if name == "log"] == [5, 6, 7, 8]), calls_of("sends")[calls:]

    def is_locked(file):
        """Tries to take the lock of the process that follows a run; returns whether another process
        has it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True

    @case
    def without_a_client_a_run_warns_as_soon_as_it_is_known_and_at_its_end():
        folder = scratch / "nowhere"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text("import sys\nsys.modules['wandb'] = None\n")
        # The run is long enough for the slowest Python; the answer is read at the next progress
        # line.
        going_on = start("--config", job.config("without", **WANDB | {"train": {"steps": 1000000}}),
                         env=place("without", folder))
        going_on.await_line("wandb.enabled: the run is not sent: no Python here has the client "
                            "wandb; install it")
        going_on.await_line("step 3/")
        going_on.kill(signal.SIGTERM)
        going_on.wait(143)
        text = going_on.text()
        assert text.count("wandb.enabled: the run is not sent") == 1, text
        assert (text.count("wandb.enabled: the run was not sent: no Python here has the client "
                           "wandb; install it") == 1), text
        assert text.index("is not sent") < text.index("was not sent"), text

    @case
    def a_folder_of_the_clients_name_is_no_client_and_a_slow_python_holds_up_no_step():
        env = scratch / "slow"
        (env / "bin").mkdir(parents=True)
        (env / "bin" / "python3").write_text("#!/bin/sh\nsleep 8\nexit 1\n")
        (env / "bin" / "python3").chmod(0o755)
        nowhere = scratch / "still-nowhere"
        (nowhere / "wandb").mkdir(parents=True)
        begun = time.monotonic()
        result = job.run("slow", "--nproc", 2,
                         env=place("slow", nowhere) | {"VIRTUAL_ENV": str(env)},
                         train_batch_size=8, gradient_accumulation_steps=None, comm={"timeout": 5},
                         **WANDB)
        assert len(steps(job.out("slow"))) == 4, result.stdout
        require_in_time(begun, 60, "a run beside a Python of 8 s")

    @case
    def a_client_that_fails_or_hangs_does_not_touch_the_run():
        for name, body in (("fails", "def init(*a, **k): raise RuntimeError('no network')"),
                           ("kills", "import os, signal\nos.kill(0, signal.SIGKILL)")):
            job.run(name, env=client(name, body), **WANDB)
            assert len(steps(job.out(name))) == 4, name
        await_that(lambda: "no network" in (job.out("fails") / "follow_run.log").read_text(),
                   "the client's words are kept")
        hangs = client("hangs", "import time\ndef init(*a, **k): time.sleep(1000)")
        folder = run_folder("hanging", line(1))
        result = subprocess.run([*command(folder, "wandb"), "--with-run", "0.3"],
                                capture_output=True, text=True, env=hangs, timeout=60)
        assert result.returncode == 1, result
        assert "the tracker has not received all of its steps" in result.stderr, result

    @case
    def words_of_one_tracker_are_refused_for_another():
        folder = run_folder("words", line(1))
        result = subprocess.run([*command(folder, "mlflow"), "--team", "t"], capture_output=True,
                                text=True, env=place("words"), timeout=60)
        assert result.returncode == 2 and "--team works only with --to wandb" in result.stderr, (
            result)

    run_cases()
