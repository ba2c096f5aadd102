#include "partition/whole_parameters.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/round_up.h"

namespace ftrun {
namespace {

/// A parameter in a unit: elements from `start`, with its tensors one after another.
struct Extent {
  int64_t start = 0;
  int64_t elements = 0;
};

/// Lists the extents of each unit, in order.
std::vector<std::vector<Extent>> extents_of(const Partition& partition,
                                            const ModelDescription& model) {
  std::vector<std::map<int64_t, int64_t>> found(partition.units.size());
  for (size_t layer = 0; layer < partition.places.size(); ++layer)
    for (size_t i = 0; i < partition.places[layer].size(); ++i) {
      int64_t elements = 0;
      for (const TensorId id : model.layers[layer].params[i].tensors)
        elements += model.tensor(id).local_numel();
      const ParamPlace& place = partition.places[layer][i];
      found[static_cast<size_t>(place.unit)][place.position] = elements;
    }
  std::vector<std::vector<Extent>> extents;
  for (const auto& unit : found) {
    extents.emplace_back();
    for (const auto& [start, elements] : unit) extents.back().push_back({start, elements});
  }
  return extents;
}

/// Chooses an owner for each extent.
std::vector<size_t> owners_of(const std::vector<Extent>& extents, int owners) {
  std::vector<size_t> by_size(extents.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return extents[a].elements > extents[b].elements;
  });
  std::vector<int64_t> load(static_cast<size_t>(owners), 0);
  std::vector<size_t> owner(extents.size());
  for (const size_t i : by_size) {
    const auto emptiest = std::min_element(load.begin(), load.end());
    owner[i] = static_cast<size_t>(emptiest - load.begin());
    *emptiest += round_up(extents[i].elements, kTensorBlock);
  }
  return owner;
}

/// Lays the extents of a unit out anew: maps each old start to the new one, and sets the unit's
/// length.
std::map<int64_t, int64_t> lay_out(Unit& unit, const std::vector<Extent>& extents, int owners) {
  const std::vector<size_t> owner = owners_of(extents, owners);
  std::vector<int64_t> load(static_cast<size_t>(owners), 0);
  std::vector<int64_t> within(extents.size());
  for (size_t i = 0; i < extents.size(); ++i) {
    within[i] = load[owner[i]];
    load[owner[i]] += round_up(extents[i].elements, kTensorBlock);
  }
  const int64_t stride = round_up(*std::max_element(load.begin(), load.end()), kUnitBlock);
  unit.padded = stride * owners;
  std::map<int64_t, int64_t> moved;
  for (size_t i = 0; i < extents.size(); ++i)
    moved[extents[i].start] = static_cast<int64_t>(owner[i]) * stride + within[i];
  return moved;
}

}  // namespace

Partition own_whole_parameters(Partition partition, const ModelDescription& model, int owners) {
  require(owners > 0, "at least one owner");
  const std::vector<std::vector<Extent>> extents = extents_of(partition, model);
  for (Unit& unit : partition.units) {
    if (unit.small) continue;
    const auto moved = lay_out(unit, extents[static_cast<size_t>(unit.id)], owners);
    for (Slice& slice : unit.slices) {
      const auto [from, to] = *std::prev(moved.upper_bound(slice.position_in_unit));
      slice.position_in_unit += to - from;
    }
    std::sort(unit.slices.begin(), unit.slices.end(), [](const Slice& a, const Slice& b) {
      return a.position_in_unit < b.position_in_unit;
    });
    for (auto& places : partition.places)
      for (ParamPlace& place : places)
        if (place.unit == unit.id) place.position = moved.at(place.position);
  }
  return partition;
}

}  // namespace ftrun
