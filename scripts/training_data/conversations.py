"""Converts the object of a document, in any of the shapes in which chats are commonly stored, to a
conversation."""
import dataclasses
import json

from script_errors import BadDocument
from training_data.fields import (MESSAGE_MEANINGS, RECORD_MEANINGS, Fields, canonical,
                                  holds_nothing, is_absent, refuse_or_count, verdict)

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
         "chatgpt": "assistant",
         "bot": "assistant", "model": "assistant", "system": "system", "developer": "developer",
         "tool": "tool",
         "observation": "tool", "function_response": "tool", "function_call": "assistant"}
# Other names of the same roles, which error messages do not list: a call as JSON, and the result
# of a call.
CALLING, MORE_ROLES = ("function_call", "tool_call"), {"function": "tool", "ipython": "tool",
                                                       "tool_response": "tool",
                                                       "tool_result": "tool",
                                                       "tool_call": "assistant"}
# The keys under which reasoning is stored; transformers passes all three to a template.
REASONING = ("reasoning_content", "thinking", "reasoning")
PLAIN_PART_KEYS = ("type", "text", "annotations", "cache_control", "citations", "id", "index")


@dataclasses.dataclass
class Chat:
    """A conversation: messages in the form that a chat template expects."""

    shape: str  # the name of the document's shape in the report
    messages: list
    may_train: list  # for each message, whether its document lets it be trained on
    tools: list | None = None
    options: dict = dataclasses.field(default_factory=dict)  # options for the template
    pair: tuple | None = None  # a prompt and its completion, for joining them without a template
    # names of fields that are ignored and counted
    unread: list = dataclasses.field(default_factory=list)
    # the other fields of the record, which have no meaning in RECORD_MEANINGS, by name
    beside: dict = dataclasses.field(default_factory=dict)
    held_back: int | None = None  # the first message that a field of its own excludes

    def empty_answers(self):
        return sum(m["role"] == "assistant" and not m["content"].strip() and not m.get("tool_calls")
                   for m in self.messages)


@dataclasses.dataclass
class Text:
    text: str
    shape: str = "text"
    unread: list = dataclasses.field(default_factory=list)


def read_object(content, location, ignored=frozenset()):
    """Returns the Chat or Text that an object holds. `ignored` are canonical names of fields to
    ignore."""
    record = Fields(content, RECORD_MEANINGS, location, ignored)
    if not record.found and "input_ids" in content:
        raise BadDocument(f'{location}: holds token ids ("input_ids"); name such a file in '
                          'data.train as it is')
    unread = refuse_or_count(record.others, location,
                             has_messages=record.has("messages")) + record.passed_over
    read = read_shape(record, location, ignored, content)
    refuse_label(record, read, location)
    read.unread += unread
    if isinstance(read, Chat):
        read.beside = record.others
    return read


def read_shape(record, location, ignored, content):
    """Reads the first shape whose key has a value. An empty prompt counts as a value only if no
    other shape matches."""
    shapes = {"messages": chat_of, "prompt": chat_of_prompt, "instruction": chat_of_instruction,
              "text": text_of_record}
    found = [meaning for meaning in shapes if not holds_nothing(record.raw(meaning))] or \
            [meaning for meaning in ("prompt", "instruction", "text", "messages")
             if meaning in record.found]
    if not found:
        raise BadDocument(f'{location}: has none of "messages", "conversations", "prompt", '
                          '"instruction" or "text"; '
                          + (f"its keys are {', '.join(map(str, list(content)[:8]))}"
                             if content else "it is empty"))
    return shapes[found[0]](record, location, ignored)


def refuse_label(record, read, location):
    """Refuses a completion that is labelled as bad (an unpaired preference), because the model must
    not learn it."""
    if record.has("good"):
        if verdict(record.get("good")) is False:
            raise BadDocument(f'{location}: "{record.key("good")}" is {shown(record.get("good"))}: '
                              'its answer must not be imitated')
        read.unread.append(record.key("good"))
    if not record.has("label"):
        return
    key, value = record.key("label"), record.get("label")
    if isinstance(read, Text):
        raise BadDocument(f'{location}: "{key}" is {shown(value)}; labels are not supported '
                          'beside "text", because the whole text is trained on regardless of its '
                          'label; write "prompt" and "completion" if the model shall learn the '
                          f"label, or ignore it with --ignore-fields {key}")
    if verdict(value) is False:
        raise BadDocument(f'{location}: "{key}" is {shown(value)}: its answer must not be imitated')
    if verdict(value) is None:
        raise BadDocument(f'{location}: "{key}" is {shown(value)}, expected true (an answer to '
                          'imitate) or false; correct it, or pass over it '
                          f"with --ignore-fields {key}")


def shown(value, most=60):
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else text[:most] + "…"


