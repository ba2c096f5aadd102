#include "checkpoint/hf_export.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/half_floats.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/exported_config.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/output_mark.h"
#include "checkpoint/save.h"
#include "fault_files.h"
#include "sweep.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
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

/// Returns the weights of a checkpoint, each as a separate tensor.
std::vector<ExportTensor> weights_of(const std::string& checkpoint) {
  std::vector<ExportTensor> tensors;
  for (const auto& [name, shape] : list_weight_shapes(checkpoint)) tensors.push_back({name, shape});
  return tensors;
}

/// Base is a model folder with additional files and a folder, which an export must copy.
struct Base {
  Base() {
    fs::create_directories(folder / "additional_chat_templates");
    write_text(folder / "tokenizer.json", "{}");
    write_text(folder / "additional_chat_templates/tools.jinja", "{{ tools }}");
  }
  ExportOptions export_to(const std::string& place) const {
    ExportOptions options = options_for(place);
    options.source_folder = folder.path();
    return options;
  }
  MemoryFolder folder;
};

/// Rounds to a number of significant bits, for normal numbers; ties to even.
float round_to_digits(float value, int digits) {
  const int last = std::ilogb(value) - digits + 1;
  return std::ldexp(std::nearbyint(std::ldexp(value, -last)), last);
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
      REQUIRE(
          values[static_cast<size_t>(i)] ==
          (dtype == DType::kF32 ? value : round_to_digits(value, dtype == DType::kF16 ? 11 : 8)));
    }
  }
}

}  // namespace

TEST_CASE("an export in one file holds every weight, in fp32 or rounded to 16 bits") {
  const MemoryFolder folder;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    ExportOptions options = options_for(folder / "export");
    options.dtype = dtype;
    export_model(posix_files(), options, kTensors, read_values);
    check_values(folder / "export", dtype);
    REQUIRE(posix_files().list(folder / "export") ==
            std::vector<std::string>{"config.json", kOutputMark, "model.safetensors"});
    REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"export"});
  }
}

