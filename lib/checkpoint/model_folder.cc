#include "checkpoint/model_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/half_floats.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr int64_t kMaxIndex = 64 << 20;

[[noreturn]] void refuse_model(const std::string& message, const std::string& remedy) {
  throw Error(ExitCode::kBadInput, message, remedy);
}

bool has_file(const std::string& folder, const std::string& name) {
  std::error_code error;
  return fs::exists(fs::path(folder) / name, error);
}

void check_is_folder(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  refuse_model(cat(folder, ": is not a folder"),
               "give the path of a Hugging Face model folder (config.json and *.safetensors)");
}

std::string incomplete_remedy(const std::string& folder) {
  const std::string line = hub_download_line(folder);
  return line.empty() ? "check that the download of the model is complete"
                      : cat("download the missing files: ", line);
}

std::string dead_link_remedy(const std::string& folder) {
  const std::string line = hub_download_line(folder);
  return line.empty() ? "fetch the model again, or correct the link"
                      : cat("download the missing files: ", line);
}

/// Returns the command that converts a model whose weights are pickles to safetensors.
std::string conversion_line(const std::string& folder) {
  const bool is_plain = folder.find_first_of("'\"\\$`!\n") == std::string::npos;
  return cat("python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('",
             is_plain ? folder : "FOLDER", "', dtype='auto').save_pretrained('NEW_FOLDER')\"");
}

void refuse_dead_link(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error)) || fs::exists(path, error)) return;
  refuse_model(cat(path, ": cannot be read: ", reading_problem(path)),
               dead_link_remedy(fs::path(path).parent_path().string()));
}

[[noreturn]] void refuse_without_weights(const std::string& folder) {
  for (const char* name : {kSingle, kModelIndex})
    refuse_dead_link((fs::path(folder) / name).string());
  const bool pickled =
      has_file(folder, "pytorch_model.bin") || has_file(folder, "pytorch_model.bin.index.json");
  if (pickled)
    refuse_model(cat(folder, ": has its weights only as pickles (pytorch_model*.bin)"),
                 cat("convert them with transformers: ", conversion_line(folder),
                     " (then copy the tokenizer's files); ftrun reads no format that can run "
                     "code"));
  refuse_model(cat(folder, ": has neither ", kSingle, " nor ", kModelIndex),
               incomplete_remedy(folder));
}

/// Refuses a range [begin, end) that exceeds the tensor's elements.
void check_within(const std::string& path, const StoredTensor& info, int64_t begin, int64_t end) {
  if (begin >= 0 && begin <= end && end <= info.elements) return;
  refuse_model(cat(path, ": tensor \"", printable_text(info.name), "\" has ", info.elements,
                   " elements, ", begin, " to ", end, " were requested"),
               "the shapes that config.json implies differ from those of the weights");
}

std::map<std::string, std::string> read_weight_map(const std::string& folder) {
  const std::string path = plain_file_path(folder, kModelIndex);
  const nlohmann::json index = parse_json_strict(read_file(path, kMaxIndex), path);
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, file] : json_object(index, "weight_map", path).items()) {
    if (!file.is_string())
      refuse_model(cat(path, ": weight_map \"", printable_text(name), "\" must be a file name"),
                   "the index is damaged: fetch it again");
    weight_map[name] = file.get<std::string>();
  }
  if (weight_map.empty())
    refuse_model(cat(path, ": weight_map is empty"), "the index is damaged: fetch it again");
  return weight_map;
}

}  // namespace

ModelFolder::ModelFolder(std::string folder) : folder_(std::move(folder)) {
  check_is_folder(folder_);
  if (!has_file(folder_, "config.json"))
    refuse_model(cat(folder_, ": has no config.json"),
                 "give the path of a Hugging Face model folder");
  config_json_ = read_file(plain_file_path(folder_, "config.json"), kMaxModelConfig);
  if (has_file(folder_, kSingle))
    open_single();
  else if (has_file(folder_, kModelIndex))
    open_sharded();
  else
    refuse_without_weights(folder_);
  find_quantized_tensors();
}

