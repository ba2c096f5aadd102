"""Converts a tokenizer.json to GGUF and back: tokens, their types, merges or scores, and the name
of the pre-tokenizer (tokenizer.ggml.pre), which llama.cpp knows only by name. A tokenizer with any
other pre-tokenizer is refused."""
import functools
import logging
import os
import re

from gguf_models.model_folder import read_json
from script_errors import UserError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"  # SentencePiece's symbol for a space
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(use_regex):
    """Returns the step ByteLevel, which may also split the text."""
    return {"type": "ByteLevel", "use_regex": use_regex}


def split_by_pattern(pattern):
    """Returns the step Split by a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# PRE_TOKENIZERS maps llama.cpp's names of pre-tokenizers to the steps, in order, that a
# tokenizer.json has for them. Settings that do not change how text is split are left out.
PRE_TOKENIZERS = {
    "gpt-2": [byte_level(True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, byte_level(True)],
    "llama-bpe": [split_by_pattern(WORDS % "{1,3}"), byte_level(False)],
    "qwen2": [split_by_pattern(WORDS % ""), byte_level(False)],
}
# Other names of llama.cpp for the same pre-tokenizers.
PRE_TOKENIZER_ALIASES = {
    "gpt2": "gpt-2", "phi-2": "gpt-2", "olmo": "gpt-2", "mpt": "gpt-2", "roberta-bpe": "gpt-2",
    "starcoder": "smollm", "refact": "smollm", "command-r": "smollm", "codeshell": "smollm",
    "llama3": "llama-bpe", "llama-v3": "llama-bpe", "dbrx": "llama-bpe", "smaug-bpe": "llama-bpe",
    "chatglm-bpe": "llama-bpe", "glm4": "llama-bpe",
    "stablelm2": "qwen2", "deepseek-r1-qwen": "qwen2",
}
# Pre-tokenizers for which llama.cpp adds a begin-of-text token if the file does not say whether to
# add one.
ADDS_BOS = {"llama-bpe", "llama3", "llama-v3"}
NORMALIZERS = (None, {"type": "NFC"})


def without_inert_keys(step):
    """Returns a step of a pre-tokenizer without the keys that do not change how text is split. A
    space that is added before the text does change it."""
    if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
        return step
    inert = ("add_prefix_space", "trim_offsets")
    return {key: value for key, value in step.items() if key not in inert}


def pre_tokenizer_name(tokenizer, path):
    """Returns llama.cpp's name of a tokenizer's pre-tokenizer."""
    steps = tokenizer.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps] if steps else [])
    plain_steps = [without_inert_keys(step) for step in steps]
    for name, rule in PRE_TOKENIZERS.items():
        if plain_steps == rule and tokenizer.get("normalizer") in NORMALIZERS:
            return name
    raise UserError(f"{path}: its pre-tokenizer has no tested counterpart in llama.cpp; supported "
                    f"are {', '.join(PRE_TOKENIZERS)}, and SentencePiece's byte fallback")


def is_sentencepiece(tokenizer):
    """Returns whether a tokenizer.json was made from a SentencePiece model."""
    return bool(tokenizer["model"].get("byte_fallback"))


def token_list(tokenizer, size, path):
    """Returns (tokens, types) of `size` ids; ids without a token get the type UNUSED."""
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    known = {i: (token, NORMAL) for token, i in tokenizer["model"]["vocab"].items()}
    for token in tokenizer.get("added_tokens", []):
        known[token["id"]] = (token["content"], CONTROL if token["special"] else USER_DEFINED)
    unknown = tokenizer["model"].get("unk_token")
    for i, (token, kind) in known.items():
        if i >= size:
            raise UserError(f"{path}: token {token!r} has the id {i}, but the model's vocab_size "
                            f"is {size}")
        if is_sentencepiece(tokenizer) and BYTE_TOKEN.fullmatch(token):
            kind = BYTE
        elif is_sentencepiece(tokenizer) and token == unknown:
            kind = UNKNOWN
        tokens[i], types[i] = token, kind
    return tokens, types


def scores_by_merges(tokenizer, tokens):
    """Returns a score for each token. SentencePiece merges the pair with the best score first, so
    the token of an earlier merge gets a higher score."""
    ranks = {}
    for rank, merge in enumerate(tokenizer["model"]["merges"]):
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        ranks.setdefault(left + right, rank)
    last = float(len(tokenizer["model"]["merges"]))
    return [-float(ranks.get(token, last)) for token in tokens]


def adds_space_prefix(tokenizer):
    """Returns whether the tokenizer adds a space before a text."""
    steps = tokenizer.get("normalizer") or {}
    steps = steps.get("normalizers", [steps])
    before = tokenizer.get("pre_tokenizer") or {}
    return (any(step.get("type") == "Prepend" for step in steps) or
            before.get("prepend_scheme") in ("first", "always"))


def write_vocabulary(writer, folder, size):
    """Writes the tokenizer of a model folder; returns its special tokens."""
    import gguf
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(path):
        raise UserError(f"{folder}: has no tokenizer.json")
    tokenizer = read_json(path)
    if tokenizer["model"].get("type") != "BPE":
        raise UserError(f"{path}: is a {tokenizer['model'].get('type')} tokenizer; only BPE "
                        "tokenizers can be exported as GGUF")
    tokens, types = token_list(tokenizer, size, path)
    pieces = is_sentencepiece(tokenizer)
    writer.add_tokenizer_model("llama" if pieces else "gpt2")
    writer.add_tokenizer_pre("default" if pieces else pre_tokenizer_name(tokenizer, path))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if pieces:
        writer.add_token_scores(scores_by_merges(tokenizer, tokens))
        writer.add_add_space_prefix(adds_space_prefix(tokenizer))
    logging.getLogger("gguf.vocab").setLevel(logging.ERROR)
    special = gguf.SpecialVocab(folder, load_merges=not pieces, n_vocab=size)
    special.add_special_token = {"bos": adds_bos(folder, special), "eos": False}
    special.add_to_gguf(writer, quiet=True)
    return special


@functools.cache
def load_tokenizer(folder):
    """Loads the tokenizer with transformers, once per folder, so that the export and the comparison
    use the same tokenizer."""
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(folder)


def adds_bos(folder, special):
    """Returns whether the tokenizer adds the begin-of-text id before a text. A short text is
    tokenized to find out, because files specify this in many ways."""
    ids = load_tokenizer(folder)("x").input_ids
    return bool(ids) and ids[0] == special.special_token_ids.get("bos", -1)


# ---- from GGUF ----


def read_vocabulary(file):
    """Returns the tokenizer of a GGUF file, as the package tokenizers represents it."""
    kind = file.field("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = byte_level_tokenizer(file)
    elif kind == "llama":
        tokenizer = sentencepiece_tokenizer(file)
    else:
        raise UserError(f"{file.path}: has a tokenizer of the kind {kind!r}; supported are gpt2 "
                        "and llama. Use the tokenizer.json of the Hugging Face folder")
    add_special_tokens(tokenizer, file)
    return tokenizer


def text_tokens(file):
    """Returns {token: id} of all tokens that stand for text, in the order of ids."""
    tokens = file.field("tokenizer.ggml.tokens")
    types = file.field("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    return {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if not (kind == UNUSED and token == f"[PAD{i}]")}


def byte_level_tokenizer(file):
    """Returns the tokenizer of a GGUF file whose kind is gpt2."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    name = file.field("tokenizer.ggml.pre", "gpt-2")
    rule = PRE_TOKENIZER_ALIASES.get(name, name)
    if rule not in PRE_TOKENIZERS:
        raise UserError(f"{file.path}: has llama.cpp's pre-tokenizer {name!r}, which cannot be "
                        "converted to a tokenizer.json; supported are "
                        f"{', '.join(PRE_TOKENIZERS)}. Use the tokenizer.json of the Hugging Face "
                        "folder")
    merges = [tuple(merge.split(" ")) for merge in file.field("tokenizer.ggml.merges", [])]
    # The tokenizers of ADDS_BOS match a whole token even if no merges lead to it.
    ignores_merges = name in ADDS_BOS
    tokenizer = Tokenizer(models.BPE(vocab=text_tokens(file), merges=merges,
                                     ignore_merges=ignores_merges))
    steps = {"ByteLevel": lambda step: pre_tokenizers.ByteLevel(False, use_regex=step["use_regex"]),
             "Digits": lambda step: pre_tokenizers.Digits(step["individual_digits"]),
             "Split": lambda step: pre_tokenizers.Split(Regex(step["pattern"]["Regex"]),
                                                        "isolated")}
    sequence = [steps[step["type"]](step) for step in PRE_TOKENIZERS[rule]]
    tokenizer.pre_tokenizer = (pre_tokenizers.Sequence(sequence) if len(sequence) > 1
                               else sequence[0])
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_tokenizer(file):
    """Returns the tokenizer of a GGUF file whose kind is llama."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    known = text_tokens(file)
    types = file.field("tokenizer.ggml.token_type")
    unknown = next((token for token, i in known.items() if types[i] == UNKNOWN), None)
    scores = file.field("tokenizer.ggml.scores")
    merges = merges_by_scores({token: scores[i] for token, i in known.items()
                               if types[i] in (NORMAL, USER_DEFINED, UNUSED)}, known)
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=merges, byte_fallback=True, fuse_unk=True,
                                     unk_token=unknown))
    replace_spaces = normalizers.Replace(" ", SPACE)
    decode_steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.field("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace_spaces])
        decode_steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replace_spaces
    tokenizer.decoder = decoders.Sequence(decode_steps)
    return tokenizer


def merges_by_scores(scores, ids):
    """Returns the pairs of tokens that merge to a token, the best score first, as SentencePiece
    merges them. Among pairs that merge to the same token, the pair of earlier tokens comes
    first."""
    pairs = []
    for token, score in scores.items():
        for i in range(1, len(token)):
            left, right = token[:i], token[i:]
            if left in scores and right in scores:
                pairs.append((-score, ids[token], ids[left], ids[right], left, right))
    pairs.sort()
    return [pair[4:] for pair in pairs]


def add_special_tokens(tokenizer, file):
    """Adds the special tokens of a GGUF file to its tokenizer."""
    from tokenizers import AddedToken, processors
    tokens = file.field("tokenizer.ggml.tokens")
    types = file.field("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, types) if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)
                          for token, kind in zip(tokens, types) if kind == USER_DEFINED])
    bos = file.special_ids().get("bos")
    if bos is not None and file_adds_bos(file):
        first = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[first, "$A"], pair=[first, "$A", f"{first}:1", "$B:1"],
            special_tokens=[(first, bos)])


def file_adds_bos(file):
    """Returns whether llama.cpp adds a begin-of-text token for a GGUF file."""
    default = (file.field("tokenizer.ggml.model") == "llama" or
               file.field("tokenizer.ggml.pre") in ADDS_BOS)
    return bool(file.field("tokenizer.ggml.add_bos_token", default))
