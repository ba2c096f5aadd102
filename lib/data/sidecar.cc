#include "data/sidecar.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/binary_file.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kFormat[] = "ftrun-data";
/// The format in a sidecar while prepare_data.py replaces old files by new ones.
constexpr char kUnfinished[] = "ftrun-data-unfinished";

[[noreturn]] void refuse_sidecar(const std::string& path, const std::string& what) {
  throw Error(ExitCode::kBadInput, cat(path, ": ", what),
              "write the data again with scripts/prepare_data.py, or remove this file");
}

/// The usual limit of a sidecar's size. Sidecars have some hundred bytes, or some megabytes with
/// the names of all inputs. A larger file is read only if its beginning shows that it is a sidecar.
constexpr int64_t kMaxSidecarBytes = int64_t{1} << 20;
constexpr int64_t kMaxWrittenSidecarBytes = int64_t{64} << 20;

/// Returns the bytes of a regular file; nothing if there is none.
std::optional<int64_t> file_bytes(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

/// Returns whether a file begins like a sidecar, in which prepare_data.py writes the format first.
bool begins_like_sidecar(const std::string& path) {
  std::array<char, 4096> head{};
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), head.size());
  const std::string_view text(head.data(), static_cast<size_t>(file.gcount()));
  return text.find("\"ftrun-data") != std::string_view::npos;
}

/// Returns the maximum size in bytes of a sidecar at `path`.
int64_t max_sidecar_bytes(const std::string& path) {
  const int64_t bytes = file_bytes(path).value_or(0);
  if (bytes <= kMaxSidecarBytes || !begins_like_sidecar(path)) return kMaxSidecarBytes;
  if (bytes > kMaxWrittenSidecarBytes)
    refuse_sidecar(path, cat("is ", human_bytes(bytes), ", larger than the limit of ",
                             human_bytes(kMaxWrittenSidecarBytes)));
  return kMaxWrittenSidecarBytes;
}

/// Reads the JSON object of a file; nothing if there is no file, if it is larger than `max_bytes`
/// bytes, or if it holds something else.
std::optional<json> read_json_object(const std::string& path, int64_t max_bytes) {
  if (file_bytes(path).value_or(max_bytes + 1) > max_bytes) return std::nullopt;
  const std::string text = read_file(path);
  refuse_wide_encoding(text, path);
  json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  return parsed;
}

int64_t read_integer(const std::string& path, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) refuse_sidecar(path, cat("has no \"", key, "\""));
  if (!found->is_number_integer()) refuse_sidecar(path, cat("\"", key, "\" must be an integer"));
  if (found->is_number_unsigned() &&
      found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    refuse_sidecar(path, cat("\"", key, "\" is too large"));
  return found->get<int64_t>();
}

std::string read_text(const std::string& path, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    refuse_sidecar(path, cat("has no string \"", key, "\""));
  return found->get<std::string>();
}

std::optional<int64_t> find_integer(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

std::optional<int32_t> find_id(const json& object, const char* key) {
  const auto value = find_integer(object, key);
  if (!value || *value < 0 || *value > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return static_cast<int32_t>(*value);
}

std::optional<DType> find_dtype(const json& object) {
  const auto found = object.find("dtype");
  if (found == object.end() || !found->is_string()) return std::nullopt;
  return token_type_from_name(found->get<std::string>());
}

uint64_t read_hash(const std::string& path, const json& object) {
  const std::string text = read_text(path, object, "xxh3");
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || result.ec != std::errc() || result.ptr != text.data() + text.size())
    refuse_sidecar(path, "\"xxh3\" must be 16 hexadecimal digits");
  return value;
}

FileRecord parse_file_record(const std::string& path, const json& object) {
  if (!object.is_object()) refuse_sidecar(path, "\"files\" must hold objects");
  FileRecord record;
  record.role = read_text(path, object, "role");
  record.path = (fs::path(path).parent_path() / read_text(path, object, "name")).string();
  record.bytes = read_integer(path, object, "bytes");
  record.modified_ns = read_integer(path, object, "modified_ns");
  record.xxh3 = read_hash(path, object);
  return record;
}

Sidecar parse_sidecar(const std::string& path, const json& object) {
  if (const int64_t version = read_integer(path, object, "version"); version != 1)
    refuse_sidecar(path, cat("version ", version, ", but this build reads version 1"));
  Sidecar side;
  side.path = path;
  side.dtype = find_dtype(object);
  side.end_of_document = find_id(object, "end_of_document");
  side.vocab_size = find_integer(object, "vocab_size");
  side.conversations = find_integer(object, "conversations");
  side.longest_conversation = find_integer(object, "longest_conversation");
  side.statistics = {.tokens = read_integer(path, object, "tokens"),
                     .documents = read_integer(path, object, "documents"),
                     .trained_tokens = read_integer(path, object, "trained_tokens"),
                     .min_id = read_integer(path, object, "min_id"),
                     .max_id = read_integer(path, object, "max_id")};
  const auto files = object.find("files");
  if (files == object.end() || !files->is_array()) refuse_sidecar(path, "has no list \"files\"");
  for (const json& file : *files) side.files.push_back(parse_file_record(path, file));
  return side;
}

}  // namespace

std::optional<Sidecar> read_sidecar_file(const std::string& path, int64_t max_bytes) {
  const auto object = read_json_object(path, max_bytes);
  const json format = object ? object->value("format", json()) : json();
  if (format == json(kUnfinished))
    refuse_sidecar(
        path,
        "prepare_data.py was stopped while it moved its files here: old and new may be mixed");
  if (format != json(kFormat)) return std::nullopt;
  return parse_sidecar(path, *object);
}

std::optional<Sidecar> read_sidecar(const std::string& data_file) {
  const std::string path = fs::path(data_file).replace_extension(".json").string();
  return read_sidecar_file(path, max_sidecar_bytes(path));
}

std::string sidecar_text(const Sidecar& side) {
  const DataStatistics& s = side.statistics;
  json object{{"format", kFormat},
              {"version", 1},
              {"tokens", s.tokens},
              {"documents", s.documents},
              {"trained_tokens", s.trained_tokens},
              {"min_id", s.min_id},
              {"max_id", s.max_id}};
  if (side.dtype) object["dtype"] = token_type_name(*side.dtype);
  if (side.end_of_document) object["end_of_document"] = *side.end_of_document;
  if (side.vocab_size) object["vocab_size"] = *side.vocab_size;
  if (side.conversations) object["conversations"] = *side.conversations;
  if (side.longest_conversation) object["longest_conversation"] = *side.longest_conversation;
  object["files"] = json::array();
  for (const FileRecord& file : side.files)
    object["files"].push_back({{"role", file.role},
                               {"name", file.path},
                               {"bytes", file.bytes},
                               {"modified_ns", file.modified_ns},
                               {"xxh3", hex64(file.xxh3)}});
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

FlatFileInfo read_flat_file_info(const std::string& data_file) {
  if (const auto side = read_sidecar(data_file))
    return {side->dtype, side->end_of_document, side->path};
  const std::string path = (fs::path(data_file).parent_path() / "meta.json").string();
  const auto object = read_json_object(path, kMaxSidecarBytes);
  if (!object) return {};
  FlatFileInfo facts{find_dtype(*object), find_id(*object, "eos"), ""};
  if (facts.dtype || facts.end_of_document) facts.origin = path;
  return facts;
}

}  // namespace ftrun
