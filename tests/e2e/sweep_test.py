"""Checks that settings of speed and memory change no bit: with any bucket sizes, overlap, prefetch,
kept parameters, offload, recompute and transport, metrics and weights are the same, on three ranks
and on four (with two, additions cannot be reordered). The program shows that each setting does
change the step. Whole runs are spot checks: tests/engine/stages_test.cc trains all combinations of
stages, precisions and settings in one process."""
import tempfile

from runner import ShardedJob, case, preload, run_cases, require_same_run
from step_text import StepText

LARGE = 500_000_000
# Buckets and prefetched parameters are at most a quarter of a rank's gradients. With fewer layers,
# those of stages 2 and 3 would be one unit whatever the config says.
MODEL = {"num_hidden_layers": 24, "intermediate_size": 96}
UNIT = 36864  # elements of a layer's matrices, divided by three ranks and padded
CPU = {"device": "cpu"}
FULL = {"recompute": "full"}

with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = ShardedJob(scratch, **MODEL)
    NVME = {"device": "nvme", "nvme_path": f"{scratch}/nvme"}

    def zero(stage, **keys):
        return {"stage": stage,
                "zero": {"reduce_bucket_size": 60000, "allgather_bucket_size": 60000} | keys}

    # Name -> settings; each differs by one setting from "plain" of its stage.
    WAYS = {
        "plain-1": zero(1),
        "plain-2": zero(2),
        "plain-3": zero(3),
        "small-buckets-1": zero(1, reduce_bucket_size=1000, allgather_bucket_size=1000),
        "large-buckets-1": zero(1, reduce_bucket_size=LARGE, allgather_bucket_size=LARGE),
        "small-buckets-2": zero(2, reduce_bucket_size=1000),
        "small-buckets-3": zero(3, reduce_bucket_size=1000),
        "overlap-1": zero(1, overlap_comm=True),
        "overlap-2": zero(2, overlap_comm=True),
        "no-overlap-3": zero(3, overlap_comm=False),
        "prefetch-nothing": zero(3, stage3_prefetch_bucket_size=0),
        "prefetch-one": zero(3, stage3_prefetch_bucket_size=UNIT + 1000),
        "live-one": zero(3, stage3_max_live_parameters=UNIT),
        "live-two": zero(3, stage3_max_live_parameters=80000),
        "reuse-near": zero(3, stage3_max_reuse_distance=2 * UNIT),
        "reuse-all": zero(3, stage3_max_reuse_distance=LARGE),
        "host": zero(3, offload_optimizer=CPU, offload_param=CPU),
        "disk": zero(3, offload_optimizer=NVME, offload_param=NVME),
        "selective": {**zero(3), "recompute": "selective"},
        "full": {**zero(3), **FULL},
        "every-2": {**zero(3), "recompute": {"policy": "full", "every": 2}},
        "activations-on-host": {**zero(3), **FULL,
                                "activation_checkpointing": {"cpu_checkpointing": True}},
        "selective-0": {**zero(0), "recompute": "selective"},
        "full-1": {**zero(1), **FULL},
        "all-at-once": {**zero(3, reduce_bucket_size=1000, stage3_prefetch_bucket_size=UNIT,
                               stage3_max_live_parameters=80000,
                               offload_optimizer=NVME, offload_param=CPU), **FULL,
                        "activation_checkpointing": {"cpu_checkpointing": True}},
    }
    # tests/engine/stages_test.cc covers most settings. The cases here involve files and processes,
    # could show an order of addition on four ranks and over Gloo, or need many layers: buckets of
    # several units, one live unit at a time, recompute of every second layer.
    ON_THREE = ("plain-1", "plain-3", "large-buckets-1", "overlap-2", "live-one", "disk", "every-2",
                "all-at-once")
    ON_FOUR = ("plain-1", "small-buckets-2", "all-at-once")
    OVER_GLOO = ("small-buckets-2", "all-at-once")
    programs = {}

    def program(name, ranks=3):
        if (name, ranks) not in programs:
            programs[name, ranks] = StepText(job.plan(name, ranks, "--program", **WAYS[name]))
        return programs[name, ranks]

    # --- the settings change the step --------------------------------------------------------

    @case
    def buckets_set_the_number_of_collectives():
        # The matrices of a layer fill a separate bucket in any case; norms, which are not sharded
        # on three ranks, do not.
        for stage in (1, 2, 3):
            small, plain = (program(f"{size}-{stage}").count("all_reduce")
                            for size in ("small-buckets", "plain"))
            assert small > 1.8 * plain, (stage, small, plain)
        for kind in ("reduce_scatter", "all_gather"):
            assert (program("plain-1").count(kind) > 2 * program("large-buckets-1").count(kind)
                    >= 2), kind

    @case
    def overlap_lets_lists_run_beside_communication():
        assert program("overlap-1").running_beside() > program("plain-1").running_beside() == 0
        assert program("overlap-2").running_beside() > program("plain-2").running_beside() == 0
        assert program("plain-3").running_beside() > program("no-overlap-3").running_beside() == 0

    @case
    def prefetch_brings_parameters_earlier():
        nothing, one, more = (program(name) for name in ("prefetch-nothing", "prefetch-one",
                                                         "plain-3"))
        assert nothing.most_ahead() == 0, nothing.most_ahead()
        assert 0 < one.most_ahead() < more.most_ahead(), (one.most_ahead(), more.most_ahead())
        assert nothing.count("all_gather") == one.count("all_gather") == more.count("all_gather")

    @case
    def live_parameters_are_bounded():
        one, two, all_ = (program(name).peak("gathered.")
                          for name in ("live-one", "live-two", "plain-3"))
        assert one < two < all_ and two <= 80000 * 4, (one, two, all_)

    @case
    def kept_parameters_are_not_gathered_again():
        never, near, all_ = (program(name).count("all_gather")
                             for name in ("plain-3", "reuse-near", "reuse-all"))
        assert never > near > all_, (never, near, all_)
        assert all_ == len({i.label.split()[2] for i in program("reuse-all").instrs
                            if i.kind == "all_gather"})

    @case
    def offload_names_its_tier():
        for category in ("parameters", "optimizer"):
            plain = program("plain-3").bytes("device", category)
            assert program("plain-3").bytes("host") == program("plain-3").bytes("nvme") == 0
            assert (program("host").bytes("host", category) > plain / 2
                    > program("host").bytes("device", category)), category
            assert (program("disk").bytes("nvme", category) > plain / 2
                    > program("disk").bytes("device", category)), category
        assert program("disk").count("copy", "disk") > 0 == program("host").count("copy", "disk")

    @case
    def recompute_saves_less():
        """Layers save fewer values, and recomputed values take no memory between forward and
        backward."""
        saved = {name: program(name).bytes(prefix="saved.")
                 for name in ("plain-3", "selective", "every-2", "full")}
        assert saved["plain-3"] > saved["selective"] > saved["full"], saved
        assert saved["plain-3"] > saved["every-2"] > saved["full"], saved

    @case
    def activations_wait_on_the_host():
        moved, plain = program("activations-on-host"), program("full")
        assert (moved.count("copy", "to host") == moved.count("copy", "to device")
                == MODEL["num_hidden_layers"]), moved.count("copy")
        assert moved.bytes("host", "activations") > 0 == plain.bytes("host", "activations")

    @case
    def every_program_differs_from_the_others():
        texts = {name: [(i.label, i.reads, i.writes, i.waits) for i in program(name).instrs]
                 + sorted(program(name).buffers.items())
                 for name in WAYS}
        same = [(a, b) for a in texts for b in texts if a < b and texts[a] == texts[b]]
        assert same == [], same

    # --- and no bit of the result ------------------------------------------------------------

    @case
    def combinations_train_the_same_bits_on_three_ranks():
        for name in ON_THREE:
            job.train(name, 3, **WAYS[name])
            require_same_run(job.out("plain-1"), job.out(name))

    @case
    def combinations_train_the_same_bits_on_four_ranks():
        for name in ON_FOUR:
            job.train(f"{name}-of-4", 4, **WAYS[name])
            require_same_run(job.out("plain-1-of-4"), job.out(f"{name}-of-4"))

    @case
    def combinations_train_the_same_bits_over_gloo():
        for name in OVER_GLOO:
            job.train(f"{name}-gloo", 3, **WAYS[name], comm={"backend": "gloo"})
            require_same_run(job.out("plain-1"), job.out(f"{name}-gloo"))

    @case
    def combinations_train_the_same_bits_in_bf16_on_three_ranks():
        for name in ("plain-1", "all-at-once"):
            job.train(f"{name}-bf16", 3, precision="bf16", **WAYS[name])
            require_same_run(job.out("plain-1-bf16"), job.out(f"{name}-bf16"))
        job.train("plain-3-bf16-gloo", 3, precision="bf16", **WAYS["plain-3"],
                  comm={"backend": "gloo"})
        require_same_run(job.out("plain-1-bf16"), job.out("plain-3-bf16-gloo"))

    @case
    def combinations_train_the_same_bits_with_sgd_and_accumulation():
        sgd = {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
               "accumulation": 4}
        for size, overlap in ((1000, False), (LARGE, True)):
            job.train(f"sgd-{size}", 3, **zero(3, reduce_bucket_size=size, overlap_comm=overlap),
                      **sgd)
        require_same_run(job.out("sgd-1000"), job.out(f"sgd-{LARGE}"))

    run_cases()
