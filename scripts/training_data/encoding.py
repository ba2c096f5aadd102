"""Encodes a document as token ids, and marks which of them are trained on."""
import collections
import functools
import glob
import json
import os
import re

import numpy as np

from training_data.conversations import Text, read_object
from training_data.fields import canonical_name
from script_errors import BadDocument, UserError
from text_files import bom_encoding, head_of, refuse_pointer, utf16_or_32_encoding
from training_data.records import line_content, read_json
from training_data.templates import ChatTemplate, has_template

# The result of encoding a document: (ids, trained) of each of its samples (int32 and bool), the
# shape that the document had, and notes for the report.
Encoded = collections.namedtuple("Encoded", "samples shape notes")


class Notes:
    """Counts events for the report, with the first example of each."""

    def __init__(self):
        self.counts, self.examples = collections.Counter(), {}

    def count(self, what, example=None, times=1):
        """Counts an event; the first example that is given is kept."""
        if times:
            self.counts[what] += times
            if example is not None:
                self.examples.setdefault(what, example)

    def of_kind(self, kind):
        """Returns ((kind, what), count) for all counts of a kind, in the order of their first
        occurrence."""
        return [(what, number) for what, number in self.counts.items() if isinstance(what, tuple)
                and what[0] == kind]

    def add(self, other):
        """Adds the counts of other notes."""
        self.counts += other.counts
        for what, example in other.examples.items():
            self.examples.setdefault(what, example)


