#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/json_strict.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr const char* kDamaged =
    "the checkpoint is damaged or incomplete: resume from another one (ftrun verify lists them)";
constexpr const char* kOtherModel =
    "the checkpoint is of another model or optimizer: resume with the config that wrote it";

[[noreturn]] void refuse(const std::string& message, const char* remedy = kDamaged) {
  throw Error(ExitCode::kBadInput, message, remedy);
}

std::string state_text(const std::string& tensor, const std::string& kind) {
  return cat("tensor \"", shown(tensor), "\" (", shown(kind), ")");
}

Manifest read_manifest(const std::string& folder) {
  std::error_code error;
  const std::string path = (fs::path(folder) / "checkpoint.json").string();
  if (!fs::exists(path, error))
    refuse(cat(folder, ": has no checkpoint.json, so it is no complete checkpoint"));
  return manifest_from(read_file(confined_path(folder, "checkpoint.json"), kLargestManifest), path);
}

}  // namespace

Checkpoint::Checkpoint(std::string folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {
  const std::string path = folder_ + "/checkpoint.json";
  const auto step = step_of_folder(fs::path(folder_).filename().string());
  if (step && *step != meta().step)
    refuse(cat(path, ": is of step ", meta().step, ", the folder is named for step ", *step));
  files_.resize(manifest_.files.size());
  for (size_t i = 0; i < manifest_.files.size(); ++i) {
    const auto& slices = manifest_.files[i].slices;
    verified_.emplace_back(slices.size(), false);
    for (size_t j = 0; j < slices.size(); ++j)
      index_[{slices[j].tensor, slices[j].kind}].push_back({i, j});
  }
}

const SliceRecord& Checkpoint::record(const Stored& stored) const {
  return manifest_.files[stored.file].slices[stored.slice];
}

std::vector<StateInfo> Checkpoint::states() const {
  std::vector<StateInfo> states;
  for (const auto& [key, all] : index_) {
    const SliceRecord& first = record(all.front());
    for (const Stored& stored : all) {
      const SliceRecord& slice = record(stored);
      if (slice.dtype != first.dtype || slice.tensor_shape != first.tensor_shape)
        refuse(cat(folder_, "/checkpoint.json: ", state_text(key.first, key.second), ": ",
                   manifest_.files[stored.file].file, " and ",
                   manifest_.files[all.front().file].file, " disagree about its dtype or shape"));
    }
    states.push_back({key.first, key.second, first.dtype, first.tensor_shape});
  }
  return states;
}

void Checkpoint::require_states(const std::vector<StateInfo>& expected) const {
  const std::string path = folder_ + "/checkpoint.json";
  std::map<std::pair<std::string, std::string>, StateInfo> found;
  for (StateInfo& state : states()) found[{state.tensor, state.kind}] = state;
  for (const StateInfo& want : expected) {
    const std::string subject = cat(path, ": ", state_text(want.tensor, want.kind));
    const auto at = found.find({want.tensor, want.kind});
    if (at == found.end()) refuse(cat(subject, " is not in the checkpoint"), kOtherModel);
    if (at->second.shape != want.shape)
      refuse(cat(subject, " has shape ", shape_text(at->second.shape), ", the run needs ",
                 shape_text(want.shape)),
             kOtherModel);
    if (at->second.dtype != want.dtype)
      refuse(cat(subject, " is ", dtype_name(at->second.dtype), ", the run needs ",
                 dtype_name(want.dtype)),
             kOtherModel);
    found.erase(at);
  }
  if (!found.empty())
    refuse(cat(path, ": ", state_text(found.begin()->second.tensor, found.begin()->second.kind),
               " is in the checkpoint, the run has no such state"),
           kOtherModel);
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
  for (const SliceRecord& slice : rank.slices) {
    const StoredTensor* info = file.find(entry_name(slice));
    if (info == nullptr)
      refuse(
          cat(file.path(), ": lacks \"", shown(entry_name(slice)), "\", which the manifest lists"));
    if (info->dtype != slice.dtype || info->shape != entry_shape(slice))
      refuse(cat(file.path(), ": \"", shown(info->name),
                 "\" has another dtype or shape than the manifest says"));
  }
  if (file.tensors().size() != rank.slices.size())
    refuse(cat(file.path(), ": holds ", file.tensors().size(), " tensors, the manifest lists ",
               rank.slices.size()));
}

std::span<const std::byte> Checkpoint::verified_bytes(const Stored& stored) {
  const SafetensorsFile& file = open(stored.file);
  const SliceRecord& slice = record(stored);
  const auto bytes = file.bytes(file.at(entry_name(slice)));
  if (verified_[stored.file][stored.slice]) return bytes;
  const uint64_t found = xxh3(bytes.data(), bytes.size());
  if (found != slice.xxh3)
    refuse(cat(file.path(), ": ", state_text(slice.tensor, slice.kind), ", elements ", slice.begin,
               " to ", slice.end, ": the checksum is ", hex64(found), ", the manifest says ",
               hex64(slice.xxh3)));
  verified_[stored.file][stored.slice] = true;
  return bytes;
}

void Checkpoint::verify_file(size_t i) {
  const SafetensorsFile& file = open(i);
  for (size_t j = 0; j < manifest_.files[i].slices.size(); ++j) {
    verified_[i][j] = false;
    verified_bytes({i, j});
    const StoredTensor& info = file.at(entry_name(manifest_.files[i].slices[j]));
    file.release(info, 0, info.elements);
  }
}

const std::vector<Checkpoint::Stored>& Checkpoint::stored_of(const StateSlice& slice) const {
  const auto found = index_.find({slice.tensor, slice.kind});
  if (found == index_.end())
    refuse(cat(folder_, "/checkpoint.json: ", state_text(slice.tensor, slice.kind),
               " is not in the checkpoint"),
           kOtherModel);
  return found->second;
}

void Checkpoint::check_matches(const StateSlice& slice, const Stored& stored) const {
  const SliceRecord& have = record(stored);
  const std::string subject = cat(folder_, "/", manifest_.files[stored.file].file, ": ",
                                  state_text(slice.tensor, slice.kind));
  if (have.tensor_shape != slice.tensor_shape)
    refuse(cat(subject, " has shape ", shape_text(have.tensor_shape), ", the run needs ",
               shape_text(slice.tensor_shape)),
           kOtherModel);
  if (have.dtype != slice.dtype)
    refuse(
        cat(subject, " is ", dtype_name(have.dtype), ", the run needs ", dtype_name(slice.dtype)),
        kOtherModel);
}

// Of the slices that hold the element, the one that reaches furthest: replicas may overlap.
const Checkpoint::Stored* Checkpoint::covering(const std::vector<Stored>& all,
                                               int64_t element) const {
  const Stored* best = nullptr;
  for (const Stored& stored : all) {
    const SliceRecord& slice = record(stored);
    const bool holds = slice.begin <= element && element < slice.end;
    if (holds && (best == nullptr || slice.end > record(*best).end)) best = &stored;
  }
  return best;
}

void Checkpoint::read(const StateSlice& slice) {
  const std::vector<Stored>& all = stored_of(slice);
  const int64_t size = dtype_bytes(slice.dtype);
  auto* out = static_cast<std::byte*>(slice.data);
  for (const Stored& stored : all) check_matches(slice, stored);
  for (int64_t at = slice.begin; at < slice.end;) {
    const Stored* stored = covering(all, at);
    if (stored == nullptr)
      refuse(cat(folder_, "/checkpoint.json: ", state_text(slice.tensor, slice.kind), ": element ",
                 at, " is in no file"));
    const SliceRecord& have = record(*stored);
    const int64_t end = std::min(slice.end, have.end);
    const auto bytes = verified_bytes(*stored);
    std::memcpy(out + (at - slice.begin) * size, bytes.data() + (at - have.begin) * size,
                static_cast<size_t>((end - at) * size));
    at = end;
  }
}

void Checkpoint::read(const std::vector<StateSlice>& slices) {
  for (const StateSlice& slice : slices) read(slice);
}

void Checkpoint::close_files() {
  for (auto& file : files_) file.reset();
}

}  // namespace ftrun
