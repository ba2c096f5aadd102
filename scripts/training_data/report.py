"""Reports the result: on the terminal, and as an HTML page (PREFIX.html)."""
import collections
import html
import os

import numpy as np
import xxhash

from script_errors import printable
from training_data.encoding import Notes
from training_data.lengths import ROWS, histogram, histogram_text, quantiles

SHOWN = 10  # samples on the page
NAMED = 8  # files on the terminal
UNREAD = 40  # names of fields in the report
ON, OFF, DIM = "\033[32m", "\033[0m", "\033[2m"


class FileCounts:
    def __init__(self):
        self.shapes = collections.Counter()
        self.samples = self.tokens = self.trained = 0


class Tally:
    """Counts over all samples, in the order in which they are written."""

    def __init__(self, encoder, paths, left_out=()):
        self.encoder = encoder
        self.left_out = left_out  # a sentence for each kind of file that was not read
        self.files = {path: FileCounts() for path in paths}
        self.notes = Notes()
        self.first = []  # (location, ids, trained)
        self.lengths = []
        self.seen = {}  # digest of a sample: its split
        self.duplicates = self.shared = 0
        self.first_duplicate = None

    def document(self, document, encoded):
        self.files[document.path].shapes[encoded.shape] += 1
        self.notes.add(encoded.notes)

    def sample(self, document, ids, trained, split):
        counts = self.files[document.path]
        counts.samples += 1
        counts.tokens += int(ids.size)
        counts.trained += int(trained[1:].sum())
        self.lengths.append(int(ids.size))
        if len(self.first) < SHOWN:
            self.first.append((document.location, ids, trained))
        digest = xxhash.xxh3_64_intdigest(ids.tobytes() + np.packbits(trained).tobytes())
        before = self.seen.setdefault(digest, (split, document.location))
        if before[1] != document.location:
            self.duplicates += 1
            self.shared += before[0] != split
            if self.first_duplicate is None:
                self.first_duplicate = f"{document.location} is {before[1]} again"

    # ---- the lines of the report ----

    def counts_by_file(self):
        return [f"{path}: {' and '.join(shape_counts(c)) or 'no document'}; {c.samples} samples, "
                f"{c.tokens} tokens, {c.trained} trained on" for path, c in self.files.items()]

    def warnings(self):
        found = [f"{path}: none of its {c.samples} samples has a token that is trained on"
                 for path, c in self.files.items() if c.samples and not c.trained]
        found += self.ending_warnings()
        counts, examples = self.notes.counts, self.notes.examples
        if counts["empty answers"]:
            found.append(f"{counts['empty answers']} answers are empty (the first: "
                         f"{examples['empty answers']}); a model learns from them to say nothing")
        if counts["prefilled"]:
            found.append(f"before {counts['prefilled']} of {counts['answers']} answers a server's "
                         f"prompt goes on otherwise than the chat does ({examples['prefilled']}); "
                         "the answer is trained on from where they part")
        if counts["end inside"]:
            found.append(f"{counts['end inside']} answers have an end token within their text (the "
                         f"first: {examples['end inside']}); what follows it is not trained on")
        for (_, role), number in self.notes.of("forged"):
            who = {"text": "texts",
                   "tools": "lists of tools"}.get(role, f"messages of the role {role}")
            found.append(f"{number} {who} spell out special tokens, which become those tokens (the "
                         f"first: {examples['forged', role]})")
        if counts["bare tools"]:
            found.append(f'{counts["bare tools"]} chats list tools that are no {{"type": '
                         f'"function", "function": ...}}, as servers give them (the '
                         f"first: {examples['bare tools']}); they are laid out as they are")
        if self.duplicates:
            found.append(f"{self.duplicates} samples occur again (the first: "
                         f"{self.first_duplicate})")
        if self.shared:
            found.append(f"{self.shared} of these are in train and in validation, whose loss they "
                         "make too low")
        if (self.encoder.has_template and counts["answers"]
            and self.encoder.template.says_the_date()):
            found.append("the chat template writes the date on which it runs; fix it with "
                         "--template-options if it names one (Llama 3.1: '{\"date_string\": \"26 "
                         "Jul 2024\"}')")
        return found

    def unread_line(self):
        """Returns a line that names the fields that are neither read nor known to be harmless."""
        named = [f"{key} ({number} {'times' if number > 1 else 'time'}, the first: "
                 f"{self.notes.examples[what]})"
                 for what, number in self.notes.of("unread") for key in what[1:]]
        return f"not read: {'; '.join(named[:UNREAD])}" + (f"; and {len(named) - UNREAD} more"
                                                           if len(named) > UNREAD
                                                           else "") if named else ""

    def ending_warnings(self):
        found, counts = [], self.notes.counts
        ends = " and ".join(self.token(i) for i in sorted(self.encoder.ends))
        for what, number in self.notes.of("other end"):
            example = self.notes.examples[what]
            if what[1] is None:
                found.append(f"{number} of {counts['answers']} answers end without a special token "
                             f"(the first: {example}): a model learns from them to go on; its end "
                             f"tokens are {ends}")
            else:
                found.append(f"{number} of {counts['answers']} answers end with "
                             f"{self.token(what[1])} (id {what[1]}), which is none of the model's "
                             f"end tokens ({ends}), so a server would not stop there; add the id "
                             "to eos_token_id in generation_config.json")
        return found

    def token(self, number):
        return self.encoder.tokenizer.id_to_token(number) or f"id {number}"

    def turn_ends(self):
        """Returns the ids with which trained answers end."""
        return sorted(what[1] for what, _ in [*self.notes.of("end"), *self.notes.of("other end")]
                      if what[1] is not None)

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
    return [f"{number} {'document' if shape in ('text', 'text file') else 'chat'}"
            f"{'' if number == 1 else 's'} ({shape})"
            for shape, number in counts.shapes.most_common()]


