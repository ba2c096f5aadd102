#include "checkpoint/hf_export.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/convert.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/save.h"
#include "fault_files.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::test {
namespace {
namespace fs = std::filesystem;

const std::vector<ExportTensor> kTensors{{"model.embed_tokens.weight", {10, 4}},
                                         {"model.layers.0.mlp.up_proj.weight", {6, 4}},
                                         {"model.norm.weight", {4}}};

float value_of(const std::string& tensor, int64_t element) {
  return static_cast<float>(tensor.size()) + 0.0078125F * static_cast<float>(element);
}

void read_values(const ExportPiece& piece, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = value_of(piece.tensor, piece.begin + static_cast<int64_t>(i));
}

ExportOptions options_for(const std::string& folder) {
  ExportOptions options;
  options.folder = folder;
  options.config_json =
      R"({"model_type": "llama", "my_own_key": {"b": 1, "a": [2]}, "rope_theta": 1e4})";
  options.piece_elements = 7;
  return options;
}

void check_values(const std::string& folder, DType dtype) {
  const ModelFolder model(folder);
  for (const ExportTensor& tensor : kTensors) {
    const StoredTensor& info = model.at(tensor.name);
    REQUIRE(info.shape == tensor.shape);
    REQUIRE(dtype_name(info.dtype) == dtype_name(dtype));
    std::vector<float> values(static_cast<size_t>(info.elements));
    model.read_f32(tensor.name, 0, info.elements, values);
    for (int64_t i = 0; i < info.elements; ++i) {
      const float value = value_of(tensor.name, i);
      REQUIRE(values[static_cast<size_t>(i)] ==
              (dtype == DType::kF32 ? value : f32_from_bf16(bf16_from_f32(value))));
    }
  }
}

}  // namespace

TEST_CASE("an export in one file holds every weight, in fp32 or rounded to bf16") {
  const TempFolder folder;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExportOptions options = options_for(folder / "export");
    options.dtype = dtype;
    export_model(posix_files(), options, kTensors, read_values);
    check_values(folder / "export", dtype);
    REQUIRE(posix_files().list(folder / "export") ==
            std::vector<std::string>{"config.json", "model.safetensors"});
    REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"export"});
  }
}

TEST_CASE("an export above the limit is sharded in model order, with an index") {
  const TempFolder folder;
  ExportOptions options = options_for(folder / "export");
  options.shard_bytes = 112;  // the last two fit in one file exactly; the first is larger alone
  export_model(posix_files(), options, kTensors, read_values);
  check_values(folder / "export", DType::kF32);
  const ModelFolder model(folder / "export");
  REQUIRE(model.weight_files() == std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                           "model-00002-of-00002.safetensors"});
  REQUIRE(model.file_of("model.norm.weight") == "model-00002-of-00002.safetensors");
  REQUIRE(read_text(folder / "export/model.safetensors.index.json") ==
          "{\n  \"metadata\": {\n    \"total_parameters\": 68,\n    \"total_size\": 272\n  },\n"
          "  \"weight_map\": {\n"
          "    \"model.embed_tokens.weight\": \"model-00001-of-00002.safetensors\",\n"
          "    \"model.layers.0.mlp.up_proj.weight\": \"model-00002-of-00002.safetensors\",\n"
          "    \"model.norm.weight\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
}

TEST_CASE("the pieces that helpers must gather come in the order of the export") {
  const TempFolder folder;
  ExportOptions options = options_for(folder / "export");
  options.shard_bytes = 112;
  std::vector<std::string> asked;
  export_model(
      posix_files(), options, kTensors, [&](const ExportPiece& piece, std::span<float> out) {
        asked.push_back(cat(piece.file, " ", piece.tensor, " ", piece.begin, " ", piece.end));
        REQUIRE(out.size() <= 7);
        read_values(piece, out);
      });
  std::vector<std::string> planned;
  for (const ExportPiece& piece : export_pieces(options, kTensors))
    planned.push_back(cat(piece.file, " ", piece.tensor, " ", piece.begin, " ", piece.end));
  REQUIRE(asked == planned);
  REQUIRE(planned.size() == 6 + 4 + 1);
}

