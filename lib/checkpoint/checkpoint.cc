#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr const char* kDamaged =
    "resume from another checkpoint (ftrun inspect lists them): this one is damaged or incomplete";
constexpr const char* kOtherModel =
    "resume with the config that wrote it: the checkpoint belongs to another model or optimizer";

[[noreturn]] void refuse(const std::string& message, const char* remedy = kDamaged) {
  throw Error(ExitCode::kBadInput, message, remedy);
}

std::string state_text(const std::string& tensor, const std::string& kind) {
  return cat("tensor \"", printable_text(tensor), "\" (", printable_text(kind), ")");
}

std::string missing_text(const std::string& folder, const std::string& tensor,
                         const std::string& kind, int64_t element) {
  return cat(checkpoint_manifest_path(folder), ": ", state_text(tensor, kind), ": element ",
             element, " is in no file");
}

/// Returns whether a stored state may be read as `to`: in its own dtype or, for weight dtypes,
/// converted to F32 or BF16, which only changes its rounding.
bool can_convert(DType from, DType to) {
  return from == to || (is_weight_dtype(from) && (to == DType::kF32 || to == DType::kBF16));
}

void copy_as(DType stored_dtype, const std::byte* from, DType out_dtype, std::byte* to,
             int64_t count) {
  const auto elements = static_cast<size_t>(count);
  if (stored_dtype == out_dtype)
    std::memcpy(to, from, elements * static_cast<size_t>(dtype_bytes(stored_dtype)));
  else if (out_dtype == DType::kF32)
    convert_to_f32(stored_dtype, from, {reinterpret_cast<float*>(to), elements});
  else
    convert_to_bf16(stored_dtype, from, {reinterpret_cast<uint16_t*>(to), elements});
}

/// The maximum number of bytes of a mapped file that are touched between two releases, because
/// mapped pages count as this process's memory.
constexpr int64_t kMaxTouchedBytes = int64_t{8} << 20;
/// Bytes that are hashed and then copied at a time; they are still in the CPU's cache for the copy.
constexpr int64_t kCachedBytes = int64_t{128} << 10;
/// Bytes of one read-ahead request, no longer than a disk takes at a time; and the bytes that are
/// read ahead of the hashed ones.
constexpr int64_t kReadAheadPiece = int64_t{1} << 20;
constexpr int64_t kReadAhead = int64_t{8} << 20;

/// TensorRead reads a mapped tensor once, from its first element to its last, and releases the
/// pages that were read.
class TensorRead {
 public:
  /// Begins reading. With `hashes`, elements that are not copied are hashed as well. `until` is the
  /// byte of the file's data up to which it is read ahead.
  TensorRead(const SafetensorsFile& file, const StoredTensor& info, bool hashes, int64_t until)
      : file_(file),
        info_(info),
        size_(dtype_bytes(info.dtype)),
        hashes_(hashes),
        until_(until),
        read_ahead_to_(info.begin) {}
  TensorRead(const TensorRead&) = delete;
  TensorRead& operator=(const TensorRead&) = delete;
  ~TensorRead() { release(); }

  /// Copies the next elements, converted to `out_dtype`.
  void copy(int64_t from, int64_t count, DType out_dtype, std::byte* out) {
    while (count > 0) {
      const int64_t piece = std::min(count, kCachedBytes / size_);
      if (hashes_) hash_before(from + piece);
      touch(from, from + piece);
      copy_as(info_.dtype, bytes(from), out_dtype, out, piece);
      from += piece;
      count -= piece;
      out += piece * dtype_bytes(out_dtype);
    }
  }

  /// Computes the checksum of all elements.
  uint64_t checksum() {
    hash_before(info_.elements);
    return stream_.digest();
  }

 private:
  const std::byte* bytes(int64_t element) const {
    return file_.bytes(info_).data() + element * size_;
  }

  void hash_before(int64_t end) {
    while (hashed_ < end) {
      read_ahead(info_.begin + hashed_ * size_);
      const int64_t next = std::min(info_.elements, hashed_ + kCachedBytes / size_);
      touch(hashed_, next);
      stream_.update(bytes(hashed_), static_cast<size_t>((next - hashed_) * size_));
      hashed_ = next;
    }
  }

  void read_ahead(int64_t at) {
    for (; read_ahead_to_ < std::min(at + kReadAhead, until_); read_ahead_to_ += kReadAheadPiece)
      file_.read_ahead(read_ahead_to_, std::min(read_ahead_to_ + kReadAheadPiece, until_));
  }

  void touch(int64_t begin, int64_t end) {
    if ((end_ - begin_) * size_ >= kMaxTouchedBytes) release();
    if (begin_ == end_) begin_ = end_ = begin;
    begin_ = std::min(begin_, begin);
    end_ = std::max(end_, end);
  }

  void release() {
    if (begin_ < end_) file_.release(info_, begin_, end_);
    begin_ = end_ = 0;
  }

