#include "data/megatron.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "data/binary_file.h"

namespace ftrun {
namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // 9 bytes on disk with the literal's own NUL
constexpr char kLegacyMagic[] = "TNTIDX\0";
constexpr int64_t kMagicBytes = 9, kHeaderBytes = 34;

template <typename T>
T read_value(std::span<const std::byte> bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);  // the arrays are not aligned
  return value;
}

[[noreturn]] void refuse_pair(const std::string& path, const std::string& what,
                              const std::string& remedy =
                                  "write the pair again with scripts/prepare_data.py or Megatron's "
                                  "preprocess_data.py, or copy both files again") {
  throw Error(ExitCode::kBadInput, cat(path, ": ", what), remedy);
}

DType dtype_of_code(const std::string& path, int code) {
  switch (code) {
    case 1:
      return DType::kU8;
    case 2:
      return DType::kI8;
    case 3:
      return DType::kI16;
    case 4:
      return DType::kI32;
    case 5:
      return DType::kI64;
    case 8:
      return DType::kU16;
    case 6:
    case 7:
      refuse_pair(path,
                  cat("offset 17: type code ", code, " is a floating-point type, not token ids"),
                  "name the pair that holds token ids");
    default:
      refuse_pair(path, cat("offset 17: type code ", code, " is unknown (expected 1 to 5 or 8)"));
  }
}

/// IndexHeader is the parsed header of an .idx file, with the offsets of its arrays.
struct IndexHeader {
  DType dtype = DType::kU16;
  int64_t sequences = 0, boundaries = 0;
  int64_t lengths_at() const { return kHeaderBytes; }
  int64_t pointers_at() const { return kHeaderBytes + 4 * sequences; }
  int64_t documents_at() const { return kHeaderBytes + 12 * sequences; }
  int64_t end() const { return documents_at() + 8 * boundaries; }
};

void check_magic(const MappedFile& idx) {
  const auto bytes = idx.bytes();
  const std::string& path = idx.path();
  if (bytes.size() >= sizeof kLegacyMagic &&
      std::memcmp(bytes.data(), kLegacyMagic, sizeof kLegacyMagic) == 0)
    refuse_pair(path, "is an index of fairseq's old format (TNTIDX)",
                "convert it with Megatron's preprocess_data.py --dataset-impl mmap");
  if (bytes.size() < static_cast<size_t>(kHeaderBytes))
    refuse_pair(path, cat("has ", bytes.size(), " bytes; the header alone has ", kHeaderBytes));
  if (std::memcmp(bytes.data(), kMagic, static_cast<size_t>(kMagicBytes)) != 0)
    refuse_pair(path, "offset 0: does not begin with Megatron's magic MMIDIDX");
  if (const auto version = read_value<uint64_t>(bytes, 9); version != 1)
    refuse_pair(path, cat("offset 9: index version ", version, ", expected 1"));
}

IndexHeader read_header(const MappedFile& idx) {
  check_magic(idx);
  const auto bytes = idx.bytes();
  const std::string& path = idx.path();
  const auto size = static_cast<uint64_t>(bytes.size());
  const auto sequences = read_value<uint64_t>(bytes, 18),
             boundaries = read_value<uint64_t>(bytes, 26);
  if (sequences > size / 12 || boundaries > size / 8)
    refuse_pair(path, cat("offset 18: the header says ", sequences, " sequences and ", boundaries,
                          " document boundaries; the file has only ", size, " bytes"));
  const IndexHeader index{dtype_of_code(path, read_value<uint8_t>(bytes, 17)),
                          static_cast<int64_t>(sequences), static_cast<int64_t>(boundaries)};
  const auto end = static_cast<uint64_t>(index.end());
  if (size == end + sequences && sequences > 0)
    refuse_pair(path, "has a mode for each sequence (a multimodal data set)",
                "name a data set of text tokens");
  if (size != end)
    refuse_pair(path, cat("the header says ", sequences, " sequences and ", boundaries,
                          " document boundaries, that is ", end, " bytes; the file has ", size));
  return index;
}

