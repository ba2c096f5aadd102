#include "sim/walk.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/mix_bits.h"
#include "base/run_in_parallel.h"
#include "program/lifetime.h"
#include "sim/folded_world.h"
#include "sim/sequential_ids.h"

namespace ftrun {

std::string numbered_instr_text(const Program& program, InstrId id) {
  return cat("instruction ", id, " (", instr_label(program.instr(id)), ")");
}

namespace {

/// Returns whether an instruction sums the gradients of copies of a matrix on two pipeline stages.
/// The stages hold different units, so the copies may lie in different buffers and at different
/// offsets.
bool adds_copies_of_stages(const Program& program, const Instr& instr) {
  return instr.unit >= 0 && program.group(instr.group()).members.runs_within(kStageAxes);
}

/// Returns whether an instruction sums, over replicas, the shard that each member holds. The offset
/// of the shard within the whole is then not announced.
bool adds_parts(const Program& program, const Instr& instr) {
  return program.group(instr.group()).members.runs_within(kReplicaAxes) &&
         std::any_of(program.groups.begin(), program.groups.end(), [&](const ProgramGroup& group) {
           return group.members.runs_within(kStateAxes);
         });
}

/// Writes what all members of a group must agree on when they meet in a collective: also where in
/// whole copies the ranges lie, which is the same on every rank. Where a rank's own part lies does
/// not matter here.
void write_announcement(const Program& program, const Instr& instr, std::string& text) {
  text.clear();
  if (instr.is_transfer()) {
    const BufferRange& range = instr.full_ranges()[0];
    // The two ranks may place their buffers differently, but both have the same value in them.
    append_text(text, "transfer ", dtype_name(instr.communication().dtype), " ", range.bytes,
                " of ", program.at(range.buffer).name, "+", range.offset, " ", instr.layer, " ",
                instr.micro_batch);
    return;
  }
  append_text(text, instr_name(instr.kind), " ", dtype_name(instr.communication().dtype));
  if (instr.communication().is_max) append_text(text, " largest");
  if (instr.kind == InstrKind::kShift) append_text(text, " by ", instr.communication().shift);
  if (instr.kind == InstrKind::kCountedAllToAll)
    append_text(text, " rows of ", instr.communication().row_elements);
  for (const auto* ranges : {&instr.reads, &instr.writes})
    for (const BufferRange& range : *ranges) append_text(text, " ", range.bytes);
  if (adds_copies_of_stages(program, instr)) {
    append_text(text, " ", category_name(program.at(instr.writes[0].buffer).category), " of unit ",
                instr.unit);
    return;
  }
  const bool parts = adds_parts(program, instr);
  for (const BufferRange& range : instr.full_ranges())
    append_text(text, " ", program.at(range.buffer).name, "+", parts ? 0 : range.offset);
}

/// AnnouncementHasher hashes what ranks announce.
class AnnouncementHasher {
 public:
  explicit AnnouncementHasher(const Program& program) : program_(program) {}

  /// Hashes an entry of a lane for all communication.
  uint64_t hash_of(const Instr& instr) {
    write_announcement(program_, instr, text_);
    return xxh3(text_.data(), text_.size());
  }
  /// Hashes an entry of the instruction's own lane: collectives run on one lane on all ranks.
  uint64_t hash_on_lane(const Instr& instr) {
    write_announcement(program_, instr, text_);
    if (!instr.is_transfer())
      append_text(text_, " ", instr_label(instr), " ", static_cast<int>(instr.lane));
    return xxh3(text_.data(), text_.size());
  }

 private:
  const Program& program_;
  std::string text_;
};

LaneSchedule::Entry schedule_entry(const Program& program, InstrId id) {
  const Instr& instr = program.instr(id);
  return {.instr = id,
          .group = instr.group(),
          .if_finite = instr.if_finite,
          .decides = instr.kind == InstrKind::kDecide};
}

LaneSchedule empty_schedule(const Program& program) {
  LaneSchedule schedule;
  schedule.lanes.resize(static_cast<size_t>(lane_count(program)));
  return schedule;
}

void mark_used(LaneSchedule& schedule) {
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane)
    if (!schedule.lanes[lane].empty()) schedule.used_lanes.push_back(static_cast<int32_t>(lane));
}

}  // namespace

