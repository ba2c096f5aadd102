#include "partition/units.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"

namespace ftrun {
namespace {

/// UnitBuilder assigns parameters to units, in forward order.
class UnitBuilder {
 public:
  UnitBuilder(const ModelDescription& model, UnitGranularity granularity,
              SmallTensorThresholds small,
              const std::function<bool(const TensorInfo&)>& has_8bit_states)
      : model_(model),
        granularity_(granularity),
        small_thresholds_(small),
        has_8bit_states_(has_8bit_states),
        tensor_locations_(model.tensors.size()) {}

  Partition build() {
    for (size_t layer = 0; layer < model_.layers.size(); ++layer)
      add_layer(static_cast<int>(layer));
    for (Unit& unit : partition_.units) unit.padded_numel = round_up(unit.padded_numel, kUnitBlock);
    check_all_placed();
    return std::move(partition_);
  }

 private:
  void add_layer(int index) {
    std::vector<ParamLocation> locations;
    for (const GraphParam& param : model_.layers[static_cast<size_t>(index)].params) {
      require(!param.tensors.empty(), "a parameter has at least one tensor");
      const auto& first = tensor_locations_[static_cast<size_t>(param.tensors.front())];
      locations.push_back(first ? shared_location(param) : place_param(index, param));
      record_reader(locations.back().unit, index);
    }
    partition_.param_locations.push_back(std::move(locations));
  }

  ParamLocation place_param(int layer, const GraphParam& param) {
    const auto [has_8bit, has_plain] = kinds_of_states(param);
    Unit& unit = find_or_add_unit(
        layer, param.part,
        {is_small(param), is_trainable(param), param.quantized, param.fp32, has_8bit, has_plain});
    unit.padded_numel = aligned_start(unit.padded_numel, param);
    const ParamLocation start{unit.id, unit.padded_numel};
    for (TensorId tensor : param.tensors) {
      auto& location = tensor_locations_[static_cast<size_t>(tensor)];
      require(!location, "a tensor belongs to one parameter");
      // The slice leaves out the padding that the tensor itself may have. Like padding between
      // parameters, it belongs to no slice.
      const TensorInfo& info = model_.tensor(tensor);
      location = ParamLocation{unit.id, unit.padded_numel};
      unit.slices.push_back({tensor, 0, info.local.numel(), unit.padded_numel});
      unit.padded_numel += info.local_numel();
      unit.numel += info.local_numel();
    }
    return start;
  }

  /// Returns the element of the unit at which `param` begins if it is placed after element `end`.
  int64_t aligned_start(int64_t end, const GraphParam& param) const {
    int64_t elements = 0;
    bool within_block = false;
    for (const TensorId tensor : param.tensors) {
      within_block = within_block || elements % kTensorBlock != 0;
      elements += model_.tensor(tensor).local_numel();
    }
    const int64_t start = round_up(end, kTensorBlock);
    const int64_t next_cut = round_up(start, kUnitBlock);
    const bool cut = start < next_cut && next_cut < start + elements;
    return within_block && cut && elements <= kUnitBlock ? next_cut : start;
  }

  /// Returns the location of a parameter whose tensors belong to an earlier parameter already, such
  /// as a tied matrix. Both parameters must have the same tensors in the same order.
  ParamLocation shared_location(const GraphParam& param) {
    const ParamLocation start = *tensor_locations_[static_cast<size_t>(param.tensors.front())];
    int64_t position = start.position;
    for (TensorId tensor : param.tensors) {
      const ParamLocation expected{start.unit, position};
      require(tensor_locations_[static_cast<size_t>(tensor)] == expected,
              "tensors are shared in one order");
      position += model_.tensor(tensor).local_numel();
    }
    return start;
  }

  /// Returns whether a parameter is small. Counts its elements towards
  /// SmallTensorThresholds::total_elements if so, except those of fp32 parameters, which are always
  /// small.
  bool is_small(const GraphParam& param) {
    if (param.fp32) return true;
    int64_t elements = 0;
    for (const TensorId tensor : param.tensors) {
      if (model_.tensor(tensor).local_numel() > small_thresholds_.tensor_elements) return false;
      elements += model_.tensor(tensor).local_numel();
    }
    if (elements > small_thresholds_.total_elements - small_elements_) return false;
    small_elements_ += elements;
    return true;
  }

