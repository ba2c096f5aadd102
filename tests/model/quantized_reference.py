#!/usr/bin/env python3
"""Makes low-rank adapters on a quantized base with PEFT, as references for the tests of
quantization.

  quantized_reference.py OUT [NAME ...]   Writes the files of lora_reference.py for each case. The
                                          base in OUT/NAME/model is not quantized. PEFT trains on
                                          the numbers that the quantized weights of the blocks'
                                          matrices represent, in fp32, as computed here.
  quantized_reference.py store [NAME ...] Trains cases with PEFT and stores the numbers.
"""
import lora_reference
import reference
import torch
from lora_reference import ALL, base_of, write_cases

NF4 = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                    -0.28444138169288635,
                    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534,
                    0.16093020141124725,
                    0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
                    0.5626170039176941, 0.7229568362836023, 1.0])
# Name: model class, its config, fields of LoraConfig, and ftrun's section. The sizes can be divided
# between two tensor ranks.
CASES = {
    "nf4": ("Llama", {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4,
                      "num_key_value_heads": 2},
            {"r": 4, "lora_alpha": 8, "target_modules": ALL}, {"type": "nf4"}),
    "plain": ("Qwen3", {"hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 4,
                        "num_key_value_heads": 2, "head_dim": 64,
                        "attention_bias": True, "tie_word_embeddings": True},
              {"r": 3, "target_modules": ["q_proj", "down_proj"]},
              {"type": "nf4", "double": False, "block": 128}),
    "int8": ("Qwen2", {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 8,
                       "num_key_value_heads": 4},
             {"r": 4, "target_modules": ALL}, {"type": "int8"}),
}


def nearest(x, values):
    """Returns the nearest of ascending `values`; a number halfway between two gets the lower
    one."""
    return values[torch.bucketize(x, (values[:-1] + values[1:]) / 2)]


def dynamic_map():
    """Returns the values of bitsandbytes' signed 8-bit code."""
    values = [0.0, 1.0]
    for e in range(7):
        edges = torch.linspace(0.1, 1, 2**e + 1)
        centers = 10.0**(e - 6) * ((edges[:-1] + edges[1:]) / 2)
        values += centers.tolist() + (-centers).tolist()
    return torch.tensor(sorted(values))


def dequantized(weight, section):
    """Returns the numbers that a quantized matrix represents."""
    if section["type"] == "int8":
        half = weight.half().float()
        largest = half.abs().amax(1, keepdim=True)
        return torch.round(half * (torch.full_like(largest,
                                                   127) / largest)) * largest * 7.874015718698502e-3
    block = section.get("block", 64)
    blocks = weight.reshape(-1, block)
    scale = blocks.abs().amax(1)
    codes = nearest(blocks * (1 / scale)[:, None], NF4)
    if section.get("double", True):
        offset = scale.double().mean().float()
        pad = -len(scale) % 256
        rest = torch.nn.functional.pad(scale - offset, (0, pad)).reshape(-1, 256)
        largest = rest.abs().amax(1, keepdim=True)
        scale = (nearest(rest * (1 / largest),
                         dynamic_map()) * largest).flatten()[:len(scale)] + offset
    return (codes * scale[:, None]).reshape(weight.shape)


def quantize_blocks(model, section):
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.split(".")[-1] in ALL:
                module.weight.copy_(dequantized(module.weight.float(), section))


class Quantized:
    """Adapters on a quantized base; the counterpart of lora_reference.Adapted for a plain base."""

    cases = CASES

    @classmethod
    def make_base(cls, name, folder):
        import transformers
        kind, changes, _, _ = cls.cases[name]
        config = getattr(transformers,
                         kind + "Config")(**(reference.COMMON | {"vocab_size": 212} | changes))
        getattr(transformers, kind + "ForCausalLM")(config).save_pretrained(folder)

    @classmethod
    def base_in(cls, name, folder, dtype):
        """Loads the base and quantizes it in fp32, whatever dtype it is trained in."""
        base = base_of(folder, torch.float32)
        quantize_blocks(base, cls.cases[name][3])
        return base.to(dtype)

    @classmethod
    def fields(cls, name):
        return cls.cases[name][2]

    @classmethod
    def made_of(cls, name):
        functions = (cls, nearest, dynamic_map, dequantized, quantize_blocks)
        return [cls.cases[name], NF4.tolist(), [reference.code_of(each) for each in functions]]


def write_quantized(out, cases=CASES):
    write_cases(out, cases, Quantized)


if __name__ == "__main__":
    lora_reference.main(CASES, Quantized)
