#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/unit_granularity.h"
#include "model/description.h"

namespace ftrun {

/// UnitId is an index in Partition::units.
using UnitId = int32_t;

/// Number of elements of a block of a unit. Units, shards and the intervals that an update
/// processes begin and end at multiples of it, so that they consist of whole disk sectors whatever
/// the dtype.
inline constexpr int64_t kUnitBlock = 4096;
/// Number of elements of a tensor block. Blocks are counted from the first element of the rank's
/// part of a tensor, row by row, and are never cut: the gradient norm sums each block separately,
/// and a state may be stored in blocks that share a scale. Each parameter of a graph begins on a
/// tensor block of its unit. So does each of its tensors, unless the tensor before it ends within a
/// block. A parameter with such tensors does not cross a multiple of kUnitBlock, where shards
/// begin, if it has at most kUnitBlock elements. In a larger one, which no usual model has, blocks
/// are counted from the parameter's beginning.
inline constexpr int64_t kTensorBlock = 256;
static_assert(kUnitBlock % kTensorBlock == 0 && kTensorBlock == kQuantizedRecord);

/// TensorSlice places elements [offset, offset+extent) of this rank's part of a tensor (in the
/// row-major order of TensorInfo::local) at [position_in_unit, +extent).
struct TensorSlice {
  TensorId tensor = -1;
  int64_t offset = 0;
  int64_t extent = 0;
  int64_t position_in_unit = 0;
  bool operator==(const TensorSlice&) const = default;
};

/// Unit is a set of parameters in one flat range that are gathered, reduced and updated together.
struct Unit {
  UnitId id = -1;
  std::string name;
  /// Indices of the layers that read the unit, ascending; the unit of a tied matrix is read by two.
  std::vector<int> layers;
  /// The slices of tensors by position; they do not overlap, and the elements between and after
  /// them are padding.
  std::vector<TensorSlice> slices;
  /// Elements of parameters, without padding.
  int64_t numel = 0;
  /// Elements of the flat range: a multiple of kUnitBlock.
  int64_t padded_numel = 0;
  /// Says whether the unit holds the small tensors of its layer, which ZeRO stage 3 leaves on every
  /// rank.
  bool holds_small_tensors = false;
  /// Says whether the unit holds tensors that are updated; frozen tensors have their own units.
  bool trainable = true;
  /// Says whether the unit holds quantized tensors. These are frozen, and never share a unit with
  /// frozen tensors that are not quantized.
  bool quantized = false;
  /// The unit holds tensors that are fp32 where layers compute in 16 bits. Such a unit is small.
  bool fp32 = false;
  /// `has_8bit_states`: some of the unit's tensors have optimizer states that are 8-bit codes.
  /// `has_plain_states`: some have states that are plain numbers. Both are true where one matrix of
  /// a graph has tensors of both kinds.
  bool has_8bit_states = false;
  bool has_plain_states = true;
};

/// ParamLocation is the unit of a parameter of a layer's graph, and the element of the unit where
/// it starts.
struct ParamLocation {
  UnitId unit = -1;
  int64_t position = 0;
  bool operator==(const ParamLocation&) const = default;
};

/// Partition holds the units of a model and the location of each parameter in them.
struct Partition {
  /// The units in forward order of first use.
  std::vector<Unit> units;
  /// param_locations[layer][i] is the location of model.layers[layer].params[i].
  std::vector<std::vector<ParamLocation>> param_locations;

  const Unit& unit(UnitId id) const { return units[static_cast<size_t>(id)]; }
  /// Returns the number of elements of all parameters, without padding.
  int64_t numel() const;
  /// Returns the units that a layer reads, ascending.
  std::vector<UnitId> units_of(int layer) const;
};

/// SmallTensorThresholds specifies which parameters are small: those of which this rank uses at
/// most `tensor_elements` (DeepSpeed's stage3_param_persistence_threshold), in forward order until
/// all of them together would pass `total_elements` (stage3_model_persistence_threshold).
struct SmallTensorThresholds {
  int64_t tensor_elements = 0;
  int64_t total_elements = INT64_MAX;
};

/// Puts every tensor of the model into exactly one unit. Tensors of one GraphParam lie one after
/// another without gaps, so that the graph sees them as one matrix. Small tensors get their own
/// units, separate from the large ones of their layer, at every ZeRO stage, so that all stages sum
/// the gradient norm in the same order. `has_8bit_states` selects the tensors whose optimizer
/// states are codes, none when empty; their matrices also have their own units.
Partition build_units(const ModelDescription& model,
                      UnitGranularity granularity = UnitGranularity::kLayer,
                      SmallTensorThresholds small = {},
                      const std::function<bool(const TensorInfo&)>& has_8bit_states = {});

}  // namespace ftrun
