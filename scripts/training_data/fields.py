"""Classifies the fields of a record, under all their spellings: which are read, which are harmless,
which are refused.

A field that holds nothing (null, "", [], {}, NaN) counts as absent. Every other field is read, or
is harmless (HARMLESS, a closed list), or is counted and named in the report, or is refused because
it could change what is trained on. docs/data.md lists all four."""
import functools

from script_errors import BadDocument

# Fields that are read: {meaning: its spellings, the usual one first}. Case, "_", "-" and spaces do
# not matter.
RECORD = {
    "messages": ("messages", "conversations", "conversation", "dialogue", "dialog", "chat"),
    "system": ("system", "system_prompt", "system_message", "system_instruction",
               "system_instructions", "instructions", "sys_prompt"),
    "prompt": ("prompt", "question", "query"),
    "instruction": ("instruction",),
    "input": ("input", "context"),
    "answer": ("completion", "response", "output", "answer"),
    "history": ("history",),
    "text": ("text",),
    "tools": ("tools", "functions"),
    "options": ("chat_template_kwargs", "chat_template_args", "template_kwargs"),
    "label": ("label", "kto_tag", "kto_label", "desirable", "is_desirable"),
    "good": ("is_correct", "correct", "accepted", "is_accepted", "preferred", "is_preferred",
             "is_chosen", "is_good"),
}
MESSAGE = {
    "role": ("role", "from"),
    "content": ("content", "value"),
    "weight": ("weight", "loss_weight", "loss_scale"),
    "train": ("train", "trainable", "is_trainable", "do_train", "loss"),
    "tool_calls": ("tool_calls",),
    "function_call": ("function_call",),
}
HARMLESS = ("id", "uuid", "guid", "idx", "index", "row", "line", "number", "key", "prompt_id",
            "conversation_id", "session_id", "dialogue_id",
            "dialog_id", "message_id", "document_id", "example_id", "sample_id", "source_id",
            "dataset_id", "user_id", "hash", "sha1",
            "sha256", "md5", "digest", "source", "sources", "origin", "dataset", "dataset_name",
            "subset", "split", "config", "file",
            "filename", "file_name", "path", "url", "urls", "link", "domain", "meta", "metadata",
            "extra_info", "info", "timestamp",
            "time", "date", "created", "created_at", "updated", "updated_at", "author", "authors",
            "annotator", "license", "licence",
            "copyright", "version", "schema_version", "language", "lang", "locale", "category",
            "categories", "topic", "topics", "tag",
            "tags", "task", "task_type", "task_name", "difficulty", "comment", "comments", "note",
            "notes", "model_name", "generator",
            "length", "num_turns", "turn_count", "num_tokens", "token_count", "n_tokens",
            "num_messages", "char_count", "word_count",
            "__index_level_0__", "unnamed_0")
# Fields that could change what is trained on and are not supported: {kind: (problem, remedy)}.
REFUSED = {
    "token ids": ("holds token ids beside texts", "name a file of token ids in data.train as it "
                                                  "is, or remove them"),
    "mask": ("says by token what counts in the loss, which texts cannot",
             'write "train": false in the messages that do not count, or '
             "prepare the token ids elsewhere and name that file in data.train"),
    "weight": ("weighs the record or its tokens, and all count alike here",
               "give a data set of its own a weight in data.train"),
    "media": ("holds something other than text, and ftrun trains only on text",
              "remove it where the texts do not need it"),
    "call": ("is a call of a tool beside the conversation",
             'put it into "tool_calls" of an assistant\'s message'),
    "role": ("says who speaks beside the conversation", 'put it into "role" of each message'),
    "train": ("says what is trained on in a way that is not known here",
              'write "train": true or false in each message'),
}
TOKEN_IDS = ("input_ids", "token_ids", "labels", "position_ids", "token_type_ids", "target_ids",
             "label_ids", "segment_ids", "seq_lengths",
             "sequence_lengths", "seq_lens", "cu_seqlens", "inputs_embeds")
CALLS = ("tool_calls", "tool_call", "function_call", "function_calls")
WEIGHTS = ("weight", "weights", "loss_scale", "loss_scales", "advantage", "advantages")
MEDIA = ("image", "video", "audio", "pixelvalues", "media", "attachment")
TRAIN = ("train", "trainable", "training", "train_on", "train_on_input", "train_on_inputs",
         "train_on_prompt", "train_on_prompts",
         "train_on_turn", "train_detail", "train_turns", "is_trainable", "do_train")
TRUE, FALSE = (True, 1, "true", "yes", "1", "desirable",
               "good"), (False, 0, -1, "false", "no", "0", "-1", "undesirable", "bad")


@functools.lru_cache(4096)
def canonical(key):
    """Returns one spelling for all variants of a name: schemaVersion and schema_version are the
    same."""
    return "".join(c for c in key.lower() if c.isalnum())


