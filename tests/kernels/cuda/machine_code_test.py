"""Checks the machine code that the device compiler made of the CUDA kernels: no local memory,
tensor-core instructions in attention, accesses of 8 and 16 bytes where the source asks for them,
and the number of attention blocks that an SM holds.

    machine_code_test.py MODULE FOLDER...

MODULE is libftrun_cuda.so. The test checks its kernels for every architecture in it. Kernels that
use tensor cores are also checked for the other architectures that the compiler knows: the test
translates the module's PTX for them, as a driver does. The tools cuobjdump, nvdisasm, ptxas and
nvcc are searched in the FOLDERs, then in PATH.

A translation takes a minute of CPU time, so machine_code.json keeps the results, together with what
they depend on (PTX, architecture, compiler). If any of these differs, the test translates again;
FTRUN_UPDATE_GOLDENS=1 writes the file.
"""
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Kernels that may use local memory: they reduce large fp64 angles for cos and sin.
LOCAL_MEMORY = {"rope_table_rows"}
# Kernels that dequantize vectors from codes of fewer bytes, or reduce vectors to one number.
NARROW_LOADS = {"dequantize_rows"}
NUMBERS = {"compute_delta", "qk_dot_rows", "squared_lengths", "statistics_rows"}
# Kernels with the template arguments (input type, output type, V).
CONVERTING = {"scatter_rows", "add_elements_into", "convert_elements"}
SIZES = {"float": 4, "__half": 2, "__nv_bfloat16": 2}

# The threads of a block of attention's tensor-core kernels, and the rows of their tiles in shared
# memory, for heads of 64, 128 and 256 (ops/attention/gpu_narrow.cu).
THREADS = 128
ROWS = {"attention_forward": (256, 256, 192), "attention_dq": (384, 384, 192),
        "attention_dkv": (256, 256, 192)}
# The number of blocks that an SM of each architecture holds at once, for heads of 64, 128 and 256.
BLOCKS = {
    "80": {"attention_forward": (2, 2, 1), "attention_dq": (2, 1, 1), "attention_dkv": (3, 2, 1)},
    "89": {"attention_forward": (2, 1, 1), "attention_dq": (2, 1, 1), "attention_dkv": (2, 1, 1)},
    "90": {"attention_forward": (2, 2, 2), "attention_dq": (2, 2, 2), "attention_dkv": (2, 2, 2)},
    "100": {"attention_forward": (2, 2, 2), "attention_dq": (2, 2, 2), "attention_dkv": (2, 2, 2)},
    "120": {"attention_forward": (2, 1, 1), "attention_dq": (2, 1, 1), "attention_dkv": (2, 1, 1)},
}
HEADS = (64, 128, 256)
KIB = 1024
# The largest shared memory of an SM and of a block (CUDA C++ Programming Guide, table of compute
# capabilities).
SHARED = {"80": (164 * KIB, 163 * KIB), "89": (100 * KIB, 99 * KIB), "90": (228 * KIB, 227 * KIB),
          "100": (228 * KIB, 227 * KIB), "120": (100 * KIB, 99 * KIB)}
# The system reserves 1 KiB in every block; cuobjdump includes it from architecture 9.0 on.
RESERVED = KIB
REGISTERS = 65536
# The minimum number of wide accesses to check in each architecture's kernels. Fewer mean that the
# test no longer understands the names of kernels.
LEAST_CHECKED = 120

KEPT = pathlib.Path(__file__).with_name("machine_code.json")
# The prefixes of instruction names that are counted in translated kernels.
COUNTED = ("LDL", "STL", "HMMA", "LDSM")
# The names of kernels contain hashes of the path of their source file.
PATH_HASHES = re.compile(r"(?<=_GLOBAL__N__)[0-9a-f]{8}|(?<=_cu_)[0-9a-f]{8}")

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.]*)")
USE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def find_tools(folders):
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    tools = {name: shutil.which(name, path=path)
             for name in ("cuobjdump", "nvdisasm", "ptxas", "nvcc", "c++filt")}
    missing = [name for name, place in tools.items() if place is None]
    if missing:
        skip(f"no {', '.join(missing)} here (scripts/setup.sh installs cuobjdump and nvdisasm)")
    return tools


