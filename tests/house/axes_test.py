"""Fails if a source outside lib/axes names an axis of the mesh: other code uses the sets of axes
that the table gives (lib/axes/mesh_axis.h), so that a new axis needs only a row and a folder.

    axes_test.py SOURCE
"""
import pathlib
import re
import sys

from sources import sources_below, without_comments

ROOT = pathlib.Path(sys.argv[1])
# A collective in a layer's graph names the axis along which it runs.
ALLOWED = {"lib/graph/collective_attrs.h"}
ROW = re.compile(r"^FTRUN_MESH_AXIS\((k\w+), (\w+), ", re.M)
FOLDER = re.compile(r"^FTRUN_(?:MODEL_FIT_)?AXIS\((\w+)\)$", re.M)


def pattern_of(rows):
    kinds = "|".join(kind for kind, _ in rows)
    return re.compile(rf"\bMeshAxis::(?:{kinds})\b|\busing enum MeshAxis\b")


def faults_of(name, text, pattern):
    if name.startswith("lib/axes/") or name in ALLOWED:
        return
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if found := pattern.search(line):
            yield (f"{name}:{number}: names {found.group(0)}; ask for the axes by what their ranks "
                   "divide (axes/mesh_axis.h)")


def folder_faults(names):
    for name in names:
        if not (ROOT / "lib/axes" / name / "keys.cc").exists():
            yield f"lib/axes/axes.inc names {name}, and lib/axes/{name}/keys.cc does not exist"


def main():
    table = (ROOT / "lib/axes/axes.inc").read_text()
    rows, names = ROW.findall(table), FOLDER.findall(table)
    assert len(rows) >= 5 and len(names) >= 5, f"only {rows}, {names} found in axes.inc"
    pattern = pattern_of(rows)
    line = "if (axis == MeshAxis::kTensor) {  // kData\n"
    fault = list(faults_of("lib/sim/x.cc", line, pattern))
    assert len(fault) == 1 and ":1: names MeshAxis::kTensor" in fault[0], fault
    assert not list(faults_of("lib/axes/data/x.cc", "MeshAxis::kData", pattern))
    faults = list(folder_faults(names)) + [
        fault for path in sources_below(ROOT)
        for fault in faults_of(path.relative_to(ROOT).as_posix(), path.read_text(), pattern)]
    print("\n".join(faults) or f"axes: {len(rows)} of the mesh, {len(names)} folders, no fault")
    sys.exit(1 if faults else 0)


main()
