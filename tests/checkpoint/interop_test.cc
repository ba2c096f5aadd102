// This file is the C++ half of interop_test.py, which runs these hidden cases with a folder to work
// in.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/save.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

std::string work_folder() {
  const char* folder = std::getenv("FTRUN_INTEROP_FOLDER");
  REQUIRE(folder != nullptr);
  return folder;
}

}  // namespace

TEST_CASE("write files for Python", "[.interop-write]") {
  const std::string folder = work_folder();
  SafetensorsWriter writer(posix_files(), folder + "/cpp.safetensors",
                           {{"z.f32", DType::kF32, {2, 3}},
                            {"a.bf16", DType::kBF16, {4}},
                            {"b.f16", DType::kF16, {1, 1}},
                            {"m.i64", DType::kI64, {}},
                            {"m.u8", DType::kU8, {3}},
                            {"m.bool", DType::kBool, {2}},
                            {"m.i32", DType::kI32, {2}},
                            {"empty", DType::kF32, {0, 2}},
                            {"d\"\\\xc3\xa9", DType::kF64, {1}}});
  for (const TensorSpec& spec : writer.tensors()) {
    const auto size =
        static_cast<size_t>(checked_elements(spec.shape, "") * dtype_bytes(spec.dtype));
    writer.append(spec.name, std::vector<std::byte>(size, std::byte{1}));
  }
  writer.finish();
  ToyState state(1, 0, 3);
  save_checkpoint(posix_files(), {.root = folder + "/checkpoints"}, toy_meta(5, 1), state.slices(),
                  CheckpointGroup{});
  const auto errors = run_ranks(4, [&](const CheckpointGroup& group) {
    ToyState part(4, group.rank, 3, ToySplit::kBoth);
    save_checkpoint(posix_files(), {.root = folder + "/parts"}, toy_meta(5, 4), part.slices(),
                    group);
  });
  REQUIRE(errors == std::vector<std::string>(4));
}

TEST_CASE("print what Python wrote", "[.interop-read]") {
  const SafetensorsFile file(work_folder() + "/python.safetensors");
  for (const StoredTensor& tensor : file.tensors()) {
    std::printf("tensor %s: %s %s ", tensor.name.c_str(),
                std::string(dtype_name(tensor.dtype)).c_str(), shape_text(tensor.shape).c_str());
    for (const std::byte byte : file.bytes(tensor))
      std::printf("%02x", std::to_integer<unsigned>(byte));
    std::printf("\n");
  }
}

// This case copies the folder "model", which transformers wrote, to "export-f32" and "export-bf16".
TEST_CASE("export a model for Python", "[.interop-export]") {
  const std::string folder = work_folder();
  const ModelFolder model(folder + "/model");
  std::vector<ExportTensor> tensors;
  for (const std::string& name : model.names()) tensors.push_back({name, model.at(name).shape});
  ExportOptions options;
  options.source_folder = model.path();
  options.config_json = model.config_json();
  options.shard_bytes = 20'000;
  const auto read = [&](const ExportPiece& piece, std::span<float> out) {
    model.read_f32(piece.tensor, piece.begin, piece.end, out);
  };
  options.folder = folder + "/export-f32";
  export_model(posix_files(), options, tensors, read);
  options.folder = folder + "/export-bf16";
  options.dtype = DType::kBF16;
  options.shard_bytes = ExportOptions{}.shard_bytes;
  export_model(posix_files(), options, tensors, read);
}

}  // namespace ftrun::testing