TEST_CASE("values that fp16 cannot hold are refused, not exported as infinity") {
  const MemoryFolder folder;
  ExportOptions options = options_for(folder / "export");
  options.dtype = DType::kF16;
  const auto exports = [&](float value) {
    export_model(posix_files(), options, kTensors,
                 [&](const ExportPiece& piece, std::span<float> out) {
                   read_values(piece, out);
                   if (piece.tensor == "model.norm.weight") out[2] = value;
                 });
  };
  exports(-65504);
  exports(std::numeric_limits<float>::infinity());  // as it was trained
  REQUIRE(require_error(ExitCode::kNumerical, [&] { exports(70'000); }) ==
          "tensor model.norm.weight holds 70000; fp16 holds at most 65504");
  REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"export"});
}

TEST_CASE("an export above the limit is sharded in model order, with an index") {
  const MemoryFolder folder;
  ExportOptions options = options_for(folder / "export");
  options.shard_bytes = 112;  // the last two fill one file exactly; the first alone is larger
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

TEST_CASE("the planned pieces of an export are in the order in which the export requests them") {
  const MemoryFolder folder;
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

TEST_CASE("tokenizer and other files pass through byte for byte, weights do not") {
  const MemoryFolder source;
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
  write_text(source / kOutputMark, "of the export that this model is");
  fs::create_directories(source / "onnx");
  fs::create_directories(source / "additional_chat_templates");
  write_text(source / "additional_chat_templates/tools.jinja", "{{ tools }}");
  write_text(source / "additional_chat_templates/model.safetensors", "weights");
  write_text(source / "additional_chat_templates/._tools.jinja", "of another system");
  const MemoryFolder folder;
  ExportOptions options = options_for(folder / "export");
  options.source_folder = source.path();
  export_model(posix_files(), options, kTensors, read_values);
  REQUIRE(posix_files().list(folder / "export") ==
          std::vector<std::string>{"LICENSE", "additional_chat_templates", "chat_template.jinja",
                                   "config.json", kOutputMark, "generation_config.json",
                                   "model.safetensors", "tokenizer.json"});
  REQUIRE(read_text(folder / "export/tokenizer.json") == std::string("{\"a\":\0 }", 8));
  REQUIRE(posix_files().list(folder / "export/additional_chat_templates") ==
          std::vector<std::string>{"tools.jinja"});
  REQUIRE(read_text(folder / "export/additional_chat_templates/tools.jinja") == "{{ tools }}");
  REQUIRE(read_text(folder / cat("export/", kOutputMark)).find("\"complete\": true") !=
          std::string::npos);
}

TEST_CASE("files of a hub's cache, all of them links, are copied as files") {
  const MemoryFolder cache;
  const std::string snapshot = cache / "models--me--tiny/snapshots/0123";
  fs::create_directories(cache / "models--me--tiny/blobs");
  fs::create_directories(snapshot);
  for (const std::string name :
       {"config.json", "tokenizer.json", "vocab.txt", "model.safetensors"}) {
    write_text(cache / ("models--me--tiny/blobs/" + name), "blob of " + name);
    fs::create_symlink("../../blobs/" + name, snapshot + "/" + name);
  }
  const MemoryFolder folder;
  ExportOptions options = options_for(folder / "export");
  options.source_folder = snapshot;
  REQUIRE(capture_log([&] { export_model(posix_files(), options, kTensors, read_values); }) == "");
  REQUIRE(read_text(folder / "export/tokenizer.json") == "blob of tokenizer.json");
  REQUIRE(fs::is_regular_file(fs::symlink_status(folder / "export/tokenizer.json")));
  check_values(folder / "export", DType::kF32);
}

TEST_CASE("a link that leads elsewhere is followed and reported") {
  const MemoryFolder elsewhere;
  const MemoryFolder source;
  const MemoryFolder folder;
  write_text(elsewhere / "words", "words");
  fs::create_symlink(elsewhere / "words", source / "vocab.txt");
  ExportOptions options = options_for(folder / "export");
  options.source_folder = source.path();
  REQUIRE(capture_log([&] { export_model(posix_files(), options, kTensors, read_values); })
              .find(cat(source / "vocab.txt", ": is a link to ", elsewhere / "words",
                        ", whose content is copied")) != std::string::npos);
  REQUIRE(read_text(folder / "export/vocab.txt") == "words");
}

TEST_CASE("files that cannot be copied are all named before anything is written") {
  const MemoryFolder source;
  const MemoryFolder folder;
  fs::create_symlink("../../blobs/77", source / "tokenizer.json");
  fs::create_symlink("/dev/null", source / "merges.txt");
  write_text(source / "special_tokens_map.json",
             "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  fs::create_directories(source / "onnx");
  fs::create_symlink(source / "gone.bin", source / "pytorch_model.bin");  // is not copied
  ExportOptions options = options_for(folder / "export");
  options.source_folder = source.path();
  REQUIRE(require_bad_input([&] { export_model(posix_files(), options, kTensors, read_values); }) ==
          source.path() +
              ": files that the exported model needs cannot be read:\n"
              "  merges.txt: it is not a regular file\n"
              "  special_tokens_map.json: it is a Git LFS pointer; fetch it: git -C " +
              source.path() +
              " lfs pull (or download the file itself)\n"
              "  tokenizer.json: it is a link to ../../blobs/77, which does not exist");
  REQUIRE(posix_files().list(folder.path()).empty());
}

TEST_CASE("config.json keeps its keys and is written for old and new readers") {
  const auto config = [](const std::string& text, DType dtype) {
    return nlohmann::ordered_json::parse(exported_config(text, dtype, "", "c"));
  };
  REQUIRE(
      exported_config(R"({"z": 1, "unknown": {"b": null, "a": [1.5]}, "torch_dtype": "float16"})",
                      DType::kBF16, "", "c") ==
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
  const std::string longrope = R"({"type":"longrope","short_factor":[1.0,2.000000000000001],)"
                               R"("long_factor":[1.0,64.81001281738281]})";
  const auto phi =
      config(R"({"original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
                              "rope_theta": 1e4, "rope_scaling": )" +
                 longrope + "}",
             DType::kBF16);
  REQUIRE(phi["rope_scaling"].dump() == longrope);
  REQUIRE(phi["rope_parameters"].dump() == longrope.substr(0, longrope.size() - 1) +
                                               R"(,"rope_theta":10000.0,"rope_type":"longrope"})");
  REQUIRE(phi["original_max_position_embeddings"] == 4096);
  const auto yarn = config(
      R"({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32,
                                     "truncate": false,
                                     "mscale_all_dim": null, "rope_theta": 1e6}})",
      DType::kF32);
  REQUIRE(
      yarn["rope_scaling"].dump() ==
      R"({"rope_type":"yarn","factor":4.0,"beta_fast":32,"truncate":false,"mscale_all_dim":null})");
  REQUIRE(yarn["rope_theta"] == 1e6);
  REQUIRE(require_bad_input([&] { config("[]", DType::kF32); }) == "c: must be a JSON object");
  REQUIRE(require_bad_input([&] { config("{\"a\":1,\"a\":2}", DType::kF32); }) ==
          "c: key \"a\" appears twice in one object");
}

TEST_CASE(
    "a decoder's config is written inside config.json for multimodal models, and for no others") {
  const std::string text =
      R"({"rope_theta": 1e4, "text_config": {"rope_theta": 1e6, "dtype": "float16"}})";
  const auto inside =
      nlohmann::ordered_json::parse(exported_config(text, DType::kF32, "text_config", "c"));
  CHECK(inside["dtype"] == "float32");
  CHECK_FALSE(inside.contains("rope_parameters"));
  CHECK(inside["text_config"]["dtype"] == "float32");
  CHECK(inside["text_config"]["rope_parameters"]["rope_theta"] == 1e6);
  const auto beside = nlohmann::ordered_json::parse(exported_config(text, DType::kF32, "", "c"));
  CHECK(beside["rope_parameters"]["rope_theta"] == 1e4);
  CHECK(beside["text_config"].dump() == R"({"rope_theta":1000000.0,"dtype":"float16"})");
}

TEST_CASE("an export replaces an empty folder and an earlier export") {
  const MemoryFolder folder;
  fs::create_directories(folder / "out");
  ExportOptions options = options_for(folder / "out/");
  options.shard_bytes = 112;
  export_model(posix_files(), options, kTensors, read_values);
  options.shard_bytes = 1 << 20;
  export_model(posix_files(), options, kTensors, read_values);
  check_values(folder / "out", DType::kF32);
  REQUIRE(posix_files().list(folder / "out") ==
          std::vector<std::string>{"config.json", kOutputMark, "model.safetensors"});
  // A parent folder that does not exist is created.
  options.folder = folder / "a/b/out";
  export_model(posix_files(), options, kTensors, read_values);
  check_values(folder / "a/b/out", DType::kF32);
  // The export replaces the folder that a link leads to; the link stays.
  fs::create_directories(folder / "disk");
  fs::create_symlink("disk", folder / "link");
  options.folder = folder / "link";
  for (int again = 0; again < 2; ++again)
    export_model(posix_files(), options, kTensors, read_values);
  check_values(folder / "disk", DType::kF32);
  REQUIRE(fs::is_symlink(folder / "link"));
  REQUIRE(posix_files().list(folder.path()) ==
          std::vector<std::string>{"a", "disk", "link", "out"});
}

namespace {

/// Returns the names and contents of everything below a folder.
std::string folder_contents(const std::string& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    found[entry.path().string()] = entry.is_regular_file() ? read_text(entry.path().string()) : "";
  std::string text;
  for (const auto& [path, content] : found) text += cat(path, "\n", content, "\n");
  return text;
}

/// Returns the message with which an export is refused; requires that it has changed nothing.
std::string export_refusal(const TemporaryFolder& folder, const ExportOptions& options) {
  const std::string before = folder_contents(folder.path());
  const std::string checked =
      require_bad_input([&] { check_export(posix_files(), options, kTensors); });
  REQUIRE(require_bad_input([&] { export_model(posix_files(), options, kTensors, read_values); }) ==
          checked);
  REQUIRE(folder_contents(folder.path()) == before);
  return checked;
}

}  // namespace

TEST_CASE("a folder that this program did not write is never replaced") {
  const MemoryFolder folder;
  fs::create_directories(folder / "mine");
  write_text(folder / "mine/config.json", "{}");
  const std::string mine = folder / "mine";
  REQUIRE(export_refusal(folder, options_for(folder / "mine/")) ==
          mine + ": is not replaced: it holds no ftrun-output.json, so ftrun did not write it");
  write_text(folder / "mine/ftrun-output.json", "{\"format\": \"mine\"}");
  REQUIRE(export_refusal(folder, options_for(mine)) ==
          cat(mine, ": is not replaced: ", mine, "/ftrun-output.json: was not written by ftrun"));
  write_text(folder / "mine/ftrun-output.json", "{");
  REQUIRE(export_refusal(folder, options_for(mine))
              .find(cat(mine, ": is not replaced: ", mine, "/ftrun-output.json")) == 0);
  write_text(folder / "file", "x");
  REQUIRE(export_refusal(folder, options_for(folder / "file")) ==
          folder / "file" + ": is not replaced: it is not a folder");
  fs::create_symlink("nowhere", folder / "link");
  REQUIRE(export_refusal(folder, options_for(folder / "link")) ==
          folder / "link" + ": is a link to nowhere, which does not exist");
  REQUIRE(require_error(ExitCode::kBadInput,
                        [&] { check_export(posix_files(), options_for("/proc"), kTensors); }) ==
          "/proc: is not replaced: another file system is mounted there; a folder in it can be "
          "written");
}

TEST_CASE("a modified export is not replaced, and the modification is named") {
  const MemoryFolder folder;
  const ExportOptions options = options_for(folder / "out");
  const std::string start = options.folder + ": is not replaced: since ftrun wrote it, ";
  export_model(posix_files(), options, kTensors, read_values);
  write_text(folder / "out/README.md", "what I found");
  REQUIRE(export_refusal(folder, options) == start + "README.md was added");
  fs::remove(folder / "out/README.md");
  fs::create_directories(folder / "out/notes");
  REQUIRE(export_refusal(folder, options) == start + "notes was added");
  fs::remove(folder / "out/notes");
  export_model(posix_files(), options, kTensors, read_values);

  // A single bit changes; size and time stay the same.
  const auto time = fs::last_write_time(folder / "out/model.safetensors");
  std::string weights = read_text(folder / "out/model.safetensors");
  weights.back() ^= 1;
  write_text(folder / "out/model.safetensors", weights);
  fs::last_write_time(folder / "out/model.safetensors", time);
  REQUIRE(export_refusal(folder, options) == start + "model.safetensors was changed");
  fs::remove(folder / "out/config.json");
  REQUIRE(export_refusal(folder, options) ==
          start + "model.safetensors was changed, config.json was removed");
  weights.back() ^= 1;
  write_text(folder / "weights", weights);
  fs::remove(folder / "out/model.safetensors");
  fs::create_symlink("../weights", folder / "out/model.safetensors");
  REQUIRE(export_refusal(folder, options) ==
          start + "model.safetensors was changed, config.json was removed");
  for (char name = 'a'; name < 'h'; ++name)
    write_text(folder / ("out/" + std::string(1, name)), "x");
  REQUIRE(export_refusal(folder, options) ==
          start + "a was added, b was added, c was added, d was added, e was added and 4 more");
}

TEST_CASE(
    "an export is not replaced if a file in one of its subfolders was added, changed or removed") {
  const Base base;
  const MemoryFolder folder;
  const ExportOptions options = base.export_to(folder / "out");
  const std::string templates = folder / "out/additional_chat_templates",
                    start = options.folder + ": is not replaced: since ftrun wrote it, ";
  for (int again = 0; again < 2; ++again)
    export_model(posix_files(), options, kTensors, read_values);
  write_text(templates + "/mine.jinja", "mine");
  REQUIRE(export_refusal(folder, options) ==
          start + "additional_chat_templates/mine.jinja was added");
  fs::remove(templates + "/mine.jinja");
  write_text(templates + "/tools.jinja", "{{ TOOLS }}");
  REQUIRE(export_refusal(folder, options) ==
          start + "additional_chat_templates/tools.jinja was changed");
  write_text(templates + "/tools.jinja", "{{ tools }}");
  fs::rename(templates, folder / "moved");
  fs::create_directory_symlink(folder / "moved", templates);
  REQUIRE(
      export_refusal(folder, options) ==
      start +
          "additional_chat_templates was added, additional_chat_templates/tools.jinja was removed");
  fs::remove(templates);
  REQUIRE(export_refusal(folder, options) ==
          start + "additional_chat_templates/tools.jinja was removed");
}

TEST_CASE("an export never changes the files that it reads") {
  const MemoryFolder folder;
  ExportOptions options = options_for(folder / "base");
  export_model(posix_files(), options, kTensors, read_values);  // this program wrote the base
  fs::create_symlink("base", folder / "alias");
  for (const std::string out : {"base", "alias", "base/../base", "alias/."})
    for (const std::string source : {"base", "alias"}) {
      options.folder = folder / out;
      options.source_folder = folder / source;
      REQUIRE(export_refusal(folder, options) ==
              folder / "base" +
                  ": the export is refused: it contains the model that the export reads, " +
                  options.source_folder);
    }
  options.source_folder = "";
  fs::create_directories(folder / "run/checkpoints/step-00000001");
  options.kept_folders = {folder / "run/checkpoints"};
  for (const std::string out :
       {"run", "run/checkpoints", "run/checkpoints/step-00000001",
        "run/checkpoints/step-00000001/out", "run/other/../checkpoints/out"}) {
    options.folder = folder / out;
    REQUIRE(export_refusal(folder, options)
                .find(cat(": the export is refused: it would change ",
                          folder / "run/checkpoints")) != std::string::npos);
  }
  options.folder = folder / "run/checkpoints-as-hf";
  export_model(posix_files(), options, kTensors, read_values);
}

TEST_CASE("too little space for an export is reported before anything is written") {
  const MemoryFolder folder;
  FaultFileSystem files(folder.path());
  files.set_free_bytes(271);
  REQUIRE(require_error(ExitCode::kEnvironment, [&] {
            export_model(files, options_for(folder / "out"), kTensors, read_values);
          }) == folder / "out" + ": the model takes 272 B, 271 B are free");
  REQUIRE(posix_files().list(folder.path()).empty());
  files.set_free_bytes(272);
  check_export(files, options_for(folder / "out"), kTensors);
  // Files that a killed export left go first.
  files.set_free_bytes(0);
  begin_output(files, folder / "out.tmp-0123abcd", {"model.safetensors"}).reset();
  write_text(folder / "out.tmp-0123abcd/model.safetensors", std::string(1 << 16, 'x'));
  check_export(files, options_for(folder / "out"), kTensors);
}

TEST_CASE("an export that was changed while the next one was written is not replaced") {
  for (const bool can_exchange : {true, false}) {
    const MemoryFolder folder;
    FaultFileSystem files(folder.path());
    if (!can_exchange) files.refuse_exchange();
    const ExportOptions options = options_for(folder / "out");
    export_model(files, options, kTensors, read_values);
    REQUIRE(require_bad_input([&] {
              export_model(files, options, kTensors,
                           [&](const ExportPiece& piece, std::span<float> out) {
                             write_text(folder / "out/README.md", "what I found");
                             read_values(piece, out);
                           });
            }) == options.folder + ": is not replaced: since ftrun wrote it, README.md was added");
    REQUIRE(read_text(folder / "out/README.md") == "what I found");
    check_values(folder / "out", DType::kF32);
    REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"out"});
  }
}