def spelled(names):
    return frozenset(map(canonical, names))


def by_name(meanings):
    return {canonical(name): meaning for meaning, names in meanings.items() for name in names}


RECORD_MEANINGS, MESSAGE_MEANINGS = by_name(RECORD), by_name(MESSAGE)
HARMLESS_NAMES, TOKEN_NAMES, CALL_NAMES, WEIGHT_NAMES, TRAIN_NAMES = map(
    spelled, (HARMLESS, TOKEN_IDS, CALLS, WEIGHTS, TRAIN))


def is_absent(value):
    """Returns whether a field is empty: null, NaN, an empty list or object, a text without a
    visible character."""
    return (value is None or value != value
            or (isinstance(value, (list, dict)) and not value)
            or (isinstance(value, str) and not value.strip()))


def holds_nothing(value):
    """Returns whether a field is empty (is_absent), or the JSON text of an empty value: a table may
    store an empty list or object as JSON text."""
    return is_absent(value) or (isinstance(value, str)
                                and value.strip() in ("null", "None", "[]", "{}"))


def verdict(value):
    """Returns the value of a label or switch as True or False; None if it is neither."""
    value = value.strip().lower() if isinstance(value, str) else value
    if isinstance(value, (str, bool, int, float)):
        return True if value in TRUE else False if value in FALSE else None
    return None


class Fields:
    """The fields of an object by their meaning (`meanings` is RECORD_MEANINGS or MESSAGE_MEANINGS).
    `others` holds the fields without a meaning here, by name."""

    def __init__(self, content, meanings, location, ignored=frozenset()):
        self.location, self.found, self.others, self.passed_over = location, {}, {}, []
        for key, value in content.items():
            name = canonical(key)
            if name in ignored:
                self.passed_over.append(key)
                continue
            meaning = meanings.get(name)
            if meaning is None:
                if not holds_nothing(value):
                    self.others[key] = value
            elif meaning not in self.found or is_absent(self.found[meaning][1]):
                self.found[meaning] = (key, value)
            elif not is_absent(value) and value != self.found[meaning][1]:
                raise BadDocument(f'{location}: "{self.found[meaning][0]}" and "{key}" are two '
                                  'spellings of one thing and hold different '
                                  "values; leave one of them out")

    def key(self, meaning):
        """Returns the spelling of the field in the object; None if the object does not have the
        field."""
        return self.found[meaning][0] if meaning in self.found else None

    def has(self, meaning):
        return meaning in self.found and not is_absent(self.found[meaning][1])

    def get(self, meaning):
        return self.found[meaning][1] if self.has(meaning) else None

    def raw(self, meaning):
        """Returns the value even if it is empty: an empty answer is an answer."""
        return self.found[meaning][1] if meaning in self.found else None


def kind_of_field(key, value):
    """Returns the kind of a field that is not read: harmless, unread, preference, or a key of
    REFUSED."""
    name = canonical(key)
    if name in HARMLESS_NAMES:
        return "harmless"
    if name.startswith(("rejected", "chosen", "nonpreferred", "dispreferred", "preferredoutput",
                        "preferredresponse", "preferredanswer")):
        return "preference"
    if name in TOKEN_NAMES:
        return "token ids"
    if name.endswith(("mask", "masks", "masked")) or name.startswith("mask"):
        return "mask"
    if name in WEIGHT_NAMES or name.endswith(("weight", "weights")):
        return "unread" if verdict(value) is True else "weight"
    if name.startswith(MEDIA) and not isinstance(value, (bool, int, float)):
        return "media"
    if name in CALL_NAMES:
        return "call"
    if name in ("role", "roles", "from"):
        return "role"
    if name in TRAIN_NAMES:
        return "unread" if verdict(value) is True else "train"
    return "unread"


def refuse_or_count(others, location, where="", has_messages=False):
    """Returns the names of the fields that are ignored and counted. Refuses fields that could
    change what is trained on. `where` is empty for the record, or names the message that has the
    fields."""
    unread, preference = [], []
    for key, value in others.items():
        kind = kind_of_field(key, value)
        if kind == "preference":
            preference.append(key)
        elif kind in REFUSED:
            says, serves = REFUSED[kind]
            raise BadDocument(f'{location}: {where}"{key}" {says}; {serves}, or pass over it with '
                              f'--ignore-fields {key}')
        elif kind == "unread":
            unread.append(key)
    if preference:
        messages = ("; to train on its messages alone, pass over the others with --ignore-fields "
                    f"{','.join(preference)}" if has_messages else "")
        raise BadDocument(f"{location}: {where}is a preference ({' and '.join(preference)}); "
                          "answers to imitate are read from "
                          f'"messages", or "prompt" and "completion"{messages}')
    return unread

