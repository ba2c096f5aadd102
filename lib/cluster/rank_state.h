#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/board_table.h"
#include "cluster/collective_record.h"

namespace ftrun {

/// The largest number of ranks in a published state; states that list more are invalid.
inline constexpr int kMaxShownRanks = 1 << 16;

/// RankState is a rank's activity, as read from its table.
struct RankState {
  struct GroupState {
    std::string name;
    /// The global ranks of the group; empty if the table has no room for them.
    std::vector<int> members;
    CollectiveRecord record;
  };

  Activity phase;
  Activity text_exchange;
  /// The activities of the lanes that are busy; compute first.
  std::vector<Activity> lanes;
  std::vector<GroupState> groups;

  const GroupState* find_group(const std::string& group) const;
  /// Returns whether nothing was ever shown.
  bool empty() const;
};

RankState read_state(const BoardTable& table);
/// Encodes a state for the store; texts are cut to the length that a table holds.
std::vector<uint8_t> encode_state(const RankState& state);
/// Decodes bytes from an untrusted source: invalid parts are left out.
RankState decode_state(std::span<const uint8_t> bytes, int world_size = kMaxShownRanks);

/// Returns the work that the rank does alone while others wait for it; nothing if it works only
/// with others, or if nothing is known.
std::optional<Activity> find_own_work(const RankState& state);
/// Describes a rank's activity: "step 12, forward layer 3 mb 0, for 5.1s"; "" if nothing is known.
std::string activity_text(const RankState& state);

/// Converts members to the form that a table shows; decode_members() converts back, without ranks
/// outside the world.
BoardMembers encode_members(const std::vector<int>& members);
std::vector<int> decode_members(const BoardMembers& members, int world_size = kMaxShownRanks);

}  // namespace ftrun
