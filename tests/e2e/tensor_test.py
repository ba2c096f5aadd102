"""Tests tensor-parallel ranks as a user sees them. They train what one process trains, count as one
reader of sequences, write checkpoints and an export of whole tensors, and continue bit for bit on
their own layout and with the same losses on any other. A model that cannot be split is refused with
the arithmetic before a rank starts, and a rank that fails is named. tests/engine/tensor_test.cc
trains all combinations of meshes, stages and families in one process."""
import re
import signal
import tempfile
import time

from meshes import (MANY, MeshJob, refusal_of, require_as_one_process,
                    validation_losses)
from runner import (await_gone, case, checkpoints, ftrun, losses, manifest, must, preload,
                    require_in_time, require_near, run_cases, steps, tiny_model, tiny_weights)

with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = MeshJob(scratch)
    ONE = {"tensor": 1, "data": 1}
    MESHES = {"tensor-2": {"tensor": 2, "data": 1},
              "whole-norms": {"tensor": 2, "data": 1, "sequence": False},
              "tensor-4": {"tensor": 4, "data": 1}, "pairs": {"tensor": 2, "data": 2, "stage": 3}}

    def settings(tensor=1, data=1, sequence=True, **more):
        return job.on_mesh({"data": data, "tensor": tensor, "sequence": sequence}, **more)

    job.settings_of = settings
    train_once, start_run = job.train_once, job.start_run

    # --- what is trained ---------------------------------------------------------------------

    @case
    def meshes_train_as_one_process():
        one_process = train_once("one", **ONE)
        for name, mesh in MESHES.items():
            job.require_training_as_one_process(name, mesh, one_process)

    @case
    def rows_that_ranks_cannot_share_out_are_padded():
        length = ("--set", "data.sequence_length=33")
        # Micro-batches have 3 rows.
        one_process = train_once("odd-one", *length, **ONE, accumulation=4)
        for name, places in (("tensor-4", 36), ("pairs", 34)):
            out = train_once(f"odd-{name}", *length, **MESHES[name],
                             accumulation=4 // MESHES[name]["data"])
            require_as_one_process(out, one_process)
            require_near("validation", validation_losses(out), validation_losses(one_process), 1e-5)
            assert [m["tokens"] for m in steps(out)] == [m["tokens"] for m in steps(one_process)]
            stderr = job.done[f"odd-{name}"].stderr
            ranks = MESHES[name]["tensor"]
            assert (f"sequences of 33 tokens are padded to {places}, so that {ranks} tensor ranks "
                    "can share them" in stderr), stderr
        assert "are padded to" not in job.done["odd-one"].stderr

    @case
    def the_sample_of_text_is_the_same():
        job.require_same_samples(("one", *MESHES))

    @case
    def the_exported_model_is_the_one_that_was_trained():
        before = validation_losses(job.out("tensor-4"))[-1]
        job.run("exported", **settings(**ONE, total=1),
                model={"path": str(job.out("tensor-4") / "export" / "model")})
        require_near("validation loss", [validation_losses(job.out("exported"))[0]], [before], 1e-6)

    @case
    def the_run_folder_tells_the_mesh():
        for name, mesh in MESHES.items():
            ranks = mesh["tensor"] * mesh["data"]
            record = manifest(job.out(name))
            assert record["topology"] == {"data": mesh["data"], "tensor": mesh["tensor"]}, (
                record["topology"])
            assert record["model"] == manifest(job.out("one"))["model"], record["model"]
            degrees = f"the mesh: data {mesh['data']} × tensor {mesh['tensor']}"
            assert f"{ranks} ranks: {degrees}\n" in job.done[name].stderr, job.done[name].stderr
            assert len(list((job.out(name) / "logs").iterdir())) == ranks

    @case
    def what_is_planned_is_what_is_used_and_sent():
        for name, mesh in MESHES.items():
            table = job.require_planned_use(name, mesh, mesh["tensor"] * mesh["data"])
            parameters = int(manifest(job.out(name))["model"]["details"]["parameters"])
            used, all_of = map(int, re.search(r"Psi = (\d+) of (\d+) parameters", table).groups())
            assert (all_of == parameters
                    and parameters / mesh["tensor"] < used
                    < 1.1 * parameters / mesh["tensor"]), table

    @case
    def verify_inspect_and_convert_read_their_checkpoints():
        for name in ("tensor-4", "pairs"):
            out = job.out(name)
            mesh = MESHES[name]
            shown = must(ftrun("inspect", out / "checkpoints" / checkpoints(out)[-1])).stdout
            assert re.search(rf"^topology +data {mesh['data']}, data_replicate 1, tensor "
                             rf"{mesh['tensor']}, world_size 4, "
                             rf"zero_stage {mesh.get('stage', 0)}$", shown, re.M), shown
            job.require_conversion_equals_export(name)
            assert len(
                list((out / "checkpoints" / checkpoints(out)[-1]).glob("rank-*.safetensors"))) == 4

    @case
    def tensor_ranks_train_the_same_over_gloo():
        train_once("gloo", **MESHES["pairs"], comm={"backend": "gloo"})
        require_as_one_process(job.out("gloo"), job.out("one"))

    # --- going on ----------------------------------------------------------------------------

    @case
    def runs_continue_bit_for_bit_on_their_own_mesh():
        for name in ("tensor-4", "pairs"):
            job.require_resume_bit_for_bit(name, MESHES[name])

    @case
    def runs_continue_with_the_same_losses_on_other_meshes():
        run = job.resume_on_each_mesh([MESHES["tensor-2"], {"data": 2, "stage": 3}, ONE,
                                       MESHES["tensor-4"]], ONE)
        assert ("notice: the resumed run has another topology.tensor: was 1, is now 4"
                in run.stderr), run.stderr

    @case
    def deepspeeds_key_for_the_degree_gives_the_same_run():
        train_once("word", **MESHES["tensor-2"], total=2)
        changes = settings(**MESHES["tensor-2"], total=4)
        changes["parallel"] = {"data": 1}
        run = job.run("word", "--resume", "auto", **changes, tensor_parallel={"autotp_size": 2})
        assert ("resumed from" in run.stdout
                and losses(job.out("word")) == losses(job.out("tensor-2"))), run.stdout

    @case
    def a_signal_saves_and_the_runs_continue():
        job.require_save_and_resume_after_signal("pairs", MESHES["pairs"])

    # --- what is refused ---------------------------------------------------------------------

    @case
    def a_model_that_cannot_be_split_is_refused_with_the_arithmetic():
        shape = dict(hidden_size=72, intermediate_size=100, num_attention_heads=9,
                     num_key_value_heads=3, head_dim=8, vocab_size=502)
        weights = tiny_weights(hidden=72, inner=100, heads=9, kv_heads=3, vocabulary=502)
        odd = {"model": {"path": str(tiny_model(job.scratch / "odd", weights, **shape))}}
        changes = settings(**MESHES["tensor-4"])
        message = refusal_of(job.config("odd-4", **changes, **odd))
        assert re.fullmatch(
            r"ftrun: CONFIG:\d+:\d+: error: the model cannot be split over 4 tensor-parallel "
            r"ranks\n"
            r"  9 query heads cannot be shared out among 4 ranks: 9 = 2 x 4 \+ 1; degrees that "
            r"work: 1, 3, 9\n"
            r"  3 key/value heads and 4 ranks, neither of which divides the other: 4 = 1 x 3 \+ 1; "
            r"degrees that work: 1, 3, 6, 9\n"
            r"  remedy: set parallel.tensor to one of these degrees: 1\n"
            r"1 problem in the config; nothing was started\n", message), message
        assert not job.out("odd-4").exists()
        # The refusal is listed together with other errors, and also if DeepSpeed's key sets the
        # degree.
        changes = settings(**ONE)
        changes["parallel"] = {"data": 1}
        message = refusal_of(job.config("odd-5", **changes, **odd,
                                        tensor_parallel={"autotp_size": 5},
                                     gradient_clipping=-1, stepz=1))
        assert "stepz: unknown key" in message and "gradient_clipping: expected" in message, message
        assert (re.search(r"CONFIG:\d+:\d+: error: the model cannot be split over 5 "
                          r"tensor-parallel ranks\n", message)), message
        assert message.endswith("3 problems in the config; nothing was started\n"), message

    @case
    def numbers_of_ranks_that_do_not_fit():
        for degree, what in (("data", "the mesh: data 3000000000 × tensor 2"),
                             ("tensor", "tensor 3000000000")):
            message = refusal_of(job.config(f"many-{degree}", **settings(**MESHES["tensor-2"])),
                                 "--set", f"parallel.{degree}=3000000000")
            assert (f"error: {what} is too large\n" in message
                    and message.endswith("1 problem in the config; nothing was started\n")), message
        loose = settings(**MESHES["tensor-2"])
        loose["parallel"] = {"tensor": 2, "data": "auto"}
        message = refusal_of(job.config("three", **loose), "--nproc", 3)
        assert ("error: 3 ranks cannot be divided by tensor 2\n  remedy: start 2 or 4 ranks, or "
                "write parallel.tensor: 1 or 3\n" in message)
        message = refusal_of(job.config("four", **settings(**MESHES["tensor-2"])), "--nproc", 4)
        assert ("error: parallel.data 1 × tensor 2 = 2 ≠ 4 ranks\n  remedy: write parallel.data: 2 "
                "or auto\n" in message), message
        run = must(ftrun("check", "-q", "--config", job.config("auto", **loose), "--nproc",
                         4)).stdout
        assert "4 ranks: --nproc 4; the mesh: data 2 × tensor 2\n" in run, run
        past = must(ftrun("plan", "--config", job.config("past", **settings(**MESHES["pairs"])),
                          "--rank", 4), 2)
        assert "--rank 4: the run has 4 ranks, counted from 0" in past.stderr, past.stderr

    # --- what goes wrong ---------------------------------------------------------------------

    @case
    def a_weight_that_is_not_a_number_is_named_with_its_rank():
        up, down = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"
        # Rows, or columns, from the middle on belong to rank 1.
        for tensor, place in ((up, (100, 4)), (down, (4, 100))):
            run = job.run(f"nan-{tensor}", code=7,
                          **settings(**MESHES["tensor-2"], train={"max_nonfinite_steps": 1}),
                          model=job.model_with_nan(tensor, place))
            match = re.search(r"first met by (.*)\n", run.stderr)
            assert (match and re.fullmatch(r"rank 1, forward layer 2 mb 0 \(layers\.1\): \S+; the "
                                           rf"weight {re.escape(tensor)} is not finite",
                                           match[1])), run.stderr

    @case
    def two_runs_of_one_folder():
        running = start_run("busy", **MESHES["tensor-2"])
        repeated = must(ftrun("--config",
                              job.config("busy", **settings(**MESHES["tensor-2"], total=MANY))), 5)
        assert (repeated.stderr.count(f"output_dir {job.out('busy')}: another run is using it "
                                      "(process ") == 1), repeated.stderr
        running.kill(signal.SIGTERM)
        running.wait(143)

    @case
    def a_rank_that_is_killed_is_the_cause():
        for backend in ("auto", "gloo"):
            running = start_run(f"killed-{backend}", **MESHES["pairs"],
                                comm={"backend": backend, "timeout": 60})
            ranks = running.ranks()
            begin = time.monotonic()
            running.kill(signal.SIGKILL, ranks[3])
            running.wait(137)
            require_in_time(begin, 30, "the end of a run whose rank was killed, with a limit of 60 "
                                       "s,")
            await_gone(ranks.values())
            assert running.text().count("error: rank 3: killed by signal 9 ") == 1, (
                running.text()[-2000:])
            assert manifest(job.out(f"killed-{backend}"))["exit_rank"] == 3

    @case
    def a_rank_that_stops_answering_is_named():
        running = start_run("silent", **MESHES["pairs"], comm={"timeout": 3})
        ranks = running.ranks()
        running.kill(signal.SIGSTOP, ranks[1])
        running.wait(6)
        assert "rank 1" in running.text() and "is stopped" in running.text(), running.text()[-2000:]
        await_gone(ranks.values())

    run_cases()
