#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/json_strict.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

CheckpointEntry read_entry(const std::string& folder, int64_t step) {
  CheckpointEntry entry{folder, step, -1, ""};
  try {
    entry.serial = Checkpoint(folder).manifest().serial;
  } catch (const Error& error) {
    entry.problem = error.message();
  }
  return entry;
}

/// Returns the first problem in this rank's share of the files or, on rank 0, an incomplete state;
/// "" if there is none.
std::string find_problem_in_share(const std::string& folder, const CheckpointGroup& group) {
  try {
    Checkpoint checkpoint(folder);
    if (group.rank == 0) checkpoint.check_complete();
    const size_t count = checkpoint.manifest().files.size();
    for (size_t i = static_cast<size_t>(group.rank); i < count;
         i += static_cast<size_t>(group.world_size))
      checkpoint.verify_file(i);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

/// Returns the first problem that any rank found, "" if there is none. Collective.
std::string find_problem(const std::string& folder, const CheckpointGroup& group) {
  const auto problems = run_on_all_ranks(group, cat("verifying ", folder),
                                         [&] { return find_problem_in_share(folder, group); });
  const auto first_problem =
      std::find_if(problems.begin(), problems.end(),
                   [](const std::string& problem) { return !problem.empty(); });
  return first_problem == problems.end() ? "" : *first_problem;
}

/// Returns the folders' names as rank 0 lists them, so that all ranks try the same folders in the
/// same order.
std::vector<std::string> agree_on_folders(const std::string& root, std::optional<int64_t> step,
                                          const CheckpointGroup& group) {
  const auto texts = run_on_all_ranks(group, cat("listing ", root), [&]() -> std::string {
    if (group.rank != 0) return "";
    if (step) return step_folder_name(*step);
    std::vector<std::string> names;
    for (const CheckpointEntry& entry : list_checkpoints(root))
      names.push_back(fs::path(entry.folder).filename().string());
    return join(names, "\n");
  });
  return texts[0].empty() ? std::vector<std::string>{} : split(texts[0], '\n');
}

void warn_about_latest(const std::string& root, const std::string& chosen_folder) {
  std::error_code error;
  const std::string path = root + "/latest";
  if (!fs::exists(path, error)) return;
  const std::string latest_folder = read_file(path);
  if (latest_folder != chosen_folder)
    log_warning(cat(path, ": names ", printable_text(latest_folder),
                    "; the newest good checkpoint is ", chosen_folder));
}

/// Warns on rank 0 if `latest` names another checkpoint. Collective: if rank 0 fails, no rank
/// continues. Only rank 0's `step` counts: after a restart the ranks of another node may have a
/// different one.
void check_latest(const std::string& root, const std::string& chosen_folder,
                  std::optional<int64_t> step, const CheckpointGroup& group) {
  run_on_all_ranks(group, cat("resuming from ", chosen_folder), [&]() -> std::string {
    if (group.rank == 0 && !step) warn_about_latest(root, chosen_folder);
    return "";
  });
}

/// Lists the steps that a run can resume from: "2, 4, 6".
std::string saved_steps_text(const std::string& root) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(root))
    if (entry.problem.empty()) steps.push_back(entry.step);
  std::sort(steps.begin(), steps.end());
  return join_numbers(steps, ", ");
}

/// Refuses a step that was never saved or has been removed since.
void refuse_absent_step(const std::string& root, int64_t step) {
  std::error_code error;
  const std::string saved_steps = saved_steps_text(root);
  if (saved_steps.empty() || fs::exists(fs::path(root) / step_folder_name(step), error)) return;
  throw Error(ExitCode::kBadInput, cat(root, ": holds no checkpoint of step ", step),
              cat("give one of the saved steps: ", saved_steps,
                  "; or --resume auto for the newest good one"));
}

[[noreturn]] void refuse_without_good_checkpoint(const std::string& root,
                                                 const std::vector<std::string>& problems,
                                                 std::optional<int64_t> step) {
  if (problems.empty())
    throw Error(ExitCode::kBadInput, cat(root, ": holds no checkpoint"),
                "start without --resume, or give the output_dir of the run to continue");
  if (step) refuse_absent_step(root, *step);
  throw Error(ExitCode::kBadInput,
              cat(step ? "the checkpoint cannot be used: " : "no checkpoint can be used: ",
                  join(problems, "\n  ")),
              step ? "resume from another step, or with --resume auto from the newest good one"
                   : "restore the files from a copy, or start a new run in another folder");
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(const std::string& root) {
  std::error_code error;
  if (!fs::is_directory(root, error)) return {};
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : posix_files().list(root)) {
    const auto step = step_of_folder(name);
    if (step) entries.push_back(read_entry((fs::path(root) / name).string(), *step));
  }
  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::pair(a.serial, a.step) > std::pair(b.serial, b.step);
  });
  return entries;
}

std::string choose_checkpoint(const std::string& root, std::optional<int64_t> step,
                              const CheckpointGroup& group) {
  std::vector<std::string> problems;
  for (const std::string& name : agree_on_folders(root, step, group)) {
    const std::string folder = (fs::path(root) / name).string();
    const std::string problem = find_problem(folder, group);
    if (problem.empty()) {
      check_latest(root, name, step, group);
      return folder;
    }
    problems.push_back(problem);
    if (group.rank == 0 && !step) log_error(cat("checkpoint ", name, " is skipped: ", problem));
  }
  refuse_without_good_checkpoint(root, problems, step);
}

}  // namespace ftrun
