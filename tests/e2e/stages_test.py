"""Checks that a ZeRO stage changes where state is stored, not what is computed: on the same ranks
and in the same precision, all stages have the same bits, and all meshes train like one process.
Whole runs are spot checks: tests/engine/stages_test.cc trains all combinations of stages,
precisions and tiers in one process."""
import re
import tempfile

from runner import ShardedJob, case, preload, require_near, require_same_run, run_cases, steps
from step_text import StepText

PRECISIONS = ("fp32", "bf16", "fp16")
STAGES = (0, 1, 2, 3)

with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = ShardedJob(scratch)

    def require_as_one_process(out, one, loss=1e-5, norm=5e-5):
        require_near("loss", [m["loss"] for m in steps(out)], [m["loss"] for m in steps(one)], loss)
        require_near("gradient norm", [m["grad_norm"] for m in steps(out)],
                     [m["grad_norm"] for m in steps(one)], norm)

    @case
    def stages_have_the_same_bits_in_every_precision():
        for precision in PRECISIONS:
            for stage in STAGES if precision == "fp32" else (0, 3):
                job.train(f"{precision}-{stage}", 3, precision=precision, stage=stage)
                require_same_run(job.out(f"{precision}-0"), job.out(f"{precision}-{stage}"))
        # If the precisions were all the same, the comparison above would compare only one of them.
        losses = {precision: [m["loss"] for m in steps(job.out(f"{precision}-0"))]
                  for precision in PRECISIONS}
        assert len(set(map(tuple, losses.values()))) == 3, losses

    @case
    def half_precisions_stay_near_fp32():
        for precision, loss in (("bf16", 5e-3), ("fp16", 1e-3)):
            require_as_one_process(job.out(f"{precision}-3"), job.out("fp32-0"), loss, 20 * loss)

    @case
    def stages_hold_what_they_say():
        """Ranks hold the planned bytes of state, by category; padding is at most one block per
        unit."""
        def held_bytes(category):
            return [steps(job.out(f"fp32-{stage}"))[-1]["memory"][category] for stage in STAGES]

        # Gradients have no persistent memory, only a part of each step's.
        gradients = [StepText(job.plan(f"gradients-{stage}", 3, "--program",
                                       stage=stage)).bytes("device", "gradients")
                     for stage in STAGES]
        for held, sharded_from in ((held_bytes("optimizer"), 1), (gradients, 2),
                                   (held_bytes("parameters"), 3)):
            for stage in STAGES:
                expected = held[0] / 3 if stage >= sharded_from else held[0]
                assert expected <= held[stage] <= 1.5 * expected, (
                    sharded_from, stage, held, expected)

    @case
    def stage_1_may_reduce_whole_gradients():
        job.train("allreduce", 3, stage=1, zero={"reduce_scatter": False})
        require_same_run(job.out("fp32-0"), job.out("allreduce"))

    @case
    def meshes_train_as_one_process():
        one_process = job.train("one", 1)
        for ranks in (2, 4):
            for stage in (0, 3):
                job.train(f"{ranks}-{stage}", ranks, stage=stage)
            require_same_run(job.out(f"{ranks}-0"), job.out(f"{ranks}-3"))
        for name in ("fp32-0", "2-3", "4-3"):
            require_as_one_process(job.out(name), one_process)

    @case
    def a_shard_of_one_rank_is_the_whole():
        job.train("one-3", 1, stage=3)
        require_same_run(job.out("one"), job.out("one-3"))

    @case
    def hybrid_stages_have_the_same_bits():
        for stage in (1, 3):
            job.train(f"hybrid-{stage}", 4, stage=stage, parallel={"data": 4, "data_replicate": 2})
            require_same_run(job.out("hybrid-1"), job.out(f"hybrid-{stage}"))
        require_as_one_process(job.out("hybrid-3"), job.out("one"))

    @case
    def secondary_shards_have_the_same_bits():
        """Nodes of two ranks keep a copy of what is gathered a second time within a step: this
        needs more memory, and sends fewer bytes between nodes."""
        offload = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
        for accumulation, precision in ((1, "fp32"), (2, "bf16")):
            settings = {"stage": 3, "accumulation": accumulation, "precision": precision}
            plain, node = f"whole-{precision}-{accumulation}", f"node-{precision}-{accumulation}"
            hpz = settings | {"zero": {"zero_hpz_partition_size": 2}}
            job.train(plain, 4, **settings)
            job.train(node, 4, **hpz)
            require_same_run(job.out(plain), job.out(node))
            secondary = StepText(job.plan(node, 4, "--program",
                                          **hpz)).buffers["parameters.secondary"][2]
            held = {name: steps(job.out(name))[-1]["memory"]["parameters"]
                    for name in (plain, node)}
            # Memory is in whole pages; each buffer of parameters begins a new one.
            assert abs(held[node] - held[plain] - secondary) <= 3 * 4096 < secondary, (
                held, secondary)
            sent = {}
            for name, of in ((plain, settings), (node, hpz)):
                line = steps(job.out(name))
                sent[name] = line[-1]["counters"]["bytes_sent"] - line[-2]["counters"]["bytes_sent"]
                planned = re.search(r"^  sum, .* (\d+) B$", job.plan(name, 4, **of), re.M)
                assert sent[name] == int(planned[1]), (name, sent, planned[0])
            assert sent[node] < sent[plain], sent
            if precision == "bf16":  # tests/engine trains fp32 in one process
                job.train(f"{node}-host", 4, **settings, zero=hpz["zero"] | offload)
                require_same_run(job.out(plain), job.out(f"{node}-host"))
        job.train("node-hybrid", 4, stage=3, parallel={"data": 4, "data_replicate": 2},
                  zero={"zero_hpz_partition_size": 2, "offload_param": {"device": "cpu"}})
        require_same_run(job.out("hybrid-3"), job.out("node-hybrid"))
        job.train("node-gloo", 4, stage=3, zero={"zero_hpz_partition_size": 2},
                  comm={"backend": "gloo"})
        require_same_run(job.out("whole-fp32-1"), job.out("node-gloo"))

    @case
    def accumulated_steps_train_as_one_process():
        """Stages 0 and 1 add micro-batches before they reduce, 2 and 3 after, so there are two
        orders of addition. (tests/engine checks that stages with one order have the same bits.)"""
        for stage in (1, 3):
            job.train(f"accumulated-{stage}", 2, stage=stage, accumulation=3)
            require_as_one_process(job.out(f"accumulated-{stage}"), job.out("one"))

    @case
    def small_units_may_stay_whole():
        """The limit for small units decides how units are cut, and so in which groups the squares
        of the norm are added."""
        for name, zero, stages in (("default", {"stage3_param_persistence_threshold": 100000},
                                    (3,)),
                                   ("none", {"stage3_param_persistence_threshold": 0}, (3,)),
                                   ("budget", {"stage3_model_persistence_threshold": 0}, (0, 3))):
            for stage in stages:
                job.train(f"small-{name}-{stage}", 3, stage=stage, zero=zero)
            require_as_one_process(job.out(f"small-{name}-3"), job.out("one"))
        # tests/engine checks thresholds in one process.
        require_same_run(job.out("small-budget-0"), job.out("small-budget-3"))
        # With DeepSpeed's threshold, nothing of such a small model is sharded.
        held = {name: steps(job.out(f"small-{name}-3"))[-1]["memory"]["optimizer"]
                for name in ("default", "none")}
        assert held["default"] > 2 * held["none"], held

    @case
    def gradients_may_be_sent_or_added_in_another_dtype():
        words = {"narrow": ("fp32", {"communication_data_type": "bf16"}),
                 "sums": ("bf16", {"data_types": {"grad_accum_dtype": "fp32"}})}
        for name, (precision, changes) in words.items():
            for stage in (0, 3):
                job.train(f"{name}-{stage}", 3, precision=precision, stage=stage, **changes)
            require_same_run(job.out(f"{name}-0"), job.out(f"{name}-3"))
            assert (steps(job.out(f"{name}-0"))[-1]["loss"]
                    != steps(job.out(f"{precision}-0"))[-1]["loss"]), name
            require_as_one_process(job.out(f"{name}-3"), job.out("one"), 5e-3, 0.1)
        # Sums of bf16 over ranks are computed in fp32 and rounded once, so sending fp32 gives the
        # same sum.
        job.train("wide", 3, precision="bf16", stage=2, communication_data_type="fp32")
        require_same_run(job.out("bf16-3"), job.out("wide"))

    @case
    def states_rounded_stochastically_are_rounded_alike():
        small = {"bf16": {"enabled": True, "bf16_optimizer_states": True,
                          "bf16_master_weights_and_grads": True}}
        for stage in (1, 3):
            job.train(f"rounded-{stage}", 3, stage=stage, **small)
        require_same_run(job.out("rounded-1"), job.out("rounded-3"))
        require_as_one_process(job.out("rounded-3"), job.out("one"), 2e-2, 0.2)

    @case
    def tied_embeddings_have_the_same_bits_at_each_stage():
        with tempfile.TemporaryDirectory() as other:
            tied = ShardedJob(other, tie_word_embeddings=True)
            for stage in (0, 3):
                tied.train(f"tied-{stage}", 3, stage=stage)
                require_same_run(tied.out("tied-0"), tied.out(f"tied-{stage}"))
            require_as_one_process(tied.out("tied-3"), tied.train("tied-one", 1))

    run_cases()
