#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace ftrun {

/// Returns the name of a type as numpy, which the files' writers use, spells it: "uint16", "int32".
std::string token_type_name(DType dtype);
/// Returns the integer type of that name (also of "u16" and the like); nothing for other names.
std::optional<DType> token_type_from_name(const std::string& name);

/// Reads one element as an id; -1 for an id that no model can have.
int64_t read_token(std::span<const std::byte> bytes, int64_t offset, DType dtype);

/// BinaryLayout describes a file of tokens of one integer type after a header of `data_offset`
/// bytes.
struct BinaryLayout {
  std::string format;
  DType dtype = DType::kU16;
  int64_t data_offset = 0;
  int64_t tokens = 0;
};

/// BinaryFile is a .bin file whose document boundaries, if it has any, are a list in memory.
class BinaryFile : public TokenFile {
 public:
  /// Reads the mask next to the file (same name, extension .mask) if it exists.
  BinaryFile(MappedFile file, BinaryLayout layout);

  /// Cuts the stream into documents after each token equal to `id`; tokens after the last such
  /// token are also a document.
  void split_documents_after(int32_t id);

  std::string format() const override { return layout_.format; }
  std::vector<DataSetFile> list_files() const override;
  int64_t document_start(int64_t d) const override;
  void read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
            ReadScratch& scratch) const override;
  TokenLocation locate(int64_t token) const override;
  void check_not_truncated() const override;

 private:
  void open_mask();
  MappedFile file_;
  BinaryLayout layout_;
  std::optional<MappedFile> mask_;
  std::vector<int64_t> ends_;  // one past the last token of each document
};

/// Opens a file in llm.c's format (both magics), else a file of raw tokens. The type of raw tokens
/// is given by the options, or by <name>.json or meta.json next to the file (uint16 by convention
/// for train.bin and val.bin).
std::unique_ptr<TokenFile> open_flat_file(const std::string& path, const TokenFileOptions& options);

}  // namespace ftrun
