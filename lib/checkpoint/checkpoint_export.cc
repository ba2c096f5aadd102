#include "checkpoint/checkpoint_export.h"

#include <map>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {

std::map<std::string, StateInfo> parameters_of(const Checkpoint& checkpoint) {
  std::map<std::string, StateInfo> parameters;
  for (const StateInfo& state : checkpoint.states())
    if (state.kind == "param" && is_weight_dtype(state.dtype)) parameters[state.tensor] = state;
  if (parameters.empty())
    throw Error(ExitCode::kBadInput,
                cat(checkpoint.folder(), "/checkpoint.json: holds no parameters (kind \"param\")"),
                "give a checkpoint that ftrun wrote while training");
  return parameters;
}

}  // namespace

std::vector<ExportTensor> checkpoint_weights(const std::string& checkpoint_folder) {
  std::vector<ExportTensor> tensors;
  for (const auto& [name, state] : parameters_of(Checkpoint(checkpoint_folder)))
    tensors.push_back({name, state.shape});
  return tensors;
}

void export_checkpoint(FileSystem& files, const std::string& checkpoint_folder,
                       const ExportOptions& options) {
  Checkpoint checkpoint(checkpoint_folder);
  const auto parameters = parameters_of(checkpoint);
  std::vector<ExportTensor> tensors;
  for (const auto& [name, state] : parameters) tensors.push_back({name, state.shape});
  std::vector<std::byte> stored;
  export_model(files, options, tensors, [&](const ExportPiece& piece, std::span<float> out) {
    const StateInfo& state = parameters.at(piece.tensor);
    stored.resize(out.size() * static_cast<size_t>(dtype_bytes(state.dtype)));
    std::byte* to = stored.data();
    for (const Box& box : cut_box(whole_box(state.shape), piece.begin, piece.end)) {
      checkpoint.read(StateSlice{state.tensor, state.kind, state.dtype, state.shape, box, to});
      to += box.numel() * dtype_bytes(state.dtype);
    }
    convert_to_f32(state.dtype, stored.data(), out);
  });
}

}  // namespace ftrun
