#include "checkpoint/checkpoint_manifest.h"

#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "checkpoint/json_strict.h"
#include "sweep.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

CheckpointManifest small_manifest() {
  CheckpointManifest manifest{toy_meta(5, 1), 3, {}};
  RankRecord rank{0, "rank-00000.safetensors", 100, 1, 2, {}};
  rank.slices.push_back(slice_record("a.weight", "param", DType::kBF16, {2, 3}, {{0, 1}, {2, 2}}));
  rank.slices.back().xxh3 = 77;
  rank.slices.push_back(slice_record("b", "param", DType::kF32, {}, {}));
  rank.slices.back().xxh3 = 78;
  manifest.files.push_back(rank);
  return manifest;
}

// Returns a changed text with its correct checksum.
std::string with_correct_checksum(std::string text) {
  const size_t start = std::string("{\n\"xxh3\": \"").size();
  const std::string rest = text.substr(start + 16);
  return text.substr(0, start) + hex64(xxh3(rest.data(), rest.size())) + rest;
}

std::string manifest_with(const std::string& from, const std::string& to) {
  std::string text = manifest_text(small_manifest());
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return with_correct_checksum(text.replace(at, from.size(), to));
}

std::string refusal(const std::string& text) {
  return require_bad_input([&] { parse_manifest(text, "m"); });
}

}  // namespace

TEST_CASE("a manifest is read as it was written") {
  const CheckpointManifest read = parse_manifest(manifest_text(small_manifest()), "m");
  REQUIRE(manifest_text(read) == manifest_text(small_manifest()));
  REQUIRE(read.serial == 3);
  REQUIRE(read.files[0].slices[0].tensor_shape == std::vector<int64_t>{2, 3});
  REQUIRE(read.files[0].slices[0].xxh3 == 77);
}

TEST_CASE("a rank's record is read back from its text") {
  const RankRecord record = small_manifest().files[0];
  const RankRecord read = parse_rank_record(rank_record_text(record), "r");
  REQUIRE(rank_record_text(read) == rank_record_text(record));
}

TEST_CASE("slices are named by tensor, kind and box, and have the box's shape") {
  const auto record = [](std::vector<int64_t> shape, Box box) {
    return slice_record("a", "exp_avg", DType::kF32, std::move(shape), std::move(box));
  };
  REQUIRE(record({2, 3}, {{0, 0}, {2, 3}}).entry == "a.exp_avg");
  REQUIRE(part_text(record({2, 3}, {{0, 0}, {2, 3}})) == "");
  REQUIRE(record({2, 3}, {{0, 1}, {2, 2}}).entry == "a.exp_avg[0:2,1:3]");
  REQUIRE(part_text(record({2, 3}, {{0, 1}, {2, 2}})) == "[0:2,1:3]");
  REQUIRE(record({2, 3}, {{0, 1}, {2, 2}}).entry_shape == std::vector<int64_t>{2, 2});
  REQUIRE(record({5}, {{2}, {3}}).entry == "a.exp_avg[2:5]");
  REQUIRE(record({}, {}).entry == "a.exp_avg");
}

TEST_CASE("step folders are recognized exactly") {
  REQUIRE(step_folder_name(100) == "step-00000100");
  REQUIRE(step_folder_name(1234567890123) == "step-1234567890123");
  REQUIRE(step_of_folder("step-00000100") == 100);
  REQUIRE(step_of_folder("step-1234567890123") == 1234567890123);
  for (const char* name :
       {"step-100", "step-00000100.tmp-1", "step--0000001", "latest", "step-", ""})
    REQUIRE(!step_of_folder(name));
}

TEST_CASE("every change of a manifest's bytes is noticed") {
  const std::string good = manifest_text(small_manifest());
  for (size_t at = 0; at < good.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = good;
      text[at] = static_cast<char>(text[at] ^ (1 << bit));
      REQUIRE_THROWS_AS(parse_manifest(text, "m"), Error);
    }
  for (size_t size = 0; size < good.size(); ++size)
    REQUIRE_THROWS_AS(parse_manifest(good.substr(0, size), "m"), Error);
}

TEST_CASE("manifests that verify but make no sense are refused") {
  REQUIRE(refusal("") == "m: does not begin as a checkpoint manifest");
  REQUIRE(refusal(manifest_with("\"format\": 2", "\"format\": 3")) ==
          "m: has checkpoint format 3, but this ftrun reads format 2");
  REQUIRE(refusal(manifest_with("\"serial\": 3", "\"serial\": -3")) ==
          "m: field \"serial\" is -3, but at least 0 was expected");
  REQUIRE(refusal(manifest_with("\"serial\": 3", "\"serial\": 3.5")) ==
          "m: field \"serial\" must be an integer, found 3.5");
  REQUIRE(refusal(manifest_with("\"serial\": 3", "\"serial\": 18446744073709551615")) ==
          "m: field \"serial\" must be an integer, found 18446744073709551615");
  REQUIRE(refusal(manifest_with("\"serial\": 3", "\"serial\": 9223372036854775807")) ==
          "m: field \"serial\" is 9223372036854775807, but at most 9007199254740992 was expected");
  REQUIRE(refusal(manifest_with("\"serial\": 3", "\"sreial\": 3")) ==
          "m: field \"serial\" is missing");
  REQUIRE(refusal(manifest_with("\"serial\": 3", "\"serial\": 3, \"serial\": 3")) ==
          "m: key \"serial\" appears twice in one object");
  REQUIRE(refusal(manifest_with("\"file\":\"rank-00000.safetensors\"", "\"file\":\"../x\"")) ==
          "m: the file of rank 0 must be rank-00000.safetensors, found ../x");
  REQUIRE(refusal(manifest_with("[2,3]", "[4294967296,4294967296]")) ==
          "m: rank-00000.safetensors: tensor \"a.weight\": shape has too many elements");
  REQUIRE(refusal(manifest_with("[2,3]", "[2,-3]")) ==
          "m: rank-00000.safetensors: tensor \"a.weight\": field \"shape\" must hold integers of 0 "
          "or more");
  REQUIRE(refusal(manifest_with("\"BF16\"", "\"BF17\"")) ==
          "m: rank-00000.safetensors: tensor \"a.weight\": dtype \"BF17\" is unknown");
  REQUIRE(refusal(manifest_with("\"rank\":0", "\"rank\":1")) ==
          "m: the file of rank 1 must be rank-00001.safetensors, found rank-00000.safetensors");
  REQUIRE(refusal(manifest_with("\"xxh3\":\"000000000000004d\"", "\"xxh3\":\"4d\"")) ==
          "m: rank-00000.safetensors: tensor \"a.weight\": field \"xxh3\" must be 16 hexadecimal "
          "digits, found \"4d\"");
}

