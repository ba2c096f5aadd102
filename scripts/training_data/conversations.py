"""Converts the object of a document, in any of the shapes in which chats are commonly stored, to a
conversation."""
import dataclasses
import json

from script_errors import BadDocument
from training_data.fields import (MESSAGE_MEANINGS, RECORD_MEANINGS, Fields, canonical_name,
                                  is_empty_or_empty_json, is_empty, refuse_or_count, as_bool)

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
         "chatgpt": "assistant",
         "bot": "assistant", "model": "assistant", "system": "system", "developer": "developer",
         "tool": "tool",
         "observation": "tool", "function_response": "tool", "function_call": "assistant"}
# Roles of messages whose content is a call as JSON.
CALL_ROLES = ("function_call", "tool_call")
# Other names of the same roles, which error messages do not list.
MORE_ROLES = {"function": "tool", "ipython": "tool", "tool_response": "tool", "tool_result": "tool",
              "tool_call": "assistant"}
# The keys under which reasoning is stored; transformers passes all three to a template.
REASONING = ("reasoning_content", "thinking", "reasoning")
PLAIN_PART_KEYS = ("type", "text", "annotations", "cache_control", "citations", "id", "index")


@dataclasses.dataclass
class Chat:
    """A chat is a conversation: messages in the form that a chat template expects."""

    shape: str  # the name of the document's shape in the report
    messages: list
    may_train: list  # for each message, whether its document lets it be trained on
    tools: list | None = None
    options: dict = dataclasses.field(default_factory=dict)  # options for the template
    pair: tuple | None = None  # a prompt and its completion, for joining them without a template
    # names of fields that are ignored and counted
    unread: list = dataclasses.field(default_factory=list)
    # the other fields of the record, which have no meaning in RECORD_MEANINGS, by name
    other_fields: dict = dataclasses.field(default_factory=dict)
    # the number of the first message that one of its fields excludes from training
    first_excluded: int | None = None

    def count_empty_answers(self):
        """Returns the number of assistant messages without a text and without a call."""
        return sum(m["role"] == "assistant" and not m["content"].strip() and not m.get("tool_calls")
                   for m in self.messages)


@dataclasses.dataclass
class Text:
    """A text is a document without roles, which is trained on as a whole."""

    text: str
    shape: str = "text"
    unread: list = dataclasses.field(default_factory=list)


def read_object(content, location, ignored=frozenset()):
    """Returns the Chat or Text that an object holds. `ignored` are canonical names of fields to
    ignore."""
    record = Fields(content, RECORD_MEANINGS, location, ignored)
    if not record.by_meaning and "input_ids" in content:
        raise BadDocument(f'{location}: holds token ids ("input_ids"), so the file needs no '
                          'preparation; name it in data.train')
    unread = refuse_or_count(record.others, location,
                             has_messages=record.has("messages")) + record.ignored_keys
    read = read_shape(record, location, ignored, content)
    refuse_label(record, read, location)
    read.unread += unread
    if isinstance(read, Chat):
        read.other_fields = record.others
    return read


def read_shape(record, location, ignored, content):
    """Reads the first shape whose key has a value. An empty prompt counts as a value only if no
    other shape matches."""
    shapes = {"messages": read_messages, "prompt": read_prompt, "instruction": read_instruction,
              "text": read_record_text}
    meanings = ([meaning for meaning in shapes if not is_empty_or_empty_json(record.raw(meaning))]
                or [meaning for meaning in ("prompt", "instruction", "text", "messages")
                    if meaning in record.by_meaning])
    if not meanings:
        raise BadDocument(f'{location}: has none of "messages", "conversations", "prompt", '
                          '"instruction" or "text"; '
                          + (f"its keys are {', '.join(map(str, list(content)[:8]))}"
                             if content else "it is empty"))
    return shapes[meanings[0]](record, location, ignored)


def refuse_label(record, read, location):
    """Refuses a completion that is labeled as bad (an unpaired preference), because the model must
    not learn it."""
    if record.has("good"):
        if as_bool(record.get("good")) is False:
            raise BadDocument(f'{location}: "{record.key("good")}" is '
                              f'{shortened(record.get("good"))}: its answer must not be imitated')
        read.unread.append(record.key("good"))
    if not record.has("label"):
        return
    key, value = record.key("label"), record.get("label")
    if isinstance(read, Text):
        raise BadDocument(f'{location}: "{key}" is {shortened(value)}; a record with "text" cannot '
                          'have a label, because the whole text is trained on regardless of it; '
                          'write "prompt" and "completion" if the model should learn the label, '
                          f"or ignore it with --ignore-fields {key}")
    if as_bool(value) is False:
        raise BadDocument(f'{location}: "{key}" is {shortened(value)}: its answer must not be '
                          "imitated")
    if as_bool(value) is None:
        raise BadDocument(f'{location}: "{key}" is {shortened(value)}, expected true (an answer to '
                          'imitate) or false; correct it, or ignore it '
                          f"with --ignore-fields {key}")