TEST_CASE(
    "of two concurrent exports into one folder the first that finishes wins and the other fails") {
  for (const bool is_new : {true, false}) {
    const MemoryFolder folder;
    const ExportOptions options = options_for(folder / "out");
    if (!is_new) export_model(posix_files(), options, kTensors, read_values);
    bool is_first = true;
    REQUIRE(
        require_error(ExitCode::kEnvironment,
                      [&] {
                        export_model(posix_files(), options, kTensors,
                                     [&](const ExportPiece& piece, std::span<float> out) {
                                       ExportOptions halves = options;
                                       halves.dtype = DType::kBF16;
                                       if (std::exchange(is_first, false))
                                         export_model(posix_files(), halves, kTensors, read_values);
                                       read_values(piece, out);
                                     });
                      }) == cat(options.folder, ": another process ", is_new ? "wrote" : "replaced",
                                " it while this one was writing it"));
    check_values(folder / "out", DType::kBF16);
    REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"out"});
  }
}

TEST_CASE("files whose names are not UTF-8 are copied, and the export stays replaceable") {
  const MemoryFolder source;
  const MemoryFolder folder;
  write_text(source / "caf\xe9 \"x\".txt", "words");
  write_text(source / "日本.txt", "more");
  ExportOptions options = options_for(folder / "export");
  options.source_folder = source.path();
  for (int i = 0; i < 2; ++i) export_model(posix_files(), options, kTensors, read_values);
  REQUIRE(read_text(folder / "export/caf\xe9 \"x\".txt") == "words");
  REQUIRE(read_text(folder / "export/ftrun-output.json").find(R"("name": "caf\\xE9 \"x\".txt")") !=
          std::string::npos);
  const std::vector<std::string> names = check_complete_output(posix_files(), folder / "export");
  REQUIRE(std::count(names.begin(), names.end(), "caf\xe9 \"x\".txt") == 1);
  write_text(folder / "export/caf\xe9 \"x\".txt", "other");
  REQUIRE(require_bad_input([&] { export_model(posix_files(), options, kTensors, read_values); }) ==
          options.folder +
              R"(: is not replaced: since ftrun wrote it, caf\xe9 "x".txt was changed)");
}

