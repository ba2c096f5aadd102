#include "checkpoint/save.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "base/as_error.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/replace_folder.h"
#include "base/streamed_file.h"
#include "base/text.h"
#include "checkpoint/best_checkpoint.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

std::string path_in(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

int64_t slice_bytes(const StateSlice& slice) {
  return slice.box.numel() * dtype_bytes(slice.dtype);
}

void check_slice(const StateSlice& slice) {
  checked_elements(slice.tensor_shape, cat("tensor \"", slice.tensor, "\": shape"));
  require(slice.tensor_shape.size() <= kMaxStateDimensions,
          "a state has at most kMaxStateDimensions dimensions");
  if (!contains_box(whole_box(slice.tensor_shape), slice.box) || slice.box.numel() == 0)
    bug(cat("a slice at ", shape_text(slice.box.offset), " of shape ", shape_text(slice.box.extent),
            " of tensor \"", slice.tensor, "\" of shape ", shape_text(slice.tensor_shape)));
}

/// Makes the record of a slice, without its checksum.
StateSliceRecord record_of(const StateSlice& slice) {
  return slice_record(slice.tensor, slice.kind, slice.dtype, slice.tensor_shape, slice.box);
}

using SlicesByEntry = std::map<std::string, const StateSlice*>;

SlicesByEntry group_by_entry(const std::vector<StateSlice>& slices) {
  SlicesByEntry entries;
  for (const StateSlice& slice : slices) {
    check_slice(slice);
    const std::string name = record_of(slice).entry;
    if (!entries.emplace(name, &slice).second) bug(cat("slice \"", name, "\" is given twice"));
  }
  return entries;
}

std::vector<TensorSpec> specs_of(const SlicesByEntry& entries) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, slice] : entries)
    specs.push_back({name, slice->dtype, slice->box.extent});
  return specs;
}

/// Appends a slice: at once if it lies in memory, else in pieces through `room`.
void append_slice(SafetensorsWriter& writer, const std::string& name, const StateSlice& slice,
                  std::span<std::byte> room) {
  if (!slice.read) {
    const auto size = static_cast<size_t>(slice_bytes(slice));
    writer.append(name, {static_cast<const std::byte*>(slice.data), size});
    return;
  }
  const int64_t count = slice.box.numel();
  const int64_t elements = static_cast<int64_t>(room.size()) / dtype_bytes(slice.dtype);
  for (int64_t first = 0; first < count; first += elements) {
    const int64_t last = std::min(first + elements, count);
    slice.read(first, last, room.data());
    writer.append(name, room.first(static_cast<size_t>((last - first) * dtype_bytes(slice.dtype))));
  }
}

RankRecord write_rank_file(FileSystem& files, const std::string& folder, int rank,
                           const std::vector<StateSlice>& slices, const SaveBuffers& buffers) {
  const SlicesByEntry entries = group_by_entry(slices);
  RankRecord record;
  record.rank = rank;
  record.file = rank_file_name(rank);
  SafetensorsWriter writer(files, path_in(folder, record.file), specs_of(entries), {},
                           buffers.file());
  for (const TensorSpec& tensor : writer.tensors()) {
    const StateSlice& slice = *entries.at(tensor.name);
    append_slice(writer, tensor.name, slice, buffers.values());
    record.slices.push_back(record_of(slice));
  }
  const WrittenFile written = writer.finish();
  record.bytes = written.bytes;
  record.header_xxh3 = written.header_xxh3;
  record.xxh3 = written.xxh3;
  for (size_t i = 0; i < record.slices.size(); ++i) record.slices[i].xxh3 = written.tensor_xxh3[i];
  return record;
}

/// Reads a file back and compares checksums, so that damage by the disk, the memory or a network
/// file system is found now and not when the checkpoint is needed. Drops the file from the kernel's
/// page cache first, if possible. Returns the source of the bytes that were read.
const char* read_back(const std::string& path, uint64_t written_xxh3, const SaveBuffers& buffers) {
  const bool from_disk = drop_from_page_cache(path);
  const uint64_t read_xxh3 =
      from_disk ? xxh3_of_file_uncached(path, buffers.file()) : xxh3_of_file(path);
  if (read_xxh3 == written_xxh3) return from_disk ? kReadFromDisk : kReadFromMemory;
  throw Error(ExitCode::kEnvironment,
              cat(path, ": reads back with checksum ", hex64(read_xxh3), ", was written with ",
                  hex64(written_xxh3)),
              "write to another disk (output_dir): this one or its connection changes data");
}

