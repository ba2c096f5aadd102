#include "exec/setup.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "program/savings.h"
#include "report/machine.h"

namespace ftrun {
namespace {

/// Longest row that a sample of generated text is computed with.
constexpr int64_t kGenerationTokens = 128;

/// Tokens of the row that texts are computed in: no longer than the longest text, as each of its tokens costs a pass
/// over the whole row.
int64_t text_tokens(const GenerateConfig& wanted, const ModelDescription& trained) {
  const int64_t most = std::min(kGenerationTokens, trained.batch.row_tokens);
  const int64_t longest = std::min(wanted.prompt_tokens, most) + std::min(wanted.tokens, most);
  // In whole shares of the tensor-parallel ranks, which split the row as they do in training.
  const int64_t ranks = trained.split.degree;
  return std::min((longest + ranks - 1) / ranks * ranks, most);
}

/// Where the disk tier lies: one file holds parameters and optimizer state.
SwapOptions swap_options(const Config& config, const std::string& run, int rank) {
  SwapOptions swap;
  swap.folder = disk_folder(config.zero);
  swap.name = cat(run, "-rank", rank);
  swap.aio.block_size = config.aio.block_size;
  swap.aio.queue_depth = static_cast<int>(config.aio.queue_depth);
  swap.aio.intra_op_parallelism = static_cast<int>(config.aio.intra_op_parallelism);
  swap.aio.single_submit = config.aio.single_submit;
  swap.aio.overlap_events = config.aio.overlap_events;
  return swap;
}

/// What the process holds before it has anything of the model, once its libraries have their threads
/// and working memory, and saving its own: else these would come with the first step and look like the model's.
int64_t held_when_warm(const Gpu* gpu, SaveRoom& room) {
  room.populate();
  if (gpu == nullptr) {
    const HostBlock operands(kWarmUpBytes, "the first product");
    warm_up_products(operands.data());
  }
  return read_process_memory().held();
}

/// Before the memory of training is asked for.
void prepare(const Gpu* gpu, const ProgramPlan& plan) {
  if (gpu == nullptr) return;
  for (const LayerGraph& graph : plan.model.graphs) gpu->kernels().prepare(graph);
}

}  // namespace

PlannedModel::PlannedModel(const Config& from, int rank)
    : folder(from.model.path),
      config(parse_model_config(folder.config_json(), folder.path() + "/config.json")),
      plan(plan_steps(from, config, rank)) {}

TrainingSetup::TrainingSetup(const Config& config, PlannedModel model, const RankGroups& groups,
                             const std::string& run, Gpu* gpu)
    : groups_(groups),
      model_(std::move(model)),
      text_tokens_(text_tokens(config.train.generate, model_.plan.train.model)),
      held_before_(held_when_warm(gpu, save_room_)),
      memory_(groups.peer_visible(), swap_options(config, run, groups.rank()), [&, gpu](Tier tier) {
        // On a processor, device and host tier are the same memory.
        const bool main_memory = gpu == nullptr && tier != Tier::kNvme;
        const MemoryMeasure measure = [=](const MemoryPlan& plan) {
          return main_memory ? plan.main_memory() : plan.at(tier).total;
        };
        return savings_remedy(
            memory_savings(config, model_.config, groups_.rank(), measure));
      }, gpu) {
  prepare(gpu, model_.plan.train);
  prepare(gpu, model_.plan.evaluate);
  memory_.allocate(model_.plan.train.program);
  memory_.allocate(model_.plan.evaluate.program);
  train_executor_ =
      std::make_unique<Executor>(model_.plan.train.program, model_.plan.train.model, memory_, groups_);
  evaluate_executor_ =
      std::make_unique<Executor>(model_.plan.evaluate.program, model_.plan.evaluate.model, memory_, groups_);
  state_ = std::make_unique<ModelState>(model_.plan.train, model_.plan.partition, memory_,
                                        optimizer_state_kinds(config.optimizer));
}

TrainingSetup::TextGenerator& TrainingSetup::text_generator() {
  if (text_generator_) return *text_generator_;
  auto generator = std::make_unique<TextGenerator>();
  generator->plan = plan_logits(model_.config, model_.plan, text_tokens_);
  // The executors hold addresses in the arenas, so these may not move.
  for (size_t i = 0; i < kArenaCount; ++i) {
    const int64_t needed = generator->plan.program.arena_bytes[i];
    const int64_t there = memory_.arena_bytes(static_cast<Arena>(i));
    if (needed > there)
      throw Error(ExitCode::kEnvironment,
                  cat("it needs ", human_bytes(needed),
                      " of temporary buffers, a step of training has ", human_bytes(there)));
  }
  memory_.allocate(generator->plan.program);
  prepare(memory_.gpu(), generator->plan);
  generator->executor =
      std::make_unique<Executor>(generator->plan.program, generator->plan.model, memory_, groups_);
  text_generator_ = std::move(generator);
  return *text_generator_;
}

}  // namespace ftrun
