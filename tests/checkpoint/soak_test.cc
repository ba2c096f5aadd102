// These tests simulate runs that lose power repeatedly while they save. A run must always find the
// state that was last reported as saved, or a newer one. Each run is drawn from a seed;
// FTRUN_SOAK_POWER_CUTS sets the number of tested states (scripts/soak.sh).
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inspect.h"
#include "checkpoint/save.h"
#include "fault_files.h"
#include "sweep.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

int64_t requested_states(int64_t usual) {
  const char* const text = std::getenv("FTRUN_SOAK_POWER_CUTS");
  return text == nullptr ? usual : std::atoll(text);
}

/// SimulatedRun is a run of a few ranks whose state after step s is ToyState's version s.
struct SimulatedRun {
  MemoryFolder folder;
  std::string root = folder / "checkpoints";
  FaultFileSystem files{folder.path()};
  std::mt19937_64 random;
  int ranks = 1;
  int64_t keep_last = 2;
  /// The newest step whose save returned successfully.
  int64_t saved = 0;
  int64_t begun = 0;

  explicit SimulatedRun(uint64_t seed) : random(seed) {
    ranks = 1 + static_cast<int>(random() % 2);
    keep_last = static_cast<int64_t>(random() % 4);
    if (random() % 2 == 0) files.refuse_exchange();
  }

  /// Saves a step; returns false if this failed.
  bool save(int64_t step) {
    begun = std::max(begun, step);
    const auto errors = run_ranks(ranks, [&](const CheckpointGroup& group) {
      ToyState state(ranks, group.rank, static_cast<int>(step));
      const SaveBuffers buffers(4 * 4096);  // so that a file has several pieces
      save_checkpoint(files, {.root = root, .keep_last = keep_last, .buffers = &buffers},
                      toy_meta(step, ranks), state.slices(), group);
    });
    if (!errors[0].empty()) return false;
    saved = step;
    return true;
  }

  /// Returns the step from which a new start would continue, or 0. Requires that the checkpoint
  /// holds that step's state.
  int64_t resume_step() {
    if (list_checkpoints(root).empty()) return 0;
    Checkpoint checkpoint(choose_checkpoint(root, std::nullopt, CheckpointGroup{}));
    checkpoint.check_complete();
    ToyState state(1, 0, 0);
    state.clear();
    checkpoint.read(state.slices());
    const int64_t step = checkpoint.meta().step;
    REQUIRE(state.equals(static_cast<int>(step)));
    return step;
  }
};

TEST_CASE(
    "a run that loses power at any moment finds what was reported as saved, or something newer") {
  int64_t states = 0, newer = 0, in_clean_up = 0, empty = 0;
  const int64_t wanted = requested_states(sweep_rounds(80));
  capture_log([&] {
    for (uint64_t seed = 1; states < wanted; ++seed) {
      SimulatedRun run(seed);
      for (int cut = 0; cut < 5 && states < wanted; ++cut) {
        INFO("seed " << seed << ", power cut " << cut);
        run.files.cut_power_at(static_cast<int64_t>(run.random() % 150));
        // A resumed run may reach the same step again.
        int64_t step = run.saved;
        while (run.save(++step) && step < run.saved + 5 && run.files.calls() < 150) {
        }
        run.files.restart(Survival::kRandom, run.random());
        if (run.random() % 3 == 0) {  // lose power again during the clean-up
          run.files.cut_power_at(static_cast<int64_t>(run.random() % 12));
          try {
            clean_checkpoints(run.files, run.root);
          } catch (const Error&) {
            ++in_clean_up;
          }
          run.files.restart(Survival::kRandom, run.random());
        }
        clean_checkpoints(run.files, run.root);
        const int64_t found = run.resume_step();
        REQUIRE(found >= run.saved);
        REQUIRE(found <= run.begun);
        newer += found > run.saved ? 1 : 0;
        empty += found == 0 ? 1 : 0;
        run.saved = run.begun = found;
        ++states;
      }
    }
  });
  CHECK(newer > 0);
  std::cout << "power cuts: " << states << " states, seeds from 1; " << newer
            << " found a checkpoint whose save had not returned, " << empty << " had none yet, "
            << in_clean_up << " lost power again while a start cleaned up\n";
}

}  // namespace
}  // namespace ftrun::testing