TEST_CASE("an export in progress is not removed as a leftover") {
  const MemoryFolder folder;
  const ExportOptions options = options_for(folder / "out");
  const auto beside = [&] { return posix_files().list(folder.path()).size(); };
  export_model(posix_files(), options, kTensors,
               [&](const ExportPiece& piece, std::span<float> out) {
                 REQUIRE(beside() == 1);
                 recover_export(posix_files(), options.folder);
                 REQUIRE(beside() == 1);
                 REQUIRE(export_leftover_bytes(posix_files(), options.folder) == 0);
                 read_values(piece, out);
               });
  check_values(folder / "out", DType::kF32);
  begin_output(posix_files(), folder / "out.tmp-0123abcd", {}).reset();
  REQUIRE(export_leftover_bytes(posix_files(), options.folder) > 0);
  recover_export(posix_files(), options.folder);
  REQUIRE(beside() == 1);
}

TEST_CASE(
    "a check of an earlier export by sizes does not notice changed contents, a check by contents "
    "does") {
  const MemoryFolder folder;
  const ExportOptions options = options_for(folder / "out");
  export_model(posix_files(), options, kTensors, read_values);
  std::string weights = read_text(folder / "out/model.safetensors");
  weights.back() ^= 1;
  write_text(folder / "out/model.safetensors", weights);
  check_export_folder(posix_files(), options, OutputCheck::kSizes);
  const std::string changed =
      options.folder + ": is not replaced: since ftrun wrote it, model.safetensors was changed";
  REQUIRE(require_bad_input([&] {
            check_export_folder(posix_files(), options, OutputCheck::kContents);
          }) == changed);
  write_text(folder / "out/model.safetensors", weights + "x");
  REQUIRE(require_bad_input([&] {
            check_export_folder(posix_files(), options, OutputCheck::kSizes);
          }) == changed);
}

