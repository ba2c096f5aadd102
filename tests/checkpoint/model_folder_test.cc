#include "checkpoint/model_folder.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/half_floats.h"
#include "checkpoint/inspect.h"
#include "checkpoint/safetensors_writer.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {
namespace fs = std::filesystem;

struct Weight {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

std::vector<std::byte> weight_bytes(const Weight& weight) {
  std::vector<std::byte> bytes(weight.values.size() *
                               static_cast<size_t>(dtype_bytes(weight.dtype)));
  for (size_t i = 0; i < weight.values.size(); ++i) {
    if (weight.dtype == DType::kF32) std::memcpy(&bytes[i * 4], &weight.values[i], 4);
    if (weight.dtype == DType::kBF16) {
      const uint16_t half = bf16_from_f32(weight.values[i]);
      std::memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

void write_weights(const std::string& path, const std::vector<Weight>& weights) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const Weight*> by_name;
  for (const Weight& weight : weights) {
    specs.push_back({weight.name, weight.dtype, weight.shape});
    by_name[weight.name] = &weight;
  }
  SafetensorsWriter writer(posix_files(), path, specs);
  for (const TensorSpec& spec : writer.tensors())
    writer.append(spec.name, weight_bytes(*by_name[spec.name]));
  writer.finish();
}

const Weight kEmbed{"model.embed_tokens.weight", DType::kF32, {3, 2}, {1, 2, 3, 4, 5.00390625F, 6}};
const Weight kNorm{"model.norm.weight", DType::kBF16, {2}, {0.5F, -1.5F}};

constexpr const char* kConfig = "{\"model_type\": \"llama\", \"hidden_size\": 2}";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

std::string index_text(const std::string& embed_file, const std::string& norm_file) {
  return cat(
      "{\"metadata\": {\"total_size\": 28}, \"weight_map\": {\"model.embed_tokens.weight\": \"",
      embed_file, "\", \"model.norm.weight\": \"", norm_file, "\"}}");
}

void write_sharded_model(const TemporaryFolder& folder) {
  write_text(folder / "config.json", kConfig);
  write_weights(folder / kFirst, {kEmbed});
  write_weights(folder / kSecond, {kNorm});
  write_text(folder / "model.safetensors.index.json", index_text(kFirst, kSecond));
}

void check_weights(const ModelFolder& model) {
  std::vector<float> values(3);
  model.read_f32("model.embed_tokens.weight", 2, 5, values);
  REQUIRE(values == std::vector<float>{3, 4, 5.00390625F});
  model.release("model.embed_tokens.weight", 2, 5);
  values.resize(1);
  model.read_f32("model.norm.weight", 1, 2, values);
  REQUIRE(values == std::vector<float>{-1.5F});
  std::vector<uint16_t> halves(2);
  model.read_bf16("model.embed_tokens.weight", 4, 6, halves);
  REQUIRE(halves == std::vector<uint16_t>{bf16_from_f32(5.0F), bf16_from_f32(6)});
  REQUIRE(model.names() ==
          std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"});
  REQUIRE(model.at("model.norm.weight").shape == std::vector<int64_t>{2});
  REQUIRE(model.find("lm_head.weight") == nullptr);
  REQUIRE(model.config_json() == kConfig);
}

std::string opening_error(const TemporaryFolder& folder) {
  return require_bad_input([&] { ModelFolder model(folder.path()); });
}

}  // namespace

TEST_CASE("a model in one file is read, range by range") {
  const MemoryFolder folder;
  write_text(folder / "config.json", kConfig);
  write_weights(folder / "model.safetensors", {kEmbed, kNorm});
  check_weights(ModelFolder(folder.path()));
}

TEST_CASE("a sharded model is read, range by range") {
  const MemoryFolder folder;
  write_sharded_model(folder);
  const ModelFolder model(folder.path());
  check_weights(model);
  REQUIRE(model.file_of("model.norm.weight") == kSecond);
  REQUIRE(model.weight_files() == std::vector<std::string>{kFirst, kSecond});
}

TEST_CASE("files linked from a hub cache are read") {
  const MemoryFolder cache;
  const std::string snapshot = cache / "models--x/snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "models--x/blobs");
  write_text(cache / "models--x/blobs/1", kConfig);
  write_weights(cache / "models--x/blobs/2", {kEmbed, kNorm});
  fs::create_symlink("../../blobs/1", snapshot + "/config.json");
  fs::create_symlink("../../blobs/2", snapshot + "/model.safetensors");
  check_weights(ModelFolder(snapshot));
}

TEST_CASE(
    "a config.json or an index of shards that is far too large is refused before it is read") {
  const MemoryFolder folder;
  write_sharded_model(folder);
  const std::string index = folder / "model.safetensors.index.json";
  fs::resize_file(index, 65 << 20);  // sparse
  REQUIRE(opening_error(folder) == index + ": is 65.00 MiB, larger than the limit of 64.00 MiB");
  fs::resize_file(folder / "config.json", 5 << 20);
  REQUIRE(opening_error(folder) ==
          folder / "config.json" + ": is 5.00 MiB, larger than the limit of 4.00 MiB");
}

TEST_CASE("a folder that is no model is refused with what it lacks") {
  const MemoryFolder folder;
  REQUIRE(require_bad_input([&] { ModelFolder model(folder / "none"); }) ==
          (folder / "none") + ": is not a folder");
  REQUIRE(opening_error(folder) == folder.path() + ": has no config.json");
  write_text(folder / "config.json", kConfig);
  REQUIRE(opening_error(folder) ==
          folder.path() + ": has neither model.safetensors nor model.safetensors.index.json");
  write_text(folder / "pytorch_model.bin", "");
  REQUIRE(opening_error(folder) ==
          folder.path() + ": has its weights only as pickles (pytorch_model*.bin)");
}

TEST_CASE("an index with wrong entries is refused") {
  const MemoryFolder folder;
  write_sharded_model(folder);
  const std::string index = folder / "model.safetensors.index.json";
  write_text(index, index_text(kSecond, kFirst));
  REQUIRE(opening_error(folder) ==
          cat(folder / kFirst,
              ": tensor \"model.embed_tokens.weight\" is here, the index says it is in ", kSecond));
  write_text(index, index_text(kFirst, kFirst));
  REQUIRE(opening_error(folder) == cat(index, ": tensor \"model.norm.weight\" should be in ",
                                       kFirst, ", which does not hold it"));
  write_text(index, index_text(kFirst, "model-00003.safetensors"));
  REQUIRE(opening_error(folder) ==
          cat(index, ": shard model-00003.safetensors is missing from the folder"));
  write_text(index, "{\"weight_map\": {}}");
  REQUIRE(opening_error(folder) == index + ": weight_map is empty");
  write_text(index, "{\"weight_map\": []}");
  REQUIRE(opening_error(folder) == index + ": field \"weight_map\" must be an object, found []");
  write_text(index, "{\"weight_map\": {\"a\": 1}}");
  REQUIRE(opening_error(folder) == index + ": weight_map \"a\" must be a file name");
  write_text(index, "{}");
  REQUIRE(opening_error(folder) == index + ": field \"weight_map\" is missing");
  write_text(index, "{");
  REQUIRE(opening_error(folder) == index + ":1:2: is not valid JSON");
}

TEST_CASE("one tensor in two shards is refused, one that the index does not list is not used") {
  const MemoryFolder folder;
  write_sharded_model(folder);
  write_weights(folder / kSecond, {kNorm, {"extra", DType::kF32, {1}, {1}}});
  const std::string log = capture_log([&] {
    const ModelFolder model(folder.path());
    REQUIRE(model.find("extra") == nullptr);
  });
  REQUIRE(log.find("tensor \"extra\" is not in the index and not used") != std::string::npos);
  write_weights(folder / kSecond, {kNorm, kEmbed});
  REQUIRE(opening_error(folder) ==
          cat(folder / kSecond,
              ": tensor \"model.embed_tokens.weight\" is here, the index says it is in ", kFirst));
}

TEST_CASE("an index cannot name a file outside its folder") {
  const MemoryFolder outside;
  write_weights(outside / "secret.safetensors", {kNorm});
  const MemoryFolder folder;
  write_sharded_model(folder);
  const std::string index = folder / "model.safetensors.index.json";
  for (const std::string& name :
       {"../" + fs::path(outside.path()).filename().string() + "/secret.safetensors",
        outside / "secret.safetensors", std::string("."), std::string(".."), std::string("sub/x"),
        std::string(300, 'x'), std::string("a\\u0000b")}) {
    write_text(index, index_text(kFirst, name));
    INFO(name);
    REQUIRE(opening_error(folder).find(folder.path() + ": file name \"") == 0);
  }
}

TEST_CASE(
    "weight files may be links, also of a sharded model and to another disk; a dangling link is "
    "named") {
  const MemoryFolder disk;
  const MemoryFolder folder;
  write_sharded_model(disk);
  for (const std::string& name : posix_files().list(disk.path()))
    fs::create_symlink(disk / name, folder / name);
  check_weights(ModelFolder(folder.path()));
  fs::rename(disk / kSecond, disk / "moved");
  REQUIRE(opening_error(folder) == cat(folder / kSecond, ": cannot be read: it is a link to ",
                                       disk / kSecond, ", which does not exist"));
  fs::remove(folder / "model.safetensors.index.json");
  fs::create_symlink("../../blobs/12", folder / "model.safetensors");
  REQUIRE(opening_error(folder) ==
          folder / "model.safetensors" +
              ": cannot be read: it is a link to ../../blobs/12, which does not exist");
}

TEST_CASE("reading a tensor or a range that the weights do not have is refused") {
  const MemoryFolder folder;
  write_text(folder / "config.json", kConfig);
  write_weights(folder / "model.safetensors", {kEmbed, {"ids", DType::kI64, {0}, {}}});
  const ModelFolder model(folder.path());
  std::vector<float> values(9);
  REQUIRE(require_bad_input([&] { model.read_f32("model.norm.weight", 0, 9, values); }) ==
          folder.path() + ": the weights have no tensor \"model.norm.weight\"");
  REQUIRE(require_bad_input([&] { model.read_f32("model.embed_tokens.weight", 0, 9, values); }) ==
          (folder / "model.safetensors") +
              ": tensor \"model.embed_tokens.weight\" has 6 elements, 0 to 9 were requested");
  REQUIRE(require_bad_input([&] { model.read_f32("ids", 0, 0, {}); }) ==
          (folder / "model.safetensors") +
              ": tensor \"ids\" holds I64, but weights must be F32, BF16 or F16");
}

TEST_CASE(
    "a tensor with another name in the folder is read by its new name, and the samples of weights "
    "stay those of the files") {
  const MemoryFolder folder;
  write_text(folder / "config.json", kConfig);
  write_weights(folder / "model.safetensors",
                {{"_orig_mod.model.norm.weight", kNorm.dtype, kNorm.shape, kNorm.values}, kEmbed});
  ModelFolder model(folder.path());
  const std::string before = model.weights_fingerprint();
  model.rename({{"model.norm.weight", "_orig_mod.model.norm.weight"}});
  CHECK(model.names() ==
        std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"});
  std::vector<float> norm(2);
  model.read_f32("model.norm.weight", 0, 2, norm);
  CHECK(norm == kNorm.values);
  CHECK(model.find("_orig_mod.model.norm.weight") == nullptr);
  CHECK(model.weights_fingerprint() == before);
}

TEST_CASE(
    "a model folder's fingerprint changes with config, names and shapes and with nothing else") {
  const MemoryFolder folder;
  write_sharded_model(folder);
  const std::string first = ModelFolder(folder.path()).fingerprint();
  REQUIRE(first == ModelFolder(folder.path()).fingerprint());
  write_text(folder / "tokenizer.json", "{}");
  REQUIRE(first == ModelFolder(folder.path()).fingerprint());
  write_text(folder / "config.json", "{}");
  REQUIRE(first != ModelFolder(folder.path()).fingerprint());
  write_text(folder / "config.json", kConfig);
  Weight norm = kNorm;
  norm.shape = {1, 2};
  write_weights(folder / kSecond, {norm});
  REQUIRE(first != ModelFolder(folder.path()).fingerprint());
}

TEST_CASE("describe_model() lists what a model folder holds") {
  const MemoryFolder folder;
  write_sharded_model(folder);
  const std::string text = describe_model(folder.path()).text();
  const auto row = [](std::string name, size_t width, const std::string& value) {
    name.resize(width, ' ');
    return cat(name, value, "\n");
  };
  REQUIRE(text.find(row("model_type", 13, "llama")) != std::string::npos);
  REQUIRE(text.find(row("parameters", 13, "8")) != std::string::npos);
  REQUIRE(text.find(row("F32", 13, "1 tensor, 6 elements, 24 B")) != std::string::npos);
  REQUIRE(text.find(row("model.embed_tokens.weight", 27, "F32 [3, 2]")) != std::string::npos);
}

}  // namespace ftrun::testing