/// Checks the sequences and returns the number of tokens.
int64_t check_sequences(const MappedFile& idx, const IndexHeader& index, const MappedFile& bin) {
  const int64_t item = dtype_bytes(index.dtype);
  const auto size = static_cast<int64_t>(bin.bytes().size());
  int64_t bytes = 0;
  for (int64_t s = 0; s < index.sequences; ++s) {
    const int64_t at = index.lengths_at() + 4 * s, pointer_at = index.pointers_at() + 8 * s;
    const auto length = read_value<int32_t>(idx.bytes(), at);
    const auto pointer = read_value<int64_t>(idx.bytes(), pointer_at);
    if (length < 0)
      refuse_pair(idx.path(), cat("offset ", at, ": sequence ", s, " has length ", length));
    if (pointer != bytes)
      refuse_pair(idx.path(), cat("offset ", pointer_at, ": sequence ", s, " begins at byte ",
                                  pointer, " of the .bin file, expected ", bytes,
                                  " (sequences must follow one another)"));
    bytes += length * item;
    if (bytes > size)
      refuse_pair(bin.path(), cat("has ", size, " bytes; sequence ", s, " of its index ",
                                  idx.path(), " ends at byte ", bytes));
  }
  if (bytes != size)
    refuse_pair(bin.path(),
                cat("has ", size, " bytes, its index ", idx.path(), " describes ", bytes));
  return bytes / item;
}

void check_documents(const MappedFile& idx, const IndexHeader& index) {
  if (index.boundaries < 1)
    refuse_pair(idx.path(), "offset 26: no document boundaries, expected at least 1");
  int64_t previous = 0;
  for (int64_t d = 0; d < index.boundaries; ++d) {
    const int64_t at = index.documents_at() + 8 * d;
    const auto sequence = read_value<int64_t>(idx.bytes(), at);
    const bool first_is_zero = d > 0 || sequence == 0;
    if (!first_is_zero || sequence < previous || sequence > index.sequences)
      refuse_pair(idx.path(),
                  cat("offset ", at, ": document boundary ", d, " is sequence ", sequence,
                      ", expected ", d == 0 ? "0" : cat(previous, " to ", index.sequences)));
    previous = sequence;
  }
  if (previous != index.sequences)
    refuse_pair(idx.path(), cat("offset ", index.end() - 8, ": the last document ends at sequence ",
                                previous, " of ", index.sequences));
}

class MegatronFile : public BinaryFile {
 public:
  MegatronFile(MappedFile bin, BinaryLayout layout, MappedFile idx, const IndexHeader& index)
      : BinaryFile(std::move(bin), std::move(layout)), idx_(std::move(idx)), index_(index) {
    documents_ = index_.boundaries - 1;
  }

  std::vector<DataSetFile> list_files() const override {
    std::vector<DataSetFile> files = BinaryFile::list_files();
    files.insert(files.begin() + 1, {"index", idx_.path()});
    return files;
  }
  int64_t document_start(int64_t d) const override {
    const auto sequence = read_value<int64_t>(idx_.bytes(), index_.documents_at() + 8 * d);
    if (sequence == index_.sequences) return tokens_;
    return read_value<int64_t>(idx_.bytes(), index_.pointers_at() + 8 * sequence) /
           dtype_bytes(index_.dtype);
  }
  void check_not_truncated() const override {
    BinaryFile::check_not_truncated();
    check_mapping_not_truncated(idx_);
  }

 private:
  MappedFile idx_;
  IndexHeader index_;
};

}  // namespace

std::unique_ptr<TokenFile> open_megatron(const std::string& prefix) {
  const std::string bin_path = prefix + ".bin", idx_path = prefix + ".idx";
  std::error_code error;
  if (!std::filesystem::exists(bin_path, error))
    refuse_pair(idx_path, cat("its tokens ", bin_path, " do not exist"));
  if (!std::filesystem::exists(idx_path, error))
    refuse_pair(bin_path, cat("its index ", idx_path, " does not exist"),
                "set data.format: auto, or copy both files of the pair");
  MappedFile idx(idx_path);
  const IndexHeader index = read_header(idx);
  MappedFile bin(bin_path);
  const int64_t tokens = check_sequences(idx, index, bin);
  check_documents(idx, index);
  BinaryLayout layout{cat("Megatron .bin/.idx, ", token_type_name(index.dtype)), index.dtype, 0,
                      tokens};
  return std::make_unique<MegatronFile>(std::move(bin), std::move(layout), std::move(idx), index);
}

}  // namespace ftrun
