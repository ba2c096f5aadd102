#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/safetensors.h"

namespace ftrun {
namespace {

constexpr size_t kMaxDimensions = 64;
constexpr size_t kLongestName = 4096;
constexpr const char* kHeaderRemedy =
    "fetch or write the file again: it is damaged, incomplete or not a safetensors file";

[[noreturn]] void refuse_header(const std::string& message) {
  throw Error(ExitCode::kBadInput, message, kHeaderRemedy);
}

// HeaderReader parses the header without building a tree. Its memory is proportional to the number
// of tensors, and it stops at anything nested deeper than the format allows. A handler returns
// false to stop, after setting problem_.
class HeaderReader {
 public:
  using Json = nlohmann::json;

  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;

  const std::string& problem() const { return problem_; }
  size_t bad_byte() const { return bad_byte_; }

  bool null() { return value("null"); }
  bool boolean(bool) { return value("a truth value"); }
  bool number_integer(Json::number_integer_t) { return value("a negative number"); }
  bool number_float(Json::number_float_t, const std::string&) {
    return value("a number that is not a plain integer");
  }
  bool binary(Json::binary_t&) { return value("binary data"); }
  bool number_unsigned(Json::number_unsigned_t number) {
    if (state_ != ParserState::kShape && state_ != ParserState::kOffsets) return value("a number");
    if (number > static_cast<uint64_t>(INT64_MAX))
      return stop(cat(subject(), field_, " holds ", number, ", which is too large"));
    std::vector<int64_t>& list = state_ == ParserState::kShape ? tensors.back().shape : offsets_;
    if (list.size() >= kMaxDimensions)
      return stop(cat(subject(), field_, " has more than ", kMaxDimensions, " entries"));
    list.push_back(static_cast<int64_t>(number));
    return true;
  }
  bool string(std::string& text) {
    if (state_ == ParserState::kMetadata) return add_metadata(text);
    if (state_ != ParserState::kTensor || field_ != "dtype") return value("a text");
    const auto dtype = dtype_from_name(text);
    if (!dtype)
      return stop(
          cat(subject(), "dtype \"", printable_text(text), "\" is not one that ftrun reads"));
    tensors.back().dtype = *dtype;
    return true;
  }
  bool start_object(size_t) {
    if (state_ == ParserState::kStart) return enter(ParserState::kTop);
    if (state_ != ParserState::kTop) return value("an object");
    return enter(field_ == "__metadata__" ? ParserState::kMetadata : ParserState::kTensor);
  }
  bool end_object() {
    if (state_ == ParserState::kTensor && !finish_tensor()) return false;
    return enter(state_ == ParserState::kTop ? ParserState::kEnd : ParserState::kTop);
  }
  bool start_array(size_t) {
    if (state_ == ParserState::kTensor && field_ == "shape") return enter(ParserState::kShape);
    if (state_ == ParserState::kTensor && field_ == "data_offsets")
      return enter(ParserState::kOffsets);
    return value("a list");
  }
  bool end_array() { return enter(ParserState::kTensor); }
  bool key(std::string& text) {
    if (state_ == ParserState::kTop) return top_key(text);
    field_ = text;
    if (state_ == ParserState::kMetadata) return metadata.count(text) == 0 || metadata_twice(text);
    return tensor_field(text);
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception&) {
    bad_byte_ = byte;
    return false;
  }

 private:
  enum class ParserState { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool enter(ParserState next) {
    state_ = next;
    return true;
  }
  bool stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  std::string subject() const {
    return cat("tensor \"", printable_text(tensors.back().name), "\": ");
  }

  bool value(const char* found) {
    switch (state_) {
      case ParserState::kStart:
      case ParserState::kEnd:
        return stop(cat("the header must be an object, found ", found));
      case ParserState::kTop:
        return stop(cat("\"", printable_text(field_), "\" must be an object, found ", found));
      case ParserState::kMetadata:
        return stop(
            cat("__metadata__ \"", printable_text(field_), "\" must be a text, found ", found));
      case ParserState::kTensor: {
        const char* expected = field_ == "dtype" ? "a text" : "a list of integers";
        return stop(cat(subject(), field_, " must be ", expected, ", found ", found));
      }
      case ParserState::kShape:
      case ParserState::kOffsets:
        break;
    }
    return stop(cat(subject(), field_, " must hold integers of 0 or more, found ", found));
  }

  bool top_key(const std::string& name) {
    field_ = name;
    if (name == "__metadata__") {
      if (seen_metadata_) return stop("__metadata__ appears twice");
      seen_metadata_ = true;
      return true;
    }
    const std::string problem = tensor_name_problem(name);
    if (!problem.empty())
      return stop(cat("tensor name \"", printable_text(name), "\" is refused: ", problem));
    tensors.emplace_back().name = name;
    fields_.clear();
    offsets_.clear();
    return true;
  }
  bool add_metadata(const std::string& text) {
    metadata.emplace(field_, text);
    return true;
  }
  bool metadata_twice(const std::string& name) {
    return stop(cat("__metadata__ \"", printable_text(name), "\" appears twice"));
  }
  bool tensor_field(const std::string& name) {
    if (name != "dtype" && name != "shape" && name != "data_offsets")
      return stop(cat(subject(), "field \"", printable_text(name), "\" is not one of the format"));
    if (!fields_.insert(name).second) return stop(cat(subject(), name, " appears twice"));
    return true;
  }
  bool finish_tensor() {
    for (const char* name : {"dtype", "shape", "data_offsets"})
      if (fields_.count(name) == 0) return stop(cat(subject(), name, " is missing"));
    if (offsets_.size() != 2)
      return stop(cat(subject(), "data_offsets has ", count_text(std::ssize(offsets_), "number"),
                      ", 2 were expected"));
    tensors.back().begin = offsets_[0];
    tensors.back().end = offsets_[1];
    return true;
  }