def output_of(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def architecture(cubin):
    return re.search(r"\.sm_(\d+)a?\.", cubin.name)[1]


def translated(tools, folder, own):
    """Compiles cubins for the architectures that the compiler knows and the module lacks, from the
    PTX of the kernels that use tensor cores."""
    known = set(re.findall(r"sm_(\d+)\b", output_of(tools["nvcc"], "--list-gpu-code")))
    sources = [path for path in sorted(folder.glob("*.ptx")) if "mma.sync" in path.read_text()]
    assert sources, "no PTX of the module uses tensor cores"
    for target in sorted((BLOCKS.keys() & known) - own, key=int):
        newest = max((architecture(path) for path in sources
                      if int(architecture(path)) <= int(target)), key=int)
        for path in sources:
            if architecture(path) == newest:
                yield path, folder / f"{path.stem.split('.sm_')[0]}.sm_{target}.cubin"


def translate(tools, source, cubin):
    output_of(tools["ptxas"], f"-arch=sm_{architecture(cubin)}", str(source), "-o", str(cubin))
    return cubin


def origin(tools, source, cubin):
    """Returns a hash of everything that a translation depends on."""
    plain = PATH_HASHES.sub("0" * 8, source.read_text())
    compiler = output_of(tools["ptxas"], "--version")
    return hashlib.sha256("\0".join((plain, architecture(cubin), compiler)).encode()).hexdigest()


def translated_kernels(tools, pool, pairs):
    """Returns the kernels for each pair (PTX, cubin to make from it): the stored ones if PTX and
    compiler have not changed, otherwise newly translated ones."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    origins = {cubin: origin(tools, source, cubin) for source, cubin in pairs}
    anew = [pair for pair in pairs if kept.get(architecture(pair[1]), {}).get("of")
            != origins[pair[1]] or os.environ.get("FTRUN_UPDATE_GOLDENS")]
    found = {cubin: [Kernel.of_record(architecture(cubin), record)
                     for record in kept[architecture(cubin)]["kernels"]]
             for source, cubin in pairs if (source, cubin) not in anew}
    if anew:
        print(f"{KEPT.name} is of other kernels or another compiler: translated anew for "
              + ", ".join(f"sm_{architecture(cubin)}" for _, cubin in anew), flush=True)
    cubins = pool.map(lambda pair: translate(tools, *pair), anew)
    for cubin, kernels in pool.map(lambda cubin: (cubin, kernels_of(tools, cubin)), cubins):
        found[cubin] = kernels
    if os.environ.get("FTRUN_UPDATE_GOLDENS"):
        kept = {architecture(cubin): {"of": origins[cubin],
                                      "kernels": [kernel.record() for kernel in found[cubin]]}
                for _, cubin in pairs}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    return [kernel for _, cubin in pairs for kernel in found[cubin]]


class Kernel:
    """A kernel's machine code: counts of its instructions by name, and the SM resources that it
    uses."""

    def __init__(self, architecture, name):
        self.architecture, self.name = architecture, name
        self.instructions = collections.Counter()
        self.registers = self.stack = self.shared = 0
        self.base, self.arguments = name, []

    @classmethod
    def of_record(cls, architecture, record):
        kernel = cls(architecture, record["name"])
        kernel.read_name(record["name"])
        kernel.instructions.update(record["instructions"])
        kernel.registers, kernel.stack, kernel.shared = (record["registers"], record["stack"],
                                                         record["shared"])
        return kernel

    def record(self):
        """Returns what the checks of a translated kernel need."""
        return {"name": self.demangled, "registers": self.registers, "stack": self.stack,
                "shared": self.shared,
                "instructions": {name: self.count((name,)) for name in COUNTED}}

    def read_name(self, demangled):
        """Stores the function's name and template arguments, for example `gather_rows`, ["__half",
        "8"]."""
        self.demangled = demangled
        plain = demangled.replace("(anonymous namespace)::",
                                  "").replace("ftrun::cuda::", "").removeprefix("void ")
        found = re.match(r"(\w+)(?:<(.*?)>)?\(", plain)
        self.name = plain.split("(")[0]
        self.base, self.arguments = found[1], [one.strip() for one in (found[2] or "").split(",")
                                               if one]

    def count(self, start, width=""):
        """Returns how many instructions begin with `start` and, if `width` is given, move `width`
        bits at once."""
        return sum(n for name, n in self.instructions.items()
                   if name.split(".")[0] in start and (not width or width in name.split(".")))


def kernels_of(tools, cubin):
    found = {}
    current = None
    for line in output_of(tools["nvdisasm"], "-c", str(cubin)).splitlines():
        if line.startswith(".text."):
            name = line.removeprefix(".text.").rstrip(":")
            current = found.setdefault(name, Kernel(architecture(cubin), name)).instructions
        elif current is not None and (instruction := INSTRUCTION.match(line)):
            current[instruction[1]] += 1
    for name, registers, stack, shared in USE.findall(output_of(tools["cuobjdump"], "-res-usage",
                                                                str(cubin))):
        kernel = found[name]
        kernel.registers, kernel.stack, kernel.shared = int(registers), int(stack), int(shared)
        assert kernel.registers > 0 and kernel.instructions, f"{name}: cannot be read"
    for kernel, plain in zip(found.values(),
                             output_of(tools["c++filt"], input="\n".join(found)).splitlines(),
                             strict=True):
        kernel.read_name(plain)
    return list(found.values())


def local_memory(kernel):
    uses = kernel.count(("LDL", "STL"))
    if kernel.base not in LOCAL_MEMORY and (uses or kernel.stack):
        yield f"{uses} accesses of local memory, {kernel.stack} bytes of stack"


def is_attention(kernel):
    return kernel.base in ROWS and bool(kernel.arguments)


def tensor_cores(kernel):
    if is_attention(kernel) and not (kernel.count(("HMMA",)) and kernel.count(("LDSM",))):
        yield (f"{kernel.count(('HMMA',))} multiplications on tensor cores, "
               f"{kernel.count(('LDSM',))} loads of their operands")


def vector_bits(kernel):
    """Returns how many bits the kernel reads and writes at once, according to its template
    arguments (T, V) or (From, To, V); None if it moves single elements."""
    types = [SIZES[one] for one in kernel.arguments if one in SIZES]
    numbers = [int(one) for one in kernel.arguments if one.isdigit()]
    if not types or not numbers or numbers[0] not in (4, 8):
        return None
    if kernel.base in ROWS or kernel.base == "update_elements":
        return None
    read = types[0] * numbers[0] * 8
    return read, types[1] * numbers[0] * 8 if kernel.base in CONVERTING else read


def narrow_accesses(kernel):
    bits = vector_bits(kernel)
    if bits is None:
        return
    read, written = bits
    if kernel.base not in NARROW_LOADS and not kernel.count(("LDG",), str(read)):
        yield f"no load of {read} bits"
    stores = kernel.count(("STG",), str(written)) or kernel.count(("STG",), "128")
    if kernel.base not in NUMBERS and not stores:
        yield f"no store of {written} bits"


def round_up(value, unit):
    return -(-value // unit) * unit


def blocks_of(kernel, head):
    """Returns how many attention blocks an SM holds, limited by registers and by shared memory."""
    sm, block = SHARED[kernel.architecture]
    own = kernel.shared - (RESERVED if int(kernel.architecture) >= 90 else 0)
    shared = ROWS[kernel.base][HEADS.index(head)] * head * 2 + own
    if shared > block:
        return 0
    warps = THREADS // 32
    by_registers = REGISTERS // (warps * round_up(kernel.registers * 32, 256))
    return min(by_registers, sm // round_up(shared + RESERVED, 128))


def lost_blocks(kernel):
    if not is_attention(kernel) or kernel.architecture not in BLOCKS:
        return
    head = int(kernel.arguments[0])
    held, known = blocks_of(kernel,
                            head), BLOCKS[kernel.architecture][kernel.base][HEADS.index(head)]
    if held != known:
        yield (f"an SM holds {held} blocks ({kernel.registers} registers, {kernel.shared} bytes), "
               f"{known} by the table")


CHECKS = (local_memory, tensor_cores, narrow_accesses, lost_blocks)


def main():
    module = pathlib.Path(sys.argv[1]).resolve()
    tools = find_tools(sys.argv[2:])
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folder = pathlib.Path(scratch)
        for kind in ("-xelf", "-xptx"):
            output_of(tools["cuobjdump"], kind, "all", str(module), cwd=folder)
        cubins = sorted(folder.glob("*.cubin"))
        own = {architecture(cubin) for cubin in cubins}
        assert {"80", "90"} <= own, f"{module} has kernels for {sorted(own)}"
        found = translated_kernels(tools, pool, list(translated(tools, folder, own)))
        found += [kernel for some in pool.map(lambda cubin: kernels_of(tools, cubin), cubins)
                  for kernel in some]
    faults = [f"sm_{kernel.architecture} {kernel.name}: {fault}" for kernel in found
              for check in CHECKS for fault in check(kernel)]
    for name in sorted({kernel.architecture for kernel in found}, key=int):
        kernels = [kernel for kernel in found if kernel.architecture == name]
        wide = sum(vector_bits(kernel) is not None for kernel in kernels)
        attention = sum(map(is_attention, kernels))
        print(f"sm_{name}: {len(kernels)} kernels, {wide} of them by vectors, {attention} of "
              f"attention on tensor cores, {max(kernel.registers for kernel in kernels)} registers "
              "at most")
        if name in own and wide < LEAST_CHECKED:
            faults.append(f"sm_{name}: the accesses of {wide} kernels are checked, at least "
                          f"{LEAST_CHECKED} expected")
        if attention != len(ROWS) * len(HEADS) * 2:
            faults.append(f"sm_{name}: {attention} kernels of attention on tensor cores")
    print("\n".join(faults) if faults else "no faults")
    sys.exit(1 if faults else 0)


main()