namespace {

/// Returns the dtype of the complete export that has its final name.
DType exported_dtype(const std::string& folder) {
  const DType dtype = ModelFolder(folder).at("model.norm.weight").dtype;
  check_values(folder, dtype);
  check_replaceable(posix_files(), folder);
  return dtype;
}

/// Returns the options of an export in bf16 over one in fp32, with another mark and other shards.
ExportOptions second_export_options(const Base& base, const TemporaryFolder& folder) {
  ExportOptions options = base.export_to(folder / "export");
  options.shard_bytes = 112;
  options.dtype = DType::kBF16;
  return options;
}

void export_first(FaultFileSystem& files, const Base& base, const TemporaryFolder& folder,
                  bool can_exchange) {
  if (!can_exchange) files.refuse_exchange();
  export_model(files, base.export_to(folder / "export"), kTensors, read_values);
}

}  // namespace

TEST_CASE(
    "a failure at any call of an export leaves either the old folder or the new one, complete") {
  const Base base;
  for (const bool can_exchange : {true, false}) {
    int64_t refused = 0;
    // Under sanitizers one call in six fails; with and without the exchange of names, these are
    // different calls.
    const auto stride = static_cast<int64_t>(sweep_stride(1));
    for (int64_t k = can_exchange ? 0 : stride / 2;; k += stride) {
      const MemoryFolder folder;
      FaultFileSystem files(folder.path());
      export_first(files, base, folder, can_exchange);
      const int64_t before = files.calls();
      files.fail_call(k, ENOSPC);
      bool failed = false;
      capture_log([&] {
        try {
          export_model(files, second_export_options(base, folder), kTensors, read_values);
        } catch (const Error& error) {
          failed = true;
          REQUIRE(error.code() == ExitCode::kEnvironment);
        }
      });
      if (!failed && files.calls() - before <= k) break;
      refused += failed ? 1 : 0;
      INFO("call " << k << ", exchange " << can_exchange);
      // An export that is reported as failed has not replaced the old one.
      REQUIRE(exported_dtype(folder / "export") == (failed ? DType::kF32 : DType::kBF16));
      // The export can be written again, and leaves nothing else behind.
      export_model(files, second_export_options(base, folder), kTensors, read_values);
      REQUIRE(exported_dtype(folder / "export") == DType::kBF16);
      REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"export"});
    }
    REQUIRE(refused > sweep_rounds(20));
  }
}

