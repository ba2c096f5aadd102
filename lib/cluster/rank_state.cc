#include "cluster/rank_state.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

struct StateHeader {
  uint32_t lanes = 0;
  uint32_t groups = 0;
};

template <typename T>
void append_value(std::vector<uint8_t>& bytes, const T& value) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

template <typename T>
bool read_value(std::span<const uint8_t>& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return true;
}

void make_valid(Activity& activity) {
  activity.unix_ns = std::max<int64_t>(activity.unix_ns, 0);  // the duration must not overflow
  activity.what[sizeof activity.what - 1] = '\0';
  if (activity.kind > ActivityKind::kCommunication) activity = {};
}

CollectiveRecord sanitize(CollectiveRecord record) {
  record.site[sizeof record.site - 1] = '\0';
  record.unix_ns = std::max<int64_t>(record.unix_ns, 0);
  const bool known = static_cast<int>(record.kind) < kCollectiveKinds &&
                     record.op <= ReduceOp::kMax && record.state <= CollectiveState::kAborted &&
                     record.dtype <= DType::kBool;
  return known ? record : CollectiveRecord{};
}

std::string name_of(BoardGroup group) {
  group.name[sizeof group.name - 1] = '\0';
  return group.name;
}

RankState::GroupState group_of(const BoardGroup& group, const CollectiveRecord& record,
                               int world_size) {
  return {name_of(group), decode_members(group.members, world_size), sanitize(record)};
}

bool is_set(const Activity& activity) {
  return activity.kind != ActivityKind::kNone;
}

}  // namespace

const RankState::GroupState* RankState::find_group(const std::string& group) const {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const GroupState& one) {
    return group.compare(0, sizeof BoardGroup::name - 1, one.name) == 0;
  });
  return found == groups.end() ? nullptr : &*found;
}

bool RankState::empty() const {
  return !is_set(phase) && !is_set(text_exchange) && lanes.empty() && groups.empty();
}

RankState read_state(const BoardTable& table) {
  RankState state{.phase = table.phase.read(),
                  .text_exchange = table.text_exchange.read(),
                  .lanes = {},
                  .groups = {}};
  make_valid(state.phase);
  make_valid(state.text_exchange);
  for (const SeqLocked<Activity>& lane : table.lanes) {
    Activity activity = lane.read();
    make_valid(activity);
    if (is_set(activity)) state.lanes.push_back(activity);
  }
  for (const BoardTable::GroupCell& group : table.groups)
    if (group.state.load(std::memory_order_acquire) != BoardTable::GroupCell::kFree)
      state.groups.push_back(group_of(group.group.read(), group.record.read(), kMaxShownRanks));
  return state;
}

std::vector<uint8_t> encode_state(const RankState& state) {
  std::vector<uint8_t> bytes;
  append_value(bytes, StateHeader{static_cast<uint32_t>(state.lanes.size()),
                                  static_cast<uint32_t>(state.groups.size())});
  append_value(bytes, state.phase);
  append_value(bytes, state.text_exchange);
  for (const Activity& lane : state.lanes) append_value(bytes, lane);
  for (const RankState::GroupState& group : state.groups) {
    BoardGroup shown{.members = encode_members(group.members)};
    group.name.copy(shown.name, sizeof shown.name - 1);
    append_value(bytes, shown);
    append_value(bytes, group.record);
  }
  return bytes;
}

RankState decode_state(std::span<const uint8_t> bytes, int world_size) {
  RankState state;
  StateHeader head;
  if (!read_value(bytes, head) || !read_value(bytes, state.phase) ||
      !read_value(bytes, state.text_exchange))
    return {};
  make_valid(state.phase);
  make_valid(state.text_exchange);
  // A table has no room for more lanes and groups.
  head.lanes = std::min<uint32_t>(head.lanes, BoardTable::kLanes);
  head.groups = std::min<uint32_t>(head.groups, BoardTable::kGroups);
  Activity lane;
  for (uint32_t i = 0; i < head.lanes && read_value(bytes, lane); ++i) {
    make_valid(lane);
    if (is_set(lane)) state.lanes.push_back(lane);
  }
  BoardGroup group;
  CollectiveRecord record;
  for (uint32_t i = 0; i < head.groups && read_value(bytes, group) && read_value(bytes, record);
       ++i)
    state.groups.push_back(group_of(group, record, world_size));
  return state;
}

std::optional<Activity> find_own_work(const RankState& state) {
  for (const Activity& lane : state.lanes)
    if (lane.kind == ActivityKind::kOwnWork) return lane;
  const bool in_collective =
      std::any_of(state.groups.begin(), state.groups.end(), [](const RankState::GroupState& group) {
        return group.record.state == CollectiveState::kEntered;
      });
  if (!state.lanes.empty() || in_collective || is_set(state.text_exchange)) return std::nullopt;
  if (is_set(state.phase)) return state.phase;
  return std::nullopt;
}

std::string activity_text(const RankState& state) {
  std::optional<Activity> activity = find_own_work(state);
  if (!activity && is_set(state.text_exchange)) activity = state.text_exchange;
  if (!activity && is_set(state.phase)) activity = state.phase;
  if (!activity) return "";
  std::string text;
  if (is_set(state.phase) && activity->unix_ns != state.phase.unix_ns)
    text = cat(state.phase.what, ", ");
  const auto clock = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch());
  const double seconds = static_cast<double>(clock.count() - activity->unix_ns) * 1e-9;
  return cat(text, activity->what, ", for ", human_seconds(std::max(seconds, 0.0)));
}

BoardMembers encode_members(const std::vector<int>& members) {
  BoardMembers shown{.count = static_cast<int32_t>(members.size())};
  for (size_t i = 0; i < std::min<size_t>(members.size(), BoardMembers::kListed); ++i)
    shown.ranks[i] = members[i];
  if (members.size() <= BoardMembers::kListed) return shown;
  const int stride = members[1] - members[0];
  for (size_t i = 1; i < members.size(); ++i)
    if (members[i] - members[i - 1] != stride) return {};
  shown.stride = stride;
  return shown;
}

std::vector<int> decode_members(const BoardMembers& members, int world_size) {
  std::vector<int> ranks;
  const bool listed = members.stride == 0;
  if (members.count < 0 || members.count > (listed ? BoardMembers::kListed : world_size))
    return ranks;
  for (int i = 0; i < members.count; ++i) {
    const int64_t rank = listed ? int64_t{members.ranks[static_cast<size_t>(i)]}
                                : members.ranks[0] + int64_t{i} * members.stride;
    if (rank >= 0 && rank < world_size) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace ftrun
