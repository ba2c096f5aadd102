"""Reads a GGUF file back by the programs it is for, before it gets its name.

The package gguf: every tensor is there with the values that its type allows. llama.cpp (the package xllamacpp), where it
is installed: of eight prompts the token ids, the next token's log-probabilities over the whole vocabulary beside
transformers', and a conversation laid out by the chat template."""
import importlib.util
import itertools
import json
import secrets
import urllib.request

import numpy as np

from gguf_export.vocabulary import load_tokenizer
from script_errors import UserError

PROMPTS = [
    "The capital of Iceland is",
    "In 1969, 3 people flew 384,400 km; 2 of them walked.",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1,\t2))",
    "  Zwei   Leerzeichen, ein Tabulator\tund\n\n\nZeilen — naïve façade: 日本語, русский, 😀.",
    "x",
    "I'm sure they'll say WE'RE late, won't they? CAN'T be!",
    "{\"key\": [1, 2.5, -3e10], \"text\": \"a\\\\b\"}",
    "Once upon a time there was a king who had three daughters, and each of them",
]
CHAT = [{"role": "user", "content": "Name a prime above ten."}, {"role": "assistant", "content": "Eleven."},
        {"role": "user", "content": "And another?"}]
# What rounding may do, by type: the largest difference of a log-probability among the tokens that may come, and the
# divergence (Kullback-Leibler, nats) of the distributions. llama.cpp rounds activations to the type as well, so both are
# measured: on SmolLM2-135M the hand-over reaches a third of these at most; rows of q and k in another order reach 0.3 nats and more.
TOLERANCE = {"f32": (2e-3, 1e-5), "f16": (6e-2, 1e-3), "bf16": (4e-1, 1e-2), "q8_0": (2.0, 5e-2)}
LEAST_PROBABILITY = 1e-4


def has_llama_cpp():
    return importlib.util.find_spec("xllamacpp") is not None


def compare_tensors(path, tensors, kind_of):
    """Each tensor's values as the file's type rounds them."""
    import gguf
    reader = gguf.GGUFReader(path)
    found = {tensor.name: tensor for tensor in reader.tensors}
    for name in tensors.names():
        if name not in found:
            raise UserError(f"{path}: tensor {name} is not in the file")
        expected, kind = tensors.values(name), kind_of(name)
        if found[name].tensor_type != kind:
            raise UserError(f"{path}: tensor {name} is {found[name].tensor_type.name}, expected {kind.name}")
        values = gguf.quants.dequantize(found[name].data, found[name].tensor_type).reshape(expected.shape)
        if not np.all(np.abs(values - expected) <= rounding(expected, kind)):
            raise UserError(f"{path}: tensor {name} has other values than the model")


def rounding(values, kind):
    """How far each value may move in a type. Sources: the formats' significands (10, 7 bits; f16's least step 2^-24);
    Q8_0 keeps blocks of 32 in steps of their largest value / 127, itself in f16."""
    import gguf
    size = np.abs(values)
    if kind == gguf.GGMLQuantizationType.F32:
        return np.zeros_like(size)
    if kind == gguf.GGMLQuantizationType.F16:
        return np.maximum(size * 2.0 ** -11, 2.0 ** -25)
    if kind == gguf.GGMLQuantizationType.BF16:
        return np.maximum(size * 2.0 ** -8, 2.0 ** -133)
    blocks = size.reshape(-1, 32)
    step = blocks.max(axis=1, keepdims=True) / 127
    return np.broadcast_to(step * (0.5 + 127 * 2.0 ** -10) + 2.0 ** -24, blocks.shape).reshape(size.shape)


