"""Chats as the model's own chat template lays them out, and which characters of that are trained on.

transformers renders, so that the text is what a server makes of the same messages. For each answer k
  P = the messages before it, with the generation prompt: what a server would give the model
  F = the messages up to it
are rendered. P must be how F begins, byte by byte; what follows in F is what the model is to say. Where F
is how the whole conversation begins, for every answer, the conversation is one sample. Where it is not,
the template rewrites earlier messages once later ones follow (reasoning is left out of history), and each
answer becomes a sample of its own: F, as at inference. Marks that a template itself makes
({% generation %}) narrow what is trained on."""
import collections
import json
import os
import re

from script_errors import BadDocument, UserError
from training_data.records import read_json

TRAIN_ON = ("assistant", "last", "all")
PROBED_KEY, PROBED_VALUE = "probed_key", "probed value"

# The text of a sample and its turns; None: all is trained on.
Sample = collections.namedtuple("Sample", "text turns")
# An answer: the ranges of characters that are trained on, and one past the last that belongs to it.
Turn = collections.namedtuple("Turn", "ranges limit")


class ChatTemplate:
    """`name` chooses among several templates; `options` are passed to it with every chat."""

    def __init__(self, folder, name=None, options=None):
        from transformers import PreTrainedTokenizerFast
        from transformers.utils import logging

        logging.set_verbosity_error()
        self.folder, self.options = folder, options or {}
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.name = self._known(name)
        self._sources, self._forms = {}, {}

    def _known(self, name):
        templates = self.tokenizer.chat_template
        if name is None or (isinstance(templates, dict) and name in templates):
            return name
        known = ", ".join(templates) if isinstance(templates, dict) else "one without a name"
        raise UserError(f"{self.folder}: has no chat template {name!r}; it has {known}")

    def source(self, tools):
        """The template's text: as transformers chooses it."""
        key = tools is not None
        if key not in self._sources:
            try:
                self._sources[key] = self.tokenizer.get_chat_template(self.name, tools)
            except ValueError:
                raise UserError(f"{self.folder}: has several chat templates and none is called default; choose one "
                                f"with --chat-template: {', '.join(self.tokenizer.chat_template)}") from None
        return self._sources[key]

    def says_the_date(self):
        return "strftime_now" in self.source(None)

    # ---- rendering ----

    def render(self, messages, chat, place, prompt=False):
        options = {**self.options, **chat.options}
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=chat.tools, chat_template=self.source(chat.tools), add_generation_prompt=prompt,
                tokenize=False, **options)
        except UserError:
            raise
        except Exception as error:  # a template is a program that anyone wrote
            raise self._failure(error, place) from None

    def marks(self, messages, chat, place):
        """The ranges of characters in the template's own generation blocks; None where it has none."""
        source = self.source(chat.tools)
        if not re.search(r"\{%-?\s*generation\s*-?%\}", source):
            return None
        from transformers.utils.chat_template_utils import render_jinja_template

        options = {**self.tokenizer.special_tokens_map, **self.options, **chat.options}
        try:
            return render_jinja_template([messages], tools=chat.tools, chat_template=source,
                                         return_assistant_tokens_mask=True, **options)[1][0]
        except Exception as error:
            raise self._failure(error, place) from None

    def _failure(self, error, place):
        from jinja2 import TemplateError, TemplateSyntaxError

        if isinstance(error, TemplateSyntaxError):
            return UserError(f"{self.folder}: line {error.lineno} of the chat template is no Jinja: {error.message}")
        if type(error) is TemplateError:  # its raise_exception
            return BadDocument(f"{place}: the chat template refuses it: {error}")
        return BadDocument(f"{place}: the chat template fails{template_line(error)}: {error}")

    # ---- samples ----

    def samples(self, chat, train_on, place, notes):
        """The Samples of a chat. `notes` (encoding.Notes) counts what the report tells."""
        messages = self.with_calls_as_read(chat, place)
        if train_on == "all":
            return [Sample(self.whole_text(messages, chat, place), None)]
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant" and chat.may_train[i]]
        if not answers:
            raise BadDocument(f"{place}: has no assistant message to train on")
        if train_on == "last":
            answers = answers[-1:]
        messages = messages[:answers[-1] + 1]  # nothing after the last answer is learnt from
        whole = self.whole_text(messages, chat, place)
        texts = [whole if i == answers[-1] else self.render(messages[:i + 1], chat, place) for i in answers]
        turns = [self.turn(messages, i, text, chat, place, notes) for i, text in zip(answers, texts)]
        if all(whole.startswith(text) for text in texts):
            groups = [(messages, whole, turns)]
        else:
            notes.count("rewritten")
            groups = [(messages[:i + 1], text, [turn]) for i, text, turn in zip(answers, texts, turns)]
        return [Sample(text, self.marked(part, text, turns, chat, place)) for part, text, turns in groups]

    def turn(self, messages, i, text, chat, place, notes):
        if i == 0:
            return self.opening_turn(messages, text, chat, place)
        prompt = self.render(messages[:i], chat, place, prompt=True)
        if text.startswith(prompt):
            return answer_turn(len(prompt), text)
        same = len(os.path.commonprefix([prompt, text]))
        before = self.render(messages[:i], chat, place)
        if not text.startswith(before) or same < len(before):
            raise BadDocument(
                f"{place}: the chat template changes earlier messages when message {i + 1} follows, so that no server "
                f"would give the model what is trained on: after {tail(text[:same])} a server has "
                f"{head(prompt[same:])}, the chat {head(text[same:])}; use --train-on all or --plain")
        notes.count("prefilled", f"{place}: after {tail(text[:same])} a server has {head(prompt[same:])}, the chat "
                                 f"{head(text[same:])}")
        return answer_turn(same, text)

    def opening_turn(self, messages, text, chat, place):
        """A chat that the assistant begins: no server renders an empty one, so what leads an answer in is
        looked for."""
        user = [{"role": "user", "content": "x"}]
        lead = self.render(user, chat, place, prompt=True).removeprefix(self.render(user, chat, place))
        at = text.find(lead) if lead else -1
        return answer_turn(0 if at < 0 else at + len(lead), text)

    def marked(self, messages, text, turns, chat, place):
        """The turns without what the template's marks leave out."""
        marks = self.marks(messages, chat, place)
        if marks is None:
            return turns
        narrowed = []
        for turn in turns:
            (begin, end), = turn.ranges
            inside = [(max(begin, b), min(end, e)) for b, e in marks if max(begin, b) < min(end, e)]
            if not inside:
                raise BadDocument(f"{place}: the chat template's generation marks leave out an answer, after "
                                  f"{tail(text[:begin])}; use --train-on all, or correct the template")
            narrowed.append(Turn(inside, turn.limit))
        return narrowed

    def whole_text(self, messages, chat, place):
        """The conversation; refused where the template silently leaves something of it out."""
        whole = self.render(messages, chat, place)
        doubtful = [(i, "tool_calls", "tool_calls") for i, m in enumerate(messages) if m.get("tool_calls")]
        doubtful += [(i, "content", f"messages of the role {messages[i]['role']}")
                     for i in self.unseen(messages, whole, chat, place)]
        for i, key, what in doubtful:
            without = [*messages[:i], {**messages[i], key: ""}, *messages[i + 1:]]
            if whole == self.render(without, chat, place):
                raise BadDocument(f"{place}: this chat template leaves out {what}")
        return whole

    def unseen(self, messages, whole, chat, place):
        """Messages that are not the assistant's and whose text is not seen in the whole: a short one may be
        seen by chance, so all of these are tried at once with others in their place."""
        said = {i: m["content"].strip() for i, m in enumerate(messages) if m["role"] != "assistant"}
        doubtful = [i for i, text in said.items() if text and (len(text) < 8 or text not in whole)]
        if not doubtful:
            return []
        tried = [{**m, "content": f"tried-{i}-out"} if i in doubtful else m for i, m in enumerate(messages)]
        try:
            text = self.render(tried, chat, place)
        except BadDocument:
            return doubtful
        return [i for i in doubtful if f"tried-{i}-out" not in text]

    # ---- calls of tools ----

    def with_calls_as_read(self, chat, place):
        """The messages, the arguments of calls as objects or as the text of one: what this template
        lays out as the JSON that a server would have."""
        if not any(m.get("tool_calls") for m in chat.messages):
            return chat.messages
        as_text = self.calls_are_texts(chat)
        return [{**m, "tool_calls": [self.call_as_read(c, as_text, place) for c in m["tool_calls"]]}
                if m.get("tool_calls") else m for m in chat.messages]

    @staticmethod
    def call_as_read(call, as_text, place):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or "arguments" not in function:
            return call
        value = function["arguments"]
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise BadDocument(f"{place}: the arguments of a call of {function.get('name')} are not JSON: "
                                  f"{error}") from None
        if as_text:
            value = json.dumps(value, ensure_ascii=False)
        function = {**function, "arguments": value}
        return {**call, "function": function} if "function" in call else function

    def calls_are_texts(self, chat):
        """Tried out: objects, unless only texts come out as JSON."""
        key = chat.tools is not None
        if key not in self._forms:
            objects = self._laid_out({PROBED_KEY: PROBED_VALUE}, chat)
            texts = self._laid_out(json.dumps({PROBED_KEY: PROBED_VALUE}), chat)
            is_json = f'"{PROBED_KEY}": "{PROBED_VALUE}"'
            listed = PROBED_KEY in objects and PROBED_VALUE in objects and f"'{PROBED_KEY}'" not in objects
            self._forms[key] = not listed and is_json in texts
        return self._forms[key]

    def _laid_out(self, arguments, chat):
        call = {"id": "call00001", "type": "function", "function": {"name": "probed", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            return self.render(messages, chat, "")
        except UserError:
            return ""


def answer_turn(begin, text):
    return Turn([(begin, len(text))], len(text))


def template_line(error):
    """Of the innermost line of the template that an error went through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" in its line {line}"


def head(text, most=40):
    return repr(text if len(text) <= most else text[:most] + "…")


def tail(text, most=40):
    return repr(text if len(text) <= most else "…" + text[-most:])


def has_template(folder):
    settings = read_json(os.path.join(folder, "tokenizer_config.json"))
    return bool(settings.get("chat_template")) or os.path.isfile(os.path.join(folder, "chat_template.jinja")) or \
        os.path.isdir(os.path.join(folder, "additional_chat_templates"))