LaneSchedule make_lane_schedule(const Program& program) {
  AnnouncementHasher hasher(program);
  LaneSchedule schedule = empty_schedule(program);
  // The number of entries of its lane that are done once an instruction is done.
  std::vector<int32_t> position(program.instrs.size());
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    auto& lane = schedule.lanes[static_cast<size_t>(program.instrs[i].lane)];
    lane.push_back(schedule_entry(program, static_cast<InstrId>(i)));
    position[i] = static_cast<int32_t>(lane.size());
  }
  for (auto& lane : schedule.lanes)
    for (LaneSchedule::Entry& entry : lane) {
      const Instr& instr = program.instr(entry.instr);
      entry.first_wait = static_cast<int32_t>(schedule.waits.size());
      for (const InstrId wait : instr.waits)
        schedule.waits.push_back(
            {static_cast<int32_t>(program.instr(wait).lane), position[static_cast<size_t>(wait)]});
      entry.end_wait = static_cast<int32_t>(schedule.waits.size());
      if (instr.communicates()) entry.announcement_hash = hasher.hash_on_lane(instr);
    }
  mark_used(schedule);
  return schedule;
}

namespace {

/// Returns the lane in the result of make_collective_schedule() for a lane of the program: lane 0
/// for all collectives; for a link, its own lane.
size_t schedule_lane(const Program& program, size_t lane) {
  return is_link(program, static_cast<Lane>(lane)) ? lane : 0;
}

}  // namespace

LaneSchedule make_collective_schedule(const Program& program) {
  AnnouncementHasher hasher(program);
  LaneSchedule schedule = empty_schedule(program);
  const LaneClocks clocks = compute_vector_clocks(program);
  // The instructions of each lane of the schedule, in ascending order.
  std::vector<std::vector<InstrId>> ids(schedule.lanes.size());
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (!instr.communicates()) continue;
    const size_t own = schedule_lane(program, static_cast<size_t>(instr.lane));
    LaneClock done = initial_lane_clock(program);
    for (auto lane = static_cast<size_t>(Lane::kFirstGroup); lane < done.size(); ++lane) {
      InstrId& latest = done[schedule_lane(program, lane)];
      latest = std::max(latest, clocks[i][lane]);
    }
    LaneSchedule::Entry entry{.instr = static_cast<InstrId>(i),
                              .group = instr.group(),
                              .announcement_hash = hasher.hash_of(instr),
                              .first_wait = static_cast<int32_t>(schedule.waits.size())};
    for (size_t lane = 0; lane < ids.size(); ++lane) {
      const auto entries =
          std::upper_bound(ids[lane].begin(), ids[lane].end(), done[lane]) - ids[lane].begin();
      if (lane != own && entries > 0)
        schedule.waits.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(entries)});
    }
    entry.end_wait = static_cast<int32_t>(schedule.waits.size());
    ids[own].push_back(static_cast<InstrId>(i));
    schedule.lanes[own].push_back(entry);
  }
  mark_used(schedule);
  return schedule;
}

namespace {

/// CollectiveJoiner joins consecutive entries of the lane of collectives (lane 0) that have the
/// same group.
class CollectiveJoiner {
 public:
  explicit CollectiveJoiner(const LaneSchedule& from) : from_(from), known_(from.lanes.size(), 0) {
    out_.lanes.resize(from.lanes.size());
    for (size_t lane = 1; lane < from.lanes.size(); ++lane)
      for (const LaneSchedule::Entry& entry : from.lanes[lane])
        for (const LaneSchedule::Wait& wait : waits_of(entry))
          if (wait.lane == 0) awaited_.insert(wait.entries);
  }

