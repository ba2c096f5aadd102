#include "partition/sharding.h"

namespace ftrun {

Sharding::Sharding(const Partition& partition,
                   const std::function<GroupPlace(const Unit&)>& place_of, bool shard_small_units) {
  for (const Unit& unit : partition.units) {
    const GroupPlace place = place_of(unit);
    UnitShard shard{false, unit.padded_numel, unit.padded_numel, 0, {0, unit.padded_numel}};
    const int64_t before_last = shard_size(unit, place.count) * (place.count - 1);
    const bool is_worthwhile =
        !unit.holds_small_tensors || (shard_small_units && before_last < unit.padded_numel);
    if (place.count > 1 && is_worthwhile) {
      shard.is_sharded = true;
      shard.held_elements = shard_size(unit, place.count);
      shard.padded_elements = place.count * shard.held_elements;
      shard.begin = place.index * shard.held_elements;
      shard.own_range = shard_range(unit, place.index, place.count);
    }
    units_.push_back(shard);
  }
}

Sharding::Sharding(const Partition& partition, GroupPlace place, bool shard_small_units)
    : Sharding(
          partition, [place](const Unit&) { return place; }, shard_small_units) {}

Sharding::Sharding(const Partition& partition) : Sharding(partition, {1, 0}, false) {}

}  // namespace ftrun
