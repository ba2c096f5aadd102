"""Checks that every command which README.md, CONTRIBUTING.md and docs/*.md tell a reader to type
works. Each is run here as it is written, page by page, in a folder with everything that the page
assumes, unless a table below names the test that runs it instead, or the reason why no test can.
Every option of ftrun and of scripts/ that the pages name must exist."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import typing

from pages import blocks, commands, pages
from runner import (BINARY, case, environment, link_python, run_cases, steps, tiny_data, tiny_model,
                    tiny_weights)

SOURCE = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "data"))
from chats_test import CHATML, write_model  # noqa: E402

IMPORTS = SOURCE / "tests" / "checkpoint" / "imports"
VOCABULARY = 300


class RunByOtherTest(typing.NamedTuple):
    """The commands of a page that another file runs. `evidence` is text in that file: how it reads
    the page, or the command itself."""

    page: str
    begins: str
    file: str
    evidence: str


class NotRun(typing.NamedTuple):
    """The commands of a page that no test runs. Their options are checked nevertheless; for a
    program that is built only on request, in the file `source`."""

    page: str
    begins: str
    reason: str
    source: str | None = None


FINE_TUNING = "tests/e2e/fine_tuning_test.py"
QUICKSTART = "tests/e2e/quickstart_test.py"
SLURM = "tests/e2e/slurm_scripts_test.py"
READS_CLUSTERS = 'command_blocks(SOURCE, "docs/clusters.md")'
RUN_BY_OTHER_TESTS = [
    RunByOtherTest("README.md", "scripts/quickstart.sh", QUICKSTART, '"scripts" / "quickstart.sh"'),
    RunByOtherTest("README.md", "scripts/prepare_data.py --tokenizer models/smollm2-135m --out "
                                "data/chats", FINE_TUNING,
                   'command_blocks(SOURCE, "README.md")'),
    RunByOtherTest("README.md", "build/release/bin/ftrun --config configs/lora.yaml", FINE_TUNING,
                   'command_blocks(SOURCE, "README.md")'),
    RunByOtherTest("docs/fine-tuning.md", "scripts/make_model.py smollm2", "scripts/quickstart.sh",
                   "scripts/make_model.py smollm2 --out models/smollm2-135m\n"),
    RunByOtherTest("docs/fine-tuning.md", "", FINE_TUNING,
                   'command_blocks(SOURCE, "docs/fine-tuning.md")'),
    RunByOtherTest("docs/data.md", "scripts/prepare_data.py --tokenizer models/smollm2-135m --out "
                                   "data --shakespeare",
                   "scripts/quickstart.sh", "scripts/prepare_data.py --shakespeare --tokenizer "
                                            "models/smollm2-135m --out data/"),
    RunByOtherTest("docs/plan.md", "ftrun bench machine --out", "tests/e2e/plan_time_test.py",
                   'ftrun("bench", "machine"'),
    RunByOtherTest("docs/plan.md", "ftrun plan --search", "tests/e2e/plan_search_test.py",
                   'ftrun("plan", "--search"'),
    RunByOtherTest("docs/plan.md", "ftrun init", "tests/e2e/init_test.py", 'ftrun("init"'),
    *(RunByOtherTest("docs/clusters.md", begins, SLURM, READS_CLUSTERS)
      for begins in ("export CONFIG=", "sbatch ", "job=$(sbatch ", "squeue ", "scancel ",
                     "scontrol ", "grep ", "ftrun inspect runs/two-nodes")),
]

TESTS = "runs all tests, this one among them"
BUILDS = "builds for minutes"
MEASURES = "measures for minutes on a machine that does nothing else"
DOWNLOADS = "needs the network"
REASONS = (TESTS, BUILDS, MEASURES, DOWNLOADS)
NOT_RUN = [
    NotRun("README.md", "scripts/test.sh", TESTS),
    NotRun("CONTRIBUTING.md", "scripts/test.sh", TESTS),
    NotRun("CONTRIBUTING.md", "cmake --workflow --preset dev", BUILDS),
    NotRun("CONTRIBUTING.md", "scripts/unsteady.sh", TESTS),
    NotRun("docs/fine-tuning.md", "hf download ", DOWNLOADS),
    NotRun("docs/benchmarks.md", "cmake --preset release -DFTRUN_BENCH=ON", BUILDS),
    NotRun("docs/benchmarks.md", "build/release/bin/kernel_bench", MEASURES,
           "tests/bench/kernel_bench.cc"),
    NotRun("docs/benchmarks.md", "build/release/bin/comm_bench", MEASURES,
           "tests/bench/comm_bench.cc"),
]

# Texts that a reader replaces: page, text, and its replacement in this test.
STANDS_FOR = [
    ("README.md", "MODEL_FOLDER", "models/smollm2-135m"),
    ("docs/plan.md", "--config F", "--config mine.yaml"),
]

# COMMAND matches the beginning of a line with a command; a block of such lines needs the label sh.
COMMAND = re.compile(r"(?:\$ )?(?:scripts/\S|build/release/bin/|cmake -|ftrun (?:--|[a-z]+ "
                     r")|docker |kubectl |sbatch |srun |mpirun |torchrun |pip "
                     r"|\.venv/bin/|python3? )")
PROGRAM = re.compile(r"(?:build/release/bin/)?(ftrun)\b(?: (bench "
                     r"machine|[a-z]+)\b)?|(scripts/[\w/]+\.(?:py|sh|sbatch))")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")

# HELP_LINE matches where argparse explains an option: "  -h, --help  ..." or "  --out OUT".
HELP_LINE = re.compile(r"^  (?:-\w(?: \S+)?, )?--[a-z][\w-]*", re.MULTILINE)
# TAKEN_BY_SHELL matches a shell script's comparison of an argument with an option: a pattern of
# `case`, or `[ ... = --x ]`.
TAKEN_BY_SHELL = re.compile(r"(?:^\s*|[|=] *|case .* in )(--[a-z][\w-]*)(?= *[|)]| *\])",
                            re.MULTILINE)
# The program to which a shell script passes its arguments.
HANDED_ON = re.compile(r"(scripts/\w+\.py)|bin/ftrun\b")


# --- the state that a page assumes --------------------------------------------------------------


def small_model(folder):
    """Writes a random model whose tokenizer knows bytes, with a chat template."""
    write_model(folder, CHATML)
    tiny_model(folder, tiny_weights(vocabulary=VOCABULARY), vocab_size=VOCABULARY,
               max_position_embeddings=2048, eos_token_id=3)


def write_chats(path, count):
    with open(path, "w") as lines:
        for number in range(count):
            messages = [{"role": "user", "content": f"What comes after {number}?"},
                        {"role": "assistant", "content": f"{number + 1}."}]
            lines.write(json.dumps({"messages": messages}) + "\n")


def readme(folder):
    """Writes a file of chats, and the page's own config, which its commands use."""
    write_chats(folder / "chats.jsonl", 2000)
    config, = [block.text for block in blocks(SOURCE, "README.md") if block.label == "yaml"]
    (folder / "mine.yaml").write_text(config)


