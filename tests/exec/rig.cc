#include "rig.h"

#include <numeric>
#include <thread>

namespace ftrun::fixtures {
namespace {

/// SplitMix64.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr int64_t kRows = 32;

RankMemory& allocated(RankMemory& memory, const StepPlan& plan) {
  memory.allocate(plan.train.program);
  memory.allocate(plan.evaluate.program);
  return memory;
}

}  // namespace

ModelConfig small_model(bool tied) {
  ModelConfig c;
  c.family = "llama";
  c.vocab_rows = kRows;
  c.hidden = 16;
  c.feed_forward = 24;
  c.layers = 2;
  c.query_heads = 4;
  c.kv_heads = 2;
  c.head_size = 4;
  c.tied = tied;
  c.windows = {0, 0};
  return c;
}

Config small_run() {
  Config config;
  config.data.sequence_length = 8;
  config.train_micro_batch_size_per_gpu = 2;
  config.gradient_accumulation_steps = 2;
  config.optimizer.type = OptimizerType::kAdamW;
  config.optimizer.lr = 1e-2;
  config.scheduler.type = SchedulerType::kConstant;
  return config;
}

Batch random_batch(const BatchShape& shape, uint64_t seed) {
  const auto positions = static_cast<size_t>(shape.rows * shape.row_tokens);
  Batch batch;
  batch.tokens.resize(positions);
  batch.labels.resize(positions);
  batch.positions.resize(positions);
  batch.starts.assign(positions, 0);
  for (size_t i = 0; i < positions; ++i) {
    batch.tokens[i] = static_cast<int32_t>(mixed(seed * 1000 + i) % kRows);
    batch.labels[i] = static_cast<int32_t>(mixed(seed * 1000 + i + 1) % kRows);
    batch.positions[i] = static_cast<int32_t>(i % static_cast<size_t>(shape.row_tokens));
  }
  batch.counted_tokens = static_cast<int64_t>(positions);
  return batch;
}

void fill_random(const std::vector<StateSlice>& slices, uint64_t seed) {
  uint64_t at = seed << 32;
  for (const StateSlice& slice : slices) {
    auto* to = static_cast<float*>(slice.data);
    for (int64_t i = 0; i < slice.end - slice.begin; ++i)
      to[i] = static_cast<float>(static_cast<double>(mixed(at++) >> 11) * 0x1p-53 * 0.4 - 0.2);
  }
}

RankRig::RankRig(const Config& from, const ModelConfig& model, Communicator& group)
    : config(from),
      plan(plan_steps(config, model)),
      memory(group),
      trainer(plan.train.program, plan.train.model, allocated(memory, plan), group),
      evaluator(plan.evaluate.program, plan.evaluate.model, memory, group),
      state(plan.train.model, plan.partition, memory, optimizer_state_kinds(config.optimizer)),
      rank(group.rank()) {
  std::vector<StateSlice> weights;
  for (const StateSlice& slice : state.slices(0, 1))
    if (slice.kind == "param") weights.push_back(slice);
  fill_random(weights, 1);
}

StepRun RankRig::train(int64_t step) {
  batches.resize(static_cast<size_t>(config.gradient_accumulation_steps));
  for (size_t slot = 0; slot < batches.size(); ++slot)
    batches[slot] =
        random_batch(plan.train.model.batch,
                     static_cast<uint64_t>(step) * 100 + slot * 10 + static_cast<uint64_t>(rank));
  StepRun run;
  run.micro_batches = batches;
  run.scalars = step_scalars_of(config.optimizer, config.scheduler, step);
  run.scalars.loss_scale = 0.01F;
  run.clip_norm = 1.0;
  run.optimizer = optimizer_options(config.optimizer);
  trainer.run(run);
  return run;
}

Alone::Alone() {
  rendezvous = std::move(Rendezvous::in_process(1).front());
  group = open_communicator(*rendezvous, "data", {0}, {});
}

std::vector<std::string> on_ranks(int world,
                                  const std::function<void(Rendezvous&, Communicator&)>& body,
                                  std::chrono::milliseconds heartbeat) {
  auto all = Rendezvous::in_process(world, std::chrono::seconds(20), heartbeat);
  std::vector<int> members(static_cast<size_t>(world));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::string> failures(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < all.size(); ++rank)
    threads.emplace_back([&, rank] {
      failures[rank] = message_of([&] {
        const auto group =
            open_communicator(*all[rank], "data", members, {.timeout = std::chrono::seconds(20)});
        body(*all[rank], *group);
      });
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace ftrun::fixtures
