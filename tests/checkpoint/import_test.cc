#include "checkpoint/import.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/output_mark.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/save.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {
namespace fs = std::filesystem;

const std::string kWholeImport =
    R"({"format": "ftrun-import", "version": 1, "source": "a test", "model": "/m", "step": 9,
  "skipped_steps": 2, "samples": 72, "tokens": null, "scheduler": {"last_batch_iteration": 6},
  "loss_scaler": {"scale": 1024.0, "iteration": 9, "last_overflow": -1, "hysteresis": 2},
  "known": {"train_batch_size": 8}, "unknown": ["tokens"], "zero_moments": []})";

std::string changed_json(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// Writes the states of an import; element i of entry n is 100 n + i.
std::string write_import_states(const std::string& path, const std::vector<TensorSpec>& given) {
  SafetensorsWriter writer(posix_files(), path, given);
  float n = 0;
  for (const TensorSpec& tensor : writer.tensors()) {
    std::vector<float> values;
    const int64_t elements =
        checked_elements(tensor.shape, "a shape") * dtype_bytes(tensor.dtype) / 4;
    for (int64_t i = 0; i < elements; ++i) values.push_back(100 * n + static_cast<float>(i));
    writer.append(tensor.name, std::as_bytes(std::span(values)));
    ++n;
  }
  writer.finish();
  return path;
}

std::vector<TensorSpec> import_states(const std::string& tensor,
                                      const std::vector<int64_t>& shape) {
  std::vector<TensorSpec> all;
  for (const char* kind : {".param", ".exp_avg", ".exp_avg_sq"})
    all.push_back({tensor + kind, DType::kF32, shape});
  return all;
}

/// Returns an imported folder with its mark, as the import script writes it.
std::string imported_folder(const TemporaryFolder& temp, const std::string& json,
                            const std::vector<TensorSpec>& states) {
  const std::string folder = temp / "imported";
  fs::remove_all(folder);
  {
    const OwnedFd held = begin_output(posix_files(), folder, {});
    write_text(folder + "/import.json", json);
    write_import_states(folder + "/state-00001.safetensors", states);
  }
  std::vector<OutputFile> content;
  for (const char* name : {"import.json", "state-00001.safetensors"}) {
    const std::string text = read_text(folder + "/" + name);
    content.push_back({name, static_cast<int64_t>(text.size()), xxh3(text.data(), text.size())});
  }
  finish_output(posix_files(), folder, content);
  return folder;
}

std::string import_refusal(const TemporaryFolder& temp, const std::string& json,
                           const std::vector<TensorSpec>& states) {
  const std::string folder = imported_folder(temp, json, states);
  const std::string message = require_bad_input([&] { ImportedState state(folder); });
  REQUIRE(message.starts_with(folder));
  return message.substr(folder.size());
}

}  // namespace

TEST_CASE(
    "an import becomes a checkpoint with its states and numbers, and a list of what is unknown") {
  const MemoryFolder temp;
  const ImportedState state(imported_folder(temp, kWholeImport, import_states("w", {2, 3})));
  REQUIRE(state.model() == "/m");
  REQUIRE(state.tensors().size() == 1);
  REQUIRE(state.record().unknown_settings == std::vector<std::string>{"tokens"});
  REQUIRE(state.record().known_settings.at(0) ==
          std::pair<std::string, std::string>("train_batch_size", "8"));
  const SaveResult saved = save_checkpoint(posix_files(), {.root = temp / "checkpoints"},
                                           state.meta(), state.slices(), {});
  Checkpoint checkpoint(saved.folder);
  REQUIRE(checkpoint.meta().step == 9);
  REQUIRE(checkpoint.meta().skipped_steps == 2);
  REQUIRE(checkpoint.meta().samples == 72);
  REQUIRE(checkpoint.meta().scheduler.at("last_batch_iteration") == 6);
  REQUIRE(checkpoint.meta().loss_scaler->scale == 1024);
  REQUIRE(checkpoint.meta().loss_scaler->last_overflow == -1);
  REQUIRE(parse_import_record(checkpoint.meta().extra.at(kImportRecord), "x").source == "a test");
  // The values in the order in which they are stored: w.exp_avg, w.exp_avg_sq, w.param.
  std::vector<float> found(2);
  checkpoint.read({"w", "param", DType::kF32, {2, 3}, Box{{1, 1}, {1, 2}}, found.data(), nullptr});
  REQUIRE(found == std::vector<float>{204, 205});
  checkpoint.read(
      {"w", "exp_avg", DType::kF32, {2, 3}, Box{{0, 1}, {1, 2}}, found.data(), nullptr});
  REQUIRE(found == std::vector<float>{1, 2});
}

