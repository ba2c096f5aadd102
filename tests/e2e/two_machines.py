"""Lets this machine act as two: each has a separate network, host name and processes, and a single
cable connects them. The cable is two TUN devices between which a thread carries packets, with a
given delay and rate, so the kernel does not need netem. Nothing outside the machines' own
namespaces is changed."""
import collections
import ctypes
import fcntl
import os
import select
import shutil
import struct
import subprocess
import threading
import time

from runner import BINARY, Running, await_that, children

PROGRAMS = ("unshare", "nsenter", "ip")
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
# A packet that would wait longer than this at the end of the cable is dropped, as by a switch whose
# memory is full.
LONGEST_QUEUE = 0.3
NAMESPACES = ["--net", "--uts", "--pid", "--mount"]


def namespace_problem():
    """Returns why this machine cannot act as two; "" if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} (Debian: util-linux iproute2)"
    result = subprocess.run(["unshare", *NAMESPACES, "--fork", "--mount-proc", "ip", "link", "set",
                             "lo", "up"], capture_output=True,
                            text=True)
    if result.returncode:
        return f"no network namespace of one's own: {result.stderr.strip().splitlines()[-1]}"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"no TUN device: {error}"
    return ""


def tun_in(pid):
    """Opens a TUN device in the network namespace of that process."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(network):
        if libc.setns(network.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{pid}/ns/net") as theirs:
        enter(theirs)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"cable", IFF_TUN | IFF_NO_PI))
        finally:
            enter(own)
    return device


class Cable:
    """Carries packets between two TUN devices until close()."""

    def __init__(self, ends):
        self.ends = ends
        # The delay of a packet in seconds, and the rate in bytes per second (None: unlimited).
        self.delay, self.rate = 0.0, None
        self.cut = False  # if set, packets are lost
        self.carried = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()

    def close(self):
        self.over.set()
        self.thread.join()
        for end in self.ends:
            os.close(end)

    def _carry(self):
        # (time of arrival, packet), by the end where the packet entered
        under_way = [collections.deque(), collections.deque()]
        free = [0.0, 0.0]
        while not self.over.is_set():
            dues = [queue[0][0] for queue in under_way if queue]
            wait = min(max(min(dues) - time.monotonic(), 0), 0.1) if dues else 0.1
            readable, _, _ = select.select(self.ends, [], [], wait)
            for end in readable:
                self._take(end, under_way[self.ends.index(end)], free)
            now = time.monotonic()
            for to, queue in zip(reversed(self.ends), under_way):
                while queue and queue[0][0] <= now:
                    self._give(to, queue.popleft()[1])

    def _take(self, end, queue, free):
        which = self.ends.index(end)
        try:
            packet = os.read(end, 65536)
        except OSError:  # there is no packet, or the device is down
            time.sleep(0.001)
            return
        now = time.monotonic()
        begin = max(free[which], now)
        if self.cut or begin - now > LONGEST_QUEUE:
            return
        free[which] = begin + (len(packet) / self.rate if self.rate else 0)
        queue.append((free[which] + self.delay, packet))

    def _give(self, to, packet):
        try:
            os.write(to, packet)
            self.carried += 1
        except OSError:  # the device is down
            pass


class Machine:
    """Processes in this machine see each other, and as their network only their end of the
    cable."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.holder = subprocess.Popen(["unshare", *NAMESPACES, "--fork", "--kill-child",
                                        "--mount-proc", "sleep", "3600"])
        own = f"/proc/{self.holder.pid}/exe"
        await_that(lambda: (inside := children(self.holder.pid))
                   and os.readlink(f"/proc/{inside[0]}/exe") != os.readlink(own),
                   "a machine has its first process", pause=0.005)
        self.first = children(self.holder.pid)[0]
        self.device = tun_in(self.first)
        self.run("hostname", name)
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "addr", "add", f"{address}/24", "dev", "cable")
        self.link("up")

    def inside(self, *command):
        return ["nsenter", "-t", str(self.first), *NAMESPACES, *map(str, command)]

    def run(self, *command):
        subprocess.run(self.inside(*command), check=True)

    def link(self, state):
        """Sets the link up or down. Nobody is notified when it goes down, so the other machine
        waits for answers."""
        self.run("ip", "link", "set", "cable", state)

    def start(self, config, rank, *options, master, port, **variables):
        """Starts one of two ranks as a process of this machine."""
        return Running(self.inside(BINARY, "--config", config, *options), {
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": master, "MASTER_PORT": str(port),
            **variables})

    def close(self):
        self.holder.kill()
        self.holder.wait()


class TwoMachines:
    def __enter__(self):
        self.machines = [Machine("north", "10.83.0.1"), Machine("south", "10.83.0.2")]
        self.cable = Cable([machine.device for machine in self.machines])
        return self

    def __exit__(self, *_):
        for machine in self.machines:
            machine.close()
        self.cable.close()

    def start(self, config, *options, **variables):
        """Starts a rank on each machine; rank 0 is on the first."""
        # Each machine has its own ports.
        return [machine.start(config, rank, *options, master=self.machines[0].address, port=29400,
                              **variables)
                for rank, machine in enumerate(self.machines)]
