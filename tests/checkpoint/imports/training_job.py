"""The training that make_fixtures.py and make_dcp.py do with other programs: its data,
its steps, its ranks."""
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
# Steps before the checkpoint and after it.
SEQUENCE, BATCH, SAVED, AFTER = 16, 6, 4, 3


def batches(rank, ranks):
    """Returns {step: the samples that a rank trains on}, each [samples, SEQUENCE + 1]."""
    import torch
    data = np.fromfile(HERE / "train.bin", dtype=np.uint16).astype(np.int64)

    def rows(step):
        mine = range(step * BATCH + rank * BATCH // ranks,
                     step * BATCH + (rank + 1) * BATCH // ranks)
        return torch.from_numpy(np.stack([data[r * SEQUENCE:(r + 1) * SEQUENCE + 1] for r in mine]))

    return rows


def loss_of(model, rows):
    import torch
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def mean_over_ranks(loss, ranks):
    import torch
    import torch.distributed as dist
    total = torch.tensor([loss.item()], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / ranks


def run_ranks(script, ranks, arguments, failure, **variables):
    """Runs `script --worker ARGUMENTS` on local ranks; ends with `failure` when one fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(ranks),
              "HF_HUB_OFFLINE": "1", **variables}
    processes = [subprocess.Popen([sys.executable, script, "--worker", *map(str, arguments)],
                                  env={**common, "RANK": str(r), "LOCAL_RANK": str(r)})
                 for r in range(ranks)]
    if any([process.wait() for process in processes]):
        raise SystemExit(failure)
