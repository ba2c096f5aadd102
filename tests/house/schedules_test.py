"""Fails if a source other than schedule.cc names a pipeline schedule: other code uses its traits
(lib/axes/pipeline/schedule_traits.h), so that a new schedule needs changes in those two files only.

    schedules_test.py SOURCE
"""
import pathlib
import re
import sys

from sources import sources_below, without_comments

ROOT = pathlib.Path(sys.argv[1])
FOLDER = "lib/axes/pipeline"
NAME = re.compile(r"\bPipelineSchedule::k\w+")


def faults_of(name, text):
    if name in (f"{FOLDER}/schedule_traits.h", f"{FOLDER}/schedule.cc"):
        return
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if found := NAME.search(line):
            yield (f"{name}:{number}: names {found.group(0)}; give PipelineScheduleTraits a field "
                   "and ask for that")


def self_check():
    text = "if (schedule == PipelineSchedule::kZbV) return;  // PipelineSchedule::kGpipe\n"
    assert len(list(faults_of("lib/search/x.cc", text))) == 1
    assert not list(faults_of(f"{FOLDER}/schedule.cc", text))
    assert NAME.search((ROOT / FOLDER / "schedule.cc").read_text()), (
        "no name of a schedule is found in schedule.cc")


def main():
    self_check()
    all_sources = list(sources_below(ROOT))
    faults = [fault for path in all_sources
              for fault in faults_of(path.relative_to(ROOT).as_posix(), path.read_text())]
    print("\n".join(faults) or f"schedules: {len(all_sources)} sources, no fault")
    sys.exit(1 if faults else 0)


main()