def data(folder):
    write_chats(folder / "chats.jsonl", 40)
    (folder / "book.txt").write_text("It was a dark night.\n" * 20)
    (folder / "notes").mkdir()
    (folder / "notes" / "one.txt").write_text("Call the printer.\n")


def checkpoint(folder):
    """Writes a DeepSpeed run that ended at a checkpoint, and the config that continues it."""
    with tarfile.open(IMPORTS / "deepspeed.tar.xz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder / "deepspeed")
    (folder / "out").mkdir()
    (folder / "deepspeed" / "zero3-fp32-2" / "checkpoint").rename(folder / "out" / "checkpoints")
    shutil.copytree(IMPORTS / "model", folder / "models" / "base")
    shutil.copy(IMPORTS / "train.bin", folder)
    expected = json.loads((folder / "deepspeed" / "zero3-fp32-2" / "expected.json").read_text())
    write_config(folder / "mine.yaml", model="models/base", sequence_length=16,
                 output_dir="runs/mine", train_batch_size=6,
                 train={"steps": expected["step"] + 2}, zero_optimization={"stage": 3},
                 optimizer={"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95],
                                                        "eps": 1e-8, "weight_decay": 0.1}})


def clusters(folder):
    tiny_data(folder / "train.bin")
    write_config(folder / "train.yaml", train={"steps": 2}, train_batch_size=4,
                 parallel={"data": 2}, output_dir="runs/train")


def plan(folder):
    write_config(folder / "mine.yaml", parallel={"data": 16}, train_batch_size=16)
    shutil.copy(SOURCE / "configs" / "machines" / "xeon-amx-2cores.yaml", folder / "here.yaml")


def write_config(path, model="models/smollm2-135m", sequence_length=32, **keys):
    value = {"model": {"path": model}, "threads": 1, "gradient_clipping": 1.0,
             "data": {"train": "train.bin", "token_dtype": "uint16",
                      "sequence_length": sequence_length}}
    path.write_text(json.dumps(value | keys, indent=1))


