"""Checks that bad input is refused with an exact message, a remedy and the right exit code, if
possible before the first step, and that a run that failed keeps what it had saved."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile

import numpy as np

from runner import (BINARY, TINY_CONFIG, Job, case, checkpoints, environment, evaluations,
                    exported_weights, ftrun, manifest, must, needs, preload, require_near,
                    require_same_run, run_cases, start, steps, tiny_model, tiny_weights)

FEW = {"train": {"steps": 4}}
NO_SHUFFLE = {"shuffle": False, "token_dtype": "uint16"}
NO_MODEL = ("  remedy: name a model folder on this machine, relative to the working directory, or "
            "a model of the Hugging Face Hub that was downloaded, as owner/name; ftrun downloads "
            "nothing (hf download owner/name does)\n")


def failure(process):
    """Returns the failure that ftrun printed."""
    return process.stderr[process.stderr.index("ftrun: "):]


def expect(process, code, message):
    must(process, code)
    assert failure(process) == message, f"found:\n{failure(process)}\nexpected:\n{message}"


def hollow_model(folder, **changes):
    """Writes a model whose weights are a hole in a file: it can have any size and needs no disk
    space."""
    tiny_model(folder, **changes)
    shape = TINY_CONFIG | changes
    hidden, inner, heads = (shape["hidden_size"], shape["intermediate_size"],
                            shape["num_attention_heads"] * shape["head_dim"])
    groups, prefix = shape["num_key_value_heads"] * shape["head_dim"], "model.layers.0."
    shapes = {"model.embed_tokens.weight": [shape["vocab_size"], hidden],
              "model.norm.weight": [hidden],
              **{f"{prefix}{name}.weight": [hidden]
                 for name in ("input_layernorm", "post_attention_layernorm")},
              **{f"{prefix}self_attn.{name}.weight": [rows, hidden]
                 for name, rows in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups))},
              f"{prefix}self_attn.o_proj.weight": [hidden, heads],
              f"{prefix}mlp.down_proj.weight": [hidden, inner],
              **{f"{prefix}mlp.{name}.weight": [inner, hidden]
                 for name in ("gate_proj", "up_proj")}}
    header, end = {}, 0
    for name, dims in shapes.items():
        begin, end = end, end + 4 * int(np.prod(dims, dtype=np.int64))
        header[name] = {"dtype": "F32", "shape": dims, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)
    root = job.scratch
    ids = np.fromfile(job.data, dtype=np.uint16)

    def refused(name, code, message, *arguments, **changes):
        """Expects that the run is refused with `message`, where CONFIG stands for the config's
        path."""
        config = job.config(name, **FEW | changes)
        expect(ftrun("--config", config, *arguments), code, message.replace("CONFIG", str(config)))

    # --- configs -----------------------------------------------------------------------------

    @case
    def a_missing_or_unreadable_config_is_refused():
        expect(ftrun(), 2, "ftrun: no config was given\n  remedy: run: ftrun --config FILE (JSON "
                           "or YAML); see ftrun --help\n")
        path = root / "none.json"
        expect(ftrun("--config", path), 2,
               f"ftrun: {path}: error: cannot be read: No such file or directory\n"
               "  remedy: check the path and the permissions\n1 problem in the config; nothing was "
               "started\n")
        expect(ftrun("--config", root), 2,
               f"ftrun: {root}: error: cannot be read: not a regular file\n"
               "  remedy: check the path and the permissions\n1 problem in the config; nothing was "
               "started\n")
        broken = root / "broken.json"
        broken.write_text('{"model": {')
        expect(ftrun("--config", broken), 2, f"ftrun: {broken}:1:11: error: this '{{' is never "
                                             "closed\n1 problem in the config; nothing was "
                                             "started\n")

    @case
    def an_unknown_key_is_refused():
        refused("unknown", 2, 'ftrun: CONFIG:13:3: error: train.stepz: unknown key (did you mean '
                              '"steps"?)\n'
                              "1 problem in the config; nothing was started\n", train={"stepz": 3})

    @case
    def a_value_of_the_wrong_type_is_refused():
        refused("type", 2, 'ftrun: CONFIG:11:12: error: train.steps: expected a whole number of at '
                           'least 1, found "many"\n'
                           "1 problem in the config; nothing was started\n",
                train={"steps": "many"})

    @case
    def contradictory_batch_sizes_are_refused():
        refused("batch", 2, "ftrun: CONFIG:34:22: error: train_batch_size 7 cannot be divided by "
                            "micro 2 × accumulation 2 = 4\n  remedy: the quotient is the number of "
                            "data-parallel ranks; or give --nproc\n1 problem in the config; "
                            "nothing was started\n", train_batch_size=7)
        refused("batch", 2, "ftrun: CONFIG:34:22: error: train_batch_size 8 ≠ micro 2 × "
                            "accumulation 2 × data-parallel 3 = 12\n  remedy: remove one of the "
                            "three: it follows from the other two\n1 problem in the config; "
                            "nothing was started\n", "--nproc", 3, train_batch_size=8)

    @case
    def several_problems_are_reported_at_once():
        refused("several", 2,
                'ftrun: CONFIG:9:14: error: data.packing: expected one of concat, documents, none, '
                'found "tight"\nCONFIG:14:3: error: train.stepz: unknown key (did you mean '
                '"steps"?)\nCONFIG:18:23: error: gradient_clipping: expected a number of at least '
                '0, found "x"\n'
                "CONFIG:36:22: error: train_batch_size 7 cannot be divided by micro 2 × "
                "accumulation 2 = 4\n  remedy: the quotient is the number of data-parallel ranks; "
                f"or give --nproc\nCONFIG:3:11: error: {root}/nothing: there is no such folder\n"
                f"{NO_MODEL}5 problems in the config; nothing was started\n",
                data={"packing": "tight"}, train={"stepz": 3}, gradient_clipping="x",
                train_batch_size=7,
                model={"path": str(root / "nothing")})

    @case
    def a_mesh_of_another_number_of_ranks_is_refused():
        refused("mesh", 2, "ftrun: CONFIG:35:11: error: parallel.data 2 ≠ 3 ranks\n"
                           "  remedy: write parallel.data: 3 or auto\n1 problem in the config; "
                           "nothing was started\n",
                "--nproc", 3, parallel={"data": 2})

    @case
    def unsupported_features_are_refused():
        refused("features", 3,
                "ftrun: the config is valid, but this build cannot do what it requests:\n"
                "CONFIG:43:14: not supported yet: context parallelism (parallel.context)\n"
                "CONFIG:31:29: not supported yet: checkpoints on every node's own disk "
                "(checkpoint.use_node_local_storage)\n  remedy: remove these keys\n",
                zero_optimization={"stage": 1}, bf16={"enabled": True}, recompute="full",
                parallel={"context": 2},
                checkpoint={"use_node_local_storage": True})

    @case
    def wrong_command_lines_are_refused():
        config = job.config("lines")
        expect(ftrun("plan", "--config", config, "--rank", 9), 2,
               "ftrun: --rank 9: the run has 1 rank, counted from 0\n  remedy: remove --rank\n")
        expect(ftrun("plan", "--config", config, "--nproc", 4, "--rank", 9), 2,
               "ftrun: --rank 9: the run has 4 ranks, counted from 0\n  remedy: give a rank from 0 "
               "to 3\n")
        nproc = must(ftrun("--config", config, "--nproc", 0), 2)
        assert nproc.stderr.startswith("--nproc: Value 0 not in range 1 to 1048576\n"), nproc.stderr
        for command in ((), ("train",), ("check",)):
            expect(ftrun(*command, config), 2, f"ftrun: the argument {config} was not expected\n"
                                               f"  remedy: give it as --config {config}\n")
            expect(ftrun(*command, "--confg", config), 2,
                   'ftrun: the option --confg is unknown (did you mean "--config"?)\n'
                   f"  remedy: list the options with: ftrun {' '.join((*command, ''))}--help\n")
        for command in ("train", "check", "plan"):
            before = ftrun("--config", config, "--set", "train.steps=1", command, "--config",
                           config)
            expect(before, 2, f"ftrun: the option --config must follow the command {command}\n"
                              f"  remedy: run: ftrun {command} "
                              "--config ...\n")
        expect(ftrun("trian"), 2, 'ftrun: the command trian is unknown (did you mean "train"?)\n'
                                  "  remedy: list the commands with: ftrun --help\n")
        unknown = must(ftrun("dosomething"), 2)
        assert (unknown.stderr.startswith(
            "The following argument was not expected: dosomething\n")), unknown.stderr

    @case
    def an_unsupported_optimizer_is_refused():
        refused("lamb", 3, "ftrun: the config is valid, but this build cannot do what it "
                           "requests:\n--set optimizer.type=lamb: not supported yet: the "
                           "optimizer Lamb (optimizer.type)\n  remedy: remove these keys\n",
                "--set", "optimizer.type=lamb")

    @case
    def a_missing_gpu_is_refused():
        process = ftrun("--config", job.config("no-gpu", **FEW), "--nproc", 1, "--set",
                        "device=cuda")
        if process.returncode == 0:
            return print("there is a GPU: what is said without one was not looked at")
        without_cuda = "this ftrun was built without CUDA" in process.stderr
        must(process, 3 if without_cuda else 5)
        why = ("this ftrun was built without CUDA" if without_cuda
               else "CUDA cannot use this machine: ")
        assert f"the config requests GPU 0, but {why}" in failure(process), process.stderr
        assert "or set device: cpu" in failure(process), process.stderr

    @case
    def check_opens_the_inputs():
        folder = tiny_model(root / "check-mismatch", intermediate_size=64)
        odd = root / "check-odd.bin"
        odd.write_bytes(ids.tobytes()[:4001])
        large = root / "check-large.jsonl"
        large.write_text('{"input_ids": [1, 2}\n' + '{"input_ids": [1, 2]}\n' * 60000)
        data = {"train": [str(odd), str(root / "none.bin")], "validation": str(large),
                "token_dtype": "uint16"}
        config = job.config("check-inputs", data=data, model={"path": str(folder)})
        mismatch = (f"{config}:3:11: error: {folder}: the weights are not those of its "
                    "config.json:\n"
                    + "".join(f"  tensor model.layers.{layer}.mlp.{name}.weight has shape {found}; "
                              f"expected {expected}\n"
                              for layer in (0, 1)
                              for name, found, expected in (("gate_proj", [48, 32], [64, 32]),
                                                            ("up_proj", [48, 32], [64, 32]),
                                                            ("down_proj", [32, 48], [32, 64])))
                    + "  remedy: use the config.json and the weights of the same model\n")
        found = must(ftrun("check", "--config", config), 4)
        assert failure(found).startswith(f"ftrun: {mismatch}"), found.stderr
        rest = re.sub(r"^\S+:\d+:\d+: error: ", "", failure(found)[len(f"ftrun: {mismatch}"):],
                      flags=re.M)
        assert rest == (f"{odd}: has 4001 bytes, not a whole number of uint16 tokens (as "
                        "data.token_dtype says)\n  remedy: correct the type, or copy the file "
                        f"again if it was cut short\n{root}/none.bin: no such file\n"
                        "  remedy: check the path, or write the data with scripts/prepare_data.py\n"
                        f"{large}:1: column 20: expected ',' or ']'\n"
                        '  remedy: write one object a line, such as {"input_ids": [1, 2, 3]}\n'
                        "4 problems in the model and the data; nothing was started\n"), rest

    @case
    def check_says_what_does_not_fit():
        folder = tiny_model(root / "long-model", max_position_embeddings=16)
        config = job.config("check-long", model={"path": str(folder)})
        shown = must(ftrun("check", "--config", config, "-q")).stdout
        run = must(ftrun("--config", config, "--set", "train.steps=1"))
        for text in (shown, run.stdout + run.stderr):
            assert (text.count("notice: data.sequence_length 32 is above the model's "
                               "max_position_embeddings, 16\n"
                               '  remedy: yarn reaches them: "rope_scaling": {"rope_type": "yarn", '
                               '"factor": 2, "original_max_position_embeddings": 16} in '
                               'config.json\n') == 1), text
        assert "this machine cannot run" not in shown, shown
        large = must(ftrun("check", "--config",
                           job.config("check-much", train_micro_batch_size_per_gpu=50_000_000),
                           "-q")).stdout
        assert re.search(r"^notice: this machine cannot run the config: this rank needs [\d.]+ TiB "
                         r"of main memory \([\d.]+ TiB per rank; most of it "
                         r"activations [\d.]+ TiB per rank\), .* has [\d.]+ GiB$",
                         large, re.M), large

    @case
    def warm_up_that_is_longer_than_the_epochs_is_reported_once_the_data_are_counted():
        config = job.config("warm-up",
                            scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 100_000}})
        run = must(ftrun("--config", config, "--set", "train.epochs=1"))
        text = run.stdout + run.stderr
        assert (len(re.findall(r"^warning: scheduler: warmup_num_steps 100000 > the run's \d+ "
                               r"steps: training ends inside the warm-up$", text, re.M)) == 1), text

    # --- models ------------------------------------------------------------------------------

    @case
    def a_missing_model_folder_is_refused():
        refused("nomodel", 4, f"ftrun: CONFIG:3:11: error: {root}/nothing: there is no such "
                              f"folder\n{NO_MODEL}1 problem in the model; nothing was started\n",
                model={"path": str(root / "nothing")})
        (root / "no-config").mkdir()
        refused("noconfig", 4, f"ftrun: CONFIG:3:11: error: {root}/no-config: has no config.json\n"
                               "  remedy: give the path of a Hugging Face model folder\n1 problem "
                               "in the model; nothing was started\n",
                model={"path": str(root / "no-config")})
        for kind, file, words in (("model", "config.json", "name the model that it trained, "),
                                  ("adapter", "adapter_config.json", "write adapter: ")):
            (root / f"run-{kind}/export/{kind}").mkdir(parents=True)
            (root / f"run-{kind}/export/{kind}/{file}").write_text("{}")
            result = ftrun("check", "--config",
                           job.config("a-run", model={"path": str(root / f"run-{kind}")}))
            assert f"{words}{root}/run-{kind}/export/{kind}" in must(result, 4).stderr, (
                result.stderr)

    @case
    def a_model_without_weights_is_refused():
        folder = tiny_model(root / "noweights")
        (folder / "model.safetensors").unlink()
        refused("noweights-run", 4, f"ftrun: {folder}: has neither model.safetensors nor "
                                    "model.safetensors.index.json\n  remedy: check that the "
                                    "download of the model is complete\n",
                model={"path": str(folder)})

    @case
    def a_truncated_model_is_refused():
        folder = tiny_model(root / "truncated")
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[:len(content) // 2])
        message = (f'{folder}/model.safetensors: tensor "model.layers.0.mlp.down_proj.weight": '
                   'data ends at byte 60288, '
                   "the file holds only 56992 bytes of data\n"
                   "  remedy: fetch or write the file again: it is damaged, incomplete or not a "
                   "safetensors file\n")
        refused("truncated-run", 4, f"ftrun: {message}", model={"path": str(folder)})
        both = must(ftrun("--config", job.config("truncated-run", **FEW,
                                                 model={"path": str(folder)}), "--nproc", 2), 4)
        cause = re.sub(r"\d+\.\ds after", "N s after", both.stderr[both.stderr.index("error: "):])
        # The supervisor may stop one rank before it ends by itself.
        expected = (r"error: (ranks 0, 1|rank [01]): exit code 4, N s after the start: opening the "
                    f"model: rank 0: {re.escape(message)}(  stopped because of it: rank [01]\n)?")
        assert re.fullmatch(expected, cause), cause
        # The failed run left only an empty skeleton, so the repaired run can use the same folder.
        (folder / "model.safetensors").write_bytes(content)
        job.run("truncated-run", **FEW, model={"path": str(folder)})

    @case
    def weights_that_do_not_match_the_config_are_refused():
        folder = tiny_model(root / "mismatch", intermediate_size=64)
        refused("mismatch-run", 4,
                f"ftrun: {folder}: the weights are not those of its config.json:\n" + "".join(
                    f"  tensor model.layers.{layer}.mlp.{name}.weight has shape {found}; expected "
                    f"{expected}\n"
                    for layer in (0, 1) for name, found, expected in (
                        ("gate_proj", [48, 32], [64, 32]), ("up_proj", [48, 32], [64, 32]),
                        ("down_proj", [32, 48], [32, 64])))
                + "  remedy: use the config.json and the weights of the same model\n",
                model={"path": str(folder)})

    @case
    def a_tied_model_with_two_different_matrices_is_refused():
        folder = tiny_model(root / "two-matrices", tie_word_embeddings=True)
        said_of = (f"{folder}: config.json ties lm_head.weight to model.embed_tokens.weight, and "
                   "the weights contain both, with different values\n"
                   '  remedy: to train both, write "tie_word_embeddings": false in config.json; to '
                   "train one matrix for both, remove lm_head.weight from the weights\n")
        refused("two-matrices-run", 4, f"ftrun: {said_of}", model={"path": str(folder)})
        result = must(ftrun("check", "--config",
                            job.config("two-matrices-check", model={"path": str(folder)})), 4)
        assert said_of in failure(result), result.stderr
        weights = tiny_weights()
        tiny_model(folder, weights | {"lm_head.weight": weights["model.embed_tokens.weight"]},
                   tie_word_embeddings=True)
        job.run("two-matrices-run", **FEW, model={"path": str(folder)})

    @case
    def weights_are_found_under_other_names():
        """Names of tensors may have wrappers and prefixes, and a tied matrix may be stored as the
        head alone; the export has the model's names."""
        two, even = {"train": {"steps": 2}}, {"tie_word_embeddings": True, "vocab_size": 212}
        tied = {name: values for name, values in tiny_weights(vocabulary=212).items()
                if name != "lm_head.weight"}
        plain = tiny_model(root / "plain-names", tied, **even)
        job.run("plain-names-run", **two, model={"path": str(plain)})
        expected, names = [m["loss"] for m in steps(job.out("plain-names-run"))], set(tied)
        head = {name.replace("model.embed_tokens", "lm_head"): values
                for name, values in tied.items()}
        folder = tiny_model(root / "other-names", {f"module._orig_mod.{name}": values
                                                   for name, values in head.items()}, **even)
        for layout in ({}, {"parallel": {"tensor": 2}}, {"parallel": {"pipeline": 2}}):
            name = "-".join(["other-names-run", *layout.get("parallel", {})])
            shown = job.run(name, "--nproc", 2 if layout else 1, **two, **layout,
                            model={"path": str(folder)})
            require_near(name, [m["loss"] for m in steps(job.out(name))], expected, 1e-6)
            assert set(exported_weights(job.out(name))) == names, name
            message = (f'notice: {folder}: the weights have other names than the model\'s '
                       '("module._orig_mod.model.layers.0.input_layernorm.weight" for '
                       '"model.layers.0.input_layernorm.weight"); they are read, and exported '
                       'under the model\'s')
            assert shown.stderr.count(message) == 1, shown.stderr
        untied = tiny_model(root / "no-head", tied, vocab_size=212)
        refused("no-head-run", 4, f"ftrun: {untied}: the weights are not those of its "
                                  "config.json:\n  tensor lm_head.weight is missing; expected "
                                  "shape [212, 32]\n"
                                  "  remedy: if the model uses one matrix for embedding and "
                                  'head, write "tie_word_embeddings": true in config.json; else '
                                  "fetch the weights again\n", model={"path": str(untied)})

    @case
    def a_wrong_model_config_is_refused():
        folder = tiny_model(root / "badconfig", hidden_size=-3)
        refused("badconfig-run", 4,
                f"ftrun: CONFIG:3:11: error: {folder}/config.json: hidden_size: found -3; expected "
                "a whole number from 1 to 1048576\n1 problem in the model; nothing was started\n",
                model={"path": str(folder)})

    @case
    def an_unknown_family_is_refused():
        folder = tiny_model(root / "family", architectures=["MambaForCausalLM"], model_type="mamba")
        support = json.loads(must(ftrun("schema", "--support")).stdout)
        names = ", ".join(family["model_type"] for family in support["families"])
        refused("family-run", 3, f'ftrun: {folder}/config.json: model_type "mamba" is not '
                                 'supported yet\n'
                                 f"  remedy: use a model of a supported family: {names}, or a "
                                 "decoder of gemma3, mistral3\n", model={"path": str(folder)})

    @case
    def weights_with_nan_stop_the_run():
        weights = tiny_weights()
        weights["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
        folder = tiny_model(root / "nan", weights)
        run = must(ftrun("--config", job.config("nan-run", model={"path": str(folder)},
                                                train={"steps": 40, "max_nonfinite_steps": 3})), 7)
        place = ("first met by rank 0, forward layer 2 mb 0 (layers.1): sum; "
                 "the weight model.layers.1.mlp.up_proj.weight is not finite")
        left_out = "the loss or the gradient is not finite; the update was skipped"
        assert run.stderr.endswith(
            f"warning: step 1: {left_out} (1 in a row): {place}\n"
            f"warning: step 2: {left_out} (2 in a row): {place}\n"
            f"warning: step 3: {left_out} (3 in a row): {place}\n"
            "ftrun: step 3: the loss or the gradient was not finite for 3 steps in a row: "
            f"{place}\n"
            "  remedy: lower the learning rate, check the data of these steps, or raise "
            "train.max_nonfinite_steps\n"), run.stderr
        record = manifest(job.out("nan-run"))
        assert (record["exit_code"] == 7
                and record["counters"]["skipped_steps"] == 3), record["counters"]
        lines = steps(job.out("nan-run"))
        assert [m["skipped"] for m in lines] == [True] * 3 and lines[0]["loss"] == "NaN", lines

        few = must(ftrun("--config", job.config("nan-few", model={"path": str(folder)},
                                                train={"steps": 2})), 7)
        assert few.stderr.endswith("ftrun: the loss or the gradient was not finite in all 2 steps: "
                                   f"{place}: nothing was trained\n  remedy: check the weights and "
                                   "the data, or lower the learning rate\n"), few.stderr
        assert not (job.out("nan-few") / "export").exists() and not checkpoints(job.out("nan-few"))

    @case
    def diverging_run_stops():
        run = job.run("diverged", code=7, optimizer={"type": "SGD", "params": {"lr": 1e30}},
                      gradient_clipping=0.0,
                      train={"steps": 40, "max_nonfinite_steps": 2})
        assert (re.search(r"\nftrun: step \d+: the loss or the gradient was not finite for 2 "
                          r"steps in a row", run.stderr)), run.stderr

    # --- data --------------------------------------------------------------------------------

    @case
    def missing_data_are_refused():
        refused("nodata", 4, f"ftrun: {root}/none.bin: no such file\n"
                             "  remedy: check the path, or write the data with "
                             "scripts/prepare_data.py\n",
                data={"train": str(root / "none.bin")})

    @case
    def data_refused_on_several_ranks_is_reported_once():
        config = job.config("nodata-2", **FEW, data={"train": str(root / "none.bin")})
        run = must(ftrun("--config", config, "--nproc", 2), 4)
        assert run.stderr.count("none.bin: no such file") == 1, run.stderr

    @case
    def token_ids_out_of_range_are_refused():
        bad = ids.copy()
        bad[100] = 5000
        path = root / "ids.bin"
        path.write_bytes(bad.tobytes())
        changes = {"data": {"train": str(path), **NO_SHUFFLE}}
        message = (f"{path}: sequence 3, token 4 (file offset 200): id 5000 is outside the model's "
                   "vocabulary of 211 ids\n  remedy: prepare the data with this model's own "
                   "tokenizer\n")
        for ranks in (1, 2):
            run = must(ftrun("--config", job.config(f"ids-{ranks}", **FEW | changes), "--nproc",
                             ranks), 4)
            assert run.stderr.count(str(path)) == 1, run.stderr
            assert message in run.stderr, run.stderr
            # Of two ranks, the second reads sample 3; rank 0 only noticed that the other was gone.
            record = manifest(job.out(f"ids-{ranks}"))
            assert (record["exit_code"], record["exit_rank"]) == (4, ranks - 1), record
            assert (record["exit_reason"] == message.split("\n")[0]
                    and record["ended"]), record["exit_reason"]
        expect(ftrun("check", "--config", job.config("ids-check", **FEW | changes), "--data", "-q"),
               4,
               "ftrun: the data cannot be trained on:\n"
               f"{path}: sequence 3, token 4 (file offset 200): id 5000 is outside the model's "
               "vocabulary of 211 ids\n  remedy: prepare it again with the tokenizer "
               "of this model\n")

    @case
    def recorded_ids_outside_the_model_are_refused():
        """Checks recorded ids without reading the data: prepare_data.py writes them, and `check`
        refuses them too."""
        path = root / "recorded.bin"
        path.write_bytes(ids.tobytes())
        path.with_suffix(".json").write_text(json.dumps({
            "format": "ftrun-data", "version": 1, "tokens": len(ids), "documents": 1,
            "trained_tokens": len(ids), "min_id": 0, "max_id": 300,
            "dtype": "uint16",
            "files": [{"role": "tokens", "name": path.name, "bytes": path.stat().st_size,
                       "modified_ns": path.stat().st_mtime_ns, "xxh3": "0123456789abcdef"}]}))
        message = (f"{path}: its largest token id is 300 (as {path.with_suffix('.json')} "
                   "recorded), outside the model's vocabulary of 211 ids\n  remedy: prepare the "
                   "data with this model's own tokenizer\n")
        changes = {"data": {"train": str(path), **NO_SHUFFLE}}
        refused("recorded", 4, f"ftrun: {message}", **changes)
        result = must(ftrun("check", "--config", job.config("recorded-check", **changes), "-q"), 4)
        assert message in failure(result), result.stderr

    @case
    def data_that_fill_no_batch_are_refused():
        path = root / "few-rows.bin"
        path.write_bytes(ids.tobytes()[:2 * (3 * 32 + 1)])
        changes = {"data": {"train": str(path), **NO_SHUFFLE}, "dataloader_drop_last": True}
        message = (f"{path}: gives 3 sequences, fewer than one global batch of 4, and "
                   "dataloader_drop_last leaves out what does not fill one\n  remedy: set "
                   "dataloader_drop_last: false, use a smaller batch, or use more text\n")
        refused("few-rows", 4, f"ftrun: {message}", **changes)
        expect(ftrun("check", "--config", job.config("few-rows-check", **changes), "--data", "-q"),
               4,
               f"ftrun: the data cannot be trained on:\n{message}")

    @case
    def a_step_without_labels_has_no_loss():
        path = root / "late-labels.jsonl"
        lines = [ids[64 * i:64 * i + 64].tolist() for i in range(10)]
        path.write_text("".join(json.dumps({"input_ids": line, "labels": line
                                            if i >= 4 else [-100] * 64}) + "\n"
                                for i, line in enumerate(lines)))
        run = job.run("late-labels", **FEW, data={"train": str(path), "shuffle": False,
                                                  "packing": "concat"})
        first, second, third, fourth = steps(job.out("late-labels"))
        assert (first["loss"], first["tokens"], first["grad_norm"]) == ("NaN", 0, 0), first
        assert (third["tokens"] == fourth["tokens"] == 128
                and third["loss"] > fourth["loss"] > 0), (third, fourth)
        assert (run.stderr.count(": all labels are masked: the loss is NaN and the gradients are "
                                 "zero\n  remedy: ") == 1), run.stderr

    @case
    def truncated_or_empty_data_are_refused():
        for name, size, message in (
                ("odd", 4001, "has 4001 bytes, not a whole number of uint16 tokens (as "
                              "data.token_dtype says)\n  remedy: correct the type, or copy the "
                              "file again if it was cut short\n"),
                ("short", 20, "has 10 tokens; one sequence of length 32 needs 33\n"
                              "  remedy: lower data.sequence_length, or use more text\n"),
                ("empty", 0, "holds no tokens\n  remedy: write the data again with "
                             "scripts/prepare_data.py\n")):
            path = root / f"{name}.bin"
            path.write_bytes(ids.tobytes()[:size])
            refused(name, 4, f"ftrun: {path}: {message}",
                    data={"train": str(path), "token_dtype": "uint16"})

    @case
    def truncated_megatron_files_are_refused():
        documents = ids[:4000].reshape(40, 100)
        index = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 40, 41)
                 + np.full(40, 100, np.int32).tobytes()
                 + (np.arange(40, dtype=np.int64) * 200).tobytes()
                 + np.arange(41, dtype=np.int64).tobytes())
        for name, data, head, message in (
                ("m-whole", documents.tobytes(), index, None),
                ("m-data", documents.tobytes()[:-50], index,
                 f"{root}/m-data.bin: has 7950 bytes; sequence 39 of its index {root}/m-data.idx "
                 "ends at byte 8000"),
                ("m-index", documents.tobytes(), index[:-50],
                 f"{root}/m-index.idx: the header says 40 sequences and 41 document boundaries, "
                 "that is 842 bytes; the file has 792")):
            (root / f"{name}.bin").write_bytes(data)
            (root / f"{name}.idx").write_bytes(head)
            changes = {"data": {"train": str(root / f"{name}.bin")}}
            if message is None:
                job.run(f"{name}-run", **FEW, **changes)
            else:
                refused(f"{name}-run", 4, f"ftrun: {message}\n  remedy: write the pair again with "
                                          "scripts/prepare_data.py or Megatron's "
                                          "preprocess_data.py, or copy both files again\n",
                        **changes)

    @case
    def data_whose_labels_are_all_masked_are_refused():
        masked = root / "masked.jsonl"
        line = json.dumps({"input_ids": [1, 2, 3, 4] * 20, "labels": [-100] * 80})
        masked.write_text((line + "\n") * 20)
        message = (f"ftrun: {masked}: none of its 1600 tokens counts in the loss: there is nothing "
                   "to train on\n  remedy: write the data again and mask only the prompts: now "
                   "every label is masked\n")
        refused("masked", 4, message, data={"train": str(masked)})
        refused("masked", 4, message, data={"validation": str(masked)})

    @case
    def masked_first_rows_of_a_validation_are_reported():
        path = root / "late.jsonl"
        hidden = json.dumps({"input_ids": list(range(1, 34)), "labels": [-100] * 33})
        shown = json.dumps({"input_ids": list(range(1, 34))})
        path.write_text((hidden + "\n") * 8 + shown + "\n")
        run = must(ftrun("--config",
                         job.config("late",
                                    **FEW | {"train": {"steps": 4, "evaluation": {"samples": 2}}},
                                    data={"validation": str(path)})), 0)
        assert run.stderr.endswith(
            "warning: validation: no token of the evaluated sequences counts in the loss, so there "
            "is no loss to compare\n  remedy: raise train.evaluation.samples, or validate on other "
            "data\n"), run.stderr
        assert ("step 4/4  loss " in run.stdout
                and "  validation has no token that counts\n" in run.stdout), run.stdout
        assert [(line["loss"], line["tokens"], "accuracy" in line)
                for line in evaluations(job.out("late"))] == [("NaN", 0, False)] * 2
        best = dict(checkpoint={"keep_best": {"metric": "validation.loss"}},
                    export={"enabled": True, "which": "best"})
        run = must(ftrun("--config",
                         job.config("late-best",
                                    **FEW | {"train": {"steps": 4, "evaluation": {"samples": 2}}}
                                    | best,
                                    data={"validation": str(path)})), 4)
        assert failure(run) == (f"ftrun: {path}: no token counts in the first 2 sequences, so they "
                                "have no loss; the best checkpoint by validation.loss, which "
                                "export.which: best exports, would never exist\n"
                                "  remedy: raise train.evaluation.samples, validate on other "
                                "data, or keep the best by another set\n"), run.stderr

    @case
    def garbled_jsonl_is_refused():
        path = root / "garbled.jsonl"
        path.write_text('{"input_ids":[1,2,3]}\n{"input_ids":[1,2\n')
        refused("garbled", 4, f"ftrun: {path}:2: column 18: expected ',' or ']'\n"
                              '  remedy: write one object a line, such as {"input_ids": [1, 2, '
                              '3], "labels": [-100, 2, 3]}\n',
                data={"train": str(path)})

    # --- the run folder ----------------------------------------------------------------------

    @case
    def an_output_folder_in_use_is_refused():
        running = start("--config", job.config("busy", train={"steps": 100000}))
        running.await_line("step 3/")
        for more in ((), ("--resume", "auto"), ("--nproc", 2)):
            run = must(ftrun("--config", job.config("busy", train={"steps": 100000}), *more), 5)
            pid = running.process.pid
            assert (run.stderr.count(f"output_dir {job.out('busy')}: another run is using it "
                                     f"(process {pid} on ") == 1), run.stderr
            assert (f"remedy: wait for that run or stop it (kill {pid}), or choose another "
                    "output_dir\n" in run.stderr), run.stderr
        running.kill(signal.SIGTERM)
        running.wait(143)

    @case
    def an_output_folder_that_is_a_file_is_refused():
        refused("file", 2, f"ftrun: output_dir {job.data}: it exists and is not a folder\n"
                           "  remedy: choose another output_dir\n", output_dir=str(job.data))

    @case
    def an_empty_output_folder_name_is_refused():
        for command in (("check", "-q"), ("--nproc", 2)):
            process = must(ftrun(*command, "--config", job.config("unnamed", **FEW, output_dir="")),
                           2)
            assert failure(process) == ("ftrun: output_dir is empty\n"
                                        "  remedy: name the folder that the run writes to\n")

    @case
    def an_output_folder_that_cannot_be_written_is_refused():
        """A test that runs as root, who may write everywhere, runs ftrun as another user."""
        sealed = root / "sealed"
        sealed.mkdir()
        sealed.chmod(0o555)
        mode = root.stat().st_mode
        root.chmod(0o755)
        for path in (job.data, *job.model.iterdir()):
            path.chmod(0o644)
        config = job.config("sealed-run", **FEW, output_dir=str(sealed / "run"))
        nobody = ("setpriv", "--reuid", "65534", "--regid", "65534",
                  "--clear-groups") if os.geteuid() == 0 else ()
        for command in (("check", "-q"), (), ("--nproc", 2)):
            process = must(ftrun(*command, "--config", config, wrapper=nobody), 5)
            assert failure(process) == (f"ftrun: output_dir {sealed}/run: {sealed}: cannot be "
                                        "written: Permission denied\n  remedy: give this user the "
                                        "right to write there, or choose another output_dir\n")
        must(ftrun("--config", job.config("open-run", **FEW)))
        convert = ("convert", job.out("open-run"), "--model", job.model, "--out", sealed / "out")
        job.out("open-run").chmod(0o755)
        for path in job.out("open-run").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        process = must(ftrun(*convert, wrapper=nobody), 5)
        assert failure(process) == (f"ftrun: {sealed}: cannot be written: Permission denied\n"
                                    "  remedy: give this user the right to write there, or choose "
                                    "another folder\n")
        assert list(sealed.iterdir()) == []
        root.chmod(mode)

    @case
    def a_disk_too_small_for_a_checkpoint_is_refused_or_warned_of():
        """The weights are a hole in a file; a checkpoint of them takes twice the free space, or
        half of it."""
        free, hidden = shutil.disk_usage(root).free, 1 << 16
        found = {}
        for name, share in (("twice", 2.0), ("half", 0.5)):
            rows = int(share * free / (3 * 4 * hidden))
            shape = {"hidden_size": hidden, "vocab_size": rows, "num_hidden_layers": 1,
                     "tie_word_embeddings": True}
            config = job.config(name, model={"path": str(hollow_model(root / name, **shape))},
                                train={"steps": 10},
                                checkpoint={"every": 2, "keep_last": 2})
            found[name] = ftrun("check", "-q", "--config", config)
        must(found["twice"], 5)
        assert re.fullmatch(rf"ftrun: {job.out('twice')}/checkpoints: 1 checkpoint of [\d.]+ \w+: "
                            r"[\d.]+ \w+ needed, "
                            r"[\d.]+ \w+ free\n  remedy: free space on that file system, or write "
                            r"to another one \(output_dir\)\n",
                            failure(found["twice"])), found["twice"].stderr
        warned = must(found["half"]).stdout
        assert re.search(rf"^warning: {job.out('half')}/checkpoints: 3 checkpoints of [\d.]+ \w+ "
                         r"\(keep_last 2, one under way, "
                         r"0 there\) and the exported model of [\d.]+ \w+: [\d.]+ \w+ needed, "
                         r"[\d.]+ \w+ free: the run may "
                         r"end with a full disk$", warned, re.M), warned

    @case
    def reader_of_the_output_leaves():
        for ranks in (1, 2):
            config = job.config(f"deaf-{ranks}", train={"steps": 60})
            process = subprocess.Popen([BINARY, "--config", str(config), "--nproc", str(ranks)],
                                       stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, env=environment())
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 0
            assert len(steps(job.out(f"deaf-{ranks}"))) == 60

    # --- checkpoints -------------------------------------------------------------------------

    def damaged(name):
        """Writes a run of 4 steps whose newest checkpoint, that of step 4, has one wrong byte."""
        saved = {"checkpoint": {"every": 2, "keep_last": 0}}
        job.run(name, **FEW, **saved)
        path = job.out(name) / "checkpoints/step-00000004/rank-00000.safetensors"
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
        return saved, path

    @case
    def damaged_checkpoint_is_passed_over_with_an_error():
        saved, path = damaged("damaged")
        resumed = job.run("damaged", "--resume", "auto", train={"steps": 8}, **saved)
        assert f"error: checkpoint step-00000004 is skipped: {path}: " in resumed.stderr, (
            resumed.stderr)
        assert (f"resumed from {job.out('damaged')}/checkpoints/step-00000002 (read in "
                in resumed.stdout), resumed.stdout
        job.run("undamaged", train={"steps": 8}, **saved)
        require_same_run(job.out("damaged"), job.out("undamaged"))

    @case
    def a_latest_that_cannot_be_read_stops_all_ranks():
        saved = {"checkpoint": {"every": 2}}
        for ranks in (1, 2):
            name = f"latest-{ranks}"
            job.run(name, "--nproc", ranks, **FEW, **saved)
            latest = job.out(name) / "checkpoints/latest"
            latest.unlink()
            latest.mkdir()
            run = must(ftrun("--config", job.config(name, train={"steps": 8}, **saved), "--nproc",
                             ranks, "--resume", "auto"), 4)
            message = (f"resuming from step-00000004: {'rank 0: ' if ranks == 2 else ''}{latest}: "
                       "cannot be read: not a regular file")
            assert message in run.stderr, run.stderr
            if ranks == 2:
                cause = run.stderr[run.stderr.index("error: "):]
                assert (cause.startswith("error: ranks 0, 1: exit code 4, ")
                        and "then rank" not in cause), cause

    @case
    def a_path_that_the_system_refuses_is_no_defect_of_ours():
        loop = root / "loop"
        loop.mkdir()
        (loop / "config.json").symlink_to("config.json")
        expect(ftrun("inspect", loop), 5, f"ftrun: {loop}/config.json: Too many levels of symbolic "
               "links\n  remedy: check that the path exists, that this user may use it, and that "
               "its disk works\n")

    @case
    def a_log_that_cannot_be_opened_is_the_environments():
        for ranks in (1, 2):
            log = job.out(f"log-{ranks}") / f"logs/rank-{ranks - 1}.log"
            log.mkdir(parents=True)
            run = must(ftrun("--config", job.config(f"log-{ranks}", **FEW), "--nproc", ranks), 5)
            assert f"{log}: open failed: Is a directory\n  remedy: " in run.stderr, run.stderr

    @case
    def memory_that_runs_out_outside_of_training_names_no_micro_batch():
        # The model's table of tensors alone is larger than the memory limit.
        folder = tiny_model(root / "table")
        entry = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                 for i in range(300_000)}
        table = json.dumps(entry).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(table)) + table)
        run = must(ftrun("inspect", folder, wrapper=("bash", "-c", 'ulimit -v 120000; exec "$@"',
                                                     "-")), 5)
        assert failure(run) == ("ftrun: out of memory\n"
                                "  remedy: end other programs, raise the memory limit, or use a "
                                "machine with more memory\n"), run.stderr

    @case
    def an_address_space_that_is_too_small_is_reported_wherever_it_ends():
        for ranks in (1, 2):
            codes = set()
            for mib in range(160, 760, 60):
                limited = ("sh", "-c", f'ulimit -v {mib << 10} && exec "$0" "$@"')
                shutil.rmtree(job.out("space"), ignore_errors=True)
                result = ftrun("--config", job.config("space", train={"steps": 1}), "--nproc",
                               ranks, "--restarts", 0, wrapper=limited)
                codes.add(result.returncode)
                assert result.returncode in (0, 5), (mib, result.returncode, result.stderr)
                assert result.returncode == 0 or "\n  remedy: " in result.stderr, (
                    mib, result.stderr)
            assert 5 in codes, codes
        must(ftrun("--config", job.config("space-enough", train={"steps": 1}),
                   wrapper=("sh", "-c", 'ulimit -v 8000000 && exec "$0" "$@"')))

    @case
    def no_good_checkpoint_is_an_error():
        saved, path = damaged("ruined")
        shutil.rmtree(job.out("ruined") / "checkpoints/step-00000002")
        for more in (("--resume", "auto"), ("--resume", "4")):
            run = must(ftrun("--config", job.config("ruined", train={"steps": 8}, **saved), *more),
                       4)
            assert (f"checkpoint can{'not' if more[1] == '4' else ''} be used: {path}: "
                    in failure(run)), run.stderr
        absent = must(ftrun("--config", job.config("ruined", train={"steps": 8}, **saved),
                            "--resume", "11"), 4)
        assert failure(absent) == (f"ftrun: {job.out('ruined')}/checkpoints: holds no checkpoint "
                                   "of step 11\n  remedy: give one of the saved steps: 4; or "
                                   "--resume auto for the newest good one\n"), absent.stderr
        verified = must(ftrun("verify", job.out("ruined")), 4)
        assert str(path) in verified.stderr, verified.stderr

    @case
    def disk_limit_while_saving_keeps_the_checkpoint_before():
        job.run("limit", train={"steps": 4})
        config = job.config("limit", train={"steps": 8}, checkpoint={"every": 2})
        # A limit that is known to be too small is refused before the start. This one is smaller
        # than a checkpoint's file but larger than its tensors, so it is met while saving.
        size = (
            job.out("limit") / "checkpoints/step-00000004/rank-00000.safetensors").stat().st_size
        run = must(ftrun("--config", config, "--resume", "auto",
                         wrapper=("bash", "-c", f'ulimit -f {(size - 1) // 1024}; exec "$@"', "-")),
                   5)
        # The first checkpoint is written in the background, and training continues. The last one
        # must succeed: without it, training would be lost.
        for what, step in (("warning", 6), ("ftrun", 8)):
            assert re.search(rf"{what}: checkpoint step-0000000{step} was not written: "
                             r"\S+/rank-00000.safetensors: "
                             r"\w+ failed: File too large", run.stderr), run.stderr
        assert checkpoints(job.out("limit")) == ["step-00000004"], checkpoints(job.out("limit"))
        assert manifest(job.out("limit"))["exit_code"] == 5
        must(ftrun("--config", config, "--resume", "auto"))
        job.run("unlimited", train={"steps": 8})
        require_same_run(job.out("limit"), job.out("unlimited"))

    @needs("mount")
    def full_disk_while_saving_keeps_the_checkpoint_before():
        disk = root / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", disk], check=True)
        try:
            for ranks in (1, 2):
                out = disk / f"run-{ranks}"
                changes = {"output_dir": str(out), "train": {"steps": 8},
                           "checkpoint": {"every": 2, "keep_last": 1}}
                config = job.config(f"disk-{ranks}", **changes)
                full = must(ftrun("--config", config, "--nproc", ranks, "--restarts", 0), 5)
                for step in (4, 6, 8):
                    assert f"checkpoint step-0000000{step} was not written: " in full.stderr, (
                        full.stderr)
                assert ("No space left on device (" in full.stderr
                        and full.stderr.count("No space left") == 3), full.stderr
                assert ("remedy: free space on that file system, or write to another one "
                        "(output_dir)" in full.stderr), full.stderr
                assert checkpoints(out) == ["step-00000002"], checkpoints(out)
                must(ftrun("verify", out))
                subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
                must(ftrun("--config", config, "--nproc", ranks, "--resume", "auto"))
                job.run(f"roomy-{ranks}", "--nproc", ranks, train={"steps": 8})
                require_same_run(out, job.out(f"roomy-{ranks}"))
                shutil.rmtree(out)
                subprocess.run(["mount", "-o", "remount,size=700k", disk], check=True)
        finally:
            subprocess.run(["umount", disk], check=True)

    run_cases()
