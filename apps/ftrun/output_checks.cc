#include "output_checks.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/limit_remedies.h"
#include "checkpoint/disk_space.h"
#include "inputs/export_options.h"
#include "program/memory_plan.h"
#include "report/run_folder.h"

namespace ftrun {
namespace {

void check_writable(const RunPaths& paths) {
  for (const std::string& folder : {paths.root(), paths.checkpoints(), paths.exported()}) {
    const std::string why = writing_problem(folder);
    if (!why.empty())
      throw Error(ExitCode::kEnvironment, cat("output_dir ", paths.root(), ": ", why),
                  "give this user the right to write there, or choose another output_dir");
  }
}

DiskSpaceNeeds disk_space_needs(const Config& config, const RunPaths& paths, const StepPlan& plan) {
  DiskSpaceNeeds needs;
  needs.checkpoints_folder = paths.checkpoints();
  needs.checkpoint_bytes = checkpoint_bytes(plan);
  needs.keep_last = config.checkpoint.keep_last;
  needs.keep_best = !config.checkpoint.keep_best.metric.empty();
  needs.save_interval_steps = config.checkpoint.every;
  needs.saves_by_minutes = config.checkpoint.every_minutes > 0;
  needs.total_steps = config.train.steps;
  return needs;
}

}  // namespace

std::string check_outputs(const LoadedConfig& loaded, const StepPlan& plan, int64_t local_ranks,
                          OutputCheck check) {
  const Config& config = loaded.config;
  const RunPaths paths(config.output_dir);
  refuse_non_folder(paths.root());
  check_writable(paths);
  DiskSpaceNeeds space = disk_space_needs(config, paths, plan);
  space.file_size_limit = file_size_limit();
  // Each rank writes one file of a checkpoint.
  space.largest_file_bytes = space.checkpoint_bytes / std::max<int64_t>(1, loaded.ranks);
  space.swap_bytes = plan_memory(plan).at(Tier::kDisk).total * local_ranks;
  if (space.swap_bytes > 0) space.swap_folder = disk_folder(config.zero);
  if (config.model_export.enabled) {
    const ExportOptions options = export_options(config, *loaded.model);
    const std::vector<ExportTensor> tensors = export_tensors(options, plan.train.model);
    check_export_folder(posix_files(), options, check);
    space.export_folder = options.folder;
    space.export_bytes = export_bytes(options, tensors);
    // Files are filled one after another; each file except the last is at least half full.
    const bool one_file =
        options.format == ExportFormat::kAdapter || space.export_bytes <= options.shard_bytes;
    space.largest_file_bytes =
        std::max(space.largest_file_bytes, one_file ? space.export_bytes : options.shard_bytes / 2);
  }
  return check_disk_space(posix_files(), space);
}

}  // namespace ftrun