PREPARES = {"README.md": readme, "docs/data.md": data, "docs/checkpoint.md": checkpoint,
            "docs/clusters.md": clusters, "docs/plan.md": plan}


# These functions check what a page's commands must have left in the folder (LEFT).
def check_after_readme(folder):
    step_numbers = [m["step"] for m in steps(folder / "runs" / "mine")]
    assert step_numbers == list(range(1, len(step_numbers) + 1)) and step_numbers, step_numbers
    assert (folder / "runs" / "mine" / "export" / "model" / "model.safetensors").exists()


def check_after_data(folder):
    for split in ("train", "validation"):
        assert (folder / "data" / f"{split}.bin").stat().st_size > 0, split


def check_after_checkpoint(folder):
    assert len(steps(folder / "runs" / "mine")) == 2


def check_after_clusters(folder):
    assert len(steps(folder / "runs" / "train")) == 2


def check_after_plan(folder):
    assert json.loads((folder / "step.json").read_text())
    assert (folder / "page.html").read_text().startswith("<!DOCTYPE html>\n<!-- ftrun plan 1 -->")


LEFT = {"README.md": check_after_readme, "docs/data.md": check_after_data,
        "docs/checkpoint.md": check_after_checkpoint, "docs/clusters.md": check_after_clusters,
        "docs/plan.md": check_after_plan}


# --- options ------------------------------------------------------------------------------------


@functools.cache
def options_of(program, command):
    """Returns all options that a program has. The help of ftrun and of Python scripts lists theirs.
    A shell script has those that it compares its arguments with, and those of the programs to which
    it passes arguments."""
    if program == "ftrun":
        return set(OPTION.findall(help_of([BINARY, *(command.split() if command else [])])))
    text = (SOURCE / program).read_text()
    if program.endswith(".py") and "ArgumentParser(" in text:
        explained = HELP_LINE.findall(help_of([sys.executable, SOURCE / program]))
        return set(OPTION.findall("\n".join(explained)))
    if program.endswith(".py"):
        return set(re.findall(r'"(--[a-z][\w-]*)"', text))
    options = set(TAKEN_BY_SHELL.findall(text))
    for line in text.splitlines():
        if line.endswith('"$@"') and (behind := HANDED_ON.search(line)):
            options |= options_of(behind[1] or "ftrun", None)
    return options


