#include "resource_checks.h"

#include <algorithm>
#include <optional>
#include <ostream>

#include "base/error.h"
#include "base/file.h"
#include "base/round_up.h"
#include "base/text.h"
#include "program/memory_plan.h"
#include "program/memory_savings.h"
#include "program/step_plan.h"
#include "storage/swap_folder.h"

namespace ftrun {
namespace {

/// The approximate bytes that the processes of a run use in addition to their plans: mainly
/// LibTorch's tables, which the ranks of a machine share.
constexpr int64_t kProcessBytes = 64 << 20;

std::string ranks_text(int64_t local_ranks) {
  return local_ranks == 1 ? "this rank" : cat("the ", local_ranks, " ranks of this machine");
}

/// Names the category that uses the most memory, with its bytes.
std::string largest_text(const MemoryPlan& plan) {
  int64_t largest = 0;
  std::string name;
  for (const Tier tier : {Tier::kDevice, Tier::kHost})
    for (size_t c = 0; c < kCategoryCount; ++c) {
      const auto category = static_cast<Category>(c);
      if (plan.at(tier).bytes_of(category) <= largest) continue;
      largest = plan.at(tier).bytes_of(category);
      name = category_name(category);
    }
  return cat(name, " ", human_bytes(largest), " per rank");
}

std::string needs_text(const MemoryPlan& plan, const MemoryMeasure& measure, int64_t local_ranks) {
  return cat(ranks_text(local_ranks), local_ranks == 1 ? " needs " : " need ",
             human_bytes(measure(plan) * local_ranks), " of main memory (",
             human_bytes(measure(plan)), " per rank; most of it ", largest_text(plan), ")");
}

/// Lists changes of the config that save memory. `lacking` is the number of bytes that the
/// `local_ranks` ranks of this machine need in total beyond what it has.
std::string remedy_for(const LoadedConfig& loaded, const MemoryMeasure& measure, int64_t lacking,
                       int64_t local_ranks) {
  return savings_remedy(list_memory_savings(loaded.config, *loaded.model, 0, measure),
                        divide_up(lacking, local_ranks));
}

/// Returns an Error, with a remedy, if the ranks of this machine need more memory than they can
/// get; otherwise nothing.
std::optional<Error> memory_problem(const LoadedConfig& loaded, const StepPlan& step,
                                    int64_t local_ranks, const MemoryLimit& limit) {
  const MemoryPlan plan = plan_memory(step);
  const MemoryMeasure measure = memory_measure_of(Tier::kHost, loaded.config);
  const int64_t rank_bytes = measure(plan);
  if (limit.total_bytes > 0 && rank_bytes * local_ranks > limit.total_bytes) {
    const std::string raise =
        limit.limited_by_group ? cat("; or raise the memory limit of ", limit.limited_by, " above ",
                                     human_bytes(rank_bytes * local_ranks + kProcessBytes))
                               : "";
    return Error(
        ExitCode::kEnvironment,
        cat(needs_text(plan, measure, local_ranks), ", ", limit.limited_by, " has ",
            human_bytes(limit.total_bytes)),
        remedy_for(loaded, measure, rank_bytes * local_ranks - limit.total_bytes, local_ranks) +
            raise);
  }
  // The address space that the engine itself maps is not counted, so that no run is refused that
  // might have worked.
  if (limit.process.counts_shared_memory && rank_bytes > limit.process.available_bytes)
    return Error(
        ExitCode::kEnvironment,
        cat(needs_text(plan, measure, 1), ", and ", human_bytes(limit.process.available_bytes),
            " are left of ", limit.process.limit_name),
        cat(remedy_for(loaded, measure, rank_bytes - limit.process.available_bytes, 1),
            "; or raise that limit"));
  return std::nullopt;
}

/// Returns the reason why the system may kill the ranks of this machine: their plans and the memory
/// of the program itself exceed `bytes`, which `what` describes ("only 1.00 GiB are free now").
/// Returns "" if they do not.
std::string scarce_memory_text(const LoadedConfig& loaded, const StepPlan& step,
                               int64_t local_ranks, int64_t bytes, const std::string& what) {
  const MemoryPlan plan = plan_memory(step);
  const MemoryMeasure measure = memory_measure_of(Tier::kHost, loaded.config);
  if (measure(plan) * local_ranks + kProcessBytes <= bytes) return "";
  return cat(needs_text(plan, measure, local_ranks), ", plus about ", human_bytes(kProcessBytes),
             " for the program itself, but ", what, ": the system may kill the run");
}

/// Returns an Error if the folder cannot be used, or if its disk is too full. In the second case
/// the remedy lists changes of the config that need less space.
std::optional<Error> folder_problem(const LoadedConfig& loaded, const std::string& folder,
                                    int64_t bytes, int64_t local_ranks) {
  if (const auto unusable = swap_folder_problem(folder)) return unusable;
  const auto full = swap_folder_problem(folder, bytes);
  if (!full) return std::nullopt;
  const MemoryMeasure on_disk = memory_measure_of(Tier::kDisk, loaded.config);
  return Error(
      full->code(), full->message(),
      cat(full->remedy(), "; ",
          remedy_for(loaded, on_disk, bytes - posix_files().free_bytes(folder), local_ranks)));
}

}  // namespace

int64_t local_ranks(const LoadedConfig& loaded, const LaunchEnvironment& launch) {
  if (launch.is_rank() && launch.world_size > 1 && launch.local_size > 0) return launch.local_size;
  return std::max<int64_t>(1, loaded.ranks / std::max(1, launch.nodes));
}

std::optional<Error> disk_problem(const LoadedConfig& loaded, const StepPlan& plan,
                                  int64_t local_ranks) {
  const int64_t bytes = plan_memory(plan).at(Tier::kDisk).total * local_ranks;
  if (bytes == 0) return std::nullopt;
  const ZeroConfig& zero = loaded.config.zero;
  const auto problem = folder_problem(loaded, disk_folder(zero), bytes, local_ranks);
  if (!problem) return std::nullopt;
  const bool optimizer = zero.offload_optimizer.device == OffloadDevice::kNvme;
  const std::string key =
      cat("zero_optimization.", optimizer ? "offload_optimizer" : "offload_param", ".nvme_path");
  const std::string position = to_text(loaded.config.origins.position(key));
  return Error(problem->code(), cat(position, position.empty() ? "" : ": ", problem->message()),
               problem->remedy());
}

std::string check_memory(const LoadedConfig& loaded, const StepPlan& step, int64_t local_ranks,
                         const MemoryLimit& limit) {
  if (const auto problem = disk_problem(loaded, step, local_ranks)) throw *problem;
  if (const auto problem = memory_problem(loaded, step, local_ranks, limit))
    throw Error(problem->code(), cat("the run does not fit into memory: ", problem->message()),
                problem->remedy());
  if (limit.total_bytes == 0) return "";
  return scarce_memory_text(loaded, step, local_ranks, limit.available_bytes,
                            cat("only ", human_bytes(limit.available_bytes), " of ",
                                human_bytes(limit.total_bytes), " are free now"));
}

bool print_machine_problems(std::ostream& out, const LoadedConfig& loaded, const StepPlan& plan,
                            int64_t local_ranks, const MemoryLimit& limit) {
  const auto problems = {memory_problem(loaded, plan, local_ranks, limit),
                         disk_problem(loaded, plan, local_ranks)};
  for (const std::optional<Error>& problem : problems)
    if (problem)
      out << "notice: this machine cannot run the config: " << problem->message()
          << "\n  remedy: " << problem->remedy() << '\n';
  if (std::ranges::any_of(problems,
                          [](const std::optional<Error>& problem) { return problem.has_value(); }))
    return true;
  // The total memory is compared, not the memory that is free now, because the run may start at
  // another time.
  const std::string warning =
      limit.total_bytes == 0
          ? ""
          : scarce_memory_text(loaded, plan, local_ranks, limit.total_bytes,
                               cat(limit.limited_by, " has ", human_bytes(limit.total_bytes)));
  if (!warning.empty()) out << "notice: on this machine: " << warning << '\n';
  return false;
}

}  // namespace ftrun
