#include "checkpoint/disk_space.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/replace_folder.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/save.h"

namespace ftrun {
namespace {

/// CheckpointCounts counts the checkpoints that exist before the run, and those that the run adds.
struct CheckpointCounts {
  int64_t existing = 0;
  /// The number of future saves; the largest possible number if the end is not known.
  int64_t saves = 0;
  /// The maximum number of checkpoints that exist at once, minus those that exist before the run.
  int64_t additional = 0;
};

int64_t remaining_saves(const DiskSpaceNeeds& needs, int64_t steps_done) {
  if (needs.total_steps == 0)
    return needs.save_interval_steps == 0 && !needs.saves_by_minutes
               ? 1
               : std::numeric_limits<int32_t>::max();
  if (steps_done >= needs.total_steps) return 0;
  if (needs.saves_by_minutes) return needs.total_steps - steps_done;
  if (needs.save_interval_steps == 0) return 1;
  const bool last_is_extra = needs.total_steps % needs.save_interval_steps != 0;
  return needs.total_steps / needs.save_interval_steps - steps_done / needs.save_interval_steps +
         (last_is_extra ? 1 : 0);
}

CheckpointCounts count_checkpoints(const DiskSpaceNeeds& needs) {
  CheckpointCounts counts;
  int64_t last_step = 0;
  for (const CheckpointEntry& entry : list_checkpoints(needs.checkpoints_folder)) {
    ++counts.existing;
    last_step = std::max(last_step, entry.step);
  }
  counts.saves = remaining_saves(needs, last_step) + (needs.keep_best ? 1 : 0);
  // With keep_last 0 and an unknown number of steps, the next two checkpoints are counted.
  const bool open_end = needs.keep_last == 0 && (needs.total_steps == 0 || needs.saves_by_minutes);
  const int64_t last = std::min<int64_t>(needs.keep_last, std::numeric_limits<int32_t>::max());
  const int64_t at_once =
      last > 0 ? last + (needs.keep_best ? 2 : 1) : counts.existing + (open_end ? 2 : counts.saves);
  const int64_t at_peak = std::min(at_once, counts.existing + counts.saves) - counts.existing;
  counts.additional = std::max(at_peak, std::min<int64_t>(counts.saves, 1));
  return counts;
}

/// Computes the bytes of `count` checkpoints, at most kFreeUnknown, the size assumed for an unknown
/// file system.
int64_t bytes_of_checkpoints(int64_t count, const DiskSpaceNeeds& needs) {
  const bool counts = count <= kFreeUnknown / std::max<int64_t>(needs.checkpoint_bytes, 1);
  return counts ? count * needs.checkpoint_bytes : kFreeUnknown;
}

/// Returns the file system of a folder or, if it does not exist yet, of the folder in which it will
/// be made.
std::optional<dev_t> disk_of(std::string folder) {
  struct stat info {};
  while (::stat(folder.c_str(), &info) != 0) {
    const std::string parent = parent_folder(folder);
    if (parent == folder) return std::nullopt;
    folder = parent;
  }
  return info.st_dev;
}

std::string checkpoints_text(const DiskSpaceNeeds& needs, int64_t count) {
  return cat(count_text(count, "checkpoint"), " of ", human_bytes(needs.checkpoint_bytes));
}

std::string export_text(const DiskSpaceNeeds& needs) {
  return cat("the exported model of ", human_bytes(needs.export_bytes));
}

/// Describes the checkpoints that will be added to the existing ones, and the export.
std::string needs_text(const DiskSpaceNeeds& needs, const CheckpointCounts& count,
                       bool with_export) {
  std::string text = checkpoints_text(needs, count.additional);
  if (count.additional > 1 && needs.keep_last > 0)
    text += cat(" (keep_last ", needs.keep_last, needs.keep_best ? ", the best" : "",
                ", one under way, ", count.existing, " there)");
  return with_export ? cat(text, " and ", export_text(needs)) : text;
}

/// FreeSpace is the free space on a folder's file system once the run has started.
struct FreeSpace {
  int64_t bytes = 0;
  /// The bytes that the disk tier takes on this file system; `bytes` does not contain them.
  int64_t swap_bytes = 0;
};

/// Formats "FOLDER: WHAT: X needed, Y free"; with exact bytes as well if the two texts are equal.
std::string space_text(const std::string& folder, const std::string& what, int64_t needed_bytes,
                       FreeSpace free) {
  const int64_t free_bytes = std::max<int64_t>(free.bytes, 0);
  const bool same_text = human_bytes(needed_bytes) == human_bytes(free_bytes);
  const auto text = [&](int64_t bytes) {
    return same_text ? cat(human_bytes(bytes), " (", bytes, " B)") : human_bytes(bytes);
  };
  const std::string swap_text =
      free.swap_bytes == 0 ? ""
                           : cat(" beside ", human_bytes(free.swap_bytes), " of the disk tier");
  return cat(folder, ": ", what, ": ", text(needed_bytes), " needed, ", text(free_bytes), " free",
             swap_text);
}

/// Computes the free space for a folder; the start will remove `leftover` bytes from it.
FreeSpace find_free_space(FileSystem& files, const DiskSpaceNeeds& needs, const std::string& folder,
                          int64_t leftover) {
  const bool holds_swap = needs.swap_bytes > 0 && disk_of(needs.swap_folder) == disk_of(folder);
  const int64_t swap_bytes = holds_swap ? needs.swap_bytes : 0;
  return {files.free_bytes(folder) + leftover - swap_bytes, swap_bytes};
}

[[noreturn]] void refuse_without_space(const std::string& folder, const std::string& what,
                                       int64_t needed, FreeSpace free) {
  throw Error(ExitCode::kEnvironment, space_text(folder, what, needed, free),
              "free space on that file system, or write to another one (output_dir)");
}

void refuse_too_large_files(const DiskSpaceNeeds& needs) {
  if (needs.largest_file_bytes <= needs.file_size_limit) return;
  throw Error(ExitCode::kEnvironment,
              cat(needs.checkpoints_folder, ": the run will write a file of ",
                  human_bytes(needs.largest_file_bytes),
                  " or more, but the file size limit of this process (ulimit -f) is ",
                  human_bytes(needs.file_size_limit)),
              larger_files_remedy());
}

}  // namespace

std::string check_disk_space(FileSystem& files, const DiskSpaceNeeds& needs) {
  refuse_too_large_files(needs);
  const CheckpointCounts count = count_checkpoints(needs);
  const bool shares_disk =
      needs.export_bytes > 0 && disk_of(needs.checkpoints_folder) == disk_of(needs.export_folder);
  const int64_t export_bytes_here = shares_disk ? needs.export_bytes : 0;
  const int64_t old_export_bytes =
      needs.export_bytes > 0 ? export_leftover_bytes(files, needs.export_folder) : 0;
  const FreeSpace free =
      find_free_space(files, needs, needs.checkpoints_folder,
                      checkpoint_leftover_bytes(files, needs.checkpoints_folder) +
                          (shares_disk ? old_export_bytes : 0));
  const int64_t one_checkpoint_bytes =
      std::min<int64_t>(count.additional, 1) * needs.checkpoint_bytes;
  if (one_checkpoint_bytes > free.bytes)
    refuse_without_space(needs.checkpoints_folder, checkpoints_text(needs, 1), one_checkpoint_bytes,
                         free);
  // Existing checkpoints may have been removed by the time the model is exported.
  const int64_t freed_bytes = needs.keep_last > 0 ? count.existing * needs.checkpoint_bytes : 0;
  if (one_checkpoint_bytes + export_bytes_here > free.bytes + freed_bytes)
    refuse_without_space(needs.checkpoints_folder,
                         cat(checkpoints_text(needs, 1), " and ", export_text(needs)),
                         one_checkpoint_bytes + export_bytes_here, free);
  if (!shares_disk && needs.export_bytes > 0) {
    const FreeSpace export_disk_free =
        find_free_space(files, needs, needs.export_folder, old_export_bytes);
    if (needs.export_bytes > export_disk_free.bytes)
      refuse_without_space(needs.export_folder, export_text(needs), needs.export_bytes,
                           export_disk_free);
  }
  const int64_t total_bytes =
      std::min(bytes_of_checkpoints(count.additional, needs) + export_bytes_here, kFreeUnknown);
  if (total_bytes <= free.bytes) return "";
  return cat(space_text(needs.checkpoints_folder, needs_text(needs, count, shares_disk),
                        total_bytes, free),
             ": the run may end with a full disk");
}

}  // namespace ftrun
