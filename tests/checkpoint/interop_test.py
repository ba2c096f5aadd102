"""Loads ftrun's files with safetensors and transformers, and their files with ftrun.

usage: interop_test.py <the test_checkpoint program>
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy
import safetensors
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

PROGRAM = sys.argv.pop(1)


def run_case(tag, folder):
    done = subprocess.run([PROGRAM, f"[{tag}]"], env={**os.environ, "FTRUN_INTEROP_FOLDER": folder},
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


class Interop(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        self.addCleanup(self.temporary.cleanup)

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_python_reads_safetensors_of_ftrun_and_writes_the_same_bytes(self):
        run_case(".interop-write", self.folder)
        tensors = load_file(self.path("cpp.safetensors"))
        shapes = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in tensors.items()}
        self.assertEqual(shapes, {
            "z.f32": (torch.float32, [2, 3]), "a.bf16": (torch.bfloat16, [4]),
            "b.f16": (torch.float16, [1, 1]), "m.i64": (torch.int64, []),
            "m.u8": (torch.uint8, [3]), "m.bool": (torch.bool, [2]), "m.i32": (torch.int32, [2]),
            "empty": (torch.float32, [0, 2]),
            'd"\\é': (torch.float64, [1])})
        self.assertEqual(int(tensors["m.i64"]), 0x0101010101010101)
        save_file(tensors, self.path("again.safetensors"), metadata={"format": "pt"})
        with open(self.path("cpp.safetensors"), "rb") as ours, \
                open(self.path("again.safetensors"), "rb") as theirs:
            self.assertEqual(ours.read(), theirs.read())

    def test_python_reads_a_checkpoint(self):
        run_case(".interop-write", self.folder)
        step = self.path("checkpoints/step-00000005")
        with open(os.path.join(step, "checkpoint.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.assertEqual(manifest["meta"]["step"], 5)
        with safe_open(os.path.join(step, "rank-00000.safetensors"), "pt") as file:
            listed = {f"{s['tensor']}.{s['kind']}" for s in manifest["files"][0]["slices"]}
            self.assertEqual(set(file.keys()), listed)
            embed = file.get_tensor("model.embed_tokens.weight.param")
        self.assertEqual(list(embed.shape), [13, 4])
        expected = 3 + numpy.float32(1e-3) * numpy.arange(52, dtype=numpy.float32)
        self.assertEqual(embed.flatten().tolist(), expected.astype(numpy.float32).tolist())

    def test_the_reader_shown_in_the_docs_joins_the_parts_of_four_ranks(self):
        run_case(".interop-write", self.folder)
        page = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoint.md").read_text(
            encoding="utf-8")
        code, = re.findall(r"```python\n(.*?)```", page, re.S)
        names = {"json": json, "safetensors": safetensors}
        exec(code, names)
        whole = {}
        for name in ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
                     "model.norm.weight", "scale"):
            for kind in ("param", "exp_avg", "exp_avg_sq"):
                one, parts = (names["read"](self.path(f"{root}/step-00000005"), name, kind)
                              for root in ("checkpoints", "parts"))
                self.assertTrue(torch.equal(one, parts), (name, kind))
                whole[name, kind] = one
        self.assertEqual(list(whole["model.layers.0.mlp.up_proj.weight", "exp_avg"].shape), [5, 7])
        with open(self.path("parts/step-00000005/checkpoint.json"), encoding="utf-8") as file:
            self.assertTrue(any(len(part["shape"]) == 2 and part["offset"][1] > 0
                                and part["extent"][0] > 1
                                for rank in json.load(file)["files"] for part in rank["slices"]))

    def test_ftrun_reads_what_python_writes(self):
        tensors = {"w": torch.randn(3, 5), "h": torch.randn(7).to(torch.bfloat16),
                   "q": torch.randn(2, 2).half(), "n": torch.tensor(float("nan")),
                   "i": torch.arange(4), "none": torch.empty(0, 3)}
        save_file(tensors, self.path("python.safetensors"))
        found = dict(line.split(": ")
                     for line in run_case(".interop-read", self.folder).splitlines()
                     if line.startswith("tensor "))
        dtypes = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
                  torch.int64: "I64"}
        expected = {}
        for name, tensor in tensors.items():
            raw = tensor.flatten().view(torch.uint8).numpy().tobytes().hex()
            expected[f"tensor {name}"] = f"{dtypes[tensor.dtype]} {list(tensor.shape)} {raw}"
        self.assertEqual(found, expected)

    def test_transformers_loads_an_export(self):
        torch.manual_seed(3)
        for rope in ({"rope_type": "default", "rope_theta": 5000.0},
                     {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0,
                      "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32},
                     {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 2.0,
                      "original_max_position_embeddings": 32}):
            config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48,
                                 num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                 max_position_embeddings=64, rope_parameters=rope,
                                 tie_word_embeddings=False)
            model = LlamaForCausalLM(config).float().eval()
            model.save_pretrained(self.path("model"))
            run_case(".interop-export", self.folder)
            self.check_export(model, "export-f32", torch.float32, rope)
            self.check_export(model, "export-bf16", torch.bfloat16, rope)
            self.assertIn("model.safetensors.index.json", os.listdir(self.path("export-f32")))
            self.assertIn("generation_config.json", os.listdir(self.path("export-f32")))

    def check_export(self, model, name, dtype, rope):
        config = AutoConfig.from_pretrained(self.path(name))
        self.assertEqual(config.dtype, dtype)
        self.assertEqual({key: config.rope_parameters[key] for key in rope}, rope)
        loaded, info = AutoModelForCausalLM.from_pretrained(self.path(name),
                                                            output_loading_info=True)
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertEqual(list(info[key]), [])
        for key, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(loaded.state_dict()[key], tensor.to(dtype)), key)
        if dtype == torch.float32:
            tokens = torch.arange(40).unsqueeze(0)
            with torch.no_grad():
                self.assertTrue(torch.equal(loaded.eval()(tokens).logits, model(tokens).logits))


if __name__ == "__main__":
    unittest.main()