# ---- the shapes ----


def chat_of(record, location, ignored):
    key, unread = record.key("messages"), []
    turns = parsed(record.get("messages"), f'"{key}"', location)
    if not isinstance(turns, list) or not turns:
        raise BadDocument(f'{location}: "{key}" must be a list of at least one message')
    names = ("role", "content") if key == "messages" else ("from", "value")
    read = [message_of(turn, names, n, location, ignored, unread)
            for n, turn in enumerate(turns, 1)]
    refuse_second_answer(record, [m for m, _ in read], location)
    unread += other_contents(record, [m for m, _ in read], location)
    messages, trains = with_system(record, read, location)
    return Chat(key, messages, [t is not False for t in trains], unread=unread,
                held_back=first_held_back(read),
                **template_inputs(record, location))


def chat_of_prompt(record, location, ignored):
    prompt_key, answer = record.key("prompt"), record.key("answer") or "response"
    if record.has("input"):
        raise BadDocument(f'{location}: "{record.key("input")}" stands beside "{prompt_key}" and '
                          f'is not read there; write both into "{prompt_key}", '
                          f"or pass over it with --ignore-fields {record.key('input')}")
    if record.has("instruction"):
        raise second_prompt(record, "instruction", prompt_key, location)
    refuse_missing_answer(record, "response", prompt_key, location)
    prompt, completion = record.raw("prompt"), record.raw("answer")
    if isinstance(prompt, list) or isinstance(completion, list):
        return chat_of_lists(record, prompt_key, answer, location, ignored)
    need_text(prompt_key, prompt, location)
    need_text(answer, completion, location)
    return chat_of_pairs(f"{prompt_key} and {answer}", (prompt, completion), record, location)


def chat_of_lists(record, prompt_key, answer, location, ignored):
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
        raise BadDocument(f'{location}: "{record.key("history")}" stands beside a prompt that is a '
                          'list of messages; write it into that list')
    prompt, completion = [(message, False) for message, _ in parts[0]], parts[1]
    messages, trains = with_system(record, prompt + completion, location)
    return Chat(f"{prompt_key} and {answer}", messages, [t is not False for t in trains],
                unread=unread + texts_beside(record),
                held_back=first_held_back(completion), **template_inputs(record, location))


def chat_of_instruction(record, location, ignored):
    refuse_missing_answer(record, "output", "instruction", location)
    answer, extra = record.key("answer") or "output", "" if is_absent(
        record.raw("input")) else record.raw("input")
    for name, value in (("instruction", record.raw("instruction")), (answer, record.raw("answer"))):
        need_text(name, value, location)
    if not isinstance(extra, str):
        raise BadDocument(f'{location}: "{record.key("input")}" must be a text')
    prompt = f"{record.raw('instruction')}\n\n{extra}" if extra else record.raw("instruction")
    return chat_of_pairs(f"instruction and {answer}", (prompt, record.raw("answer")), record,
                         location)


def chat_of_pairs(shape, pair, record, location):
    key = record.key("history") or "history"
    history = parsed_or(record.get("history"), [], f'"{key}"', location)
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
                unread=texts_beside(record), **inputs)


def text_of_record(record, location, ignored):
    text = record.raw("text")
    need_text("text", text, location)
    for meaning in ("system", "tools", "history", "answer"):
        if record.has(meaning) and not holds_nothing(record.get(meaning)):
            key = record.key(meaning)
            raise BadDocument(f'{location}: "{key}" stands beside "text", which is trained on '
                              'alone; write "messages", or pass over it with '
                              f"--ignore-fields {key}")
    return Text(text, unread=[record.key(m) for m in ("input", "options") if record.has(m)
                              and not holds_nothing(record.get(m))])


# ---- the other fields of a conversation ----


def with_system(record, turns, location):
    """Returns the messages, beginning with the record's system text, and for each whether it is
    trained on. If the first message is the same system text, it comes only once."""
    given = record.get("system")
    system = None if holds_nothing(given) else system_text(given)
    if system is None and not holds_nothing(given):
        raise BadDocument(f'{location}: "{record.key("system")}" must be a text, or a list of '
                          f'{{"text": "..."}}')
    if system is not None:
        first = turns[0][0]
        if first["role"] in ("system", "developer") and first["content"].strip() != system.strip():
            raise BadDocument(f'{location}: "{record.key("system")}" stands beside a first message '
                              f'of the role {first["role"]} that says something '
                              "else; leave one of them out")
        if first["role"] not in ("system", "developer"):
            turns = [({"role": "system", "content": system}, None), *turns]
    return [message for message, _ in turns], [trains for _, trains in turns]


