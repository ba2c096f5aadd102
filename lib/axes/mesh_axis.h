#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace ftrun {

/// MeshAxis lists the axes of the mesh of ranks, slowest to fastest: neighbors along a fast axis
/// have neighboring ranks, which launchers place on one machine.
enum class MeshAxis : int {
#define FTRUN_MESH_AXIS(kind, name, divided) kind,
#include "axes/axes.inc"
};

/// DividedParts lists the parts of training that the ranks along an axis divide among themselves.
enum class DividedParts : uint32_t {
  kSequences = 1,  // the sequences of a batch: they read different ones
  kTokens = 2,     // the tokens of each sequence
  kState = 4,      // one copy of the state of what they compute (ZeRO)
  kLayers = 8,     // the layers of the model
  kTensors = 16,   // the tensors of each layer
};
constexpr DividedParts operator|(DividedParts a, DividedParts b) {
  return static_cast<DividedParts>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}

/// MeshAxisRow is the row of an axis in axes.inc.
struct MeshAxisRow {
  MeshAxis axis;
  std::string_view name;
  DividedParts divided;
};
inline constexpr auto kMeshAxisRows = [] {
  using enum DividedParts;
  return std::array{
#define FTRUN_MESH_AXIS(kind, name, divided) MeshAxisRow{MeshAxis::kind, #name, divided},
#include "axes/axes.inc"
  };
}();
inline constexpr int kMeshAxes = static_cast<int>(kMeshAxisRows.size());

/// Returns the axis's name in texts, as the config names it: "pipeline", "data_replicate", "data"
/// (the shards of one replica), "context", "tensor".
constexpr std::string_view axis_name(MeshAxis axis) {
  return kMeshAxisRows[static_cast<size_t>(axis)].name;
}

/// MeshAxes is a set of axes.
class MeshAxes {
 public:
  constexpr MeshAxes() = default;
  constexpr MeshAxes(std::initializer_list<MeshAxis> axes) {
    for (const MeshAxis axis : axes) bits_ |= bit_of(axis);
  }

  constexpr bool contains(MeshAxis axis) const { return (bits_ & bit_of(axis)) != 0; }
  constexpr bool contains(MeshAxes axes) const { return (axes.bits_ & ~bits_) == 0; }
  constexpr bool intersects(MeshAxes axes) const { return (axes.bits_ & bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr void add(MeshAxes axes) { bits_ |= axes.bits_; }
  constexpr void remove(MeshAxes axes) { bits_ &= ~axes.bits_; }
  constexpr bool operator==(const MeshAxes&) const = default;

 private:
  static constexpr uint32_t bit_of(MeshAxis axis) { return 1U << static_cast<int>(axis); }
  uint32_t bits_ = 0;
};

constexpr bool intersects(DividedParts a, DividedParts b) {
  return (static_cast<uint32_t>(a) & static_cast<uint32_t>(b)) != 0;
}

/// All axes of the mesh.
inline constexpr MeshAxes kAllAxes = [] {
  MeshAxes axes;
  for (const MeshAxisRow& row : kMeshAxisRows) axes.add({row.axis});
  return axes;
}();

/// Returns the axes whose ranks divide any of `parts` among themselves.
constexpr MeshAxes axes_that_divide(DividedParts parts) {
  MeshAxes axes;
  for (const MeshAxisRow& row : kMeshAxisRows)
    if (intersects(row.divided, parts)) axes.add({row.axis});
  return axes;
}

/// Returns the axes whose ranks divide none of `parts` among themselves.
constexpr MeshAxes axes_that_do_not_divide(DividedParts parts) {
  MeshAxes axes = kAllAxes;
  axes.remove(axes_that_divide(parts));
  return axes;
}

/// The axes along which ranks share one copy of the state of what they compute.
inline constexpr MeshAxes kStateAxes = axes_that_divide(DividedParts::kState);
/// The parts of the model's state: ranks that divide any of them have different parts of the state.
inline constexpr DividedParts kModelParts =
    DividedParts::kState | DividedParts::kLayers | DividedParts::kTensors;
/// The axes along which ranks share one copy of the whole model's state.
inline constexpr MeshAxes kModelAxes = axes_that_divide(kModelParts);
/// The axes along which ranks have the same parts of the model's state.
inline constexpr MeshAxes kReplicaAxes = axes_that_do_not_divide(kModelParts);
/// The axes along which each rank computes a share of a gradient; the gradient is their sum.
inline constexpr MeshAxes kGradientAxes =
    axes_that_divide(DividedParts::kSequences | DividedParts::kTokens);
/// The axes along which ranks divide the tokens of each sequence.
inline constexpr MeshAxes kTokenAxes = axes_that_divide(DividedParts::kTokens);
/// The axes along which ranks have different layers.
inline constexpr MeshAxes kStageAxes = axes_that_divide(DividedParts::kLayers);
/// The axes along which ranks have parts of each layer's tensors and exchange values inside it.
inline constexpr MeshAxes kLayerAxes = axes_that_divide(DividedParts::kTensors);

}  // namespace ftrun
