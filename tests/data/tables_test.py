"""Tests of tables and compressed files that need packages: Parquet, Arrow, folders that `datasets`
saved, zstd."""
import importlib.util
import json
import os
import pathlib
import sys
import unittest

MISSING = [name for name in ("pyarrow", "zstandard") if importlib.util.find_spec(name) is None]
if MISSING:
    print(f"skipped: the Python packages {', '.join(MISSING)} are not installed")
    sys.exit(77)

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import zstandard

from chats_test import CHATML, Case, assistant, user


class Tables(Case):
    EXPECTED = "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n[c<|im_end|>]\n"

    def setUp(self):
        super().setUp()
        self.use(CHATML)
        self.rows = [{"messages": [user("p"), assistant("c")], "n": n} for n in range(600)]
        self.table = pyarrow.Table.from_pylist(self.rows)

    def save_stream(self, path, table):
        with pyarrow.OSFile(path,
                            "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)

    def dataset_folder(self, folder):
        """Writes a Dataset in two files, as save_to_disk() of the package `datasets` does."""
        os.makedirs(folder)
        names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
        for name, begin in zip(names, (0, 300)):
            self.save_stream(f"{folder}/{name}", self.table.slice(begin, 300))
        state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0",
                 "_split": None}
        pathlib.Path(folder, "state.json").write_text(json.dumps(state))
        pathlib.Path(folder, "dataset_info.json").write_text("{}")
        return folder

    def test_every_kind_of_table_gives_the_same_chats(self):
        pyarrow.parquet.write_table(self.table, self.folder + "/a.parquet")
        pyarrow.parquet.write_table(self.table, self.folder + "/b")  # recognized by its content
        pyarrow.feather.write_feather(self.table, self.folder + "/c.feather")
        self.save_stream(self.folder + "/d.arrow", self.table)
        self.write("e.jsonl.zst",
                   zstandard.compress("".join(json.dumps(r) + "\n" for r in self.rows).encode()))
        both = self.folder + "/splits"
        self.dataset_folder(both + "/train")
        pathlib.Path(both, "dataset_dict.json").write_text('{"splits": ["train"]}')
        for name in ("a.parquet", "b", "c.feather", "d.arrow", "e.jsonl.zst", "splits",
                     "splits/train"):
            with self.subTest(name):
                self.assertIn("600 chats (messages)" if "split" not in name
                              else "300 chats (messages)",
                              self.prepare(f"{self.folder}/{name}"))
                self.assertEqual(self.marked_samples(), [self.EXPECTED] * 600)

    def test_an_encoding_option_is_refused_for_a_table(self):
        path = self.folder + "/a.parquet"
        pyarrow.parquet.write_table(self.table, path)
        self.assertEqual(self.refusal(path, "--encoding", "latin-1"),
                         f"{path}: --encoding latin-1 applies only to text files; tables are "
                         "always UTF-8; prepare it without that option")
        self.prepare(path, "--encoding", "utf-8")

    def test_nulls_that_a_table_adds_are_not_passed_as_arguments(self):
        calls = [[{"function": {"name": "f", "arguments": {key: 1}}}] for key in "ab"]
        rows = [{"messages": [user("p"), assistant("", tool_calls=c)]} for c in calls]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.folder + "/a.parquet")
        self.use(CHATML.replace("m.content + '<|im_end|>\\n' }}",
                                "m.content }}{% for c in m.tool_calls or [] %}"
                                "{{ c.function.arguments | tojson }}{% endfor %}{{ '<|im_end|>\\n' "
                                "}}"))
        self.prepare(self.folder + "/a.parquet")
        self.assertEqual([s.split("assistant\n")[1] for s in self.marked_samples()],
                         [f'[{{"{key}": 1}}<|im_end|>]\n' for key in "ab"])

    def test_faults_of_a_table_are_reported_with_the_row(self):
        rows = [*self.rows[:300], {"messages": [user("p")], "n": 1}]
        path = self.folder + "/a.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        self.assertIn(f"{path}: row 301: has no assistant message to train on", self.refusal(path))
        content = pathlib.Path(path).read_bytes()
        pathlib.Path(path).write_bytes(content[:-30])
        self.assertRegex(self.refusal(path), f"^{path}: cannot be read as Parquet: ")
        both = self.folder + "/splits"
        self.dataset_folder(both + "/train")
        pathlib.Path(both, "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        self.assertEqual(self.refusal(both), f"{both}: holds the splits train, test; name one of "
                                             f"them, such as {both}/train")
        os.remove(both + "/train/data-00001-of-00002.arrow")
        self.assertEqual(self.refusal(both + "/train"), f"{both}/train/data-00001-of-00002.arrow: "
                                                        "is missing, though "
                                                        f"{both}/train/state.json lists it")
        compressed = self.write("b.jsonl.zst", zstandard.compress(b'{"text": "a"}\n' * 9)[:-4])
        self.assertRegex(self.refusal(compressed),
                         "b.jsonl.zst: cannot be decompressed: the last frame has no end; it is "
                         "damaged or was cut short")
        two = zstandard.compress(b'{"text": "a"}\n') + zstandard.compress(b'{"text": "b"}\n')
        self.prepare(self.write("c.jsonl.zst", two))
        self.assertEqual(self.marked_samples(), ["[a<|im_end|>]", "[b<|im_end|>]"])


if __name__ == "__main__":
    unittest.main()