  ParserState state_ = ParserState::kStart;
  std::string field_;
  std::set<std::string> fields_;
  std::vector<int64_t> offsets_;
  bool seen_metadata_ = false;
  std::string problem_;
  size_t bad_byte_ = 0;
};

std::string_view header_text(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < 8)
    refuse_header(cat(path, ": has ", file.size(), " bytes, too short for a safetensors file"));
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(file[i]);
  if (length > static_cast<uint64_t>(kLongestSafetensorsHeader))
    refuse_header(cat(path, ": the header would have ", length, " bytes; the limit is ",
                      kLongestSafetensorsHeader));
  if (length > file.size() - 8)
    refuse_header(cat(path, ": the header would have ", length, " bytes, but the file has only ",
                      file.size() - 8, " after its first 8"));
  return {reinterpret_cast<const char*>(file.data()) + 8, static_cast<size_t>(length)};
}

void check_size(StoredTensor& tensor, const std::string& path) {
  const std::string subject = cat(path, ": tensor \"", printable_text(tensor.name), "\": ");
  tensor.elements = checked_elements(tensor.shape, subject + "shape");
  int64_t bytes = 0;
  if (__builtin_mul_overflow(tensor.elements, dtype_bytes(tensor.dtype), &bytes))
    refuse_header(cat(subject, "shape has too many elements"));
  if (tensor.end < tensor.begin)
    refuse_header(
        cat(subject, "data_offsets end at ", tensor.end, ", before they begin at ", tensor.begin));
  if (tensor.end - tensor.begin != bytes)
    refuse_header(cat(subject, "data_offsets hold ", tensor.end - tensor.begin,
                      " bytes, but dtype and shape need ", bytes));
}

/// Checks that the tensors follow one another in the data. Together with the size check this proves
/// that every byte of the data belongs to exactly one tensor.
void check_tiling(const std::vector<StoredTensor>& tensors, int64_t data_bytes,
                  const std::string& path) {
  int64_t expected = 0;
  for (const StoredTensor& tensor : tensors) {
    const std::string subject = cat(path, ": tensor \"", printable_text(tensor.name), "\": ");
    if (tensor.end > data_bytes)
      refuse_header(cat(subject, "data ends at byte ", tensor.end, ", the file holds only ",
                        data_bytes, " bytes of data"));
    if (tensor.begin > expected)
      refuse_header(cat(subject, "begins at byte ", tensor.begin,
                        ", which leaves a hole after byte ", expected));
    if (tensor.begin < expected)
      refuse_header(cat(subject, "begins at byte ", tensor.begin,
                        ", inside the tensor before it, which ends at byte ", expected));
    expected = tensor.end;
  }
  if (expected != data_bytes)
    refuse_header(cat(path, ": ", count_text(data_bytes - expected, "byte"),
                      " too many after the last tensor"));
}

void check_names_differ(const std::vector<StoredTensor>& tensors, const std::string& path) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    refuse_header(cat(path, ": tensor \"", printable_text(*twice), "\" appears twice"));
}

void read_header(std::string_view text, HeaderReader& reader, const std::string& path) {
  if (text.empty() || text.front() != '{')
    refuse_header(cat(path, ": the header does not begin with {"));
  // The JSON parser takes a NUL byte for the end of its input and would ignore what follows.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos)
    refuse_header(cat(path, ": the header holds a NUL byte at position ", nul));
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) return;
  if (!reader.problem().empty()) refuse_header(cat(path, ": ", reader.problem()));
  refuse_header(cat(path, ": the header is not valid JSON at byte ", reader.bad_byte()));
}

bool is_path_like(std::string_view name) {
  size_t start = 0;
  for (;;) {
    const size_t end = name.find_first_of("/\\", start);
    if (name.substr(start, end - start) == "..") return true;
    if (end == std::string_view::npos) return name.front() == '/' || name.front() == '\\';
    start = end + 1;
  }
}

}  // namespace

std::string tensor_name_problem(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > kLongestName) return cat("it is longer than ", kLongestName, " bytes");
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), is_control)) return "it holds a control character";
  if (is_path_like(name)) return "it reads as a path";
  return "";
}

int64_t checked_elements(const std::vector<int64_t>& shape, const std::string& what) {
  int64_t elements = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0) refuse_header(cat(what, " has a negative dimension"));
    if (__builtin_mul_overflow(elements, dimension, &elements))
      refuse_header(cat(what, " has too many elements"));
  }
  return elements;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  const std::string_view text = header_text(file, path);
  HeaderReader reader;
  read_header(text, reader, path);
  SafetensorsHeader header;
  header.data_offset = static_cast<int64_t>(8 + text.size());
  header.tensors = std::move(reader.tensors);
  header.metadata = std::move(reader.metadata);
  for (StoredTensor& tensor : header.tensors) check_size(tensor, path);
  check_names_differ(header.tensors, path);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check_tiling(header.tensors, static_cast<int64_t>(file.size()) - header.data_offset, path);
  return header;
}

}  // namespace ftrun
