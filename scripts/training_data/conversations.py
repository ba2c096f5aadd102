"""From a document's object to a conversation: the shapes in which people keep chats."""
import dataclasses
import json

from script_errors import BadDocument

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
         "bot": "assistant", "model": "assistant", "system": "system", "developer": "developer", "tool": "tool",
         "observation": "tool", "function_response": "tool", "function_call": "assistant"}
OWN_KEYS = ("role", "content", "from", "value", "train", "weight")  # of a message; others are the template's


@dataclasses.dataclass
class Chat:
    """Messages as a chat template takes them."""

    shape: str  # of the document, as the report calls it
    messages: list
    may_train: list  # for each message, whether its document lets it be trained on
    tools: list | None = None
    options: dict = dataclasses.field(default_factory=dict)  # of the template
    pair: tuple | None = None  # a prompt and its completion, which can be joined without a template

    def empty_answers(self):
        return sum(m["role"] == "assistant" and not m["content"].strip() and not m.get("tool_calls")
                   for m in self.messages)


@dataclasses.dataclass
class Text:
    text: str
    shape: str = "text"


def read_object(content, place):
    """The Chat or Text that an object holds."""
    if content.get("messages") is not None:
        return chat_of(content, "messages", place)
    if content.get("conversations") is not None:
        return chat_of(content, "conversations", place)
    if "chosen" in content and "rejected" in content:
        raise BadDocument(f"{place}: is a preference (chosen and rejected); answers to imitate are read from "
                          '"messages", or "prompt" and "completion"')
    if "prompt" in content:
        return chat_of_prompt(content, place)
    if "instruction" in content:
        return chat_of_instruction(content, place)
    if "text" in content:
        return Text(text_fields(content, ("text",), place)[0])
    if "input_ids" in content:
        raise BadDocument(f'{place}: holds token ids ("input_ids"); name such a file in data.train as it is')
    raise BadDocument(f'{place}: has none of "messages", "conversations", "prompt", "instruction" or "text"; '
                      + (f"its keys are {', '.join(map(str, list(content)[:8]))}" if content else "it is empty"))


def chat_of(content, key, place):
    turns = parsed(content[key], f'"{key}"', place)
    if not isinstance(turns, list) or not turns:
        raise BadDocument(f'{place}: "{key}" must be a list of at least one message')
    names = ("role", "content") if key == "messages" else ("from", "value")
    system = system_message(content) if key == "conversations" else []
    messages = system + [message_of(turn, names, n, place) for n, turn in enumerate(turns, 1)]
    may_train = [True] * len(system) + [trains(turn) for turn in turns]
    return Chat(key, messages, may_train, **template_inputs(content, place))


def chat_of_prompt(content, place):
    answer = "completion" if "completion" in content else "response"
    if isinstance(content["prompt"], list) or isinstance(content.get(answer), list):
        return chat_of_lists(content, answer, place)
    pair = text_fields(content, ("prompt", answer), place)
    return chat_of_pairs(f"prompt and {answer}", [pair], content, place)


def chat_of_lists(content, answer, place):
    """A prompt and its completion that are messages; only the completion's may be trained on."""
    parts = []
    for key, role in (("prompt", "user"), (answer, "assistant")):
        value = content.get(key)
        turns = [{"role": role, "content": value}] if isinstance(value, str) else value
        if not isinstance(turns, list) or not turns:
            raise BadDocument(f'{place}: "{key}" must be a text or a list of at least one message')
        parts.append([message_of(turn, ("role", "content"), n, place) for n, turn in enumerate(turns, 1)])
    prompt, completion = parts
    return Chat(f"prompt and {answer}", prompt + completion, [False] * len(prompt) + [True] * len(completion),
                **template_inputs(content, place))


def chat_of_instruction(content, place):
    instruction, answer = text_fields(content, ("instruction", "output"), place)
    extra = content.get("input") or ""
    if not isinstance(extra, str):
        raise BadDocument(f'{place}: "input" must be a text')
    history = content.get("history") or []
    if not isinstance(history, list) or not all(isinstance(h, list) and len(h) == 2 and all(isinstance(t, str) for t in h) for h in history):
        raise BadDocument(f'{place}: "history" must be a list of pairs of texts')
    prompt = f"{instruction}\n\n{extra}" if extra else instruction
    return chat_of_pairs("instruction and output", [*map(tuple, history), (prompt, answer)], content, place)


def chat_of_pairs(shape, pairs, content, place):
    messages = system_message(content)
    for prompt, answer in pairs:
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    pair = pairs[0] if len(messages) == 2 else None
    return Chat(shape, messages, [True] * len(messages), pair=pair, **template_inputs(content, place))


def system_message(content):
    """A text beside the conversation, in ShareGPT's and Alpaca's files."""
    system = content.get("system")
    return [{"role": "system", "content": system}] if isinstance(system, str) and system else []


def template_inputs(content, place):
    tools = parsed(content.get("tools"), '"tools"', place) or None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
        raise BadDocument(f'{place}: "tools" must be a list of objects, or the JSON of one')
    options = parsed(content.get("chat_template_kwargs"), '"chat_template_kwargs"', place) or {}
    if not isinstance(options, dict):
        raise BadDocument(f'{place}: "chat_template_kwargs" must be an object')
    return {"tools": tools, "options": options}


def parsed(value, what, place):
    """Tables hold lists and objects as JSON where their kinds differ from row to row."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{place}: {what} is a text that is not JSON: {error}") from None


def trains(turn):
    """OpenAI's weight of a message is 0 or 1; others write train: false."""
    return turn.get("train") is not False and turn.get("weight") != 0


def message_of(turn, names, number, place):
    if not isinstance(turn, dict):
        raise needs_texts(names, number, place)
    other = ("from", "value") if names[0] == "role" else ("role", "content")
    if names[0] not in turn and other[0] in turn:
        names = other
    who, what = (turn.get(name) for name in names)
    calls = turn.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadDocument(f'{place}: "tool_calls" of message {number} must be a list of objects')
    if what is None and calls:
        what = ""  # the calls are what it says
    if isinstance(what, list):
        what = joined_parts(what, place)
    if not (isinstance(who, str) and isinstance(what, str)):
        raise needs_texts(names, number, place)
    if who not in ROLES:
        near = {"user": "user", "human": "human", "assistant": "assistant", "system": "system"}.get(who.lower())
        raise BadDocument(f"{place}: message {number}: role {who!r}, expected " +
                          (f"{near!r}" if near else f"one of {', '.join(ROLES)}"))
    extra = {key: value for key, value in turn.items() if key not in OWN_KEYS and value is not None}
    if who == "function_call":
        call = parsed(what, f"the function call of message {number}", place)
        what, extra["tool_calls"] = "", [{"type": "function", "function": call}]
    if not extra.get("tool_calls"):
        extra.pop("tool_calls", None)
    return {"role": ROLES[who], "content": what, **extra}


def needs_texts(names, number, place):
    return BadDocument(f'{place}: message {number} needs the texts "{names[0]}" and "{names[1]}"')


def joined_parts(parts, place):
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise BadDocument(f"{place}: a part of type {kind!r} in a message's content; "
                              'expected {"type": "text", "text": "..."}')
    return "".join(part["text"] for part in parts)


def text_fields(content, names, place):
    for name in names:
        if not isinstance(content.get(name), str):
            raise BadDocument(f'{place}: needs a text "{name}"')
    return tuple(content[name] for name in names)