  LaneSchedule run() {
    for (const LaneSchedule::Entry& entry : from_.lanes[0]) add(entry);
    for (size_t lane = 1; lane < from_.lanes.size(); ++lane)
      for (const LaneSchedule::Entry& entry : from_.lanes[lane]) {
        LaneSchedule::Entry& copy = out_.lanes[lane].emplace_back(entry);
        copy_waits(entry, copy);
      }
    mark_used(out_);
    return std::move(out_);
  }

 private:
  std::span<const LaneSchedule::Wait> waits_of(const LaneSchedule::Entry& entry) const {
    return std::span(from_.waits)
        .subspan(static_cast<size_t>(entry.first_wait),
                 static_cast<size_t>(entry.end_wait - entry.first_wait));
  }

  void add(const LaneSchedule::Entry& entry) {
    std::vector<LaneSchedule::Entry>& entries = out_.lanes[0];
    bool waits = false;
    for (const LaneSchedule::Wait& wait : waits_of(entry)) {
      int32_t& known = known_[static_cast<size_t>(wait.lane)];
      waits |= wait.entries > std::exchange(known, std::max(known, wait.entries));
    }
    const auto before = static_cast<int32_t>(joined_.size());
    if (entries.empty() || entries.back().group != entry.group || waits ||
        awaited_.contains(before)) {
      LaneSchedule::Entry& copy = entries.emplace_back(entry);
      copy_waits(entry, copy);
    } else {
      uint64_t& all = entries.back().announcement_hash;
      all = splitmix64(all) ^ entry.announcement_hash;
    }
    joined_.push_back(static_cast<int32_t>(entries.size()));
  }

  void copy_waits(const LaneSchedule::Entry& from, LaneSchedule::Entry& to) {
    to.first_wait = static_cast<int32_t>(out_.waits.size());
    for (LaneSchedule::Wait wait : waits_of(from)) {
      if (wait.lane == 0) wait.entries = joined_[static_cast<size_t>(wait.entries) - 1];
      out_.waits.push_back(wait);
    }
    to.end_wait = static_cast<int32_t>(out_.waits.size());
  }

  const LaneSchedule& from_;
  LaneSchedule out_;
  /// The counts of entries of lane 0 for which other lanes wait.
  std::set<int32_t> awaited_;
  /// The number of joined entries up to and including each entry of lane 0.
  std::vector<int32_t> joined_;
  std::vector<int32_t> known_;
};

}  // namespace

LaneSchedule join_collectives(const LaneSchedule& collectives) {
  return CollectiveJoiner(collectives).run();
}

Walk::Walk(const World& world, std::span<const LaneSchedule> schedules)
    : world_(world), collectives_(world.groups.size()) {
  require(schedules.size() == world.programs.size(), "there is a schedule for each program");
  size_t lanes = 0;
  for (const World::Rank& rank : world.ranks) {
    const LaneSchedule& schedule = schedules[static_cast<size_t>(rank.program)];
    indices_.push_back(static_cast<int32_t>(ranks_.size()));
    ranks_.push_back({.schedule = &schedule, .first_lane = lanes});
    lanes += schedule.lanes.size();
  }
  lanes_.resize(lanes);
}

void Walk::begin(bool finite) {
  finite_ = finite;
  fault_.clear();
  ready_.clear();
  for (WalkedRank& rank : ranks_) rank.decided = false;
  std::fill(lanes_.begin(), lanes_.end(), LaneState());
  std::fill(collectives_.begin(), collectives_.end(), PendingCollective());
  for (size_t r = 0; r < ranks_.size(); ++r) advance_lanes(static_cast<int32_t>(r));
}

const Instr& Walk::instr(LaneHead lane_head) const {
  return world_.program_of(static_cast<size_t>(lane_head.rank)).instr(entry(lane_head).instr);
}

std::span<const int32_t> Walk::joint_members(LaneHead lane_head) const {
  const LaneSchedule::Entry& now = entry(lane_head);
  if (now.group == kNoGroup || !runs_in_step(now))
    return {&indices_[static_cast<size_t>(lane_head.rank)], 1};
  const int32_t group = world_.group_of(static_cast<size_t>(lane_head.rank), now.group);
  return world_.groups[static_cast<size_t>(group)].members;
}

