"""Tests of scripts/prepare_data.py: what it writes, byte by byte, and what it refuses."""
import contextlib
import errno
import io
import json
import os
import pathlib
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures"
sys.path.insert(0, str(ROOT / "scripts"))
import prepare_data  # noqa: E402
from training_data import token_files  # noqa: E402
from killed_child import survives_kill_at  # noqa: E402

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]


def write_tokenizer(folder, template=TEMPLATE, vocab_size=300):
    """Writes a tokenizer of single bytes: ids 0-2 are special, and the id of a byte is its position
    in the alphabet."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(SPECIAL + alphabet)},
                                     merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    settings = {"eos_token": SPECIAL[0]}
    if template:
        settings["chat_template"] = template
    for name, value in (("config.json", {"vocab_size": vocab_size}),
                        ("tokenizer_config.json", settings)):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(value, file)
    return tokenizer


def read_pair(prefix):
    """Returns the documents of a Megatron pair and their mask, read only by the description of the
    format."""
    index = pathlib.Path(prefix + ".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, boundaries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1 and boundaries == sequences + 1
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    assert list(np.frombuffer(index, "<i8", boundaries,
                              34 + 12 * sequences)) == list(range(boundaries))
    assert len(index) == 34 + 12 * sequences + 8 * boundaries
    dtype = {8: np.dtype("<u2"), 4: np.dtype("<i4")}[code]
    tokens = np.fromfile(prefix + ".bin", dtype)
    trained = np.ones(tokens.size, bool)
    if os.path.exists(prefix + ".mask"):
        mask = pathlib.Path(prefix + ".mask").read_bytes()
        assert mask[:8] == b"FTRMASK\0" and struct.unpack_from("<QQ", mask, 8) == (1, tokens.size)
        bits = np.unpackbits(np.frombuffer(mask, np.uint8, offset=24), bitorder="little")
        assert bits.size == (tokens.size + 7) // 8 * 8 and not bits[tokens.size:].any()
        trained = bits[:tokens.size].astype(bool)
    first = pointers // dtype.itemsize
    return [(tokens[f:f + n], trained[f:f + n]) for f, n in zip(first, lengths)]


class PrepareData(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = self._folder.name
        self.model = os.path.join(self.folder, "model")
        self.tokenizer = write_tokenizer(self.model)
        self.out = os.path.join(self.folder, "out")

    def tearDown(self):
        self._folder.cleanup()

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def run_script(self, *arguments):
        """Runs the script; returns its exit code, standard output and standard error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = prepare_data.main(["--tokenizer", self.model, "--out", self.out,
                                          "--workers", "1", *arguments])
            except SystemExit as stop:
                code = stop.code
        return code, out.getvalue(), err.getvalue()

    def prepare(self, *arguments):
        code, out, err = self.run_script(*arguments)
        self.assertEqual((code, err), (0, ""))
        return out

    def refusal(self, *arguments):
        code, _, err = self.run_script(*arguments)
        self.assertFalse(os.path.exists(self.out) and os.listdir(self.out), "left files behind")
        return code, err

    def text_of(self, ids):
        text = self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)
        return text.replace("Ġ", " ").replace("Ċ", "\n")

    def trained_text(self, document):
        """Returns the document with [ ] around the text that is trained on."""
        text, inside = "", False
        for token, trained in zip(*document):
            if trained != inside:
                text += "[" if trained else "]"
                inside = trained
            piece = self.tokenizer.id_to_token(int(token))
            text += {"Ġ": " ", "Ċ": "\n"}.get(piece, piece)
        return text + ("]" if inside else "")

    def test_text_files_become_documents_with_the_end_id(self):
        self.prepare(self.write("a.txt", "ab\r\ncd"), self.write("b.txt", "e"),
                     self.write("c.txt", " \n"))
        documents = read_pair(self.out + "/train")
        self.assertEqual([self.trained_text(d) for d in documents],
                         ["[ab\ncd<|end|>]", "[e<|end|>]"])
        self.assertFalse(os.path.exists(self.out + "/train.mask"))

    def test_chats_train_on_what_the_assistant_says(self):
        chat = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"},
                             {"role": "assistant", "content": "yo"},
                             {"role": "user", "content": "q"},
                             {"role": "assistant", "content": "a"}]}
        self.prepare(self.write("c.jsonl", json.dumps(chat)))
        self.assertEqual(self.trained_text(read_pair(self.out + "/train")[0]),
                         "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                         "<|im_start|>assistant\n[yo<|im_end|>\n]<|im_start|>user\nq<|im_end|>\n"
                         "<|im_start|>assistant\n[a<|im_end|>\n]")

    def test_every_shape_of_a_line_is_laid_out_as_the_same_chat(self):
        lines = [{"prompt": "p", "completion": "c"}, {"prompt": "p", "response": "c"},
                 {"instruction": "p", "output": "c"},
                 {"instruction": "p", "input": "", "output": "c"},
                 {"conversations": [{"from": "human", "value": "p"},
                                    {"from": "gpt", "value": "c"}]}]
        self.prepare(self.write("c.jsonl", "\n".join(map(json.dumps, lines))))
        expected = "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n[c<|im_end|>\n]"
        self.assertEqual([self.trained_text(d) for d in read_pair(self.out + "/train")],
                         [expected] * 5)

    def test_plain_joins_prompt_and_completion(self):
        path = self.write("c.jsonl", '{"prompt": "one ", "completion": "two"}\n\n{"text": '
                                     '"three"}\n')
        self.prepare(path, "--plain")
        self.assertEqual([self.trained_text(d) for d in read_pair(self.out + "/train")],
                         ["one [two<|end|>]", "[three<|end|>]"])
        self.prepare(path, "--plain", "--train-on-prompts")
        self.assertEqual(self.trained_text(read_pair(self.out + "/train")[0]), "[one two<|end|>]")
        self.assertFalse(os.path.exists(self.out + "/train.mask"),
                         "the mask of the run before stayed")

    def test_chats_render_like_apply_chat_template_of_transformers(self):
        from transformers import AutoTokenizer

        with open(self.model + "/tokenizer_config.json") as file:
            settings = json.load(file)
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        with open(self.model + "/tokenizer_config.json", "w") as file:
            json.dump(settings, file)
        messages = [{"role": "user", "content": "né 漢"}, {"role": "assistant", "content": "42\n"}]
        self.prepare(self.write("c.jsonl", json.dumps({"messages": messages})))
        expected = AutoTokenizer.from_pretrained(self.model).apply_chat_template(messages)
        expected = expected["input_ids"] if hasattr(expected, "keys") else expected
        self.assertEqual(list(read_pair(self.out + "/train")[0][0]), list(expected))

    def test_validation_takes_every_nth_document(self):
        self.prepare(self.write("c.jsonl",
                                "\n".join(json.dumps({"text": str(i)}) for i in range(7))),
                     "--validation-every", "3")
        first = lambda split: [self.trained_text(d)[1] for d in read_pair(f"{self.out}/{split}")]
        self.assertEqual(first("train"), ["0", "1", "3", "4", "6"])
        self.assertEqual(first("validation"), ["2", "5"])

    def test_the_result_does_not_depend_on_the_number_of_processes(self):
        texts = [{"text": chr(97 + i % 26) * (20000 + i * 37)} for i in range(60)]
        path = self.write("c.jsonl", "\n".join(map(json.dumps, texts)))
        self.prepare(path)
        one = [pathlib.Path(self.out + "/train" + e).read_bytes() for e in (".bin", ".idx")]
        script = [sys.executable, str(ROOT / "scripts/prepare_data.py"), "--tokenizer", self.model,
                  path]
        done = subprocess.run(script + ["--out", self.folder + "/three", "--workers", "3"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        three = [pathlib.Path(self.folder + "/three/train" + e).read_bytes()
                 for e in (".bin", ".idx")]
        self.assertEqual(one, three)

    def test_the_sidecar_records_counts_checksums_and_a_fingerprint(self):
        import xxhash

        self.prepare(self.write("c.jsonl", '{"prompt": "ab", "completion": "c"}'), "--plain")
        side = json.loads(pathlib.Path(self.out + "/train.json").read_text())
        ids, trained = read_pair(self.out + "/train")[0]
        facts = {k: side[k] for k in ("format", "version", "dtype", "tokens", "documents",
                                      "trained_tokens",
                                      "min_id", "max_id", "vocab_size", "end_of_document")}
        self.assertEqual(facts, {"format": "ftrun-data", "version": 1, "dtype": "uint16",
                                 "tokens": 4,
                                 "documents": 1, "trained_tokens": 2, "min_id": 0,
                                 "max_id": int(ids.max()),
                                 "vocab_size": 300, "end_of_document": 0})
        self.assertEqual(side["conversations"], 1)
        self.assertEqual(list(trained), [False, False, True, True])
        lines = ""
        for record in side["files"]:
            content = pathlib.Path(self.out, record["name"]).read_bytes()
            self.assertEqual(record["xxh3"], xxhash.xxh3_64(content).hexdigest())
            self.assertEqual(record["bytes"], len(content))
            self.assertEqual(record["modified_ns"],
                             os.stat(f"{self.out}/{record['name']}").st_mtime_ns)
            lines += f"{record['role']} {len(content)} {record['xxh3']}\n"
        self.assertEqual([r["role"] for r in side["files"]], ["tokens", "index", "mask"])
        self.assertEqual(side["fingerprint"], xxhash.xxh3_64(lines.encode()).hexdigest())

    def begin_texts(self, in_tokenizer, **settings):
        """Sets <|im_start|> (id 1) as the tokenizer's begin-of-text token, in one of two ways."""
        from tokenizers import processors

        if in_tokenizer:
            self.tokenizer.post_processor = processors.TemplateProcessing(
                single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
        self.tokenizer.save(os.path.join(self.model, "tokenizer.json"))
        path = pathlib.Path(self.model, "tokenizer_config.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token": "<|im_start|>",
                                    **settings}))

    def first_tokens(self, path, *options):
        self.prepare(path, *options)
        return [(int(ids[0]), bool(trained[0])) for ids, trained in read_pair(self.out + "/train")]

    def test_plain_texts_begin_with_bos_if_the_tokenizer_adds_it(self):
        path = self.write("a.txt", "hello")
        h = self.tokenizer.encode("h").ids[0]
        self.begin_texts(False)
        self.assertEqual(self.first_tokens(path), [(h, True)])
        self.assertEqual(self.first_tokens(path, "--bos", "always"), [(1, True)])
        self.begin_texts(False, add_bos_token=True)
        self.assertEqual(self.first_tokens(path), [(1, True)])
        self.begin_texts(True, add_bos_token=False)  # overrides tokenizer.json, as in transformers
        self.assertEqual(self.first_tokens(path), [(h, True)])
        pathlib.Path(self.model, "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
        self.assertEqual(self.first_tokens(path), [(1, True)])
        self.assertEqual(self.first_tokens(path, "--bos", "never"), [(h, True)])
        ids, _ = read_pair(self.out + "/train")[0]
        self.assertEqual((ids.size, ids[-1]), (6, 0))
        # A text that contains the token already has it only once.
        self.assertEqual(self.first_tokens(self.write("b.txt", "<|im_start|>hello")), [(1, True)])
        self.assertEqual(read_pair(self.out + "/train")[0][0].size, 7)

    def test_bos_of_a_prompt_is_not_trained_on_and_chats_get_no_other_bos_than_the_templates(self):
        self.begin_texts(True)
        pair = self.write("c.jsonl", '{"prompt": "ab", "completion": "c"}')
        self.assertEqual(self.first_tokens(pair, "--plain"), [(1, False)])
        self.prepare(pair)
        ids, _ = read_pair(self.out + "/train")[0]
        chat = "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"
        self.assertEqual(list(ids), self.tokenizer.encode(chat, add_special_tokens=False).ids)

    def test_bos_always_is_refused_if_no_file_names_a_bos_token(self):
        self.assertEqual(self.refusal(self.write("a.txt", "x"), "--bos", "always"),
                         (4, f"prepare_data: error: {self.model}: names no bos token "
                             "(tokenizer_config.json: bos_token); use --bos never to start texts "
                             "without a bos token\n"))

    def test_documents_that_are_conversations_are_counted(self):
        lines = ['{"text": "a"}', '{"prompt": "b", "completion": "c"}',
                 '{"messages": [{"role": "user", "content": "d"}, {"role": "assistant", "content": '
                 '"e"}]}']
        for count, part in ((2, lines), (0, lines[:1])):
            self.prepare(self.write("c.jsonl", "\n".join(part)), "--train-on-prompts")
            side = json.loads(pathlib.Path(self.out + "/train.json").read_text())
            self.assertEqual(side["conversations"], count)

    def test_the_same_command_again_does_nothing_a_changed_one_does(self):
        path = self.write("a.txt", "hello")
        self.prepare(path)
        before = os.stat(self.out + "/train.bin").st_mtime_ns
        self.assertEqual(self.prepare(path), f"{self.out}: up to date (train)\n")
        self.assertEqual(os.stat(self.out + "/train.bin").st_mtime_ns, before)
        self.write("a.txt", "hello, world")
        self.assertIn("13 tokens in 1 samples", self.prepare(path))
        os.remove(self.out + "/train.bin")
        self.assertIn("13 tokens in 1 samples", self.prepare(path))
        self.assertEqual(len(read_pair(self.out + "/train")[0][0]), 13)

    def test_the_record_of_the_inputs_is_small_however_many_there_are(self):
        many = [self.write(f"part-{i:04d}.txt", f"text {i % 7}") for i in range(300)]
        self.prepare(*many)
        side = pathlib.Path(self.out + "/train.json")
        self.assertLess(side.stat().st_size, 4000)
        inputs = json.loads(side.read_text())["made_from"]["inputs"]
        self.assertEqual((inputs["count"], inputs["first"]),
                         (300, ["part-0000.txt", "part-0001.txt", "part-0002.txt"]))
        self.assertIn("up to date", self.prepare(*many))
        self.assertIn("299 samples", self.prepare(*many[:-1]))
        self.assertIn("300 samples", self.prepare(*many))
        os.utime(many[-1], ns=(1, 1))
        self.assertIn("300 samples", self.prepare(*many))

    # --- files that it never replaces ---

    def folder_contents(self):
        """Returns the names, kinds and contents of everything below the test's folder."""
        found = {}
        for path in sorted(pathlib.Path(self.folder).rglob("*")):
            found[str(path)] = os.readlink(
                path) if path.is_symlink() else path.is_file() and path.read_bytes()
        return found

    def assert_refused(self, message, *arguments):
        before = self.folder_contents()
        code, _, err = self.run_script(*arguments)
        self.assertEqual((code, err), (4, f"prepare_data: error: {message}\n"))
        self.assertEqual(self.folder_contents(), before)

    def test_files_that_the_script_did_not_write_are_not_replaced(self):
        text, foreign = self.write("a.txt",
                                   "hello"), "was not written by this script, so it is not replaced"
        remedy = "choose another --out, or move it away"
        os.makedirs(self.out)
        for name, content in (("train.json", '[{"text": "my chats"}]'),
                              ("train.json", '{"text": "one"}'),
                              ("train.json", '{"format": "ftrun-data", "files": [{}]}'),
                              ("train.bin", "tokens"),
                              ("train.idx", "index"), ("train.mask", "mask"),
                              ("validation.json", "[]")):
            with self.subTest(name=name, content=content):
                path = self.write("out/" + name, content)
                self.assert_refused(f"{path}: {foreign}; {remedy}", text, text,
                                    "--validation-every", "2")
                self.assert_refused(f"{path}: {foreign}; {remedy}", text, text,
                                    "--validation-every", "2", "--force")
                os.remove(path)
        # Files that this run does not write stay unchanged.
        for name in ("validation.json", "train.bin.tmp", "train.json.tmp", "chats.jsonl"):
            self.write("out/" + name, "mine")
        self.prepare(text)
        for name in ("validation.json", "train.bin.tmp", "train.json.tmp", "chats.jsonl"):
            self.assertEqual(pathlib.Path(self.out, name).read_text(), "mine")

    def test_changed_outputs_are_not_replaced(self):
        chats = self.write("c.jsonl", '{"prompt": "ab", "completion": "c"}')
        self.prepare(chats, "--plain")
        for extension in (".bin", ".idx", ".mask"):
            path = pathlib.Path(self.out, "train" + extension)
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            self.assert_refused(f"{path}: was changed since this script wrote it, so it is not "
                                "replaced; choose another --out, or move it away", chats, "--force",
                                "--plain")
            path.write_bytes(content)
        # A link is not the file that was written, although it leads to the same bytes.
        os.rename(self.out + "/train.bin", self.folder + "/kept.bin")
        os.symlink("../kept.bin", self.out + "/train.bin")
        self.assert_refused(f"{self.out}/train.bin: was changed since this script wrote it, so it "
                            "is not replaced; choose another --out, or move it away", chats,
                            "--force", "--plain")
        os.rename(self.folder + "/kept.bin", self.out + "/train.bin")
        self.prepare(chats, "--force", "--plain")

    def test_an_input_is_never_an_output(self):
        os.makedirs(self.out)
        own = self.write("out/train.json", '[{"text": "mine"}]')
        os.symlink("out/train.json", self.folder + "/link.json")
        os.link(own, self.folder + "/hard.json")
        os.symlink("out", self.folder + "/alias")
        for path in (own, f"{self.folder}/link.json", f"{self.folder}/hard.json",
                     f"{self.folder}/alias/train.json",
                     f"{self.out}/../out/train.json"):
            with self.subTest(path):
                self.assert_refused(f"{path}: is an input and would be replaced by the output "
                                    f"{own}; choose another --out", path)
        # An input may be next to the outputs.
        os.rename(own, self.out + "/raw.json")
        self.prepare(self.out + "/raw.json")
        self.assertEqual(pathlib.Path(self.out, "raw.json").read_text(), '[{"text": "mine"}]')

    def test_an_output_that_cannot_be_a_folder_is_refused(self):
        text = self.write("a.txt", "hello")
        self.write("out", "a file")
        self.assert_refused(f"{self.out}: is not a folder", text)
        os.remove(self.out)
        os.symlink("nowhere", self.out)
        self.assert_refused(f"{self.out}: is a link to nowhere, which does not exist", text)
        os.makedirs(self.folder + "/nowhere")
        self.prepare(text)
        self.assertTrue(os.path.islink(self.out)
                        and os.path.exists(self.folder + "/nowhere/train.bin"))

    def run_until_kill(self, at, *arguments):
        """Runs the script in a child process that ends, as if by SIGKILL, before rename or removal
        number `at`; returns whether the script reached its end."""
        def prepare(ending):
            prepare_data.os.replace, prepare_data.os.remove = ending(os.replace), ending(os.remove)
            token_files.shutil.rmtree = ending(shutil.rmtree)

        return survives_kill_at(at, prepare, lambda: self.run_script(*arguments)[0])

    def test_after_a_kill_at_any_moment_the_command_can_be_run_again(self):
        masked = '{"prompt": "ab", "completion": "c"}\n' * 4
        first, second = self.write("a.jsonl",
                                   masked), self.write("b.jsonl", '{"text": "other"}\n' * 6)
        plain, at, finished = ("--plain", "--validation-every", "2"), 0, False
        while not finished:
            self.prepare(first, *plain, "--force")
            finished = self.run_until_kill(at, second, *plain)
            self.assertIn("done in", self.prepare(second, *plain, "--force"))
            for split, count in (("train", 3), ("validation", 3)):
                self.assertEqual([self.trained_text(d) for d in read_pair(f"{self.out}/{split}")],
                                 ["[other<|end|>]"] * count)
            self.assertEqual(sorted(os.listdir(self.out), key=lambda n: (n == "train.html", n)),
                             sorted(f"{s}.{e}" for s in ("train", "validation")
                                    for e in ("bin", "idx", "json"))
                             + ["train.html"])
            at += 1
        self.assertGreater(at, 10)

    def test_a_second_run_into_the_same_folder_is_refused(self):
        text = self.write("a.txt", "hello")
        os.makedirs(self.out)
        script = ("import sys; sys.path.insert(0, sys.argv[1]); import prepare_data\n"
                  "with prepare_data.staging_folder(sys.argv[2]): print('in', flush=True); "
                  "sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", script, str(ROOT / "scripts"), self.out],
                              stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as other:
            self.assertEqual(other.stdout.readline(), "in\n")
            self.assert_refused(f"{self.out}: another prepare_data.py is writing there; wait for "
                                "it", text)
            other.kill()
        self.prepare(text)
        self.assertEqual(sorted(os.listdir(self.out)), ["train.bin", "train.html", "train.idx",
                                                        "train.json"])

    def test_a_file_system_without_locks_is_accepted(self):
        """A leftover stays, because without locks nothing shows whether it is in use."""
        text = self.write("a.txt", "hello")
        os.makedirs(self.out + "/.ftrun-01234567.tmp")
        pathlib.Path(self.out, ".ftrun-01234567.tmp", "lock").write_text("")
        with mock.patch("fcntl.lockf", side_effect=OSError(errno.ENOLCK, "No locks available")):
            self.prepare(text)
        self.assertEqual(sorted(os.listdir(self.out)), [".ftrun-01234567.tmp", "train.bin",
                                                        "train.html", "train.idx", "train.json"])

    def test_the_lock_of_a_leftover_is_closed_before_the_leftover_is_removed(self):
        """A network file system keeps an open file, and the folder that contains it."""
        os.makedirs(self.out + "/.ftrun-01234567.tmp")
        lock = pathlib.Path(self.out, ".ftrun-01234567.tmp", "lock")
        lock.write_text("")
        held = []
        remove = shutil.rmtree

        def look(folder, **options):
            held.extend(fd for fd in os.listdir("/proc/self/fd")
                        if os.path.exists(f"/proc/self/fd/{fd}")
                        and os.path.samefile(f"/proc/self/fd/{fd}", lock))
            remove(folder, **options)
        with mock.patch("shutil.rmtree", look):
            token_files.remove_stale(self.out, str(lock.parent))
        self.assertEqual((held, os.listdir(self.out)), ([], []))

    def test_a_tokenizer_whose_files_are_links_is_read(self):
        """Hub caches store a model's files as links."""
        snapshot = self.folder + "/hub/models--me--tiny/snapshots/0123"
        os.makedirs(snapshot)
        os.rename(self.model, self.folder + "/hub/models--me--tiny/blobs")
        for name in os.listdir(self.folder + "/hub/models--me--tiny/blobs"):
            os.symlink("../../blobs/" + name, f"{snapshot}/{name}")
        self.model = snapshot
        self.prepare(self.write("a.txt", "ab"))
        self.assertEqual(self.trained_text(read_pair(self.out + "/train")[0]), "[ab<|end|>]")

    def test_large_vocabularies_are_written_as_int32(self):
        write_tokenizer(self.model, vocab_size=70000)
        self.prepare(self.write("a.txt", "ab"))
        self.assertEqual(os.path.getsize(self.out + "/train.bin"), 12)
        self.assertEqual(self.trained_text(read_pair(self.out + "/train")[0]), "[ab<|end|>]")

    def test_the_committed_example_is_what_the_script_writes(self):
        """lib/data's tests read the same files, so the two programs agree on the formats."""
        self.prepare(str(FIXTURES / "chats.jsonl"))
        for extension in (".bin", ".idx", ".mask"):
            self.assertEqual(pathlib.Path(self.out + "/train" + extension).read_bytes(),
                             (FIXTURES / ("chats" + extension)).read_bytes(), extension)
        side = json.loads(pathlib.Path(self.out + "/train.json").read_text())
        recorded = json.loads((FIXTURES / "chats.json").read_text())
        self.assertEqual(side["fingerprint"], recorded["fingerprint"])

    def test_a_link_to_nothing_is_refused_by_name_alone_and_in_a_folder(self):
        os.mkdir(self.folder + "/inputs")
        self.write("inputs/a.txt", "one")
        link = self.folder + "/inputs/b.txt"
        os.symlink("gone.txt", link)
        # A kind of file that is not read from a folder.
        os.symlink("gone.png", self.folder + "/inputs/c.png")
        for name in (link, self.folder + "/inputs", self.folder + "/inputs/*.txt"):
            self.assertEqual(self.refusal(name), (4, f"prepare_data: error: {link}: is a link to "
                                                     "gone.txt, and there is no such file\n"), name)

    def test_unusable_inputs_are_refused_by_name(self):
        folder = self.folder
        cases = [
            ((folder + "/none.txt",), 4, f"{folder}/none.txt: no such file"),
            ((self.write("bad.txt", b"ab\xff"),), 4,
             f"{folder}/bad.txt: byte 2 is not utf-8; name the file's encoding with --encoding, "
             "such as latin-1"),
            ((self.write("e.txt", "\n"),), 4, "the input holds no text"),
            ((self.write("j.jsonl", '{"text": "a"}\n{"text": }'),), 4,
             f"{folder}/j.jsonl:2: column 10: Expecting value\n"
             "  correct this, or leave it out with --skip-bad"),
            ((self.write("k.jsonl", "[1]"),), 4, f"{folder}/k.jsonl: is a JSON array, where each "
                                                 "line should be an object; rename it to .json"),
            ((self.write("l.jsonl", '{"words": "a"}'),), 4,
             f'{folder}/l.jsonl:1: has none of "messages", "conversations", "prompt", '
             '"instruction" or "text"; its keys are words'),
            ((self.write("m.jsonl", '{"prompt": "a"}'),), 4,
             f'{folder}/m.jsonl:1: has no text "response"'),
            ((self.write("n.jsonl", '{"messages": []}'),), 4,
             f'{folder}/n.jsonl:1: "messages" must be a list of at least one message'),
            ((self.write("o.jsonl", '{"messages": [{"role": "user"}]}'),), 4,
             f'{folder}/o.jsonl:1: message 1 needs the texts "role" and "content"'),
            ((self.write("p.jsonl", '{"messages": [{"role": "cat", "content": "x"}]}'),), 4,
             f"{folder}/p.jsonl:1: message 1: role 'cat', expected one of human, user, gpt, "
             "assistant, chatgpt, bot, model, system, developer, tool, observation, "
             "function_response, function_call"),
            ((self.write("q.jsonl", '{"messages": [{"role": "user", "content": "x"}]}'),), 4,
             f"{folder}/q.jsonl:1: has no assistant message to train on"),
            ((self.write("r.txt", "one"), "--validation-every", "5"), 4,
             "--validation-every 5 leaves no document for validation; use a smaller number"),
        ]
        for arguments, code, message in cases:
            with self.subTest(message):
                self.assertEqual(self.refusal(*arguments),
                                 (code, f"prepare_data: error: {message}\n"))

    def test_a_json_file_may_be_an_array_of_objects_or_one_object_per_line(self):
        lines = [{"instruction": "p", "input": "i", "output": "c"},
                 {"system": "s", "conversations": [{"from": "human", "value": "p"},
                                                   {"from": "gpt", "value": "c"}]},
                 {"text": "t"}]
        expected = ["<|im_start|>user\np\n\ni<|im_end|>\n<|im_start|>assistant\n[c<|im_end|>\n]",
                    "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\np<|im_end|>\n"
                    "<|im_start|>assistant\n[c<|im_end|>\n]", "[t<|end|>]"]
        by_line = "\n".join(map(json.dumps, lines))
        for name, content in (("a.json", json.dumps(lines, indent=2)), ("b.json", by_line),
                              ("c.JSON", by_line),
                              ("d.jsonl", by_line),
                              ("e.json", b"\xef\xbb\xbf" + json.dumps(lines).encode())):
            with self.subTest(name):
                self.prepare(self.write(name, content))
                self.assertEqual([self.trained_text(d) for d in read_pair(self.out + "/train")],
                                 expected)
        self.prepare(self.write("one.json", '{"text":\n"t"}'))
        self.assertEqual([self.trained_text(d) for d in read_pair(self.out + "/train")],
                         ["[t<|end|>]"])

    def test_json_that_is_not_an_array_of_objects_or_one_object_per_line_is_refused(self):
        tail = "; a .json file must hold an array of objects, or one object per line"
        for content, message in (
                ('[{"text": "a"},\n {"text": ', ":2: column 11: Expecting value, but the text "
                                                f"ends here{tail}"),
                ("some words\n", f":1: column 1: Expecting value{tail}"),
                ('"words"', f": {tail[2:]}; found str"),
                ('[1]', ": item 1: expected an object, found int"),
                (b'["\xff"]', ": byte 2 is not utf-8; name the file's encoding with --encoding, "
                              "such as latin-1")):
            with self.subTest(message):
                path = self.write("a.json", content)
                self.assertEqual(self.refusal(path), (4, f"prepare_data: error: {path}{message}\n"))

    def test_files_of_unknown_kinds_need_an_option(self):
        path = self.write("a.csv", "b,c")
        self.assertEqual(self.refusal(path),
                         (4, f"prepare_data: error: {path}: .txt, .text, .md, .jsonl, .json, "
                             ".parquet and .arrow files are read (also .gz and .zst of them); "
                             "--as-text reads any other file as plain text\n"))
        self.prepare(path, "--as-text")
        self.assertEqual(self.trained_text(read_pair(self.out + "/train")[0]), "[b,c<|end|>]")

    def test_all_bad_lines_are_named_at_once(self):
        path = self.write("c.jsonl", '{"text": "a",\n{"text": "b"}\n[1]\n{"text": "\\ud800"}\n'
                                     '{"text":\n{"text": "b\r\n')
        self.assertEqual(self.refusal(path), (4, (
            "prepare_data: error: 5 of the 6 documents read cannot be used:\n"
            f"  {path}:1: column 14: Expecting property name enclosed in double quotes, but the "
            f"text ends here\n  {path}:3: expected an object, found list\n"
            f"  {path}:4: half a surrogate pair (\\ud800) in the text\n"
            f"  {path}:5: column 9: Expecting value, but the text ends here\n"
            f"  {path}:6: column 10: the string that begins here has no end\n"
            "  correct this, or leave it out with --skip-bad\n")))
        many = self.write("m.jsonl", '{"text": "b"}\n' + "[1]\n" * 30)
        code, err = self.refusal(many)
        self.assertEqual((code, err.splitlines()[0], len(err.splitlines())),
                         (4, "prepare_data: error: 30 of the 31 documents read cannot be used; the "
                             "first 20:", 22))

    def test_bad_lines_can_be_left_out(self):
        path = self.write("c.jsonl", '{"text": "a"}\n' + "[1]\n" * 7 + '{"text": "b"}\n{"te')
        for workers in ("1", "2"):
            out = self.prepare(path, "--skip-bad", "--force", "--workers", workers)
            self.assertEqual(out.splitlines()[:7], [
                "warning: left out 8 of 10 documents (--skip-bad):",
                *(f"  {path}:{n}: expected an object, found list" for n in range(2, 7)),
                "  and 3 more"])
            self.assertEqual([self.trained_text(d) for d in read_pair(self.out + "/train")],
                             ["[a<|end|>]", "[b<|end|>]"])
        code, _, err = self.run_script(path)
        self.assertEqual((code, err.splitlines()[0]),
                         (4, "prepare_data: error: 8 of the 10 documents read cannot be used:"))
        code, _, err = self.run_script(self.write("d.jsonl", "1"), "--skip-bad")
        self.assertEqual((code, err), (4, f"prepare_data: error: {self.folder}/d.jsonl:1: expected "
                                          "an object, found int\n"))

    def chat(self, *messages):
        return self.write("c.jsonl", json.dumps({"messages": messages}))

    def test_content_may_be_a_list_of_texts(self):
        user = {"role": "user", "content": [{"type": "text", "text": "p"},
                                            {"type": "text", "text": "q"}]}
        self.prepare(self.chat(user,
                               {"role": "assistant", "content": [{"type": "text", "text": "c"}]}))
        self.assertEqual(self.trained_text(read_pair(self.out + "/train")[0]),
                         "<|im_start|>user\npq<|im_end|>\n<|im_start|>assistant\n[c<|im_end|>\n]")
        shutil.rmtree(self.out)
        for part, kind in (({"type": "image_url"}, "image_url"), ("x", "str")):
            path = self.chat({"role": "user", "content": [part]},
                             {"role": "assistant", "content": "c"})
            self.assertEqual(self.refusal(path),
                             (4, f"prepare_data: error: {path}:1: a part of type '{kind}' in a "
                                 "message's content; "
                                 'expected {"type": "text", "text": "..."}\n'))

    def test_tools_are_accepted_if_the_template_renders_them(self):
        messages = [{"role": "user", "content": "p"},
                    {"role": "assistant", "content": None,
                     "tool_calls": [{"type": "function",
                                     "function": {"name": "f", "arguments": {}}}]},
                    {"role": "tool", "content": "r"}, {"role": "assistant", "content": "c"}]
        calls = TEMPLATE.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m.tool_calls | tojson "
                                                       "if m.tool_calls }}")
        write_tokenizer(self.model, calls)
        self.prepare(self.chat(*messages))
        self.assertEqual(self.trained_text(read_pair(self.out + "/train")[0]),
                         "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n[[{\"type\": "
                         "\"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                         "{}}}]<|im_end|>\n]<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n"
                         "[c<|im_end|>\n]")
        shutil.rmtree(self.out)
        skips = TEMPLATE.replace("in messages %}", "in messages if m.role != 'tool' %}")
        for template, left_out in ((TEMPLATE, "tool_calls"), (skips, "messages of the role tool")):
            write_tokenizer(self.model, template)
            path = self.chat(*(messages if template is TEMPLATE else messages[:1] + messages[2:]))
            self.assertEqual(self.refusal(path),
                             (4, f"prepare_data: error: {path}:1: this chat template leaves out "
                                 f"{left_out}\n"))

    def test_the_summary_has_lengths_and_counts_of_samples_that_are_left_out(self):
        lines = [{"prompt": "p", "completion": "c" * n}
                 for n in (600, 1)] + [{"prompt": "pp", "completion": ""}]
        out = self.prepare(self.write("c.jsonl", "\n".join(map(json.dumps, lines))), "--plain")
        self.assertIn("  samples of 3 to 602 tokens, mean 203; too long for one sequence: 33.3% "
                      "at 512, 0.0% at 1024, 0.0% at 2048, 0.0% at 4096\n", out)
        self.assertNotIn("are left out", out)
        out = self.prepare(self.write("d.jsonl", '{"text": "ab"}\n{"text": ""}'))
        self.assertIn("  warning: 1 of 2 samples have no token that is trained on; unless "
                      "packing is concat, they are left out\n", out)

    def test_wrong_arguments_are_explained(self):
        for arguments, message in (
                ((), "name input files, or --shakespeare"),
                (("x", "--shakespeare"), "name input files, or --shakespeare"),
                (("x", "--workers", "0"), "--workers must be at least 1"),
                (("x", "--validation-every", "1"), "--validation-every must be 0 (none) or at "
                                                   "least 2"),
                (("x", "--encoding", "klingon"),
                 "--encoding klingon is unknown; utf-8 and latin-1 are the usual ones")):
            with self.subTest(message):
                code, err = self.refusal(*arguments)
                self.assertEqual((code, err.splitlines()[-1].split("error: ")[1]), (2, message))

    def test_tokenizers_without_the_necessary_tokens_or_files_are_refused(self):
        path = self.write("a.txt", "z")
        os.remove(self.model + "/tokenizer_config.json")
        self.assertEqual(self.refusal(path),
                         (4, f"prepare_data: error: {self.model}: names no eos token "
                             "(tokenizer_config.json: eos_token)\n"))
        os.remove(self.model + "/tokenizer.json")
        self.assertEqual(self.refusal(path),
                         (4, f"prepare_data: error: {self.model}: holds no tokenizer.json; name a "
                             "model folder that has one\n"))
        write_tokenizer(self.model, vocab_size=20)
        code, err = self.refusal(path)
        self.assertEqual(code, 4)
        self.assertRegex(err, r"a\.txt: the tokenizer gives id \d+, "
                              r"outside the model's vocabulary of 20 ids")

    def test_templates_that_rewrite_or_refuse_are_reported(self):
        chat = self.write("c.jsonl", '{"messages": [{"role": "user", "content": "a"}, '
                                     '{"role": "assistant", "content": "b"}, {"role": "user", '
                                     '"content": "c"}]}')
        write_tokenizer(self.model, "{{ messages | length }}" + TEMPLATE)
        self.assertEqual(self.refusal(chat),
                         (4, f"prepare_data: error: {chat}:1: the chat template changes earlier "
                             "messages when message 2 follows, so the model would be trained on "
                             "text that no server produces: after '' a server has "
                             "'1<|im_start|>user\\na<|im_end|>\\n<|im_start…', the chat "
                             "'2<|im_start|>user\\na<|im_end|>\\n<|im_start…'; use --train-on all "
                             "or --plain\n"))
        self.prepare(chat, "--train-on-prompts")
        self.assertTrue(read_pair(self.out + "/train")[0][1].all())
        shutil.rmtree(self.out)
        write_tokenizer(self.model, "{{ raise_exception('no') }}")
        self.assertEqual(self.refusal(chat), (4, f"prepare_data: error: {chat}:1: the chat "
                                                 "template refuses the chat: no\n"))
        write_tokenizer(self.model, "{% for m in messages %}{{ m.missing.deeper }}{% endfor %}")
        self.assertEqual(self.refusal(chat),
                         (4, f"prepare_data: error: {chat}:1: the chat template fails in its line "
                             "1: 'dict object' has no attribute 'missing'\n"))
        write_tokenizer(self.model, None)
        self.assertEqual(self.refusal(chat),
                         (4, f"prepare_data: error: {chat}:1: {self.model} has no chat template, "
                             "so messages cannot be converted to text; name the folder of the chat "
                             "model, put its chat_template.jinja into this one, or use prompt and "
                             "completion\n"))

    WIDE = (("utf-16", b"\xff\xfe", "utf-16-le", "UTF-16 (little-endian, by its byte order mark)"),
            ("utf-16", b"\xfe\xff", "utf-16-be", "UTF-16 (big-endian, by its byte order mark)"),
            ("utf-16-le", b"", "utf-16-le", "UTF-16 (little-endian, without a byte order mark)"),
            ("utf-16-be", b"", "utf-16-be", "UTF-16 (big-endian, without a byte order mark)"),
            ("utf-32", b"\xff\xfe\0\0", "utf-32-le",
             "UTF-32 (little-endian, by its byte order mark)"),
            ("utf-32-be", b"", "utf-32-be", "UTF-32 (big-endian, without a byte order mark)"))

    def test_texts_in_utf_16_and_utf_32_are_named_and_read_in_every_format(self):
        row = '{"text": "Hej å ü"}'
        for name, text in (("a.txt", "Hej å ü"), ("a.jsonl", f"{row}\r\n"), ("a.json", f"[{row}]"),
                           ("b.json", f"{row}\n"), ("c.data", f"[{row}]")):
            for option, mark, codec, named in self.WIDE:
                path = self.write(name, mark + text.encode(codec))
                with self.subTest(name=name, named=named):
                    shutil.rmtree(self.out, ignore_errors=True)
                    self.assertEqual(self.refusal(path),
                                     (4, f"prepare_data: error: {path}: is {named}, expected "
                                         f"utf-8; give --encoding {option}\n"))
                    self.assertEqual(self.refusal(path, "--encoding", "latin-1")[0], 4)
                    self.prepare(path, "--encoding", option)
                    self.assertEqual(self.text_of(read_pair(self.out + "/train")[0][0][:-1]).encode(
                        "utf-8", "replace"),
                                     self.text_of(self.tokenizer.encode("Hej å ü").ids).encode(
                                         "utf-8", "replace"))

    def test_utf_16_that_was_appended_to_a_utf_8_file_is_reported_with_its_line(self):
        row = '{"text": "ab"}\r\n'
        for name, line in (("a.jsonl", 201), ("a.txt", 201)):
            path = self.write(name, row.encode() * 200 + row.encode("utf-16-le"))
            code, err = self.refusal(path)
            self.assertEqual((code,
                              err.splitlines()[0 if name == "a.txt"
                                               else 1].split("error: ")[-1].strip()),
                             (4, f"{path}:{line}: holds NUL bytes, which no text has; if UTF-16 "
                                 "was appended to a UTF-8 file, convert the whole file to UTF-8"))

    def test_a_byte_order_mark_is_not_part_of_the_text(self):
        for name, content in (("a.txt", "\ufeffab"),
                              ("a.jsonl", '\ufeff{"text": "ab"}\n\ufeff{"text": "ab"}\n'),
                              ("a.json", '\ufeff[{"text": "ab"}]'),
                              ("b.json", '\ufeff{"text": "ab"}\n\ufeff{"text": "ab"}\n')):
            for encoding in ("utf-8", "utf-8-sig"):
                self.prepare(self.write(name, content), "--encoding", encoding, "--force")
                self.assertEqual({self.trained_text(d) for d in read_pair(self.out + "/train")},
                                 {"[ab<|end|>]"})

    def test_an_encoding_option_applies_to_every_format_or_is_refused(self):
        latin = [self.write("a.jsonl", '{"text": "å"}'.encode("latin-1")),
                 self.write("a.json", '[{"text": "å"}]'.encode("latin-1")),
                 self.write("a.txt", "å".encode("latin-1"))]
        for path in latin:
            self.assertIn("with --encoding, such as latin-1", self.refusal(path)[1])
        self.prepare(*latin, "--encoding", "latin-1")
        one = list(self.tokenizer.encode("å").ids)
        self.assertEqual([list(ids[:-1]) for ids, _ in read_pair(self.out + "/train")], [one] * 3)
        shutil.rmtree(self.out)
        for content, encoding, message in (
                (b"\xef\xbb\xbfab", "latin-1", "is UTF-8 (by its byte order mark), expected "
                                               "latin-1; leave out --encoding latin-1"),
                (b"\xff\xfea\0", "utf-16-be", "is UTF-16 (little-endian, by its byte order "
                                              "mark), expected utf-16-be; give --encoding utf-16"),
                (b"\0a\0b", "utf-16", "is UTF-16 (big-endian, without a byte order mark), "
                                      "expected utf-16; give --encoding utf-16-be"),
                (b"abcd", "utf-16", "is UTF-8 or ASCII, not UTF-16; leave out --encoding "
                                    "utf-16"),
                (b"\x80\x81\xfe", "shift-jis", "byte 0 is not shift-jis; name the file's encoding "
                                               "with --encoding, such as latin-1")):
            path = self.write("b.txt", content)
            self.assertEqual(self.refusal(path, "--encoding", encoding),
                             (4, f"prepare_data: error: {path}: {message}\n"))
        bad = self.write("c.jsonl", '{"text": "a"}\n'.encode("utf-16") + b"\0")
        self.assertEqual(self.refusal(bad, "--encoding", "utf-16"),
                         (4, f"prepare_data: error: {bad}: the text after line 1 is not utf-16; "
                             "name the file's encoding with --encoding\n"))

    POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"

    def test_git_lfs_pointers_are_refused_with_the_command_that_downloads_the_file(self):
        good = self.write("a.txt", "ab")
        for name in ("my b.jsonl", "b.parquet", "b.txt", "b.json.gz", "model/config.json",
                     "model/chat_template.jinja", "model/tokenizer.json"):
            path = self.write(name, self.POINTER)
            given = good if name.startswith("model") else path
            with self.subTest(name):
                self.assertEqual(self.refusal(given), (4, (
                    f"prepare_data: error: {path}: is a pointer of Git LFS, and the file itself "
                    f"was not fetched; fetch it: git -C {os.path.dirname(path)} lfs pull --include "
                    f"{shlex.quote(os.path.basename(path))}\n")))
            os.remove(path)
            write_tokenizer(self.model)

    def test_a_chat_template_that_is_not_plain_utf_8_is_refused(self):
        good = self.write("a.jsonl", '{"prompt": "p", "completion": "c"}')
        for content, message in ((TEMPLATE.encode("utf-16"),
                                  "is UTF-16, expected UTF-8; convert it to UTF-8"),
                                 (b"\xef\xbb\xbf" + TEMPLATE.encode(),
                                  "begins with the byte order mark of UTF-8, which transformers "
                                  "reads as text; write the file without it")):
            path = self.write("model/chat_template.jinja", content)
            self.assertEqual(self.refusal(good), (4, f"prepare_data: error: {path}: {message}\n"))

    def test_a_snapshot_of_a_data_set_gives_its_training_split(self):
        row = '{"text": "%s"}\n'
        for name in ("train-00000-of-00001.jsonl", "data/test.jsonl", "validation/part-1.jsonl",
                     "data/dev_0.jsonl", "more.jsonl", "contest.jsonl"):
            os.makedirs(os.path.dirname(f"{self.folder}/snap/{name}"), exist_ok=True)
            self.write(f"snap/{name}", row % name)
        for name in ("README.md", "LICENSE.txt", "LICENSE", "table.csv"):
            self.write(f"snap/{name}", "---\nlicense: mit\n---\n")
        snap = self.folder + "/snap"
        out = self.prepare(snap)
        self.assertEqual([self.trained_text(d) for d in read_pair(self.out + "/train")],
                         [f"[{name}<|end|>]" for name in ("contest.jsonl", "more.jsonl",
                                                          "train-00000-of-00001.jsonl")])
        told = [f"{snap}: its validation files are left out: data/dev_0.jsonl, "
                "validation/part-1.jsonl",
                f"{snap}: its test files are left out: data/test.jsonl",
                f"{snap}: cards and licenses are left out: LICENSE, LICENSE.txt, README.md",
                f"{snap}: files of other kinds are left out unless they are named: table.csv"]
        self.assertIn("".join(f"  {line}\n" for line in told), out)
        page = pathlib.Path(self.out, "train.html").read_text()
        for line in told:
            self.assertIn(f"<p>{line}", page)
        shutil.rmtree(self.out)
        self.assertEqual(self.refusal(snap + "/validation", snap + "/data"),
                         (4, f"prepare_data: error: {snap}/data: holds validation and test files "
                             "only; name the files to train on\n"))
        self.prepare(snap + "/data/test.jsonl", snap + "/README.md")  # named files are read

    def test_unusable_shared_memory_is_reported(self):
        path = self.write("a.txt", "ab")
        with mock.patch("concurrent.futures.ProcessPoolExecutor",
                        side_effect=OSError(errno.EROFS, "Read-only file system")):
            code, _, err = self.run_script(path, "--workers", "2")
        self.assertEqual((code, err), (5, "prepare_data: error: /dev/shm: Read-only file system: "
                                          "the tokenizing processes need a few bytes there; make "
                                          "the folder writable and free some space in it, or "
                                          "tokenize in this process with --workers 1\n"))

    def test_a_full_disk_is_named_with_its_folder(self):
        path = self.write("a.txt", "ab")
        with mock.patch("training_data.token_files.sync",
                        side_effect=OSError(errno.ENOSPC, "No space left on device")):
            code, _, err = self.run_script(path)
        self.assertEqual((code, err), (5, f"prepare_data: error: {self.out}: No space left on "
                                          "device; free some space there, or name a place on "
                                          "another disk\n"))
        self.assertEqual(os.listdir(self.out), [])

    def test_output_streams_may_have_any_encoding_or_be_closed(self):
        path = self.write("größe.jsonl", '{"prompt": "é \U0001f600", "completion": "日本"}'.encode())
        command = [sys.executable, str(ROOT / "scripts/prepare_data.py"), "--tokenizer", self.model,
                   "--workers", "1", path, "--out"]
        plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        reader, writer = os.pipe()
        os.close(reader)
        latin = {"PYTHONIOENCODING": "latin-1:strict"}
        found = []
        for name, settings, closed in (("ascii", plain, {}), ("latin", latin, {"stdout": writer})):
            done = subprocess.run([*command, f"{self.folder}/ö {name}"],
                                  env={**os.environ, **settings}, stderr=subprocess.PIPE,
                                  **({"stdout": subprocess.PIPE} | closed))
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            found.append(pathlib.Path(self.folder, f"ö {name}", "train.bin").read_bytes())
            self.assertIn("größe.jsonl:1", pathlib.Path(self.folder, f"ö {name}",
                                                        "train.html").read_text(encoding="utf-8"))
            if name == "ascii":
                self.assertIn(b"gr\\xf6\\xdfe.jsonl", done.stdout)
        os.close(writer)
        self.assertEqual(found[1], found[0])

    def test_an_input_that_is_a_pipe_is_refused(self):
        pipe = os.path.join(self.folder, "pipe.jsonl")
        os.mkfifo(pipe)
        self.assertEqual(self.refusal(pipe), (4, f"prepare_data: error: {pipe}: is a pipe or a "
                                                 "device, which can be read only once; write it to "
                                                 "a file first\n"))

    def test_a_validation_set_of_an_earlier_run_is_not_trained_on(self):
        path = self.write("v.jsonl", "".join(f'{{"text": "text {i}"}}\n' for i in range(6)))
        self.prepare(path, "--validation-every", "2")
        code, _, err = self.run_script(path)
        self.assertEqual((code, err), (4, f"prepare_data: error: {self.out}/validation.bin: was "
                                          "split off by an earlier --validation-every, and its "
                                          "samples would now be in train as well; give "
                                          "--validation-every again, choose another --out, or move "
                                          "the file away\n"))

    def test_an_invalid_tokenizer_is_named(self):
        path = os.path.join(self.model, "tokenizer.json")
        pathlib.Path(path).write_text("version https://git-lfs")
        code, err = self.refusal(self.write("t.txt", "hello"))
        self.assertEqual(code, 4)
        self.assertTrue(err.startswith(f"prepare_data: error: {path}: cannot be read as a "
                                       "tokenizer: "), err)

    def test_a_run_that_fails_keeps_the_files_of_the_previous_run(self):
        good = self.write("a.txt", "hello")
        self.prepare(good)
        before = {n: pathlib.Path(self.out, n).read_bytes() for n in os.listdir(self.out)}
        code, _, _ = self.run_script(good, self.write("bad.jsonl", "{"))
        self.assertEqual(code, 4)
        self.assertEqual({n: pathlib.Path(self.out, n).read_bytes() for n in os.listdir(self.out)},
                         before)

    def test_a_python_without_the_packages_starts_the_scripts_venv(self):
        """-S hides site-packages; a copy of the repository has the .venv, or has none."""
        root = pathlib.Path(self.folder, "root")
        shutil.copytree(ROOT / "scripts", root / "scripts")
        python = os.path.realpath(sys.executable)
        for script, packages in (("prepare_data", "numpy, xxhash, tokenizers, jinja2, "
                                                  "transformers"),
                                 ("make_model", "numpy, gguf, tokenizers, xxhash"),
                                 ("import_checkpoint", "numpy, xxhash")):
            command = [python, "-S", "-E", str(root / "scripts" / f"{script}.py"), "--help"]
            shutil.rmtree(root / ".venv", ignore_errors=True)
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr),
                             (5, "", f"{script}: error: the Python packages {packages} are "
                                     "missing; run scripts/setup.sh\n"))
            (root / ".venv/bin").mkdir(parents=True)
            (root / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            (root / ".venv/bin/python").chmod(0o755)
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout.split()[:2], done.stderr),
                             (0, ["usage:", f"{script}.py"], ""))

    def test_the_scripts_import_neither_torch_nor_transformers(self):
        code = ("import sys; sys.path.insert(0, sys.argv[1]); import prepare_data, make_model; "
                "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)")
        self.assertEqual(subprocess.run([sys.executable, "-c", code,
                                         str(ROOT / "scripts")]).returncode, 0)

    def test_the_progress_line_has_share_rate_and_time_left(self):
        progress = prepare_data.Progress(4_000_000, io.StringIO())
        progress.begin -= 2
        progress.add(1_000_000, 500_000, 3)
        line = progress.line(progress.begin + 2)
        self.assertEqual(line, "[######..................]  25%  3 documents, 0.50 M tokens  0.5 "
                               "MB/s  6 s left")