def shortened(value, max_length=60):
    """Returns a value as JSON for a message, shortened to `max_length` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= max_length else text[:max_length] + "…"


# ---- the shapes ----


def read_messages(record, location, ignored):
    """Returns the chat of a record with a list of messages."""
    key, unread = record.key("messages"), []
    turns = parsed_json(record.get("messages"), f'"{key}"', location)
    if not isinstance(turns, list) or not turns:
        raise BadDocument(f'{location}: "{key}" must be a list of at least one message')
    names = ("role", "content") if key == "messages" else ("from", "value")
    read = [message_of(turn, names, n, location, ignored, unread)
            for n, turn in enumerate(turns, 1)]
    refuse_second_answer(record, [m for m, _ in read], location)
    unread += repeated_fields(record)
    messages, trained = with_system(record, read, location)
    return Chat(key, messages, [t is not False for t in trained], unread=unread,
                first_excluded=find_excluded(read),
                **template_inputs(record, location))


def read_prompt(record, location, ignored):
    """Returns the chat of a record with a prompt and a completion."""
    prompt_key, answer = record.key("prompt"), record.key("answer") or "response"
    if record.has("input"):
        raise BadDocument(f'{location}: "{record.key("input")}" is not used in a record with '
                          f'"{prompt_key}"; write its text into "{prompt_key}", '
                          f"or ignore it with --ignore-fields {record.key('input')}")
    if record.has("instruction"):
        raise second_prompt(record, "instruction", prompt_key, location)
    refuse_missing_answer(record, "response", prompt_key, location)
    prompt, completion = record.raw("prompt"), record.raw("answer")
    if isinstance(prompt, list) or isinstance(completion, list):
        return read_message_lists(record, prompt_key, answer, location, ignored)
    require_text(prompt_key, prompt, location)
    require_text(answer, completion, location)
    return chat_of_pairs(f"{prompt_key} and {answer}", (prompt, completion), record, location)


def read_message_lists(record, prompt_key, answer, location, ignored):
    """Returns the chat of a prompt and a completion that are lists of messages. Only the messages
    of the completion may be trained on."""
    parts, unread = [], []
    for key, role, value in ((prompt_key, "user", record.raw("prompt")),
                             (answer, "assistant", record.raw("answer"))):
        turns = [{"role": role, "content": value}] if isinstance(value, str) else value
        if not isinstance(turns, list) or not turns:
            raise BadDocument(f'{location}: "{key}" must be a text or a list of at least one '
                              'message')
        parts.append([message_of(turn, ("role", "content"), n, f'{location}: "{key}"', ignored,
                                 unread) for n, turn in enumerate(turns, 1)])
    if record.has("history"):
        raise BadDocument(f'{location}: "{record.key("history")}" is not used in a record whose '
                          'prompt is a list of messages; write the history into that list')
    prompt, completion = [(message, False) for message, _ in parts[0]], parts[1]
    messages, trained = with_system(record, prompt + completion, location)
    return Chat(f"{prompt_key} and {answer}", messages, [t is not False for t in trained],
                unread=unread + unread_text(record),
                first_excluded=find_excluded(completion), **template_inputs(record, location))


def read_instruction(record, location, ignored):
    """Returns the chat of a record with an instruction, an optional input and an output."""
    refuse_missing_answer(record, "output", "instruction", location)
    answer, extra = record.key("answer") or "output", "" if is_empty(
        record.raw("input")) else record.raw("input")
    for name, value in (("instruction", record.raw("instruction")), (answer, record.raw("answer"))):
        require_text(name, value, location)
    if not isinstance(extra, str):
        raise BadDocument(f'{location}: "{record.key("input")}" must be a text')
    prompt = f"{record.raw('instruction')}\n\n{extra}" if extra else record.raw("instruction")
    return chat_of_pairs(f"instruction and {answer}", (prompt, record.raw("answer")), record,
                         location)


def chat_of_pairs(shape, pair, record, location):
    """Returns the chat of a prompt and its answer (`pair`), after the pairs of the history."""
    key = record.key("history") or "history"
    history = parsed_json_or(record.get("history"), [], f'"{key}"', location)
    if not isinstance(history, list) or not all(isinstance(h, list) and len(h) == 2
                                                and all(isinstance(t, str) for t in h)
                                                for h in history):
        raise BadDocument(f'{location}: "{key}" must be a list of pairs of texts')
    turns = []
    for prompt, answer in [*history, pair]:
        turns += [({"role": "user", "content": prompt}, None),
                  ({"role": "assistant", "content": answer}, None)]
    messages, _ = with_system(record, turns, location)
    inputs = template_inputs(record, location)
    joinable = len(messages) == 2 and inputs["tools"] is None
    return Chat(shape, messages, [True] * len(messages), pair=tuple(pair) if joinable else None,
                unread=unread_text(record), **inputs)


def read_record_text(record, location, ignored):
    """Returns the text of a record that is only a text."""
    text = record.raw("text")
    require_text("text", text, location)
    for meaning in ("system", "tools", "history", "answer"):
        if record.has(meaning) and not is_empty_or_empty_json(record.get(meaning)):
            key = record.key(meaning)
            raise BadDocument(f'{location}: "{key}" is not used in a record with "text"; write '
                              f'"messages" instead of "text", or ignore "{key}" with '
                              f"--ignore-fields {key}")
    return Text(text, unread=[record.key(m) for m in ("input", "options") if record.has(m)
                              and not is_empty_or_empty_json(record.get(m))])


# ---- the other fields of a conversation ----


def with_system(record, turns, location):
    """Returns the messages, beginning with the record's system text, and for each whether it is
    trained on. If the first message is the same system text, it comes only once."""
    value = record.get("system")
    system = None if is_empty_or_empty_json(value) else system_text(value)
    if system is None and not is_empty_or_empty_json(value):
        raise BadDocument(f'{location}: "{record.key("system")}" must be a text, or a list of '
                          f'{{"text": "..."}}')
    if system is not None:
        first = turns[0][0]
        if first["role"] in ("system", "developer") and first["content"].strip() != system.strip():
            raise BadDocument(f'{location}: "{record.key("system")}" differs from the first '
                              f'message, whose role is {first["role"]}; remove one of them')
        if first["role"] not in ("system", "developer"):
            turns = [({"role": "system", "content": system}, None), *turns]
    return [message for message, _ in turns], [trained for _, trained in turns]


def system_text(value):
    """Returns the text of a system prompt, which may be a text, a list of content parts, or a
    message; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        inner = [key for key in value if not is_empty_or_empty_json(value[key])
                 and key not in ("role", "type")]
        is_text = len(inner) == 1 and inner[0] in ("text", "content", "parts")
        return system_text(value[inner[0]]) if is_text else None
    if isinstance(value, list) and value:
        texts = [system_text(part) for part in value]
        return None if None in texts else "".join(texts)
    return None


