#include "partition/sharding.h"

namespace ftrun {

Sharding::Sharding(const Partition& partition,
                   const std::function<GroupPlace(const Unit&)>& place_of, bool cut_small) {
  for (const Unit& unit : partition.units) {
    const GroupPlace place = place_of(unit);
    UnitShare share{false, unit.padded, unit.padded, 0, {0, unit.padded}};
    const int64_t before_last = shard_size(unit, place.count) * (place.count - 1);
    const bool pays = !unit.small || (cut_small && before_last < unit.padded);
    if (place.count > 1 && pays) {
      share.is_cut = true;
      share.held = shard_size(unit, place.count);
      share.whole = place.count * share.held;
      share.begin = place.index * share.held;
      share.own = shard_range(unit, place.index, place.count);
    }
    units_.push_back(share);
  }
}

Sharding::Sharding(const Partition& partition, GroupPlace place, bool cut_small)
    : Sharding(
          partition, [place](const Unit&) { return place; }, cut_small) {}

Sharding::Sharding(const Partition& partition) : Sharding(partition, {1, 0}, false) {}

}  // namespace ftrun