  /// Returns whether a parameter's tensors are updated: all of them are, or none.
  bool is_trainable(const GraphParam& param) const {
    const bool first = model_.tensor(param.tensors.front()).trainable;
    for (const TensorId tensor : param.tensors)
      require(model_.tensor(tensor).trainable == first,
              "tensors of one matrix are frozen together");
    return first;
  }

  /// Returns whether some tensors of the parameter have optimizer states that are codes, and
  /// whether some have states that are plain numbers.
  std::pair<bool, bool> kinds_of_states(const GraphParam& param) const {
    const auto is_8bit = [&](TensorId id) {
      return is_trainable(param) && has_8bit_states_ && has_8bit_states_(model_.tensor(id));
    };
    const auto with_8bit = std::count_if(param.tensors.begin(), param.tensors.end(), is_8bit);
    return {with_8bit > 0, with_8bit < std::ssize(param.tensors)};
  }

  /// UnitProperties holds the properties in which all parameters of a unit agree.
  struct UnitProperties {
    bool holds_small_tensors = false;
    bool trainable = true;
    bool quantized = false;
    bool fp32 = false;
    bool has_8bit_states = false;
    bool has_plain_states = true;
    auto operator<=>(const UnitProperties&) const = default;
  };

  Unit& find_or_add_unit(int layer, BlockPart part, const UnitProperties& properties) {
    require(!properties.quantized || !properties.trainable, "what is quantized does not train");
    const auto [name, key] = name_and_key(layer, part);
    const auto [it, added] =
        by_key_.try_emplace({key, properties}, static_cast<UnitId>(partition_.units.size()));
    const char* const kind = properties.quantized   ? ".quantized"
                             : properties.trainable ? ""
                                                    : ".frozen";
    const char* const states = !properties.has_8bit_states   ? ""
                               : properties.has_plain_states ? ".partly_8bit"
                                                             : ".8bit";
    if (added)
      partition_.units.push_back(
          {.id = it->second,
           .name = cat(name, properties.holds_small_tensors && !properties.fp32 ? ".small" : "",
                       kind, properties.fp32 ? ".fp32" : "", states),
           .holds_small_tensors = properties.holds_small_tensors,
           .trainable = properties.trainable,
           .quantized = properties.quantized,
           .fp32 = properties.fp32,
           .has_8bit_states = properties.has_8bit_states,
           .has_plain_states = properties.has_plain_states});
    return partition_.units[static_cast<size_t>(it->second)];
  }

  std::pair<std::string, std::pair<int, int>> name_and_key(int index, BlockPart part) const {
    const Layer& layer = model_.layers[static_cast<size_t>(index)];
    if (granularity_ == UnitGranularity::kModel) return {"model", {0, 0}};
    if (granularity_ == UnitGranularity::kLayer || layer.kind != LayerKind::kBlock)
      return {layer.name, {index, 0}};
    if (part == BlockPart::kAttention) return {layer.name + ".attention", {index, 0}};
    return {layer.name + ".mlp", {index, 1}};
  }

  void record_reader(UnitId id, int layer) {
    auto& layers = partition_.units[static_cast<size_t>(id)].layers;
    if (layers.empty() || layers.back() != layer) layers.push_back(layer);
  }

  void check_all_placed() const {
    for (size_t i = 0; i < tensor_locations_.size(); ++i)
      if (!tensor_locations_[i]) bug(cat("no layer has tensor ", model_.tensors[i].name));
  }

  const ModelDescription& model_;
  UnitGranularity granularity_;
  SmallTensorThresholds small_thresholds_;
  const std::function<bool(const TensorInfo&)>& has_8bit_states_;
  int64_t small_elements_ = 0;
  Partition partition_;
  /// The location of each tensor; empty until the tensor is placed.
  std::vector<std::optional<ParamLocation>> tensor_locations_;
  std::map<std::pair<std::pair<int, int>, UnitProperties>, UnitId> by_key_;
};

}  // namespace

int64_t Partition::numel() const {
  int64_t elements = 0;
  for (const Unit& unit : units) elements += unit.numel;
  return elements;
}

std::vector<UnitId> Partition::units_of(int layer) const {
  std::vector<UnitId> ids;
  for (const ParamLocation& location : param_locations[static_cast<size_t>(layer)])
    ids.push_back(location.unit);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Partition build_units(const ModelDescription& model, UnitGranularity granularity,
                      SmallTensorThresholds small,
                      const std::function<bool(const TensorInfo&)>& has_8bit_states) {
  return UnitBuilder(model, granularity, small, has_8bit_states).build();
}

}  // namespace ftrun
