#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "program/step_plan.h"

namespace ftrun {

/// GenerateOptions holds the options of generate_tokens().
struct GenerateOptions {
  int64_t tokens = 64;
  /// The temperature of the sampling; 0 always chooses the most likely token.
  double temperature = 0.0;
  uint64_t seed = 0;
  /// Token ids that end the text.
  std::vector<int64_t> stop_ids;
  /// The rank in the group that chooses each token, and whether this rank has the logits.
  int sampling_rank = 0;
  bool has_logits = true;
  /// A function that all ranks of the group call before each token; it returns true to end the
  /// text.
  std::function<bool()> should_stop;
};

/// Continues `prompt` with a generation program (plan_generation) and the executor that runs it:
/// each new token is one forward pass over the last tokens that fit a sequence. Returns the new
/// ids; logits that are not finite end the text. Ranks that compute together pass `group`. One of
/// them chooses for all, because CPUs of different types may round differently.
std::vector<int32_t> generate_tokens(Executor& executor, const ProgramPlan& plan,
                                     const RankMemory& memory, std::span<const int32_t> prompt,
                                     const GenerateOptions& options, Communicator* group = nullptr);

}  // namespace ftrun