def refuse_second_answer(record, messages, location):
    """Refuses a record with both messages and a different answer, because it is unclear which of
    them to train on."""
    for meaning in ("answer", "instruction", "history"):
        value = record.get(meaning)
        if value is None or (isinstance(value, str)
                             and any(value.strip() == m["content"].strip() for m in messages)):
            continue
        raise second_prompt(record, meaning, record.key("messages"), location)


def second_prompt(record, meaning, first_key, location):
    """Returns the error of a record whose field `meaning` contradicts its field `first_key`."""
    key = record.key(meaning)
    return BadDocument(f'{location}: "{key}" differs from the text in "{first_key}"; write it as a '
                       f"message, or ignore it with --ignore-fields {key}")


def repeated_fields(record):
    """Returns the names of fields that repeat the conversation, or parts of it, and are ignored."""
    return [record.key(m) for m in ("prompt", "input", "text", "answer", "instruction")
            if record.has(m)]


def unread_text(record):
    """Returns the name of the field "text", which is ignored, in a list; [] if there is none."""
    return [record.key("text")] if record.has("text") else []


def find_excluded(turns):
    """Returns the number of the first message that is marked as not trained on; None if there is
    none."""
    return next((n for n, (_, trained) in enumerate(turns, 1) if trained is False), None)


def template_inputs(record, location):
    """Returns the inputs of the chat template other than messages: tools and options."""
    return {"tools": tools_of(record, location), "options": options_of(record, location)}


