#!/usr/bin/env python3
"""Derives the setting kernels.attention: auto from measured times of attention on a GPU.

  tests/bench/attention_choice.py OWN CUDNN

OWN and CUDNN are logs of gpu_kernel_bench.py, with --attention own and --attention cudnn. The
script prints how much faster cuDNN's attention is in each case, then this GPU's line for
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
THRESHOLD = 96  # a head size between these two
ROW = re.compile(r"^\| (attention[^|]*?) (\S+) (\d+ x \d+) \| ([0-9.]+) \|", re.M)
GPU = re.compile(r"^on (.+), compute capability (\d+)\.(\d+)$", re.M)


class IncompleteLogs(Exception):
    """An error of logs from which no choice follows."""


def times_of(log):
    """Returns milliseconds by (documents, model, shape), the sum of forward and backward."""
    times = collections.defaultdict(dict)
    for what, model, shape, milliseconds in ROW.findall(log):
        times["documents" in what, model, shape][what] = float(milliseconds)
    return {case: sum(parts.values()) for case, parts in times.items() if len(parts) == 2}


def gpu_of(log):
    """Returns (name, major, minor) of a log's GPU and its compute capability."""
    match = GPU.search(log)
    if not match:
        raise IncompleteLogs("the log does not say on which GPU it was made")
    return match[1], int(match[2]), int(match[3])


def ratios(own, cudnn):
    """Returns the ratio of our time to cuDNN's for each case."""
    if own.keys() != cudnn.keys():
        raise IncompleteLogs(f"only one of the logs has {sorted(own.keys() ^ cudnn.keys())}")
    return {case: own[case] / cudnn[case] for case in own}


def smallest_head_size(all_ratios, documents):
    """Returns the smallest head size for which the table should choose cuDNN, as the table writes
    it."""
    is_faster = {}
    for model in SIZES:
        model_ratios = [ratio for (of_documents, name, _), ratio in all_ratios.items()
                        if of_documents == documents and name == model]
        if not model_ratios:
            raise IncompleteLogs(f"no timing of heads of {SIZES[model]} elements" +
                                 (" in documents" if documents else ""))
        is_faster[model] = math.prod(model_ratios) > 1
    if is_faster["135M"] and is_faster["8B"]:
        return "0"
    if is_faster["135M"]:
        raise IncompleteLogs("cuDNN is faster only with narrow heads: the table has no such line")
    return str(THRESHOLD) if is_faster["8B"] else "kNoHead"


def table_line(own_log, cudnn_log):
    """Returns the line of the logs' GPU for the table."""
    name, major, minor = gpu_of(own_log)
    if gpu_of(cudnn_log) != (name, major, minor):
        raise IncompleteLogs("the logs were made on different GPUs")
    all_ratios = ratios(times_of(own_log), times_of(cudnn_log))
    plain, documents = (smallest_head_size(all_ratios, flag) for flag in (False, True))
    return f"    {{{major}, {minor}, {plain}, {documents}}},  // {name}"


def main():
    own, cudnn = (pathlib.Path(path).read_text() for path in sys.argv[1:3])
    try:
        line = table_line(own, cudnn)
    except IncompleteLogs as error:
        print(f"kernels.attention: auto, no rule: {error}")
        sys.exit(1)
    print("kernels.attention: auto (our time / cuDNN's; above 1, cuDNN is faster):")
    for (documents, model, shape), ratio in sorted(ratios(times_of(own), times_of(cudnn)).items()):
        print(f"    heads of {SIZES[model]}, {shape}{', documents' if documents else ''}: "
              f"{ratio:.2f}")
    print(f"the line of this GPU in {TABLE}:\n{line}")


if __name__ == "__main__":
    main()