  const SafetensorsFile& file_;
  const StoredTensor& info_;
  int64_t size_;
  bool hashes_;
  int64_t until_;
  /// The byte of the file's data up to which reading ahead was requested.
  int64_t read_ahead_to_;
  Xxh3Stream stream_;
  int64_t hashed_ = 0;
  /// Elements that were touched since the last release.
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

CheckpointManifest read_manifest(const std::string& folder) {
  std::error_code error;
  const std::string path = (fs::path(folder) / kCheckpointFile).string();
  if (!fs::exists(path, error))
    refuse(cat(folder, ": has no checkpoint.json, so it is not a complete checkpoint"));
  return parse_manifest(read_file(confined_path(folder, kCheckpointFile), kMaxManifestBytes), path);
}

}  // namespace

Checkpoint::Checkpoint(std::string folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {
  const std::string path = checkpoint_manifest_path(folder_);
  const auto step = step_of_folder(fs::path(folder_).filename().string());
  if (step && *step != meta().step)
    refuse(cat(path, ": records step ", meta().step, ", but the folder's name says step ", *step));
  files_.resize(manifest_.files.size());
  for (const RankRecord& file : manifest_.files) verified_.emplace_back(file.slices.size(), false);
  add_states();
}

void Checkpoint::add_states() {
  struct ListedState {
    StateInfo info;
    size_t file;
    std::vector<StoredBox> boxes;
  };
  std::map<std::pair<std::string, std::string>, ListedState> states_by_name;
  for (size_t i = 0; i < manifest_.files.size(); ++i)
    for (size_t j = 0; j < manifest_.files[i].slices.size(); ++j) {
      const StateSliceRecord& slice = manifest_.files[i].slices[j];
      const StateInfo info{slice.tensor, slice.kind, slice.dtype, slice.tensor_shape};
      ListedState& state =
          states_by_name.try_emplace({slice.tensor, slice.kind}, ListedState{info, i, {}})
              .first->second;
      if (slice.dtype != state.info.dtype || slice.tensor_shape != state.info.shape)
        refuse(cat(checkpoint_manifest_path(folder_), ": ", state_text(slice.tensor, slice.kind),
                   ": ", manifest_.files[i].file, " and ", manifest_.files[state.file].file,
                   " disagree about its dtype or shape"));
      state.boxes.push_back({slice.box, i, j});
    }
  for (auto& [key, state] : states_by_name) {
    StoredBoxes boxes(
        cat(checkpoint_manifest_path(folder_), ": ", state_text(key.first, key.second)),
        state.info.shape, std::move(state.boxes));
    states_.emplace(key, StateLocation{std::move(state.info), std::move(boxes), state.file});
  }
}

std::vector<StateInfo> Checkpoint::states() const {
  std::vector<StateInfo> infos;
  for (const auto& [key, state] : states_) infos.push_back(state.info);
  return infos;
}

void Checkpoint::check_complete() const {
  for (const auto& [key, state] : states_) {
    const auto missing = state.boxes.visit_covering_parts(whole_box(state.info.shape),
                                                          [](const StoredBox&, const Box&) {});
    if (missing) refuse(missing_text(folder_, key.first, key.second, *missing));
  }
}

std::vector<StateDtypeChange> Checkpoint::check_states(
    const std::vector<StateInfo>& expected) const {
  const std::string path = checkpoint_manifest_path(folder_);
  std::map<std::pair<std::string, std::string>, StateInfo> stored_states;
  std::map<std::pair<DType, DType>, std::set<std::string>> converted;
  for (StateInfo& state : states()) stored_states[{state.tensor, state.kind}] = state;
  for (const StateInfo& expected_state : expected) {
    const std::string subject =
        cat(path, ": ", state_text(expected_state.tensor, expected_state.kind));
    const auto stored = stored_states.find({expected_state.tensor, expected_state.kind});
    if (stored == stored_states.end())
      refuse(cat(subject, " is not in the checkpoint"), kOtherModel);
    if (stored->second.shape != expected_state.shape)
      refuse(cat(subject, " has shape ", shape_text(stored->second.shape), ", the run needs ",
                 shape_text(expected_state.shape)),
             kOtherModel);
    if (!can_convert(stored->second.dtype, expected_state.dtype))
      refuse(cat(subject, " is ", dtype_name(stored->second.dtype), ", the run needs ",
                 dtype_name(expected_state.dtype)),
             kOtherModel);
    if (stored->second.dtype != expected_state.dtype)
      converted[{stored->second.dtype, expected_state.dtype}].insert(expected_state.kind);
    stored_states.erase(stored);
  }
  if (!stored_states.empty())
    refuse(cat(path, ": ",
               state_text(stored_states.begin()->second.tensor, stored_states.begin()->second.kind),
               " is in the checkpoint, but the run has no such state"),
           kOtherModel);
  std::vector<StateDtypeChange> conversions;
  for (const auto& [dtypes, kinds] : converted)
    conversions.push_back({dtypes.first, dtypes.second, {kinds.begin(), kinds.end()}});
  return conversions;
}

const SafetensorsFile& Checkpoint::open(size_t i) {
  if (files_[i]) return *files_[i];
  const RankRecord& rank = manifest_.files[i];
  const std::string path = (fs::path(folder_) / rank.file).string();
  std::error_code error;
  if (!fs::exists(path, error)) refuse(cat(path, ": is missing"));
  const auto size = static_cast<int64_t>(fs::file_size(confined_path(folder_, rank.file), error));
  if (error || size != rank.bytes)
    refuse(cat(path, ": has ", size, " bytes, the manifest says ", rank.bytes));
  SafetensorsFile file(path);
  if (file.header_xxh3() != rank.header_xxh3)
    refuse(cat(path, ": the checksum of the header is ", hex64(file.header_xxh3()),
               ", the manifest says ", hex64(rank.header_xxh3)));
  check_contents(i, file);
  files_[i] = std::move(file);
  return *files_[i];
}

void Checkpoint::check_contents(size_t i, const SafetensorsFile& file) const {
  const RankRecord& rank = manifest_.files[i];
  for (const StateSliceRecord& slice : rank.slices) {
    const StoredTensor* info = file.find(slice.entry);
    if (info == nullptr)
      refuse(cat(file.path(), ": lacks \"", printable_text(slice.entry),
                 "\", which the manifest lists"));
    if (info->dtype != slice.dtype || info->shape != slice.entry_shape)
      refuse(cat(file.path(), ": \"", printable_text(info->name),
                 "\" has another dtype or shape than the manifest says"));
  }
  if (file.tensors().size() != rank.slices.size())
    refuse(cat(file.path(), ": holds ", file.tensors().size(), " tensors, the manifest lists ",
               rank.slices.size()));
}

void Checkpoint::verify_checksum(size_t i, size_t j, uint64_t checksum) {
  const StateSliceRecord& slice = manifest_.files[i].slices[j];
  verified_[i][j] = checksum == slice.xxh3;
  if (verified_[i][j]) return;
  const std::string part = part_text(slice);
  refuse(cat(open(i).path(), ": ", state_text(slice.tensor, slice.kind),
             part.empty() ? "" : ", elements ", part, ": the checksum is ", hex64(checksum),
             ", the manifest says ", hex64(slice.xxh3)));
}

void Checkpoint::verify_file(size_t i) {
  const SafetensorsFile& file = open(i);
  for (size_t j = 0; j < manifest_.files[i].slices.size(); ++j) {
    const StoredTensor& info = file.at(manifest_.files[i].slices[j].entry);
    // Slices follow one another in the file, so each reads ahead into the next ones.
    verify_checksum(i, j, TensorRead(file, info, true, file.data_bytes()).checksum());
  }
}

const Checkpoint::StateLocation& Checkpoint::location_of(const StateSlice& slice) const {
  const auto state = states_.find({slice.tensor, slice.kind});
  if (state == states_.end())
    refuse(cat(checkpoint_manifest_path(folder_), ": ", state_text(slice.tensor, slice.kind),
               " is not in the checkpoint"),
           kOtherModel);
  check_matches(slice, state->second);
  return state->second;
}

void Checkpoint::check_matches(const StateSlice& slice, const StateLocation& state) const {
  const StateInfo& stored = state.info;
  const std::string subject = cat(folder_, "/", manifest_.files[state.file].file, ": ",
                                  state_text(slice.tensor, slice.kind));
  if (stored.shape != slice.tensor_shape)
    refuse(cat(subject, " has shape ", shape_text(stored.shape), ", the run needs ",
               shape_text(slice.tensor_shape)),
           kOtherModel);
  if (!can_convert(stored.dtype, slice.dtype))
    refuse(
        cat(subject, " is ", dtype_name(stored.dtype), ", the run needs ", dtype_name(slice.dtype)),
        kOtherModel);
}

void Checkpoint::read(const StateSlice& slice) {
  const int64_t size = dtype_bytes(slice.dtype);
  auto* out = static_cast<std::byte*>(slice.data);
  const auto copy = [&](const StoredBox& stored, const Box& part) {
    const SafetensorsFile& file = open(stored.file);
    const StoredTensor& info = file.at(manifest_.files[stored.file].slices[stored.slice].entry);
    const bool is_verified = verified_[stored.file][stored.slice];
    TensorRead tensor(file, info, !is_verified, info.end);
    visit_shared_runs(stored.box, slice.box, part, [&](int64_t from, int64_t to, int64_t count) {
      tensor.copy(from, count, slice.dtype, out + to * size);
    });
    if (!is_verified) verify_checksum(stored.file, stored.slice, tensor.checksum());
  };
  const auto missing = location_of(slice).boxes.visit_covering_parts(slice.box, copy);
  if (missing) refuse(missing_text(folder_, slice.tensor, slice.kind, *missing));
}

void Checkpoint::read(const std::vector<StateSlice>& slices) {
  for (const StateSlice& slice : slices) read(slice);
}

void Checkpoint::close_files() {
  for (auto& file : files_) file.reset();
}

}  // namespace ftrun
