#include "engine/setup.h"

#include <malloc.h>

#include <utility>

#include "base/error.h"
#include "base/machine_info.h"
#include "config/model_name.h"
#include "inputs/weights_check.h"
#include "kernels/kernels.h"
#include "program/memory_savings.h"

namespace ftrun {
namespace {

/// Chooses where the disk tier lies: one file holds parameters and optimizer state.
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

/// Makes the libraries allocate their threads and working memory, and allocates the save buffers:
/// otherwise the first step would allocate these, and they would count as memory of the model.
/// Returns the bytes that the process holds afterwards.
int64_t warm_up(const Gpu* gpu, DType compute_dtype, SaveBuffers& buffers) {
  buffers.allocate_pages();
  if (gpu == nullptr) {
    const HostBlock operands(warm_up_bytes(), "the first matrix multiplication");
    warm_up_matmul(compute_dtype, operands.data());
  }
  return read_process_memory().held_bytes();
}

/// Lets a GPU prepare the graphs of a program. This comes before training memory is allocated.
void prepare_graphs(const Gpu* gpu, const ProgramPlan& plan) {
  if (gpu == nullptr) return;
  for (const LayerGraph& graph : plan.model.graphs) gpu->kernels().prepare(graph);
}

}  // namespace

PlannedModel::PlannedModel(const Config& from, int rank)
    : folder(folder_of(from.model)),
      config(parse_model_config(folder.config_json(), folder.path() + "/config.json")),
      plan(plan_steps(from, config, rank)) {
  map_to_model_names(folder, plan.train.model, /*logs_notices=*/rank == 0);
}

TrainingSetup::TrainingSetup(const Config& config, PlannedModel model,
                             const RankCommunicators& communicators, const std::string& run,
                             Gpu* gpu)
    : communicators_(communicators),
      model_(std::move(model)),
      baseline_bytes_(warm_up(gpu, train_plan().model.dtypes.compute, save_buffers_)),
      memory_(
          communicators.shared_memory_communicator(),
          swap_options(config, run, communicators.rank()),
          [&, gpu](Tier tier, int64_t lacking) {
            return savings_remedy(
                list_memory_savings(config, model_.config, communicators_.rank(),
                                    memory_measure_of(tier, /*shares_memory=*/gpu == nullptr)),
                lacking);
          },
          gpu) {
  for (const ProgramPlan* plan : model_.plan.program_plans()) prepare_graphs(gpu, *plan);
  if (gpu != nullptr)
    kernel_comparison_ = compare_kernels(config, model_.config, communicators_.rank(), *gpu);
  // All programs are allocated before any executor is made, because executors hold addresses in the
  // arenas.
  for (const ProgramPlan* plan : model_.plan.program_plans()) memory_.allocate(plan->program);
  train_executor_ = make_executor(train_plan());
  evaluation_executor_ = make_executor(evaluation_plan());
  if (plan().generation) generation_executor_ = make_executor(generation_plan());
  state_ = std::make_unique<ModelState>(model_.plan, memory_);
  if (gpu != nullptr) return;
  // The tiers are allocated, but almost none of their pages are touched yet. Memory that planning
  // has freed is first returned to the system: it would count here, although the run may use it
  // again.
  ::malloc_trim(0);
  baseline_bytes_ = read_process_memory().held_bytes() -
                    memory_.touched_bytes(Tier::kDevice).total -
                    memory_.touched_bytes(Tier::kHost).total;
}

std::unique_ptr<Executor> TrainingSetup::make_executor(const ProgramPlan& plan) {
  return std::make_unique<Executor>(plan.program, plan.model, memory_, communicators_);
}

void TrainingSetup::drop_captures() {
  for (Executor* executor :
       {train_executor_.get(), evaluation_executor_.get(), generation_executor_.get()})
    if (executor != nullptr) executor->drop_captures();
}

}  // namespace ftrun
