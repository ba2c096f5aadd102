"""Checks that the planned memory is what is allocated, used and transferred, at every stage, tier
and kind of recompute; that the formulas of ZeRO and of recompute hold; and that a run that does not
fit is refused before it starts, with what would help."""
import json
import pathlib
import re
import resource
import subprocess
import tempfile

from runner import (BINARY, TIMEOUT, TINY_CONFIG, Job, case, environment, ftrun, manifest, metrics,
                    must, run_cases, tiny_model, tiny_weights)

STAGES = (0, 1, 2, 3)
SIZES = dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
             num_key_value_heads=4, head_dim=32, vocab_size=16384, max_position_embeddings=2048)
SMOLLM2 = dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
               num_key_value_heads=3, head_dim=64, vocab_size=49152, max_position_embeddings=8192,
               tie_word_embeddings=True)
SEVEN_BILLION = dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                     num_attention_heads=32,
                     num_key_value_heads=32, head_dim=128, vocab_size=32000,
                     max_position_embeddings=4096)
CPU = {"device": "cpu"}


def shape_only(folder, sizes):
    """Writes a model folder without weights, because planning reads only config.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | sizes))
    return str(folder)


class Plan:
    """The tables that `ftrun plan --memory` prints."""

    def __init__(self, text):
        self.text = text
        self.bytes = {(tier, category): int(size) for tier, category, size in re.findall(
            r"^(device|host|nvme) +(\w+) +(\d+) ", text, re.M)}
        self.savings = [(change.strip(), int(size)) for change, size in re.findall(
            r"^((?:zero_|recompute|train_|data\.|bf16|parallel).*?)  +(\d+)  ", text, re.M)]

    def states(self):
        return sum(size for (_, category), size in self.bytes.items()
                   if category in ("parameters", "gradients", "optimizer"))

    def main_memory(self):
        return self.bytes[("device", "all")] + self.bytes.get(("host", "all"), 0)


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    job = Job(scratch)
    model = str(tiny_model(scratch / "small", tiny_weights(hidden=256, inner=688, layers=4, heads=8,
                                                           kv_heads=4,
                                                           vocabulary=16384), **SIZES))
    smollm2 = shape_only(scratch / "smollm2", SMOLLM2)
    seven_billion = shape_only(scratch / "seven", SEVEN_BILLION)
    nvme = {"device": "nvme", "nvme_path": str(scratch / "swap")}

    def plan(config, *arguments):
        return Plan(must(ftrun("plan", "--memory", "--config", config, *arguments)).stdout)

    def planned(name, ranks, folder=smollm2, rows=1, tokens=512, **changes):
        config = job.config(name, model={"path": folder}, data={"sequence_length": tokens},
                            train_micro_batch_size_per_gpu=rows, gradient_accumulation_steps=1,
                            **changes)
        return plan(config, "--nproc", ranks)

    # --- runs -----------------------------------------------------------------------------------

    # A checkpoint is saved in the middle of the run, which must need no additional memory. A
    # micro-batch has one row, or two.
    SETTINGS = dict(model={"path": model}, data={"sequence_length": 512}, train={"steps": 2},
                    checkpoint={"every": 1},
                    train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=1,
                    export={"enabled": False})
    FULL = {"recompute": {"policy": "full"}}
    RUNS = {
        "stage-0": {"train_micro_batch_size_per_gpu": 2},
        "stage-0-full": FULL,
        "stage-1": {"zero_optimization": {"stage": 1}},
        "stage-1-host": {"zero_optimization": {"stage": 1, "offload_optimizer": CPU}},
        "stage-2": {"zero_optimization": {"stage": 2}},
        "stage-2-bf16": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
        "stage-2-nvme": {"zero_optimization": {"stage": 2, "offload_optimizer": nvme}, **FULL},
        "stage-3": {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 2},
        "stage-3-selective": {"zero_optimization": {"stage": 3},
                              "recompute": {"policy": "selective"}},
        "stage-3-host": {"zero_optimization": {"stage": 3, "offload_optimizer": CPU,
                                               "offload_param": CPU},
                         "activation_checkpointing": {"cpu_checkpointing": True}, **FULL},
        "stage-3-nvme": {"zero_optimization": {"stage": 3, "offload_optimizer": nvme,
                                               "offload_param": nvme}},
    }

    # Each buffer is allocated in whole pages, and a file of the disk tier includes the file
    # system's metadata.
    PAGE, DISK_NOTES = 4096, 64 << 10

    printed = {}

    def trained(name, ranks, **changes):
        printed[name] = job.run(name, "--nproc", ranks, **(SETTINGS | changes)).stdout
        return manifest(job.out(name))

    def check_tiers(name, config, memory):
        """Checks that the allocated bytes are the planned ones, up to whole pages, and that the
        used bytes are within 2 % of them."""
        planned, given, used = memory["predicted"], memory["allocated"], memory["touched"]
        assert set(planned) == set(given), f"{name}: {memory}"
        text = plan(config, "--nproc", 2)
        for tier in ("device", "host", "nvme"):
            assert text.bytes.get((tier, "all"), 0) == planned.get(f"{tier}_total", 0), (
                f"{name}: {tier}")
        for key, size in planned.items():
            slack = DISK_NOTES if key == "nvme_total" else PAGE * (200 if key.endswith("total")
                                                                   else 100)
            assert size <= given[key] <= size + slack, (
                f"{name}: {key}: {size} planned, {given[key]} given")
        for tier in ("device_total", "host_total"):
            if planned.get(tier, 0) > 1 << 20:
                error = used[tier] / planned[tier] - 1
                print(f"  {name}: {tier}: {planned[tier]} planned, {used[tier]} touched, error "
                      f"{error:+.4f}", flush=True)
                assert abs(error) <= 0.02, (
                    f"{name}: {tier}: {planned[tier]} planned, {used[tier]} touched")

    def check_metrics(name, memory):
        """Checks that metrics.jsonl has the bytes in use after each step, by category."""
        for key, size in metrics(job.out(name))[-1]["memory"].items():
            tier, _, category = key.rpartition("_")
            source = memory["allocated" if tier == "nvme" else "touched"]
            most = source[f"{tier or 'device'}_{category}"]
            assert 0.98 * most <= size <= most, f"{name}: {key} {size}: {source}"

    def check_traffic(name, traffic, most):
        """Checks that shared memory, sockets and disk transferred what the program says."""
        sent = traffic["communication"]
        off = sent["transport"] / sent["program"] - 1
        print(f"  {name}: {sent['program']} bytes by the program, {sent['transport']} transported, "
              f"off {off:+.2e}", flush=True)
        assert -1e-6 <= off <= most, f"{name}: {traffic}"
        for way in ("disk_read", "disk_written"):
            assert traffic[way]["program"] == traffic[way]["disk"], f"{name}: {traffic}"
            assert (traffic[way]["disk"] > 0) == name.endswith("nvme"), f"{name}: {traffic}"
        assert traffic["steps"]["counted"] == 2, traffic

    @case
    def what_is_planned_is_what_is_used_and_carried():
        for name, changes in RUNS.items():
            run = trained(name, 2, **changes)
            check_tiers(name, job.config(name, **(SETTINGS | changes)), run["memory"])
            check_metrics(name, run["memory"])
            check_traffic(name, run["traffic"], 1e-6)
            process = run["memory"]["process"]
            error = process["measured"] / process["predicted"] - 1
            print(f"  {name}: process: {process['predicted']} predicted, {process['measured']} "
                  f"measured, error {error:+.4f}", flush=True)
            # Libraries keep memory for packed operands, which grows with the shapes of
            # multiplications. It is a few MiB for each thread, which is negligible for models of a
            # useful size. The memory for saving is part of the prediction.
            slack = 8 << 20
            off = abs(process["measured"] - process["predicted"])
            assert off <= max(0.02 * process["predicted"], slack), f"{name}: {process}"

    @case
    def over_sockets_the_kernel_counts_the_same():
        """Gloo adds its headers, and ranks compare their announcements."""
        for stage in (0, 3):
            run = trained(f"gloo-{stage}", 2, zero_optimization={"stage": stage},
                          comm={"backend": "gloo"})
            check_traffic(f"gloo-{stage}", run["traffic"], 0.01)

    @case
    def a_run_ends_with_its_memory_table():
        text = printed["stage-2"]
        for what in ("optimizer", "temporary", "all"):
            assert re.search(rf"device +{what} +\d+ +\d+ +\d+ +[+-]\d\.\d\d %  ", text), text
        assert re.search(r"bytes of 2 ranks in 2 steps\n", text), text
        assert re.search(r"communication +(\d+) +\d+ +[+-]0\.00 %  ", text), text
        assert "peak at " in text and " predicted, " in text, text
        assert re.search(r" measured at most, error [+-]\d\.\d\d %\n", text), text

    # --- plans ----------------------------------------------------------------------------------

    @case
    def model_states_follow_the_formulas():
        parameters = 134515008
        for ranks in (2, 4):
            for precision, weights, gradients, optimizer in (({}, 4, 4, 8),
                                                             ({"bf16": {"enabled": True},
                                                               "data_types":
                                              {"grad_accum_dtype": "bf16"}}, 2, 2, 12)):
                for stage in STAGES:
                    found = planned("formulas", ranks, zero_optimization={"stage": stage},
                                    **precision)
                    expected = parameters * (weights / (ranks if stage == 3 else 1)
                                             + gradients / (ranks if stage >= 2 else 1)
                                             + optimizer / (ranks if stage >= 1 else 1))
                    assert abs(found.states() - expected) <= 0.01 * expected, (
                        f"stage {stage}, {ranks} ranks: {found.text}")
        nodes = planned("formulas", 4, zero_optimization={"stage": 3, "zero_hpz_partition_size": 2})
        assert "16 Psi/4 + 4 Psi/2" in nodes.text, nodes.text
        assert abs(nodes.states() - 6 * parameters) <= 0.01 * 6 * parameters, nodes.text
        saved = nodes.main_memory() - planned("formulas", 4,
                                              zero_optimization={"stage": 3}).main_memory()
        assert dict(nodes.savings)["zero_optimization.zero_hpz_partition_size: 1"] == saved > 0, (
            nodes.text)
        mixed = planned("formulas", 4, zero_optimization={"stage": 3}, bf16={"enabled": True},
                        data_types={"grad_accum_dtype": "bf16"}).text
        assert "= 16 bytes per parameter (12 without a master copy" in mixed, mixed
        for formula in ("16 Psi ", "4 Psi + 12 Psi/4", "2 Psi + 14 Psi/4", "16 Psi/4", "12 Psi ",
                        "12 Psi/4"):
            assert formula in mixed, f"no {formula!r} in {mixed}"

    @case
    def what_is_frozen_is_counted_apart():
        frozen = 134515008
        # A and B of q, o; k, v; gate, up; down
        trained = 30 * 8 * (4 * 576 + 2 * (576 + 192) + 2 * (576 + 1536) + 576 + 1536)
        for stage, ranks in ((0, 2), (1, 2), (2, 2), (3, 2)):
            found = planned("adapter", ranks,
                            zero_optimization={"stage": stage,
                                               "stage3_param_persistence_threshold": 0},
                            adapter={"r": 8, "target_modules": "all-linear"})
            assert (f"Psi = {trained} parameters that train and Phi = {frozen} frozen ones"
                    in found.text), found.text
            expected = (trained * (4 / (ranks if stage == 3 else 1)
                                   + 4 / (ranks if stage >= 2 else 1)
                                   + 8 / (ranks if stage >= 1 else 1))
                        + frozen * 4 / (ranks if stage == 3 else 1))
            assert abs(found.states() - expected) <= 0.02 * expected, f"stage {stage}: {found.text}"
            row = next(line for line in found.text.splitlines()
                       if line.startswith(f"stage {stage}"))
            assert (str(round(expected)) in row
                    and ("4 Phi/2" if stage == 3 else "4 Phi ") in row), row

    @case
    def recompute_keeps_a_third_of_the_activations():
        kept = planned("kept", 2, tokens=1024)
        redone = planned("redone", 2, tokens=1024, **FULL)
        share = redone.bytes[("device", "activations")] / kept.bytes[("device", "activations")]
        print(f"  activations with recompute: {share:.3f} of those without", flush=True)
        assert share <= 0.35, (kept.text, redone.text)

    @case
    def thousands_of_ranks_are_planned_as_fast_as_two():
        def plan_for(ranks):
            before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
            table = planned("large", ranks, folder=seven_billion, tokens=4096,
                            zero_optimization={"stage": 3}, bf16={"enabled": True})
            return table, sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before

        _, few = plan_for(2)
        table, many = plan_for(4096)
        assert "rank 0 of 4096" in table.text and "/4096" in table.text, table.text
        # On the author's machine the time is the same; planning each rank separately would take
        # thousands of times as long.
        assert many < 8 * few, f"{many:.2f} s of CPU time, {few:.2f} s for two ranks"

    @case
    def clamped_values_are_reported():
        text = must(ftrun("plan", "--config", job.config("clamped", model={"path": smollm2},
                                                         zero_optimization={"stage": 3}),
                          "--nproc", 2)).stdout
        assert re.search(r"clamped: zero_optimization.reduce_bucket_size = \d+ elements instead of "
                         r"500000000 "
                         r"\(a quarter of the rank's gradients\)", text), text
        assert "max_reuse_distance = 0" in text, text

    @case
    def savings_are_what_the_change_saves():
        settings = dict(rows=4, tokens=512, zero_optimization={"stage": 1})
        before = planned("before", 2, **settings)
        changes = {"zero_optimization.stage: 3": {**settings, "zero_optimization": {"stage": 3}},
                   "recompute.policy: full": {**settings, **FULL},
                   "data.sequence_length: 256": {**settings, "tokens": 256}}
        savings = dict(before.savings)
        assert [size for _, size in before.savings] == sorted(savings.values(), reverse=True), (
            before.text)
        for change, other in changes.items():
            after = planned("after", 2, **other)
            assert savings[change] == before.main_memory() - after.main_memory(), (
                f"{change}: {before.text}")

    # --- what does not fit ----------------------------------------------------------------------

    REMEDY = (r"  remedy: make one or more of these changes \(savings per rank\): \S.* saves \S.*; "
              r"\S.* saves \S.*; \S.* saves \S.*")

    @case
    def more_than_the_machine_has_is_refused_before_the_start():
        config = job.config("huge", model={"path": smollm2}, data={"sequence_length": 8192},
                            train_micro_batch_size_per_gpu=4096, gradient_accumulation_steps=1)
        text = must(ftrun("--config", config, "--nproc", 2), 5).stderr
        assert re.search(r"the run does not fit into memory: the 2 ranks of this machine need \S+ "
                         r"\S+ of main memory "
                         r"\(\S+ \S+ per rank; most of it activations \S+ \S+ per rank\), .* has "
                         r"\S+ \S+\n" + REMEDY, text), text
        assert not job.out("huge").exists()

    @case
    def an_allocation_that_fails_names_what_it_was_for():
        config = job.config("limited", model={"path": model}, data={"sequence_length": 1024},
                            train_micro_batch_size_per_gpu=64, gradient_accumulation_steps=1)
        # The limit is above the plan, which would otherwise be refused before the start, and below
        # the plan plus the program itself.
        limit = int(3.7 * 2**30)

        def lower_limit():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        process = subprocess.run([BINARY, "--config", str(config)], env=environment(),
                                 capture_output=True, text=True,
                                 timeout=TIMEOUT, preexec_fn=lower_limit)
        assert process.returncode == 5, (process.returncode, process.stderr[-2000:])
        assert re.search(r"out of memory: the arena of temporary buffers \(peak at \w+ layer "
                         r"\d+.*: gradients \S+ \S+, activations \S+ \S+\) needs "
                         r"\S+ \S+ in the device tier, \S+ \S+ are left of its address space "
                         r"\(ulimit -v\), the rank has "
                         r"\S+ \S+ already: .*Cannot allocate memory\n" + REMEDY, process.stderr), (
            process.stderr)

    @case
    def a_disk_that_cannot_be_used_is_refused_with_its_place():
        def refused(folder):
            offload = {"device": "nvme", "nvme_path": folder}
            config = job.config("disk", **SETTINGS,
                                zero_optimization={"stage": 3, "offload_optimizer": offload})
            return must(ftrun("--config", config, "--nproc", 2), 5).stderr

        (scratch / "a-file").write_text("")
        text = refused(str(scratch / "a-file"))
        assert (re.search(r"disk-\d+\.json:\d+:\d+: nvme_path \S+/a-file: \S+ is not a folder\n  "
                          r"remedy: point nvme_path at ", text)), text
        text = refused("/proc/swap")
        # /proc does not report its free space; the folder cannot be created there.
        assert re.search(r"nvme_path /proc/swap: making the folder failed: No such file or "
                         r"directory\n"
                         r"  remedy: point nvme_path at .*; make one or more of these changes "
                         r"\(savings per rank\): zero_optimization.offload_optimizer.device: "
                         r"\w+ saves ", text), text

    run_cases()
