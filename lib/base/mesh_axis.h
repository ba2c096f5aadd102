#pragma once

#include <cstdint>
#include <string_view>

namespace ftrun {

/// MeshAxis lists the axes of the mesh of ranks, slowest to fastest: neighbours along a fast axis
/// have neighbouring ranks, which launchers place on one machine.
enum class MeshAxis : int { kPipeline, kReplicate, kShard, kContext, kTensor };
inline constexpr int kMeshAxes = 5;
/// Returns the axis's name: "pp", "dp_replicate", "dp_shard", "cp", "tp".
constexpr std::string_view axis_name(MeshAxis axis) {
  constexpr std::string_view kNames[kMeshAxes] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};
  return kNames[static_cast<int>(axis)];
}

}  // namespace ftrun
