"""Runs a private SLURM on this machine: munged, slurmctld and one slurmd per node, all in a scratch
folder; the system's own SLURM is not touched."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from runner import TIMEOUT, TimedOut, await_gone, await_that, environment, free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue")
CONFIG = """ClusterName=ftruntest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{warning}
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
KillWait=20
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES \
PriorityTier=1 GraceTime=120
PartitionName=rest Nodes={rest} MaxTime=INFINITE State=UP OverSubscribe=YES PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
WARNING = "SlurmctldParameters=preempt_send_user_signal"
# These devices are not opened: SLURM counts them, assigns them and names them in
# CUDA_VISIBLE_DEVICES.
GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"

# A job leaves these states only if it is requeued, which its script requests before it ends.
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY")


def slurm_problem():
    """Returns why this machine cannot run its own SLURM; "" if it can."""
    if os.geteuid() != 0:
        return "not root"
    os.environ["PATH"] += ":/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return (f"no {', '.join(absent)} (Debian: slurmctld slurmd slurm-client munge; scripts/test.sh "
            "--with-launchers installs them)" if absent else "")


def parsed(moment):
    return time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))


def processes(name=None):
    """Yields (pid, its variables) for processes that can be inspected."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if name is None or (path / "comm").read_text() == name + "\n":
                yield int(path.name), (path / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


class Slurm:
    """Nodes n1, n2, ... that are all this machine. Their names are not in DNS, so a step on several
    nodes needs MASTER_ADDR."""

    def __init__(self, folder, nodes=2, warns=True):
        """Starts the cluster. With `warns`, a pre-empted job gets the signal of its --signal
        option, otherwise SIGTERM."""
        self.folder = pathlib.Path(folder)
        self.warns = warns
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.daemons = []
        self.variables = {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self):
        try:
            self._configure()
            self._start("munged", "--force", "--foreground", *(
                f"--{what}-file={self.folder}/munge.{what}"
                for what in ("key", "pid", "log", "seed")),
                f"--socket={self.folder}/munge.socket")
            self._await("munge.socket is there", lambda: (self.folder / "munge.socket").exists())
            self._start("slurmctld", "-D")
            for node in self.nodes:
                self._start("slurmd", "-D", "-N", node)
            self._await("nodes are idle",
                        lambda: self.run("sinfo", "-h", "-o", "%T").stdout.split() == ["idle"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._end_jobs()
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        await_gone([daemon.pid for daemon in self.daemons])

    def _end_jobs(self):
        """Ends the jobs, because their slurmstepd would outlive the daemons."""
        if not self.daemons or any(daemon.poll() is not None for daemon in self.daemons):
            return
        self.run("scancel", "--user=root", "--full")
        end = time.monotonic() + 30
        while self._steps() or self.run("squeue", "-h").stdout:
            if time.monotonic() > end:
                for pid in self._steps():
                    os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.1)

    def _steps(self, node="*"):
        """Returns the process ids of a node's job steps. They cannot be found by their parent, but
        they write to the log of its slurmd."""
        logs = {str(path) for path in self.folder.glob(f"slurmd.{node}.log")}
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (path / "comm").read_text() == "slurmstepd\n" and any(
                    os.readlink(fd) in logs for fd in (path / "fd").iterdir()
                ):
                    found.append(int(path.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def _configure(self):
        for name in ("state", *(f"spool.{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 "
            "RealMemory=1000 Gres=gpu:2 State=UNKNOWN"
            for node in self.nodes
        ]
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(
                host=host,
                folder=self.folder,
                port=free_port(),
                nodes="\n".join(lines),
                warning=WARNING if self.warns else "",
                rest=",".join(self.nodes[-2:]),
            )
        )
        (self.folder / "gres.conf").write_text(GPUS)
        # None of these plugins needs control groups; but slurmd ends if it has to find out which
        # kind a machine has, and it has both.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start(self, *command):
        log = open(self.folder / f"{len(self.daemons)}-{command[0]}.out", "wb")
        self.daemons.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                             env=environment(self.variables)))

    def _await(self, what, ready):
        def ended():
            return [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]

        try:
            await_that(lambda: ready() or ended(), what, pause=0.1)
        except TimedOut as late:
            raise TimedOut(f"{late}\n{self.logs()}") from None
        assert not ended(), f"{what}: ended: {ended()}\n{self.logs()}"

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self, script, *options, **variables):
        """Submits a script; returns the number of the job or of the array."""
        result = self.run("sbatch", "--parsable", *options, script, variables=variables)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def fields(self, job):
        """Returns the fields of `scontrol show job`, by name."""
        lines = self.run("scontrol", "show", "job", "-o", job).stdout.splitlines()
        assert lines, f"no job {job}"
        return dict(word.split("=", 1) for word in lines[0].split() if "=" in word)

    def await_state(self, job, state, restarts=0):
        """Waits until a job has this state after at least so many requeues; returns its fields.
        Fails at once if the job has ended in another state, which it does not leave."""
        fields = {}

        def reached():
            fields.update(self.fields(job))
            assert fields["JobState"] == state or fields["JobState"] not in ENDED, (
                f"job {job} is not {state}: {fields}\n{self.output_of(fields)}")
            return (
                fields
                if fields["JobState"] == state and int(fields["Restarts"]) >= restarts
                else None
            )

        try:
            return await_that(reached, f"job {job} is {state} after {restarts} requeues", pause=0.1)
        except TimedOut as late:
            raise TimedOut(f"{late}\n{fields}\n{self.output_of(fields)}\n{self.logs()}") from None

    @staticmethod
    def output_of(fields):
        """Returns the end of a job's output."""
        path = pathlib.Path(fields["StdOut"])
        return path.read_text(errors="replace")[-2000:] if path.exists() else f"no {path}"

    def await_startable(self, job, restarts=1):
        """Waits until a requeued job may start, which it may not within the second in which its
        first start ended."""
        queued = self.await_state(job, "PENDING", restarts)
        await_that(
            lambda: time.time() > parsed(queued["SubmitTime"]) + 2,
            f"job {job} may start",
            pause=0.1,
        )

    def start_again(self, job, restarts=1):
        """Starts a requeued job at once; SLURM itself would wait two minutes."""
        self.await_startable(job, restarts)
        result = self.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        assert result.returncode == 0, result.stderr

    def pids(self, job, name):
        """Returns the processes of a job with this name (ftrun-rank-1)."""
        return [
            pid for pid, variables in processes(name) if f"SLURM_JOB_ID={job}".encode() in variables
        ]

    def fail_node(self, node):
        """Kills all processes of the node at once, and tells SLURM that the node is down."""
        daemon = next(each for each in self.daemons if each.args[-1] == node)
        job_steps = [
            pid for pid, variables in processes() if f"SLURMD_NODENAME={node}".encode() in variables
        ]
        for pid in [daemon.pid, *self._steps(node), *job_steps]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it ended with its step
                pass
        daemon.wait()
        self.daemons.remove(daemon)
        result = self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=failed")
        assert result.returncode == 0, result.stderr

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                         for path in sorted(self.folder.glob("*.out"))
                         + sorted(self.folder.glob("*.log")))

    def run(self, *command, variables=None, timeout=TIMEOUT):
        return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout,
                              cwd=self.folder,
                              env=environment({**self.variables, **(variables or {})}))