TEST_CASE("an import with wrong numbers or tensors is refused") {
  const MemoryFolder temp;
  const auto states = import_states("w", {2});
  REQUIRE(import_refusal(temp, changed_json(kWholeImport, "ftrun-import", "other"), states) ==
          "/import.json: was not written by scripts/import_checkpoint.py");
  REQUIRE(import_refusal(temp, changed_json(kWholeImport, "\"version\": 1", "\"version\": 2"),
                         states) == "/import.json: has version 2; this ftrun reads version 1");
  REQUIRE(import_refusal(
              temp, changed_json(kWholeImport, "\"skipped_steps\": 2", "\"skipped_steps\": 10"),
              states) == "/import.json: 10 of 9 steps were skipped");
  REQUIRE(import_refusal(temp, changed_json(kWholeImport, "[\"tokens\"]", "[1]"), states) ==
          "/import.json: field \"unknown\" must be a list of strings");
  auto fewer = states;
  fewer.pop_back();
  REQUIRE(import_refusal(temp, kWholeImport, fewer) == ": w.exp_avg_sq is missing");
  auto misnamed = states;
  misnamed[1].name = "w.momentum";
  REQUIRE(import_refusal(temp, kWholeImport, misnamed) ==
          "/state-00001.safetensors: tensor \"w.momentum\" is not named TENSOR.param, "
          "TENSOR.exp_avg or TENSOR.exp_avg_sq");
  auto narrow = states;
  narrow[0].dtype = DType::kBF16;
  REQUIRE(import_refusal(temp, kWholeImport, narrow) ==
          "/state-00001.safetensors: tensor \"w.param\" is BF16, expected F32");
  auto misshapen = states;
  misshapen[2].shape = {1, 2};
  REQUIRE(import_refusal(temp, kWholeImport, misshapen) ==
          ": the states of w have different shapes");
  REQUIRE(import_refusal(temp, kWholeImport, {}) == ": holds no tensors");
  REQUIRE(import_refusal(temp, kWholeImport + std::string(65 << 20, ' '), states) ==
          "/import.json: is 65.00 MiB, larger than the limit of 64.00 MiB");
}

TEST_CASE("an import whose files were changed after writing is refused") {
  const MemoryFolder temp;
  const std::string folder = imported_folder(temp, kWholeImport, import_states("w", {2}));
  write_text(folder + "/notes.txt", "mine");
  REQUIRE(require_bad_input([&] { ImportedState state(folder); }) ==
          folder + ": since it was written, notes.txt was added");
  fs::remove(folder + "/notes.txt");
  write_text(folder + "/import.json", kWholeImport + " ");
  REQUIRE(require_bad_input([&] { ImportedState state(folder); }) ==
          folder + ": since it was written, import.json was changed");
  REQUIRE(require_bad_input([&] { ImportedState state(temp / "nothing"); }) ==
          temp / "nothing" + ": holds no import.json");
  const OwnedFd begun = begin_output(posix_files(), temp / "begun", {"import.json"});
  write_text(temp / "begun/import.json", kWholeImport);
  REQUIRE(require_bad_input([&] { ImportedState state(temp / "begun"); }) ==
          temp / "begun" + ": is not complete: writing it was interrupted");
}

}  // namespace ftrun::testing
