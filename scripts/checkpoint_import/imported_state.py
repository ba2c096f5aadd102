"""The result of reading a checkpoint of another program: where each state of each tensor lies, and
the numbers of the run."""
import dataclasses

import numpy as np

from .inert_pickle import BadFile

KINDS = ("param", "exp_avg", "exp_avg_sq")
# The number of elements that are in memory at a time.
PIECE = 1 << 20


@dataclasses.dataclass
class StateBox:
    """A box of a state. Its elements are contiguous in `tensor()`, beginning at element `first`."""
    begin: tuple
    size: tuple
    tensor: object
    first: int = 0


@dataclasses.dataclass
class State:
    """A state of a tensor, made of boxes. The boxes divide an array of shape `grid`: the shape of
    the tensor, or (number of elements,) if the tensor is divided as a flat range."""
    shape: tuple
    grid: tuple
    parts: list

    def pieces(self, name):
        """Yields all elements in fp32, a few rows at a time. Each element must be in exactly one
        part."""
        rows = self.grid[0] if self.grid else 1
        row = element_count(self.grid[1:])
        if rows * row == 0:
            return
        step = max(1, PIECE // max(1, row))
        for first in range(0, rows, step):
            last = min(rows, first + step)
            values = np.empty((last - first, row), dtype=np.float32)
            fill_counts = np.zeros((last - first, row), dtype=np.uint8)
            for part in self.parts:
                self._fill(part, first, last, values, fill_counts)
            if not (fill_counts == 1).all():
                first_wrong = int(np.flatnonzero(fill_counts.reshape(-1) != 1)[0])
                what = "is in no file" if (fill_counts == 0).any() else "occurs more than once"
                raise BadFile(f"{name}: element {first * row + first_wrong} {what}")
            yield values

    def _fill(self, part, first, last, values, fill_counts):
        begin, size = (part.begin, part.size) if self.grid else ((0,), (1,))
        a, b = max(first, begin[0]), min(last, begin[0] + size[0])
        if a >= b or element_count(size) == 0:
            return
        inner = element_count(size[1:])
        tensor = part.tensor()
        at = part.first + (a - begin[0]) * inner
        elements = tensor.read_f32(at, at + (b - a) * inner).reshape(b - a, *size[1:])
        index = (slice(a - first, b - first),
                 *(slice(o, o + s) for o, s in zip(begin[1:], size[1:])))
        rows = (values.shape[0], *self.grid[1:])
        values.reshape(rows)[index] = elements
        fill_counts = fill_counts.reshape(rows)
        fill_counts[index] = np.minimum(fill_counts[index], 1) + 1  # 2 means more than once


def element_count(shape):
    """Returns the number of elements of a shape."""
    elements = 1
    for size in shape:
        elements *= size
    return elements


def flat_state(shape, parts, name):
    """Returns a state made of consecutive ranges. Each range is (tensor, its first element, number
    of elements)."""
    boxes, at = [], 0
    for tensor, first, elements in parts:
        boxes.append(StateBox((at,), (elements,), lambda tensor=tensor: tensor, first))
        at += elements
    if at != element_count(shape):
        raise BadFile(f"{name}: its parts on all ranks have {at} elements, its shape {list(shape)} "
                      f"has {element_count(shape)}")
    return State(tuple(shape), (at,), boxes)


@dataclasses.dataclass
class ImportedRun:
    """The state of a run of another program, with that program's names."""
    source: str
    states: dict = dataclasses.field(default_factory=dict)  # (name, kind): State
    # The model's weights by name, for parameters without master weights (frozen ones).
    working: dict = dataclasses.field(default_factory=dict)
    # tied weights: {name: the name under which they are stored}
    aliases: dict = dataclasses.field(default_factory=dict)
    frozen: set = dataclasses.field(default_factory=set)
    step: int = None
    skipped_steps: int = 0
    samples: int = None
    tokens: int = None
    updates: int = None  # the optimizer's own count of steps
    scheduler: dict = dataclasses.field(default_factory=dict)
    loss_scaler: dict = None
    known: dict = dataclasses.field(default_factory=dict)  # settings by ftrun's names
    notes: list = dataclasses.field(default_factory=list)
