"""Tests tests/bench/attention_choice.py: the line for lib/kernels/measured_attention.h that it
derives from timings of attention. Timings measured on an H100 (docs/benchmarks.md, second and third
run) must give the H100's line of that file."""
import pathlib
import sys

ROOT = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "tests" / "bench"))
import attention_choice  # noqa: E402

# Milliseconds forward and backward, of our kernels and of cuDNN's. Times for rows of one document
# follow from the rates of the third run, with as many operations in each case; those for rows of
# several documents were measured.
PLAIN = {("8B", "1 x 4096"): ((1 / 141, 1 / 90), (1 / 542, 1 / 374)),
         ("8B", "1 x 32768"): ((1 / 179, 1 / 132), (1 / 621, 1 / 452)),
         ("135M", "1 x 4096"): ((1 / 89, 1 / 40), (1 / 273, 1 / 173))}
DOCUMENTS = {("8B", "1 x 4096"): ((0.212, 0.781), (0.162, 0.600)),
             ("8B", "8 x 2048"): ((0.713, 2.417), (0.392, 1.671)),
             ("8B", "1 x 32768"): ((1.564, 4.988), (1.917, 7.260)),
             ("135M", "1 x 4096"): ((0.043, 0.219), (0.098, 0.259))}
H100 = "on NVIDIA H100 80GB HBM3, compute capability 9.0"


def log_of(kernels, plain=PLAIN, documents=DOCUMENTS, gpu=H100):
    """Returns a log of gpu_kernel_bench.py; `kernels` is 0 for ours, 1 for cuDNN's."""
    lines = [gpu, "| case | ms | TFLOP/s | GB/s | torch, ms | ratio |", "|---|---|---|---|---|---|"]

    def add(name, milliseconds):
        lines.append(f"| {name} | {milliseconds:.6f} | 1.0 | 1 |  |  |")

    for (model, shape), times in plain.items():
        for name, one in zip(("attention", "attention_dgrad"), times[kernels]):
            add(f"{name} {model} {shape}", one)
    for (model, shape), times in documents.items():
        for name, one in zip(("forward", "backward"), times[kernels]):
            add(f"attention documents {name} {model} {shape}", one)
    return "\n".join([*lines, "| linear 8B qkv 4096 x 4096 x 6144 | 0.253 | 1.0 | 1 |  |  |", ""])


def line(**changes):
    return attention_choice.table_line(log_of(0, **changes), log_of(1, **changes))


def refusal(own, cudnn):
    try:
        attention_choice.table_line(own, cudnn)
    except attention_choice.IncompleteLogs as why:
        return str(why)
    return ""


def swapped(times):
    return {case: (cudnn, own) for case, (own, cudnn) in times.items()}


lines = (ROOT / attention_choice.TABLE).read_text().splitlines()
assert line() == "    {9, 0, 0, 96},  // NVIDIA H100 80GB HBM3", line()
assert line() in lines, f"{attention_choice.TABLE} lacks {line()}"

other = "on NVIDIA L40S, compute capability 8.9"
assert line(plain=swapped(PLAIN), gpu=other) == "    {8, 9, kNoHead, 96},  // NVIDIA L40S"
narrow_too = {case: times if case[0] == "8B" else times[::-1] for case, times in DOCUMENTS.items()}
assert line(documents=narrow_too, gpu=other) == "    {8, 9, 0, 0},  // NVIDIA L40S"

wide = {case: times for case, times in PLAIN.items() if case[0] == "8B"}
assert refusal(log_of(0), log_of(1, plain=wide)).startswith("only one of the logs has [(False, '13")
assert (refusal(log_of(0, plain=wide), log_of(1, plain=wide))
        == "no timing of heads of 64 elements"), "a size is missing"
assert refusal(log_of(0), log_of(1, gpu=other)) == "the logs were made on different GPUs"
assert "on which GPU" in refusal(log_of(0, gpu="on a GPU"), log_of(1))
only_narrow = {case: times[::-1] if case[0] == "8B" else times for case, times in PLAIN.items()}
assert ("only with narrow heads"
        in refusal(log_of(0, plain=only_narrow), log_of(1, plain=only_narrow)))
print("the choice for kernels.attention: auto is the table's line")
