"""Small training runs on layouts of each kind, for scripts that disturb them and compare the
resulting bits."""

VOCABULARY = 211  # the last of 2 tensor ranks has a row of padding
STEPS = {"train": {"steps": 40}, "scheduler": {"type": "cosine", "params": {"warmup_num_steps": 3}},
         "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
         "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}


def kinds(scratch):
    """Returns the layouts by name: the number of ranks, and the config keys."""
    disk = {"device": "nvme", "nvme_path": str(scratch / "swap")}

    def zero(stage, **keys):
        return {"zero_optimization": {"stage": stage} | keys}

    return {
        "one rank": (1, {}),
        "two ranks": (2, {}),
        "three ranks, stage 3": (3, zero(3)),
        "two ranks, disk tier": (2, zero(3, offload_optimizer=disk, offload_param=disk)),
        "tensor": (2, {"parallel": {"tensor": 2}}),
        "pipeline, 1f1b": (2, {"parallel": {"pipeline": 2, "schedule": "1f1b"}}),
        "pipeline, zb-h1": (2, {"parallel": {"pipeline": 2, "schedule": "zb-h1"}}),
        "hybrid": (4, {"parallel": {"data": 4, "data_replicate": 2}} | zero(3)),
        "fp16": (2, {"fp16": {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 2}}
                 | zero(1)),
        # An epoch has twelve steps; its last rows are dropped.
        "accumulation, mid-epoch": (2, {"train_micro_batch_size_per_gpu": 1,
                                        "gradient_accumulation_steps": 5,
                                        "dataloader_drop_last": True} | zero(2)),
    }