TEST_CASE(
    "after a kill or a power cut at any call of an export the old or the new folder is complete",
    "[long]") {
  const Base base;
  for (const bool can_exchange : {true, false}) {
    std::set<DType> found;
    int64_t apart = 0;
    for (int64_t k = 0, done = 0; done == 0; ++k) {
      const MemoryFolder folder;
      FaultFileSystem files(folder.path());
      export_first(files, base, folder, can_exchange);
      files.cut_power_at(k);
      try {
        export_model(files, second_export_options(base, folder), kTensors, read_values);
        done = 1;
      } catch (const Error&) {
      }
      for (int variant = 0; variant < 4 + 6; ++variant) {
        if (variant > 0) files.rewind_to_cut();
        files.restart(static_cast<Survival>(std::min(variant, 5)),
                      static_cast<uint64_t>(k * 100 + variant));
        INFO("call " << k << ", variant " << variant << ", exchange " << can_exchange);
        if (!posix_files().exists(folder / "export")) ++apart;
        recover_export(files, folder / "export");
        found.insert(exported_dtype(folder / "export"));
        REQUIRE(posix_files().list(folder.path()) == std::vector<std::string>{"export"});
      }
    }
    REQUIRE(found == std::set<DType>{DType::kF32, DType::kBF16});
    // With an exchange of names, a folder with the final name exists at all times, even before the
    // next start.
    REQUIRE((apart == 0) == can_exchange);
  }
}

