#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/open.h"
#include "exec/executor.h"
#include "exec/memory.h"
#include "exec/model_state.h"
#include "exec/optimizer_plan.h"
#include "program/step_plan.h"

namespace ftrun::fixtures {

/// Two layers of hidden 16, four query and two key/value heads of 4, 32 rows of vocabulary.
ModelConfig small_model(bool tied = false);

/// Rows of 8 tokens, two in a micro-batch, two micro-batches in a step.
Config small_run();

/// What a rank of a small run holds: memory, executors and state, with random weights that are the
/// same on every rank.
struct RankRig {
  RankRig(const Config& config, const ModelConfig& model, Communicator& group);

  /// One training step on random batches, which depend on `step` and the rank.
  StepRun train(int64_t step);

  Config config;
  StepPlan plan;
  RankMemory memory;
  Executor trainer;
  Executor evaluator;
  ModelState state;
  int rank;
  /// Storage of the last step's batches.
  std::vector<Batch> batches;
};

/// Tokens from a counter-based generator; labels are the tokens moved by one.
Batch random_batch(const BatchShape& shape, uint64_t seed);

/// Numbers in about [-0.2, 0.2), different for each element.
void fill_random(const std::vector<StateSlice>& slices, uint64_t seed);

/// A communicator of one rank, and what it needs.
struct Alone {
  Alone();
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<Communicator> group;
};

/// Runs `body` on a thread a rank, with a communicator of all; returns what each threw ("").
/// A long heartbeat keeps the rendezvous' own threads still, for tests that count allocations.
std::vector<std::string> on_ranks(
    int world, const std::function<void(Rendezvous&, Communicator&)>& body,
    std::chrono::milliseconds heartbeat = std::chrono::milliseconds(100));

/// The message of what `work` throws; "" for nothing.
std::string message_of(const std::function<void()>& work);

}  // namespace ftrun::fixtures
