#!/usr/bin/env python3
"""Runs the baselines with settings that make them fastest on this machine. train_bench.py starts
this script.

  tuned_baseline.py KIND --common FOLDER [--compile] [--meta] [--stage 1|2|3]
                [the arguments of FOLDER/common.py]

KIND is single, ddp, fsdp2 or deepspeed. FOLDER holds common.py, which the plain baseline trainers
use, too: data order, loss, optimizer, report. What is different here:

  --compile   the model through torch.compile (inductor; FSDP2 and DeepSpeed compile layer by layer)
  --meta      FSDP2: the model is made on the meta device and sharded there, and each rank reads
              only its own shards; DeepSpeed stage 3: parameters are sharded as they are made
              (zero.Init) and read shard by shard
  ddp         static graph, gradients as views of the buckets
  fsdp2       the next layer's gather is started ahead (set_modules_to_forward_prefetch), and the
              root stays gathered
  deepspeed   overlap_comm with buckets small enough to overlap (5e6 elements, the launcher's own),
              contiguous gradients, prefetch; its CPU Adam with --cpu-adam

Huge pages and tcmalloc are environment variables, which train_bench.py sets.
"""
import argparse
import os
import pathlib
import sys

BUCKET = 5_000_000


def arguments():
    own = argparse.ArgumentParser(description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("kind", choices=["single", "ddp", "fsdp2", "deepspeed"])
    own.add_argument("--common", required=True)
    own.add_argument("--compile", action="store_true")
    own.add_argument("--meta", action="store_true")
    own.add_argument("--stage", type=int, default=3)
    own.add_argument("--cpu-adam", action="store_true")
    return own.parse_known_args()


def join_group():
    import torch.distributed as dist
    dist.init_process_group("gloo")


def compiled(a, own, model):
    """Compiles the model: all of it at once if one process holds it, else layer by layer, since
    hooks run between the layers."""
    if not own.compile:
        return model
    import torch
    if own.kind in ("single", "ddp"):
        return torch.compile(model)
    for layer in model.model.layers:
        layer.compile()
    return model


def empty_model(a):
    """Returns the model on the meta device, where it takes no memory yet."""
    import torch
    import transformers
    config = transformers.AutoConfig.from_pretrained(a.model)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32,
                                                              attn_implementation=a.attn)
    model.train()
    if a.ckpt:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def fill_shards(a, model):
    """Reads this rank's rows of every tensor (FSDP2 divides the first dimension as torch.chunk
    does)."""
    import torch
    from safetensors import safe_open
    model.to_empty(device="cpu")
    model.tie_weights()
    for module in model.modules():  # RoPE's frequencies, which no file has
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.__init__(model.config)
    tensors = {}
    for path in pathlib.Path(a.model).glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            tensors |= dict.fromkeys(file.keys(), path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            with safe_open(tensors[name], "pt") as file:
                rows = file.get_slice(name)
                local = parameter.to_local()
                each = -(-rows.get_shape()[0] // a.ranks)
                if local.numel():
                    local.copy_(rows[a.rank * each:a.rank * each + local.shape[0]])


def sharded_by_fsdp(a, own, common):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = compiled(a, own, empty_model(a) if own.meta else common.load_model(a))
    mesh = init_device_mesh("cpu", (a.ranks,))
    layers = list(model.model.layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=own.stage == 3)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for layer, following in zip(layers, layers[1:]):
        layer.set_modules_to_forward_prefetch([following])
    if own.meta:
        fill_shards(a, model)
    return model


def train_with_torch(a, own, common):
    import torch
    torch.set_num_threads(a.threads)
    if own.kind != "single":
        join_group()
    if own.kind == "fsdp2":
        model = sharded_by_fsdp(a, own, common)
    else:
        model = common.load_model(a)
        if own.kind == "ddp":
            from torch.nn.parallel import DistributedDataParallel
            model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        model = compiled(a, own, model)
    data, optimizer = common.Data(a), common.adamw(a, model.parameters())
    report = common.Report(a, f"tuned_{own.kind}")
    for step in range(a.steps):
        loss = common.loss_fn(model, *data.batch(step, 0))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        report.step(step, loss.item(), norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    report.done()


def deepspeed_config(a, own):
    return {
        "train_micro_batch_size_per_gpu": a.mb, "gradient_accumulation_steps": 1,
        "gradient_clipping": a.clip,
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 30,
        "zero_optimization": {"stage": own.stage, "overlap_comm": True,
                              "contiguous_gradients": True, "reduce_scatter": True,
                              "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET,
                              "stage3_prefetch_bucket_size": BUCKET,
                              "stage3_param_persistence_threshold": 4096}}


def train_with_deepspeed(a, own, common):
    import logging
    import deepspeed
    import torch
    from deepspeed.utils import logger
    logger.setLevel(logging.WARNING)
    torch.set_num_threads(a.threads)
    deepspeed.init_distributed(dist_backend="gloo")
    settings = deepspeed_config(a, own)
    kept = None
    if own.meta and own.stage == 3:
        from transformers.integrations import HfDeepSpeedConfig
        # from_pretrained shards what it reads for as long as this object exists.
        kept = HfDeepSpeedConfig(settings)
    model = compiled(a, own, common.load_model(a))
    if own.cpu_adam:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        optimizer = DeepSpeedCPUAdam(model.parameters(), lr=a.lr, betas=(0.9, 0.95),
                                     weight_decay=a.wd, adamw_mode=True)
    else:
        optimizer = common.adamw(a, model.parameters())
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    data, report = common.Data(a), common.Report(a, f"tuned_deepspeed_{own.stage}")
    for step in range(a.steps):
        loss = common.loss_fn(engine, *data.batch(step, 0))
        engine.backward(loss)
        engine.step()
        report.step(step, loss.item(), engine.get_global_grad_norm() or float("nan"))
    report.done()
    del kept


def main():
    own, rest = arguments()
    sys.path.insert(0, own.common)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import common
    whole = sys.argv[:]
    sys.argv = [sys.argv[0], *rest]
    # common.parse restarts this script under torchrun, with all of its arguments.
    if "--ranks" in rest and int(rest[rest.index("--ranks") + 1]) > 1 and "RANK" not in os.environ:
        sys.argv = whole
        launch(common, rest)
    a = common.parse(__doc__)
    assert a.acc == 1 and a.dtype == "fp32", "one micro-batch a step, in fp32"
    (train_with_deepspeed if own.kind == "deepspeed" else train_with_torch)(a, own, common)


def launch(common, rest):
    ranks = rest[rest.index("--ranks") + 1]
    os.environ.setdefault("PEER_T0", repr(common._process_start()))
    os.environ["OMP_NUM_THREADS"] = str(max(1, 2 // int(ranks)))
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    os.execv(torchrun, [torchrun, "--standalone", "--nproc-per-node", ranks, *sys.argv])


if __name__ == "__main__":
    main()
