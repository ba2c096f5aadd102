#include "checkpoint/disk_space.h"

#include <limits>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/output_mark.h"
#include "checkpoint/save.h"
#include "fault_files.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// Returns a run of 10 steps that saves a checkpoint of 100 MiB every 2 steps, keeps two, and
/// exports 30 MiB.
DiskSpaceNeeds needs_of_run(const TemporaryFolder& run) {
  DiskSpaceNeeds needs;
  needs.checkpoints_folder = run / "checkpoints";
  needs.checkpoint_bytes = 100 * kMiB;
  needs.keep_last = 2;
  needs.save_interval_steps = 2;
  needs.total_steps = 10;
  needs.export_folder = run / "export/model";
  needs.export_bytes = 30 * kMiB;
  return needs;
}

/// Returns the message about `needs` if `free` bytes are free.
std::string space_message(const TemporaryFolder& run, const DiskSpaceNeeds& needs, int64_t free) {
  FaultFileSystem files(run.path());
  files.set_free_bytes(free);
  return check_disk_space(files, needs);
}

std::string require_space_error(const TemporaryFolder& run, const DiskSpaceNeeds& needs,
                                int64_t free) {
  return require_error(ExitCode::kEnvironment, [&] { space_message(run, needs, free); });
}

void save_empty(const TemporaryFolder& run, int64_t step) {
  ToyState state(1, 0, 1);
  save_checkpoint(posix_files(), {.root = run / "checkpoints"}, toy_meta(step, 1), state.slices(),
                  CheckpointGroup{});
}

}  // namespace

TEST_CASE("space for the kept checkpoints, the one in progress and the export is enough") {
  const MemoryFolder run;
  REQUIRE(space_message(run, needs_of_run(run), 330 * kMiB) == "");
}

TEST_CASE("too little space is reported before the first checkpoint, with the arithmetic") {
  const MemoryFolder run;
  REQUIRE(space_message(run, needs_of_run(run), 330 * kMiB - 1) ==
          run / "checkpoints" +
              ": 3 checkpoints of 100.00 MiB (keep_last 2, one under way, 0 there) and the "
              "exported model of 30.00 MiB: "
              "330.00 MiB (346030080 B) needed, 330.00 MiB (346030079 B) free: the run may end "
              "with a full disk");
}

TEST_CASE("space for less than one checkpoint, or one and the export, is refused") {
  const MemoryFolder run;
  REQUIRE(space_message(run, needs_of_run(run), 130 * kMiB) != "");
  REQUIRE(require_space_error(run, needs_of_run(run), 129 * kMiB) ==
          run / "checkpoints" +
              ": 1 checkpoint of 100.00 MiB and the exported model of 30.00 MiB: 130.00 MiB "
              "needed, 129.00 MiB free");
  REQUIRE(require_space_error(run, needs_of_run(run), 99 * kMiB) ==
          run / "checkpoints" + ": 1 checkpoint of 100.00 MiB: 100.00 MiB needed, 99.00 MiB free");
  DiskSpaceNeeds alone = needs_of_run(run);
  alone.export_bytes = 0;
  REQUIRE(space_message(run, alone, 300 * kMiB) == "");
  REQUIRE(space_message(run, alone, 100 * kMiB) != "");
}

TEST_CASE("checkpoints whose bytes exceed the largest number do not fit") {
  const MemoryFolder run;
  DiskSpaceNeeds needs = needs_of_run(run);
  needs.keep_last = 0;
  needs.save_interval_steps = 1;
  needs.total_steps = 1'000'000'000;
  needs.checkpoint_bytes = 10 * 1024 * kMiB;
  REQUIRE(
      space_message(run, needs, 1000 * 1024 * kMiB).find("1000000000 checkpoints of 10.00 GiB") !=
      std::string::npos);
  REQUIRE(space_message(run, needs, kFreeUnknown) == "");
  needs.keep_last = std::numeric_limits<int64_t>::max();
  REQUIRE(space_message(run, needs, 1000 * 1024 * kMiB) != "");
}

TEST_CASE("no more checkpoints are counted than the run will save") {
  const MemoryFolder run;
  DiskSpaceNeeds needs = needs_of_run(run);
  needs.save_interval_steps = 0;  // one checkpoint, at the end
  REQUIRE(space_message(run, needs, 130 * kMiB) == "");
  needs.save_interval_steps = 8;  // and another one at step 8
  REQUIRE(space_message(run, needs, 230 * kMiB) == "");
  REQUIRE(space_message(run, needs, 229 * kMiB) != "");
  needs.keep_last = 0;
  needs.save_interval_steps = 3;  // 3, 6, 9, 10, all kept
  REQUIRE(space_message(run, needs, 430 * kMiB) == "");
  REQUIRE(space_message(run, needs, 429 * kMiB) != "");
  needs.total_steps = 0;  // the number follows from the data, later
  REQUIRE(space_message(run, needs, 230 * kMiB) == "");
  REQUIRE(space_message(run, needs, 229 * kMiB) != "");
}

