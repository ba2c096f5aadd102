#!/usr/bin/env python3
"""Says what measured times of attention on a GPU mean for the setting kernels.attention: auto.

  tests/bench/attention_choice.py OWN CUDNN

OWN and CUDNN are logs of gpu_kernel_bench.py, with --attention own and --attention cudnn. Shows
how much faster cuDNN's attention is in each case, then this GPU's line for
lib/kernels/measured_attention.h. That line chooses cuDNN for a head size if it takes less time in
the geometric mean of the size's cases, forward and backward of a shape together. The exit status
is 1 if a log lacks a case of the other one, or both lack one that the rule needs.
"""
import collections
import math
import pathlib
import re
import sys

TABLE = "lib/kernels/measured_attention.h"
# Head sizes of the benchmark's two models (HEADS of gpu_kernel_bench.py), smallest first.
SIZES = {"135M": 64, "8B": 128}
BETWEEN = 96
ROW = re.compile(r"^\| (attention[^|]*?) (\S+) (\d+ x \d+) \| ([0-9.]+) \|", re.M)
GPU = re.compile(r"^on (.+), compute capability (\d+)\.(\d+)$", re.M)


class Incomplete(Exception):
    """Incomplete is raised for logs from which no choice follows."""


def times_of(log):
    """Returns milliseconds by (documents, model, shape), the sum of forward and backward."""
    found = collections.defaultdict(dict)
    for what, model, shape, milliseconds in ROW.findall(log):
        found["documents" in what, model, shape][what] = float(milliseconds)
    return {case: sum(parts.values()) for case, parts in found.items() if len(parts) == 2}


def gpu_of(log):
    found = GPU.search(log)
    if not found:
        raise Incomplete("the log does not say on which GPU it was made")
    return found[1], int(found[2]), int(found[3])


def ratios(own, cudnn):
    """Returns the ratio of our time to cuDNN's for each case."""
    if own.keys() != cudnn.keys():
        raise Incomplete(f"only one of the logs has {sorted(own.keys() ^ cudnn.keys())}")
    return {case: own[case] / cudnn[case] for case in own}


def narrowest(found, documents):
    """Returns the smallest head size for which the table should choose cuDNN, as the table writes
    it."""
    pays = {}
    for model in SIZES:
        some = [ratio for (of_documents, name, _), ratio in found.items()
                if of_documents == documents and name == model]
        if not some:
            raise Incomplete(f"no timing of heads of {SIZES[model]} elements" +
                             (" in documents" if documents else ""))
        pays[model] = math.prod(some) > 1
    if pays["135M"] and pays["8B"]:
        return "0"
    if pays["135M"]:
        raise Incomplete("cuDNN is faster with narrow heads alone: the table has no such line")
    return str(BETWEEN) if pays["8B"] else "kNoHead"


def table_line(own_log, cudnn_log):
    name, major, minor = gpu_of(own_log)
    if gpu_of(cudnn_log) != (name, major, minor):
        raise Incomplete("the logs were made on different GPUs")
    found = ratios(times_of(own_log), times_of(cudnn_log))
    return (f"    {{{major}, {minor}, {narrowest(found, False)}, {narrowest(found, True)}}},"
            f"  // {name}")


def main():
    own, cudnn = (pathlib.Path(path).read_text() for path in sys.argv[1:3])
    try:
        line = table_line(own, cudnn)
    except Incomplete as why:
        print(f"kernels.attention: auto, no rule: {why}")
        sys.exit(1)
    print("kernels.attention: auto (our time / cuDNN's; above 1, cuDNN is faster):")
    for (documents, model, shape), ratio in sorted(ratios(times_of(own), times_of(cudnn)).items()):
        print(f"    heads of {SIZES[model]}, {shape}{', documents' if documents else ''}: "
              f"{ratio:.2f}")
    print(f"the line of this GPU in {TABLE}:\n{line}")


if __name__ == "__main__":
    main()
