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

int64_t remaining_saves(const DiskSpaceNeeds& wanted, int64_t done) {
  if (wanted.steps == 0)
    return wanted.every == 0 && !wanted.by_minutes ? 1 : std::numeric_limits<int32_t>::max();
  if (done >= wanted.steps) return 0;
  if (wanted.by_minutes) return wanted.steps - done;
  if (wanted.every == 0) return 1;
  const bool last_is_extra = wanted.steps % wanted.every != 0;
  return wanted.steps / wanted.every - done / wanted.every + (last_is_extra ? 1 : 0);
}

CheckpointCounts count_checkpoints(const DiskSpaceNeeds& wanted) {
  CheckpointCounts found;
  int64_t done = 0;
  for (const CheckpointEntry& entry : list_checkpoints(wanted.checkpoints)) {
    ++found.existing;
    done = std::max(done, entry.step);
  }
  found.saves = remaining_saves(wanted, done) + (wanted.keep_best ? 1 : 0);
  // With keep_last 0 and an unknown number of steps, the next two checkpoints are counted.
  const bool open_end = wanted.keep_last == 0 && (wanted.steps == 0 || wanted.by_minutes);
  const int64_t last = std::min<int64_t>(wanted.keep_last, std::numeric_limits<int32_t>::max());
  const int64_t at_once =
      last > 0 ? last + (wanted.keep_best ? 2 : 1) : found.existing + (open_end ? 2 : found.saves);
  const int64_t at_peak = std::min(at_once, found.existing + found.saves) - found.existing;
  found.additional = std::max(at_peak, std::min<int64_t>(found.saves, 1));
  return found;
}

/// Computes the bytes of `count` checkpoints, at most kFreeUnknown, the size assumed for an unknown
/// file system.
int64_t bytes_of(int64_t count, const DiskSpaceNeeds& wanted) {
  const bool counts = count <= kFreeUnknown / std::max<int64_t>(wanted.checkpoint_bytes, 1);
  return counts ? count * wanted.checkpoint_bytes : kFreeUnknown;
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

std::string checkpoints_text(const DiskSpaceNeeds& wanted, int64_t count) {
  return cat(count_text(count, "checkpoint"), " of ", human_bytes(wanted.checkpoint_bytes));
}

std::string export_text(const DiskSpaceNeeds& wanted) {
  return cat("the exported model of ", human_bytes(wanted.export_bytes));
}

/// Describes the checkpoints that will be added to the existing ones, and the export.
std::string wanted_text(const DiskSpaceNeeds& wanted, const CheckpointCounts& count,
                        bool with_export) {
  std::string text = checkpoints_text(wanted, count.additional);
  if (count.additional > 1 && wanted.keep_last > 0)
    text += cat(" (keep_last ", wanted.keep_last, wanted.keep_best ? ", the best" : "",
                ", one under way, ", count.existing, " there)");
  return with_export ? cat(text, " and ", export_text(wanted)) : text;
}

/// FreeSpace is the free space on a folder's file system once the run has started.
struct FreeSpace {
  int64_t bytes = 0;
  /// The bytes that the disk tier takes on this file system; `bytes` does not contain them.
  int64_t swapped = 0;
};

/// Formats "FOLDER: WHAT: X needed, Y free"; with exact bytes as well if the two texts are equal.
std::string space_text(const std::string& folder, const std::string& what, int64_t needed,
                       FreeSpace free) {
  const int64_t left = std::max<int64_t>(free.bytes, 0);
  const bool alike = human_bytes(needed) == human_bytes(left);
  const auto text = [&](int64_t bytes) {
    return alike ? cat(human_bytes(bytes), " (", bytes, " B)") : human_bytes(bytes);
  };
  const std::string beside =
      free.swapped == 0 ? "" : cat(" beside ", human_bytes(free.swapped), " of the disk tier");
  return cat(folder, ": ", what, ": ", text(needed), " needed, ", text(left), " free", beside);
}

/// Computes the free space for a folder; the start will remove `leftover` bytes from it.
FreeSpace free_bytes(FileSystem& files, const DiskSpaceNeeds& wanted, const std::string& folder,
                     int64_t leftover) {
  const bool shared = wanted.swap_bytes > 0 && disk_of(wanted.swap) == disk_of(folder);
  const int64_t swapped = shared ? wanted.swap_bytes : 0;
  return {files.free_bytes(folder) + leftover - swapped, swapped};
}

[[noreturn]] void refuse_without_space(const std::string& folder, const std::string& what,
                                       int64_t needed, FreeSpace free) {
  throw Error(ExitCode::kEnvironment, space_text(folder, what, needed, free),
              "free space on that file system, or write to another one (output_dir)");
}

void refuse_too_large_files(const DiskSpaceNeeds& wanted) {
  if (wanted.largest_file_bytes <= wanted.file_size_limit) return;
  throw Error(ExitCode::kEnvironment,
              cat(wanted.checkpoints, ": the run will write a file of ",
                  human_bytes(wanted.largest_file_bytes),
                  " or more, but the file size limit of this process (ulimit -f) is ",
                  human_bytes(wanted.file_size_limit)),
              larger_files_remedy());
}

}  // namespace

std::string check_disk_space(FileSystem& files, const DiskSpaceNeeds& wanted) {
  refuse_too_large_files(wanted);
  const CheckpointCounts count = count_checkpoints(wanted);
  const bool together =
      wanted.export_bytes > 0 && disk_of(wanted.checkpoints) == disk_of(wanted.exported);
  const int64_t exported = together ? wanted.export_bytes : 0;
  const int64_t old_export =
      wanted.export_bytes > 0 ? export_leftover_bytes(files, wanted.exported) : 0;
  const FreeSpace free = free_bytes(
      files, wanted, wanted.checkpoints,
      checkpoint_leftover_bytes(files, wanted.checkpoints) + (together ? old_export : 0));
  const int64_t one = std::min<int64_t>(count.additional, 1) * wanted.checkpoint_bytes;
  if (one > free.bytes)
    refuse_without_space(wanted.checkpoints, checkpoints_text(wanted, 1), one, free);
  // Existing checkpoints may have been removed by the time the model is exported.
  const int64_t freed = wanted.keep_last > 0 ? count.existing * wanted.checkpoint_bytes : 0;
  if (one + exported > free.bytes + freed)
    refuse_without_space(wanted.checkpoints,
                         cat(checkpoints_text(wanted, 1), " and ", export_text(wanted)),
                         one + exported, free);
  if (!together && wanted.export_bytes > 0) {
    const FreeSpace there = free_bytes(files, wanted, wanted.exported, old_export);
    if (wanted.export_bytes > there.bytes)
      refuse_without_space(wanted.exported, export_text(wanted), wanted.export_bytes, there);
  }
  const int64_t all = std::min(bytes_of(count.additional, wanted) + exported, kFreeUnknown);
  if (all <= free.bytes) return "";
  return cat(space_text(wanted.checkpoints, wanted_text(wanted, count, together), all, free),
             ": the run may end with a full disk");
}

}  // namespace ftrun