def system_text(value):
    """Returns the text of a system prompt, which may be a text, a list of content parts, or a
    message; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        inner = [key for key in value if not holds_nothing(value[key])
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


def second_prompt(record, meaning, beside, location):
    key = record.key(meaning)
    return BadDocument(f'{location}: "{key}" stands beside "{beside}" and says something else; '
                       'write it as a message, or pass over it with '
                       f"--ignore-fields {key}")


def other_contents(record, messages, location):
    """Returns the names of fields that repeat the conversation, or parts of it, and are ignored."""
    return [record.key(m) for m in ("prompt", "input", "text", "answer", "instruction")
            if record.has(m)]


def texts_beside(record):
    return [record.key("text")] if record.has("text") else []


def first_held_back(turns):
    """Returns the number of the first message that is marked as not trained on."""
    return next((n for n, (_, trains) in enumerate(turns, 1) if trains is False), None)


def template_inputs(record, location):
    return {"tools": tools_of(record, location), "options": options_of(record, location)}


def tools_of(record, location):
    key = record.key("tools") or "tools"
    tools = parsed_or(record.get("tools"), None, f'"{key}"', location)
    if isinstance(tools, list):  # tables may hold each tool as JSON text
        tools = [parsed(tool, f'item {n} of "{key}"', location) for n, tool in enumerate(tools, 1)]
    if tools is not None and not (isinstance(tools, list)
                                  and all(isinstance(t, dict) for t in tools)):
        raise BadDocument(f'{location}: "{key}" must be a list of objects, or the JSON of one')
    for number, tool in enumerate(tools or [], 1):
        function = tool.get("function", tool)
        unknown = [name for name in ("input_schema", "inputSchema", "toolSpec")
                   if isinstance(function, dict) and name in function]
        if not isinstance(function, dict) or unknown or not (isinstance(function.get("name"), str)
                                                             and function["name"]):
            found = f", found {', '.join(unknown)}" if unknown else ""
            raise BadDocument(f'{location}: item {number} of "{key}" must be {{"type": "function", '
                              f'"function": {{"name": ..., "description": ..., "parameters": '
                              f'...}}}}{found}')
    if key and canonical(key) == "functions" and tools:  # the key of OpenAI's first interface
        tools = [tool if "function" in tool else {"type": "function", "function": tool}
                 for tool in tools]
    return tools


def options_of(record, location):
    key = record.key("options") or "chat_template_kwargs"
    options = parsed_or(record.get("options"), {}, f'"{key}"', location)
    if not isinstance(options, dict):
        raise BadDocument(f'{location}: "{key}" must be an object')
    return {name: value for name, value in options.items() if value is not None}


def parsed(value, what, location):
    """Parses a list or object that a table stores as JSON text, because its type differs between
    rows."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{location}: {what} is a text that is not JSON: {error}") from None


class Message(dict):
    """A message. If its content was a list of parts, `parts` holds them, and the content is their
    joined text."""

    parts = None


def parsed_or(value, nothing, what, location):
    value = parsed(value, what, location)
    return nothing if holds_nothing(value) else value


# ---- a message ----


def trains(fields, role, number, location):
    """Returns whether a field of the message says that it is trained on (OpenAI's weight of 0 or 1,
    or the field train of other formats); None if it has no such field."""
    said = None
    for meaning in ("weight", "train"):
        if not fields.has(meaning):
            continue
        key, value = fields.key(meaning), fields.get(meaning)
        means = verdict(value)
        if means is None or value in (-1, "-1"):
            raise BadDocument(f'{location}: message {number}: "{key}" is {shown(value)}; a message '
                              'is trained on or it is not: write '
                              + ("1 or 0" if meaning == "weight" else "true or false"))
        if said is not None and said != means:
            raise BadDocument(f'{location}: message {number}: "{key}" is {shown(value)}, and '
                              f'"{fields.key("weight")}" says otherwise; leave one of '
                              "them out")
        said = means
        if means and meaning == "train" and role != "assistant":
            raise BadDocument(f'{location}: message {number}: "{key}" is {shown(value)}, and its '
                              f'role is {role}: answers alone are trained on, or '
                              "everything with --train-on all")
    return said


