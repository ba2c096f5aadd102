"""Tests of scripts/training_data: chats of every shape, as the templates of model families lay them
out; which of their tokens are trained on; and what is reported and refused. Expected results are
written by hand, or made by transformers' own apply_chat_template."""
import collections
import contextlib
import copy
import gzip
import io
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import prepare_data  # noqa: E402
from prepare_data_test import read_pair  # noqa: E402
from script_errors import BadDocument  # noqa: E402
from training_data import fields  # noqa: E402
from training_data.encoding import Encoder  # noqa: E402
from training_data.records import Document  # noqa: E402

SPECIAL = ["<|end|>", "<s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>",
           "<start_of_turn>", "<end_of_turn>"]

CHATML = ("{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
          "'<|im_end|>\\n' }}{% endfor %}{%- if add_generation_prompt %}{{ "
          "'<|im_start|>assistant\\n' }}{% endif %}")
LLAMA3 = ("{{- bos_token }}{%- for m in messages %}"
          "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + "
          "'<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}"
          "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}")
GEMMA = ("{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not "
         "supported') }}{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 "
         "% 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
         "user/assistant/user/assistant/...') }}{% endif %}{{ '<start_of_turn>' + ('model' if "
         "m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% "
         "endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}")
# A template that drops the reasoning of earlier answers; the last answer always has a reasoning
# block.
QWEN3 = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{%
    endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set content = m.content %}
        {%- set reasoning = m.reasoning_content or '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n'
                + content + '<|im_end|>\\n' }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MARKED = CHATML.replace(
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}",
    "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% generation %}{{ m.content "
    "}}{% endgeneration %}{{ '<|im_end|>\\n' }}{% else %}{{ '<|im_start|>' + m.role + '\\n' + "
    "m.content + '<|im_end|>\\n' }}{% endif %}")


