"""scripts/export_gguf.py: small random models of each family that is handed over, with tokenizers
of each rule, reach llama.cpp; a wrong order of rows, a wrong rule and a wrong template are found
before a file is there; what has no proven way is refused."""
import contextlib
import io
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import numpy as np
import torch
import transformers
from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

import export_gguf
from gguf_export import architectures, proof, vocabulary

TEXT = (ROOT / "README.md").read_text().splitlines(keepends=True)
SPECIAL = ["<|begin|>", "<|end|>", "<|pad|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|begin|>' + message['role'] + '\n' + "
            "message['content'] + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
            "'<|begin|>assistant\n' }}{% endif %}")
WORDS = vocabulary.WORDS


def cut(pattern):
    from tokenizers import Regex
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(False, use_regex=False)])


RULES = {
    "gpt-2": lambda: (None, pre_tokenizers.ByteLevel(False)),
    "smollm": lambda: (None,
                       pre_tokenizers.Sequence([pre_tokenizers.Digits(True),
                                                pre_tokenizers.ByteLevel(False)])),
    "llama-bpe": lambda: (None, cut(WORDS % "{1,3}")),
    "qwen2": lambda: (normalizers.NFC(), cut(WORDS % "")),
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
        tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A",
                                                                 special_tokens=[("<|begin|>", 0)])
    return tokenizer