def tools_of(record, location):
    """Returns the list of tools of a record; None if it has none."""
    key = record.key("tools") or "tools"
    tools = parsed_json_or(record.get("tools"), None, f'"{key}"', location)
    if isinstance(tools, list):  # tables may hold each tool as JSON text
        tools = [parsed_json(tool, f'item {n} of "{key}"', location)
                 for n, tool in enumerate(tools, 1)]
    if tools is not None and not (isinstance(tools, list)
                                  and all(isinstance(t, dict) for t in tools)):
        raise BadDocument(f'{location}: "{key}" must be a list of objects, or the JSON of one')
    for number, tool in enumerate(tools or [], 1):
        function = tool.get("function", tool)
        unknown = [name for name in ("input_schema", "inputSchema", "toolSpec")
                   if isinstance(function, dict) and name in function]
        if not isinstance(function, dict) or unknown or not (isinstance(function.get("name"), str)
                                                             and function["name"]):
            names = f", found {', '.join(unknown)}" if unknown else ""
            raise BadDocument(f'{location}: item {number} of "{key}" must be {{"type": "function", '
                              f'"function": {{"name": ..., "description": ..., "parameters": '
                              f'...}}}}{names}')
    if key and canonical_name(key) == "functions" and tools:  # the key of OpenAI's first interface
        tools = [tool if "function" in tool else {"type": "function", "function": tool}
                 for tool in tools]
    return tools


def options_of(record, location):
    """Returns the options that a record passes to the chat template."""
    key = record.key("options") or "chat_template_kwargs"
    options = parsed_json_or(record.get("options"), {}, f'"{key}"', location)
    if not isinstance(options, dict):
        raise BadDocument(f'{location}: "{key}" must be an object')
    return {name: value for name, value in options.items() if value is not None}