TEST_CASE("checkpoints by minutes count as many as the run may save") {
  const MemoryFolder run;
  DiskSpaceNeeds needs = needs_of_run(run);
  needs.save_interval_steps = 0;
  needs.saves_by_minutes = true;
  REQUIRE(space_message(run, needs, 330 * kMiB) == "");  // two kept and the one in progress
  REQUIRE(space_message(run, needs, 329 * kMiB) != "");
  needs.keep_last = 0;  // all are kept: counts the next two
  REQUIRE(space_message(run, needs, 230 * kMiB) == "");
  REQUIRE(space_message(run, needs, 229 * kMiB) != "");
  needs.total_steps = 0;
  REQUIRE(space_message(run, needs, 230 * kMiB) == "");
  REQUIRE(space_message(run, needs, 229 * kMiB) != "");
  needs.total_steps = 1;
  REQUIRE(space_message(run, needs, 130 * kMiB) == "");
}

TEST_CASE("space that the disk tier uses on the same file system is not free") {
  const MemoryFolder run;
  DiskSpaceNeeds needs = needs_of_run(run);
  needs.swap_folder = run / "swap";
  needs.swap_bytes = 500 * kMiB;
  REQUIRE(space_message(run, needs, 830 * kMiB) == "");
  REQUIRE(space_message(run, needs, 800 * kMiB) ==
          run / "checkpoints" +
              ": 3 checkpoints of 100.00 MiB (keep_last 2, one under way, 0 there) and the "
              "exported model of 30.00 MiB: "
              "330.00 MiB needed, 300.00 MiB free beside 500.00 MiB of the disk tier: the run may "
              "end with a full disk");
  REQUIRE(require_space_error(run, needs, 500 * kMiB) ==
          run / "checkpoints" +
              ": 1 checkpoint of 100.00 MiB: 100.00 MiB needed, 0 B free beside 500.00 MiB of the "
              "disk tier");
  needs.swap_folder = "/proc";  // another file system
  REQUIRE(space_message(run, needs, 330 * kMiB) == "");
}

TEST_CASE("existing checkpoints need no further space") {
  const MemoryFolder run;
  save_empty(run, 2);
  save_empty(run, 4);
  REQUIRE(space_message(run, needs_of_run(run), 130 * kMiB) == "");
  // The older checkpoints are removed before the model is exported.
  REQUIRE(space_message(run, needs_of_run(run), 129 * kMiB) != "");
  REQUIRE(require_space_error(run, needs_of_run(run), 99 * kMiB) ==
          run / "checkpoints" + ": 1 checkpoint of 100.00 MiB: 100.00 MiB needed, 99.00 MiB free");
  save_empty(run, 10);  // nothing is left to train
  REQUIRE(space_message(run, needs_of_run(run), 30 * kMiB) == "");
}

TEST_CASE("files that a killed run left and the start will remove count as free") {
  const MemoryFolder run;
  DiskSpaceNeeds needs = needs_of_run(run);
  needs.checkpoint_bytes = 2 * kMiB;
  needs.export_bytes = kMiB;
  needs.save_interval_steps = 0;  // one checkpoint
  REQUIRE(require_space_error(run, needs, 0) != "");
  posix_files().make_folder(run / "checkpoints/step-00000002.tmp-0123abcd");
  write_text(run / "checkpoints/step-00000002.tmp-0123abcd/rank-00000.safetensors",
             std::string(2 * kMiB, 'x'));
  REQUIRE(require_space_error(run, needs, 0) != "");
  begin_output(posix_files(), run / "export/model.tmp-0123abcd", {"model.safetensors"}).reset();
  write_text(run / "export/model.tmp-0123abcd/model.safetensors", std::string(kMiB, 'x'));
  REQUIRE(space_message(run, needs, 0) == "");
  REQUIRE(checkpoint_leftover_bytes(posix_files(), run / "checkpoints") >= 2 * kMiB);
  clean_checkpoints(posix_files(), run / "checkpoints");
  REQUIRE(checkpoint_leftover_bytes(posix_files(), run / "checkpoints") == 0);
}

TEST_CASE("if the file system does not report its free space everything fits") {
  const MemoryFolder run;
  save_empty(run, 2);
  DiskSpaceNeeds needs = needs_of_run(run);
  needs.checkpoint_bytes = int64_t{100} << 40;
  REQUIRE(space_message(run, needs, kFreeUnknown) == "");
}

TEST_CASE("a file that is larger than this process may write is refused before the first step") {
  const MemoryFolder run;
  DiskSpaceNeeds needs = needs_of_run(run);
  needs.largest_file_bytes = 50 * kMiB;
  needs.file_size_limit = 50 * kMiB;
  REQUIRE(space_message(run, needs, kFreeUnknown) == "");
  needs.file_size_limit = 1 * kMiB;
  REQUIRE(require_space_error(run, needs, kFreeUnknown) ==
          run / "checkpoints" +
              ": the run will write a file of 50.00 MiB or more, but the file size limit of "
              "this process (ulimit -f) is 1.00 MiB");
}

}  // namespace ftrun::testing
