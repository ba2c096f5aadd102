#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/streamed_file.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

namespace ftrun {
namespace {

constexpr size_t kHashedBytes = 128 << 10;

// The order of dtypes in the safetensors library, narrowest first.
constexpr std::array kStoredOrder{
    DType::kBool, DType::kU8,  DType::kI8,  DType::kF8E4M3, DType::kI16, DType::kU16, DType::kF16,
    DType::kBF16, DType::kI32, DType::kU32, DType::kF32,    DType::kF64, DType::kI64, DType::kU64};

auto stored_rank(DType dtype) {
  return std::find(kStoredOrder.begin(), kStoredOrder.end(), dtype) - kStoredOrder.begin();
}

int64_t tensor_bytes(const TensorSpec& tensor) {
  return checked_elements(tensor.shape, cat("tensor \"", tensor.name, "\": shape")) *
         dtype_bytes(tensor.dtype);
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump();
}

std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}

std::string header_entry(const TensorSpec& tensor, int64_t begin) {
  return cat(quoted(tensor.name), ":{\"dtype\":\"", dtype_name(tensor.dtype), "\",\"shape\":[",
             join_numbers(tensor.shape, ","), "],\"data_offsets\":[", begin, ",",
             begin + tensor_bytes(tensor), "]}");
}

void check_names(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    const std::string problem = tensor_name_problem(tensor.name);
    if (!problem.empty())
      bug(cat("tensor name \"", tensor.name, "\" cannot be written: ", problem));
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) bug(cat("tensor \"", *twice, "\" would be written twice"));
}

}  // namespace

void sort_as_stored(std::vector<TensorSpec>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const auto left = stored_rank(a.dtype);
    const auto right = stored_rank(b.dtype);
    return left != right ? left > right : a.name < b.name;
  });
}

std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");  // transformers 4 refuses a file without it
  std::string json = "{\"__metadata__\":" + nlohmann::json(metadata).dump();
  int64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    json += cat(",", header_entry(tensor, begin));
    begin += tensor_bytes(tensor);
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return little_endian(json.size()) + json;
}

SafetensorsWriter::SafetensorsWriter(FileSystem& files, const std::string& path,
                                     std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     std::span<std::byte> staging)
    : tensors_(std::move(tensors)) {
  check_names(tensors_);
  sort_as_stored(tensors_);
  const std::string header = safetensors_header(tensors_, metadata);
  written_.bytes = static_cast<int64_t>(header.size());
  for (const TensorSpec& tensor : tensors_) written_.bytes += tensor_bytes(tensor);
  written_.header_xxh3 = xxh3(header.data(), header.size());
  file_ = files.create(path);
  if (!staging.empty()) file_ = std::make_unique<StreamedFile>(std::move(file_), staging);
  file_->reserve(written_.bytes);
  file_->write(header.data(), header.size());
  file_hash_.update(header.data(), header.size());
  begin_next();
}

void SafetensorsWriter::begin_next() {
  // Empty tensors have no data to wait for.
  for (; next_tensor_ < tensors_.size(); ++next_tensor_) {
    tensor_ = std::make_unique<Xxh3Stream>();
    missing_bytes_ = tensor_bytes(tensors_[next_tensor_]);
    if (missing_bytes_ > 0) return;
    written_.tensor_xxh3.push_back(tensor_->digest());
  }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (next_tensor_ >= tensors_.size() || tensors_[next_tensor_].name != name)
    bug(cat("data of tensor \"", name, "\" came out of order"));
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > missing_bytes_)
    bug(cat("tensor \"", name, "\" got ", size, " bytes, ", missing_bytes_, " were left"));
  // Each part is read from memory once: it stays in the CPU's cache for the other two uses.
  for (size_t at = 0; at < bytes.size(); at += kHashedBytes) {
    const auto part = bytes.subspan(at, std::min(kHashedBytes, bytes.size() - at));
    file_hash_.update(part.data(), part.size());
    tensor_->update(part.data(), part.size());
    file_->write(part.data(), part.size());
  }
  missing_bytes_ -= size;
  if (missing_bytes_ > 0) return;
  written_.tensor_xxh3.push_back(tensor_->digest());
  ++next_tensor_;
  begin_next();
}

WrittenFile SafetensorsWriter::finish() {
  if (next_tensor_ != tensors_.size())
    bug(cat("tensor \"", tensors_[next_tensor_].name, "\" lacks ", missing_bytes_, " bytes"));
  file_->sync();
  file_->close();
  written_.xxh3 = file_hash_.digest();
  return std::move(written_);
}

}  // namespace ftrun