TEST_CASE("a file that only looks like a leftover of an export stays") {
  const MemoryFolder folder;
  const ExportOptions options = options_for(folder / "out");
  fs::create_directories(folder / "out.tmp-1234567a");
  write_text(folder / "out.tmp-1234567a/thesis.txt", "years of work");
  write_text(folder / "out.tmp-8765432b", "a file");
  fs::create_directories(folder / "out.replaced-1234567a");
  write_text(folder / "out.replaced-1234567a/thesis.txt", "years of work");
  export_model(posix_files(), options, kTensors, read_values);
  // Copies of an export that must stay: named with a date, with an added file, and with a changed
  // file.
  for (const char* name : {"out.tmp-20251125", "out.replaced-20251125", "out.tmp-0123abcd",
                           "out.replaced-0123abcd", "out.tmp-4567abcd"})
    fs::copy(options.folder, folder / name, fs::copy_options::recursive);
  for (const std::string copy : {"out.tmp-0123abcd", "out.replaced-0123abcd"})
    write_text(folder / (copy + "/notes.md"), "what I found");
  write_text(folder / "out.tmp-4567abcd/config.json", "{}");
  // An interrupted export to which somebody has added a file.
  begin_output(posix_files(), folder / "out.tmp-89abcdef", {"model.safetensors"}).reset();
  write_text(folder / "out.tmp-89abcdef/model.safetensors", "half of it");
  write_text(folder / "out.tmp-89abcdef/notes.md", "what I found");
  const std::string before = folder_contents(folder.path());
  REQUIRE(export_leftover_bytes(posix_files(), options.folder) == 0);
  for (int again = 0; again < 2; ++again)
    export_model(posix_files(), options, kTensors, read_values);
  REQUIRE(folder_contents(folder.path()) == before);
}

TEST_CASE("the parameters of a checkpoint of 3 ranks are exported by one process") {
  const MemoryFolder run;
  const auto errors = run_ranks(3, [&](const CheckpointGroup& group) {
    ToyState state(3, group.rank, 2);
    save_checkpoint(posix_files(), {.root = run / "checkpoints"}, toy_meta(4, 3), state.slices(),
                    group);
  });
  REQUIRE(errors == std::vector<std::string>(3));
  export_checkpoint(posix_files(), run / "checkpoints/step-00000004", options_for(run / "export"),
                    weights_of(run / "checkpoints/step-00000004"));
  const ModelFolder model(run / "export");
  REQUIRE(model.names().size() == ToyState::tensors().size());
  ToyState expected(1, 0, 2);
  for (const StateSlice& slice : expected.slices()) {
    if (slice.kind != "param") continue;
    std::vector<float> values(static_cast<size_t>(slice.box.numel()));
    model.read_f32(slice.tensor, 0, slice.box.numel(), values);
    REQUIRE(model.at(slice.tensor).shape == slice.tensor_shape);
    REQUIRE(std::equal(values.begin(), values.end(), static_cast<const float*>(slice.data)));
  }
}

