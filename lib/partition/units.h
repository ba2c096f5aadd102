#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/unit_granularity.h"
#include "model/description.h"

namespace ftrun {

/// Index in Partition::units.
using UnitId = int32_t;

/// Units, shards and what an update takes at a time begin and end at multiples of this many
/// elements of the unit: whole sectors of a disk, whatever the dtype.
inline constexpr int64_t kUnitBlock = 4096;
/// Blocks of this many elements, counted from a tensor's first one (of what this rank uses of it,
/// row by row), are never cut: the gradient norm adds up each by itself, and a state may be stored
/// in blocks that share a scale. Each parameter of a graph begins on a block of its unit, and so do
/// its tensors, except those after one that ends within a block. Such a parameter is kept clear of
/// multiples of kUnitBlock, where shards begin, if it is no longer than that; in a longer one,
/// which no usual model has, blocks are those of the parameter.
inline constexpr int64_t kTensorBlock = 256;
static_assert(kUnitBlock % kTensorBlock == 0 && kTensorBlock == kPackedRecord);

/// Slice places elements [offset, offset+extent) of what this rank uses of a tensor (the row-major
/// order of TensorInfo::local) at [position_in_unit, +extent).
struct Slice {
  TensorId tensor = -1;
  int64_t offset = 0;
  int64_t extent = 0;
  int64_t position_in_unit = 0;
  bool operator==(const Slice&) const = default;
};

/// Unit is a set of parameters in one flat range that are gathered, reduced and updated together.
struct Unit {
  UnitId id = -1;
  std::string name;
  /// Indices of the layers that read it, ascending; a tied matrix's unit is read by two.
  std::vector<int> layers;
  /// The slices of tensors by position; they do not overlap, and the elements between and after
  /// them are padding.
  std::vector<Slice> slices;
  /// Elements of parameters, without padding.
  int64_t numel = 0;
  /// Elements of the flat range: a multiple of kUnitBlock.
  int64_t padded = 0;
  /// Holds the small tensors of its layer, which ZeRO stage 3 leaves on every rank.
  bool small = false;
  /// Holds tensors that are updated; those that are frozen have units of their own.
  bool trainable = true;
  /// Packed tensors, which are frozen too, are in units of their own.
  bool packed = false;
  /// Tensors that are fp32 where layers compute in 16 bits are in units of their own; they are
  /// small.
  bool fp32 = false;
  /// Holds tensors whose optimizer states are codes, and tensors whose states are numbers. Both are
  /// true where a matrix of a graph has both.
  bool coded = false;
  bool uncoded = true;
};

/// ParamPlace is the place where a parameter of a layer's graph starts.
struct ParamPlace {
  UnitId unit = -1;
  int64_t position = 0;
  bool operator==(const ParamPlace&) const = default;
};

struct Partition {
  /// The units in forward order of first use.
  std::vector<Unit> units;
  /// places[layer][i] is the place of model.layers[layer].params[i].
  std::vector<std::vector<ParamPlace>> places;

  const Unit& unit(UnitId id) const { return units[static_cast<size_t>(id)]; }
  /// Returns the number of elements of all parameters, without padding.
  int64_t numel() const;
  /// Returns the units that a layer reads, ascending.
  std::vector<UnitId> units_of(int layer) const;
};

/// SmallTensors says which parameters are small: at most `tensor_elements` each of what this rank
/// uses (DeepSpeed's stage3_param_persistence_threshold), in forward order until all of them
/// together would pass `total_elements` (stage3_model_persistence_threshold).
struct SmallTensors {
  int64_t tensor_elements = 0;
  int64_t total_elements = INT64_MAX;
};

/// Puts every tensor of the model into exactly one unit. Tensors of one GraphParam lie one after
/// another without gaps, so that the graph sees them as one matrix. Small ones get units of their
/// own beside the large ones of their layer, whatever the ZeRO stage: all stages then sum the
/// gradient norm in the same order. `coded` chooses those whose optimizer states are codes, none
/// when empty; their matrices have units of their own too.
Partition build_units(const ModelDescription& model,
                      UnitGranularity granularity = UnitGranularity::kLayer,
                      SmallTensors small = {},
                      const std::function<bool(const TensorInfo&)>& coded = {});

/// Formats a partition, one line a unit: "unit 1 layers.0: 3540672 elements (3540096 in 9 tensors),
/// layers 1".
std::string partition_text(const Partition& partition);

}  // namespace ftrun
