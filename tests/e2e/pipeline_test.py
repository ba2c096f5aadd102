"""Tests pipeline stages as a user sees them. With every schedule they train what one process
trains, write checkpoints and an export of whole tensors, continue bit for bit on their own layout
and with the same losses on any other, and report how long each stage waited. A rank that is lost,
or finds a value that is not finite, is named; and a model that cannot be cut is refused with the
arithmetic before a rank starts. tests/engine/pipeline_test.cc trains all combinations of meshes,
stages and schedules in one process."""
import re
import signal
import tempfile

from meshes import MeshJob, refusal_of, require_as_one_process
from runner import case, checkpoints, ftrun, losses, manifest, must, preload, run_cases, steps


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = MeshJob(scratch, num_hidden_layers=6, tie_word_embeddings=True)
    ONE = {"pipeline": 1}
    MESHES = {"1f1b": {"pipeline": 2}, "gpipe-4": {"pipeline": 4, "schedule": "gpipe"},
              "zb-h1": {"pipeline": 2, "data": 2, "stage": 3, "schedule": "zb-h1"},
              "interleaved": {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 3,
                              "stage": 1},
              "zbv": {"pipeline": 2, "schedule": "zbv", "stage": 2, "data": 2},
              "3d": {"pipeline": 2, "tensor": 2, "data": 2, "stage": 1}}

    def settings(pipeline=1, tensor=1, data=1, schedule="1f1b", virtual_stages=None, layers=None,
                 **more):
        parallel = {"data": data, "tensor": tensor, "pipeline": pipeline}
        if pipeline > 1:
            parallel |= {"schedule": schedule}
        if virtual_stages:
            parallel["virtual_stages"] = virtual_stages
        if layers:
            parallel["pipeline_layers"] = layers
        return job.on_mesh(parallel, **{"accumulation": 12 // data} | more)

    def ranks_of(mesh):
        return mesh.get("pipeline", 1) * mesh.get("tensor", 1) * mesh.get("data", 1)

    job.settings_of = settings
    train_once = job.train_once

    # --- what is trained ---------------------------------------------------------------------

    @case
    def stages_train_as_one_process():
        one_process = train_once("one", **ONE)
        for name, mesh in MESHES.items():
            job.require_training_as_one_process(name, mesh, one_process)

    @case
    def the_sample_of_text_is_the_same():
        job.require_same_samples(("one", *MESHES))

    @case
    def each_stage_tells_how_long_it_waited():
        for name, mesh in MESHES.items():
            rows = re.findall(r"^\[rank 0\] stage (\d+) +([\d.]+) % +([\d.]+) %",
                              job.done[name].stdout, re.M)
            assert [int(row[0]) for row in rows] == list(range(mesh["pipeline"])), (
                name, job.done[name].stdout)
            record = manifest(job.out(name))["pipeline"]
            assert sorted(record) == [f"stage {stage}" for stage in range(mesh["pipeline"])], record
            for shares in record.values():
                assert (all(0 <= shares[which] < 1_000_000
                            for which in ("idle_per_million", "schedule_idle_per_million"))), record
        assert "pipeline" not in manifest(job.out("one")), manifest(job.out("one"))

    @case
    def what_is_planned_is_what_is_used_and_sent():
        for name, mesh in MESHES.items():
            table = job.require_planned_use(name, mesh, ranks_of(mesh))
            stages = re.findall(r"^ +(\d+)  \S.*? ([\d.]+ \w+) +[\d.]+ \w+$",
                                table[table.index("each stage"):
                                      table.index("bytes that a rank sends")], re.M)
            assert [int(stage) for stage, _ in stages] == list(range(mesh["pipeline"])), table
            shown = re.search(r"^device +all +\d+ +([\d.]+ \w+)", table, re.M)[1]
            assert shown == stages[-1][1], (shown, stages)

    @case
    def verify_inspect_and_convert_read_their_checkpoints():
        for name in ("zbv", "3d"):
            out = job.out(name)
            shown = must(ftrun("inspect", out / "checkpoints" / checkpoints(out)[-1])).stdout
            assert re.search(rf"^topology .*pipeline {MESHES[name]['pipeline']}\b", shown, re.M), (
                shown)
            job.require_conversion_equals_export(name)

    @case
    def stages_train_the_same_over_gloo():
        train_once("gloo", **MESHES["zb-h1"], comm={"backend": "gloo"})
        require_as_one_process(job.out("gloo"), job.out("one"))

    # --- going on ----------------------------------------------------------------------------

    @case
    def runs_continue_bit_for_bit_on_their_own_layout():
        for name in ("zb-h1", "3d"):
            job.require_resume_bit_for_bit(name, MESHES[name])

    @case
    def fp16_runs_continue_bit_for_bit_with_their_loss_scale():
        mesh = MESHES["interleaved"] | {"precision": "fp16"}
        train_once("fp16", **mesh)
        job.require_resume_bit_for_bit("fp16", mesh)
        scales = [[m["loss_scale"] for m in steps(job.out(name))] for name in ("fp16", "fp16-cut")]
        assert scales[0] == scales[1] and len(set(scales[0])) > 1, scales

    @case
    def runs_continue_with_the_same_losses_on_other_layouts():
        job.resume_on_each_mesh([MESHES["1f1b"], {"data": 2, "stage": 3}, MESHES["gpipe-4"],
                                 MESHES["3d"]], ONE)

    @case
    def deepspeeds_keys_give_the_same_run():
        changes = settings(**MESHES["1f1b"])
        changes["parallel"] = {"data": 1}
        job.run("words", **changes, pipeline={"stages": 2})
        assert losses(job.out("words")) == losses(job.out("1f1b"))

    @case
    def a_signal_saves_and_the_runs_continue():
        for name in ("zb-h1", "1f1b", "interleaved"):
            job.require_save_and_resume_after_signal(name, MESHES[name])

    @case
    def a_stage_that_is_lost_is_named():
        running = job.start_run("lost", **MESHES["gpipe-4"])
        running.kill(signal.SIGKILL, running.ranks()[2])
        exit_code = running.wait(None)
        assert exit_code != 0 and "rank 2" in running.text(), running.text()

    @case
    def a_weight_that_is_not_a_number_is_named_with_its_rank_in_bf16_too():
        weight = "model.layers.4.mlp.up_proj.weight"
        for name, ranks, mesh in (("1f1b", (1,), MESHES["1f1b"]),
                                  ("zbv", (2, 3), MESHES["zbv"] | {"layers": [1, 2, 2, 1]})):
            run = job.run(f"nan-{name}", code=7,
                          **settings(**mesh, precision="bf16", train={"max_nonfinite_steps": 1}),
                          model=job.model_with_nan(weight, (100, 4)))
            match = re.search(r"first met by (.*)\n", run.stderr)
            places = "; ".join(f"rank {rank}, forward layer 5 mb 0 (layers.4): sum; the weight "
                               f"{weight} is not finite" for rank in ranks)
            assert match and match[1] == places, run.stderr

    # --- what is refused ---------------------------------------------------------------------

    @case
    def a_model_that_cannot_be_cut_is_refused_with_the_arithmetic():
        message = refusal_of(job.config("deep", **settings(pipeline=8)))
        assert ("6 decoder layers" in message and "8 chunks" in message
                and "nothing was started" in message), message
        message = refusal_of(job.config("sum", **settings(pipeline=2, layers=[3, 4])))
        assert "3 + 4 = 7 ≠ the model's 6 decoder layers" in message, message
        message = refusal_of(job.config("whole", **settings(pipeline=2),
                                        partition={"unit": "model"}))
        assert "partition.unit" in message and "pipeline" in message, message
        assert not job.out("deep").exists()

    @case
    def a_run_with_optimizer_state_on_the_host_is_exported():
        changes = settings(pipeline=2, data=2, stage=1,
                           zero={"offload_optimizer": {"device": "cpu"}})
        job.run("offloaded", **changes)
        require_as_one_process(job.out("offloaded"), job.out("one"))
        job.require_same_export(job.out("offloaded"), job.out("one"), "offloaded")

    @case
    def layers_may_be_assigned_by_hand():
        train_once("by-hand", pipeline=2, layers=[1, 5])
        require_as_one_process(job.out("by-hand"), job.out("one"))

    run_cases()