bool Walk::waits_have_ended(const WalkedRank& rank, const LaneSchedule::Entry& entry) const {
  for (int32_t w = entry.first_wait; w < entry.end_wait; ++w) {
    const LaneSchedule::Wait& wait = rank.schedule->waits[static_cast<size_t>(w)];
    if (lane_at(rank, wait.lane).next < wait.entries) return false;
  }
  return true;
}

/// Advances the lanes of a rank that can continue now.
void Walk::advance_lanes(int32_t number) {
  WalkedRank& rank = at(number);
  for (const int32_t lane : rank.schedule->used_lanes) {
    const LaneHead lane_head{number, lane};
    if (has_arrived(lane_head) || at_end(lane_head) || !waits_have_ended(rank, entry(lane_head)))
      continue;
    lane_at(rank, lane).arrived = true;
    arrive(lane_head);
  }
}

void Walk::arrive(LaneHead lane_head) {
  const LaneSchedule::Entry& now = entry(lane_head);
  if (now.if_finite && !at(lane_head.rank).decided)
    return set_fault(cat("rank ", global_rank(lane_head), ": ", instr_text(lane_head),
                         " starts before the decision"));
  if (now.group != kNoGroup && runs_in_step(now)) return join_collective(lane_head, now.group);
  ready_.push_back(lane_head);
}

void Walk::join_collective(LaneHead lane_head, GroupId id) {
  const int32_t group = world_.group_of(static_cast<size_t>(lane_head.rank), id);
  if (group == World::kNotMember)
    return set_fault(cat("rank ", global_rank(lane_head), " ", activity_text(lane_head),
                         ", but is not a member of the group"));
  PendingCollective& pending = collectives_[static_cast<size_t>(group)];
  if (pending.arrived == 0)
    pending.first = lane_head;
  else if (entry(pending.first).announcement_hash != entry(lane_head).announcement_hash)
    return set_fault(mismatch_text(pending.first, lane_head));
  const auto& members = world_.groups[static_cast<size_t>(group)].members;
  if (++pending.arrived < static_cast<int32_t>(members.size())) return;
  pending.arrived = 0;
  ready_.push_back(lane_head);
}

void Walk::finish(size_t which) {
  const LaneHead lane_head = ready_[which];
  // ready() promises this order.
  ready_[which] = ready_.back();
  ready_.pop_back();
  const std::span<const int32_t> all = joint_members(lane_head);
  if (all.size() == 1) return advance(lane_head);
  // The lane heads of all members are collected first, because a rank that continues may reach the
  // group's next collective.
  std::vector<LaneHead>& lane_heads = member_heads_;
  lane_heads.clear();
  for (const int32_t member : all) lane_heads.push_back(lane_head_of_member(member, lane_head));
  for (const LaneHead of_member : lane_heads) advance(of_member);
}

/// Finds the lane head of a member. The lane of `lane_head` is tried first, because most groups
/// have the same lane on all members.
Walk::LaneHead Walk::lane_head_of_member(int32_t member, LaneHead lane_head) const {
  if (entry(lane_head).group == kNoGroup) return lane_head;
  const int32_t group = group_at(lane_head);
  if (is_at({member, lane_head.lane}, group)) return {member, lane_head.lane};
  for (const int32_t lane : at(member).schedule->used_lanes)
    if (is_at({member, lane}, group)) return {member, lane};
  bug("a member has not reached the collective of its group");
}

void Walk::advance(LaneHead lane_head) {
  WalkedRank& rank = at(lane_head.rank);
  rank.decided |= entry(lane_head).decides;
  LaneState& lane = lane_at(rank, lane_head.lane);
  lane.arrived = false;
  ++lane.next;
  advance_lanes(lane_head.rank);
}

// The functions below describe faults.

void Walk::set_fault(const std::string& fault) {
  if (fault_.empty()) fault_ = fault;
}

int Walk::global_rank(LaneHead lane_head) const {
  return world_.ranks[static_cast<size_t>(lane_head.rank)].number;
}