void ModelFolder::find_quantized_tensors() {
  const FindStoredTensor find_stored =
      [this](const std::string& name) -> std::optional<EncodedTensor> {
    const auto tensor = tensors_.find(name);
    if (tensor == tensors_.end()) return std::nullopt;
    const SafetensorsFile& file = files_[tensor->second.file];
    return EncodedTensor{tensor->second.info, file.bytes(*tensor->second.info), file.path()};
  };
  QuantizedWeights weights =
      find_quantized_weights(config_json_, folder_ + "/config.json", names(), find_stored);
  for (auto& [name, matrix] : weights.matrices) {
    tensors_.find(name)->second.quantized = matrix.get();
    quantized_.push_back(std::move(matrix));
  }
  for (const std::string& name : weights.companions) tensors_.erase(name);
}

void ModelFolder::open_single() {
  if (has_file(folder_, kModelIndex))
    log_notice(cat(folder_, ": holds ", kSingle, " and ", kModelIndex, "; the index is not used"));
  file_names_.push_back(kSingle);
  files_.emplace_back(plain_file_path(folder_, kSingle));
  for (const StoredTensor& tensor : files_[0].tensors())
    tensors_.emplace(tensor.name, TensorLocation{0, &tensor});
}

void ModelFolder::open_sharded() {
  const auto weight_map = read_weight_map(folder_);
  std::set<std::string> shards;
  for (const auto& [name, file] : weight_map) shards.insert(file);
  files_.reserve(shards.size());
  for (const std::string& file : shards) add_shard(file, weight_map);
  for (const auto& [name, file] : weight_map)
    if (tensors_.count(name) == 0)
      refuse_model(
          cat(folder_, "/", kModelIndex, ": tensor \"", printable_text(name), "\" should be in ",
              printable_text(file), ", which does not hold it"),
          "index and shards belong to different versions of the model: fetch all of them again");
}

void ModelFolder::add_shard(const std::string& file,
                            const std::map<std::string, std::string>& weight_map) {
  const std::string path = plain_file_path(folder_, file);
  refuse_dead_link(path);
  if (!has_file(folder_, file))
    refuse_model(cat(folder_, "/", kModelIndex, ": shard ", printable_text(file),
                     " is missing from the folder"),
                 incomplete_remedy(folder_));
  const size_t number = files_.size();
  file_names_.push_back(file);
  files_.emplace_back(path);
  for (const StoredTensor& tensor : files_.back().tensors()) {
    const auto listed = weight_map.find(tensor.name);
    if (listed == weight_map.end()) {
      log_notice(cat(path, ": tensor \"", printable_text(tensor.name),
                     "\" is not in the index and not used"));
    } else if (listed->second != file) {
      refuse_model(
          cat(path, ": tensor \"", printable_text(tensor.name),
              "\" is here, the index says it is in ", printable_text(listed->second)),
          "index and shards belong to different versions of the model: fetch all of them again");
    } else {
      tensors_.emplace(tensor.name, TensorLocation{number, &tensor});
    }
  }
}

void ModelFolder::rename(const std::map<std::string, std::string>& stored_names) {
  std::map<std::string, TensorLocation, std::less<>> renamed;
  for (const auto& [name, stored_name] : stored_names) {
    auto node = tensors_.extract(stored_name);
    require(!node.empty(), "only a tensor that exists is renamed");
    node.key() = name;
    renamed.insert(std::move(node));
  }
  tensors_.merge(renamed);
  require(renamed.empty(), "names of tensors stay different");
}

void ModelFolder::name_part(const std::string& name, std::vector<int64_t> shape,
                            StoredLocation location) {
  const StoredTensor& stored = at(location.names().front());
  require(stored.shape == location.shape && tensors_.count(name) == 0,
          "the renamed tensor has the same shape, and its new name is free");
  StoredTensor info{.name = name, .dtype = stored.dtype, .shape = std::move(shape)};
  info.elements = checked_elements(info.shape, name);
  parts_[name] = {std::move(info), std::move(location)};
}

