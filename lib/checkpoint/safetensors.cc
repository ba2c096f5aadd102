#include "checkpoint/safetensors.h"

#include <algorithm>
#include <numeric>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/json_strict.h"

namespace ftrun {
namespace {

[[noreturn]] void throw_missing_tensor(const SafetensorsFile& file, std::string_view name) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : file.tensors()) names.push_back(tensor.name);
  const std::string near = closest_match(name, names);
  throw Error(ExitCode::kBadInput,
              cat(file.path(), ": has no tensor \"", printable_text(name), "\""),
              near.empty() ? cat("use the file that contains it; none of the ", names.size(),
                                 " tensor names in this file is similar")
                           : cat("use the nearest name: \"", printable_text(near), "\""));
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  return cat("[", join_numbers(shape, ", "), "]");
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path),
      header_(parse_safetensors(file_.bytes(), path)),
      by_name_(header_.tensors.size()) {
  std::iota(by_name_.begin(), by_name_.end(), size_t{0});
  std::sort(by_name_.begin(), by_name_.end(),
            [this](size_t a, size_t b) { return tensors()[a].name < tensors()[b].name; });
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [this](size_t i, std::string_view key) { return tensors()[i].name < key; });
  if (found == by_name_.end() || tensors()[*found].name != name) return nullptr;
  return &tensors()[*found];
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  const StoredTensor* found = find(name);
  if (found == nullptr) throw_missing_tensor(*this, name);
  return *found;
}

TensorView SafetensorsFile::tensor(std::string_view name) const {
  const StoredTensor& info = at(name);
  return {info.dtype, info.shape, bytes(info)};
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return file_.bytes().subspan(static_cast<size_t>(header_.data_offset + tensor.begin),
                               static_cast<size_t>(tensor.end - tensor.begin));
}

uint64_t SafetensorsFile::header_xxh3() const {
  return xxh3(file_.bytes().data(), static_cast<size_t>(header_.data_offset));
}

void SafetensorsFile::read_ahead(int64_t begin, int64_t end) const {
  file_.read_ahead(static_cast<size_t>(header_.data_offset + begin),
                   static_cast<size_t>(end - begin));
}

void SafetensorsFile::release(const StoredTensor& tensor, int64_t begin, int64_t end) const {
  const int64_t size = dtype_bytes(tensor.dtype);
  file_.release(static_cast<size_t>(header_.data_offset + tensor.begin + begin * size),
                static_cast<size_t>((end - begin) * size));
}

}  // namespace ftrun