class ScriptEnds(unittest.TestCase):
    """Every script ends with one line and an exit code, wherever its output goes and whichever
    operation fails."""

    def run_code(self, code, **options):
        start = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import script_errors\n"
        return subprocess.run([sys.executable, "-S", "-c", start + code],
                              capture_output="stdout" not in options, text=True, **options)

    def test_failures_are_printed_as_one_line_with_the_file_and_a_remedy(self):
        for error, line, code in (
                ("PermissionError(13, 'Permission denied', '/a/b')",
                 "error: /a/b: Permission denied; see the permissions of the file and of its "
                 "folders, or name another place", 5),
                ("OSError(28, 'No space left on device')", "error: No space left on device; free "
                                                           "some space there, or name a place on "
                                                           "another disk", 5),
                ("MemoryError()", "error: out of memory; more memory is needed: end other "
                                  "programs, or see ulimit -v", 5),
                ("ImportError('libx.so: not found')", "error: libx.so: not found; run "
                                                      "scripts/setup.sh, which installs the "
                                                      "packages again", 5),
                ("KeyboardInterrupt()", "stopped", 130),
                ("script_errors.UserError('no')", "error: no", 4),
                ("ValueError('odd\\nmore')", "error: a defect of this script: ValueError: odd; "
                                             "please report it with the output of --debug", 1)):
            for way in (f"def work(): raise {error}\nsys.exit(script_errors.run('name', work))",
                        f"script_errors.install_excepthook('name')\nraise {error}"):
                done = self.run_code(way)
                self.assertEqual((done.returncode, done.stdout, done.stderr),
                                 (code, "", f"name: {line}\n"), way)
        for way in ("def work(): raise MemoryError\nsys.exit(script_errors.run('name', work))",
                    "script_errors.install_excepthook('name')\nraise MemoryError"):
            done = self.run_code(f"sys.argv = ['x', '--debug']\n{way}")
            self.assertTrue(done.stderr.startswith("Traceback"), done.stderr)
            self.assertTrue(done.stderr.endswith("\nname: error: out of memory; more memory is "
                                                 "needed: end other programs, or see ulimit -v\n"),
                            done.stderr)
            self.assertEqual(done.returncode, 5)

    def test_a_script_whose_output_streams_are_closed_or_full_still_ends(self):
        work = ("def work():\n  print('x' * 100000, flush=True)\n  print('y')\n  open('done', "
                "'w').write('z')\nsys.exit(script_errors.run('name', work))")
        with tempfile.TemporaryDirectory() as folder:
            for number, (closed, told) in enumerate(((">&-", ""), (">&- 2>&-", ""),
                                                     ("<&- >&- 2>&-", ""),
                                                     ("| head -c 1 > /dev/null", ""),
                                                    ("> /dev/full", "name: warning: a part of the "
                                                     "output could not be written: [Errno 28] No "
                                                     "space left on device\n"))):
                script = pathlib.Path(folder, f"{number}.py")
                script.write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); "
                                  f"import script_errors\n{work}")
                done = subprocess.run(["bash", "-o", "pipefail", "-c",
                                       f"{sys.executable} -S {script} {closed}"], cwd=folder,
                                      capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, told), closed)
                self.assertEqual(pathlib.Path(folder, "done").read_text(), "z", closed)
                os.remove(pathlib.Path(folder, "done"))


if __name__ == "__main__":
    unittest.main()
