"""Reports the result: on the terminal, and as an HTML page (PREFIX.html)."""
import collections
import html
import os

import numpy as np
import xxhash

from script_errors import printable
from training_data.encoding import Notes
from training_data.lengths import SEQUENCE_LENGTHS, histogram, histogram_text, quantiles

MAX_SAMPLES = 10  # on the page
MAX_FILES = 8  # on the terminal
MAX_FIELDS = 40  # names of unread fields in the report
ON, OFF, DIM = "\033[32m", "\033[0m", "\033[2m"


class FileCounts:
    """Counts of the samples of an input file."""

    def __init__(self):
        self.shapes = collections.Counter()
        self.samples = self.tokens = self.trained = 0


class Tally:
    """Counts all samples, in the order in which they are written."""

    def __init__(self, encoder, paths, left_out=()):
        self.encoder = encoder
        self.left_out = left_out  # a sentence for each kind of file that was not read
        self.files = {path: FileCounts() for path in paths}
        self.notes = Notes()
        self.first = []  # (location, ids, trained)
        self.lengths = []
        self.first_of_digest = {}  # digest of a sample: (split, location) of the first such sample
        self.duplicates = self.shared = 0
        self.first_duplicate = None

    def add_document(self, document, encoded):
        """Counts a document by its shape, and adds the notes of its encoding."""
        self.files[document.path].shapes[encoded.shape] += 1
        self.notes.add(encoded.notes)

    def add_sample(self, document, ids, trained, split):
        """Counts a sample that is written to a split."""
        counts = self.files[document.path]
        counts.samples += 1
        counts.tokens += int(ids.size)
        counts.trained += int(trained[1:].sum())
        self.lengths.append(int(ids.size))
        if len(self.first) < MAX_SAMPLES:
            self.first.append((document.location, ids, trained))
        digest = xxhash.xxh3_64_intdigest(ids.tobytes() + np.packbits(trained).tobytes())
        first = self.first_of_digest.setdefault(digest, (split, document.location))
        if first[1] != document.location:
            self.duplicates += 1
            self.shared += first[0] != split
            if self.first_duplicate is None:
                self.first_duplicate = f"{document.location} repeats {first[1]}"

    # ---- the lines of the report ----

    def counts_by_file(self):
        """Returns a line of counts for each file."""
        return [f"{path}: {', '.join(shape_counts(c)) or 'no document'}; {c.samples} samples, "
                f"{c.tokens} tokens, {c.trained} trained on" for path, c in self.files.items()]

    def warnings(self):
        """Returns a sentence for each property of the data that is probably a mistake."""
        lines = [f"{path}: none of its {c.samples} samples has a token that is trained on"
                 for path, c in self.files.items() if c.samples and not c.trained]
        lines += self.ending_warnings()
        counts, examples = self.notes.counts, self.notes.examples
        if counts["empty answers"]:
            lines.append(f"{counts['empty answers']} answers are empty (the first: "
                         f"{examples['empty answers']}); a model learns from them to say nothing")
        if counts["prefilled"]:
            lines.append(f"before {counts['prefilled']} of {counts['answers']} answers the prompt "
                         f"that a server renders differs from the chat ({examples['prefilled']}); "
                         "such an answer is trained on from the first difference")
        if counts["end inside"]:
            lines.append(f"{counts['end inside']} answers have an end token within their text (the "
                         f"first: {examples['end inside']}); what follows it is not trained on")
        for (_, role), number in self.notes.of_kind("spelled special token"):
            texts = {"text": "texts",
                     "tools": "lists of tools"}.get(role, f"messages of the role {role}")
            lines.append(f"{number} {texts} contain the text of special tokens, which the "
                         "tokenizer converts to these tokens (the first: "
                         f"{examples['spelled special token', role]})")
        if counts["bare tools"]:
            lines.append(f'{counts["bare tools"]} chats list tools that are not {{"type": '
                         f'"function", "function": ...}}, the form that servers use (the '
                         f"first: {examples['bare tools']}); the template gets them unchanged")
        if self.duplicates:
            lines.append(f"{self.duplicates} samples are duplicates (the first: "
                         f"{self.first_duplicate})")
        if self.shared:
            lines.append(f"{self.shared} of these are in both train and validation, which makes "
                         "the validation loss too low")
        if (self.encoder.has_template and counts["answers"]
            and self.encoder.template.writes_current_date()):
            lines.append("the chat template writes the current date; set a fixed date with "
                         "--template-options if the template has an option for it (Llama 3.1: "
                         "'{\"date_string\": \"26 Jul 2024\"}')")
        return lines

    def unread_line(self):
        """Returns a line that names the fields that are neither read nor known to be harmless."""
        fields = [f"{key} ({number} {'times' if number > 1 else 'time'}, the first: "
                 f"{self.notes.examples[what]})"
                 for what, number in self.notes.of_kind("unread") for key in what[1:]]
        if not fields:
            return ""
        more = f"; and {len(fields) - MAX_FIELDS} more" if len(fields) > MAX_FIELDS else ""
        return f"not read: {'; '.join(fields[:MAX_FIELDS])}{more}"

    def ending_warnings(self):
        """Returns a sentence for each way in which answers end without an end token of the
        model."""
        lines, counts = [], self.notes.counts
        ends = " and ".join(self.token(i) for i in sorted(self.encoder.ends))
        for what, number in self.notes.of_kind("other end"):
            example = self.notes.examples[what]
            if what[1] is None:
                lines.append(f"{number} of {counts['answers']} answers end without a special token "
                             f"(the first: {example}), so a model learns from them not to stop; "
                             f"its end tokens are {ends}")
            else:
                lines.append(f"{number} of {counts['answers']} answers end with "
                             f"{self.token(what[1])} (id {what[1]}), which is none of the model's "
                             f"end tokens ({ends}), so a server would not stop there; add the id "
                             "to eos_token_id in generation_config.json")
        return lines

    def token(self, number):
        """Returns the text of a token id for a message."""
        return self.encoder.tokenizer.id_to_token(number) or f"id {number}"

    def turn_ends(self):
        """Returns the ids with which trained answers end."""
        events = [*self.notes.of_kind("end"), *self.notes.of_kind("other end")]
        return sorted(event[1] for event, _ in events if event[1] is not None)

    def pieces(self, ids, trained):
        """Returns the sample's text, divided into runs of tokens that are trained on or not. The
        first token is not a label."""
        runs, begin = [], 0
        for i in range(1, len(ids) + 1):
            if i == len(ids) or trained[i] != trained[begin]:
                text = self.encoder.tokenizer.decode([int(t) for t in ids[begin:i]],
                                                     skip_special_tokens=False)
                runs.append((bool(trained[begin]), text))
                begin = i
        return runs