def sentencepiece_tokenizer():
    """As transformers writes Llama 2's: byte fallback, a space put first, merges
    in the order of scores."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizer
    learned.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    state = json.loads(learned.to_str())["model"]
    first = ["<unk>", "<|begin|>", "<|end|>"] + [f"<0x{i:02X}>" for i in range(256)]
    vocab = {token: i
             for i, token in enumerate([*first,
                                        *(t for t, _ in sorted(state["vocab"].items(),
                                                               key=lambda x: x[1]))])}
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" "))
              for merge in state["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True,
                                     unk_token="<unk>"))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ("<unk>", "<|begin|>", "<|end|>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A",
                                                             special_tokens=[("<|begin|>", 1)])
    return tokenizer


def write_model(folder, kind, tokenizer, template=TEMPLATE, **settings):
    """A random model whose weights are large enough for its next tokens to differ."""
    size = max(tokenizer.get_vocab().values()) + 3  # two ids without a token
    settings = {"vocab_size": size, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.25,
                "tie_word_embeddings": False,
                "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **settings}
    torch.manual_seed(0)
    model = getattr(transformers,
                    kind + "ForCausalLM")(getattr(transformers,
                                                  kind + "Config")(**settings)).float()
    for name, value in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            value.data += 0.3 * torch.randn_like(value)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>"} | ({"chat_template": template}
                                                                  if template else {})
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


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
            code = export_gguf.main([str(model or self.folder / "model"), "--out",
                                     str(self.folder / "out" / "m.gguf"), *words])
        return code, out.getvalue(), err.getvalue()

    def refused(self, *words, **arguments):
        """What it says, and that nothing was left."""
        before = sorted(os.listdir(self.folder / "out"))
        code, _, said = self.export(**arguments)
        self.assertEqual(code, 4, said)
        for word in words:
            self.assertIn(word, said)
        self.assertEqual(sorted(os.listdir(self.folder / "out")), before)

    def edit(self, name, **changes):
        path = self.folder / "model" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def accepted(self, *words):
        code, said, error = self.export(*words)
        self.assertEqual(code, 0, error)
        self.assertIn("llama.cpp has the token ids of 8 prompts" if proof.has_llama_cpp()
                      else "not tried in llama.cpp", said)
        self.assertEqual(sorted(os.listdir(self.folder / "out")), ["m.gguf", "m.gguf.Modelfile"])
        return said


class HandedOver(Case):
    def test_llama_with_scaled_rotation_and_tied_head(self):
        scaling = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}
        write_model(self.folder / "model", "Llama",
                    byte_level_tokenizer("llama-bpe", adds_bos=True), rope_parameters=scaling,
                    tie_word_embeddings=True)
        self.accepted("--type", "f32")
        self.assertIn('PARAMETER stop "<|end|>"',
                      (self.folder / "out" / "m.gguf.Modelfile").read_text())

    def test_llama_with_biases_and_linear_scaling(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"),
                    attention_bias=True,
                    rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})
        self.accepted("--type", "f32")

    def test_mistral_with_byte_fallback(self):
        write_model(self.folder / "model", "Mistral", sentencepiece_tokenizer(), head_dim=24,
                    sliding_window=None, bos_token_id=1,
                    eos_token_id=2, pad_token_id=None)
        self.accepted("--type", "f32")

    def test_qwen2(self):
        write_model(self.folder / "model", "Qwen2", byte_level_tokenizer("qwen2"))
        self.accepted("--type", "f32")

    def test_qwen3_without_template(self):
        write_model(self.folder / "model", "Qwen3", byte_level_tokenizer("gpt-2"), template=None,
                    head_dim=32)
        self.accepted("--type", "f32")

    def test_types_that_round(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"),
                    initializer_range=0.1)
        for kind in ("f16", "bf16", "q8_0"):
            with self.subTest(kind):
                self.accepted("--type", kind)
                shutil.rmtree(self.folder / "out")
                (self.folder / "out").mkdir()

    def test_a_run_stands_for_what_it_exported(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        (self.folder / "run" / "export").mkdir(parents=True)
        shutil.move(self.folder / "model", self.folder / "run" / "export" / "model")
        self.assertEqual(self.export("--type", "f32", model=self.folder / "run")[0], 0)


@unittest.skipUnless(proof.has_llama_cpp(), "the package xllamacpp is not installed")
class FoundByTheProof(Case):
    def test_rows_in_another_order(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        with unittest.mock.patch.object(architectures, "pairs_from_halves",
                                        lambda values, heads: values):
            self.refused("m.gguf: after ", "the distributions diverge by")

    def test_another_rule_of_cutting(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("gpt-2", size=2000))
        with unittest.mock.patch.object(vocabulary, "rule_of", lambda *_: "smollm"):
            self.refused("m.gguf: token ", " and for llama.cpp ")

    def test_a_begin_of_text_that_is_not_put(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm", adds_bos=True))
        with unittest.mock.patch.object(vocabulary, "adds_bos", lambda *_: False):
            self.refused("m.gguf: token 0 of ", "is '<|begin|>' (0)")

    def test_another_rotation(self):
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))
        with unittest.mock.patch.object(architectures, "rope_settings",
                                        lambda _: {"rope_theta": 500.0, "rope_type": "default"}):
            self.refused("m.gguf: after ", "the distributions diverge by")


class Refused(Case):
    def setUp(self):
        super().setUp()
        write_model(self.folder / "model", "Llama", byte_level_tokenizer("smollm"))

    def test_what_llama_cpp_computes_otherwise(self):
        for changes, words in (({"model_type": "phi3"}, ["model_type 'phi3' has no proven way"]),
                               ({"hidden_act": "gelu"}, ["hidden_act 'gelu' is not computed"]),
                               ({"model_type": "mistral", "sliding_window": 64},
                                ["sliding_window 64 is not computed"]),
                               ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0,
                                                     "rope_theta": 1e4}}, ["type 'yarn'"]),
                               ({"vocab_size": 100}, ["vocab_size is 100"])):
            with self.subTest(str(changes)):
                before = (self.folder / "model" / "config.json").read_text()
                self.edit("config.json", **changes)
                self.refused(*words)
                (self.folder / "model" / "config.json").write_text(before)

    def test_a_rule_without_a_name(self):
        self.edit("tokenizer.json", pre_tokenizer={"type": "Whitespace"})
        self.refused("cuts texts by a rule that has no proven name")

    def test_a_tensor_without_a_name(self):
        from safetensors.numpy import load_file, save_file
        path = self.folder / "model" / "model.safetensors"
        save_file(load_file(path) | {"model.layers.0.extra.weight": np.zeros((2, 2), np.float32)},
                  path)
        self.refused("tensor 'model.layers.0.extra.weight' has no name in llama.cpp's llama")

    def test_a_value_that_f16_has_not(self):
        from safetensors.numpy import load_file, save_file
        path = self.folder / "model" / "model.safetensors"
        weights = load_file(path)
        weights["lm_head.weight"][3, 4] = 1e5
        save_file(weights, path, {"format": "pt"})
        self.refused("tensor output.weight holds a value above 65504")

    def test_what_is_there_is_not_replaced(self):
        thesis = self.folder / "out" / "m.gguf"
        thesis.write_text("thesis")
        self.refused("is there already, and is not replaced")
        self.assertEqual(thesis.read_text(), "thesis")
        thesis.rename(self.folder / "out" / "m.gguf.Modelfile")
        self.refused("m.gguf.Modelfile: is there already")

    def test_an_adapter_is_merged_first(self):
        adapter = self.folder / "run" / "export" / "adapter"
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
        self.refused("is an adapter; merge it with its base first: ftrun convert",
                     model=self.folder / "run")

    def test_what_is_no_model(self):
        self.refused("is neither a model folder nor a run that exported one",
                     model=self.folder / "out")
        self.refused("no such folder", model=self.folder / "none")


if __name__ == "__main__":
    unittest.main()
