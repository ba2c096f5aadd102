#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "program/step_plan.h"

namespace ftrun {

struct GenerateOptions {
  int64_t tokens = 64;
  /// 0 takes the likeliest token each time.
  double temperature = 0.0;
  uint64_t seed = 0;
  /// Ids that end the text.
  std::vector<int64_t> stop_ids;
  /// The rank, of those that compute together, that chooses each token, and whether this rank has
  /// logits.
  int chooser = 0;
  bool has_logits = true;
  /// A question asked before each token by all ranks that compute together: true ends the text.
  std::function<bool()> stop;
};

/// Continues `prompt` with a logits program (plan_logits) and the executor that runs it: each new
/// token is one forward pass over the last tokens that fit the row. Returns the new ids; logits
/// that are not finite end the text. Ranks that compute together give `group`, and one of them
/// chooses for all: processors of another kind may round otherwise.
std::vector<int32_t> generate(Executor& executor, const ProgramPlan& logits,
                              const RankMemory& memory, std::span<const int32_t> prompt,
                              const GenerateOptions& options, Communicator* group = nullptr);

}  // namespace ftrun