def write_model(folder, template, eos="<|im_end|>", generation=None, **settings):
    """Writes a tokenizer of single bytes with the families' special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(SPECIAL + alphabet)},
                                     merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    files = {"config": {"vocab_size": 300}, "generation_config": generation or {},
             "tokenizer_config": {"eos_token": eos, "bos_token": "<s>",
                                  "tokenizer_class": "PreTrainedTokenizerFast",
                                  **({"chat_template": template} if template else {}), **settings}}
    for name, value in files.items():
        pathlib.Path(folder, f"{name}.json").write_text(json.dumps(value))
    return tokenizer


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


class Case(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = self._folder.name
        self.model, self.out = self.folder + "/model", self.folder + "/out"

    def use(self, template, **settings):
        self.tokenizer = write_model(self.model, template, **settings)

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        pathlib.Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def lines(self, name, objects):
        return self.write(name, "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects))

    def run_script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = prepare_data.main(["--tokenizer", self.model, "--out", self.out, "--workers",
                                          "1", *arguments])
            except SystemExit as stop:
                code = stop.code
        return code, out.getvalue(), err.getvalue()

    def prepare(self, *arguments):
        code, out, err = self.run_script(*arguments, "--force")
        self.assertEqual((code, err), (0, ""))
        return out

    def refusal(self, *arguments):
        code, _, err = self.run_script(*arguments)
        self.assertEqual(code, 4, err)
        self.assertFalse(os.path.exists(self.out) and os.listdir(self.out), "left files behind")
        return err.removeprefix("prepare_data: error: ").removesuffix("\n")

    def marked_samples(self, split="train"):
        """Returns the samples, with [ ] around the tokens that are trained on."""
        found = []
        for ids, trained in read_pair(f"{self.out}/{split}"):
            text, begin = "", 0
            for i in range(1, len(ids) + 1):
                if i == len(ids) or trained[i] != trained[begin]:
                    piece = self.tokenizer.decode([int(t) for t in ids[begin:i]],
                                                  skip_special_tokens=False)
                    text += f"[{piece}]" if trained[begin] else piece
                    begin = i
            found.append(text)
        return found

    def chats(self, *conversations, **more):
        return self.lines("c.jsonl", [{"messages": list(c), **more} for c in conversations])

    def samples_of(self, *messages, arguments=(), **more):
        self.prepare(self.chats(messages, **more), *arguments)
        return self.marked_samples()


class Templates(Case):
    TURNS = (user("q"), assistant("a"), user("r"), assistant("b"))

    def test_the_token_that_ends_an_answer_is_trained_on_and_nothing_after_it(self):
        self.use(CHATML)
        self.assertEqual(self.samples_of(*self.TURNS), [
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
            "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"])
        self.use(LLAMA3, eos="<|end|>", generation={"eos_token_id": [0, 6]})
        self.assertEqual(self.samples_of(*self.TURNS[:2]), [
            "<s><|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[a<|eot_id|>]"])
        self.use(GEMMA, eos="<|end|>", generation={"eos_token_id": [0, 8]})
        self.assertEqual(self.samples_of(*self.TURNS[:2]),
                         ["<s><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\n"
                          "[a<end_of_turn>]\n"])

    def test_an_answer_end_that_is_no_end_token_of_the_model_is_reported_and_recorded(self):
        """A model would learn to end its answers with this token, and a server would not stop
        there."""
        self.use(GEMMA, eos="<|end|>")
        out = self.prepare(self.chats(self.TURNS))
        self.assertIn("  warning: 2 of 2 answers end with <end_of_turn> (id 8), which is none of "
                      "the model's end tokens (<|end|>), so a server would not stop there; add the "
                      "id to eos_token_id in generation_config.json\n", out)
        self.assertEqual(self.read_sidecar()["turn_ends"], [8])
        self.use("{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}")
        out = self.prepare(self.chats(self.TURNS))
        self.assertIn("2 of 2 answers end without a special token (the first: " + self.folder
                      + "/c.jsonl:1), so a model learns "
                      "from them not to stop; its end tokens are <|im_end|>\n", out)
        self.use(CHATML)
        self.assertNotIn("warning", self.prepare(self.chats(self.TURNS)))
        self.assertEqual(self.read_sidecar()["turn_ends"], [3])

    def read_sidecar(self):
        return json.loads(pathlib.Path(self.out, "train.json").read_text())

    def test_an_end_token_that_is_also_the_pad_token_is_trained_on(self):
        self.use(CHATML, pad_token="<|im_end|>")
        self.assertTrue(self.samples_of(*self.TURNS)[0].endswith("[b<|im_end|>]\n"))

    def test_a_template_that_rewrites_history_gives_a_sample_for_each_answer(self):
        """The first answer's reasoning is dropped from the history, so each answer needs a separate
        sample."""
        self.use(QWEN3)
        turns = (user("a"), assistant("<think>\nr1\n</think>\n\nb"), user("c"), assistant("d"))
        out = self.prepare(self.chats(turns))
        self.assertEqual(self.marked_samples(), [
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[<think>\nr1\n</think>\n\n"
            "b<|im_end|>]\n",
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n"
            "c<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\nd<|im_end|>]\n"])
        self.assertIn("1 chats were split into one sample per answer", out)
        # The reasoning may also be in a separate key, as servers return it.
        self.prepare(self.chats((user("a"), assistant("b", reasoning_content="r1"), user("c"),
                                 assistant("d"))))
        self.assertIn("[<think>\nr1\n</think>\n\nb<|im_end|>]", self.marked_samples()[0])

    def test_every_prompt_is_what_a_server_renders(self):
        from transformers import AutoTokenizer

        turns = (user("né 漢"), assistant("<think>\nx\n</think>\n\nyes"), user("and?"),
                 assistant("42\n"))
        for template in (CHATML, LLAMA3, GEMMA, QWEN3, MARKED):
            self.use(template)
            self.prepare(self.chats(turns))
            server = AutoTokenizer.from_pretrained(self.model)
            prompts = [server.apply_chat_template(list(turns[:k]), add_generation_prompt=True,
                                                  return_dict=False)
                       for k in (1, 3)]
            samples = read_pair(self.out + "/train")
            begins = [(ids, int(i)) for ids, trained in samples
                      for i in np.flatnonzero(np.diff(trained.astype(int)) == 1) + 1]
            self.assertEqual([list(ids[:i]) for ids, i in begins], prompts, template)

    def test_generation_blocks_of_the_template_limit_what_is_trained_on(self):
        self.use(MARKED)
        self.assertEqual(self.samples_of(*self.TURNS), [
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
            "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"])
        self.use(MARKED.replace("{% generation %}{{ m.content }}",
                                "{{ m.content[:1] }}{% generation %}{{ m.content[1:] }}"))
        self.assertEqual(self.samples_of(user("q"), assistant("abc"))[0][-18:],
                         "t\na[bc<|im_end|>]\n")

    def test_text_of_the_generation_prompt_is_not_trained_on(self):
        opened = CHATML.replace("{{ '<|im_start|>assistant\\n' }}",
                                "{{ '<|im_start|>assistant\\n<think>\\n' }}")
        self.use(opened)
        self.assertEqual(self.samples_of(user("q"), assistant("<think>\nx</think>y")),
                         ["<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n"
                          "[x</think>y<|im_end|>]\n"])
        out = self.prepare(self.chats((user("q"), assistant("y"))))
        self.assertEqual(self.marked_samples(),
                         ["<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
                          "[y<|im_end|>]\n"])
        self.assertIn("before 1 of 1 answers the prompt that a server renders differs from the "
                      "chat", out)

    def test_train_on_and_weights_of_messages_select_what_is_trained_on(self):
        self.use(CHATML)
        first, second = ("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n",
                         "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(self.samples_of(*self.TURNS, arguments=("--train-on", "last")),
                         [first + second + "[b<|im_end|>]\n"])
        self.assertEqual(self.samples_of(*self.TURNS, arguments=("--train-on", "all")),
                         [f"[{first}{second}b<|im_end|>\n]"])
        for left_out in ({"weight": 0}, {"train": False}):
            self.assertEqual(self.samples_of(user("q"), assistant("a", **left_out), user("r"),
                                             assistant("b", weight=1)),
                             [first + second + "[b<|im_end|>]\n"])
        # Nothing is trained on what follows the last answer.
        self.assertEqual(self.samples_of(*self.TURNS[:2], user("more")),
                         [first.replace("a<|im_end|>", "[a<|im_end|>]")])

    def test_a_chat_that_begins_with_the_assistant_trains_on_its_first_message(self):
        self.use(CHATML)
        self.assertEqual(self.samples_of(assistant("hello"), user("q"), assistant("a")), [
            "<|im_start|>assistant\n[hello<|im_end|>]\n<|im_start|>user\nq<|im_end|>\n"
            "<|im_start|>assistant\n[a<|im_end|>]\n"])

    def test_a_chat_with_two_begin_of_text_tokens_is_refused(self):
        self.use(LLAMA3, eos="<|eot_id|>", add_bos_token=True)
        self.prepare(self.chats(self.TURNS))
        self.assertEqual(list(read_pair(self.out + "/train")[0][0]).count(1), 1)
        self.prepare(self.lines("t.jsonl", [{"text": "ab"}, {"text": "<s>ab"}]))
        self.assertEqual(self.marked_samples(), ["[<s>ab<|eot_id|>]"] * 2)
        self.use("{{ bos_token }}" + LLAMA3, eos="<|eot_id|>")
        self.out += "-double"
        self.assertEqual(self.refusal(self.chats(self.TURNS)),
                         f"{self.folder}/c.jsonl:1: begins with the begin-of-text token twice; the "
                         "chat template writes it, so messages must not")

    def test_errors_of_a_chat_template_are_reported_in_its_own_words(self):
        self.use(GEMMA)
        self.assertEqual(self.refusal(self.chats(({"role": "system", "content": "s"}, user("q"),
                                                  assistant("a")))),
                         f"{self.folder}/c.jsonl:1: the chat template refuses the chat: System "
                         "role not supported")
        self.assertEqual(self.refusal(self.chats((user("q"), user("r"), assistant("a")))),
                         f"{self.folder}/c.jsonl:1: the chat template refuses the chat: "
                         "Conversation roles must alternate user/assistant/user/assistant/...")
        self.use(CHATML.replace("m.content +", "\nm.content.x.y +"))
        self.assertEqual(self.refusal(self.chats(self.TURNS)),
                         f"{self.folder}/c.jsonl:1: the chat template fails in its line 2: 'str "
                         "object' has no attribute 'x'")
        self.use("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
        self.assertEqual(self.refusal(self.chats(self.TURNS)),
                         f"{self.model}: line 2 of the chat template is not valid Jinja: "
                         "unexpected '}'")
        self.use(CHATML.replace("in messages %}", "in messages if m.role != 'system' %}"))
        self.assertEqual(self.refusal(self.chats(({"role": "system", "content": "u"}, user("u u"),
                                                  assistant("a")))),
                         f"{self.folder}/c.jsonl:1: this chat template leaves out messages of the "
                         "role system")

    def test_tools_and_template_options_reach_the_chosen_template(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"x": 1}}}
        with_tools = "{{ tools | tojson }}" + CHATML
        self.use([{"name": "default", "template": CHATML},
                  {"name": "tool_use", "template": with_tools},
                  {"name": "other", "template": "{{ mood }}" + CHATML}])
        end = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
        self.assertEqual(self.samples_of(*self.TURNS[:2]), [end])
        self.assertEqual(self.samples_of(*self.TURNS[:2], tools=[tool]), [json.dumps([tool]) + end])
        self.assertEqual(self.samples_of(*self.TURNS[:2], tools=json.dumps([tool])),
                         [json.dumps([tool]) + end])
        self.assertEqual(self.samples_of(*self.TURNS[:2],
                                         arguments=("--chat-template", "other",
                                                    "--template-options",
                                                    '{"mood": "glad"}')), ["glad" + end])
        self.assertEqual(self.samples_of(*self.TURNS[:2], arguments=("--chat-template", "other"),
                                         chat_template_kwargs={"mood": "sad"}), ["sad" + end])
        self.out += "-none"
        self.assertEqual(self.refusal(self.chats(self.TURNS), "--chat-template", "cat"),
                         f"{self.model}: has no chat template 'cat'; it has default, tool_use, "
                         "other")

    def test_arguments_of_tool_calls_are_encoded_as_json_exactly_once(self):
        """Some templates take objects, some take texts, and some write the items themselves."""
        call = "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' }}ARGS{% endfor %}"
        for args, written in (("{{ c.function.arguments | tojson }}", '{"k": "né", "n": 1}'),
                              ("{{ '' + c.function.arguments }}", '{"k": "né", "n": 1}'),
                              ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% "
                               "endfor %}", "k=né;n=1;")):
            self.use(CHATML.replace("m.content + '<|im_end|>\\n' }}",
                                    "m.content }}" + call.replace("ARGS", args)
                                    + "{{ '<|im_end|>\\n' }}"))
            for given in ({"k": "né", "n": 1}, '{"k": "né", "n": 1}'):
                turns = (user("q"), assistant("", tool_calls=[{"type": "function", "function": {
                    "name": "f", "arguments": given}}]), {"role": "tool", "content": "seen"},
                         assistant("a"))
                self.assertIn(f"[f {written}<|im_end|>]", self.samples_of(*turns)[0])
        broken = (user("q"),
                  assistant("", tool_calls=[{"function": {"name": "f", "arguments": "{k"}}]))
        self.out += "-broken"
        self.assertEqual(self.refusal(self.chats(broken)),
                         f"{self.folder}/c.jsonl:1: the arguments of a call of f are not JSON: "
                         "Expecting property name enclosed in double quotes: line 1 column 2 (char "
                         "1)")

    def test_chats_are_refused_for_a_model_without_a_chat_template(self):
        self.use(None)
        self.assertIn("has no chat template, so messages cannot be converted to text",
                      self.refusal(self.chats(self.TURNS)))


class Shapes(Case):
    def setUp(self):
        super().setUp()
        self.use(CHATML)

    EXPECTED = "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n[c<|im_end|>]\n"
    SAME = [{"messages": [user("p"), assistant("c")]},
            {"messages": json.dumps([user("p"), assistant("c")])},
            {"messages": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "c"}]},
            {"conversations": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "c"}]},
            {"conversations": [user("p"), assistant("c")]},
            {"instruction": "p", "input": "", "output": "c"},
            {"prompt": "p", "completion": "c"}, {"prompt": "p", "response": "c"},
            {"prompt": [user("p")], "completion": [assistant("c")]},
            {"prompt": [user("p")], "completion": "c"},
            {"prompt": "id of a prompt", "messages": [user("p"), assistant("c")], "text": None}]

    def test_rows_of_every_shape_give_the_same_chat_and_are_counted(self):
        out = self.prepare(self.lines("c.jsonl", [*self.SAME, {"text": "t"}]))
        self.assertEqual(self.marked_samples(),
                         [self.EXPECTED] * len(self.SAME) + ["[t<|im_end|>]"])
        self.assertIn("c.jsonl: 4 chats (messages), 3 chats (prompt and completion), 2 chats "
                      "(conversations), 1 chat (instruction and output), 1 chat (prompt and "
                      "response), 1 document (text); ", out)

    def test_prompts_that_are_messages_are_not_trained_on(self):
        prompt = [user("x"), assistant("y"), user("p")]
        self.prepare(self.lines("c.jsonl", [{"prompt": prompt, "completion": [assistant("c")]}]))
        self.assertEqual(self.marked_samples(),
                         ["<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
                          "y<|im_end|>\n" + self.EXPECTED])

    def test_system_and_history_columns_become_messages(self):
        self.prepare(self.lines("c.jsonl",
                                [{"instruction": "p", "output": "c", "system": "s",
                                  "history": [["x", "y"]]}]))
        self.assertEqual(self.marked_samples(),
                         ["<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n"
                          "x<|im_end|>\n<|im_start|>assistant\n[y<|im_end|>]\n"
                          + self.EXPECTED])

    def test_invalid_conversations_are_refused_by_line(self):
        for content, message in (
                ({"messages": []}, '"messages" must be a list of at least one message'),
                ({"conversations": "[]"}, '"conversations" must be a list of at least one message'),
                ({"messages": [user("p"), {"role": "robot", "content": "x"}]},
                 "message 2: role 'robot', expected one of human, user, gpt, assistant, chatgpt, "
                 "bot, model, system, developer, tool, observation, function_response, "
                 "function_call"),
                ({"messages": [{"role": "User", "content": "p"}, assistant("c")]},
                 "message 1: role 'User', expected 'user'"),
                ({"prompt": "p", "chosen": "a", "rejected": "b"},
                 'is a preference (chosen and rejected), which is not supported; answers to '
                 'imitate are read from "messages", or "prompt" and "completion"'),
                ({"input_ids": [1]}, 'holds token ids ("input_ids"), so the file needs no '
                                     'preparation; name it in data.train'),
                ({"messages": [user("p"), assistant("c")], "tools": "[{"},
                 '"tools" is a text that is not JSON: Expecting property name enclosed in double '
                 'quotes: line 1 column 3 (char 2)'),
                ({"instruction": "i", "output": "o", "history": 5},
                 '"history" must be a list of pairs of texts'),
                ({"messages": [user("p"),
                               {"role": "assistant", "content": "c", "tool_calls": True}]},
                 '"tool_calls" of message 2 must be a list of objects')):
            with self.subTest(message):
                self.assertEqual(self.refusal(self.lines("c.jsonl", [content])),
                                 f"{self.folder}/c.jsonl:1: {message}")

    def test_a_json_text_that_is_nested_too_deeply_is_refused(self):
        for key in ("tools", "chat_template_kwargs"):
            message = self.refusal(self.lines("c.jsonl",
                                              [{"messages": [user("p"), assistant("c")],
                                                key: "[" * 200000}]))
            self.assertTrue(message.startswith(f'{self.folder}/c.jsonl:1: "{key}" is a text that '
                                               'is not JSON: '), message[:200])

    def test_compressed_files_are_recognized_by_content_whatever_their_name(self):
        text = "".join(json.dumps(o) + "\n" for o in self.SAME).encode()
        for name, content in (("a.jsonl.gz", gzip.compress(text)), ("b.jsonl", gzip.compress(text)),
                              ("c.ndjson", text),
                              ("d", text),
                              ("e.json.gz", gzip.compress(json.dumps(self.SAME).encode())),
                              ("f.data", text)):
            with self.subTest(name):
                self.prepare(self.write(name, content))
                self.assertEqual(self.marked_samples(), [self.EXPECTED] * len(self.SAME))
        self.out += "-cut"
        cut = self.write("a.jsonl.gz", gzip.compress(text)[:-20])
        self.assertRegex(self.refusal(cut), "a.jsonl.gz: cannot be decompressed: .*; it is damaged "
                                            "or was cut short")

    def test_a_missing_python_package_is_named(self):
        from training_data import records

        for name, content, package in (("a.parquet", b"PAR1", "pyarrow"),
                                       ("a.arrow", b"ARROW1", "pyarrow"),
                                       ("a.jsonl.zst", b"\x28\xb5\x2f\xfd", "zstandard")):
            real = records.importlib.util.find_spec
            records.importlib.util.find_spec = lambda n, *_: None if n == package else real(n)
            try:
                code, _, err = self.run_script(self.write(name, content))
            finally:
                records.importlib.util.find_spec = real
            self.assertEqual(code, 5)
            self.assertRegex(err, f"{name}: reading .* needs the Python package {package}, which "
                                  "is not installed; run scripts/setup.sh")


# A template like Qwen's: tools, calls with and without "function", the name of a tool, and a
# switch.
TOOLS = ("{%- if quiet %}{{ '...' }}{%- endif %}{%- if tools %}{{ '<|im_start|>system\\nTools:' "
         "}}{%- for t in tools %}{{ '\\n' + t | tojson }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- "
         "endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}{%- for "
         "c in m.tool_calls or [] %}{%- if c.function %}{%- set c = c.function %}{%- endif %}{{ "
         "'<call>' + c.name + ' ' + c.arguments | tojson + '</call>' }}{%- endfor %}{%- if m.role "
         "== 'tool' and m.name %}{{ ' of ' + m.name }}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor "
         "%}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}")
TOOL = {"type": "function", "function": {"name": "seek", "description": "seeks",
                                         "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "seek", "arguments": {"k": "v"}}}


class Fields(Case):
    """Data are read as strictly as configs: no field with a meaning is ignored silently."""

    def setUp(self):
        super().setUp()
        self.use(TOOLS)
        self.encoder = Encoder(self.model)

    def encode(self, content):
        """Returns (samples, names of the fields that are counted as not read), or the message of
        the refusal."""
        try:
            found = self.encoder.encode(Document("c", "c:1", 1, content))
        except BadDocument as bad:
            return str(bad)
        samples = [(ids.tolist(), trained.tolist()) for ids, trained in found.samples]
        return samples, [name for (_, name), _ in found.notes.of_kind("unread")]

    def sample_text(self, content):
        found = self.encode(content)
        self.assertNotIsInstance(found, str, found)
        return [self.tokenizer.decode(ids, skip_special_tokens=False) for ids, _ in found[0]][0]

    def assert_refused(self, content, message):
        self.assertEqual(self.encode(content), f"c:1: {message}")

    def unread_fields(self, content):
        return self.encode(content)[1]

    def test_a_system_text_beside_any_shape_comes_first_under_every_spelling(self):
        shapes = ({"messages": [user("p"), assistant("c")]},
                  {"conversations": [user("p"), assistant("c")]},
                  {"prompt": [user("p")], "completion": [assistant("c")]},
                  {"prompt": "p", "completion": "c"}, {"instruction": "p", "output": "c"},
                  {"messages": [{"role": "system", "content": "s"}, user("p"), assistant("c")]})
        expected = ("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\np<|im_end|>\n"
                    "<|im_start|>assistant\nc<|im_end|>\n")
        for shape in shapes:
            for key in ("system", "System", "system_prompt", "systemPrompt", "system-message",
                        "systemInstruction", "instructions"):
                for value in ("s", [{"text": "s"}], {"parts": [{"text": "s"}]},
                              {"role": "system", "content": [{"type": "text", "text": "s"}]}):
                    self.assertEqual(self.sample_text({**shape, key: value}), expected,
                                     (shape, key, value))
        self.assert_refused({**shapes[-1], "system": "t"},
                            '"system" differs from the first message, '
                            'whose role is system; remove one of them')
        self.assert_refused({**shapes[0], "system": 5},
                            '"system" must be a text, or a list of {"text": '
                            '"..."}')
        self.assert_refused({**shapes[0], "system": "s", "system_prompt": "t"},
                            '"system" and "system_prompt" are two names of the same field and hold '
                            "different values; remove one of them")
        self.assert_refused({"text": "t", "system": "s"},
                            '"system" is not used in a record with "text"; '
                            'write "messages" instead of "text", or ignore '
                            '"system" with --ignore-fields system')

    def test_answers_that_must_not_be_imitated_are_refused_and_left_out_with_a_count(self):
        shapes = ({"messages": [user("p"), assistant("c")]}, {"prompt": "p", "completion": "c"},
                  {"prompt": [user("p")], "completion": [assistant("c")]})
        for shape in shapes:
            for key, value in (("label", False), ("Label", 0), ("label", "false"),
                               ("kto_tag", False), ("desirable", "no"), ("label", -1),
                               ("is_correct", False), ("accepted", "false")):
                self.assert_refused({**shape, key: value},
                                    f'"{key}" is {json.dumps(value)}: its answer '
                                    'must not be imitated')
            for key in ("rejected_response", "rejected", "rejected_messages", "rejectedResponse"):
                tail = ("; to train only on its messages, ignore the other fields with "
                        f"--ignore-fields {key}" if "messages" in shape else "")
                self.assert_refused({**shape, key: "no"},
                                    f"is a preference ({key}), which is not supported; answers to "
                                    f"imitate "
                                    f'are read from "messages", or "prompt" and "completion"{tail}')
            self.assertEqual(self.encode({**shape, "label": True, "rejected": None}),
                             self.encode(shape))
        self.assert_refused({**shapes[0], "label": "cat"},
                            '"label" is "cat", expected true (an answer to '
                            'imitate) or false; correct it, or ignore it '
                            "with --ignore-fields label")
        self.assert_refused({"text": "t", "label": 1},
                            '"label" is 1; a record with "text" cannot have a '
                            'label, because the whole text is trained on '
                            'regardless of it; write "prompt" and '
                            '"completion" if the model should learn the label, '
                            "or ignore it with --ignore-fields label")
        path = self.lines("k.jsonl", [{**shapes[1], "label": True},
                                      {"prompt": "q", "completion": "bad", "label": False}])
        self.assertIn("warning: left out 1 of 2 documents (--skip-bad):\n"
                      f'  {path}:2: "label" is false: its answer must not be imitated\n',
                      self.prepare(path, "--skip-bad"))
        self.assertEqual(len(self.marked_samples()), 1)
        self.assertIn(f"not read: label (2 times, the first: {path}:1)",
                      self.prepare(path, "--ignore-fields", "label"))
        self.assertEqual(len(self.marked_samples()), 2)

    def test_weights_masks_and_media_are_refused_by_name(self):
        chat = {"messages": [user("p"), assistant("c")]}
        tail = "ignore it with --ignore-fields "
        for key, value, message in (
                ("loss_mask", [0, 1], "selects single tokens for the loss, which is not possible "
                                      "for texts; write \"train\": false in the messages that do "
                                      "not count, or prepare the token ids elsewhere and name that "
                                      "file in data.train"),
                ("sample_weight", 0.5, "gives the record or its tokens a weight, but ftrun weights "
                                       "all trained tokens equally; prepare such records as a "
                                       "separate data set and give that a weight in data.train"),
                ("images", ["a.png"], "holds something other than text, and ftrun trains only on "
                                      "text; remove the field if the texts make sense without it"),
                ("function_call", {"name": "f"}, "is a tool call outside the messages; move it to "
                                                 "\"tool_calls\" of an assistant's message"),
                ("input_ids", [1], "holds token ids, but the record has texts to tokenize; remove "
                                   "the field, or name a file of token ids in data.train instead "
                                   "of preparing it")):
            self.assert_refused({**chat, key: value}, f'"{key}" {message}, or {tail}{key}')
            self.assertEqual(self.encode({**chat, key: None}), self.encode(chat))
        self.assert_refused({"messages": [user("p"), assistant("c", weight=0.5)]},
                            'message 2: "weight" is 0.5, but a message is either trained on or '
                            'not; write '
                            '1 or 0')
        self.assert_refused({"messages": [user("p"), assistant("c", loss=False)]},
                            "has no assistant message to train on: message 2 says that it is not "
                            "trained "
                            "on")
        self.assert_refused({"messages": [{**user("p"), "train": True}, assistant("c")]},
                            'message 1: "train" is true, but its role is user, and only messages '
                            'of the '
                            'assistant are trained on; to train on everything, use --train-on all')
        self.assert_refused({"messages": [user([{"type": "text", "text": "p",
                                                 "source_lang_code": "de"}]),
                                          assistant("c")]},
                            'message 1: "source_lang_code" in a part of its content is not '
                            'supported, '
                            'because only the text of a part is used; write the information into '
                            'the '
                            f"text, or {tail}source_lang_code")
        self.assert_refused({**chat, "completion": "d"}, '"completion" differs from the text in '
                                                         '"messages"; write it as a message, or '
                                                         f"{tail}completion")
        self.assertEqual(self.unread_fields({**chat, "completion": "c", "prompt": "p", "score": 3,
                                             "id": 7}), ["prompt", "completion", "score"])
        self.out += "-all"
        path = self.lines("w.jsonl",
                          [{"messages": [user("p"), assistant("c", weight=0), user("q"),
                                         assistant("d")]}])
        self.assertEqual(self.refusal(path, "--train-on", "all"),
                         f"{path}:1: message 2 says that it is not trained on, and --train-on all "
                         "trains on every token; remove one of the two")

    def test_template_arguments_outside_chat_template_kwargs_are_refused(self):
        chat = {"messages": [user("p"), assistant("c")]}
        self.assertIn("...", self.sample_text({**chat, "chat_template_kwargs": {"quiet": True}}))
        self.assert_refused({**chat, "quiet": True},
                            '"quiet" is an argument of this chat template, which '
                            'is read only from "chat_template_kwargs"; write it '
                            "there, or ignore it with --ignore-fields quiet")
        self.assert_refused({**chat, "chat_template_kwargs": {"add_generation_prompt": True}},
                            '"add_generation_prompt" in "chat_template_kwargs" cannot be an '
                            'argument of a '
                            'chat template; remove it')
        self.assertEqual(self.unread_fields({**chat, "chat_template_kwargs": {"loud": True}}),
                         ["chat_template_kwargs.loud"])
        out = self.prepare(self.lines("c.jsonl", [chat]), "--template-options", '{"loud": 1}')
        self.assertIn("  not read: loud of --template-options (1 time, the first: "
                      f"{self.folder}/c.jsonl:1)\n", out)

    def server(self):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    # Calls and tools in the forms of OpenAI, Mistral, Qwen and Llama.
    ARGUMENTS = {"k": "né", "n": 1}
    CALLS = ([{"id": "1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}],
             [{"name": "f", "arguments": ARGUMENTS}],
             [{"function": {"name": "f", "arguments": json.dumps(ARGUMENTS)}}],
             [{"name": "f", "parameters": ARGUMENTS}])

    def test_tool_calls_of_every_shape_render_like_the_reference_shape(self):
        only_wrapped = TOOLS.replace("{%- if c.function %}{%- set c = c.function %}{%- endif %}",
                                     "{%- set c = c.function %}")
        for template in (TOOLS, only_wrapped):
            self.use(template)
            self.encoder = Encoder(self.model)
            expected = self.server().apply_chat_template([user("p"),
                                                          assistant("", tool_calls=self.CALLS[0])],
                                                         tokenize=False)
            self.assertIn('<call>f {"k": "né", "n": 1}</call>', expected)
            for calls in self.CALLS:
                self.assertEqual(self.sample_text({"messages": [user("p"),
                                                                assistant("", tool_calls=calls)]}),
                                 expected)
            self.assertEqual(self.sample_text({"messages": [user("p"),
                                                            {"role": "assistant", "content": None,
                                                             "function_call":
                                                             self.CALLS[2][0]["function"]}]}),
                             expected)
            for role in ("function_call", "tool_call"):
                said = {"from": role, "value": json.dumps(self.CALLS[1][0])}
                self.assertEqual(self.sample_text({"conversations": [{"from": "human",
                                                                      "value": "p"},
                                                                     said]}), expected)
        for name in ("function", "ipython", "tool_response", "observation", "tool"):
            self.assertIn("<|im_start|>tool\nseen<",
                          self.sample_text({"messages": [user("p"), {"role": name,
                                                                     "content": "seen"},
                                                         assistant("c")]}))

    def test_tools_of_every_shape_render_like_the_reference_shape(self):
        turns, bare = [user("p"), assistant("c")], TOOL["function"]
        for given in ([TOOL], [bare], [TOOL, {**TOOL, "function": {**bare, "name": "find"}}]):
            expected = self.server().apply_chat_template(turns, tools=given, tokenize=False)
            for tools in (given, json.dumps(given), [json.dumps(tool) for tool in given]):
                self.assertEqual(self.sample_text({"messages": turns, "tools": tools}), expected)
        # The form of OpenAI's first interface, and bare functions for a template that does not
        # expect them.
        expected = self.server().apply_chat_template(turns, tools=[TOOL], tokenize=False)
        self.assertEqual(self.sample_text({"messages": turns, "functions": [bare]}), expected)
        self.use(TOOLS.replace("t | tojson", "t.function.name"))
        self.encoder = Encoder(self.model)
        self.assertEqual(self.sample_text({"messages": turns, "tools": [bare]}),
                         self.server().apply_chat_template(turns, tools=[TOOL], tokenize=False))
        for tool, found in (({"name": "f", "input_schema": {}}, ", found input_schema"),
                            ({"toolSpec": {"name": "f"}}, ", found toolSpec"), ({"x": 1}, "")):
            self.assert_refused({"messages": turns, "tools": [tool]},
                                'item 1 of "tools" must be {"type": "function", "function": '
                                '{"name": ..., '
                                                               '"description": ..., "parameters": '
                                f'...}}}}{found}')

    def test_messages_and_tools_that_the_template_omits_are_refused_by_name(self):
        two = [*self.CALLS[0], {"function": {"name": "g", "arguments": {}}}]
        for template, turns, more, message in (
                (CHATML, [user("p"), assistant("c")], {"tools": [TOOL]}, "tools: seek, item 1"),
                (TOOLS.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:1]"),
                 [user("p"), assistant("", tool_calls=two)], {},
                 "call 2 of message 2"),
                (TOOLS.replace("c.arguments | tojson", "''"),
                 [user("p"), assistant("", tool_calls=self.CALLS[0])], {},
                 "the arguments of call 1 of message 2"),
                (TOOLS.replace("+ m.content }}", "+ ('' if m.tool_calls else m.content) }}"),
                 [user("p"), assistant("I seek.", tool_calls=self.CALLS[0])], {},
                 "the text of message 2, which has tool_calls")):
            self.use(template)
            self.encoder = Encoder(self.model)
            self.assert_refused({"messages": turns, **more},
                                f"this chat template leaves out {message}")
        self.use(CHATML.replace("m.content +", "(m.content if m.content is string else m.content | "
                                               "map(attribute='text') | join('; ')) +"))
        self.encoder = Encoder(self.model)
        parts = [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}]
        self.assertEqual(len(self.encode({"messages": [user(parts[:1]), assistant("c")]})[0]), 1)
        self.assert_refused({"messages": [user(parts), assistant("c")]},
                            "this chat template renders the 2 content parts of message 1 "
                            "differently from "
                            "their joined text; write its content as one text")
        self.use(TOOLS)
        self.encoder = Encoder(self.model)
        self.assert_refused({"messages": [user("p"), assistant("c", reasoning_content="r")]},
                            'this chat template leaves out "reasoning_content" of message 2; '
                            'write it '
                            'into "content", or ignore it with --ignore-fields reasoning_content')
        self.assert_refused({"messages": [user("p"),
                                          assistant("", tool_calls=[{"function": {"name": "f"}}])]},
                            'call 1 in "tool_calls" of message 2 needs "arguments", an object or '
                            'its JSON')

    def test_keys_of_tools_that_the_template_omits_are_counted(self):
        tool = {**TOOL, "function": {**TOOL["function"], "returns": {"type": "number"}}}
        self.assertEqual(self.unread_fields({"messages": [user("p"), assistant("c")],
                                             "tools": [tool]}),
                         [])
        self.use(TOOLS.replace("t | tojson", "t.function.name + t.function.description"))
        self.encoder = Encoder(self.model)
        self.assertEqual(self.unread_fields({"messages": [user("p"), assistant("c")],
                                             "tools": [tool]}),
                         ["tool.parameters", "tool.returns"])

    def test_special_tokens_spelled_out_in_a_text_are_reported_for_every_role(self):
        turns = [{"role": "system", "content": "<s>"},
                 user("p<|im_end|>\n<|im_start|>assistant\nno"),
                 assistant("", tool_calls=[copy.deepcopy(CALL)]),
                 {"role": "tool", "content": "<|eot_id|>"}, assistant("c")]
        path = self.lines("f.jsonl", [{"messages": turns}, {"text": "<s>a"}, {"text": "a<s>"}])
        out = self.prepare(path)
        for who, line, token in (("messages of the role system", 1, "<s>"),
                                 ("messages of the role user", 1, "<|im_end|>"),
                                 ("messages of the role tool", 1, "<|eot_id|>"),
                                 ("texts", 3, "<s>")):
            self.assertIn(f"  warning: 1 {who} contain the text of special tokens, which the "
                          "tokenizer converts to these tokens "
                          f"(the first: {path}:{line}: {token})\n", out)
        self.assertNotIn("role assistant", out)

    NAMES = (*fields.HARMLESS, *fields.TOKEN_IDS, *fields.CALLS, *fields.WEIGHTS, *fields.TRAIN,
             "images", "image_path", "videos", "audio",
             "loss_mask", "completion_mask", "masked", "sample_weight", "rejected_response",
             "chosen", "rejected", "role", "score", "reward",
             "Größe", "is_correct", "tool_choice", "documents", "refusal", "prefix",
             "reasoning_content", "thinking", "name", "quiet",
             "source_lang", "tool_call_id", "strict", "returns",
             *(name for names in fields.RECORD.values() for name in names),
             *(name for names in fields.MESSAGE.values() for name in names))
    VALUES = (None, "", [], {}, "null", "[]", float("nan"), "some words", 3, 0.5, 0, 1, True, False,
              "false", ["a"], [0, 1], {"k": 1},
              [{"role": "user", "content": "z"}])

    def base(self, shape):
        chat = [user("p"), assistant("", tool_calls=[copy.deepcopy(CALL)]),
                {"role": "tool", "content": "seen", "name": "seek"},
                assistant("c")]
        return {"messages": {"messages": chat, "tools": [copy.deepcopy(TOOL)]},
                "parts": {"messages": [user([{"type": "text", "text": "p"}]), assistant("c")]},
                "pair": {"prompt": "p", "completion": "c"},
                "lists": {"prompt": [user("p")], "completion": [assistant("c")]},
                "alpaca": {"instruction": "p", "output": "c"},
                "text": {"text": "p"}}[shape]

    def field_levels(self, record):
        """Yields (name of the level, its object) for all levels that can have a field."""
        yield "", record
        for message in record.get("messages", record.get("completion", [])):
            if isinstance(message, dict):
                yield "message.", message
                if isinstance(message["content"], list):
                    yield "part.", message["content"][0]
                for call in message.get("tool_calls", []):
                    yield "call.", call
                    yield "call.", call["function"]

    def test_harmless_fields_are_the_same_in_docs_library_and_scripts(self):
        """This list must be the same in docs/data.md, in lib/data and in the scripts."""
        docs = (ROOT / "docs/data.md").read_text().split("Harmless are:\n\n")[1].split("\n\n")[0]
        source = (ROOT / "lib/data/jsonl_fields.cc").read_text().split(
            "kHarmlessNames = {")[1].split("}")[0]
        self.assertEqual(re.findall("`(.*?)`", docs), list(fields.HARMLESS))
        self.assertEqual(re.findall('"(.*?)"', source), list(fields.HARMLESS))

    def test_no_random_field_is_ignored_without_a_message(self):
        """The fields are random: their shape, level, name in any spelling, and value."""
        chance, outcomes = random.Random(20261126), collections.Counter()
        for _ in range(1000):
            shape = chance.choice(("messages", "parts", "pair", "lists", "alpaca", "text"))
            plain = self.base(shape)
            record = copy.deepcopy(plain)
            level, target = chance.choice(list(self.field_levels(record)))
            name, value = chance.choice(self.NAMES), chance.choice(self.VALUES)
            spelling = chance.choice((name, name.upper(), name.replace("_", "-"),
                                      name.title().replace("_", "")))
            if any(fields.canonical_name(key) == fields.canonical_name(spelling) for key in target):
                continue
            target[spelling] = value
            outcome = self.field_handling(self.encode(record), self.encode(plain), spelling, value)
            self.assertIsNotNone(outcome, f"{level}{spelling} = {value!r} of {shape} vanishes: "
                                          f"{record}")
            outcomes[outcome] += 1
        self.assertEqual(sorted(outcomes), ["counted", "empty", "harmless", "no change", "read",
                                            "refused"], outcomes)

    def field_handling(self, found, plain, name, value):
        """Returns how the field was handled; None if it was ignored silently."""
        known = fields.canonical_name(name)
        # A field that holds messages, or that is inside a message, is reported by the message's
        # name.
        if isinstance(found, str):
            by_message = known in fields.canonical_names((*fields.RECORD["messages"],
                                                  *fields.MESSAGE["weight"],
                                                  *fields.MESSAGE["train"]))
            return "refused" if name in found or (by_message and "message" in found) else None
        if found[0] != plain[0]:
            return "read" if not fields.is_empty(value) else None
        if any(name == key or key.endswith(f".{name}") or key == "chat_template_kwargs.k"
               for key in found[1]):
            return "counted"
        if fields.is_empty_or_empty_json(value):
            return "empty" if found == plain else None
        if known in fields.HARMLESS_NAMES or known == "toolcallid":
            return "harmless"
        if known in fields.canonical_names((*fields.RECORD["label"], *fields.MESSAGE["weight"],
                                    *fields.MESSAGE["train"])) and fields.as_bool(
                                        value) is not None:
            return "no change"
        return None


class Lengths(Case):
    def setUp(self):
        super().setUp()
        self.use(CHATML)
        # There are 28 tokens before the answer; after its text come 3: <|im_end|> and the newline.
        self.file = self.lines("c.jsonl",
                               [{"prompt": "p", "completion": "c" * n} for n in (2, 3, 40)])
        self.before = len(self.ids("")) - 2

    def ids(self, answer):
        text = f"<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def fit(self, policy):
        out = self.prepare(self.file, "--sequence-length", str(self.before + 4), "--too-long",
                           policy)
        return out, [(len(ids), int(trained[1:].sum()))
                     for ids, trained in read_pair(self.out + "/train")]

    def test_long_samples_are_refused_with_a_histogram(self):
        rows = self.before + 4  # fits samples of one token more: an answer of 3 and 2 ends
        err = self.refusal(self.file, "--sequence-length", str(rows))
        self.assertIn(f"1 of 3 samples (33.3%) are longer than a sequence of {rows} tokens "
                      f"(--sequence-length): {self.file}:3 ({self.before + 42} tokens)\n", err)
        self.assertIn("  16 to 31 tokens         2  ########################################  < "
                      "end of a sequence\n", err)
        self.assertIn(f"increase --sequence-length (the longest sample needs {self.before + 41}), "
                      "or choose what happens to longer samples: --too-long truncate", err)

    def test_long_samples_that_are_cut_dropped_or_split_are_counted(self):
        out, samples = self.fit("truncate")
        row = self.before + 5
        self.assertEqual(samples, [(row - 1, 3), (row, 4), (row, 5)])
        self.assertIn("1 of 3 samples longer than a sequence of", out)
        self.assertIn("were cut: 37 tokens lost, 36 of them trained on\n", out)
        out, samples = self.fit("drop")
        self.assertEqual(samples, [(row - 1, 3), (row, 4)])
        self.assertIn(f"were left out: {self.before + 42} tokens lost, 41 of them trained on\n",
                      out)
        out, samples = self.fit("split")
        self.assertEqual(sum(trained for _, trained in samples), 3 + 4 + 41)
        self.assertTrue(all(length <= row for length, _ in samples))
        self.assertIn("were split\n", out)

    def test_pieces_of_a_sample_without_a_trained_token_are_counted_as_lost(self):
        self.file = self.lines("c.jsonl",
                               [{"prompt": "p" * 3 * (self.before + 4), "completion": "c"}])
        out, samples = self.fit("split")
        row, tokens = self.before + 5, 3 * (self.before + 4) - 1 + self.before + 3
        held = samples[0][0] + sum(length - 1 for length, _ in samples[1:])
        self.assertEqual(sum(trained for _, trained in samples), 2)
        self.assertIn(f"1 of 1 samples longer than a sequence of {row - 1} tokens were split: "
                      f"{tokens - held} tokens lost, in pieces without a trained token\n", out)

    def test_a_sample_whose_answer_is_cut_off_is_left_out(self):
        self.file = self.lines("c.jsonl", [{"prompt": "p", "completion": "c"},
                                           {"prompt": "p" * 60, "completion": "c"}])
        out, samples = self.fit("truncate")
        self.assertEqual(len(samples), 1)
        self.assertIn("; 1 of these had no trained token left and were left out", out)


class Report(Case):
    def setUp(self):
        super().setUp()
        self.use(CHATML)

    def test_data_without_trained_tokens_is_refused_with_counts_by_file(self):
        one = self.lines("a.jsonl", [{"prompt": "p", "completion": ""}] * 2)
        self.use("{% for m in messages %}{{ m.content }}{% endfor %}")
        two = self.lines("b.jsonl", [{"messages": [user("p"), assistant("")]}])
        self.assertEqual(self.refusal(one, two),
                         "no token of the train documents is trained on:\n"
                         f"  {one}: 2 chats (prompt and completion); 2 samples, 2 tokens, 0 "
                         f"trained on\n  {two}: 1 chat (messages); 1 samples, 1 tokens, 0 trained "
                         "on")

    def test_an_end_token_within_an_answer_is_reported(self):
        path = self.lines("c.jsonl", [{"prompt": "p", "completion": "a<|im_end|>b"}])
        self.assertIn("warning: 1 answers have an end token within their text (the first: "
                      f"{path}:1); what follows it is not trained on",
                      self.prepare(path))

    def test_duplicates_and_empty_answers_are_reported(self):
        rows = [{"prompt": "p", "completion": "c"}, {"prompt": "q", "completion": " "},
                {"prompt": "p", "completion": "c"}]
        out = self.prepare(self.lines("c.jsonl", rows), "--validation-every", "3")
        path = f"{self.folder}/c.jsonl"
        self.assertIn(f"1 answers are empty (the first: {path}:2); a model learns from them to say "
                      "nothing\n", out)
        self.assertIn(f"1 samples are duplicates (the first: {path}:3 repeats {path}:1)\n", out)
        self.assertIn("1 of these are in both train and validation, which makes the validation "
                      "loss too low\n", out)

    def test_the_first_sample_is_shown_with_what_is_trained_on(self):
        path = self.lines("c.jsonl", [{"prompt": "<b>", "completion": "c & d"}])
        out = self.prepare(path)
        self.assertIn(f"  the first sample, {path}:1, what is trained on between >>> and <<<:\n"
                      "<|im_start|>user\n<b><|im_end|>\n<|im_start|>assistant\n>>>c & "
                      "d<|im_end|><<<\n", out)
        # The output must not contain control sequences for a terminal.
        self.assertIn(">>>?[2J<|im_end|><<<",
                      self.prepare(self.lines("e.jsonl",
                                              [{"prompt": "p", "completion": "\x1b[2J"}])))
        self.prepare(path)
        page = pathlib.Path(self.out, "train.html").read_text()
        self.assertIn("&lt;|im_start|&gt;assistant\n<mark>c &amp; d&lt;|im_end|&gt;</mark>\n", page)
        for outside in ("http:", "https:", "<script", "src=", "@import", "url("):
            self.assertNotIn(outside, page)

    def test_a_report_page_that_was_edited_is_not_replaced(self):
        path = self.lines("c.jsonl", [{"prompt": "p", "completion": "c"}])
        self.prepare(path)
        page = pathlib.Path(self.out, "train.html")
        page.write_text(page.read_text() + "my notes")
        code, _, err = self.run_script(path, "--force")
        self.assertEqual((code, err), (4, f"prepare_data: error: {page}: was changed since this "
                                          "script wrote it, so it is not replaced; choose another "
                                          "--out, or move it away\n"))

    def test_a_changed_template_or_end_token_makes_the_data_outdated(self):
        path = self.lines("c.jsonl", [{"prompt": "p", "completion": "c"}])
        self.prepare(path)
        self.assertIn("up to date", self.run_script(path)[1])
        new = "{# new #}" + CHATML
        for change in (lambda: self.use(new),
                       lambda: self.use(new, generation={"eos_token_id": 0})):
            change()
            self.assertIn("done in", self.run_script(path)[1])
            self.assertIn("up to date", self.run_script(path)[1])


if __name__ == "__main__":
    unittest.main()
