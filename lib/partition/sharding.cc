#include "partition/sharding.h"

namespace ftrun {

Sharding::Sharding(const Partition& partition,
                   const std::function<GroupPlace(const Unit&)>& place_of, bool shard_small_units) {
  for (const Unit& unit : partition.units) {
    const GroupPlace place = place_of(unit);
    UnitShard shard{false, unit.padded_numel, unit.padded_numel, 0, {0, unit.padded_numel}};
    const int64_t before_last = shard_size(unit, place.count) * (place.count - 1);
    const bool pays =
        !unit.holds_small_tensors || (shard_small_units && before_last < unit.padded_numel);
    if (place.count > 1 && pays) {
      shard.is_sharded = true;
      shard.held = shard_size(unit, place.count);
      shard.padded = place.count * shard.held;
      shard.begin = place.index * shard.held;
      shard.own = shard_range(unit, place.index, place.count);
    }
    units_.push_back(shard);
  }
}

Sharding::Sharding(const Partition& partition, GroupPlace place, bool shard_small_units)
    : Sharding(
          partition, [place](const Unit&) { return place; }, shard_small_units) {}

Sharding::Sharding(const Partition& partition) : Sharding(partition, {1, 0}, false) {}

}  // namespace ftrun
