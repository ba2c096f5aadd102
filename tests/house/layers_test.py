"""Fails on an include outside the layer map (the USES of lib/CMakeLists.txt), on a cycle of
headers, and on a tensor library seen from a folder that must not know tensors."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
LIB = ROOT / "lib"
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)
TENSOR_HEADERS = ("torch/", "ATen/", "c10/", "gloo/", "cuda", "nccl")


def layer_map():
    text = (LIB / "CMakeLists.txt").read_text()
    folders = {}
    for name, engine, uses in re.findall(r"ftrun_folder\((\w+)( ENGINE)?\s*(?:USES "
                                         r"([\w\s]*?))?(?:\s*LINKS [^)]*)?\)", text):
        folders[name] = (bool(engine), set(uses.split()))
    return folders


def folder_of(path):
    """The folder whose target a file below lib is of: kernels of an operation are the
    engine's, wherever they lie."""
    parts = pathlib.PurePath(path).parts
    return "kernels" if parts[0] == "ops" and re.match(r"(cpu|gpu)(_(?!workspace)\w+)?\.",
                                                       parts[-1]) else parts[0]


def sources():
    for path in sorted(LIB.rglob("*")):
        if path.suffix in (".h", ".cc", ".cu", ".cuh", ".inc"):
            yield path, folder_of(path.relative_to(LIB)), path.read_text()


def include_faults(folders):
    faults = []
    for path, folder, text in sources():
        if folder not in folders:
            faults.append(f"{path}: folder {folder} is not in lib/CMakeLists.txt")
            continue
        engine, uses = folders[folder]
        for bracket, header in INCLUDE.findall(text):
            target = folder_of(header)
            if bracket == '"' and target in folders and target != folder and target not in uses:
                faults.append(f"{path}: includes {header}, but {folder} may use only "
                              f"{', '.join(sorted(uses)) or 'nothing'}")
            if not engine and header.startswith(TENSOR_HEADERS):
                faults.append(f"{path}: includes {header}, but {folder} must not know tensors")
    return faults


def header_cycles():
    edges = {}
    for path, _, text in sources():
        name = str(path.relative_to(LIB))
        edges[name] = [h for b, h in INCLUDE.findall(text) if b == '"' and (LIB / h).exists()]
    state, faults = {}, []

    def visit(name, trail):
        if state.get(name) == "done":
            return
        if name in trail:
            faults.append("cycle of headers: " + " -> ".join(trail[trail.index(name):] + [name]))
            return
        for header in edges.get(name, []):
            visit(header, trail + [name])
        state[name] = "done"

    for name in edges:
        visit(name, [])
    return faults


def self_check():
    """The check must be able to fail: lower folders may not use higher ones."""
    folders = layer_map()
    order = list(folders)
    assert len(order) >= 10, f"only {order} found in lib/CMakeLists.txt"
    for name, (_, uses) in folders.items():
        for use in uses:
            assert order.index(use) < order.index(name), f"{name} uses {use}, which stands above it"
    return folders


def main():
    folders = self_check()
    faults = include_faults(folders) + header_cycles()
    print("\n".join(faults) or f"layers: {len(folders)} folders, no fault")
    sys.exit(1 if faults else 0)


main()
