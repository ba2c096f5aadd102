"""Classifies the fields of a record, under all their spellings: which are read, which are harmless,
which are refused.

An empty field (null, "", [], {}, NaN) counts as absent. Every other field is read, or
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
    "token ids": ("holds token ids, but the record has texts to tokenize",
                  "remove the field, or name a file of token ids in data.train instead of "
                  "preparing it"),
    "mask": ("selects single tokens for the loss, which is not possible for texts",
             'write "train": false in the messages that do not count, or '
             "prepare the token ids elsewhere and name that file in data.train"),
    "weight": ("gives the record or its tokens a weight, but ftrun weights all trained tokens "
               "equally",
               "prepare such records as a separate data set and give that a weight in data.train"),
    "media": ("holds something other than text, and ftrun trains only on text",
              "remove the field if the texts make sense without it"),
    "call": ("is a tool call outside the messages",
             'move it to "tool_calls" of an assistant\'s message'),
    "role": ("names a speaker outside the messages", 'write "role" in each message'),
    "train": ("selects what is trained on in a form that is not supported",
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
def canonical_name(key):
    """Returns one spelling for all variants of a name: schemaVersion and schema_version are the
    same."""
    return "".join(c for c in key.lower() if c.isalnum())


def canonical_names(names):
    """Returns the canonical spellings of names."""
    return frozenset(map(canonical_name, names))


def meanings_by_name(meanings):
    """Returns {canonical name: meaning} for {meaning: its spellings}."""
    return {canonical_name(name): meaning for meaning, names in meanings.items() for name in names}


RECORD_MEANINGS, MESSAGE_MEANINGS = meanings_by_name(RECORD), meanings_by_name(MESSAGE)
HARMLESS_NAMES, TOKEN_NAMES, CALL_NAMES, WEIGHT_NAMES, TRAIN_NAMES = map(
    canonical_names, (HARMLESS, TOKEN_IDS, CALLS, WEIGHTS, TRAIN))


def is_empty(value):
    """Returns whether a value is empty: null, NaN, an empty list or object, or a text without a
    visible character."""
    return (value is None or value != value
            or (isinstance(value, (list, dict)) and not value)
            or (isinstance(value, str) and not value.strip()))


def is_empty_or_empty_json(value):
    """Returns whether a value is empty, or is the JSON text of an empty value, such as "[]": a
    table may store an empty list or object as JSON text."""
    return is_empty(value) or (isinstance(value, str)
                                and value.strip() in ("null", "None", "[]", "{}"))


def as_bool(value):
    """Returns the value of a label or switch as True or False; None if it is neither."""
    value = value.strip().lower() if isinstance(value, str) else value
    if isinstance(value, (str, bool, int, float)):
        return True if value in TRUE else False if value in FALSE else None
    return None


class Fields:
    """Fields are those of an object by their meaning; `meanings` is RECORD_MEANINGS or
    MESSAGE_MEANINGS. `others` holds the fields without a meaning, by name; `ignored_keys` the
    fields that the user ignores."""

    def __init__(self, content, meanings, location, ignored=frozenset()):
        self.location = location
        self.by_meaning, self.others, self.ignored_keys = {}, {}, []
        for key, value in content.items():
            name = canonical_name(key)
            if name in ignored:
                self.ignored_keys.append(key)
                continue
            meaning = meanings.get(name)
            if meaning is None:
                if not is_empty_or_empty_json(value):
                    self.others[key] = value
            elif not self.has(meaning):
                self.by_meaning[meaning] = (key, value)
            elif not is_empty(value) and value != self.by_meaning[meaning][1]:
                raise BadDocument(f'{location}: "{self.key(meaning)}" and "{key}" are two names of '
                                  "the same field and hold different values; remove one of them")

    def key(self, meaning):
        """Returns the spelling of the field in the object; None if the object does not have the
        field."""
        return self.by_meaning[meaning][0] if meaning in self.by_meaning else None

    def has(self, meaning):
        """Returns whether the object has the field and the field is not empty."""
        return meaning in self.by_meaning and not is_empty(self.by_meaning[meaning][1])

    def get(self, meaning):
        """Returns the value of the field; None if it is empty or missing."""
        return self.by_meaning[meaning][1] if self.has(meaning) else None

    def raw(self, meaning):
        """Returns the value of the field even if it is empty: an empty answer is an answer."""
        return self.by_meaning[meaning][1] if meaning in self.by_meaning else None


def kind_of_field(key, value):
    """Returns the kind of a field that is not read: harmless, unread, preference, or a key of
    REFUSED."""
    name = canonical_name(key)
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
        return "unread" if as_bool(value) is True else "weight"
    if name.startswith(MEDIA) and not isinstance(value, (bool, int, float)):
        return "media"
    if name in CALL_NAMES:
        return "call"
    if name in ("role", "roles", "from"):
        return "role"
    if name in TRAIN_NAMES:
        return "unread" if as_bool(value) is True else "train"
    return "unread"


def refuse_or_count(others, location, where="", has_messages=False):
    """Returns the names of the unread fields, which are counted. Refuses fields that could
    change what is trained on. `where` is empty for the record, or names the message that has the
    fields."""
    unread, preference = [], []
    for key, value in others.items():
        kind = kind_of_field(key, value)
        if kind == "preference":
            preference.append(key)
        elif kind in REFUSED:
            problem, remedy = REFUSED[kind]
            raise BadDocument(f'{location}: {where}"{key}" {problem}; {remedy}, or ignore it with '
                              f'--ignore-fields {key}')
        elif kind == "unread":
            unread.append(key)
    if preference:
        remedy = ("; to train only on its messages, ignore the other fields with --ignore-fields "
                  f"{','.join(preference)}" if has_messages else "")
        raise BadDocument(f"{location}: {where}is a preference ({' and '.join(preference)}), "
                          "which is not supported; answers to imitate are read from "
                          f'"messages", or "prompt" and "completion"{remedy}')
    return unread