TEST_CASE("boxes that are not inside of their tensor are refused") {
  const std::string where = "m: rank-00000.safetensors: tensor \"a.weight\": ";
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::string& message) {
    REQUIRE(refusal(manifest_with(from, to)) == where + message);
  };
  const std::string offset = "\"offset\":[0,1]", extent = "\"extent\":[2,2]";
  refused(offset, "\"offset\":[0,2]",
          "the slice begins at 2 of dimension 1 and has 2, the tensor has 3");
  refused(offset, "\"offset\":[9223372036854775807,1]",
          "the slice begins at 9223372036854775807 of dimension 0 and has 2, the tensor has 2");
  refused(extent, "\"extent\":[2,9223372036854775807]",
          "the slice begins at 1 of dimension 1 and has 9223372036854775807, the tensor has 3");
  refused(extent, "\"extent\":[2,0]", "the slice is empty in dimension 1");
  refused(extent, "\"extent\":[2,-2]", "field \"extent\" must hold integers of 0 or more");
  refused(extent, "\"extent\":[2,18446744073709551615]",
          "field \"extent\" must hold integers of 0 or more");
  refused(extent, "\"extent\":[2,1.5]", "field \"extent\" must hold integers of 0 or more");
  refused(extent, "\"extent\":2", "field \"extent\" must be a list, found 2");
  refused(extent, "\"extend\":[2,2]", "field \"extent\" is missing");
  refused(offset, "\"offset\":[-1,1]", "field \"offset\" must hold integers of 0 or more");
  refused(offset, "\"offset\":[0]", "field \"offset\" has 1 dimension, the shape has 2");
  refused(extent, "\"extent\":[2,2,1]", "field \"extent\" has 3 dimensions, the shape has 2");
  refused("[2,3]", "[1,1,1,1,1,1,1,1,1]", "field \"shape\" has more than 8 dimensions");
  refused("[2,3]", "[0,3]", "the slice begins at 0 of dimension 0 and has 2, the tensor has 0");
}

TEST_CASE("two slices of one rank with the same entry are refused") {
  CheckpointManifest manifest = small_manifest();
  auto& slices = manifest.files[0].slices;
  slices.push_back(slices[0]);
  REQUIRE(refusal(manifest_text(manifest)) ==
          "m: rank-00000.safetensors: slice \"a.weight.param[0:2,1:3]\" appears twice");
  // The whole tensor of one kind has the same name as a part of another kind.
  slices.back() =
      slice_record("a.weight", "param[0:2,1:3]", DType::kBF16, {2, 2}, {{0, 0}, {2, 2}});
  REQUIRE(refusal(manifest_text(manifest)) ==
          "m: rank-00000.safetensors: slice \"a.weight.param[0:2,1:3]\" appears twice");
}

TEST_CASE("hostile JSON is refused with its position") {
  const auto refused = [](const std::string& text) {
    return require_bad_input([&] { parse_json_strict(text, "f"); });
  };
  REQUIRE(refused("{\n \"a\": }") == "f:2:7: is not valid JSON");
  REQUIRE(refused("") == "f:1:1: is not valid JSON");
  REQUIRE(refused(std::string("{}\0", 3)) == "f:1:3: holds a NUL byte");
  REQUIRE(refused("{\"a\":\"\xff\"}") == "f:1:7: is not valid JSON");
  REQUIRE(refused("{\"a\":{\"b\":1,\"b\":2}}") == "f: key \"b\" appears twice in one object");
  REQUIRE(refused("[1e999]") == "f: is not valid JSON (a number is out of range)");
  REQUIRE(refused(std::string(100'000, '[')) == "f: is nested deeper than 32 levels");
  REQUIRE(parse_json_strict("{\"a\":{\"b\":1},\"b\":{\"b\":2}}", "f").size() == 2);
}

TEST_CASE("any mutation of a manifest under a correct checksum is read or refused") {
  const std::string good = manifest_text(small_manifest());
  std::mt19937_64 random(11);
  for (int round = 0; round < sweep_rounds(20'000); ++round) {
    std::string text = good;
    const size_t at = 28 + random() % (text.size() - 32);
    const uint64_t kind = random() % 3;
    if (kind == 0) text[at] = static_cast<char>(random());
    if (kind == 1) text.erase(at, 1 + random() % 5);
    if (kind == 2) text.insert(at, 1, "0-\"[]{},9"[random() % 9]);
    try {
      parse_manifest(with_correct_checksum(text), "m");
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadInput) FAIL(error.what());
    }
  }
}

}  // namespace ftrun::testing
