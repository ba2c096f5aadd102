"""Converts between the orders of matrix rows in Hugging Face's files and in llama.cpp's files."""
import numpy as np


def pairs_from_halves(values, heads):
    """Makes the two rows of a head that are rotated together neighbors; in Hugging Face's files one
    is in each half of the head. values [heads * head_size, ...]."""
    rows = values.shape[0]
    halves = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def halves_from_pairs(values, heads):
    """Undoes pairs_from_halves."""
    rows = values.shape[0]
    pairs = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def rows_by_projection(values, query_heads, kv_heads):
    """Sorts the rows of a fused matrix into all query rows, all key rows and all value rows. The
    given matrix is ordered by key head: its query heads, the key head itself, its value head."""
    shared = query_heads // kv_heads
    groups = values.reshape(kv_heads, shared + 2, -1, *values.shape[1:])
    parts = groups[:, :shared], groups[:, shared], groups[:, shared + 1]
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def rows_by_key_head(values, query_heads, kv_heads):
    """Undoes rows_by_projection."""
    shared = query_heads // kv_heads
    size = values.shape[0] // (query_heads + 2 * kv_heads)
    ends = np.cumsum([query_heads * size, kv_heads * size])
    parts = np.split(values, ends)
    groups = [part.reshape(kv_heads, count, size, *values.shape[1:])
              for part, count in zip(parts, (shared, 1, 1))]
    return np.concatenate(groups, axis=1).reshape(values.shape)
