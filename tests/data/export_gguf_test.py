"""Tests of scripts/export_gguf.py. Small random models of each supported family, with tokenizers of
each rule, are exported to llama.cpp and converted back by scripts/make_model.py. A wrong order of
rows, a wrong rule and a wrong template are noticed before a file is written; what cannot be proven
correct is refused."""
import contextlib
import errno
import http.server
import io
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

import export_gguf
import make_model
import output_mark
from gguf_models import adapter, model_folder, rows, verify_export, vocabulary
from gguf_models.families import FAMILIES
from script_errors import UserError

TEXT = (ROOT / "README.md").read_text().splitlines(keepends=True)
SPECIAL = ["<|begin|>", "<|end|>", "<|pad|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|begin|>' + message['role'] + '\n' "
            "+ message['content'] + '<|end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|begin|>assistant\n' }}{% endif %}")
WORDS = vocabulary.WORDS


def split_by(pattern):
    from tokenizers import Regex
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(False, use_regex=False)])


RULES = {
    "gpt-2": lambda: (None, pre_tokenizers.ByteLevel(False)),
    "smollm": lambda: (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(True),
                                                      pre_tokenizers.ByteLevel(False)])),
    "llama-bpe": lambda: (None, split_by(WORDS % "{1,3}")),
    "qwen2": lambda: (normalizers.NFC(), split_by(WORDS % "")),
}


def byte_level_tokenizer(rule, adds_bos=False, size=500):
    tokenizer = Tokenizer(models.BPE())
    normalizer, tokenizer.pre_tokenizer = RULES[rule]()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return tokenizer


