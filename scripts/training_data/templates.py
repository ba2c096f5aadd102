"""Lays out chats by the model's own chat template, and finds which characters are trained on.

transformers renders, so that the text is what a server makes of the same messages. For each
answer, two texts are rendered:
  P = the messages before the answer, with the generation prompt (a server gives the model this)
  F = the messages up to and including the answer
P must be a prefix of F, byte by byte; the rest of F is the target. If every F is a prefix of the
whole conversation, the conversation is one sample. Otherwise the template changes earlier messages
when later ones follow (for example, it leaves reasoning out of the history), and the F of each
answer becomes a separate sample, as at inference. If the template itself marks the generated text
({% generation %}), only the marked part is trained on."""
import collections
import dataclasses
import functools
import inspect
import json
import os
import re

from script_errors import BadDocument, UserError
from training_data.conversations import REASONING
from training_data.fields import HARMLESS_NAMES, canonical, is_empty_or_empty_json
from training_data.records import read_json

TRAIN_ON = ("assistant", "last", "all")
PROBED_NAME, PROBED_KEY, PROBED_VALUE = "probed_name", "probed_key", "probed value"
GENERATION_TAG = r"\{%-?\s*(?:end)?generation\s*-?%\}"
# Variables of a template that its caller always sets.
GIVEN = ("messages", "tools", "add_generation_prompt")
# Keys of a message that have their own checks, or that identify messages.
CHECKED_KEYS = ("role", "content", "tool_calls", "tool_call_id", *REASONING)

# The text of a sample, and its answers (Turn); `turns` None means that everything is trained on.
Sample = collections.namedtuple("Sample", "text turns")
# An answer: the ranges of characters that are trained on, and the end (exclusive) of the characters
# that belong to it.
Turn = collections.namedtuple("Turn", "ranges limit")