def message_of(turn, names, number, location, ignored=frozenset(), unread=None):
    """Returns the message in the form that a template expects, and whether it says that it is
    trained on."""
    if not isinstance(turn, dict):
        raise needs_texts(names, number, location)
    here = f"{location}: message {number}"
    fields = Fields(turn, MESSAGE_MEANINGS, here, ignored)
    who, what = fields.raw("role"), fields.raw("content")
    if fields.key("role") == "from":
        names = ("from", "value")
    elif fields.has("role"):
        names = ("role", "content")
    names = (fields.key("role") or names[0], fields.key("content") or names[1])
    calls = calls_of(fields, number, location)
    if what is None and calls:
        what = ""  # a message with calls may have no content
    if isinstance(what, list):
        what = joined_parts(what, number, location, ignored)
    if not is_absent(fields.others.get("refusal")):
        raise BadDocument(f'{here}: "refusal" is not read; write what the assistant says into '
                          '"content"')
    if not (isinstance(who, str) and isinstance(what, str)):
        raise needs_texts(names, number, location)
    role = ROLES.get(who) or MORE_ROLES.get(who)
    if role is None:
        near = {"user": "user", "human": "human", "assistant": "assistant",
                "system": "system"}.get(who.lower())
        raise BadDocument(f"{location}: message {number}: role {who!r}, expected " +
                          (f"{near!r}" if near else f"one of {', '.join(ROLES)}"))
    if calls and role != "assistant":
        raise BadDocument(f'{location}: "tool_calls" of message {number}, whose role is {who}; '
                          'assistants alone call tools')
    if who in CALLING:
        call = parsed(what, f"the function call of message {number}", location)
        calls = call if isinstance(call, list) else [call]
        what, calls = "", checked_calls(calls, number, location)
    if fields.passed_over and unread is not None:
        unread += [f"message.{key}" for key in fields.passed_over]
    # Fields that have no meaning here are passed to the template, which may use them.
    if fields.others:
        refuse_or_count({k: v for k, v in fields.others.items()
                         if canonical(k) not in map(canonical, REASONING)}, location,
                        f"message {number}: ")
    message = Message({"role": role, "content": what, **fields.others})
    if isinstance(fields.raw("content"), list) and len(fields.raw("content")) > 1:
        message.parts = [{"type": "text", "text": part["text"]} for part in fields.raw("content")]
    if calls:
        message["tool_calls"] = calls
    return message, trains(fields, role, number, location)


def needs_texts(names, number, location):
    return BadDocument(f'{location}: message {number} needs the texts "{names[0]}" and '
                       f'"{names[1]}"')


def joined_parts(parts, number, location, ignored):
    for part in parts:
        kind = part.get("type", "text" if "text" in part
                        else None) if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise BadDocument(f"{location}: a part of type {kind!r} in a message's content; "
                              'expected {"type": "text", "text": "..."}')
        more = [key for key, value in part.items() if key not in PLAIN_PART_KEYS
                and not holds_nothing(value) and canonical(key) not in ignored]
        if more:
            raise BadDocument(f'{location}: message {number}: "{more[0]}" in a part of its content '
                              'is not read, as contents are texts here; write the '
                              "message so that its text says it, or pass over it with "
                              f"--ignore-fields {more[0]}")
    return "".join(part["text"] for part in parts)


def calls_of(fields, number, location):
    """Returns the tool calls of a message in OpenAI's current form. In its first form a message had
    a single call next to its content."""
    key = fields.key("tool_calls")
    calls = parsed_or(fields.get("tool_calls"), [], f'"{key}" of message {number}', location)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadDocument(f'{location}: "{key}" of message {number} must be a list of objects')
    if fields.has("function_call"):
        call = parsed(fields.get("function_call"), f'"{fields.key("function_call")}" of message '
                                                   f'{number}', location)
        if calls:
            raise BadDocument(f'{location}: message {number} has "tool_calls" and "function_call"; '
                              'leave one of them out')
        return checked_calls([call], number, location, fields.key("function_call"))
    return checked_calls(calls, number, location, fields.key("tool_calls"))


def checked_calls(calls, number, location, key="tool_calls"):
    checked = []
    for at, call in enumerate(calls, 1):
        function = call.get("function", call) if isinstance(call, dict) else None
        here = f'{location}: call {at} in "{key}" of message {number}'
        if not isinstance(function, dict) or not isinstance(function.get("name"),
                                                            str) or not function["name"]:
            raise BadDocument(f'{here} must be {{"type": "function", "function": {{"name": "...", '
                              f'"arguments": {{...}}}}}}')
        # the form in which Llama models write a call
        if "arguments" not in function and "parameters" in function:
            function = {("arguments" if key == "parameters" else key): value
                        for key, value in function.items()}
            call = {**call, "function": function} if "function" in call else function
        if "arguments" not in function:
            raise BadDocument(f'{here} needs "arguments", an object or its JSON')
        checked.append(call)
    return checked


def refuse_missing_answer(record, usual, beside, location):
    """Refuses a record with a text next to a prompt, because the text may be the answer or
    something else."""
    if "answer" not in record.found and record.has("text"):
        raise BadDocument(f'{location}: needs a text "{usual}" beside "{beside}"; where "text" is '
                          f'meant, pass over that with --ignore-fields {beside}')


def need_text(name, value, location):
    if not isinstance(value, str):
        raise BadDocument(f'{location}: needs a text "{name}"')
