"""Encodes a document as token ids, and marks which of them are trained on."""
import collections
import functools
import glob
import json
import os
import re

import numpy as np

from training_data.conversations import Text, read_object
from training_data.fields import canonical
from script_errors import BadDocument, UserError
from text_files import head_of, marked_encoding, refuse_pointer, wide_encoding
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
        if times:
            self.counts[what] += times
            if example is not None:
                self.examples.setdefault(what, example)

    def of(self, kind):
        """Returns ((kind, what), count) for all counts of a kind, in the order of their first
        occurrence."""
        return [(what, number) for what, number in self.counts.items() if isinstance(what, tuple)
                and what[0] == kind]

    def add(self, other):
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
        for text in model_texts(folder):
            refuse_unreadable(text)
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
        self.ignored = frozenset(map(canonical, ignored))
        self.folder, self.train_on, self.plain_text = folder, train_on, plain
        self._template = (template, template_options)
        self.has_template = not plain and has_template(folder)
        if template and not self.has_template:
            raise UserError("--plain uses no chat template: remove it, or --chat-template" if plain
                            else f"{folder}: has no chat templates, so --chat-template {template} "
                            "names none")

    @functools.cached_property
    def template(self):
        return ChatTemplate(self.folder, *self._template)

    def _begin_id(self, folder, settings, bos):
        """Returns the id with which a plain text begins, or None. As in transformers, add_bos_token
        overrides tokenizer.json."""
        if bos == "never":
            return None
        wanted = bos == "always" or settings.get("add_bos_token")
        if wanted is None:
            bare = self.tokenizer.encode("a", add_special_tokens=False).ids
            whole = self.tokenizer.encode("a", add_special_tokens=True).ids
            begin = whole[:next((i for i in range(len(whole)) if whole[i:i + len(bare)] == bare),
                                0)]
            return int(begin[0]) if len(begin) == 1 else None
        begin = self.bos if wanted else None
        if begin is None and wanted:
            raise UserError(f"{folder}: names no bos token (tokenizer_config.json: bos_token); "
                            "--bos never begins texts without one")
        return begin

    def _special_id(self, which, config, settings):
        """Returns the id of eos or bos that tokenizer_config.json names, or else the one that
        config.json names."""
        token = settings.get(f"{which}_token")
        token = token.get("content") if isinstance(token, dict) else token
        found = self.tokenizer.token_to_id(token) if isinstance(token, str) and token else None
        if found is None:
            found = config.get(f"{which}_token_id")
            found = found[0] if isinstance(found, list) else found
        return None if found is None else int(found)

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
        self.count_forged(read, location, notes)
        if isinstance(read, Text):
            return Encoded([self.plain(read.text, None, location)], read.shape, notes)
        notes.count("empty answers", location, read.count_empty_answers())
        if not self.has_template:
            for key in read.options:
                notes.count(("unread", f"chat_template_kwargs.{key}"), location)
            return Encoded([self.joined(read, location)], read.shape, notes)
        samples = self.template.samples(read, self.train_on, location, notes)
        return Encoded([self.laid_out(sample, location, notes) for sample in samples], read.shape,
                       notes)

    def count_forged(self, read, location, notes):
        """Counts special tokens that are spelled out in a text. The tokenizer converts them to the
        special tokens, even if a user wrote them."""
        if isinstance(read, Text):
            begin = self.begin_text if self.begin_text and read.text.startswith(
                self.begin_text) else ""
            said = [("text", read.text[len(begin):])]
        else:
            said = [(m["role"], "\n".join(texts_of(m))) for m in read.messages]
            said += [("tools", json.dumps(read.tools, ensure_ascii=False))] if read.tools else []
        for role, text in said:
            found = self.special_texts.search(text)
            if found:
                notes.count(("forged", role), f"{location}: {found.group()}")

    @property
    def begin_text(self):
        return self.tokenizer.id_to_token(self.bos) if self.bos is not None else None

    def joined(self, chat, location):
        if chat.pair is None:
            why = "--plain is given" if self.plain_text else f"{self.folder} has no chat template"
            raise UserError(f"{location}: {why}, so messages cannot be laid out; name the folder "
                            "of the chat model, put its chat_template.jinja into this one, or use "
                            "prompt and completion")
        prompt, answer = chat.pair
        return self.plain(prompt + answer, None if self.train_on == "all" else len(prompt),
                          location)

    def plain(self, text, answer, location):
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

    def laid_out(self, sample, location, notes):
        """Encodes the text that a chat template made, without adding any token."""
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
        chosen = [i for b, e in turn.ranges for i in range(first_token(encoded, b, size),
                                                           first_token(encoded, e, size))]
        limit = first_token(encoded, turn.limit, size)
        if chosen and chosen[-1] + 1 < limit and int(ids[chosen[-1] + 1]) in self.ends:
            chosen.append(chosen[-1] + 1)
        ending = next((n for n, i in enumerate(chosen) if int(ids[i]) in self.ends), None)
        if ending is not None and any(int(ids[i]) in self.ends for i in chosen[ending + 1:]):
            notes.count("end inside", location)
        chosen = chosen if ending is None else chosen[:ending + 1]
        trained[chosen] = True
        notes.count("answers")
        if ending is not None:
            notes.count(("end", int(ids[chosen[-1]])))
        elif chosen:
            last = next((int(i) for i in ids[chosen[0]:limit][::-1] if int(i) in self.special),
                        None)
            notes.count(("other end", last), location)

    def tokens(self, text, location):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadDocument(f"{location}: half a surrogate pair "
                              f"(\\u{ord(text[error.start]):04x}) in the text") from None
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        most = max(encoded.ids, default=0)
        if most >= self.vocab_size:
            raise UserError(f"{location}: the tokenizer gives id {most}, outside the "
                            f"model's {self.vocab_size} rows")
        return encoded


def model_texts(folder):
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
    if marked_encoding(head) or wide_encoding(head):
        name = (wide_encoding(head) or marked_encoding(head))[0]
        raise UserError(f"{path}: " + (f"is {name}, expected UTF-8; write it in UTF-8"
                                       if name != "UTF-8" else
                                       "begins with the mark of UTF-8, which transformers takes "
                                       "for text; write it without the mark"))


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


def first_token(encoded, at, size):
    """Returns the first token that begins at character `at` or later."""
    if at >= size:
        return len(encoded.ids)
    token = encoded.char_to_token(at)
    if token is None:  # a character that the tokenizer drops
        starts = [offset[0] for offset in encoded.offsets]
        return next((i for i, start in enumerate(starts) if start >= at), len(starts))
    straddles = encoded.token_to_chars(token)[0] < at
    if straddles:
        while token < len(encoded.ids) and encoded.token_to_chars(token)[0] < at:
            token += 1
    return token