# ---- on the terminal ----


def terminal_text(tally, fitter, colour):
    lines = [f"  {line}" for line in tally.counts_by_file()[:NAMED]]
    if len(tally.files) > NAMED:
        lines.append(f"  and {len(tally.files) - NAMED} more files")
    lines += [f"  {line}" for line in tally.left_out]
    if tally.notes.counts["rewritten"]:
        lines.append(f"  {tally.notes.counts['rewritten']} chats became a sample for each answer: "
                     "the chat template lays earlier messages out otherwise once later ones follow")
    if tally.unread_line():
        lines.append(f"  {tally.unread_line()}")
    if fitter.summary():
        lines.append(f"  {fitter.summary()}")
    lines.append(histogram_text(tally.lengths, fitter.length))
    for location, ids, trained in tally.first[:1]:
        lines.append(f"  the first sample, {location}, what is trained on "
                     + (f"{ON}in green{OFF}:" if colour else "between >>> and <<<:"))
        lines.append(sample_text(tally.pieces(ids, trained), colour,
                                 200 if trained.all() else 1200))
    lines += [f"  warning: {warning}" for warning in tally.warnings()]
    return "\n".join(lines)


def harmless(text):
    """Replaces control characters, which a terminal would execute."""
    return "".join(c if c in "\n\t" or ord(c) >= 32 and not 127 <= ord(c) < 160 else "?"
                   for c in text)


def sample_text(pieces, colour, most):
    text, left = "", most
    for trained, piece in pieces:
        shown, left = harmless(piece[:left]), left - len(piece)
        text += (f"{ON}{shown}{OFF}" if trained and colour else f">>>{shown}<<<"
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


def page(tally, writers, fitter, out):
    tokens, trained = (sum(getattr(w, key) for w in writers.values())
                       for key in ("tokens", "trained"))
    samples = sum(len(w.lengths) for w in writers.values())
    half = quantiles(tally.lengths)
    tiles = [("samples", f"{samples:,}"), ("tokens", f"{tokens:,}"),
             ("trained on", f"{100 * trained / max(tokens, 1):.1f} %"),
             ("median length", f"{half[50]:,}"),
             ("longest", f"{half[100]:,}"), ("occur again", f"{tally.duplicates:,}"),
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
    rows = "".join(f"<tr><td>{html.escape(path)}<td>{html.escape(', '.join(shape_counts(c)))}"
                   + "".join(f"<td class=n>{n:,}" for n in (c.samples, c.tokens, c.trained))
                   for path, c in list(tally.files.items())[:200])
    return ("<h2>Files</h2><div class=scroll><table><tr><th>file<th>holds<th class=n>samples<th "
            f"class=n>tokens<th class=n>trained on{rows}</table></div>")


def length_table(tally, fitter):
    bins = histogram(tally.lengths)
    most = max(count for _, _, count in bins)
    rows = "".join(f"<tr><td class=n>{low:,} to {high:,}<td class=n>{count:,}<td style='width:60%'>"
                   f"<span class=bar style='width:{100 * count / most:.1f}%'></span>"
                   for low, high, count in bins)
    lengths = np.asarray(tally.lengths)
    shares = ", ".join(f"{100 * np.mean(lengths > row + 1):.1f} % at {row:,}" for row in ROWS)
    cut = f"<p>{html.escape(fitter.summary())}" if fitter.summary() else ""
    half = ", ".join(f"{q} %: {n:,}" for q, n in quantiles(tally.lengths).items())
    return (f"<h2>Lengths in tokens</h2>{cut}<p class=quiet>at most so long are — {half}. Too long "
            f"for one row: {shares}.</p><div class=scroll><table><tr><th class=n>tokens<th "
            f"class=n>samples<th>{rows}</table></div>")


def sample_parts(tally):
    parts = ["<h2>The first samples</h2><p class=quiet>What is trained on is <mark>marked</mark>; "
             "the rest is context."]
    for location, ids, trained in tally.first:
        text = "".join(f"<mark>{html.escape(t)}</mark>" if on else html.escape(t)
                       for on, t in clipped(tally.pieces(ids, trained), 8000))
        parts.append(f"<p class=quiet>{html.escape(location)}: {len(ids)} tokens, "
                     f"{int(trained[1:].sum())} trained on<pre>{text}</pre>")
    return "\n".join(parts)


def clipped(pieces, most):
    for trained, piece in pieces:
        yield trained, piece[:most]
        most -= len(piece)
        if most < 0:
            yield False, f" … {-most} more characters"
            return