def shape_counts(counts):
    """Returns a text such as "3 chats (messages)" for each shape of a file's documents."""
    return [f"{number} {'document' if shape in ('text', 'text file') else 'chat'}"
            f"{'' if number == 1 else 's'} ({shape})"
            for shape, number in counts.shapes.most_common()]


# ---- on the terminal ----


def terminal_text(tally, fitter, color):
    """Returns the report for the terminal."""
    lines = [f"  {line}" for line in tally.counts_by_file()[:MAX_FILES]]
    if len(tally.files) > MAX_FILES:
        lines.append(f"  and {len(tally.files) - MAX_FILES} more files")
    lines += [f"  {line}" for line in tally.left_out]
    if tally.notes.counts["rewritten"]:
        lines.append(f"  {tally.notes.counts['rewritten']} chats were split into one sample per "
                     "answer, because the chat template changes earlier messages when later ones "
                     "follow")
    if tally.unread_line():
        lines.append(f"  {tally.unread_line()}")
    if fitter.summary():
        lines.append(f"  {fitter.summary()}")
    lines.append(histogram_text(tally.lengths, fitter.length))
    for location, ids, trained in tally.first[:1]:
        lines.append(f"  the first sample, {location}, what is trained on "
                     + (f"{ON}in green{OFF}:" if color else "between >>> and <<<:"))
        lines.append(sample_text(tally.pieces(ids, trained), color,
                                 200 if trained.all() else 1200))
    lines += [f"  warning: {warning}" for warning in tally.warnings()]
    return "\n".join(lines)


def without_control_characters(text):
    """Replaces control characters, which a terminal would execute."""
    return "".join(c if c in "\n\t" or ord(c) >= 32 and not 127 <= ord(c) < 160 else "?"
                   for c in text)


def sample_text(pieces, color, max_length):
    """Returns a sample's text for the terminal, with marks around what is trained on."""
    text, left = "", max_length
    for trained, piece in pieces:
        shown, left = without_control_characters(piece[:left]), left - len(piece)
        text += (f"{ON}{shown}{OFF}" if trained and color else f">>>{shown}<<<"
                 if trained else shown)
        if left <= 0:
            return text + f" … ({-left} more characters of this part)" if left else text
    return text


# ---- the page ----

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --quiet: #666b73; --ground: #fff;
  --card: #f4f5f7; --line: #d9dce1;
  --trained: #d3f2d8; --trained-text: #0c3d17; --bar: #4a7fd6; --warn: #fff3d6; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --quiet: #9aa0a8;
  --ground: #16181c; --card: #1f2228;
  --line: #363b44; --trained: #174a26; --trained-text: #d7f7de; --bar: #6f9ee8; --warn: #4a3a10; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground);
  margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; }