std::string make_temporary_folder(FileSystem& files, const std::string& root, int64_t step) {
  make_durable_folder(files, root);
  const std::string name = make_temporary_path(step_folder_name(step));
  files.make_folder(path_in(root, name));
  return name;
}

struct OwnFileResult {
  RankRecord record;
  double read_back_seconds = 0;
};

OwnFileResult write_own_file(FileSystem& files, const SaveOptions& options,
                             const std::string& folder, const std::vector<StateSlice>& slices,
                             int rank) {
  if (!files.exists(folder))
    throw Error(ExitCode::kEnvironment,
                cat(folder, ": rank 0 made it, but this rank does not see it"),
                "put output_dir on a file system that all ranks share");
  OwnFileResult result{write_rank_file(files, folder, rank, slices, *options.buffers)};
  RankRecord& record = result.record;
  const auto start = std::chrono::steady_clock::now();
  if (options.verify_written)
    record.read_back = read_back(path_in(folder, record.file), record.xxh3, *options.buffers);
  result.read_back_seconds = seconds_since(start);
  return result;
}

int64_t next_serial(const std::string& root) {
  int64_t serial = 0;
  for (const CheckpointEntry& entry : list_checkpoints(root))
    serial = std::max(serial, entry.serial);
  return serial + 1;
}

CheckpointManifest manifest_of(const SaveOptions& options, const CheckpointMeta& meta,
                               const std::vector<std::string>& records) {
  CheckpointManifest manifest{meta, next_serial(options.root), {}};
  for (size_t rank = 0; rank < records.size(); ++rank)
    manifest.files.push_back(parse_rank_record(records[rank], cat("record of rank ", rank)));
  return manifest;
}

void write_manifest(FileSystem& files, const SaveOptions& options, const std::string& folder,
                    const CheckpointManifest& manifest) {
  const std::string path = path_in(folder, kCheckpointFile);
  const std::string text = manifest_text(manifest);
  const auto bytes = static_cast<int64_t>(text.size());
  if (bytes > kMaxManifestBytes)
    throw Error(ExitCode::kUnsupported,
                cat(path, ": would have ", human_bytes(bytes), ", but at most ",
                    human_bytes(kMaxManifestBytes), " can be read again"),
                "use fewer ranks");
  auto file = files.create(path);
  file->reserve(bytes);
  file->write(text.data(), text.size());
  file->sync();
  file->close();
  if (options.verify_written) read_back(path, xxh3(text.data(), text.size()), *options.buffers);
  files.sync_folder(folder);
}

/// Renames a checkpoint to a temporary name and removes it, so that an interrupted removal is not
/// mistaken for a damaged checkpoint.
void remove_checkpoint(FileSystem& files, const std::string& folder) {
  const std::string to_remove = make_temporary_path(folder);
  files.rename(folder, to_remove);
  files.remove_all(to_remove);
}

/// Removes old checkpoints. Only commits older than the new one, which was verified, are removed,
/// so the newest good checkpoint always stays. Folders whose manifest cannot be read are left for a
/// person to examine. Nothing is removed while the record of the best checkpoint cannot be read.
void remove_old_checkpoints(FileSystem& files, const SaveOptions& options, int64_t newest_serial) {
  if (options.keep_last <= 0) return;
  const std::optional<BestCheckpoint> best = read_best_record(files, options.root);
  int64_t kept_count = 0;
  for (const CheckpointEntry& entry : list_checkpoints(options.root)) {
    if (!entry.problem.empty() || entry.serial > newest_serial) continue;
    if (best && entry.step == best->step) continue;
    if (kept_count++ >= options.keep_last) remove_checkpoint(files, entry.folder);
  }
}

/// Syncs the rename, then makes "latest" name the checkpoint.
void publish_latest(FileSystem& files, const std::string& root, const std::string& name) {
  files.sync_folder(root);
  write_file_atomic(files, path_in(root, kLatestFile), name);
}

/// Renames what has the name of a step but is no checkpoint of this run: a file, another folder, or
/// any link. It belongs to somebody else and is kept.
void preserve_foreign_files(FileSystem& files, const std::string& path) {
  std::error_code error;
  const bool is_link = fs::is_symlink(fs::symlink_status(path, error));
  if (!is_link && (!files.exists(path) || files.exists(path_in(path, kCheckpointFile)))) return;
  const std::string new_path = make_unique_name(path, ".other-");
  files.rename(path, new_path);
  log_warning(cat(path, " was not a checkpoint of this run and was renamed to ", new_path));
}

