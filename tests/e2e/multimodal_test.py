"""Checks that the decoder of a multimodal model trains like the decoder alone, with the names and
in the folder of the whole model, whose tensors may have old or new names. transformers must open
the export, with the vision tower unchanged bit for bit, and PEFT must load the adapter onto the
modules that its expressions name."""
import copy
import json
import os
import pathlib
import re
import shutil
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import peft
import torch
import transformers
from peft.tuners.tuners_utils import check_target_module_exists
from safetensors.torch import load_file, save_file

from runner import case, config, ftrun, must, preload, require_near, run_cases, steps, write_config

ROWS, LENGTH = 4, 16  # of one step
TEXT = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
MISTRAL = {"model_type": "mistral", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
           "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
           "head_dim": 8, "sliding_window": None, "max_position_embeddings": 64}
# Kinds of models: the decoder's class, the decoder's settings, and the whole model's.
KINDS = {"Gemma3": ("Gemma3ForCausalLM", TEXT, {"mm_tokens_per_image": 4, "image_token_index": 90,
                                                "boi_token_index": 91, "eoi_token_index": 92}),
         "Mistral3": ("MistralForCausalLM", MISTRAL, {"image_token_index": 90,
                                                      "tie_word_embeddings": False})}
# Prefixes of names in files, and in the memory of transformers 5; some files have the latter too.
NEW_NAMES = {"language_model.model.": "model.language_model.",
             "language_model.lm_head.": "lm_head.", "vision_tower.": "model.vision_tower.",
             "multi_modal_projector.": "model.multi_modal_projector."}
FREED = ("missing_keys", "unexpected_keys", "mismatched_keys")


def open_whole(folder, kind="Gemma3"):
    """Opens the multimodal model of a folder; asserts that no key is missing or left over."""
    of_class = getattr(transformers, kind + "ForConditionalGeneration")
    model, found = of_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(found[key] for key in FREED), found
    return model.eval()


def tensors_of(folder):
    files = {}
    for path in pathlib.Path(folder).glob("*.safetensors"):
        files.update(load_file(path))
    return files


def is_vision(name):
    return "language_model" not in name and "lm_head" not in name


def in_new_names(name):
    begin = next((old for old in NEW_NAMES if name.startswith(old)), "")
    return NEW_NAMES[begin] + name.removeprefix(begin) if begin else name