.tile { background: var(--card); border-radius: .5rem; padding: .6rem 1rem; flex: 1 1 8rem; }
.tile b { display: block; font-size: 1.4rem; }
.tile span, .quiet { color: var(--quiet); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: .8rem; background: var(--bar); border-radius: .15rem; }
.warn { background: var(--warn); padding: .5rem 1rem; border-radius: .5rem; margin: .5rem 0;
  overflow-wrap: anywhere; }
pre { background: var(--card); padding: .75rem 1rem; border-radius: .5rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
mark { background: var(--trained); color: var(--trained-text); border-radius: .15rem; }
"""


def html_page(tally, writers, fitter, out):
    """Returns the report as an HTML page."""
    tokens = sum(writer.tokens for writer in writers.values())
    trained = sum(writer.trained_tokens for writer in writers.values())
    samples = sum(len(w.lengths) for w in writers.values())
    lengths = quantiles(tally.lengths)
    tiles = [("samples", f"{samples:,}"), ("tokens", f"{tokens:,}"),
             ("trained on", f"{100 * trained / max(tokens, 1):.1f} %"),
             ("median length", f"{lengths[50]:,}"),
             ("longest", f"{lengths[100]:,}"), ("duplicates", f"{tally.duplicates:,}"),
             ("empty answers", f"{tally.notes.counts['empty answers']:,}")]
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
             "content='width=device-width'>",
             f"<title>Training data</title><style>{STYLE}</style><h1>Training data: "
             f"{html.escape(os.path.basename(out) or out)}</h1>",
             "<div class=tiles>",
             *(f"<div class=tile><b>{v}</b><span>{k}</span></div>" for k, v in tiles), "</div>",
             *(f"<p class=warn>{html.escape(w)}</p>" for w in tally.warnings()),
             *(f"<p>{html.escape(line)}" for line in tally.left_out),
             f"<p>{html.escape(tally.unread_line())}" if tally.unread_line() else "",
             file_table(tally), length_table(tally, fitter), sample_parts(tally)]
    return printable("\n".join(parts) + "\n")


def file_table(tally):
    """Returns the HTML table of the input files."""
    rows = "".join(f"<tr><td>{html.escape(path)}<td>{html.escape(', '.join(shape_counts(c)))}"
                   + "".join(f"<td class=n>{n:,}" for n in (c.samples, c.tokens, c.trained))
                   for path, c in list(tally.files.items())[:200])
    return ("<h2>Files</h2><div class=scroll><table><tr><th>file<th>content<th class=n>samples<th "
            f"class=n>tokens<th class=n>trained on{rows}</table></div>")


def length_table(tally, fitter):
    """Returns the HTML table of the lengths of samples."""
    bins = histogram(tally.lengths)
    max_count = max(count for _, _, count in bins)
    rows = "".join(f"<tr><td class=n>{low:,} to {high:,}<td class=n>{count:,}<td style='width:60%'>"
                   f"<span class=bar style='width:{100 * count / max_count:.1f}%'></span>"
                   for low, high, count in bins)
    lengths = np.asarray(tally.lengths)
    shares = ", ".join(f"{100 * np.mean(lengths > length + 1):.1f} % at {length:,}"
                       for length in SEQUENCE_LENGTHS)
    summary = f"<p>{html.escape(fitter.summary())}" if fitter.summary() else ""
    percentiles = ", ".join(f"{q} %: {n:,}" for q, n in quantiles(tally.lengths).items())
    return (f"<h2>Lengths in tokens</h2>{summary}<p class=quiet>Share of samples up to a length — "
            f"{percentiles}. Too long for one sequence: {shares}.</p><div class=scroll><table><tr>"
            f"<th class=n>tokens<th class=n>samples<th>{rows}</table></div>")


def sample_parts(tally):
    """Returns the first samples as HTML, with what is trained on marked."""
    parts = ["<h2>The first samples</h2><p class=quiet>What is trained on is <mark>marked</mark>; "
             "the rest is context."]
    for location, ids, trained in tally.first:
        text = "".join(f"<mark>{html.escape(t)}</mark>" if on else html.escape(t)
                       for on, t in clipped(tally.pieces(ids, trained), 8000))
        parts.append(f"<p class=quiet>{html.escape(location)}: {len(ids)} tokens, "
                     f"{int(trained[1:].sum())} trained on<pre>{text}</pre>")
    return "\n".join(parts)


def clipped(pieces, max_length):
    """Yields pieces until `max_length` characters, then the number of characters left out."""
    left = max_length
    for trained, piece in pieces:
        yield trained, piece[:left]
        left -= len(piece)
        if left < 0:
            yield False, f" … {-left} more characters"
            return