def parsed_json(value, what, location):
    """Parses a list or object that a table stores as JSON text, because its type differs between
    rows."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{location}: {what} is a text that is not JSON: {error}") from None


class Message(dict):
    """A message is a dictionary in the form that a chat template expects. If its content was a list
    of parts, `parts` holds them, and the content is their joined text."""

    parts = None


def parsed_json_or(value, default, what, location):
    """Returns the parsed value; `default` if it is empty."""
    value = parsed_json(value, what, location)
    return default if is_empty_or_empty_json(value) else value


# ---- a message ----


def says_if_trained(fields, role, number, location):
    """Returns whether a field of the message says that it is trained on (OpenAI's weight of 0 or 1,
    or the field train of other formats); None if it has no such field."""
    is_trained = None
    for meaning in ("weight", "train"):
        if not fields.has(meaning):
            continue
        key, value = fields.key(meaning), fields.get(meaning)
        field_value = as_bool(value)
        if field_value is None or value in (-1, "-1"):
            raise BadDocument(f'{location}: message {number}: "{key}" is {shortened(value)}, but a '
                              'message is either trained on or not; write '
                              + ("1 or 0" if meaning == "weight" else "true or false"))
        if is_trained is not None and is_trained != field_value:
            raise BadDocument(f'{location}: message {number}: "{key}" is {shortened(value)}, which '
                              f'contradicts "{fields.key("weight")}"; remove one of them')
        is_trained = field_value
        if is_trained and meaning == "train" and role != "assistant":
            raise BadDocument(f'{location}: message {number}: "{key}" is {shortened(value)}, but '
                              f'its role is {role}, and only messages of the assistant are trained '
                              "on; to train on everything, use --train-on all")
    return is_trained


def message_of(turn, names, number, location, ignored=frozenset(), unread=None):
    """Returns the message in the form that a template expects, and whether it says that it is
    trained on."""
    if not isinstance(turn, dict):
        raise missing_texts(names, number, location)
    message_location = f"{location}: message {number}"
    fields = Fields(turn, MESSAGE_MEANINGS, message_location, ignored)
    speaker, content = fields.raw("role"), fields.raw("content")
    if fields.key("role") == "from":
        names = ("from", "value")
    elif fields.has("role"):
        names = ("role", "content")
    names = (fields.key("role") or names[0], fields.key("content") or names[1])
    calls = calls_of(fields, number, location)
    if content is None and calls:
        content = ""  # a message with calls may have no content
    if isinstance(content, list):
        content = joined_parts(content, number, location, ignored)
    if not is_empty(fields.others.get("refusal")):
        raise BadDocument(f'{message_location}: "refusal" is not read; write what the assistant '
                          'says into "content"')
    if not (isinstance(speaker, str) and isinstance(content, str)):
        raise missing_texts(names, number, location)
    role = ROLES.get(speaker) or MORE_ROLES.get(speaker)
    if role is None:
        correction = {"user": "user", "human": "human", "assistant": "assistant",
                      "system": "system"}.get(speaker.lower())
        raise BadDocument(f"{location}: message {number}: role {speaker!r}, expected " +
                          (f"{correction!r}" if correction else f"one of {', '.join(ROLES)}"))
    if calls and role != "assistant":
        raise BadDocument(f'{location}: message {number} has "tool_calls", but its role is '
                          f'{speaker}; only the assistant can call tools')
    if speaker in CALL_ROLES:
        call = parsed_json(content, f"the function call of message {number}", location)
        calls = call if isinstance(call, list) else [call]
        content, calls = "", checked_calls(calls, number, location)
    if fields.ignored_keys and unread is not None:
        unread += [f"message.{key}" for key in fields.ignored_keys]
    # Fields that have no meaning here are passed to the template, which may use them.
    if fields.others:
        refuse_or_count({k: v for k, v in fields.others.items()
                         if canonical_name(k) not in map(canonical_name, REASONING)}, location,
                        f"message {number}: ")
    message = Message({"role": role, "content": content, **fields.others})
    if isinstance(fields.raw("content"), list) and len(fields.raw("content")) > 1:
        message.parts = [{"type": "text", "text": part["text"]} for part in fields.raw("content")]
    if calls:
        message["tool_calls"] = calls
    return message, says_if_trained(fields, role, number, location)


def missing_texts(names, number, location):
    """Returns the error of a message without a role or a content."""
    return BadDocument(f'{location}: message {number} needs the texts "{names[0]}" and '
                       f'"{names[1]}"')


def joined_parts(parts, number, location, ignored):
    """Returns the joined text of a content that is a list of parts."""
    for part in parts:
        kind = part.get("type", "text" if "text" in part
                        else None) if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise BadDocument(f"{location}: a part of type {kind!r} in a message's content; "
                              'expected {"type": "text", "text": "..."}')
        unknown = [key for key, value in part.items() if key not in PLAIN_PART_KEYS
                   and not is_empty_or_empty_json(value) and canonical_name(key) not in ignored]
        if unknown:
            raise BadDocument(f'{location}: message {number}: "{unknown[0]}" in a part of its '
                              'content is not supported, because only the text of a part is used; '
                              "write the information into the text, or ignore it with "
                              f"--ignore-fields {unknown[0]}")
    return "".join(part["text"] for part in parts)


def calls_of(fields, number, location):
    """Returns the tool calls of a message in OpenAI's current form. In its first form a message had
    a single call next to its content."""
    key = fields.key("tool_calls")
    calls = parsed_json_or(fields.get("tool_calls"), [], f'"{key}" of message {number}', location)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadDocument(f'{location}: "{key}" of message {number} must be a list of objects')
    if fields.has("function_call"):
        call = parsed_json(fields.get("function_call"),
                           f'"{fields.key("function_call")}" of message {number}', location)
        if calls:
            raise BadDocument(f'{location}: message {number} has "tool_calls" and "function_call"; '
                              'remove one of them')
        return checked_calls([call], number, location, fields.key("function_call"))
    return checked_calls(calls, number, location, fields.key("tool_calls"))


def checked_calls(calls, number, location, key="tool_calls"):
    """Returns the calls of a message with the key "arguments"; raises an error if a call has no
    name or no arguments."""
    checked = []
    for index, call in enumerate(calls, 1):
        function = call.get("function", call) if isinstance(call, dict) else None
        call_location = f'{location}: call {index} in "{key}" of message {number}'
        if not isinstance(function, dict) or not isinstance(function.get("name"),
                                                            str) or not function["name"]:
            raise BadDocument(f'{call_location} must be {{"type": "function", "function": '
                              f'{{"name": "...", "arguments": {{...}}}}}}')
        # the form in which Llama models write a call
        if "arguments" not in function and "parameters" in function:
            function = {("arguments" if key == "parameters" else key): value
                        for key, value in function.items()}
            call = {**call, "function": function} if "function" in call else function
        if "arguments" not in function:
            raise BadDocument(f'{call_location} needs "arguments", an object or its JSON')
        checked.append(call)
    return checked


def refuse_missing_answer(record, answer_key, prompt_key, location):
    """Refuses a record with a text next to a prompt, because the text may be the answer or
    something else."""
    if "answer" not in record.by_meaning and record.has("text"):
        raise BadDocument(f'{location}: has "{prompt_key}" but no "{answer_key}"; add '
                          f'"{answer_key}", or train on "text" with --ignore-fields {prompt_key}')


def require_text(name, value, location):
    """Raises an error if the value of the field `name` is not a text."""
    if not isinstance(value, str):
        raise BadDocument(f'{location}: has no text "{name}"')