std::string Walk::instr_text(LaneHead lane_head) const {
  return numbered_instr_text(world_.program_of(static_cast<size_t>(lane_head.rank)),
                             entry(lane_head).instr);
}

std::string Walk::group_name(LaneHead lane_head) const {
  const auto rank = static_cast<size_t>(lane_head.rank);
  const GroupId id = entry(lane_head).group;
  const int32_t group = world_.group_of(rank, id);
  return group == World::kNotMember ? world_.program_of(rank).group(id).members.name()
                                    : world_.groups[static_cast<size_t>(group)].name;
}

/// Returns "instruction 14 (all_reduce unit 2) with 16384 bytes of gradients as F32 over data@0".
std::string Walk::collective_text(LaneHead lane_head) const {
  const Program& program = world_.program_of(static_cast<size_t>(lane_head.rank));
  const Instr& now = instr(lane_head);
  int64_t bytes = 0;
  const std::vector<BufferRange>& ranges = now.writes.empty() ? now.reads : now.writes;
  for (const BufferRange& range : ranges) bytes += range.bytes;
  return cat(instr_text(lane_head), " with ", bytes, " bytes of ",
             program.at(ranges[0].buffer).name, " as ", dtype_name(now.communication().dtype),
             " over ", group_name(lane_head));
}

/// Describes what a rank does on a lane: "enters ...", "has not reached ...".
std::string Walk::activity_text(LaneHead lane_head) const {
  if (at_end(lane_head)) return "has no further collective";
  return has_arrived(lane_head) && entry(lane_head).group != kNoGroup
             ? "enters " + collective_text(lane_head)
             : "has not reached " + instr_text(lane_head);
}

std::string Walk::mismatch_text(LaneHead one, LaneHead other) const {
  if (one.rank > other.rank) std::swap(one, other);
  const auto& instrs = world_.program_of(static_cast<size_t>(one.rank)).instrs;
  const bool transfer = instr(one).is_transfer();
  const auto before =
      std::count_if(instrs.begin(), instrs.begin() + entry(one).instr, [&](const Instr& earlier) {
        return earlier.communicates() && earlier.is_transfer() == transfer;
      });
  return cat(transfer ? "transfer " : "collective ", before, ": rank ", global_rank(one), " ",
             activity_text(one), ", rank ", global_rank(other), " ", activity_text(other));
}

/// Finds the first member that has not reached the collective at which a rank waits.
Walk::LaneHead Walk::missing_member(LaneHead lane_head) const {
  const int32_t group = group_at(lane_head);
  for (const int32_t member : joint_members(lane_head)) {
    const WalkedRank& rank = at(member);
    const auto has_entered = [&](int32_t lane) { return is_at({member, lane}, group); };
    if (std::any_of(rank.schedule->used_lanes.begin(), rank.schedule->used_lanes.end(),
                    has_entered))
      continue;
    // The result is the rank's lane for the group, or lane 0 if the rank has no entries on that
    // lane.
    const auto& groups = world_.ranks[static_cast<size_t>(member)].groups;
    const auto known = std::find(groups.begin(), groups.end(), group);
    // The member's program may not have the group.
    if (known == groups.end()) return {member, lane_head.lane};
    const auto lane = static_cast<int32_t>(lane_of(static_cast<GroupId>(known - groups.begin())));
    return {member, entries(rank, lane).empty() ? 0 : lane};
  }
  bug("a collective waits although all ranks have arrived");
}

/// Finds a lane of the same rank that has not done yet what its next entry waits for.
Walk::LaneHead Walk::blocking_lane(LaneHead lane_head) const {
  const WalkedRank& rank = at(lane_head.rank);
  const LaneSchedule::Entry& now = entry(lane_head);
  for (int32_t w = now.first_wait; w < now.end_wait; ++w) {
    const LaneSchedule::Wait& wait = rank.schedule->waits[static_cast<size_t>(w)];
    if (lane_at(rank, wait.lane).next < wait.entries) return {lane_head.rank, wait.lane};
  }
  bug("an entry is blocked although its waits are done");
}