class LlamaCpp:
    """llama.cpp on the processor, with caches in fp32. It listens on a loopback port and answers who has its key alone."""

    def __init__(self, path, context):
        import xllamacpp
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = context, context, context, 1
        params.n_gpu_layers, params.warmup, params.verbosity = 0, False, -1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.use_jinja, params.ui, params.cache_prompt = True, False, False
        self.key = secrets.token_hex(16)
        params.api_keys = [self.key]
        self.server = xllamacpp.Server(params)
        self.letter = self.ids("a")[-1]

    def ask(self, path, request):
        message = urllib.request.Request(self.server.listening_address + path, json.dumps(request).encode(),
                                         {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(message, timeout=600) as answer:
            return json.load(answer)

    def ids(self, text):
        return self.ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def layout(self, messages):
        return self.ask("/apply-template", {"messages": messages})["prompt"]

    def next_token(self, ids, vocabulary):
        """Log-probabilities of the token after `ids`, fp64 [vocabulary]; minus infinity where none is given. They are those
        before sampling. What is sampled is a letter: of a part of a character no probabilities are told."""
        said = self.server.handle_completions({"prompt": ids, "n_predict": 1, "n_probs": vocabulary, "temperature": 0.0,
                                               "cache_prompt": False, "logit_bias": [[self.letter, 1e4]]})
        found = np.full(vocabulary, -np.inf)
        for each in said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            found[each["id"]] = each["logprob"]
        return found


def compare_with_llama_cpp(path, folder, kind):
    """A line of what was compared. UserError naming the first token or probability that differs."""
    import torch
    from transformers import AutoModelForCausalLM
    tokenizer = load_tokenizer(folder)
    prompts = {text: tokenizer(text).input_ids for text in PROMPTS}
    llama_cpp = LlamaCpp(path, max(512, 2 * max(map(len, prompts.values()))))
    for text, expected in prompts.items():
        compare_ids(path, text, llama_cpp.ids(text), expected, tokenizer)
    if tokenizer.chat_template:
        compare_layout(path, llama_cpp.layout(CHAT), tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    worst = (0.0, 0.0)
    for text, ids in prompts.items():
        with torch.no_grad():
            expected = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1).numpy()
        off = compare_probabilities(path, text, llama_cpp.next_token(ids, len(expected)), expected, kind, tokenizer)
        worst = tuple(map(max, worst, off))
    template = ", the chat template" if tokenizer.chat_template else ""
    return (f"llama.cpp has the token ids of {len(PROMPTS)} prompts{template} and the next token's log-probabilities "
            f"(off by {worst[0]:.1e} at most, {TOLERANCE[kind][0]:g} is allowed; divergence {worst[1]:.1e}, {TOLERANCE[kind][1]:g})")


def compare_ids(path, text, found, expected, tokenizer):
    for i, (ours, theirs) in enumerate(itertools.zip_longest(expected, found)):
        if ours != theirs:
            shown = [repr(tokenizer.decode([each])) if each is not None else "no token" for each in (ours, theirs)]
            raise UserError(f"{path}: token {i} of {text!r} is {shown[0]} ({ours}) and for llama.cpp {shown[1]} ({theirs})")


def compare_layout(path, found, tokenizer):
    expected = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    bos = tokenizer.bos_token or ""
    if found.removeprefix(bos) != expected.removeprefix(bos):  # llama.cpp puts the begin-of-text token by itself
        at = next(i for i, pair in enumerate(itertools.zip_longest(found, expected)) if pair[0] != pair[1])
        raise UserError(f"{path}: the chat template lays a conversation out in another way in llama.cpp, from character {at}: "
                        f"{found[at:at + 60]!r} instead of {expected[at:at + 60]!r}")


def compare_probabilities(path, text, found, expected, kind, tokenizer):
    """The largest difference over what may come, and the divergence of the distributions."""
    likely = expected > np.log(LEAST_PROBABILITY)
    off = np.where(likely, np.abs(found - expected), 0.0)
    worst = int(off.argmax())
    divergence = float(np.sum(np.exp(expected[likely]) * (expected[likely] - found[likely])))
    most_off, most_divergence = TOLERANCE[kind]
    if not (off[worst] <= most_off and divergence <= most_divergence):
        raise UserError(f"{path}: after {text!r} the log-probability of {tokenizer.decode([worst])!r} is {found[worst]:.4f} for llama.cpp "
                        f"and {expected[worst]:.4f} for the model; the distributions diverge by {divergence:.2g} nats, and rounding to "
                        f"{kind} allows {most_off:g} and {most_divergence:g}")
    return float(off[worst]), divergence