const ModelFolder::NamedTensorPart* ModelFolder::find_part(std::string_view name) const {
  const auto found = parts_.find(name);
  return found == parts_.end() ? nullptr : &found->second;
}

std::vector<std::string> ModelFolder::weight_files() const {
  return file_names_;
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, location] : tensors_) names.push_back(name);
  return names;
}

const StoredTensor* ModelFolder::find(std::string_view name) const {
  if (const NamedTensorPart* named_part = find_part(name)) return &named_part->info;
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.info_as_read();
}

const ModelFolder::TensorLocation& ModelFolder::locate(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  const std::string near = closest_match(name, names());
  refuse_model(cat(folder_, ": the weights have no tensor \"", printable_text(name), "\""),
               near.empty()
                   ? "check that config.json belongs to these weights: names and layers must match"
                   : cat("use the nearest name: \"", printable_text(near), "\""));
}

const StoredTensor& ModelFolder::at(std::string_view name) const {
  const NamedTensorPart* named_part = find_part(name);
  return named_part ? named_part->info : locate(name).info_as_read();
}

const std::string& ModelFolder::file_of(std::string_view name) const {
  return file_names_[locate(name).file];
}

TensorView ModelFolder::tensor(std::string_view name) const {
  const TensorLocation& location = locate(name);
  return {location.info->dtype, location.info->shape, files_[location.file].bytes(*location.info)};
}

void ModelFolder::check_weight_dtype(std::string_view name) const {
  if (const NamedTensorPart* named_part = find_part(name)) {
    for (const std::string& stored_name : named_part->location.names())
      check_weight_dtype(stored_name);
    return;
  }
  const TensorLocation& location = locate(name);
  if (!is_weight_dtype(location.info_as_read().dtype))
    refuse_model(cat(files_[location.file].path(), ": tensor \"", printable_text(name), "\" holds ",
                     dtype_name(location.info->dtype), ", but weights must be F32, BF16 or F16"),
                 "use the same model's weights in one of these; transformers writes them "
                 "(save_pretrained of a model loaded with dtype=torch.bfloat16)");
}

const std::byte* ModelFolder::element_address(std::string_view name, int64_t begin, int64_t end,
                                              size_t out_size) const {
  const TensorLocation& location = locate(name);
  const StoredTensor& info = *location.info;
  const std::string& path = files_[location.file].path();
  check_weight_dtype(name);
  check_within(path, info, begin, end);
  require(out_size == static_cast<size_t>(end - begin),
          "the buffer must fit the elements requested");
  return files_[location.file].bytes(info).data() + begin * dtype_bytes(info.dtype);
}

template <class T, class Read>
void ModelFolder::read_part(const NamedTensorPart& part, int64_t begin, int64_t end,
                            std::span<T> out, Read read) const {
  require(begin >= 0 && begin <= end && end <= part.info.elements && std::ssize(out) == end - begin,
          "the range lies inside the part, and `out` has its size");
  read_stored(
      part.location, part.info.shape, begin, end, out,
      [&](int64_t from, int64_t to, std::span<T> run) {
        visit_stored_tensors(
            part.location, from, to,
            [&](const std::string& name, int64_t first, int64_t last, int64_t position) {
              read(name, first, last,
                   run.subspan(static_cast<size_t>(position), static_cast<size_t>(last - first)));
            });
      });
}

void ModelFolder::read_f32(std::string_view name, int64_t begin, int64_t end,
                           std::span<float> out) const {
  if (const NamedTensorPart* named_part = find_part(name))
    return read_part(*named_part, begin, end, out,
                     [&](const std::string& stored, int64_t from, int64_t to,
                         std::span<float> run) { read_f32(stored, from, to, run); });
  if (const TensorLocation& location = locate(name); location.quantized) {
    check_within(files_[location.file].path(), location.info_as_read(), begin, end);
    return location.quantized->read(begin, end, out);
  }
  const std::byte* from = element_address(name, begin, end, out.size());
  convert_to_f32(at(name).dtype, from, out);
}

