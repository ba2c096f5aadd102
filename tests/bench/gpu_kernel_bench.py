#!/usr/bin/env python3
"""Compares our attention and matrix multiplications with torch's: runs `gpu_kernel_bench` and torch
on the same GPU, one after the other.

  tests/bench/gpu_kernel_bench.py [--binary build/release/bin/gpu_kernel_bench] [--only word]
                                  [--attention own|cudnn]

A ratio above 1 means that ours is faster. All inputs are random numbers. The exit status is 77 if
there is no GPU, or no torch that sees one.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
HEADS = {"8B": (32, 8, 128), "135M": (9, 3, 64)}


def run_own_kernels(args):
    """Returns the results of gpu_kernel_bench, one dictionary for each case."""
    result = subprocess.run([str(args.binary), "--only", args.only, "--attention", args.attention],
                            capture_output=True,
                            text=True)
    if result.returncode != 0:
        print((result.stdout + result.stderr).strip())
        sys.exit(result.returncode)
    return [json.loads(line) for line in result.stdout.splitlines()]


def milliseconds(torch, body, calls=5, rounds=5):
    """Returns the milliseconds of a call of `body` in the fastest round."""
    body()
    best = float("inf")
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            body()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / calls)
    return best


def attention(torch, name):
    """Returns the milliseconds of torch's fastest attention kernel for these heads: forward, or
    backward alone."""
    model, rows, tokens = re.match(r"attention\S* (\S+) (\d+) x (\d+)", name).groups()
    query, kv, size = HEADS[model]
    shapes = ((int(rows), heads, int(tokens), size) for heads in (query, kv, kv))
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for shape in shapes)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                enable_gqa=True)

    if name.startswith("attention "):
        with torch.no_grad():
            return milliseconds(torch, forward)
    out = forward()
    gradient = torch.randn_like(out)
    return milliseconds(torch, lambda: torch.autograd.grad(out, (q, k, v), gradient,
                                                           retain_graph=True))


def matmul(torch, name):
    """Returns the milliseconds of torch's matrix multiplication of a linear layer."""
    tokens, inputs, outputs = map(int, re.search(r"(\d+) x (\d+) x (\d+)$", name).groups())
    make = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    x, w, dy = make(tokens, inputs), make(outputs, inputs), make(tokens, outputs)
    if name.startswith("linear "):
        return milliseconds(torch, lambda: x @ w.T)
    if name.startswith("linear_dgrad"):
        return milliseconds(torch, lambda: dy @ w)
    return milliseconds(torch, lambda: dy.T @ x)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path,
                        default=ROOT / "build/release/bin/gpu_kernel_bench")
    parser.add_argument("--only", default="")
    parser.add_argument("--attention", choices=("own", "cudnn"), default="own")
    args = parser.parse_args()
    cases = run_own_kernels(args)
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("no GPU: torch does not see one")
        sys.exit(SKIPPED)
    major, minor = torch.cuda.get_device_capability()
    print(f"on {torch.cuda.get_device_name()}, compute capability {major}.{minor}")
    print("| case | ms | TFLOP/s | GB/s | torch, ms | ratio |\n|---|---|---|---|---|---|")
    for case in cases:
        name = case["case"]
        measure = attention if name.startswith("attention") else matmul if name.startswith(
            "linear") else None
        # torch has no such operation without another package.
        if "cross_entropy" in name or "documents" in name:
            measure = None
        torch_ms = measure(torch, name) if measure else None
        columns = f"{torch_ms:.3f} | {torch_ms / case['ms']:.2f}" if torch_ms else "| "
        print(f"| {name} | {case['ms']:.3f} | {case['tflops']:.1f} | {case['gbytes']:.0f} | "
              f"{columns} |", flush=True)


if __name__ == "__main__":
    main()
