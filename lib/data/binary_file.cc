#include "data/binary_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

struct TypeName {
  DType dtype;
  const char* name;
  const char* short_name;
};
constexpr std::array<TypeName, 7> kTokenTypes{{{DType::kU8, "uint8", "u8"},
                                               {DType::kI8, "int8", "i8"},
                                               {DType::kI16, "int16", "i16"},
                                               {DType::kU16, "uint16", "u16"},
                                               {DType::kI32, "int32", "i32"},
                                               {DType::kU32, "uint32", "u32"},
                                               {DType::kI64, "int64", "i64"}}};

template <typename T>
T element_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
int32_t id_of(T value) {
  if constexpr (sizeof(T) >= 4) {
    if (std::cmp_greater(value, std::numeric_limits<int32_t>::max())) return -1;
  }
  if constexpr (std::is_signed_v<T>) {
    if (value < 0) return -1;
  }
  return static_cast<int32_t>(value);
}

/// Calls use(T{}) with the C++ type of a token type.
template <typename Use>
void with_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::kU8:
      return use(uint8_t{});
    case DType::kI8:
      return use(int8_t{});
    case DType::kI16:
      return use(int16_t{});
    case DType::kU16:
      return use(uint16_t{});
    case DType::kI32:
      return use(int32_t{});
    case DType::kU32:
      return use(uint32_t{});
    case DType::kI64:
      return use(int64_t{});
    default:
      bug(cat("token type ", dtype_name(dtype)));
  }
}

}  // namespace

std::string token_type_name(DType dtype) {
  for (const TypeName& type : kTokenTypes)
    if (type.dtype == dtype) return type.name;
  bug(cat("token type ", dtype_name(dtype)));
}

std::optional<DType> token_type_from_name(const std::string& name) {
  for (const TypeName& type : kTokenTypes)
    if (name == type.name || name == type.short_name) return type.dtype;
  return std::nullopt;
}

int64_t read_token(std::span<const std::byte> bytes, int64_t offset, DType dtype) {
  int64_t value = 0;
  with_type(dtype, [&](auto zero) {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): negative int8 tokens are reported as such.
    value = static_cast<int64_t>(element_at<decltype(zero)>(bytes.data() + offset));
  });
  return value;
}

BinaryFile::BinaryFile(MappedFile file, BinaryLayout layout)
    : TokenFile(file.path()), file_(std::move(file)), layout_(std::move(layout)) {
  tokens_ = layout_.tokens;
  documents_ = tokens_ > 0 ? 1 : 0;
  if (tokens_ > 0) ends_.push_back(tokens_);
  open_mask();
}

void BinaryFile::open_mask() {
  const std::string path = fs::path(path_).replace_extension(".mask").string();
  std::error_code error;
  if (!fs::exists(path, error)) return;
  mask_.emplace(path);
  loss_mask_ = read_loss_mask(path, mask_->bytes(), tokens_);
}

void BinaryFile::split_documents_after(int32_t id) {
  ends_.clear();
  const std::byte* data = file_.bytes().data() + layout_.data_offset;
  with_type(layout_.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < tokens_; ++i)
      if (id_of(element_at<T>(data + i * static_cast<int64_t>(sizeof(T)))) == id)
        ends_.push_back(i + 1);
  });
  if (tokens_ > 0 && (ends_.empty() || ends_.back() != tokens_)) ends_.push_back(tokens_);
  documents_ = static_cast<int64_t>(ends_.size());
}

std::vector<DataSetFile> BinaryFile::list_files() const {
  std::vector<DataSetFile> files{{"tokens", path_}};
  if (mask_) files.push_back({"mask", mask_->path()});
  return files;
}

int64_t BinaryFile::document_start(int64_t d) const {
  return d == 0 ? 0 : ends_[static_cast<size_t>(d - 1)];
}

void BinaryFile::read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
                      ReadScratch&) const {
  require(first >= 0 && first + static_cast<int64_t>(ids.size()) <= tokens_,
          "the read ends within the tokens");
  with_type(layout_.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::byte* at =
        file_.bytes().data() + layout_.data_offset + first * static_cast<int64_t>(sizeof(T));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = id_of(element_at<T>(at + i * sizeof(T)));
  });
  if (loss_mask_.all_trained()) {
    std::copy(ids.begin(), ids.end(), labels.begin());
    return;
  }
  for (size_t i = 0; i < ids.size(); ++i)
    labels[i] = loss_mask_.is_trained(first + static_cast<int64_t>(i)) ? ids[i] : kIgnoredLabel;
}

TokenLocation BinaryFile::locate(int64_t token) const {
  const int64_t offset = layout_.data_offset + token * dtype_bytes(layout_.dtype);
  return {
      .file = path_, .offset = offset, .value = read_token(file_.bytes(), offset, layout_.dtype)};
}

void BinaryFile::check_not_truncated() const {
  check_mapping_not_truncated(file_);
  if (mask_) check_mapping_not_truncated(*mask_);
}

}  // namespace ftrun