void ModelFolder::read_bf16(std::string_view name, int64_t begin, int64_t end,
                            std::span<uint16_t> out) const {
  if (const NamedTensorPart* named_part = find_part(name))
    return read_part(*named_part, begin, end, out,
                     [&](const std::string& stored, int64_t from, int64_t to,
                         std::span<uint16_t> run) { read_bf16(stored, from, to, run); });
  if (locate(name).quantized) {
    std::vector<float> values(out.size());
    read_f32(name, begin, end, values);
    std::transform(values.begin(), values.end(), out.begin(), bf16_from_f32);
    return;
  }
  const std::byte* from = element_address(name, begin, end, out.size());
  convert_to_bf16(at(name).dtype, from, out);
}

bool ModelFolder::has_equal_tensors(std::string_view one, std::string_view other) const {
  constexpr int64_t kPiece = 16 * 1024;  // elements
  if (at(one).shape != at(other).shape) return false;
  std::vector<float> first, second;
  for (int64_t begin = 0; begin < at(one).elements; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, at(one).elements);
    first.resize(static_cast<size_t>(end - begin));
    second.resize(first.size());
    read_f32(one, begin, end, first);
    read_f32(other, begin, end, second);
    if (std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

void ModelFolder::release(std::string_view name, int64_t begin, int64_t end) const {
  if (const NamedTensorPart* named_part = find_part(name)) {
    const StoredLocation& location = named_part->location;
    if (!location.transposed)
      return visit_stored_intervals(
          location, begin, end, [&](const StoredTensorInterval& interval) {
            visit_stored_tensors(location, interval.begin, interval.end,
                                 [&](const std::string& stored, int64_t from, int64_t to, int64_t) {
                                   release(stored, from, to);
                                 });
          });
    // Each page may hold elements of many rows of the part, so the pages are released only after
    // the last row.
    if (end == named_part->info.elements) release(location.name, 0, at(location.name).elements);
    return;
  }
  const TensorLocation& location = locate(name);
  const auto [first, last] =
      location.quantized ? location.quantized->codes_of(begin, end) : std::pair(begin, end);
  files_[location.file].release(*location.info, first, last);
}

bool ModelFolder::has_intact_files() const {
  for (size_t i = 0; i < files_.size(); ++i) {
    std::error_code error;
    const auto bytes = fs::file_size(fs::path(folder_) / file_names_[i], error);
    if (error || static_cast<int64_t>(bytes) < files_[i].file_bytes()) return false;
  }
  return true;
}

std::string ModelFolder::fingerprint() const {
  Xxh3Stream hash;
  hash.update(config_json_.data(), config_json_.size());
  for (size_t i = 0; i < files_.size(); ++i) {
    const std::string line =
        cat(file_names_[i], " ", files_[i].file_bytes(), " ", hex64(files_[i].header_xxh3()), "\n");
    hash.update(line.data(), line.size());
  }
  return hex64(hash.digest());
}

std::string ModelFolder::weights_fingerprint() const {
  constexpr size_t kSample = 4096;
  Xxh3Stream sum;
  std::map<std::string_view, std::span<const std::byte>> by_stored_name;
  for (const auto& [name, found] : tensors_)
    by_stored_name[found.info->name] = files_[found.file].bytes(*found.info);
  for (const auto& [name, bytes] : by_stored_name) {
    const size_t size = std::min(kSample, bytes.size());
    sum.update(name.data(), name.size());
    sum.update(bytes.data(), size);
    sum.update(bytes.data() + (bytes.size() - size), size);
  }
  return hex64(sum.digest());
}

}  // namespace ftrun