def write_models(kind, whole_folder, alone_folder):
    """Writes a random model of a kind, and its decoder alone as the decoder's own class saves
    it."""
    of_decoder, text, more = KINDS[kind]
    torch.manual_seed(3)
    model = getattr(transformers, kind + "ForConditionalGeneration")(
        getattr(transformers, kind + "Config")(text_config=text, vision_config=VISION, **more))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2 if parameter.dim() > 1 else 0.02)
    model.save_pretrained(whole_folder)
    decoder = getattr(transformers, of_decoder)(model.config.text_config)
    decoder.model.load_state_dict(model.model.language_model.state_dict())
    decoder.lm_head.load_state_dict(model.lm_head.state_dict())
    decoder.save_pretrained(alone_folder)
    return model


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    preload()
    torch.set_num_threads(1)
    whole = write_models("Gemma3", scratch / "whole", scratch / "alone")
    before = tensors_of(scratch / "whole")
    tokens = np.random.default_rng(1).integers(3, 89, 3 * ROWS * LENGTH + 1).astype(np.uint16)
    (scratch / "data").mkdir()
    tokens.tofile(scratch / "data/train.bin")
    (scratch / "data/meta.json").write_text(json.dumps({"dtype": "uint16"}))

    def settings(name, model, **changes):
        value = config(scratch / model, scratch / "data/train.bin", scratch / name, **changes)
        value["data"]["sequence_length"] = LENGTH
        value["train"] = value.get("train", {}) | {"steps": 3}
        value["export"], value["checkpoint"] = {"dtype": "fp32"}, {"every": 3}
        return write_config(scratch, value)

    def train(name, model, *options, **changes):
        return must(ftrun("--config", settings(name, model, **changes), *options))

    def logits(model):
        with torch.no_grad():
            return model(input_ids=torch.from_numpy(tokens[:LENGTH].astype(np.int64))[None]).logits

    @case
    def decoder_trains_as_alone():
        decoder_run = train("out-alone", "alone")
        run_of_whole = train("out", "whole")
        vision = [name for name in before if is_vision(name)]
        assert len(vision) > 15
        assert (f"is a gemma3 model; its decoder is trained; {len(vision)} tensors of its other "
                "parts stay as they are" in run_of_whole.stderr + run_of_whole.stdout), (
            run_of_whole.stderr)
        assert "its decoder is trained" not in decoder_run.stderr + decoder_run.stdout
        losses = [m["loss"] for m in steps(scratch / "out")]
        assert losses == [m["loss"] for m in steps(scratch / "out-alone")] and len(losses) == 3
        # The first loss, by transformers, of the whole model.
        ids = torch.from_numpy(tokens[:ROWS * LENGTH + 1].astype(np.int64))
        with torch.no_grad():
            found = whole(input_ids=ids[:-1].view(ROWS, LENGTH)).logits.double()
        expected = torch.nn.functional.cross_entropy(found.view(-1, found.shape[-1]), ids[1:])
        require_near("loss", losses[:1], [float(expected)], 1e-5)

    def compare_exports(name, own_name, source, kind):
        """Checks that the run's export is the source's folder with the decoder from the other run's
        export."""
        after, own = (tensors_of(scratch / each / "export/model") for each in (name, own_name))
        assert after.keys() == source.keys(), after.keys() ^ source.keys()
        for tensor, value in after.items():
            of_own = tensor.removeprefix("language_model.")
            expected = source[tensor] if is_vision(tensor) else own[of_own]
            assert value.dtype == expected.dtype and torch.equal(value, expected), tensor
            assert is_vision(tensor) or not torch.equal(value, source[tensor]), tensor
        return open_whole(scratch / name / "export/model", kind)

    @case
    def export_is_the_whole_model():
        opened = compare_exports("out", "out-alone", before, "Gemma3")
        exported_config = json.loads((scratch / "out/export/model/config.json").read_text())
        assert exported_config["model_type"] == "gemma3", exported_config
        assert exported_config["vision_config"]["hidden_size"] == 16, exported_config
        of_class = transformers.Gemma3ForCausalLM.from_pretrained(
            scratch / "out-alone/export/model", attn_implementation="eager")
        assert torch.equal(logits(opened), logits(of_class.eval()))

    @case
    def mistral_3_trains_as_its_decoder_alone():
        write_models("Mistral3", scratch / "mistral", scratch / "mistral-alone")
        train("out-mistral-alone", "mistral-alone")
        result = train("out-mistral", "mistral")
        output = result.stderr + result.stdout
        assert "is a mistral3 model; its decoder is trained" in output, result.stderr
        losses = [m["loss"] for m in steps(scratch / "out-mistral")]
        assert losses == [m["loss"] for m in steps(scratch / "out-mistral-alone")]
        source = tensors_of(scratch / "mistral")
        assert "language_model.lm_head.weight" in source and len(losses) == 3
        compare_exports("out-mistral", "out-mistral-alone", source, "Mistral3")

    @case
    def new_names_train_and_are_kept():
        renamed = {in_new_names(name): value
                   for name, value in tensors_of(scratch / "mistral").items()}
        assert {"model.language_model.norm.weight", "lm_head.weight"} <= renamed.keys()
        shutil.copytree(scratch / "mistral", scratch / "new")
        save_file(renamed, scratch / "new/model.safetensors", metadata={"format": "pt"})
        train("out-new", "new")
        assert ([m["loss"] for m in steps(scratch / "out-new")] ==
                [m["loss"] for m in steps(scratch / "out-mistral")])
        after = tensors_of(scratch / "out-new/export/model")
        expected = {in_new_names(name): value for name, value
                    in tensors_of(scratch / "out-mistral/export/model").items()}
        assert after.keys() == expected.keys(), after.keys() ^ expected.keys()
        assert all(torch.equal(after[name], value) for name, value in expected.items())
        open_whole(scratch / "out-new/export/model", "Mistral3")

    @case
    def two_ranks_and_16_bits_keep_other_parts():
        stored = {name: value.bfloat16() for name, value in before.items()}
        shutil.copytree(scratch / "whole", scratch / "half")
        save_file(stored, scratch / "half/model.safetensors", metadata={"format": "pt"})
        value = settings("out-half", "half", zero_optimization={"stage": 3})
        must(ftrun("--config", value, "--nproc", 2, "--set", "export.dtype=bf16"))
        after = tensors_of(scratch / "out-half/export/model")
        assert after.keys() == before.keys()
        for name, tensor in after.items():
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor, stored[name]) == is_vision(name), name
        step = max((scratch / "out-half/checkpoints").iterdir())
        must(ftrun("convert", step, "--out", scratch / "converted", "--dtype", "bf16"))
        converted = tensors_of(scratch / "converted")
        assert all(torch.equal(converted[name], tensor) for name, tensor in after.items())

    @case
    def adapter_loads_onto_the_whole_model():
        adapter = {"type": "lora", "r": 4, "lora_alpha": 8,
                   "target_modules": ["q_proj", "down_proj"]}
        train("out-lora", "whole", adapter=adapter)
        step = max((scratch / "out-lora/checkpoints").iterdir())
        must(ftrun("convert", step, "--out", scratch / "merged", "--merge", "--dtype", "fp32"))
        with warnings.catch_warnings():
            # The vision tower has modules with these names too, but they get no adapter.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted = peft.PeftModel.from_pretrained(open_whole(scratch / "whole"),
                                                     scratch / "out-lora/export/adapter").eval()
        base = logits(open_whole(scratch / "whole"))
        merged = logits(open_whole(scratch / "merged"))
        assert float((merged - base).abs().max()) > 1e-3
        assert float((logits(adapted) - merged).abs().max()) < 1e-4 * float(merged.abs().max())

    @case
    def expressions_name_the_modules_of_the_whole_model():
        adapter = {"type": "lora", "r": 4, "lora_alpha": 8,
                   "target_modules": r".*\.(language_model|vision_tower)\..*(q_proj|v_proj)",
                   "exclude_modules": r"model\.language_model\.layers\.1\.self_attn\.v_proj",
                   "rank_pattern": {r"language_model\.layers\.0\.self_attn\.q_proj": 2}}
        train("out-expression", "whole", adapter=adapter)
        folder = scratch / "out-expression/export/adapter"
        stored = {name.removesuffix(".lora_A.weight"): value.shape[0]
                  for name, value in tensors_of(folder).items() if "lora_A" in name}
        layers = "base_model.model.model.language_model.layers."
        assert stored == {layers + "0.self_attn.q_proj": 2, layers + "0.self_attn.v_proj": 4,
                          layers + "1.self_attn.q_proj": 4}, stored
        # PEFT's own choice of modules, from the expressions in the file.
        adapted = peft.get_peft_model(open_whole(scratch / "whole"),
                                      peft.LoraConfig.from_pretrained(folder))
        found = {name.removesuffix(".lora_A.default"): module.weight.shape[0]
                 for name, module in adapted.named_modules() if name.endswith(".lora_A.default")}
        assert found == stored, found
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted = peft.PeftModel.from_pretrained(open_whole(scratch / "whole"), folder).eval()
        step = max((scratch / "out-expression/checkpoints").iterdir())
        must(ftrun("convert", step, "--out", scratch / "merged-2", "--merge", "--dtype", "fp32"))
        merged = logits(open_whole(scratch / "merged-2"))
        assert float((logits(adapted) - merged).abs().max()) < 1e-4 * float(merged.abs().max())
        # A run that continues from the file writes the same expressions.
        train("out-expression-again", "whole", adapter=str(folder))
        again, first = (json.loads((each / "adapter_config.json").read_text()) for each in
                        (scratch / "out-expression-again/export/adapter", folder))
        assert again["exclude_modules"] == first["exclude_modules"]

    def rule_of_peft(names, shapes, target_modules, **more):
        """Returns the modules in `names` that PEFT's rule selects for each entry of target_modules,
        by part, as {entry: {part: names}}, without modules of the decoder."""
        if target_modules == "all-linear":
            entries = {"all-linear": [name for name in names if "embedding" not in name
                                      and len(shapes.get(name + ".weight", ())) == 2]}
        elif isinstance(target_modules, list):
            entries = {entry: [entry] for entry in target_modules}
        else:
            entries = {target_modules: target_modules}
        found = {}
        for entry, targets in entries.items():
            rule = peft.LoraConfig(target_modules=targets, **more)
            for name in names:
                part = name.removeprefix("model.").split(".")[0]
                if (part in ("vision_tower", "multi_modal_projector")
                        and check_target_module_exists(rule, name)):
                    found.setdefault(entry, {}).setdefault(part, []).append(name)
        return found

    def check_targets(folder, adapter):
        """Returns what `ftrun check` prints about target_modules, as {entry: {part: (count,
        first)}}, and its notices."""
        value = settings("out-told", folder, adapter={"type": "lora", "r": 4} | adapter)
        answer = json.loads(must(ftrun("check", "--json", "--config", value)).stdout)
        notices = [line for line in answer["result"]["notices"]
                   if "ftrun trains only the text decoder" in line]
        assert len(notices) <= 1, notices
        found = {}
        for entry, count, part, first in re.findall(
                r'"(\S+)" names (\d+) modules? of (\w+) \(([\w.]+)', "".join(notices)):
            found.setdefault(entry, {})[part] = (int(count), first)
        return found, "".join(notices)

    # Settings of adapters that name modules of the other parts too, or only the decoder's.
    CHOICES = ({"target_modules": ["q_proj", "v_proj"]}, {"target_modules": "all-linear"},
               {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0]},
               {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]},
               {"target_modules": [f"{n}_proj" for n in "qkvo"] + ["gate_proj"],
                "exclude_modules": ["k_proj"]},
               {"target_modules": r".*(language_model|tower).*\.(q|k)_proj"},
               {"target_modules": r".*(q_proj|linear_\d|mm_soft_emb_norm|patch_conv)"},
               {"target_modules": r".*language_model.*q_proj"},
               {"target_modules": r".*_proj", "exclude_modules": r".*vision_tower.*"},
               {"target_modules": ["q_proj"], "exclude_modules":
                ".*(vision_tower|multi_modal_projector).*"},
               {"target_modules": ["model.language_model.layers.0.self_attn.q_proj", "o_proj"]})

    @case
    def modules_of_other_parts_are_reported_as_peft_chooses_them():
        named = set()
        for kind, folder in (("Gemma3", "whole"), ("Mistral3", "mistral"), ("Mistral3", "new")):
            model = open_whole(scratch / folder, kind)
            shapes = {in_new_names(name): value.shape
                      for name, value in tensors_of(scratch / folder).items()}
            names = sorted({name.rpartition(".")[0] for name in shapes
                            if name.endswith((".weight", ".bias"))})
            for choice in CHOICES:
                expected = rule_of_peft(names, shapes, **choice)
                found, notice = check_targets(folder, choice)
                assert found == {entry: {part: (len(some), some[0]) for part, some in parts.items()}
                                 for entry, parts in expected.items()}, (kind, choice, found,
                                                                         expected)
                named.update((kind, part) for parts in expected.values() for part in parts)
                # PEFT wraps the same modules of the model in memory.
                of_rule = {name for parts in expected.values() for some in parts.values()
                           for name in some}
                if any(name.endswith("norm") for name in of_rule):
                    continue  # PEFT refuses this
                adapted = peft.get_peft_model(copy.deepcopy(model),
                                              peft.LoraConfig(r=4, **choice)).base_model
                in_memory = {name for name in adapted.targeted_module_names
                             if "language_model" not in name}
                assert in_memory == of_rule, (kind, choice, in_memory ^ of_rule)
        assert named == {("Gemma3", "vision_tower"), ("Gemma3", "multi_modal_projector"),
                         ("Mistral3", "vision_tower"), ("Mistral3", "multi_modal_projector")}

    @case
    def remedies_of_the_notice_end_it():
        for choice in ({"target_modules": ["q_proj", "v_proj"]}, {"target_modules": "all-linear"},
                       {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["k_proj"]}):
            notice = check_targets("whole", choice)[1]
            offered = re.findall(r"(exclude_modules|target_modules): '([^']+)'", notice)
            assert len(offered) == (1 if choice["target_modules"] == "all-linear" else 2), notice
            for key, expression in offered:
                found = check_targets("whole", choice | {key: expression})[0]
                assert found == {}, (key, expression)
                adapted = peft.get_peft_model(
                    open_whole(scratch / "whole"),
                    peft.LoraConfig(r=4, **(choice | {key: expression}))).base_model
                assert adapted.targeted_module_names and all(
                    "language_model" in name for name in adapted.targeted_module_names), expression

    # The entries name modules with an adapter, modules without one, modules that contain others,
    # and none at all.
    EXCLUSIONS = (["lm_head"], ["fc1", "layers.0.self_attn.q_proj"], ["mlp", "k_proj"],
                  ["vision_tower", "norm"], ["self_attn.v_proj", "fcl", "lm_haed", "out_proj"],
                  ["encoder.layers.0.self_attn.q_proj"], ["model.language_model.layers.1"],
                  r".*vision_tower\.encoder.*", r".*(lm_head|fc\d)", r".*\.mlp",
                  r".*layers\.7\..*", "fc1")

    @case
    def exclusions_are_accepted_reported_and_refused_by_what_they_change_in_peft():
        paths = [name for name, _ in open_whole(scratch / "whole").named_modules() if name]
        targets = ["q_proj", "v_proj"]

        def select(exclude, targets=targets):
            rule = peft.LoraConfig(target_modules=targets, exclude_modules=exclude or None)
            return {path for path in paths if check_target_module_exists(rule, path)}

        kinds_met = set()
        for exclude in EXCLUSIONS:
            entries = exclude if isinstance(exclude, list) else [exclude]
            unknown = {
                entry for entry in entries
                if select([entry] if isinstance(exclude, list) else entry, paths) == set(paths)}
            without_effect = {
                entry for entry in entries
                if select(exclude) == select([kept for kept in entries if kept != entry])}
            result = ftrun("check", "--config", settings("out-excluded", "whole", adapter={
                "type": "lora", "r": 4, "target_modules": targets, "exclude_modules": exclude}))
            notices = re.findall(
                r'exclude_modules "([^"]+)": (changes nothing|no module|matches the)',
                result.stdout + result.stderr)
            must(result, 2 if unknown else 0)
            expected = unknown or without_effect
            assert {entry for entry, _ in notices} == expected, (exclude, notices)
            assert len(notices) == len(expected), (exclude, notices)
            assert all((what == "changes nothing") == (not unknown) for _, what in notices), notices
            kinds_met.add("unknown" if unknown else "without effect" if without_effect
                          else "used")
            if "fcl" in unknown:
                assert '"fcl": no module has this name (did you mean "fc1"?)' in result.stderr, (
                    result.stderr)
        assert kinds_met == {"unknown", "without effect", "used"}

    @case
    def other_parts_are_reported_by_a_run_and_not_without_weights():
        adapter = {"type": "lora", "r": 4, "target_modules": ["q_proj"]}
        result = train("out-noticed", "whole", adapter=adapter)
        output = result.stderr + result.stdout
        assert output.count('"q_proj" names 1 module of vision_tower '
                            "(model.vision_tower.encoder.layers.0.self_attn.q_proj)") == 1, output
        (scratch / "bare").mkdir()
        shutil.copy(scratch / "whole/config.json", scratch / "bare")
        planned = must(ftrun("plan", "--config", settings("out-bare", "bare", adapter=adapter)))
        assert "vision_tower" not in planned.stderr + planned.stdout
        # A config without target_modules means only the decoder.
        assert check_targets("whole", {})[1] == ""

    @case
    def wrong_folders_are_refused():
        shutil.copytree(scratch / "whole", scratch / "stray")
        save_file(before | {"language_model.model.layers.7.stray": torch.zeros(2)},
                  scratch / "stray/model.safetensors", metadata={"format": "pt"})
        refused = must(ftrun("--config", settings("out-stray", "stray")), 4)
        assert "layers.7.stray" in refused.stderr, refused.stderr
        expression = {"type": "lora", "r": 4, "target_modules": "model.layers.0.self_attn.q_proj"}
        refused = must(ftrun("check", "--config",
                             settings("out-pattern", "whole", adapter=expression)), 2)
        assert "no module of the model is chosen" in refused.stderr, refused.stderr
        mistyped = {"type": "lora", "r": 4, "exclude_modules": r".*layers\.7\..*"}
        refused = must(ftrun("check", "--config",
                             settings("out-exclude", "whole", adapter=mistyped)), 2)
        assert "matches the path of no module" in refused.stderr, refused.stderr
        alone = {name: value for name, value in before.items() if not is_vision(name)}
        shutil.copytree(scratch / "whole", scratch / "blind")
        save_file(alone, scratch / "blind/model.safetensors", metadata={"format": "pt"})
        refused = must(ftrun("--config", settings("out-blind", "blind")), 4)
        assert "its weights are only those of the decoder" in refused.stderr, refused.stderr
        shutil.copytree(scratch / "whole", scratch / "empty")
        (scratch / "empty/config.json").write_text(json.dumps({"model_type": "gemma3"}))
        refused = must(ftrun("check", "--config", settings("out-empty", "empty")), 4)
        assert ("text_config: missing; expected the object of the model's decoder"
                in refused.stderr), refused.stderr

    run_cases()
