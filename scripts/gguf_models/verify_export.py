"""Tests a GGUF file with the programs that will read it, before it gets its name.

With the package gguf, every tensor is compared with the model's values, within the rounding of its
type; tensors in fp32 must equal the model's bit for bit, after GGUF's conversions are undone. With
llama.cpp (the package xllamacpp, if it is installed), three results are compared with those of
transformers: the token ids of eight prompts, the log-probabilities of all likely next tokens, and
the text of a conversation by the chat template."""
import importlib.util
import itertools
import json
import math
import secrets
import urllib.error
import urllib.request

import numpy as np

from gguf_models.families import MULTIMODAL
from gguf_models.gguf_file import open_reader
from gguf_models.vocabulary import load_tokenizer
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
CHAT = [{"role": "user", "content": "Name a prime above ten."},
        {"role": "assistant", "content": "Eleven."},
        {"role": "user", "content": "And another?"}]
# Bounds of the effect of rounding, by type: the largest difference of a log-probability among the
# likely tokens, and the Kullback-Leibler divergence of the distributions in nats. llama.cpp rounds
# activations to the type as well, so the bounds come from measurements: a correct export of
# SmolLM2-135M reaches at most a third of them, and a wrong order of the rows of q and k reaches 0.3
# nats and more.
TOLERANCE = {"f32": (2e-3, 1e-5), "f16": (6e-2, 1e-3), "bf16": (4e-1, 1e-2), "q8_0": (2.0, 5e-2)}
# llama.cpp reads gelu from a table in f16. Small random models in f32 reach a third of these
# bounds.
GELU_TOLERANCE = (1e-2, 3e-5)
MIN_PROBABILITY = 1e-4
ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation", "activation_function")