TEST_CASE("tokenizer and other files pass through byte for byte, weights and links do not") {
  const TempFolder source;
  write_text(source / "config.json", "{}");
  write_text(source / "tokenizer.json", std::string("{\"a\":\0 }", 8));
  write_text(source / "generation_config.json", "{ }\n");
  write_text(source / "chat_template.jinja", "");
  write_text(source / "LICENSE", "free");
  write_text(source / "README.md", "the base model");
  write_text(source / "pytorch_model.bin", "weights");
  write_text(source / "model.safetensors", "weights");
  write_text(source / "model.safetensors.index.json", "{}");
  write_text(source / ".gitattributes", "");
  fs::create_directories(source / "onnx");
  const TempFolder folder;
  ExportOptions options = options_for(folder / "export");
  options.source_folder = source.path();
  export_model(posix_files(), options, kTensors, read_values);
  REQUIRE(posix_files().list(folder / "export") ==
          std::vector<std::string>{"LICENSE", "chat_template.jinja", "config.json",
                                   "generation_config.json", "model.safetensors",
                                   "tokenizer.json"});
  REQUIRE(read_text(folder / "export/tokenizer.json") == std::string("{\"a\":\0 }", 8));

  fs::create_symlink("/etc/hostname", source / "vocab.txt");
  options.folder = folder / "second";
  REQUIRE(bad_input([&] { export_model(posix_files(), options, kTensors, read_values); }) ==
          source.path() +
              ": file name \"vocab.txt\" is refused: it is a link that leaves the folder");
  REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"export"});
}

TEST_CASE("config.json keeps what it held and is spelt for old and new readers") {
  const auto config = [](const std::string& text, DType dtype) {
    return nlohmann::ordered_json::parse(exported_config(text, dtype, "c"));
  };
  REQUIRE(
      exported_config(R"({"z": 1, "unknown": {"b": null, "a": [1.5]}, "torch_dtype": "float16"})",
                      DType::kBF16, "c") ==
      "{\n  \"z\": 1,\n  \"unknown\": {\n    \"b\": null,\n    \"a\": [\n      1.5\n    ]\n  },\n"
      "  \"torch_dtype\": \"bfloat16\",\n  \"dtype\": \"bfloat16\"\n}\n");
  const auto old =
      config(R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}})",
             DType::kF32);
  REQUIRE(old["rope_parameters"].dump() ==
          R"({"rope_type":"llama3","factor":8.0,"rope_theta":500000.0})");
  REQUIRE(old["dtype"] == "float32");
  const auto plain = config(R"({"rope_theta": 1e4, "rope_scaling": null})", DType::kF32);
  REQUIRE(plain["rope_parameters"].dump() == R"({"rope_type":"default","rope_theta":10000.0})");
  const auto fresh =
      config(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})", DType::kF32);
  REQUIRE(fresh["rope_theta"] == 1e4);
  REQUIRE(fresh["rope_scaling"].is_null());
  const auto scaled =
      config(R"({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 1e4}})",
             DType::kF32);
  REQUIRE(scaled["rope_scaling"].dump() == R"({"rope_type":"linear","factor":2})");
  REQUIRE(bad_input([&] { config("[]", DType::kF32); }) == "c: must be a JSON object");
  REQUIRE(bad_input([&] { config("{\"a\":1,\"a\":2}", DType::kF32); }) ==
          "c: key \"a\" comes twice in one object");
}