/// Commits the checkpoint by giving it its name: it exists once move_into_place() has returned.
/// Returns what went wrong after that, or "".
std::string commit_checkpoint(FileSystem& files, const SaveOptions& options,
                              const CheckpointMeta& meta, const std::string& temporary_folder,
                              const std::vector<std::string>& records) {
  const CheckpointManifest manifest = manifest_of(options, meta, records);
  const std::string name = step_folder_name(meta.step);
  write_manifest(files, options, temporary_folder, manifest);
  preserve_foreign_files(files, path_in(options.root, name));
  // A resumed run can reach a step whose folder exists already.
  const std::string replaced_folder =
      move_into_place(files, temporary_folder, path_in(options.root, name));
  try {
    publish_latest(files, options.root, name);
    if (options.best) write_best_record(files, options.root, *options.best);
  } catch (const std::exception& exception) {
    return as_error(exception).message();
  }
  remove_replaced(files, replaced_folder, path_in(options.root, name));
  try {
    remove_old_checkpoints(files, options, manifest.serial);
  } catch (const std::exception& exception) {
    log_warning(cat("an old checkpoint could not be removed: ", as_error(exception).message()));
  }
  return "";
}

/// Removes an unfinished save, as far as possible. Errors of the removal are not thrown: the
/// failure that led here is the one to report, and the next start cleans up as well.
void abandon_save(FileSystem& files, const std::string& folder, const CheckpointGroup& group) {
  if (group.rank != 0) return;
  try {
    files.remove_all(folder);
  } catch (const Error& error) {
    log_warning(cat(folder, ": could not be removed: ", error.message()));
  }
}

/// Refuses to continue after a commit: the checkpoint exists and is verified, but may not outlast a
/// power cut.
[[noreturn]] void refuse_after_commit(const std::string& name, const std::string& late_failure) {
  throw Error(ExitCode::kEnvironment,
              cat("checkpoint ", name,
                  " was written and verified, but a later step of the save failed: ", late_failure),
              "check that disk (dmesg, smartctl); --resume auto continues from the checkpoint");
}

/// Returns whether a leftover is a folder and not a link to one: saves make nothing else under such
/// a name.
bool is_our_leftover(const LeftoverFolder& leftover, const std::string& path) {
  std::error_code error;
  return step_of_folder(leftover.original) && fs::is_directory(fs::symlink_status(path, error));
}

SaveResult result_of(const std::string& folder, const std::vector<std::string>& records) {
  SaveResult result{.folder = folder};
  for (const std::string& text : records) {
    const RankRecord record = parse_rank_record(text, "record");
    result.bytes += record.bytes;
    result.read_from_disk = result.read_from_disk && record.read_back == kReadFromDisk;
  }
  return result;
}

}  // namespace

SaveResult save_checkpoint(FileSystem& files, const SaveOptions& options,
                           const CheckpointMeta& meta, const std::vector<StateSlice>& slices,
                           const CheckpointGroup& group) {
  if (options.buffers == nullptr) {
    const SaveBuffers buffers;
    SaveOptions with_buffers = options;
    with_buffers.buffers = &buffers;
    return save_checkpoint(files, with_buffers, meta, slices, group);
  }
  const std::string name = step_folder_name(meta.step);
  const std::string what = cat("checkpoint ", name, " was not written");
  const std::string temporary = run_on_all_ranks(group, what, [&]() -> std::string {
    return group.rank == 0 ? make_temporary_folder(files, options.root, meta.step) : "";
  })[0];
  const std::string folder = path_in(options.root, temporary);
  std::vector<std::string> records;
  double read_back_seconds = 0;
  std::string late_failure;
  try {
    records = run_on_all_ranks(group, what, [&] {
      const OwnFileResult own_file = write_own_file(files, options, folder, slices, group.rank);
      read_back_seconds = own_file.read_back_seconds;
      return rank_record_text(own_file.record);
    });
    late_failure = run_on_all_ranks(group, what, [&]() -> std::string {
      return group.rank == 0 ? commit_checkpoint(files, options, meta, folder, records) : "";
    })[0];
  } catch (...) {
    abandon_save(files, folder, group);
    throw;
  }
  // `folder` is not removed here but by the next start: an earlier checkpoint of this step may have
  // got its name back.
  if (!late_failure.empty()) refuse_after_commit(name, late_failure);
  SaveResult result = result_of(path_in(options.root, name), records);
  result.read_back_seconds = read_back_seconds;
  return result;
}

void clean_checkpoints(FileSystem& files, const std::string& root) {
  if (!files.exists(root)) return;
  remove_atomic_leftovers(files, root, {kLatestFile, kBestFile});
  recover_folders(files, root, is_our_leftover);
}

int64_t checkpoint_leftover_bytes(FileSystem& files, const std::string& root) {
  return leftover_bytes(files, root, is_our_leftover);
}

}  // namespace ftrun