/// Describes why the walk cannot continue, beginning at the first rank that has not reached its
/// end: a cycle of ranks that wait for each other, or a rank that never arrives.
std::string Walk::deadlock_text() const {
  const auto unfinished = [&]() -> std::optional<LaneHead> {
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (const int32_t lane : ranks_[r].schedule->used_lanes)
        if (const LaneHead lane_head{static_cast<int32_t>(r), lane}; !at_end(lane_head))
          return lane_head;
    return std::nullopt;
  };
  std::optional<LaneHead> lane_head = unfinished();
  if (!lane_head) return "";
  std::set<std::pair<int32_t, int32_t>> seen;
  std::optional<LaneHead> waits;
  while (!at_end(*lane_head) && seen.emplace(lane_head->rank, lane_head->lane).second) {
    if (has_arrived(*lane_head)) waits = lane_head;
    lane_head = has_arrived(*lane_head) ? missing_member(*lane_head) : blocking_lane(*lane_head);
  }
  // From here on the path is a cycle. It lies within one rank if the rank's waits do not point
  // backwards.
  if (!at_end(*lane_head)) {
    const LaneHead round = *lane_head;
    while (!has_arrived(*lane_head)) {
      lane_head = blocking_lane(*lane_head);
      if (lane_head->rank == round.rank && lane_head->lane == round.lane && !has_arrived(round))
        return cat("rank ", global_rank(round), " ", activity_text(round));
    }
    waits = lane_head;
  }
  const LaneHead other = missing_member(*waits);
  return cat("rank ", global_rank(*waits), " ", activity_text(*waits), " and waits for rank ",
             global_rank(other), ", which ", activity_text(other));
}

std::string Walk::fault_text() const {
  return !fault_.empty() || !ready_.empty() ? fault_ : deadlock_text();
}

namespace {

std::string walk_to_the_end(const World& world, const std::vector<LaneSchedule>& schedules) {
  Walk walk(world, schedules);
  walk.begin();
  while (!walk.has_fault() && !walk.ready().empty()) walk.finish(walk.ready().size() - 1);
  return walk.fault_text();
}

}  // namespace

std::vector<int32_t> number_equal_schedules(std::span<const LaneSchedule> schedules) {
  SequentialIds<std::map<std::vector<int32_t>, int32_t>> known;
  std::vector<int32_t> numbers;
  for (const LaneSchedule& schedule : schedules) {
    std::vector<int32_t> key;
    for (const int32_t lane : schedule.used_lanes) {
      const auto& entries = schedule.lanes[static_cast<size_t>(lane)];
      key.insert(key.end(), {lane, static_cast<int32_t>(entries.size())});
      for (const LaneSchedule::Entry& entry : entries) {
        const auto low = static_cast<int32_t>(entry.announcement_hash),
                   high = static_cast<int32_t>(entry.announcement_hash >> 32);
        key.insert(key.end(), {entry.group, low, high, entry.if_finite ? 1 : 0,
                               entry.decides ? 1 : 0, entry.end_wait - entry.first_wait});
        for (int32_t w = entry.first_wait; w < entry.end_wait; ++w)
          key.insert(key.end(), {schedule.waits[static_cast<size_t>(w)].lane,
                                 schedule.waits[static_cast<size_t>(w)].entries});
      }
    }
    numbers.push_back(known.id_of(std::move(key)));
  }
  return numbers;
}

std::string walk_collectives(const World& world) {
  std::vector<LaneSchedule> schedules(world.programs.size());
  std::vector<LaneSchedule> runs(world.programs.size());
  run_in_parallel(world.programs.size(), [&](size_t p) {
    schedules[p] = make_collective_schedule(*world.programs[p]);
    runs[p] = join_collectives(schedules[p]);
  });
  const std::optional<World> folded = fold_world(world, number_equal_schedules(runs));
  if (walk_to_the_end(folded ? *folded : world, runs).empty()) return "";
  // The walk over folded ranks and joined collectives found a fault, which may be caused by the
  // joining. The walk over all ranks and separate collectives decides, and describes the fault.
  return walk_to_the_end(world, schedules);
}

}  // namespace ftrun
