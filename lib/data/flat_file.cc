// Reads flat .bin files: with llm.c's 1024-byte header, or raw tokens without a header.
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "data/binary_file.h"
#include "data/sidecar.h"

namespace ftrun {
namespace {

constexpr int64_t kLlmcHeaderBytes = 1024;
constexpr int32_t kLlmcGpt2 = 20240520;    // version 1, uint16
constexpr int32_t kLlmcLlama3 = 20240801;  // version 7, uint32
constexpr int32_t kLlmcEval = 20240522;

[[noreturn]] void refuse_tokens(const std::string& path, const std::string& what,
                                const std::string& remedy) {
  throw Error(ExitCode::kBadInput, cat(path, ": ", what), remedy);
}

int32_t i32_at(std::span<const std::byte> bytes, size_t offset) {
  int32_t value = 0;
  if (offset + sizeof value <= bytes.size())
    std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool is_llmc(int32_t magic) {
  return magic == kLlmcGpt2 || magic == kLlmcLlama3 || magic == kLlmcEval;
}

BinaryLayout read_llmc_layout(const MappedFile& file, int32_t magic) {
  const std::string& path = file.path();
  const char* again = "write it again with llm.c's scripts, or copy it again";
  if (magic == kLlmcEval)
    refuse_tokens(path, "is an llm.c evaluation file (magic 20240522), not a stream of tokens",
                  "name the train or val file that was written beside it");
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size < kLlmcHeaderBytes)
    refuse_tokens(path, cat("has llm.c's magic but ", size, " bytes; its header alone has 1024"),
                  again);
  const bool gpt2 = magic == kLlmcGpt2;
  const int32_t version = i32_at(file.bytes(), 4), expected = gpt2 ? 1 : 7;
  if (version != expected)
    refuse_tokens(
        path,
        cat("offset 4: llm.c version ", version, ", expected ", expected, " with magic ", magic),
        again);
  const int64_t tokens = i32_at(file.bytes(), 8);
  const DType dtype = gpt2 ? DType::kU16 : DType::kU32;
  const int64_t expected_bytes = kLlmcHeaderBytes + tokens * dtype_bytes(dtype);
  if (tokens < 0 || size != expected_bytes)
    refuse_tokens(path,
                  cat("offset 8: the header says ", tokens, " tokens of ", token_type_name(dtype),
                      ", that is ", expected_bytes, " bytes; the file has ", size),
                  again);
  return {cat("llm.c .bin, ", token_type_name(dtype)), dtype, kLlmcHeaderBytes, tokens};
}

/// Returns whether bytes are probably uint32 tokens. Read as uint16, ids below 65536 are then an
/// id, 0, an id, 0, ...; with larger vocabularies each second number is 0, 1 or 2. Text never has
/// this form.
bool looks_like_uint32(std::span<const std::byte> bytes) {
  const size_t pairs = std::min<size_t>(bytes.size() / 4, 4096);
  if (pairs < 16 || bytes.size() % 4 != 0) return false;
  bool low_varies = false;
  for (size_t i = 0; i < pairs; ++i) {
    uint16_t low = 0, high = 0;
    std::memcpy(&low, bytes.data() + i * 4, sizeof low);
    std::memcpy(&high, bytes.data() + i * 4 + 2, sizeof high);
    if (high > 4) return false;
    low_varies = low_varies || low > 4;
  }
  return low_varies;
}

DType guess_token_type(const MappedFile& file) {
  const std::string& path = file.path();
  const std::string name = std::filesystem::path(path).filename().string();
  if (name != "train.bin" && name != "val.bin")
    refuse_tokens(
        path, "nothing says what type its tokens have",
        "set data.token_dtype: uint16 or uint32, or write a meta.json next to it, such as "
        "{\"dtype\": \"uint16\"}");
  if (looks_like_uint32(file.bytes()))
    refuse_tokens(
        path, "nothing says what type its tokens have, and they look like uint32, not uint16",
        "set data.token_dtype: uint32, or write a meta.json next to it: {\"dtype\": \"uint32\"}");
  return DType::kU16;  // nanoGPT's convention
}

BinaryLayout read_raw_layout(const MappedFile& file, const TokenFileOptions& options,
                             const FlatFileInfo& facts) {
  DType dtype{};
  std::string origin;
  if (options.dtype) {
    dtype = *options.dtype;
    origin = "as data.token_dtype says";
  } else if (facts.dtype) {
    dtype = *facts.dtype;
    origin = cat("as ", facts.origin, " says");
  } else {
    dtype = guess_token_type(file);
    origin = "assumed from its name";
  }
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size % dtype_bytes(dtype) != 0)
    refuse_tokens(file.path(),
                  cat("has ", size, " bytes, not a whole number of ", token_type_name(dtype),
                      " tokens (", origin, ")"),
                  "correct the type, or copy the file again if it was cut short");
  return {cat("raw .bin, ", token_type_name(dtype), " (", origin, ")"), dtype, 0,
          size / dtype_bytes(dtype)};
}

}  // namespace

std::unique_ptr<TokenFile> open_flat_file(const std::string& path,
                                          const TokenFileOptions& options) {
  MappedFile file(path);
  const FlatFileInfo facts = read_flat_file_info(path);
  const int32_t magic = i32_at(file.bytes(), 0);
  const bool raw = options.format == DataFormat::kNanogpt;
  if (options.format == DataFormat::kLlmc && !is_llmc(magic))
    refuse_tokens(path, cat("offset 0: has ", magic, " where llm.c writes 20240520 or 20240801"),
                  "set data.format: auto, or name an llm.c file");
  BinaryLayout layout = is_llmc(magic) && !raw ? read_llmc_layout(file, magic)
                                               : read_raw_layout(file, options, facts);
  auto token_file = std::make_unique<BinaryFile>(std::move(file), std::move(layout));
  if (!options.find_documents) return token_file;
  const auto end = options.end_of_document ? options.end_of_document : facts.end_of_document;
  if (!end)
    refuse_tokens(
        path, "has no document boundaries, and this packing needs them",
        "write a meta.json next to it with the id that ends a document, such as {\"dtype\": "
        "\"uint16\", \"eos\": 2}, or set data.packing: concat");
  token_file->split_documents_after(*end);
  return token_file;
}

}  // namespace ftrun