def has_llama_cpp():
    """Returns whether llama.cpp is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


def has_peft():
    """Returns whether PEFT is installed."""
    return importlib.util.find_spec("peft") is not None


def tolerance(kind, config):
    """Returns the largest allowed difference of a log-probability, and the largest allowed
    divergence."""
    activations = (config.get(key) for key in ACTIVATION_KEYS)
    with_gelu = any((activation or "").startswith("gelu") for activation in activations)
    return tuple(map(max, TOLERANCE[kind], GELU_TOLERANCE if with_gelu else (0, 0)))


def compare_tensors(path, tensors, kind_of):
    """Compares each tensor in the file with the model's values, allowing for the rounding of its
    type."""
    import gguf
    stored_tensors = {tensor.name: tensor for tensor in open_reader(path).tensors}
    for name in tensors.names():
        if name not in stored_tensors:
            raise UserError(f"{path}: tensor {name} is not in the file")
        stored, kind = stored_tensors[name], kind_of(name)
        if stored.tensor_type != kind:
            raise UserError(f"{path}: tensor {name} is {stored.tensor_type.name}, expected "
                            f"{kind.name}")
        expected = tensors.values(name)
        values = gguf.quants.dequantize(stored.data, stored.tensor_type).reshape(expected.shape)
        if not (np.all(np.abs(values - expected) <= rounding_bound(expected, kind)) and
                equals_source(tensors, name, values, kind)):
            raise UserError(f"{path}: the values of tensor {name} differ from the model's")


def equals_source(tensors, name, values, kind):
    """Returns whether a tensor in fp32 equals the folder's tensor after GGUF's conversions are
    undone: bit for bit, or within the precision of fp32 if 1 was added."""
    source = tensors.source(name)
    if source is None or kind.name != "F32":
        return True
    restored = tensors.restored(name, values)
    if tensors.adds_one(name):
        return bool(np.all(np.abs(restored - source) <= 2.0 ** -23 * np.abs(values)))
    return np.array_equal(restored, source)


def rounding_bound(values, kind):
    """Returns the largest rounding error of each value for a type. f16 and bf16 store 10 and 7
    bits of the significand (and the smallest step of f16 is 2^-24). Q8_0 stores a block of 32
    values in steps of its largest value / 127; the step is stored in f16."""
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
    bound = step * (0.5 + 127 * 2.0 ** -10) + 2.0 ** -24
    return np.broadcast_to(bound, blocks.shape).reshape(size.shape)


class LlamaCpp:
    """llama.cpp on the CPU, with fp32 caches. It listens on a loopback port and answers only
    requests with its key."""

    def __init__(self, path, context, adapter=None):
        import xllamacpp
        self.path = path
        params = xllamacpp.CommonParams()
        params.model.path = path
        if adapter:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(adapter, 1.0)]
        params.n_ctx = params.n_batch = params.n_ubatch = context
        params.n_parallel = 1
        params.n_gpu_layers, params.warmup, params.verbosity = 0, False, -1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        flash = xllamacpp.llama_flash_attn_type
        params.flash_attn_type = flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.use_jinja, params.ui, params.cache_prompt = True, False, False
        self.key = secrets.token_hex(16)
        params.api_keys = [self.key]
        try:
            self.server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise UserError(f"{adapter or path}: llama.cpp does not load the file ({error}); serve "
                            "the model from its folder with transformers or vLLM") from None
        self.letter = self.ids("a")[-1]

    def ask(self, path, request):
        """Returns the server's answer to a request; raises UserError if the server refuses it."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        message = urllib.request.Request(self.server.listening_address + path,
                                         json.dumps(request).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(message, timeout=600) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            reply = error.read().decode("utf-8", errors="backslashreplace")[:500]
            raise UserError(f"{self.path}: llama.cpp answers {path} with {error.code}: "
                            f"{reply or error.reason}") from None

    def ids(self, text):
        """Returns the token ids of a text."""
        request = {"content": text, "add_special": True, "parse_special": True}
        return self.ask("/tokenize", request)["tokens"]

    def render_chat(self, messages):
        """Returns the text of messages by the chat template."""
        return self.ask("/apply-template", {"messages": messages})["prompt"]

    def next_token(self, ids, vocabulary, min_probability):
        """Returns the log-probabilities of the token after `ids`, before sampling, as fp64
        [vocabulary]; minus infinity for tokens that llama.cpp does not list. It lists at least all
        tokens whose probability is `min_probability` or more, of which there can be no more than
        1 / min_probability; a list of a large vocabulary takes seconds to write and to read. A
        logit bias makes the sampled token a letter, because llama.cpp lists no probabilities for a
        token that is only a part of a character."""
        completion = self.server.handle_completions({
            "prompt": ids, "n_predict": 1,
            "n_probs": min(vocabulary, math.ceil(1 / min_probability)), "temperature": 0.0,
            "cache_prompt": False, "logit_bias": [[self.letter, 1e4]]})
        log_probabilities = np.full(vocabulary, -np.inf)
        for token in completion["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            log_probabilities[token["id"]] = token["logprob"]
        return log_probabilities


def compare_with_llama_cpp(path, folder, kind, adapter=None):
    """Compares a file with its folder in llama.cpp; returns a line that says what was compared.
    Raises UserError for the first token or probability that differs. `adapter` is (GGUF file of an
    adapter, its folder)."""
    tokenizer = load_tokenizer(folder)
    prompts = {text: tokenizer(text).input_ids for text in PROMPTS}
    context = max(512, 2 * max(map(len, prompts.values())))
    llama_cpp = LlamaCpp(path, context, adapter[0] if adapter else None)
    for text, expected in prompts.items():
        compare_ids(path, text, llama_cpp.ids(text), expected, tokenizer)
    if tokenizer.chat_template:
        compare_chat(path, llama_cpp.render_chat(CHAT), tokenizer)
    model = load_model(folder, adapter[1] if adapter else None)
    allowed = tolerance(kind, model.config.get_text_config().to_dict())
    worst, adapter_change = (0.0, 0.0), 0.0
    for text, ids in prompts.items():
        expected = next_log_probabilities(model, ids)
        if adapter:
            with model.disable_adapter():
                base = next_log_probabilities(model, ids)
                adapter_change = max(adapter_change, largest_change(base, expected))
        # A likely token may be less likely for llama.cpp by what is allowed.
        found = llama_cpp.next_token(ids, len(expected), MIN_PROBABILITY * math.exp(-allowed[0]))
        errors = compare_probabilities(path, text, found, expected, kind, allowed, tokenizer)
        worst = tuple(map(max, worst, errors))
    template = ", the chat template" if tokenizer.chat_template else ""
    return (f"llama.cpp has the token ids of {len(PROMPTS)} prompts{template} and the next token's "
            f"log-probabilities (off by {worst[0]:.1e} at most, {allowed[0]:g} is allowed; "
            f"divergence {worst[1]:.1e}, {allowed[1]:g})"
            + (change_text(adapter_change, allowed[0]) if adapter else ""))


def change_text(change, allowed):
    """Returns a clause that says how much an adapter changes the log-probabilities. A change within
    rounding does not prove that llama.cpp applies the adapter."""
    if change > allowed:
        return f"; the adapter changes them by up to {change:.1e}"
    return (f"; the adapter changes them by at most {change:.1e}, no more than rounding, so this "
            "does not prove that llama.cpp applies it")


def next_log_probabilities(model, ids):
    """Returns the log-probabilities of the token after `ids`, as fp64 [vocabulary]."""
    import torch
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1].double()
    return torch.log_softmax(logits, -1).numpy()