TEST_CASE("an export replaces an earlier one and nothing else") {
  const TempFolder folder;
  fs::create_directories(folder / "mine");
  write_text(folder / "mine/thesis.txt", "years of work");
  ExportOptions options = options_for(folder / "mine/");
  REQUIRE(bad_input([&] { export_model(posix_files(), options, kTensors, read_values); }) ==
          (folder / "mine") + ": exists and is not a model folder, so it is not replaced");
  REQUIRE(read_text(folder / "mine/thesis.txt") == "years of work");

  fs::create_directories(folder / "empty");
  fs::create_directories(folder / "empty.tmp-12345678");
  options.folder = folder / "empty";
  export_model(posix_files(), options, kTensors, read_values);
  write_text(folder / "empty/model-00009-of-00009.safetensors", "stale");
  export_model(posix_files(), options, kTensors, read_values);
  check_values(folder / "empty", DType::kF32);
  REQUIRE(!fs::exists(folder / "empty/model-00009-of-00009.safetensors"));
  REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"empty", "mine"});
}

TEST_CASE("a failure at any call of an export leaves no half folder and keeps the old one") {
  int64_t refused = 0;
  for (int64_t k = 0;; ++k) {
    const TempFolder folder;
    FaultFileSystem files(folder.path());
    ExportOptions options = options_for(folder / "export");
    options.shard_bytes = 112;
    export_model(files, options, kTensors, read_values);
    const int64_t before = files.calls();
    files.fail_call(k, ENOSPC);
    options.dtype = DType::kBF16;
    bool failed = false;
    try {
      export_model(files, options, kTensors, read_values);
    } catch (const Error& error) {
      failed = true;
      REQUIRE(error.code() == ExitCode::kEnvironment);
    }
    if (!failed && files.calls() - before <= k) break;
    refused += failed ? 1 : 0;
    INFO("call " << k);
    if (!fs::exists(folder / "export")) {
      // Between the two moves the old folder waits beside its place.
      const auto names = posix_files().list(folder.path());
      REQUIRE(names.size() >= 1);
      REQUIRE(names[0].find("export.old-") == 0);
      check_values(folder / names[0], DType::kF32);
    } else {
      const bool is_new =
          ModelFolder(folder / "export").at("model.norm.weight").dtype == DType::kBF16;
      check_values(folder / "export", is_new ? DType::kBF16 : DType::kF32);
    }
  }
  REQUIRE(refused > 20);
}

TEST_CASE("the parameters of a checkpoint of 3 ranks are exported by one process") {
  const TempFolder run;
  const auto errors = run_ranks(3, [&](const CheckpointGroup& group) {
    ToyState state(3, group.rank, 2);
    save_checkpoint(posix_files(), {.root = run / "checkpoints"}, toy_meta(4, 3), state.slices(),
                    group);
  });
  REQUIRE(errors == std::vector<std::string>(3));
  export_checkpoint(posix_files(), run / "checkpoints/step-00000004", options_for(run / "export"));
  const ModelFolder model(run / "export");
  REQUIRE(model.names().size() == ToyState::tensors().size());
  ToyState expected(1, 0, 2);
  for (const StateSlice& slice : expected.slices()) {
    if (slice.kind != "param") continue;
    std::vector<float> values(static_cast<size_t>(slice.end));
    model.read_f32(slice.tensor, 0, slice.end, values);
    REQUIRE(model.at(slice.tensor).shape == slice.tensor_shape);
    REQUIRE(std::equal(values.begin(), values.end(), static_cast<const float*>(slice.data)));
  }
}

TEST_CASE("a checkpoint without parameters is not exported") {
  const TempFolder run;
  float value = 1;
  save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 1),
                  {{"a", "exp_avg", DType::kF32, {}, 0, 1, &value}}, CheckpointGroup{});
  REQUIRE(bad_input([&] {
            export_checkpoint(posix_files(), run / "step-00000001", options_for(run / "export"));
          }) == (run / "step-00000001/checkpoint.json") + ": holds no parameters (kind \"param\")");
}

}  // namespace ftrun::test
