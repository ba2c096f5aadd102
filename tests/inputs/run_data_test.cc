#include "inputs/run_data.h"

#include <utility>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("tensor and context ranks read the same sequences, data-parallel ranks different ones") {
  Config config;
  config.train_micro_batch_size_per_gpu = 3;
  config.gradient_accumulation_steps = 5;
  StepPlan plan;
  StateOptions& state = plan.options.state;
  state.replicas = 2;
  state.data.count = 3;
  state.context.count = 4;
  state.tensor.count = 2;
  int reader = 0;
  for (state.replica = 0; state.replica < 2; ++state.replica)
    for (state.data.index = 0; state.data.index < 3; ++state.data.index, ++reader)
      for (state.context.index = 0; state.context.index < 4; ++state.context.index)
        for (state.tensor.index = 0; state.tensor.index < 2; ++state.tensor.index) {
          const LoaderOptions options = loader_options(config, plan, 0, 1);
          CHECK(options.layout.micro_batch_size == 3);
          CHECK(options.layout.micro_batches == 5);
          CHECK(options.layout.ranks == 6);
          CHECK(options.rank == reader);
        }
  CHECK(reader == 6);
}

}  // namespace
}  // namespace ftrun
