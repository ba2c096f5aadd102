"""Reads the step program that `ftrun plan --program` prints."""
import re

LANES = {"": "compute", "|": "communication", ">": "to device", "<": "to host", "=": "disk"}
BUFFER = re.compile(r"  (\S+)  (?:(host|nvme) )?(\w+)  (\d+) B  ")
INSTR = re.compile(r" *(\d+)  ([|><=])? ?(.*)")
PARTS = re.compile(r"  (?=reads |writes |waits |if finite|starts early)")


class Instr:
    def __init__(self, number, lane, text):
        label, *parts = PARTS.split(text)
        self.number, self.lane = number, LANES[lane or ""]
        self.label, self.kind = label, label.split()[0]
        said = {part.split()[0]: part.split()[1:] for part in parts}
        self.reads = [place.split("[")[0] for place in said.get("reads", [])]
        self.writes = [place.split("[")[0] for place in said.get("writes", [])]
        self.waits = [int(other[1:]) for other in said.get("waits", [])]

    @property
    def computes(self):
        return self.kind in ("forward", "backward", "input_grad", "weight_grad")


class StepText:
    """A step program: `instrs` in order; `buffers` maps a name to (tier, category, bytes)."""

    def __init__(self, text):
        head, _, body = text.partition("\ninstructions (lanes: ")
        self.buffers = {name: (tier or "device", category, int(size))
                        for name, tier, category, size in BUFFER.findall(head)}
        lines = [line for line in body.split("\n\n")[0].split("\n")[1:] if line]
        self.instrs = [Instr(int(number), lane, rest)
                       for number, lane, rest in (INSTR.fullmatch(line).groups() for line in lines)]
        assert (self.instrs
                and [i.number for i in self.instrs] == list(range(len(self.instrs)))), text[:500]
        assert self.buffers, text[:500]

    def count(self, kind, lane=None):
        return sum(i.kind == kind and lane in (None, i.lane) for i in self.instrs)

    def bytes(self, tier=None, category=None, prefix=""):
        return sum(size for name, (t, c, size) in self.buffers.items()
                   if tier in (None, t) and category in (None, c) and name.startswith(prefix))

    def lives(self, prefix):
        """Returns the first and the last instruction that touches each buffer whose name has this
        prefix."""
        lives = {}
        for i in self.instrs:
            for name in {*i.reads, *i.writes}:
                if name.startswith(prefix):
                    lives[name] = (lives.get(name, (i.number,))[0], i.number)
        return lives

    def peak(self, prefix):
        """Returns the maximum number of bytes that the buffers whose names begin with `prefix` hold
        at the same time."""
        lives = self.lives(prefix)
        return max((sum(self.buffers[name][2] for name, (first, last) in lives.items()
                        if first <= i <= last)
                    for i in range(len(self.instrs))), default=0)

    def most_ahead(self, prefix="gathered."):
        """Returns the largest number of forward and backward lists between a buffer's first write
        and its first reader."""
        most = 0
        for name, (first, _) in self.lives(prefix).items():
            reader = next(i.number for i in self.instrs if i.computes and name in i.reads)
            most = max(most, sum(i.computes for i in self.instrs[first:reader]))
        return most

    def running_beside(self):
        """Returns the forward and backward lists that start while an earlier instruction of the
        communication lane may still be running."""
        beside, awaited = 0, -1
        for i in self.instrs:
            if i.lane != "compute":
                continue
            awaited = max([awaited, *(wait for wait in i.waits
                                      if self.instrs[wait].lane == "communication")])
            open_before = [e.number for e in self.instrs[:i.number] if e.lane == "communication"
                           and e.number > awaited]
            beside += i.computes and bool(open_before)
        return beside
