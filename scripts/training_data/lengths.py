"""Fits samples into sequences of a fixed length, and counts how long samples are."""
import numpy as np

from script_errors import UserError

TOO_LONG = ("error", "truncate", "drop", "split")
SEQUENCE_LENGTHS = (512, 1024, 2048, 4096)  # lengths that a report compares samples with
BAR = 40  # characters of the longest bar of a histogram


class SequenceFitter:
    """Fits samples into sequences of `length` inputs. A sequence has length + 1 tokens, because the
    label of each input is the next token. If the length is None, every sample fits."""

    def __init__(self, length, policy):
        self.length, self.policy = length, policy
        self.samples = self.long = self.dropped = self.tokens_lost = self.trained_lost = 0
        self.lengths, self.locations = [], []  # of the samples that are too long

    def fit(self, ids, trained, location):
        """Returns the samples that a sample becomes: itself, a part of it, several parts, or
        none."""
        self.samples += 1
        if self.length is None or ids.size <= self.length + 1:
            return [(ids, trained)]
        self.long += 1
        self.lengths.append(ids.size)
        if len(self.locations) < 3:
            self.locations.append(f"{location} ({ids.size} tokens)")
        samples = getattr(self, f"_{self.policy}")(ids, trained)
        if self.policy != "split":  # pieces of split samples share tokens
            self.tokens_lost += int(ids.size) - sum(int(i.size) for i, _ in samples)
        self.trained_lost += int(trained[1:].sum()) - sum(int(t[1:].sum()) for _, t in samples)
        self.dropped += not samples
        return samples

    def _error(self, ids, trained):
        return [(ids, trained)]

    def _truncate(self, ids, trained):
        size = self.length + 1
        return [(ids[:size], trained[:size])] if trained[1:size].any() else []

    def _drop(self, ids, trained):
        return []

    def _split(self, ids, trained):
        """Splits a sample in the same way as documents are split into sequences: each piece begins
        with the last token of the previous piece, which is not a label in it."""
        pieces, in_piece = [], np.zeros(ids.size, bool)
        for begin in range(0, ids.size - 1, self.length):
            piece = trained[begin:begin + self.length + 1].copy()
            piece[0] &= begin == 0
            if piece[1:].any():
                pieces.append((ids[begin:begin + self.length + 1], piece))
                in_piece[begin:begin + self.length + 1] = True
        self.tokens_lost += int((~in_piece).sum())
        return pieces

    def refuse_long(self, lengths):
        """Raises an error if samples are too long and the policy is "error"."""
        if self.policy != "error" or not self.long:
            return
        share = 100 * self.long / self.samples
        raise UserError(
            f"{self.long} of {self.samples} samples ({share:.1f}%) are longer than a sequence of "
            f"{self.length} tokens (--sequence-length): "
            f"{', '.join(self.locations)}{', …' if self.long > len(self.locations) else ''}\n"
            f"{histogram_text(lengths, self.length)}\n  increase --sequence-length (the longest "
            f"sample needs {max(self.lengths) - 1}), or choose what happens to longer samples: "
            "--too-long truncate (their end is lost), drop, or split (later parts lose the context "
            "before them)")

    def summary(self):
        """Returns a sentence about the samples that were too long; "" if there were none."""
        if not self.long:
            return ""
        change = {"truncate": "cut", "drop": "left out", "split": "split"}[self.policy]
        text = (f"{self.long} of {self.samples} samples longer than a sequence of {self.length} "
                f"tokens were {change}")
        if self.policy != "split":
            text += f": {self.tokens_lost} tokens lost, {self.trained_lost} of them trained on"
        elif self.tokens_lost:
            text += f": {self.tokens_lost} tokens lost, in pieces without a trained token"
        if self.policy == "truncate" and self.dropped:
            text += f"; {self.dropped} of these had no trained token left and were left out"
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


def histogram_text(lengths, sequence_length=None):
    """Returns the histogram as lines with bars; the bin in which a sequence ends is marked."""
    bins = histogram(lengths)
    max_count = max(count for _, _, count in bins)
    width = len(str(bins[-1][1]))
    lines = []
    for low, high, count in bins:
        has_end = sequence_length is not None and low <= sequence_length + 1 <= high
        mark = "  < end of a sequence" if has_end else ""
        bar = "#" * (-(-BAR * count // max_count))
        lines.append(f"  {low:>{width}} to {high:>{width}} tokens  {count:>8}  {bar}{mark}")
    return "\n".join(lines)


def quantiles(lengths):
    """Returns {percentage: the length that this percentage of samples does not exceed}."""
    return {q: int(np.quantile(lengths, q / 100, method="higher")) for q in (50, 90, 95, 99, 100)}
