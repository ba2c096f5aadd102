"""Checkpoints of torch.distributed.checkpoint, made by two processes that train the model
beside this file with FSDP2:

  make_dcp.py OUT      OUT/CASE/checkpoint, OUT/CASE/expected.json (as make_fixtures.py has it)

fp32 and bf16: model and optimizer as nested dictionaries. flattened: as torchtitan writes them
(flat optimizer state, numbers of the trainer), some weights cut by columns."""
import hashlib
import json
import pathlib
import sys

from training_job import (AFTER, BATCH, HERE, SAVED, SEQUENCE, batches, loss_of, mean_over_ranks,
                          run_ranks)

RANKS = 2
CASES = ("fp32", "bf16", "flattened")


def sharded(name, torch):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "model", dtype=torch.float32,
                                                              attn_implementation="eager").train()
    options = {}
    if name == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                    reduce_dtype=torch.float32)
    if name == "flattened":
        options["shard_placement_fn"] = lambda parameter: Shard(1) if parameter.shape == (
            16, 24) else None
    for layer in model.model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def gather(model, optimizer, dist):
    found = {}
    for name, parameter in model.named_parameters():
        for kind in ("param", "exp_avg", "exp_avg_sq"):
            value = parameter.detach() if kind == "param" else optimizer.state[parameter][kind]
            found[f"{name}.{kind}"] = hashlib.sha256(
                value.full_tensor().float().contiguous().numpy().tobytes()).hexdigest()
    return found


def train(name, out):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,
                                                         get_optimizer_state_dict)
    rank = dist.get_rank()
    model = sharded(name, torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    rows = batches(rank, RANKS)

    def step(s):
        loss = loss_of(model, rows(s))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return mean_over_ranks(loss, RANKS)

    for s in range(SAVED):
        step(s)
    flat = name == "flattened"
    state = {"model": get_model_state_dict(model),
             "optimizer": get_optimizer_state_dict(model, optimizer,
                                                   options=StateDictOptions(
                                                       flatten_optimizer_state_dict=flat))}
    if flat:
        state = {**state.pop("model"), **state, "lr_scheduler": scheduler.state_dict(),
                 "train_state": {"step": SAVED,
                                 "ntokens_seen": torch.tensor(SAVED * BATCH * SEQUENCE)}}
    dcp.save(state, checkpoint_id=str(out / "checkpoint"))
    expected = {"states": gather(model, optimizer, dist), "step": SAVED, "skipped_steps": 0,
                "loss_scaler": None, "stage": 3,
                "precision": "bf16" if name == "bf16" else "fp32", "groups": 1,
                "constant_rate": True,
                "tokens": SAVED * BATCH * SEQUENCE if flat else None}
    expected["losses"] = [step(s) for s in range(SAVED, SAVED + AFTER)]
    if rank == 0:
        (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    dist.barrier()


def worker(out):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in CASES:
        (out / name).mkdir(exist_ok=True)
        train(name, out / name)
    dist.destroy_process_group()


if sys.argv[1] == "--worker":
    worker(pathlib.Path(sys.argv[2]))
else:
    run_ranks(__file__, RANKS, [sys.argv[1]], "a rank failed")
