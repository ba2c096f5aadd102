"""Fails on an include outside the layer map (the USES of lib/CMakeLists.txt), on a cycle of
headers, on use of a tensor library in a folder that must not know tensors, and on a command that
needs the engine before it is loaded.
"""
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
    """Returns the folder whose target compiles a file below lib: kernels of an operation belong to
    `kernels`, wherever they lie, and files of an axis to the target that their name says."""
    parts = pathlib.PurePath(path).parts
    name = parts[-1].split(".")[0]
    if parts[0] == "ops" and re.match(r"(cpu|gpu)(_(?!workspace)\w+)?\.", parts[-1]):
        return "kernels"
    if parts[0] == "axes" and name not in ("axes", "mesh_axis", "schedule_traits"):
        return "config" if name == "keys" else "model" if name.startswith("split") else "program"
    return parts[0]


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


def app_faults(folders, text_of=lambda header: (LIB / header).read_text(), apps=None):
    """Returns the headers that commands may not include: they start without the engine, so except
    in the entry they include headers of engine folders only if these need no other header of such
    folders, as a struct of plain fields does."""
    if apps is None:
        apps = {path: path.read_text() for path in sorted((ROOT / "apps").rglob("*"))
                if path.suffix in (".h", ".cc")}

    def engine_headers(text):
        return [h for b, h in INCLUDE.findall(text) if b == '"'
                and folders.get(folder_of(h), (False,))[0]]

    for path, text in apps.items():
        if path.name == "engine_entry.cc":
            continue
        for header in engine_headers(text):
            for needed in engine_headers(text_of(header)):
                yield (f"{path}: includes {header}, which needs {needed} of the engine; commands "
                       "start without it")


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
    """Checks that the check can fail: lower folders may not use higher ones."""
    folders = layer_map()
    order = list(folders)
    assert len(order) >= 10, f"only {order} found in lib/CMakeLists.txt"
    for name, (_, uses) in folders.items():
        for use in uses:
            assert order.index(use) < order.index(name), f"{name} uses {use}, which stands above it"
    command = {pathlib.Path("apps/ftrun/x.cc"): '#include "engine/setup.h"\n'}
    assert list(app_faults(folders, apps=command)), (
        "a command that includes engine/setup.h is no fault")
    return folders


def main():
    folders = self_check()
    faults = include_faults(folders) + list(app_faults(folders)) + header_cycles()
    print("\n".join(faults) or f"layers: {len(folders)} folders, no fault")
    sys.exit(1 if faults else 0)


main()