TEST_CASE("tensors of the model are written as parts of the files' and read back from there") {
  struct Part {
    std::string name;
    std::vector<int64_t> shape;
    StoredLocation location;
  };
  // The files have: rows of one matrix, alternating by head; a transposed matrix; vectors; one
  // vector that is split into three tensors.
  const std::vector<int64_t> fused{14, 3}, turned{3, 10};
  const std::vector<Part> parts{
      {"q", {8, 3}, {.name = "qkv", .shape = fused, .rows_together = 4, .stride = 7}},
      {"k",
       {4, 3},
       {.name = "qkv", .shape = fused, .first_row = 4, .rows_together = 2, .stride = 7}},
      {"v", {2, 3}, {.name = "qkv", .shape = fused, .first_row = 6, .stride = 7}},
      {"a", {4, 3}, {.name = "ab", .shape = turned, .transposed = true}},
      {"b", {6, 3}, {.name = "ab", .shape = turned, .first_row = 4, .transposed = true}},
      {"x", {2}, {.name = "xy", .shape = {5}}},
      {"y", {3}, {.name = "xy", .shape = {5}, .first_row = 2}},
      {"heads", {6}, {.name = "h.*", .shape = {2}, .tensor_count = 3}},
  };
  std::vector<ExportTensor> tensors{
      {"qkv", fused, {}}, {"ab", turned, {}}, {"xy", {5}, {}}, {"z", {2, 2}}};
  for (const Part& part : parts)
    for (ExportTensor& tensor : tensors)
      if (tensor.name == part.location.name)
        tensor.parts.push_back({part.name, part.shape, part.location});
  const Part& heads = parts.back();
  for (const int64_t i : {0, 1, 2})
    tensors.push_back(
        {cat("h.", i), {2}, {{heads.name, heads.shape, heads.location, 2 * i, 2 * i + 2}}});
  const MemoryFolder base;
  for (const int64_t piece : {1, 5, 7, 1000}) {
    INFO(piece << " elements at once");
    ExportOptions options = options_for(base / cat("out-", piece));
    options.piece_elements = piece;
    std::vector<ExportPiece> asked;
    export_model(posix_files(), options, tensors,
                 [&](const ExportPiece& wanted, std::span<float> out) {
                   asked.push_back(wanted);
                   read_values(wanted, out);
                 });
    const std::vector<ExportPiece> planned = export_pieces(options, tensors);
    REQUIRE(asked.size() == planned.size());
    for (size_t i = 0; i < asked.size(); ++i) {
      CHECK(asked[i].tensor == planned[i].tensor);
      CHECK(asked[i].begin == planned[i].begin);
      CHECK(asked[i].end == planned[i].end);
      CHECK(asked[i].end - asked[i].begin <= piece);
    }
    ModelFolder model(options.folder);
    // Row 9 of qkv is the third row of the second head of q; column 6 of ab is row 2 of b.
    std::vector<float> row(3), column(1);
    model.read_f32("qkv", 9 * 3, 10 * 3, row);
    for (int64_t i = 0; i < 3; ++i) CHECK(row[static_cast<size_t>(i)] == value_of("q", 6 * 3 + i));
    model.read_f32("ab", 10 + 6, 10 + 7, column);
    CHECK(column[0] == value_of("b", 2 * 3 + 1));
    for (const Part& part : parts) {
      model.name_part(part.name, part.shape, part.location);
      const StoredTensor& info = model.at(part.name);
      CHECK(info.shape == part.shape);
      for (int64_t begin = 0; begin < info.elements; ++begin)
        for (int64_t end = begin; end <= info.elements; ++end) {
          std::vector<float> found(static_cast<size_t>(end - begin)), wanted(found.size());
          std::vector<uint16_t> halves(found.size());
          model.read_f32(part.name, begin, end, found);
          model.read_bf16(part.name, begin, end, halves);
          read_values({"", part.name, begin, end}, wanted);
          CHECK(found == wanted);
          for (size_t i = 0; i < halves.size(); ++i) CHECK(halves[i] == bf16_from_f32(wanted[i]));
        }
      model.release(part.name, 0, info.elements);
    }
    CHECK(model.names() == std::vector<std::string>{"ab", "h.0", "h.1", "h.2", "qkv", "xy", "z"});
  }
}

TEST_CASE("a checkpoint without parameters is not exported") {
  const MemoryFolder run;
  float value = 1;
  save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 1),
                  {{"a", "exp_avg", DType::kF32, {}, {}, &value, nullptr}}, CheckpointGroup{});
  REQUIRE(require_bad_input([&] {
            export_checkpoint(posix_files(), run / "step-00000001", options_for(run / "export"),
                              weights_of(run / "step-00000001"));
          }) == (run / "step-00000001/checkpoint.json") + ": holds no parameters (kind \"param\")");
}

}  // namespace ftrun::testing
