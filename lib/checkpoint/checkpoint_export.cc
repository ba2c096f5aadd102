#include "checkpoint/checkpoint_export.h"

#include "base/error.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {

std::map<std::string, StateInfo> parameters_of(const Checkpoint& checkpoint) {
  std::map<std::string, StateInfo> parameters;
  for (const StateInfo& state : checkpoint.states())
    if (state.kind == "param" && is_weight_dtype(state.dtype)) parameters[state.tensor] = state;
  if (parameters.empty())
    throw Error(ExitCode::kBadInput,
                cat(checkpoint_manifest_path(checkpoint.folder()),
                    ": holds no parameters (kind \"param\")"),
                "give a checkpoint that ftrun wrote while training");
  return parameters;
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> list_weight_shapes(
    const std::string& checkpoint_folder) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
  for (const auto& [name, state] : parameters_of(Checkpoint(checkpoint_folder)))
    tensors.emplace_back(name, state.shape);
  return tensors;
}

CheckpointWeights::CheckpointWeights(const std::string& checkpoint_folder)
    : checkpoint_(checkpoint_folder), parameters_(parameters_of(checkpoint_)) {}

void CheckpointWeights::read(const std::string& tensor, int64_t begin, int64_t end,
                             std::span<float> out) {
  const StateInfo& state = parameters_.at(tensor);
  float* to = out.data();
  for (const Box& box : cut_box(whole_box(state.shape), begin, end)) {
    checkpoint_.read(StateSlice{state.tensor, state.kind, DType::kF32, state.shape, box, to});
    to += box.numel();
  }
}

void export_checkpoint(FileSystem& files, const std::string& checkpoint_folder,
                       const ExportOptions& options, const std::vector<ExportTensor>& tensors) {
  CheckpointWeights weights(checkpoint_folder);
  export_model(files, options, tensors, [&](const ExportPiece& piece, std::span<float> out) {
    weights.read(piece.tensor, piece.begin, piece.end, out);
  });
}

}  // namespace ftrun