def largest_change(before, after):
    """Returns the largest change of a log-probability among the likely tokens."""
    return float(np.abs(after - before)[after > np.log(MIN_PROBABILITY)].max())


def load_model(folder, adapter):
    """Loads transformers' model in fp32, with an adapter's folder by PEFT if one is given."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    is_multimodal = AutoConfig.from_pretrained(folder).model_type in MULTIMODAL
    auto_class = AutoModelForImageTextToText if is_multimodal else AutoModelForCausalLM
    model = auto_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if adapter:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, adapter)
    return model.eval()


def compare_ids(path, text, found, expected, tokenizer):
    """Raises UserError for the first token id that differs from the tokenizer's."""
    for i, ids in enumerate(itertools.zip_longest(expected, found)):
        if ids[0] != ids[1]:
            tokens = [repr(tokenizer.decode([token])) if token is not None else "no token"
                      for token in ids]
            raise UserError(f"{path}: token {i} of {text!r} is {tokens[0]} ({ids[0]}) and for "
                            f"llama.cpp {tokens[1]} ({ids[1]})")


def compare_chat(path, found, tokenizer):
    """Raises UserError if llama.cpp's text of CHAT differs from the tokenizer's."""
    expected = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    bos = tokenizer.bos_token or ""
    # llama.cpp adds the begin-of-text token itself.
    if found.removeprefix(bos) != expected.removeprefix(bos):
        pairs = enumerate(itertools.zip_longest(found, expected))
        at = next(i for i, pair in pairs if pair[0] != pair[1])
        raise UserError(f"{path}: llama.cpp renders the chat template differently from "
                        f"transformers, from character {at}: {found[at:at + 60]!r} instead of "
                        f"{expected[at:at + 60]!r}")


def compare_probabilities(path, text, found, expected, kind, allowed, tokenizer):
    """Returns the largest difference among the likely tokens, and the divergence of the
    distributions."""
    likely = expected > np.log(MIN_PROBABILITY)
    errors = np.where(likely, np.abs(found - expected), 0.0)
    worst = int(errors.argmax())
    divergence = float(np.sum(np.exp(expected[likely]) * (expected[likely] - found[likely])))
    if not (errors[worst] <= allowed[0] and divergence <= allowed[1]):
        raise UserError(f"{path}: after {text!r} the log-probability of "
                        f"{tokenizer.decode([worst])!r} is {found[worst]:.4f} for llama.cpp and "
                        f"{expected[worst]:.4f} for the model; the distributions diverge by "
                        f"{divergence:.2g} nats; rounding to {kind} allows {allowed[0]:g} and "
                        f"{allowed[1]:g}")
    return float(errors[worst]), divergence
