"""Restarts a script in the repository's .venv if the script needs its packages, prepares the output
streams, and makes Python collect garbage seldom. A script imports this module before all others."""
import gc
import importlib.util
import os
import sys

import script_errors

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = os.path.splitext(os.path.basename(sys.argv[0]))[0]
script_errors.install_excepthook(NAME)
# Garbage is collected seldom: with Python's threshold of 700 objects, imports of torch and
# transformers take a fifth longer.
gc.set_threshold(100_000)


def require_packages(*packages):
    """Does nothing if the packages are installed. Otherwise restarts the script in .venv or, if
    that does not help, ends it with a line that says what to do."""
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if not missing:
        return
    venv, script = os.path.join(ROOT, ".venv"), sys.argv[0]
    python = os.path.join(venv, "bin", "python")
    if os.access(python, os.X_OK) and os.path.realpath(sys.prefix) != os.path.realpath(venv):
        os.execv(python, [python, os.path.abspath(script), *sys.argv[1:]])
    print(f"{NAME}: error: the Python packages {', '.join(missing)} are missing; run "
          "scripts/setup.sh",
          file=sys.stderr)
    sys.exit(5)
