"""Renders chats with the model's own chat template, and finds which characters are trained on.

The template is run by transformers, so the text is the one that a server makes of the same
messages. For each answer, two texts are rendered:
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
from training_data.fields import HARMLESS_NAMES, canonical_name, is_empty_or_empty_json
from training_data.records import read_json

TRAIN_ON = ("assistant", "last", "all")
PROBED_NAME, PROBED_KEY, PROBED_VALUE = "probed_name", "probed_key", "probed value"
GENERATION_TAG = r"\{%-?\s*(?:end)?generation\s*-?%\}"
# Variables of a template that its caller always sets.
CALLER_VARIABLES = ("messages", "tools", "add_generation_prompt")
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
        self.name = self._existing(name)
        self._sources, self._forms = {}, {}

    def _existing(self, name):
        """Returns the name of a template; raises an error if there is no such template."""
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

    def writes_current_date(self):
        """Returns whether the template writes the current date."""
        return "strftime_now" in self.source(None)

    # ---- rendering ----

    def render(self, messages, chat, location, prompt=False):
        """Returns the text of messages; `prompt` appends the generation prompt."""
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
            return BadDocument(f"{location}: the chat template refuses the chat: {error}")
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
        return frozenset(meta.find_undeclared_variables(tree)) - set(CALLER_VARIABLES) - set(
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
                raise BadDocument(f'{location}: "{key}" in "chat_template_kwargs" cannot be an '
                                  'argument of a chat template; remove it')
        for key in chat.other_fields:
            if key in known:
                raise BadDocument(f'{location}: "{key}" is an argument of this chat template, '
                                  'which is read only from "chat_template_kwargs"; '
                                  f"write it there, or ignore it with --ignore-fields {key}")
        for key in chat.options:
            if key not in known:
                notes.count(("unread", f"chat_template_kwargs.{key}"), location)
        for key in self.options.keys() - known:
            notes.count(("unread", f"{key} of --template-options"), location)

    def with_readable_tools(self, chat, notes, location):
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
        """Returns whether the template renders tools, with or without OpenAI's wrapper."""
        function = {"name": PROBED_NAME, "description": PROBED_VALUE,
                    "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": function} if wrapped else function]
        return PROBED_NAME in self._probe([{"role": "user", "content": "x"}], tools)

    @functools.lru_cache(256)
    def reads_tool_key(self, key, wrapped):
        """Returns whether the template renders the value of a key of a tool's function."""
        function = {"name": PROBED_NAME, "description": "seeks",
                    "parameters": {"type": "object", "properties": {}}}
        texts = [self._probe([{"role": "user", "content": "x"}],
                             [{"type": "function", "function": variant} if wrapped else variant])
                 for variant in ({**function, key: PROBED_VALUE},
                                 {name: value for name, value in function.items() if name != key})]
        return texts[0] != texts[1]

    def _probe(self, messages, tools):
        """Returns the rendered text; "" if the template fails."""
        from training_data.conversations import Chat

        try:
            return self.render(messages, Chat("", [], [], tools=tools), "")
        except UserError:
            return ""

    # ---- samples ----

    def samples(self, chat, train_on, location, notes):
        """Returns the Samples of a chat. `notes` (encoding.Notes) counts what the report says."""
        self.check_arguments(chat, location, notes)
        chat = self.with_readable_tools(chat, notes, location)
        messages = self.with_readable_calls(chat, location)
        if train_on == "all":
            if chat.first_excluded:
                raise BadDocument(f"{location}: message {chat.first_excluded} says that it is not "
                                  "trained on, and --train-on all trains on every token; remove "
                                  "one of the two")
            full_text = self.render_complete(messages, chat, location)
            self.count_unread(messages, full_text, [], chat, location, notes)
            return [Sample(full_text, None)]
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"
                   and chat.may_train[i]]
        if not answers:
            cause = (f": message {chat.first_excluded} says that it is not trained on"
                     if chat.first_excluded else "")
            raise BadDocument(f"{location}: has no assistant message to train on{cause}")
        if train_on == "last":
            answers = answers[-1:]
        notes.count(("unread", "messages after the last answer"), location,
                    len(messages) - answers[-1] - 1)
        messages = messages[:answers[-1] + 1]  # nothing after the last answer is trained on
        full_text = self.render_complete(messages, chat, location)
        self.count_unread(messages, full_text, answers, chat, location, notes)
        texts = [full_text if i == answers[-1] else self.render(messages[:i + 1], chat, location)
                 for i in answers]
        for i, text in zip(answers, texts):
            self.refuse_lost_reasoning(messages[:i + 1], text, chat, location)
        turns = [self.turn(messages, i, text, chat, location, notes)
                 for i, text in zip(answers, texts)]
        if all(full_text.startswith(text) for text in texts):
            groups = [(messages, full_text, turns)]
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
        keys = [key for key in messages[-1] if canonical_name(key) in map(canonical_name,
                                                                          REASONING)]
        if keys and self.is_rendering_of(
                text, [*messages[:-1], without_keys(messages[-1], keys)], chat, location):
            raise BadDocument(f'{location}: this chat template leaves out "{keys[0]}" of message '
                              f'{len(messages)}; write it into "content", or '
                              f"ignore it with --ignore-fields {keys[0]}")

    def count_unread(self, messages, full_text, answers, chat, location, notes):
        """Counts the keys of messages and calls that the template ignores. The reasoning of
        `answers` is checked elsewhere."""
        checked = {i: CHECKED_KEYS if i in answers else CHECKED_KEYS[:-len(REASONING)]
                   for i in range(len(messages))}
        role_keys = dict.fromkeys(
            (m["role"], k) for i, m in enumerate(messages) for k in m
            if k not in checked[i] and canonical_name(k) not in HARMLESS_NAMES)
        for role, key in role_keys:
            having = [i for i, m in enumerate(messages) if m["role"] == role and key in m
                      and key not in checked[i]]
            fewer = [without_keys(m, [key]) if i in having else m for i, m in enumerate(messages)]
            if self.is_rendering_of(full_text, fewer, chat, location):
                notes.count(("unread", f"message.{key}"), location, len(having))
        functions = [(tool.get("function", tool), "function" in tool) for tool in chat.tools or []]
        for function, is_wrapped in functions:
            for key, value in function.items():
                if (key not in ("name", "type") and not is_empty_or_empty_json(value)
                        and not self.reads_tool_key(key, is_wrapped)):
                    notes.count(("unread", f"tool.{key}"), location)
        calls = [call for m in messages for call in m.get("tool_calls", ())]
        for key in dict.fromkeys(key for call in calls for key in extra_keys(call)):
            fewer = [{**m, "tool_calls": [without_extra_key(c, key) for c in m["tool_calls"]]}
                     if m.get("tool_calls") else m for m in messages]
            if self.is_rendering_of(full_text, fewer, chat, location):
                notes.count(("unread", f"call.{key}"), location,
                            sum(key in extra_keys(call) for call in calls))

    def turn(self, messages, i, text, chat, location, notes):
        """Returns the turn of answer `i`; `text` is rendered from the messages up to it."""
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
                "follows, so the model would be trained on text that no server produces: after "
                f"{end_of(text[:same])} a server has {beginning_of(prompt[same:])}, the chat "
                f"{beginning_of(text[same:])}; use --train-on all or --plain")
        notes.count("prefilled", f"{location}: after {end_of(text[:same])} a server has "
                                 f"{beginning_of(prompt[same:])}, the chat "
                                 f"{beginning_of(text[same:])}")
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
                                  f"answer, after {end_of(text[:begin])}; use --train-on all, or "
                                  "correct the template")
            narrowed.append(Turn(inside, turn.limit))
        return narrowed

    def render_complete(self, messages, chat, location):
        """Returns the text of the conversation. Refuses the conversation if the template silently
        drops a part of it."""
        full_text = self.render(messages, chat, location)
        self.refuse_parts(messages, full_text, chat, location)
        self.refuse_lost_tools(messages, full_text, chat, location)
        for i, changed, what in self.changed_calls(messages):
            message = {**messages[i], "tool_calls": changed}
            if self.is_rendering_of(full_text, [*messages[:i], message, *messages[i + 1:]], chat,
                                    location):
                raise BadDocument(f"{location}: this chat template leaves out {what}")
        for i in self.find_unrendered(messages, full_text, chat, location):
            changed = {**messages[i], "content": ""}
            if self.is_rendering_of(full_text, [*messages[:i], changed, *messages[i + 1:]], chat,
                                    location):
                role = messages[i]["role"]
                raise BadDocument(f"{location}: this chat template leaves out " +
                                  (f"the text of message {i + 1}, which has tool_calls"
                                   if role == "assistant" else f"messages of the role {role}"))
        return full_text

    def refuse_parts(self, messages, full_text, chat, location):
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
            if text != full_text and "{'type'" not in text and '{"type"' not in text:
                raise BadDocument(f"{location}: this chat template renders the {len(parts)} "
                                  f"content parts of message {i + 1} differently from their joined "
                                  "text; write its content as one text")

    @staticmethod
    def changed_calls(messages):
        """Yields (index of a message, its changed tool_calls, what was left out): without all its
        calls, without each single call, and with the arguments of each call empty."""
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

    def refuse_lost_tools(self, messages, full_text, chat, location):
        """Raises an error if the template drops a tool."""
        for number, tool in enumerate(chat.tools or [], 1):
            name = tool.get("function", tool)["name"]
            if name not in full_text or not (
                    self.reads_tools("function" in tool)
                    or self.differs_without(number - 1, messages, full_text, chat, location)):
                raise BadDocument(f"{location}: this chat template leaves out tools: {name}, item "
                                  f"{number}")

    def differs_without(self, at, messages, full_text, chat, location):
        """Returns whether the rendered text depends on the name of tool `at`."""
        function = {**chat.tools[at].get("function", chat.tools[at]), "name": PROBED_NAME}
        tool = {**chat.tools[at],
                "function": function} if "function" in chat.tools[at] else function
        tools = [*chat.tools[:at], tool, *chat.tools[at + 1:]]
        return not self.is_rendering_of(full_text, messages, dataclasses.replace(chat, tools=tools),
                                        location)

    def find_unrendered(self, messages, full_text, chat, location):
        """Returns the indices of the messages whose text does not occur in the rendered
        conversation, except answers without calls. A short text may occur by chance, so for a test
        all short texts are replaced at the same time."""
        texts = {i: m["content"].strip() for i, m in enumerate(messages)
                 if m["role"] != "assistant" or m.get("tool_calls")}
        candidates = [i for i, text in texts.items()
                      if text and (len(text) < 8 or text not in full_text)]
        if not candidates:
            return []
        probes = [{**m, "content": f"tried-{i}-out"} if i in candidates else m
                  for i, m in enumerate(messages)]
        try:
            text = self.render(probes, chat, location)
        except BadDocument:
            return candidates
        return [i for i in candidates if f"tried-{i}-out" not in text]

    # ---- calls of tools ----

    def with_readable_calls(self, chat, location):
        """Returns the messages with the arguments of calls as objects or as JSON text, depending on
        which of them this template renders as the JSON that a server would produce."""
        if not any(m.get("tool_calls") for m in chat.messages):
            return chat.messages
        as_text = self.calls_are_texts(chat)
        wrap = not self.reads_bare_calls()
        return [{**m, "tool_calls": [in_openai_form(self.convert_call(c, as_text, location), wrap)
                                     for c in m["tool_calls"]]}
                if m.get("tool_calls") else m for m in chat.messages]

    @staticmethod
    def convert_call(call, as_text, location):
        """Returns a call with its arguments as JSON text or as an object."""
        function = call.get("function", call)
        original = value = function["arguments"]
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise BadDocument(f"{location}: the arguments of a call of {function.get('name')} "
                                  f"are not JSON: {error}") from None
        if as_text:
            value = original if isinstance(original, str) else json.dumps(value, ensure_ascii=False)
        function = {**function, "arguments": value}
        return {**call, "function": function} if "function" in call else function

    def calls_are_texts(self, chat):
        """Returns whether arguments of calls must be passed as JSON text. Both forms are rendered:
        objects are used, unless only text is rendered as JSON."""
        key = chat.tools is not None
        if key not in self._forms:
            objects = self._render_call({PROBED_KEY: PROBED_VALUE}, chat)
            texts = self._render_call(json.dumps({PROBED_KEY: PROBED_VALUE}), chat)
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
        text = self._probe([{"role": "user", "content": "x"},
                            {"role": "assistant", "content": "", "tool_calls": [call]}], None)
        return PROBED_NAME in text and PROBED_KEY in text

    def _render_call(self, arguments, chat):
        """Returns the text of a call with these arguments; "" if the template fails."""
        call = {"id": "call00001", "type": "function",
                "function": {"name": "probed", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"},
                    {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            return self.render(messages, chat, "")
        except UserError:
            return ""


def in_openai_form(call, wrap):
    """Returns a call without a wrapper in OpenAI's form if `wrap` is set; otherwise the call
    itself."""
    if not wrap or "function" in call:
        return call
    inside = {key: value for key, value in call.items() if key in ("name", "arguments")}
    return {"type": "function", **{key: value for key, value in call.items() if key not in inside},
            "function": inside}


def without_keys(message, keys):
    """Returns a message without some keys."""
    return {key: value for key, value in message.items() if key not in keys}


def extra_keys(call):
    """Returns the keys of a call in addition to the standard ones."""
    outer = without_keys(call, ("id", "type", "index", "function",
                           *(() if "function" in call else ("name", "arguments"))))
    inner = without_keys(call["function"], ("name", "arguments")) if "function" in call else {}
    return [key for key, value in {**outer, **inner}.items() if not is_empty_or_empty_json(value)]


def without_extra_key(call, key):
    """Returns a call without a key that is not a standard one, also in its function."""
    if "function" not in call:
        return without_keys(call, [key])
    function_keys = () if key in ("name", "arguments") else (key,)
    return {**without_keys(call, [key]), "function": without_keys(call["function"], function_keys)}


def answer_turn(begin, text):
    """Returns the turn of an answer that extends from `begin` to the end of a text."""
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


def beginning_of(text, max_length=40):
    """Returns the beginning of a text for a message."""
    return repr(text if len(text) <= max_length else text[:max_length] + "…")


def end_of(text, max_length=40):
    """Returns the end of a text for a message."""
    return repr(text if len(text) <= max_length else "…" + text[-max_length:])


def has_template(folder):
    """Returns whether a model folder has a chat template."""
    settings = read_json(os.path.join(folder, "tokenizer_config.json"))
    return bool(settings.get("chat_template")) or os.path.isfile(
        os.path.join(folder, "chat_template.jinja")) or \
        os.path.isdir(os.path.join(folder, "additional_chat_templates"))