def sentencepiece_tokenizer():
    """Returns a tokenizer as transformers writes Llama 2's: with byte fallback, a space in front,
    and merges in the order of their scores."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizer
    learned.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    state = json.loads(learned.to_str())["model"]
    first = ["<unk>", "<|begin|>", "<|end|>"] + [f"<0x{i:02X}>" for i in range(256)]
    by_id = sorted(state["vocab"], key=state["vocab"].get)
    vocab = {token: i for i, token in enumerate([*first, *by_id])}
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" "))
              for merge in state["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True,
                                     unk_token="<unk>"))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ("<unk>", "<|begin|>", "<|end|>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    return tokenizer


def write_model(folder, kind, tokenizer, template=TEMPLATE, **settings):
    """Writes a random model whose weights are large enough that next tokens differ."""
    size = max(tokenizer.get_vocab().values()) + 3  # two ids have no token
    settings = {"vocab_size": size, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 512, "initializer_range": 0.25,
                "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
                "pad_token_id": 2, **settings}
    vocabulary.load_tokenizer.cache_clear()  # drops another model of the same folder
    torch.manual_seed(0)
    config_class = getattr(transformers, kind + "Config")
    known = config_class()
    config = config_class(**{key: value for key, value in settings.items() if hasattr(known, key)})
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    for name, value in model.named_parameters():
        if name.endswith("bias") or "norm" in name or "ln_" in name:
            value.data += 0.3 * torch.randn_like(value)
    model.save_pretrained(folder)
    write_tokenizer(folder, tokenizer, template)
    return folder


def write_tokenizer(folder, tokenizer, template):
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>",
             "eos_token": "<|end|>"}
    names |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


# Small models of each family: the class of the config, and its settings. Windows are shorter than
# the longest prompts, and scales are far from 1.
WINDOWED = {"head_dim": 24, "sliding_window": 8, "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True}
GEMMA3_ROTATIONS = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e3}}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
HALF_OF_A_HEAD = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
MODELS = {
    "llama": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"head_dim": 24, "sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "granite": ("Granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.4,
                            "attention_multiplier": 0.2, "logits_scaling": 2.5}),
    "granite with biases": ("Granite", {"attention_bias": True, "mlp_bias": True}),
    "phi3": ("Phi3", {"rope_parameters": HALF_OF_A_HEAD}),
    "phi": ("Phi", {}),
    "gpt2": ("GPT2", {"n_inner": 96}),
    "gemma": ("Gemma", {"head_dim": 24, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2", WINDOWED),
    "gemma3_text": ("Gemma3Text", WINDOWED | {"num_hidden_layers": 7,
                                              "rope_parameters": GEMMA3_ROTATIONS}),
    "olmo": ("Olmo", {"tie_word_embeddings": True}),
    "olmo with a head of its own": ("Olmo", {}),
    "olmo2": ("Olmo2", {}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "starcoder2": ("Starcoder2", {"tie_word_embeddings": True}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm beside each other": ("StableLm", {"use_parallel_residual": True}),
    "stablelm with norms of heads": ("StableLm", {"qk_layernorm": True}),
    "glm": ("Glm", {"head_dim": 16}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": False}),
    "cohere": ("Cohere", {"logit_scale": 0.5, "tie_word_embeddings": True}),
    # llama.cpp supports norms of heads only from 64 layers on.
    "cohere with norms of heads": ("Cohere", {"use_qk_norm": True, "num_hidden_layers": 64,
                                              "hidden_size": 16, "intermediate_size": 24,
                                              "tie_word_embeddings": True}),
    "cohere2": ("Cohere2", {"logit_scale": 0.5, "tie_word_embeddings": True, "sliding_window": 8,
                            "num_hidden_layers": 5}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt_neox behind each other": ("GPTNeoX", {"use_parallel_residual": False}),
    "falcon": ("Falcon", {"ffn_hidden_size": 96, "tie_word_embeddings": True}),
    "falcon with a value head a head": ("Falcon", {"ffn_hidden_size": 96, "multi_query": False}),
    "falcon of the new kind": ("Falcon", {"ffn_hidden_size": 96, "new_decoder_architecture": True,
                                          "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    "falcon with two norms": ("Falcon", {"ffn_hidden_size": 96, "new_decoder_architecture": True,
                                         "num_kv_heads": 2}),
}
# Multimodal models: their class, the decoder's class, and the settings of both.
TEXT_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
              "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 24,
              "initializer_range": 0.25}
VISION_SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
                "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
MULTIMODAL = {
    "Gemma3": ("Gemma3ForCausalLM",
               TEXT_SIZES | {"num_hidden_layers": 7, "sliding_window": 8,
                             "query_pre_attn_scalar": 24, "rope_parameters": GEMMA3_ROTATIONS},
               {"mm_tokens_per_image": 4, "image_token_index": 90}),
    "Mistral3": ("MistralForCausalLM",
                 TEXT_SIZES | {"model_type": "mistral", "num_hidden_layers": 2,
                               "sliding_window": None},
                 {"image_token_index": 90, "spatial_merge_size": 2}),
}


def in_new_names(name):
    """Returns the name in transformers 5's memory of a tensor in a multimodal file."""
    for before, now in (("language_model.model.", "model.language_model."),
                        ("language_model.lm_head.", "lm_head."),
                        ("vision_tower.", "model.vision_tower."),
                        ("multi_modal_projector.", "model.multi_modal_projector.")):
        if name.startswith(before):
            return now + name.removeprefix(before)
    return name


def write_multimodal_model(folder, alone, kind, tokenizer):
    """Writes a random multimodal model, and its decoder alone in another folder."""
    of_decoder, text, more = MULTIMODAL[kind]
    text = text | {"vocab_size": max(tokenizer.get_vocab().values()) + 3, "pad_token_id": 2,
                   "bos_token_id": 0, "eos_token_id": 1}
    vocabulary.load_tokenizer.cache_clear()
    torch.manual_seed(0)
    config = getattr(transformers, kind + "Config")(
        text_config=text, vision_config=VISION_SIZES, tie_word_embeddings=kind == "Gemma3", **more)
    whole = getattr(transformers, kind + "ForConditionalGeneration")(config).float()
    for name, value in whole.named_parameters():
        if "norm" in name:
            value.data += 0.3 * torch.randn_like(value)
    decoder = getattr(transformers, of_decoder)(whole.config.text_config).float()
    decoder.model.load_state_dict(whole.model.language_model.state_dict())
    decoder.lm_head.load_state_dict(whole.lm_head.state_dict())
    for model, place in ((whole, folder), (decoder, alone)):
        place.mkdir(exist_ok=True)
        model.save_pretrained(place)
        write_tokenizer(place, tokenizer, TEMPLATE)


