"""A tokenizer.json as GGUF keeps it: tokens, their types, merges or scores, and the name of the rule that cuts a text
before merging (tokenizer.ggml.pre), which llama.cpp knows by name alone. A tokenizer with another rule is refused."""
import functools
import logging
import os
import re

from gguf_export.architectures import read_json
from script_errors import UserError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(cuts):
    return {"type": "ByteLevel", "use_regex": cuts}


def split_by(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# How a tokenizer.json says it (normalizer; what cuts, in order), and llama.cpp's name. Settings that do not cut are left out.
RULES = {
    "gpt-2": (None, [byte_level(True)]),
    "smollm": (None, [{"type": "Digits", "individual_digits": True}, byte_level(True)]),
    "llama-bpe": (None, [split_by(WORDS % "{1,3}"), byte_level(False)]),
    "qwen2": ({"type": "NFC"}, [split_by(WORDS % ""), byte_level(False)]),
}


def cutting(step):
    """A step of a pre-tokenizer without what does not cut; a space put before the text does."""
    if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
        return step
    return {key: value for key, value in step.items() if key not in ("add_prefix_space", "trim_offsets")}


def rule_of(tokenizer, path):
    steps = tokenizer.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps] if steps else [])
    found = (tokenizer.get("normalizer"), [cutting(step) for step in steps])
    for name, rule in RULES.items():
        if found == rule:
            return name
    raise UserError(f"{path}: cuts texts by a rule that has no proven name in llama.cpp here (those that have: {', '.join(RULES)}, "
                    "and SentencePiece's byte fallback)")


def is_sentencepiece(tokenizer):
    return bool(tokenizer["model"].get("byte_fallback"))


def token_list(tokenizer, size, path):
    """(tokens, types) of `size` ids; ids that no token has are unused."""
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    known = {i: (token, NORMAL) for token, i in tokenizer["model"]["vocab"].items()}
    for token in tokenizer.get("added_tokens", []):
        known[token["id"]] = (token["content"], CONTROL if token["special"] else USER_DEFINED)
    unknown = tokenizer["model"].get("unk_token")
    for i, (token, kind) in known.items():
        if i >= size:
            raise UserError(f"{path}: token {token!r} has the id {i}, and the model's vocab_size is {size}")
        if is_sentencepiece(tokenizer) and BYTE_TOKEN.fullmatch(token):
            kind = BYTE
        elif is_sentencepiece(tokenizer) and token == unknown:
            kind = UNKNOWN
        tokens[i], types[i] = token, kind
    return tokens, types


def scores_by_merges(tokenizer, tokens):
    """SentencePiece merges the pair with the best score first: the earlier a merge, the higher the score of what it makes."""
    ranks = {}
    for rank, merge in enumerate(tokenizer["model"]["merges"]):
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        ranks.setdefault(left + right, rank)
    last = float(len(tokenizer["model"]["merges"]))
    return [-float(ranks.get(token, last)) for token in tokens]


def puts_space_first(tokenizer):
    steps = tokenizer.get("normalizer") or {}
    steps = steps.get("normalizers", [steps])
    before = tokenizer.get("pre_tokenizer") or {}
    return any(step.get("type") == "Prepend" for step in steps) or before.get("prepend_scheme") in ("first", "always")


def write_vocabulary(writer, folder, size):
    import gguf
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(path):
        raise UserError(f"{folder}: has no tokenizer.json")
    tokenizer = read_json(path)
    if tokenizer["model"].get("type") != "BPE":
        raise UserError(f"{path}: is a {tokenizer['model'].get('type')} tokenizer; those of type BPE have a proven way into GGUF")
    tokens, types = token_list(tokenizer, size, path)
    pieces = is_sentencepiece(tokenizer)
    writer.add_tokenizer_model("llama" if pieces else "gpt2")
    writer.add_tokenizer_pre("default" if pieces else rule_of(tokenizer, path))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if pieces:
        writer.add_token_scores(scores_by_merges(tokenizer, tokens))
        writer.add_add_space_prefix(puts_space_first(tokenizer))
    logging.getLogger("gguf.vocab").setLevel(logging.ERROR)
    special = gguf.SpecialVocab(folder, load_merges=not pieces, n_vocab=size)
    special.add_special_token = {"bos": adds_bos(folder, special), "eos": False}
    special.add_to_gguf(writer, quiet=True)
    return special


@functools.cache
def load_tokenizer(folder):
    """transformers' own, loaded once: what is written, and what that is compared with, ask the same one."""
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(folder)


def adds_bos(folder, special):
    """Whether the tokenizer puts the begin-of-text id before a text: asked of itself, as files say it in many ways."""
    ids = load_tokenizer(folder)("x").input_ids
    return bool(ids) and ids[0] == special.special_token_ids.get("bos", -1)