class Encoder:
    """Encodes documents, with the tokenizer of a folder and the options on which the tokens
    depend."""

    def __init__(self, folder, plain=False, train_on="assistant", bos="auto", template=None,
                 template_options=None, ignored=()):
        from tokenizers import Tokenizer

        path = os.path.join(folder, "tokenizer.json")
        if not os.path.isfile(path):
            raise UserError(f"{folder}: holds no tokenizer.json; name a model folder that has one")
        for text_path in tokenizer_files(folder):
            refuse_unreadable(text_path)
        try:
            self.tokenizer = Tokenizer.from_file(path)
        except Exception as error:  # the library has no narrower exception
            raise UserError(
                f"{path}: cannot be read as a tokenizer: {str(error).splitlines()[0]}") from None
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        config, settings, generation = (
            read_json(os.path.join(folder, f"{name}.json"))
            for name in ("config", "tokenizer_config", "generation_config"))
        self.vocab_size = int(config.get("vocab_size") or self.tokenizer.get_vocab_size())
        self.end = self._special_id("eos", config, settings)
        if self.end is None:
            raise UserError(f"{folder}: names no eos token (tokenizer_config.json: eos_token)")
        self.ends = end_ids(self.end, config, generation)
        self.bos = self._special_id("bos", config, settings)
        self.begin = self._begin_id(folder, settings, bos)
        added = {i: token for i, token in self.tokenizer.get_added_tokens_decoder().items()
                 if token.special}
        self.special = set(added)
        texts = sorted((token.content for token in added.values()), key=len, reverse=True)
        self.special_texts = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self.ignored = frozenset(map(canonical_name, ignored))
        self.folder, self.train_on, self.plain_text = folder, train_on, plain
        self._template = (template, template_options)
        self.has_template = not plain and has_template(folder)
        if template and not self.has_template:
            raise UserError("--plain and --chat-template contradict each other; remove one of them"
                            if plain else f"{folder}: has no chat template, so --chat-template "
                            f"{template} cannot select one; remove that option")

    @functools.cached_property
    def template(self):
        """Returns the chat template of the folder."""
        return ChatTemplate(self.folder, *self._template)

    def _begin_id(self, folder, settings, bos):
        """Returns the id with which a plain text begins, or None. As in transformers, add_bos_token
        overrides tokenizer.json."""
        if bos == "never":
            return None
        wanted = bos == "always" or settings.get("add_bos_token")
        if wanted is None:
            plain = self.tokenizer.encode("a", add_special_tokens=False).ids
            full = self.tokenizer.encode("a", add_special_tokens=True).ids
            begin = full[:next((i for i in range(len(full)) if full[i:i + len(plain)] == plain), 0)]
            return int(begin[0]) if len(begin) == 1 else None
        begin = self.bos if wanted else None
        if begin is None and wanted:
            raise UserError(f"{folder}: names no bos token (tokenizer_config.json: bos_token); "
                            "use --bos never to start texts without a bos token")
        return begin

    def _special_id(self, kind, config, settings):
        """Returns the id of eos or bos that tokenizer_config.json names, or else the one that
        config.json names."""
        token = settings.get(f"{kind}_token")
        token = token.get("content") if isinstance(token, dict) else token
        token_id = self.tokenizer.token_to_id(token) if isinstance(token, str) and token else None
        if token_id is None:
            token_id = config.get(f"{kind}_token_id")
            token_id = token_id[0] if isinstance(token_id, list) else token_id
        return None if token_id is None else int(token_id)

    # ---- a document ----

    def encode(self, document):
        """Encodes a document. Raises BadDocument if it cannot be used."""
        content, location = document.content, document.location
        if isinstance(content, bytes):
            content = line_content(content, location)
        if isinstance(content, BadDocument):
            raise content
        read = (Text(content, "text file") if isinstance(content, str)
                else read_object(content, location, self.ignored))
        notes = Notes()
        for key in read.unread:
            notes.count(("unread", key), location)
        self.count_spelled_special_tokens(read, location, notes)
        if isinstance(read, Text):
            return Encoded([self.encode_text(read.text, None, location)], read.shape, notes)
        notes.count("empty answers", location, read.count_empty_answers())
        if not self.has_template:
            for key in read.options:
                notes.count(("unread", f"chat_template_kwargs.{key}"), location)
            return Encoded([self.encode_pair(read, location)], read.shape, notes)
        samples = self.template.samples(read, self.train_on, location, notes)
        return Encoded([self.encode_rendered(sample, location, notes) for sample in samples],
                       read.shape, notes)

    def count_spelled_special_tokens(self, read, location, notes):
        """Counts special tokens that are spelled out in a text. The tokenizer converts them to the
        special tokens, even if a user wrote them."""
        if isinstance(read, Text):
            begin = self.begin_text if self.begin_text and read.text.startswith(
                self.begin_text) else ""
            texts = [("text", read.text[len(begin):])]
        else:
            texts = [(m["role"], "\n".join(texts_of(m))) for m in read.messages]
            texts += [("tools", json.dumps(read.tools, ensure_ascii=False))] if read.tools else []
        for role, text in texts:
            match = self.special_texts.search(text)
            if match:
                notes.count(("spelled special token", role), f"{location}: {match.group()}")

    @property
    def begin_text(self):
        """Returns the text of the begin-of-text token; None if the model has none."""
        return self.tokenizer.id_to_token(self.bos) if self.bos is not None else None

    def encode_pair(self, chat, location):
        """Encodes a prompt and its completion, joined without a template."""
        if chat.pair is None:
            why = "--plain is given" if self.plain_text else f"{self.folder} has no chat template"
            raise UserError(f"{location}: {why}, so messages cannot be converted to text; name the "
                            "folder of the chat model, put its chat_template.jinja into this one, "
                            "or use prompt and completion")
        prompt, answer = chat.pair
        return self.encode_text(prompt + answer, None if self.train_on == "all" else len(prompt),
                                location)

    def encode_text(self, text, answer, location):
        """Encodes a text, followed by the end-of-text id. Tokens from character `answer` on are
        trained on (None: all tokens)."""
        encoded = self.tokens(text, location)
        ids, trained = np.array(encoded.ids, dtype=np.int32), np.ones(len(encoded.ids), dtype=bool)
        if answer is not None:
            trained[:first_token(encoded, answer, len(text))] = False
        ids, trained = np.append(ids, np.int32(self.end)), np.append(trained, True)
        if self.begin is not None and ids[0] != self.begin:  # unless the text spells it out
            ids, trained = np.append(np.int32(self.begin), ids), np.append(answer is None, trained)
        return ids, trained

    def encode_rendered(self, sample, location, notes):
        """Encodes the text that a chat template rendered, without adding any token."""
        encoded = self.tokens(sample.text, location)
        ids = np.array(encoded.ids, dtype=np.int32)
        if self.bos is not None and ids.size > 1 and ids[0] == self.bos and ids[1] == self.bos:
            raise BadDocument(f"{location}: begins with the begin-of-text token twice; the chat "
                              "template writes it, so messages must not")
        if sample.turns is None:
            return ids, np.ones(ids.size, dtype=bool)
        trained = np.zeros(ids.size, dtype=bool)
        for turn in sample.turns:
            self.mark_turn(encoded, ids, trained, turn, len(sample.text), location, notes)
        return ids, trained

    def mark_turn(self, encoded, ids, trained, turn, size, location, notes):
        """Marks the tokens of an answer as trained on. A token that straddles the start of the
        answer belongs to the prompt. The token that ends the answer is trained on, even if the
        template's marks end before it. Text that the template writes after that token is not
        trained on, because no model generates it."""
        indices = [i for b, e in turn.ranges for i in range(first_token(encoded, b, size),
                                                            first_token(encoded, e, size))]
        limit = first_token(encoded, turn.limit, size)
        if indices and indices[-1] + 1 < limit and int(ids[indices[-1] + 1]) in self.ends:
            indices.append(indices[-1] + 1)
        ending = next((n for n, i in enumerate(indices) if int(ids[i]) in self.ends), None)
        if ending is not None and any(int(ids[i]) in self.ends for i in indices[ending + 1:]):
            notes.count("end inside", location)
        indices = indices if ending is None else indices[:ending + 1]
        trained[indices] = True
        notes.count("answers")
        if ending is not None:
            notes.count(("end", int(ids[indices[-1]])))
        elif indices:
            last = next((int(i) for i in ids[indices[0]:limit][::-1] if int(i) in self.special),
                        None)
            notes.count(("other end", last), location)

    def tokens(self, text, location):
        """Tokenizes a text without adding special tokens."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadDocument(f"{location}: half a surrogate pair "
                              f"(\\u{ord(text[error.start]):04x}) in the text") from None
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        max_id = max(encoded.ids, default=0)
        if max_id >= self.vocab_size:
            raise UserError(f"{location}: the tokenizer gives id {max_id}, outside the "
                            f"model's vocabulary of {self.vocab_size} ids")
        return encoded


def tokenizer_files(folder):
    """Returns the files of a model folder that determine tokenizer and chat template."""
    names = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json",
             "special_tokens_map.json", "added_tokens.json",
             "chat_template.jinja")
    paths = [os.path.join(folder, name) for name in names]
    paths += sorted(glob.glob(os.path.join(glob.escape(folder), "additional_chat_templates",
                                           "*.jinja")))
    return [path for path in paths if os.path.isfile(path)]


def refuse_unreadable(path):
    """Refuses a file that transformers cannot read, or whose byte order mark it would read as
    text."""
    head = head_of(path)
    refuse_pointer(path, head)
    if bom_encoding(head) or utf16_or_32_encoding(head):
        name = (utf16_or_32_encoding(head) or bom_encoding(head))[0]
        raise UserError(f"{path}: " + (f"is {name}, expected UTF-8; convert it to UTF-8"
                                       if name != "UTF-8" else
                                       "begins with the byte order mark of UTF-8, which "
                                       "transformers reads as text; write the file without it"))


def texts_of(value):
    """Yields every string within a message, except its role."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "role":
                yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)


def end_ids(end, config, generation):
    """Returns every id at which a server ends an answer."""
    ids = {end}
    for settings in (config, generation):
        value = settings.get("eos_token_id")
        ids |= {int(i) for i in (value if isinstance(value, list) else [value]) if i is not None}
    return ids


def first_token(encoded, character, size):
    """Returns the index of the first token that begins at `character` or later, in a text of `size`
    characters."""
    if character >= size:
        return len(encoded.ids)
    token = encoded.char_to_token(character)
    if token is None:  # a character that the tokenizer drops
        starts = [offset[0] for offset in encoded.offsets]
        return next((i for i, start in enumerate(starts) if start >= character), len(starts))
    while token < len(encoded.ids) and encoded.token_to_chars(token)[0] < character:
        token += 1  # skips a token that straddles the character
    return token
