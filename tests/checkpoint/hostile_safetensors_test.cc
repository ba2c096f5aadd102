#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

struct Case {
  const char* what;
  std::string bytes;
  std::string message;  // the message after "<path>: "
};

std::string header_entry(const std::string& name, const std::string& fields) {
  return cat("\"", name, "\":{", fields, "}");
}

std::string f32_entry(const std::string& name, const std::string& shape,
                      const std::string& offsets) {
  return header_entry(name,
                      "\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}

std::string file_of_entries(const std::string& entries, size_t data_bytes) {
  return safetensors_bytes(cat("{", entries, "}"), std::string(data_bytes, '\1'));
}

std::string with_length(const std::string& length, const std::string& rest) {
  return length + rest;
}

std::string nested_json(size_t depth) {
  return cat("{\"a\":", std::string(depth, '['), std::string(depth, ']'), "}");
}

std::vector<Case> size_cases() {
  const std::string good = file_of_entries(f32_entry("a", "[2]", "[0,8]"), 8);
  return {
      {"empty file", "", "has 0 bytes, too short for a safetensors file"},
      {"seven bytes", std::string(7, '\0'), "has 7 bytes, too short for a safetensors file"},
      {"empty header", std::string(8, '\0'), "the header does not begin with {"},
      {"truncated data", good.substr(0, good.size() - 1),
       "tensor \"a\": data ends at byte 8, the file holds only 7 bytes of data"},
      {"truncated header", good.substr(0, 20),
       "the header would have 54 bytes, but the file has only 12 after its first 8"},
      {"trailing byte", good + "x", "1 byte too many after the last tensor"},
      {"header longer than file", with_length(std::string("\x40\0\0\0\0\0\0\0", 8), "{}"),
       "the header would have 64 bytes, but the file has only 2 after its first 8"},
      {"header above 100 MB", with_length(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), "{}"),
       "the header would have 100000001 bytes; the limit is 100000000"},
      {"header of 2^64-1", with_length(std::string(8, '\xff'), "{}"),
       "the header would have 18446744073709551615 bytes; the limit is 100000000"},
      {"header of 2^64-8, which wraps", with_length(cat("\xf8", std::string(7, '\xff')), "{}"),
       "the header would have 18446744073709551608 bytes; the limit is 100000000"},
      {"git lfs pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
       "is a Git LFS pointer, not the file itself"},
  };
}

std::vector<Case> layout_cases() {
  return {
      {"overlap",
       file_of_entries(f32_entry("a", "[2]", "[0,8]") + "," + f32_entry("b", "[2]", "[0,8]"), 8),
       "tensor \"b\": begins at byte 0, inside the tensor before it, which ends at byte 8"},
      {"partial overlap",
       file_of_entries(f32_entry("a", "[2]", "[0,8]") + "," + f32_entry("b", "[2]", "[4,12]"), 12),
       "tensor \"b\": begins at byte 4, inside the tensor before it, which ends at byte 8"},
      {"empty tensor inside another",
       file_of_entries(f32_entry("a", "[2]", "[0,8]") + "," + f32_entry("b", "[0]", "[4,4]"), 8),
       "tensor \"b\": begins at byte 4, inside the tensor before it, which ends at byte 8"},
      {"hole",
       file_of_entries(f32_entry("a", "[1]", "[0,4]") + "," + f32_entry("b", "[1]", "[8,12]"), 12),
       "tensor \"b\": begins at byte 8, which leaves a hole after byte 4"},
      {"first offset is not 0", file_of_entries(f32_entry("a", "[1]", "[4,8]"), 8),
       "tensor \"a\": begins at byte 4, which leaves a hole after byte 0"},
      {"end before begin", file_of_entries(f32_entry("a", "[1]", "[8,4]"), 8),
       "tensor \"a\": data_offsets end at 4, before they begin at 8"},
      {"more bytes than the shape", file_of_entries(f32_entry("a", "[1]", "[0,8]"), 8),
       "tensor \"a\": data_offsets hold 8 bytes, but dtype and shape need 4"},
      {"fewer bytes than the shape", file_of_entries(f32_entry("a", "[3]", "[0,8]"), 8),
       "tensor \"a\": data_offsets hold 8 bytes, but dtype and shape need 12"},
      {"scalar without data", file_of_entries(f32_entry("a", "[]", "[0,0]"), 0),
       "tensor \"a\": data_offsets hold 0 bytes, but dtype and shape need 4"},
      {"shape product of 2^64",
       file_of_entries(f32_entry("a", "[4294967296,4294967296]", "[0,0]"), 0),
       "tensor \"a\": shape has too many elements"},
      {"bytes of 2^64", file_of_entries(f32_entry("a", "[2305843009213693952,2]", "[0,0]"), 0),
       "tensor \"a\": shape has too many elements"},
      {"three offsets", file_of_entries(f32_entry("a", "[1]", "[0,4,4]"), 4),
       "tensor \"a\": data_offsets has 3 numbers, 2 were expected"},
      {"one offset", file_of_entries(f32_entry("a", "[1]", "[0]"), 4),
       "tensor \"a\": data_offsets has 1 number, 2 were expected"},
      {"end beyond the file",
       file_of_entries(f32_entry("a", "[9223372036854775807]", "[0,9223372036854775807]"), 4),
       "tensor \"a\": shape has too many elements"},
  };
}

std::vector<Case> value_cases() {
  const std::string many(129, '0');
  std::string dimensions = "[0";
  for (int i = 0; i < 64; ++i) dimensions += ",0";
  return {
      {"negative dimension", file_of_entries(f32_entry("a", "[-1]", "[0,4]"), 4),
       "tensor \"a\": shape must hold integers of 0 or more, found a negative number"},
      {"negative offset", file_of_entries(f32_entry("a", "[1]", "[-4,0]"), 4),
       "tensor \"a\": data_offsets must hold integers of 0 or more, found a negative number"},
      {"fractional dimension", file_of_entries(f32_entry("a", "[1.0]", "[0,4]"), 4),
       "tensor \"a\": shape must hold integers of 0 or more, found a number that is not a plain "
       "integer"},
      {"dimension above 2^64",
       file_of_entries(f32_entry("a", "[18446744073709551616]", "[0,4]"), 4),
       "tensor \"a\": shape must hold integers of 0 or more, found a number that is not a plain "
       "integer"},
      {"dimension of 2^63", file_of_entries(f32_entry("a", "[9223372036854775808]", "[0,4]"), 4),
       "tensor \"a\": shape holds 9223372036854775808, which is too large"},
      {"65 dimensions", file_of_entries(f32_entry("a", dimensions + "]", "[0,0]"), 0),
       "tensor \"a\": shape has more than 64 entries"},
      {"shape is a text", file_of_entries(f32_entry("a", "\"1\"", "[0,4]"), 4),
       "tensor \"a\": shape must be a list of integers, found a text"},
      {"shape is nested", file_of_entries(f32_entry("a", "[[1]]", "[0,4]"), 4),
       "tensor \"a\": shape must hold integers of 0 or more, found a list"},
      {"unknown dtype",
       file_of_entries(header_entry("a", R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), 4),
       "tensor \"a\": dtype \"F33\" is not one that ftrun reads"},
      {"dtype is a number",
       file_of_entries(header_entry("a", R"("dtype":32,"shape":[1],"data_offsets":[0,4])"), 4),
       "tensor \"a\": dtype must be a text, found a number"},
      {"metadata is not text", file_of_entries("\"__metadata__\":{\"n\":1}", 0),
       "__metadata__ \"n\" must be a text, found a number"},
      {"metadata is a list", file_of_entries("\"__metadata__\":[]", 0),
       "\"__metadata__\" must be an object, found a list"},
      {"entry is null", file_of_entries("\"a\":null", 0), "\"a\" must be an object, found null"},
  };
}

std::vector<Case> structure_cases() {
  const std::string a = f32_entry("a", "[1]", "[0,4]");
  return {
      {"duplicate name, other data", file_of_entries(a + "," + f32_entry("a", "[1]", "[4,8]"), 8),
       "tensor \"a\" appears twice"},
      {"duplicate name, same data", file_of_entries(a + "," + a, 4), "tensor \"a\" appears twice"},
      {"duplicate field",
       file_of_entries(
           header_entry("a", R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4),
       "tensor \"a\": dtype appears twice"},
      {"duplicate metadata", file_of_entries(R"("__metadata__":{"k":"1","k":"2"})", 0),
       "__metadata__ \"k\" appears twice"},
      {"metadata twice", file_of_entries(R"("__metadata__":{},"__metadata__":{})", 0),
       "__metadata__ appears twice"},
      {"unknown field",
       file_of_entries(header_entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"),
                       4),
       "tensor \"a\": field \"x\" is not one of the format"},
      {"missing dtype",
       file_of_entries(header_entry("a", R"("shape":[1],"data_offsets":[0,4])"), 4),
       "tensor \"a\": dtype is missing"},
      {"missing offsets", file_of_entries(header_entry("a", R"("dtype":"F32","shape":[1])"), 4),
       "tensor \"a\": data_offsets is missing"},
      {"leading space", safetensors_bytes(cat(" {", a, "}"), "1234"),
       "the header does not begin with {"},
      {"NUL padding", safetensors_bytes(cat("{", a, "}", std::string(3, '\0')), "1234"),
       "the header holds a NUL byte at position 54"},
      {"bad UTF-8", safetensors_bytes(cat("{", f32_entry("\xff\xfe", "[1]", "[0,4]"), "}"), "1234"),
       "the header is not valid JSON at byte 3"},
      {"deep nesting", safetensors_bytes(nested_json(100'000), ""),
       "\"a\" must be an object, found a list"},
      {"deep objects", safetensors_bytes("{\"a\":{\"b\":{\"c\":{}}}}", ""),
       "tensor \"a\": field \"b\" is not one of the format"},
      {"a list for a header", safetensors_bytes("[]", ""), "the header does not begin with {"},
      {"unfinished JSON", safetensors_bytes(cat("{", a), "1234"),
       "the header is not valid JSON at byte 54"},
      {"text after the object", safetensors_bytes(cat("{", a, "}{}"), "1234"),
       "the header is not valid JSON at byte 55"},
  };
}

std::vector<Case> name_cases() {
  const auto named = [](const std::string& name) {
    return file_of_entries(f32_entry(name, "[1]", "[0,4]"), 4);
  };
  return {
      {"empty name", named(""), "tensor name \"\" is refused: it is empty"},
      {"NUL in a name", named("a\\u0000b"),
       "tensor name \"a\\x00b\" is refused: it holds a control character"},
      {"path out of the folder", named("../../etc/x"),
       "tensor name \"../../etc/x\" is refused: it reads as a path"},
      {"absolute path", named("/etc/x"), "tensor name \"/etc/x\" is refused: it reads as a path"},
      {"path with backslashes", named("a\\\\..\\\\b"),
       "tensor name \"a\\..\\b\" is refused: it reads as a path"},
      {"terminal escape", named("\\u001b[2J"),
       "tensor name \"\\x1b[2J\" is refused: it holds a control character"},
      {"very long name", named(std::string(5000, 'n')),
       cat("tensor name \"", std::string(120, 'n'),
           "...\" is refused: it is longer than 4096 bytes")},
  };
}

void check_all(const std::vector<Case>& cases) {
  const MemoryFolder folder;
  const std::string path = folder / "hostile.safetensors";
  for (const Case& one : cases) {
    INFO(one.what);
    write_text(path, one.bytes);
    REQUIRE(require_bad_input([&] { SafetensorsFile file(path); }) == path + ": " + one.message);
  }
}

}  // namespace

TEST_CASE("safetensors whose size or length field is wrong are refused") {
  check_all(size_cases());
}
TEST_CASE("safetensors whose tensors do not tile the data are refused") {
  check_all(layout_cases());
}
TEST_CASE("safetensors with values of another kind are refused") {
  check_all(value_cases());
}
TEST_CASE("safetensors with a malformed structure are refused") {
  check_all(structure_cases());
}
TEST_CASE("safetensors with names that are no tensor names are refused") {
  check_all(name_cases());
}

TEST_CASE("the tables contain at least 34 hostile cases") {
  REQUIRE(size_cases().size() + layout_cases().size() + value_cases().size() +
              structure_cases().size() + name_cases().size() >=
          34);
}

TEST_CASE("NaN and infinity in the data are accepted") {
  const MemoryFolder folder;
  const std::string nan("\0\0\xc0\x7f\0\0\x80\xff", 8);
  write_text(folder / "x", safetensors_bytes(cat("{", f32_entry("a", "[2]", "[0,8]"), "}"), nan));
  const SafetensorsFile file(folder / "x");
  REQUIRE(std::memcmp(file.tensor("a").bytes.data(), nan.data(), 8) == 0);
}

TEST_CASE("any mutation of a good file is read or refused, never anything else") {
  const std::string good = file_of_entries(
      cat("\"__metadata__\":{\"format\":\"pt\"},", f32_entry("a", "[2,1]", "[0,8]"), ",",
          f32_entry("b", "[]", "[8,12]"), ",", f32_entry("c", "[0]", "[12,12]")),
      12);
  std::mt19937_64 random(7);
  const std::string alphabet = cat("\"{}[],:0123456789-.eE\\uF32ashpedtyf_ \xff", '\0');
  int refused = 0;
  for (int round = 0; round < 60'000; ++round) {
    std::string bytes = good;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      const uint64_t kind = random() % 4;
      if (kind == 0) bytes[at] = static_cast<char>(random());
      if (kind == 1) bytes[at] = alphabet[random() % alphabet.size()];
      if (kind == 2) bytes.erase(at, 1 + random() % 4);
      if (kind == 3) bytes.insert(at, 1, alphabet[random() % alphabet.size()]);
      if (bytes.empty()) break;
    }
    // The copy is exactly as long as the data, so that a sanitizer sees each read past the end.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    try {
      const auto header = parse_safetensors(std::as_bytes(std::span(exact)), "x");
      int64_t data = 0;
      for (const StoredTensor& tensor : header.tensors) data += tensor.end - tensor.begin;
      REQUIRE(header.data_offset + data == static_cast<int64_t>(exact.size()));
    } catch (const Error& error) {
      ++refused;
      if (error.code() != ExitCode::kBadInput) FAIL(error.what());
    }
  }
  REQUIRE(refused > 30'000);
}

}  // namespace ftrun::testing