def help_of(run):
    result = subprocess.run([*run, "--help"], capture_output=True, text=True, env=environment(),
                            check=False)
    assert result.returncode == 0, (
        f"{run}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def unknown_options(where, text):
    """Yields the options in a command, or in a text about one, that its program does not have."""
    match = PROGRAM.match(text)
    if not match:
        return
    program, command = match[1] or match[3], match[2]
    if program != "ftrun" and not (SOURCE / program).exists():
        yield f"{where}: there is no {program}"
    elif named := OPTION.findall(text[match.end():]):
        # Options after a SLURM script are ftrun's.
        known = options_of("ftrun",
                           None) if program.endswith(".sbatch") else options_of(program, command)
        for option in named:
            if option not in known:
                yield f"{where}: {' '.join(filter(None, (program, command)))} has no {option}"


def without_comment(command):
    return re.sub(r"\s+#.*", "", command)


# --- running ------------------------------------------------------------------------------------


def reason_not_run(page, command):
    """Returns the row of the tables that says why this command is not run here; None if it is
    run."""
    rows = [row for row in (*RUN_BY_OTHER_TESTS, *NOT_RUN) if row.page == page
            and command.startswith(row.begins)]
    return max(rows, key=lambda row: len(row.begins), default=None)


def run_here(folder, block, command):
    for page, text, stands_for in STANDS_FOR:
        if page == block.page:
            command = command.replace(text, stands_for)
    path = os.pathsep.join((str(folder / "build" / "release" / "bin"), os.environ["PATH"]))
    result = subprocess.run(["bash", "-e", "-u", "-o", "pipefail", "-c", command], cwd=folder,
                            env=environment({"PATH": path}), capture_output=True,
                            text=True, timeout=300)
    assert result.returncode == 0, (
        f"{block}: exit code {result.returncode} of\n{command}\n{result.stdout[-3000:]}\n"
        f"{result.stderr[-3000:]}")


def prepare_folder(folder):
    """Prepares the folder in which a reader types: with the repository's scripts, configs and
    build, and with a model."""
    (folder / "build" / "release").mkdir(parents=True)
    (folder / "build" / "release" / "bin").symlink_to(pathlib.Path(BINARY).parent)
    for name in ("scripts", "configs"):
        (folder / name).symlink_to(SOURCE / name)
    link_python(folder, SOURCE)
    small_model(folder / "models" / "smollm2-135m")


COMMAND_BLOCKS = [block for page in pages(SOURCE) for block in blocks(SOURCE, page)
                  if block.label == "sh"]


@case
def tables_say_what_is_so():
    """Checks the tables: each row names an existing command, and has an allowed reason or names a
    file that runs the command."""
    typed = [(block.page, command) for block in COMMAND_BLOCKS for command in commands(block.text)]
    used = [reason_not_run(page, command) for page, command in typed]
    for row in (*RUN_BY_OTHER_TESTS, *NOT_RUN):
        assert row in used, (
            f"no command of {row.page} begins with {row.begins!r}: take the row away")
    for row in RUN_BY_OTHER_TESTS:
        assert row.evidence in (SOURCE / row.file).read_text(), (
            f"{row.file} does not hold {row.evidence!r}, by which it runs commands of {row.page}")
    for row in NOT_RUN:
        assert row.reason in REASONS, row
    for page, text, _ in STANDS_FOR:
        assert any(text in command for where, command in typed if where == page), (
            f"{text!r} stands nowhere in the commands of {page}")


@case
def blocks_of_commands_are_labeled():
    """Checks labels, because a block without the label sh would not be run."""
    for page in pages(SOURCE):
        for block in blocks(SOURCE, page):
            first = next((line for line in block.text.splitlines() if COMMAND.match(line)), None)
            assert (block.label == "sh"
                    or not first), f"{block}: {first!r} is a command: begin the block with ```sh"


@case
def options_that_pages_name_exist():
    faults = []
    for block in COMMAND_BLOCKS:
        for command in commands(block.text):
            row = reason_not_run(block.page, command)
            if isinstance(row, NotRun) and row.source:
                known = (SOURCE / row.source).read_text()
                faults += [f"{block}: {row.source} has no {option}"
                           for option in OPTION.findall(without_comment(command))
                           if f'"{option}"' not in known]
            for line in command.splitlines():
                faults += unknown_options(block, without_comment(line))
    for page in pages(SOURCE):
        text = re.sub(r"^```.*?^```", "", (SOURCE / page).read_text(),
                      flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`([^`\n]+)`", text):
            faults += unknown_options(page, code)
    assert not faults, "\n".join(faults)


@case
def unknown_options_are_found():
    assert list(unknown_options("x",
                                "build/release/bin/ftrun plan --memory --memry")) == [
                                    "x: ftrun plan has no --memry"]
    assert list(unknown_options("x", "ftrun plan --merge")) == ["x: ftrun plan has no --merge"]
    unknown = list(unknown_options("x", "scripts/test.sh --fast"))
    assert unknown == ["x: scripts/test.sh has no --fast"]
    assert not list(unknown_options("x", "scripts/test.sh --with-launchers"))
    assert not list(unknown_options("x", "scripts/unsteady.sh e2e.signals --times 50"))
    # These options are in a script's text, but the script does not accept them.
    for program, option in (("scripts/export_gguf.py", "--lora"), ("scripts/setup.sh", "--python"),
                            ("scripts/build.sh", "--preset")):
        assert option in (SOURCE / program).read_text()
        assert list(unknown_options("x", f"{program} {option}")) == [
            f"x: {program} has no {option}"]
    assert list(unknown_options("x", "scripts/gone.sh")) == ["x: there is no scripts/gone.sh"]


def run_page(page):
    typed = [(block, command) for block in COMMAND_BLOCKS if block.page == page
             for command in commands(block.text) if reason_not_run(page, command) is None]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        prepare_folder(folder)
        PREPARES[page](folder)
        for block, command in typed:
            run_here(folder, block, command)
        LEFT[page](folder)


@case
def every_other_command_is_run():
    run = {block.page for block in COMMAND_BLOCKS for command in commands(block.text)
           if reason_not_run(block.page, command) is None}
    assert run == set(PREPARES) == set(LEFT), (
        f"commands of {sorted(run)} are to be run, and {sorted(PREPARES)} are prepared")


for name in PREPARES:
    page_case = functools.partial(run_page, name)
    page_case.__name__ = f"commands of {name}"
    case(page_case)

run_cases()