class ChatTemplate:
    """The chat template of a model folder. `name` selects one of several templates; `options` are
    passed to it with every chat."""

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
        """Returns the source of the template, selected as transformers selects it."""
        key = tools is not None
        if key not in self._sources:
            try:
                self._sources[key] = self.tokenizer.get_chat_template(self.name, tools)
            except ValueError:
                raise UserError(f"{self.folder}: has several chat templates and none is called "
                                "default; choose one with --chat-template: "
                                f"{', '.join(self.tokenizer.chat_template)}") from None
        return self._sources[key]

    def says_the_date(self):
        return "strftime_now" in self.source(None)

    # ---- rendering ----

    def render(self, messages, chat, location, prompt=False):
        options = {**self.options, **chat.options}
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=chat.tools, chat_template=self.source(chat.tools),
                add_generation_prompt=prompt,
                tokenize=False, **options)
        except UserError:
            raise
        except Exception as error:  # a template is a program and may raise anything
            raise self._failure(error, location) from None

    def marks(self, messages, chat, location):
        """Returns the ranges of characters in the template's generation blocks; None if the
        template has no such blocks."""
        source = self.source(chat.tools)
        if not re.search(GENERATION_TAG, source):
            return None
        from transformers.utils.chat_template_utils import render_jinja_template

        options = {**self.tokenizer.special_tokens_map, **self.options, **chat.options}
        try:
            return render_jinja_template([messages], tools=chat.tools, chat_template=source,
                                         return_assistant_tokens_mask=True, **options)[1][0]
        except Exception as error:
            raise self._failure(error, location) from None

    def _failure(self, error, location):
        from jinja2 import TemplateError, TemplateSyntaxError

        if isinstance(error, TemplateSyntaxError):
            return UserError(f"{self.folder}: line {error.lineno} of the chat template is not "
                             f"valid Jinja: {error.message}")
        if type(error) is TemplateError:  # its raise_exception
            return BadDocument(f"{location}: the chat template refuses it: {error}")
        return BadDocument(f"{location}: the chat template fails{template_line(error)}: {error}")

    # ---- the template's variables other than messages ----

    @functools.lru_cache(4)
    def variables(self, source):
        """Returns the names of the variables that the template reads; none if the template is not
        valid Jinja, which rendering reports."""
        from jinja2 import Environment, TemplateError, meta

        try:
            tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(
                re.sub(GENERATION_TAG, "", source))
        except TemplateError:
            return frozenset()
        return frozenset(meta.find_undeclared_variables(tree)) - set(GIVEN) - set(
            self.tokenizer.special_tokens_map)

    @functools.cached_property
    def reserved(self):
        """Returns the names of apply_chat_template's own parameters."""
        return frozenset(inspect.signature(self.tokenizer.apply_chat_template).parameters) | {
            "messages"}

    def check_arguments(self, chat, location, notes):
        """Refuses arguments that are given in a way in which the template does not receive them.
        Counts arguments that the template does not know."""
        known = self.variables(self.source(chat.tools))
        for key in chat.options:
            if key in self.reserved:
                raise BadDocument(f'{location}: "{key}" in "chat_template_kwargs" is no argument '
                                  'of a chat template; remove it')
        for key in chat.beside:
            if key in known:
                raise BadDocument(f'{location}: "{key}" is an argument of this chat template, '
                                  'which is read from "chat_template_kwargs" alone; '
                                  f"write it there, or pass over it with --ignore-fields {key}")
        for key in chat.options:
            if key not in known:
                notes.count(("unread", f"chat_template_kwargs.{key}"), location)
        for key in self.options.keys() - known:
            notes.count(("unread", f"{key} of --template-options"), location)

    def with_tools_as_read(self, chat, notes, location):
        """Returns the chat with its tools in the form that this template reads: unchanged if that
        works, else in OpenAI's form."""
        if not chat.tools or all("function" in tool for tool in chat.tools):
            return chat
        if not self.reads_tools(False) and self.reads_tools(True):
            return dataclasses.replace(chat,
                                       tools=[t if "function" in t
                                              else {"type": "function", "function": t}
                                              for t in chat.tools])
        notes.count("bare tools", location)
        return chat

    @functools.lru_cache(2)
    def reads_tools(self, wrapped):
        function = {"name": PROBED_NAME, "description": PROBED_VALUE,
                    "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": function} if wrapped else function]
        return PROBED_NAME in self._probed([{"role": "user", "content": "x"}], tools)

    @functools.lru_cache(256)
    def reads_tool_key(self, key, wrapped):
        """Returns whether the template renders the value of a key of a tool's function."""
        function = {"name": PROBED_NAME, "description": "seeks",
                    "parameters": {"type": "object", "properties": {}}}
        shown = [self._probed([{"role": "user", "content": "x"}],
                              [{"type": "function", "function": one} if wrapped else one])
                 for one in ({**function, key: PROBED_VALUE},
                             {name: value for name, value in function.items() if name != key})]
        return shown[0] != shown[1]

    def _probed(self, messages, tools):
        from training_data.conversations import Chat

        try:
            return self.render(messages, Chat("", [], [], tools=tools), "")
        except UserError:
            return ""

    # ---- samples ----

    def samples(self, chat, train_on, location, notes):
        """Returns the Samples of a chat. `notes` (encoding.Notes) counts what the report says."""
        self.check_arguments(chat, location, notes)
        chat = self.with_tools_as_read(chat, notes, location)
        messages = self.with_calls_as_read(chat, location)
        if train_on == "all":
            if chat.held_back:
                raise BadDocument(f"{location}: message {chat.held_back} says that it is not "
                                  "trained on, and --train-on all trains on every token; leave one "
                                  "of them out")
            whole = self.whole_text(messages, chat, location)
            self.count_unread(messages, whole, [], chat, location, notes)
            return [Sample(whole, None)]
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"
                   and chat.may_train[i]]
        if not answers:
            held_back = (f": message {chat.held_back} says that it is not trained on"
                         if chat.held_back else "")
            raise BadDocument(f"{location}: has no assistant message to train on{held_back}")
        if train_on == "last":
            answers = answers[-1:]
        notes.count(("unread", "messages after the last answer"), location,
                    len(messages) - answers[-1] - 1)
        messages = messages[:answers[-1] + 1]  # nothing after the last answer is trained on
        whole = self.whole_text(messages, chat, location)
        self.count_unread(messages, whole, answers, chat, location, notes)
        texts = [whole if i == answers[-1] else self.render(messages[:i + 1], chat, location)
                 for i in answers]
        for i, text in zip(answers, texts):
            self.refuse_lost_reasoning(messages[:i + 1], text, chat, location)
        turns = [self.turn(messages, i, text, chat, location, notes)
                 for i, text in zip(answers, texts)]
        if all(whole.startswith(text) for text in texts):
            groups = [(messages, whole, turns)]
        else:
            notes.count("rewritten")
            groups = [(messages[:i + 1], text, [turn])
                      for i, text, turn in zip(answers, texts, turns)]
        return [Sample(text, self.marked(part, text, turns, chat, location))
                for part, text, turns in groups]

    def is_rendering_of(self, text, messages, chat, location):
        """Returns whether the template renders the same text from other messages. False if it
        refuses them."""
        try:
            return text == self.render(messages, chat, location)
        except BadDocument:
            return False

    def refuse_lost_reasoning(self, messages, text, chat, location):
        """Raises an error if the template drops the reasoning of the last message, an answer that
        is trained on."""
        keys = [key for key in messages[-1] if canonical(key) in map(canonical, REASONING)]
        if keys and self.is_rendering_of(text, [*messages[:-1], without(messages[-1], keys)], chat,
                                         location):
            raise BadDocument(f'{location}: this chat template leaves out "{keys[0]}" of message '
                              f'{len(messages)}; write it into "content", or '
                              f"pass over it with --ignore-fields {keys[0]}")

    def count_unread(self, messages, whole, answers, chat, location, notes):
        """Counts the keys of messages and calls that the template ignores. The reasoning of
        `answers` is checked elsewhere."""
        checked = {i: CHECKED_KEYS if i in answers else CHECKED_KEYS[:-len(REASONING)]
                   for i in range(len(messages))}
        found = dict.fromkeys((m["role"], k) for i, m in enumerate(messages) for k in m
                              if k not in checked[i] and canonical(k) not in HARMLESS_NAMES)
        for role, key in found:
            having = [i for i, m in enumerate(messages) if m["role"] == role and key in m
                      and key not in checked[i]]
            if self.is_rendering_of(whole, [without(m, [key]) if i in having else m
                                            for i, m in enumerate(messages)], chat, location):
                notes.count(("unread", f"message.{key}"), location, len(having))
        functions = [(tool.get("function", tool), "function" in tool) for tool in chat.tools or []]
        for function, is_wrapped in functions:
            for key, value in function.items():
                if key not in ("name",
                               "type") and not is_empty_or_empty_json(value) and not self.reads_tool_key(
                                   key, is_wrapped):
                    notes.count(("unread", f"tool.{key}"), location)
        calls = [call for m in messages for call in m.get("tool_calls", ())]
        for key in dict.fromkeys(key for call in calls for key in more_keys(call)):
            fewer = [{**m, "tool_calls": [without_more(c, key) for c in m["tool_calls"]]}
                     if m.get("tool_calls") else m for m in messages]
            if self.is_rendering_of(whole, fewer, chat, location):
                notes.count(("unread", f"call.{key}"), location,
                            sum(key in more_keys(call) for call in calls))

    def turn(self, messages, i, text, chat, location, notes):
        if i == 0:
            return self.opening_turn(messages, text, chat, location)
        prompt = self.render(messages[:i], chat, location, prompt=True)
        if text.startswith(prompt):
            return answer_turn(len(prompt), text)
        same = len(os.path.commonprefix([prompt, text]))
        before = self.render(messages[:i], chat, location)
        if not text.startswith(before) or same < len(before):
            raise BadDocument(
                f"{location}: the chat template changes earlier messages when message {i + 1} "
                "follows, so that no server would give the model what is trained on: after "
                f"{tail(text[:same])} a server has {head(prompt[same:])}, the chat "
                f"{head(text[same:])}; use --train-on all or --plain")
        notes.count("prefilled", f"{location}: after {tail(text[:same])} a server has "
                                 f"{head(prompt[same:])}, the chat {head(text[same:])}")
        return answer_turn(same, text)

    def opening_turn(self, messages, text, chat, location):
        """Returns the turn of a chat in which the assistant speaks first. No server renders an
        empty chat, so the prompt is found by searching for the text that introduces an answer."""
        user = [{"role": "user", "content": "x"}]
        lead = self.render(user, chat, location,
                           prompt=True).removeprefix(self.render(user, chat, location))
        at = text.find(lead) if lead else -1
        return answer_turn(0 if at < 0 else at + len(lead), text)

    def marked(self, messages, text, turns, chat, location):
        """Returns the turns, restricted to the characters that the template's marks include."""
        marks = self.marks(messages, chat, location)
        if marks is None:
            return turns
        narrowed = []
        for turn in turns:
            (begin, end), = turn.ranges
            inside = [(max(begin, b), min(end, e)) for b, e in marks if max(begin, b) < min(end, e)]
            if not inside:
                raise BadDocument(f"{location}: the chat template's generation marks leave out an "
                                  f"answer, after {tail(text[:begin])}; use --train-on all, or "
                                  "correct the template")
            narrowed.append(Turn(inside, turn.limit))
        return narrowed

    def whole_text(self, messages, chat, location):
        """Returns the text of the conversation. Refuses the conversation if the template silently
        drops a part of it."""
        whole = self.render(messages, chat, location)
        self.refuse_parts(messages, whole, chat, location)
        self.refuse_lost_tools(messages, whole, chat, location)
        for i, changed, what in self.changed_calls(messages):
            if self.is_rendering_of(whole, [*messages[:i], {**messages[i], "tool_calls": changed},
                                            *messages[i + 1:]], chat, location):
                raise BadDocument(f"{location}: this chat template leaves out {what}")
        for i in self.unseen(messages, whole, chat, location):
            changed = {**messages[i], "content": ""}
            if self.is_rendering_of(whole, [*messages[:i], changed, *messages[i + 1:]], chat,
                                    location):
                role = messages[i]["role"]
                raise BadDocument(f"{location}: this chat template leaves out " +
                                  (f"what message {i + 1} says beside its tool_calls"
                                   if role == "assistant" else f"messages of the role {role}"))
        return whole

    def refuse_parts(self, messages, whole, chat, location):
        """Refuses a content that was a list of parts if the template supports parts and renders
        them differently from the joined text that is used here."""
        for i, message in enumerate(messages):
            parts = getattr(message, "parts", None)
            if not parts:
                continue
            try:
                text = self.render([*messages[:i], {**message, "content": parts},
                                    *messages[i + 1:]], chat, location)
            except BadDocument:
                continue
            if text != whole and "{'type'" not in text and '{"type"' not in text:
                raise BadDocument(f"{location}: this chat template renders the {len(parts)} "
                                  f"content parts of message {i + 1} differently from their joined "
                                  "text; write its content as one text")

    @staticmethod
    def changed_calls(messages):
        """Yields, for each call, the messages without this call, and the messages without its
        arguments."""
        for i, message in enumerate(messages):
            calls = message.get("tool_calls") or []
            if calls:
                yield i, "", "tool_calls"
            for at, call in enumerate(calls):
                if len(calls) > 1:
                    yield i, [*calls[:at], *calls[at + 1:]], f"call {at + 1} of message {i + 1}"
                function = call.get("function", call)
                empty = {**function, "arguments": "{}" if isinstance(function["arguments"], str)
                         else {}}
                if function["arguments"] != empty["arguments"]:
                    changed = {**call, "function": empty} if "function" in call else empty
                    yield i, [*calls[:at], changed,
                              *calls[at + 1:]], f"the arguments of call {at + 1} of message {i + 1}"

    def refuse_lost_tools(self, messages, whole, chat, location):
        for number, tool in enumerate(chat.tools or [], 1):
            name = tool.get("function", tool)["name"]
            if name not in whole or not (self.reads_tools("function" in tool)
                                         or self.differs_without(number - 1, messages, whole, chat,
                                                                 location)):
                raise BadDocument(f"{location}: this chat template leaves out tools: {name}, item "
                                  f"{number}")

    def differs_without(self, at, messages, whole, chat, location):
        function = {**chat.tools[at].get("function", chat.tools[at]), "name": PROBED_NAME}
        tool = {**chat.tools[at],
                "function": function} if "function" in chat.tools[at] else function
        tools = [*chat.tools[:at], tool, *chat.tools[at + 1:]]
        return not self.is_rendering_of(whole, messages, dataclasses.replace(chat, tools=tools),
                                        location)

    def unseen(self, messages, whole, chat, location):
        """Returns the messages whose text does not occur in the rendered conversation, except
        answers without calls. A short text may occur by chance, so for a test all short texts are
        replaced at the same time."""
        said = {i: m["content"].strip() for i, m in enumerate(messages) if m["role"] != "assistant"
                or m.get("tool_calls")}
        doubtful = [i for i, text in said.items() if text and (len(text) < 8 or text not in whole)]
        if not doubtful:
            return []
        tried = [{**m, "content": f"tried-{i}-out"} if i in doubtful else m
                 for i, m in enumerate(messages)]
        try:
            text = self.render(tried, chat, location)
        except BadDocument:
            return doubtful
        return [i for i in doubtful if f"tried-{i}-out" not in text]

    # ---- calls of tools ----

    def with_calls_as_read(self, chat, location):
        """Returns the messages with the arguments of calls as objects or as JSON text, depending on
        which of them this template renders as the JSON that a server would produce."""
        if not any(m.get("tool_calls") for m in chat.messages):
            return chat.messages
        as_text = self.calls_are_texts(chat)
        wrap = not self.reads_bare_calls()
        return [{**m, "tool_calls": [wrapped(self.call_as_read(c, as_text, location), wrap)
                                     for c in m["tool_calls"]]}
                if m.get("tool_calls") else m for m in chat.messages]

    @staticmethod
    def call_as_read(call, as_text, location):
        function = call.get("function", call)
        given = value = function["arguments"]
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise BadDocument(f"{location}: the arguments of a call of {function.get('name')} "
                                  f"are not JSON: {error}") from None
        if as_text:
            value = given if isinstance(given, str) else json.dumps(value, ensure_ascii=False)
        function = {**function, "arguments": value}
        return {**call, "function": function} if "function" in call else function

    def calls_are_texts(self, chat):
        """Returns whether arguments of calls must be passed as JSON text. This is tried out:
        objects are used, unless only text is rendered as JSON."""
        key = chat.tools is not None
        if key not in self._forms:
            objects = self._laid_out({PROBED_KEY: PROBED_VALUE}, chat)
            texts = self._laid_out(json.dumps({PROBED_KEY: PROBED_VALUE}), chat)
            is_json = f'"{PROBED_KEY}": "{PROBED_VALUE}"'
            listed = (PROBED_KEY in objects and PROBED_VALUE in objects
                      and f"'{PROBED_KEY}'" not in objects)
            self._forms[key] = not listed and is_json in texts
        return self._forms[key]

    @functools.lru_cache(1)
    def reads_bare_calls(self):
        """Returns whether the template supports calls without the wrapper {"type": "function",
        "function": ...}."""
        call = {"name": PROBED_NAME, "arguments": {PROBED_KEY: PROBED_VALUE}}
        text = self._probed([{"role": "user", "content": "x"},
                             {"role": "assistant", "content": "", "tool_calls": [call]}], None)
        return PROBED_NAME in text and PROBED_KEY in text

    def _laid_out(self, arguments, chat):
        call = {"id": "call00001", "type": "function",
                "function": {"name": "probed", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"},
                    {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            return self.render(messages, chat, "")
        except UserError:
            return ""


def wrapped(call, wrap):
    """Returns a call without a wrapper in OpenAI's form if `wrap` is set; otherwise the call
    itself."""
    if not wrap or "function" in call:
        return call
    inside = {key: value for key, value in call.items() if key in ("name", "arguments")}
    return {"type": "function", **{key: value for key, value in call.items() if key not in inside},
            "function": inside}


def without(message, keys):
    return {key: value for key, value in message.items() if key not in keys}


def more_keys(call):
    """Returns the keys of a call in addition to the standard ones."""
    outer = without(call, ("id", "type", "index", "function",
                           *(() if "function" in call else ("name", "arguments"))))
    inner = without(call["function"], ("name", "arguments")) if "function" in call else {}
    return [key for key, value in {**outer, **inner}.items() if not is_empty_or_empty_json(value)]


def without_more(call, key):
    if "function" not in call:
        return without(call, [key])
    kept = () if key in ("name", "arguments") else (key,)
    return {**without(call, [key]), "function": without(call["function"], kept)}


def answer_turn(begin, text):
    return Turn([(begin, len(text))], len(text))


def template_line(error):
    """Returns a clause that names the innermost line of the template in the traceback of an
    error."""
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
    return bool(settings.get("chat_template")) or os.path.isfile(
        os.path.join(folder, "chat_template.jinja")) or \
        os.path.isdir(os.path.join(folder, "additional_chat_templates"))