def write_adapter(folder, base, of_decoder=False, **settings):
    """Writes a random adapter of a model, or of a multimodal model's decoder, as PEFT does. The
    adapter changes the model's predictions."""
    import peft
    model = (transformers.AutoModelForImageTextToText if of_decoder else
             transformers.AutoModelForCausalLM).from_pretrained(base)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM",
                                                       init_lora_weights=False, **settings))
    model.save_pretrained(folder)
    weights = folder / "adapter_model.safetensors"
    save_file(load_file(weights), weights, {"format": "pt", "ftrun.base_quantization": "none"})


def same_tokens(case, was, now):
    """Asserts that both folders tokenize texts, special tokens and conversations equally."""
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (was, now))
    texts = [*verify_export.PROMPTS, "<|begin|>user <tool>x<|end|>"]
    for text in texts:
        case.assertEqual(after(text).input_ids, before(text).input_ids, text)
        ids = before(text).input_ids
        case.assertEqual(after.decode(ids), before.decode(ids))
    case.assertEqual((after.bos_token, after.eos_token), (before.bos_token, before.eos_token))
    case.assertEqual(after.chat_template, before.chat_template)


class Case(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.folder = pathlib.Path(self.place.name)
        (self.folder / "model").mkdir()
        (self.folder / "out").mkdir()

    def export(self, *words, model=None):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = export_gguf.main([str(model or self.folder / "model"),
                                     "--out", str(self.folder / "out" / "m.gguf"), *words])
        return code, out.getvalue(), err.getvalue()

    def assert_refused(self, *words, **arguments):
        """Asserts that the export is refused with these words and writes nothing."""
        before = sorted(os.listdir(self.folder / "out"))
        code, _, said = self.export(**arguments)
        self.assertEqual(code, 4, said)
        for word in words:
            self.assertIn(word, said)
        self.assertEqual(sorted(os.listdir(self.folder / "out")), before)

    def edit_json(self, name, **changes):
        path = self.folder / "model" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def assert_accepted(self, *words):
        code, said, error = self.export(*words)
        self.assertEqual(code, 0, error)
        self.assertIn("llama.cpp has the token ids of 8 prompts" if verify_export.has_llama_cpp()
                      else "llama.cpp did not check the file", said.splitlines()[-1])
        self.assertEqual(sorted(os.listdir(self.folder / "out")), ["m.gguf", "m.gguf.Modelfile"])
        return said


class HandedOver(Case):
    def test_every_family_comes_back_unchanged_from_gguf(self):
        """llama.cpp must confirm the export of each family, and the folder made from the file must
        equal the model."""
        self.assertEqual({name.split()[0] for name in MODELS}, set(FAMILIES))
        tokenizer = byte_level_tokenizer("smollm")
        for name, (kind, settings) in MODELS.items():
            with self.subTest(name):
                for folder in ("model", "out", "back"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                (self.folder / "out").mkdir()
                write_model(self.folder / "model", kind, tokenizer, **settings)
                self.assert_accepted("--type", "f32")
                self.convert_back()

    def convert_back(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(make_model.main([str(self.folder / "out" / "m.gguf"), "--out",
                                              str(self.folder / "back")]), 0)
        was, now = (load_file(self.folder / folder / "model.safetensors")
                    for folder in ("model", "back"))
        self.assertEqual(set(was), set(now))
        config = json.loads((self.folder / "model" / "config.json").read_text())
        less_one = FAMILIES[config["model_type"]].norms_less_one
        for name, values in was.items():
            if less_one and "norm" in name:  # 1 was added and subtracted again
                np.testing.assert_allclose(now[name], values, rtol=0, atol=2.0 ** -22)
            else:
                self.assertTrue(np.array_equal(now[name], values), name)
        ids = torch.arange(40).reshape(1, 40) * 7 % 400
        logits = []
        for folder in ("model", "back"):
            path = self.folder / folder
            model = transformers.AutoModelForCausalLM.from_pretrained(path).float().eval()
            with torch.no_grad():
                logits.append(model(ids).logits.numpy())
        np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-4 if less_one else 1e-5)
        same_tokens(self, self.folder / "model", self.folder / "back")

    def test_only_the_decoder_of_a_multimodal_model_is_exported(self):
        """Models with old and with new names must give the same file as the decoder's own folder;
        an adapter of the decoder is applied to it."""
        for kind in MULTIMODAL:
            with self.subTest(kind):
                for folder in ("out", "adapter"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                (self.folder / "out").mkdir()
                write_multimodal_model(self.folder / "model", self.folder / "alone", kind,
                                       byte_level_tokenizer("smollm"))
                self.assertIn("the file holds only the decoder, without ",
                              self.assert_accepted("--type", "f32"))
                made = self.move_tensors()
                path = self.folder / "model" / "model.safetensors"
                weights = {in_new_names(name): value for name, value in load_file(path).items()}
                self.assertIn("model.language_model.norm.weight", weights)
                save_file(weights, path, {"format": "pt"})
                for model, is_part in (("model", True), ("alone", False)):
                    with unittest.mock.patch.object(verify_export, "has_llama_cpp", lambda: False):
                        code, said, error = self.export("--type", "f32",
                                                        model=self.folder / model)
                    self.assertEqual((code, "the file holds only" in said), (0, is_part), error)
                    self.assertEqual(self.move_tensors(), made)
        if verify_export.has_llama_cpp() and verify_export.has_peft():
            write_adapter(self.folder / "adapter", self.folder / "model", of_decoder=True,
                          target_modules=r".*language_model.*\.(q_proj|down_proj)")
            code, said, error = self.export("--type", "f32", model=self.folder / "adapter")
            self.assertEqual(code, 0, error)
            self.assertIn("; the adapter changes them by up to ", said)

    def move_tensors(self):
        """Returns the tensors of the exported file by name, and moves the file away."""
        import gguf
        path = self.folder / "out" / "m.gguf"
        found = {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}
        for name in os.listdir(self.folder / "out"):
            os.remove(self.folder / "out" / name)
        return found

    def test_every_tokenizer_comes_back_unchanged_from_gguf(self):
        tokenizers = {
            "llama-bpe": byte_level_tokenizer("llama-bpe", adds_bos=True),
            "qwen2": byte_level_tokenizer("qwen2"), "gpt-2": byte_level_tokenizer("gpt-2"),
            "pieces": sentencepiece_tokenizer()}
        for name, tokenizer in tokenizers.items():
            with self.subTest(name):
                for folder in ("model", "out", "back"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                (self.folder / "out").mkdir()
                ids = {"bos_token_id": 1, "eos_token_id": 2} if name == "pieces" else {}
                write_model(self.folder / "model", "Llama", tokenizer, hidden_size=32,
                            num_hidden_layers=1, template=TEMPLATE if ids else None, **ids)
                self.assert_accepted("--type", "f32")
                self.convert_back()

    def test_linear_rope_scaling_and_the_stop_token_are_exported(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"),
                    rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})
        self.assert_accepted("--type", "f32")
        self.convert_back()
        self.assertIn('PARAMETER stop "<|end|>"',
                      (self.folder / "out" / "m.gguf.Modelfile").read_text())

    def test_types_that_round_pass_the_verification(self):
        tokenizer = byte_level_tokenizer("smollm")
        for kind, name in (("f16", "llama"), ("bf16", "gpt2"), ("q8_0", "gemma3_text"),
                           ("q8_0", "falcon of the new kind")):
            with self.subTest(f"{kind} {name}"):
                for folder in ("model", "out"):
                    shutil.rmtree(self.folder / folder)
                (self.folder / "out").mkdir()
                of_class, settings = MODELS[name]
                write_model(self.folder / "model", of_class, tokenizer, initializer_range=0.1,
                            **settings)
                self.assert_accepted("--type", kind)

    def test_an_adapter_is_exported_next_to_its_base_model(self):
        """Adapters are written next to their base's file, with the rows of B in the order of the
        matrix's rows."""
        for name, targets, settings in (
                ("llama", ["q_proj", "k_proj", "o_proj", "down_proj"], {"use_rslora": True}),
                ("gpt2", ["c_attn", "mlp.c_proj"], {"rank_pattern": {"c_attn": 2}}),
                ("falcon of the new kind", ["query_key_value", "dense"], {})):
            with self.subTest(name):
                for folder in ("model", "out", "adapter"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                (self.folder / "out").mkdir()
                kind, of_model = MODELS[name]
                write_model(self.folder / "model", kind, byte_level_tokenizer("smollm"), **of_model)
                write_adapter(self.folder / "adapter", self.folder / "model",
                              target_modules=targets, **settings)
                code, said, error = self.export("--type", "f32", model=self.folder / "adapter")
                self.assertEqual(code, 0, error)
                if verify_export.has_llama_cpp() and verify_export.has_peft():
                    self.assertIn("llama.cpp has the token ids of 8 prompts", said)
                    self.assertIn("; the adapter changes them by up to ", said)
                self.assertEqual(sorted(os.listdir(self.folder / "out")),
                                 ["m.gguf", "m.gguf.Modelfile"])
                self.assertIn("ADAPTER ./m.gguf",
                              (self.folder / "out" / "m.gguf.Modelfile").read_text())

    @unittest.skipUnless(verify_export.has_llama_cpp() and verify_export.has_peft(),
                         "the package xllamacpp or peft is not installed")
    def test_the_verification_of_an_adapter_of_zeros_proves_nothing_and_says_so(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        write_adapter(self.folder / "adapter", self.folder / "model", target_modules=["q_proj"])
        path = self.folder / "adapter" / "adapter_model.safetensors"
        zeros = {name: values * ("lora_A" in name) for name, values in load_file(path).items()}
        save_file(zeros, path, {"format": "pt"})
        code, said, error = self.export("--type", "f32", model=self.folder / "adapter")
        self.assertEqual(code, 0, error)
        self.assertIn("so this does not prove that llama.cpp applies it", said.splitlines()[-1])

    def test_the_name_of_a_run_means_its_exported_model(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        (self.folder / "run" / "export").mkdir(parents=True)
        shutil.move(self.folder / "model", self.folder / "run" / "export" / "model")
        self.assertEqual(self.export("--type", "f32", model=self.folder / "run")[0], 0)


@unittest.skipUnless(verify_export.has_llama_cpp(), "the package xllamacpp is not installed")
class FoundByVerification(Case):
    def test_a_wrong_order_of_rows_is_found_by_verification(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        with unittest.mock.patch.object(rows, "pairs_from_halves", lambda values, heads: values):
            self.assert_refused("m.gguf: after ", "the distributions diverge by")

    def test_a_wrong_pre_tokenizer_name_is_found_by_verification(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("gpt-2", size=2000))
        with unittest.mock.patch.object(vocabulary, "pre_tokenizer_name", lambda *_: "smollm"):
            self.assert_refused("m.gguf: token ", " and for llama.cpp ")

    def test_a_missing_begin_of_text_token_is_found_by_verification(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm", adds_bos=True))
        with unittest.mock.patch.object(vocabulary, "adds_bos", lambda *_: False):
            self.assert_refused("m.gguf: token 0 of ", "is '<|begin|>' (0)")

    def test_a_wrong_order_of_an_adapters_rows_is_found_by_verification(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        write_adapter(self.folder / "adapter", self.folder / "model", target_modules=["q_proj"])
        with unittest.mock.patch.object(adapter.AdapterTensors, "_ordered",
                                        lambda self, name, values, _: values):
            self.assert_refused("m.gguf: after ", "the distributions diverge by",
                                model=self.folder / "adapter")

    def test_a_wrong_rope_base_is_found_by_verification(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        other = {"rope_theta": 500.0, "rope_type": "default"}
        with unittest.mock.patch.object(model_folder, "rope_settings", lambda _: other):
            self.assert_refused("m.gguf: after ", "the distributions diverge by")


class Refused(Case):
    def setUp(self):
        super().setUp()
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))

    def test_models_that_llama_cpp_would_compute_differently_are_refused(self):
        yarn = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
        for changes, words in (({"model_type": "opt"}, ["model_type 'opt' cannot be exported"]),
                               ({"hidden_act": "gelu"}, ["hidden_act 'gelu' is not supported"]),
                               ({"model_type": "mistral", "sliding_window": 64},
                                ["sliding_window 64 is not supported"]),
                               ({"rope_parameters": yarn}, ["type 'yarn'"]),
                               ({"vocab_size": 100}, ["vocab_size is 100"])):
            with self.subTest(str(changes)):
                before = (self.folder / "model" / "config.json").read_text()
                self.edit_json("config.json", **changes)
                self.assert_refused(*words)
                (self.folder / "model" / "config.json").write_text(before)

    def test_settings_that_llama_cpp_lacks_for_a_family_are_refused(self):
        for kind, changes, words in (
                ("Qwen3", {"attention_bias": True}, "attention_bias True is not supported"),
                ("Phi3", {"sliding_window": 64}, "a model that is used for at most 64 tokens"),
                ("Starcoder2", {"use_bias": False}, "use_bias False is not supported"),
                ("Gemma2", {"query_pre_attn_scalar": 99}, "which uses 256 for 26 layers"),
                ("Gemma2", {"layer_types": ["full_attention"] * 26},
                 "only layers 2, 4, ... are without a window"),
                ("Gemma3Text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
                ("SmolLM3", {"no_rope_layers": [1] * 36}, "no_rope_layers"),
                ("GPT2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse"),
                ("Phi", {"qk_layernorm": True}, "qk_layernorm True is not supported"),
                ("Cohere", {"use_qk_norm": True}, "use_qk_norm True is not supported by "
                 "llama.cpp's command-r with 40 layers: it uses True from 64 layers on and False "
                 "below"),
                ("Cohere", {"num_hidden_layers": 64}, "use_qk_norm False is not supported"),
                ("Olmo", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not supported by llama.cpp's olmo"),
                ("Falcon", {"alibi": True}, "alibi True is not supported by llama.cpp's falcon")):
            with self.subTest(f"{kind} {changes}"):
                config = model_folder.with_derived_values(
                    getattr(transformers, kind + "Config")().to_dict())
                family = FAMILIES[config["model_type"]]
                model_folder.refuse_settings(family, config, "config.json")
                with self.assertRaisesRegex(UserError, words):
                    model_folder.refuse_settings(family, config | changes, "config.json")

    def test_a_file_that_llama_cpp_cannot_load_is_refused(self):
        if verify_export.has_llama_cpp():
            with unittest.mock.patch.object(model_folder, "add_setting", lambda *_: None):
                self.assert_refused("m.gguf: llama.cpp does not load the file")

    def test_a_gguf_file_with_another_norm_epsilon_than_its_class_is_refused(self):
        shutil.rmtree(self.folder / "model")
        write_model(self.folder / "model", "Olmo", byte_level_tokenizer("smollm"))
        other = {"attention.layer_norm_epsilon": 1e-3}
        with unittest.mock.patch.dict(FAMILIES["olmo"].constants, other), \
                unittest.mock.patch.object(verify_export, "has_llama_cpp", lambda: False):
            self.assertEqual(self.export("--type", "f32")[0], 0)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(make_model.main([str(self.folder / "out" / "m.gguf"), "--out",
                                              str(self.folder / "back")]), 4)
        self.assertIn("olmo.attention.layer_norm_epsilon is 0.001, but 1e-05 in every olmo model",
                      said.getvalue())

    def test_a_pre_tokenizer_without_a_counterpart_in_llama_cpp_is_refused(self):
        self.edit_json("tokenizer.json", pre_tokenizer={"type": "Whitespace"})
        self.assert_refused("its pre-tokenizer has no tested counterpart in llama.cpp")

    def test_damaged_tensor_files_are_refused_by_name(self):
        path = self.folder / "model" / "model.safetensors"
        write_adapter(self.folder / "adapter", self.folder / "model", target_modules=["q_proj"])
        whole = path.read_bytes()
        for content, words in ((b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
                                "is a pointer of Git LFS"),
                               (whole[:-1], "is not a readable safetensors file"),
                               (b"\xff" * 64, "is not a readable safetensors file")):
            path.write_bytes(content)
            self.assert_refused("model.safetensors: ", words)
            path.write_bytes(whole)
            (self.folder / "adapter" / "adapter_model.safetensors").write_bytes(content)
            self.assert_refused("adapter_model.safetensors: ", words, model=self.folder / "adapter")
        (self.folder / "model" / "tokenizer.json").write_text("[]")
        self.assert_refused("tokenizer.json: holds no JSON object")

    def test_a_tensor_without_a_name_in_llama_cpp_is_refused(self):
        path = self.folder / "model" / "model.safetensors"
        extra = {"model.layers.0.extra.weight": np.zeros((2, 2), np.float32)}
        save_file(load_file(path) | extra, path)
        self.assert_refused("tensor 'model.layers.0.extra.weight' has no name in llama.cpp's llama")

    def test_a_value_outside_the_range_of_f16_is_refused(self):
        path = self.folder / "model" / "model.safetensors"
        weights = load_file(path)
        weights["lm_head.weight"][3, 4] = 1e5
        save_file(weights, path, {"format": "pt"})
        self.assert_refused("tensor output.weight holds a value above 65504")

    def test_existing_files_are_not_replaced(self):
        thesis = self.folder / "out" / "m.gguf"
        thesis.write_text("thesis")
        self.assert_refused("exists already and is not replaced")
        self.assertEqual(thesis.read_text(), "thesis")
        thesis.rename(self.folder / "out" / "m.gguf.Modelfile")
        self.assert_refused("m.gguf.Modelfile: exists already")

    def test_adapters_that_llama_cpp_cannot_apply_are_refused_with_a_remedy(self):
        run = self.folder / "run"
        write_adapter(run / "export" / "adapter", self.folder / "model", target_modules=["q_proj"])
        path = run / "export" / "adapter" / "adapter_config.json"
        was = json.loads(path.read_text())
        for changes, words in (({"use_dora": True}, "unchanged (use_dora)"),
                               ({"bias": "all"}, "unchanged (bias)"),
                               ({"modules_to_save": ["lm_head"], "alpha_pattern": {"q_proj": 2}},
                                "unchanged (modules_to_save, alpha_pattern)"),
                               ({"use_rslora": True, "rank_pattern": {"q_proj": 2}},
                                "unchanged (use_rslora with rank_pattern)"),
                               ({"peft_type": "LOHA"}, "unchanged (peft_type LOHA)")):
            with self.subTest(str(changes)):
                path.write_text(json.dumps(was | changes))
                self.assert_refused(words, "merge it with its base first: ftrun convert", model=run)
        path.write_text(json.dumps(was | {"base_model_name_or_path": None}))
        self.assert_refused("does not name its base model; give --base FOLDER", model=run)
        path.write_text(json.dumps(was | {"base_model_name_or_path": str(run)}))
        self.assert_refused("is not a model folder, but the adapter", "give --base FOLDER",
                            model=run)
        path.write_text(json.dumps(was))
        weights = path.with_name("adapter_model.safetensors")
        tensors = load_file(weights)
        save_file(tensors, weights, {"ftrun.base_quantization": '{"type":"int8"}'})
        self.assert_refused("unchanged (a base that was quantized in training)", model=run)
        save_file(tensors | {"base_model.model.lm_head.lora_A.weight": np.zeros((2, 2), "f4")},
                  weights)
        self.assert_refused("unchanged (the tensor base_model.model.lm_head.lora_A.weight)",
                            model=run)

    def test_folders_without_a_model_are_refused(self):
        self.assert_refused("is neither a model folder nor a run that exported one",
                            model=self.folder / "out")
        self.assert_refused("no such folder", model=self.folder / "none")


class Published(Case):
    """Either both the file and its Modelfile are published, or neither."""

    def setUp(self):
        super().setUp()
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        without = unittest.mock.patch.object(verify_export, "has_llama_cpp", lambda: False)
        without.start()
        self.addCleanup(without.stop)

    def output_names(self):
        return sorted(os.listdir(self.folder / "out"))

    def export_with_failure(self, error):
        with unittest.mock.patch.object(verify_export, "compare_tensors", side_effect=error):
            code, _, said = self.export()
        self.assertEqual(self.output_names(), [])
        return code, said

    def test_errors_of_the_system_keep_their_messages(self):
        code, said = self.export_with_failure(OSError("a text without a number"))
        self.assertEqual((code, said), (5, "export_gguf: error: a text without a number\n"))
        code, said = self.export_with_failure(OSError(errno.EIO, "no disk", "elsewhere"))
        self.assertIn("export_gguf: error: elsewhere: no disk", said)

    def test_a_terminated_export_leaves_no_files(self):
        before = signal.getsignal(signal.SIGTERM)
        with self.assertRaises(SystemExit) as caught:
            self.export_with_failure(lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        self.assertEqual((caught.exception.code, self.output_names()), (143, []))
        self.assertEqual(signal.getsignal(signal.SIGTERM), before)

    def test_a_signal_between_the_two_renames_takes_effect_after_the_second(self):
        give = output_mark.move_into_place

        def end(made, place):
            give(made, place)
            os.kill(os.getpid(), signal.SIGTERM)
        with unittest.mock.patch.object(export_gguf, "move_into_place", end), \
                self.assertRaises(SystemExit):
            self.export()
        self.assertEqual(self.output_names(), ["m.gguf", "m.gguf.Modelfile"])

    def test_both_files_are_synced_before_the_first_is_moved_into_place(self):
        synced, give, sync = set(), output_mark.move_into_place, os.fsync

        def note(descriptor):
            sync(descriptor)
            synced.add(os.fstat(descriptor).st_ino)

        def check(made, place):
            parts = {entry.inode() for entry in os.scandir(self.folder / "out")}
            self.assertEqual(parts - synced, set(), "not synced")
            give(made, place)
        with unittest.mock.patch("os.fsync", note), \
                unittest.mock.patch.object(export_gguf, "move_into_place", check):
            self.assertEqual(self.export()[0], 0)

    def test_a_file_that_appears_during_the_export_is_not_replaced(self):
        give, out = output_mark.move_into_place, self.folder / "out" / "m.gguf"

        def create_late(made, place):
            if place == str(out):
                out.write_text("thesis")
            give(made, place)
        ways = ((None, None), (lambda *_: False, None),
                (lambda *_: False, OSError(errno.EPERM, "no links here")))
        for rename, link in ways:
            with contextlib.ExitStack() as stack:
                if rename:
                    stack.enter_context(unittest.mock.patch.object(output_mark, "_renameat2",
                                                                   rename))
                if link:
                    stack.enter_context(unittest.mock.patch("os.link", side_effect=link))
                with unittest.mock.patch.object(export_gguf, "move_into_place", create_late):
                    code, _, said = self.export()
                self.assertEqual(code, 4, said)
                self.assertIn("m.gguf: exists already", said)
                self.assertEqual((self.output_names(), out.read_text()), (["m.gguf"], "thesis"))
                out.unlink()
                self.assertEqual(self.export()[0], 0)
                self.assertEqual(self.output_names(), ["m.gguf", "m.gguf.Modelfile"])
                self.assertGreater(out.stat().st_size, 1000)
            for name in self.output_names():
                os.remove(self.folder / "out" / name)

    def test_names_with_spaces_are_quoted_in_suggested_commands(self):
        self.assertIn("ftrun convert 'my run' --merge", str(adapter.refusal("my run", "bias")))
        self.assertIn("# ollama create NAME -f 'my m.gguf.Modelfile'\n",
                      export_gguf.modelfile_text("my m.gguf", "./my m.gguf", []))

    def test_an_error_answer_of_llama_cpp_is_reported(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(400)
                self.end_headers()
                self.wfile.write(b"unknown role")

            def log_message(self, *_):
                pass
        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        llama_cpp = verify_export.LlamaCpp.__new__(verify_export.LlamaCpp)
        llama_cpp.path, llama_cpp.key = "m.gguf", "key"
        address = f"http://127.0.0.1:{server.server_port}"
        llama_cpp.server = types.SimpleNamespace(listening_address=address)
        with self.assertRaisesRegex(UserError, "^m.gguf: llama.cpp answers /apply-template with "
                                               "400: unknown role$"):
            llama_cpp.render_chat([])


if __name__ == "__main__":
    unittest.main()
