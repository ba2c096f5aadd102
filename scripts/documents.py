"""Reading documents: text files, .jsonl and .json files, and the shapes that chats come in."""
import collections
import json
import os

TEXT_EXTENSIONS = (".txt", ".text", ".md")
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
         "system": "system", "tool": "tool", "observation": "tool"}


class UserError(Exception):
    """Something the user can put right; shown without a stack trace."""

    exit_code = 4


class BadDocument(UserError):
    """One document that cannot be used; the others may be."""


# One document before tokenising: where it comes from, its size in bytes for the progress bar, and a
# text, the object of a line, or the BadDocument that its line is.
Document = collections.namedtuple("Document", "place size content")


# ---- files ----


def documents(paths, encoding, as_text=False):
    for path in paths:
        extension = os.path.splitext(path)[1].lower()
        if extension == ".jsonl":
            yield from jsonl_documents(path)
        elif extension == ".json":
            yield from json_documents(path)
        elif extension in TEXT_EXTENSIONS or as_text:
            yield from text_documents(path, encoding)
        else:
            raise UserError(f"{path}: {', '.join(TEXT_EXTENSIONS)}, .jsonl and .json files are read; "
                            "--as-text takes any other file for plain text")


def text_documents(path, encoding):
    with open(path, "rb") as file:
        raw = file.read()
    try:
        text = raw.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not {encoding}; "
                        "name the file's encoding with --encoding, such as latin-1") from None
    if text.strip():
        yield Document(path, len(raw), text)


def jsonl_documents(path):
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{path}:{number}"
                yield Document(place, len(line), line_content(line, place, number == 1))


def line_content(line, place, first):
    try:
        # Without its end: a line that is cut short would else be wrong on the line after it.
        text = line.decode("utf-8-sig" if first else "utf-8").rstrip()
    except UnicodeDecodeError as error:
        return BadDocument(f"{place}: byte {error.start} of the line is not UTF-8")
    try:
        return object_or_bad(json.loads(text), place)
    except json.JSONDecodeError as error:
        return BadDocument(f"{place}: column {error.colno}: {reason(error)}")
    except (RecursionError, ValueError) as error:
        return BadDocument(f"{place}: {error}")


def reason(error):
    if error.msg.startswith("Unterminated string"):
        return "the string that begins here has no end"
    at_end = error.pos >= len(error.doc.rstrip())
    return f"{error.msg}, but the text ends here" if at_end else error.msg


def object_or_bad(content, place):
    if isinstance(content, dict):
        return content
    return BadDocument(f"{place}: expected an object, found {type(content).__name__}")


def json_documents(path):
    """Of an array of objects, or of a file that has an object a line."""
    with open(path, "rb") as file:
        raw = file.read()
    try:
        content = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        if any(isinstance(line_content(l, path, True), dict) for l in first_lines(raw)):
            yield from jsonl_documents(path)
            return
        raise UserError(f"{path}:{error.lineno}: column {error.colno}: {reason(error)}; a .json file "
                        "must hold an array of objects, or an object a line") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(content, (list, dict)):
        raise UserError(f"{path}: a .json file must hold an array of objects, or an object a line; "
                        f"found {type(content).__name__}")
    items = content if isinstance(content, list) else [content]
    for number, item in enumerate(items, 1):
        place = f"{path}: item {number}"
        yield Document(place, len(raw) // len(items), object_or_bad(item, place))


def first_lines(raw):
    """Two, as one may be the bad one."""
    return [line for line in raw[:1 << 24].splitlines() if line.strip()][:2]


# ---- shapes ----


def chat_messages(content, place):
    """The messages of an object, or None when it is not a chat."""
    if "messages" in content or "conversations" in content:
        key = "messages" if "messages" in content else "conversations"
        turns = content[key]
        if not isinstance(turns, list) or not turns:
            raise BadDocument(f'{place}: "{key}" must be a list of at least one message')
        names = ("role", "content") if key == "messages" else ("from", "value")
        return system_message(content) + [message_of(turn, names, place) for turn in turns]
    pair = prompt_and_answer(content, place)
    if pair is None:
        return None
    return [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]


def system_message(content):
    """ShareGPT's files may name it beside the conversation."""
    system = content.get("system") if "conversations" in content else None
    return [{"role": "system", "content": system}] if isinstance(system, str) and system else []


def message_of(turn, names, place):
    who, what = (turn.get(name) for name in names) if isinstance(turn, dict) else (None, None)
    calls = turn.get("tool_calls") if isinstance(turn, dict) else None
    if what is None and calls:
        what = ""  # the calls are what it says
    if isinstance(what, list):
        what = joined_parts(what, place)
    if not (isinstance(who, str) and isinstance(what, str)):
        raise BadDocument(f'{place}: each message needs the texts "{names[0]}" and "{names[1]}"')
    if who not in ROLES:
        raise BadDocument(f"{place}: role {who!r}, expected system, user, assistant or tool")
    extra = {k: turn[k] for k in ("name", "tool_call_id", "tool_calls") if turn.get(k)}
    return {"role": ROLES[who], "content": what, **extra}


def joined_parts(parts, place):
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise BadDocument(f"{place}: a part of type {kind!r} in a message's content; "
                              'expected {"type": "text", "text": "..."}')
    return "".join(part["text"] for part in parts)


def prompt_and_answer(content, place):
    if "prompt" in content:
        answer = "completion" if "completion" in content else "response"
        return text_fields(content, ("prompt", answer), place)
    if "instruction" in content:
        instruction, answer = text_fields(content, ("instruction", "output"), place)
        extra = content.get("input") or ""
        if not isinstance(extra, str):
            raise BadDocument(f'{place}: "input" must be a text')
        return (f"{instruction}\n\n{extra}" if extra else instruction), answer
    return None


def text_fields(content, names, place):
    for name in names:
        if not isinstance(content.get(name), str):
            raise BadDocument(f'{place}: needs a text "{name}"')
    return tuple(content[name] for name in names)
