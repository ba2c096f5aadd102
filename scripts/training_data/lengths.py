"""Fits samples that are longer than a row, and counts how long samples are."""
import numpy as np

from script_errors import UserError

TOO_LONG = ("error", "truncate", "drop", "split")
ROWS = (512, 1024, 2048, 4096)
BAR = 40  # characters of the longest bar of a histogram


class RowFitter:
    """Fits samples into rows of `length` inputs. A row holds length + 1 tokens, because the label
    of each input is the next token. Without a length every sample fits."""

    def __init__(self, length, policy):
        self.length, self.policy = length, policy
        self.samples = self.long = self.dropped = self.tokens_lost = self.trained_lost = 0
        self.lengths, self.places = [], []

    def fitted(self, ids, trained, location):
        """Returns the samples that one sample becomes."""
        self.samples += 1
        if self.length is None or ids.size <= self.length + 1:
            return [(ids, trained)]
        self.long += 1
        self.lengths.append(ids.size)
        if len(self.places) < 3:
            self.places.append(f"{location} ({ids.size} tokens)")
        kept = getattr(self, f"_{self.policy}")(ids, trained)
        if self.policy != "split":  # pieces of split samples share tokens
            self.tokens_lost += int(ids.size) - sum(int(i.size) for i, _ in kept)
        self.trained_lost += int(trained[1:].sum()) - sum(int(t[1:].sum()) for _, t in kept)
        self.dropped += not kept
        return kept

    def _error(self, ids, trained):
        return [(ids, trained)]

    def _truncate(self, ids, trained):
        most = self.length + 1
        return [(ids[:most], trained[:most])] if trained[1:most].any() else []

    def _drop(self, ids, trained):
        return []

    def _split(self, ids, trained):
        """Splits a sample in the same way as documents are split into rows: each piece begins with
        the last token of the previous piece, which is not a label in it."""
        pieces, held = [], np.zeros(ids.size, bool)
        for begin in range(0, ids.size - 1, self.length):
            piece = trained[begin:begin + self.length + 1].copy()
            piece[0] &= begin == 0
            if piece[1:].any():
                pieces.append((ids[begin:begin + self.length + 1], piece))
                held[begin:begin + self.length + 1] = True
        self.tokens_lost += int((~held).sum())
        return pieces

    def refuse(self, lengths):
        if self.policy != "error" or not self.long:
            return
        share = 100 * self.long / self.samples
        raise UserError(
            f"{self.long} of {self.samples} samples ({share:.1f}%) are longer than a row of "
            f"{self.length} tokens (--sequence-length): "
            f"{', '.join(self.places)}{', …' if self.long > len(self.places) else ''}\n"
            f"{histogram_text(lengths, self.length)}\n  train with longer rows (the longest needs "
            f"{max(self.lengths) - 1}), or say what shall become of them: --too-long truncate "
            "(their end is lost), drop, or split (later parts begin without what came before)")

    def summary(self):
        if not self.long:
            return ""
        done = {"truncate": "cut", "drop": "left out", "split": "split"}[self.policy]
        text = (f"{self.long} of {self.samples} samples longer than a row of {self.length} tokens "
                f"were {done}")
        if self.policy != "split":
            text += f": {self.tokens_lost} tokens lost, {self.trained_lost} of them trained on"
        elif self.tokens_lost:
            text += f": {self.tokens_lost} tokens lost, of pieces without any that is trained on"
        if self.policy == "truncate" and self.dropped:
            text += f"; {self.dropped} had no answer in what was left and were left out"
        return text


def histogram(lengths):
    """Returns (from, to, count) of histogram bins whose bounds are powers of two."""
    lengths = np.asarray(lengths)
    edges = [1]
    while edges[-1] <= lengths.max():
        edges.append(edges[-1] * 2)
    counts = [(low, high - 1, int(((lengths >= low) & (lengths < high)).sum()))
              for low, high in zip(edges, edges[1:])]
    while len(counts) > 1 and counts[0][2] == 0:
        counts.pop(0)
    return counts


def histogram_text(lengths, row=None):
    bins = histogram(lengths)
    most = max(count for _, _, count in bins)
    wide = len(str(bins[-1][1]))
    lines = []
    for low, high, count in bins:
        mark = "  < a row ends here" if row is not None and low <= row + 1 <= high else ""
        bar = "#" * (-(-BAR * count // most))
        lines.append(f"  {low:>{wide}} to {high:>{wide}} tokens  {count:>8}  {bar}{mark}")
    return "\n".join(lines)


def quantiles(lengths):
    return {q: int(np.quantile(lengths, q / 100, method="higher")) for q in (50, 90, 95, 99, 100)}
