#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sim/world.h"

namespace ftrun {

/// LaneSchedule is the part of a program that a walk needs: the instructions of each lane, what
/// each waits for, and which of them are collectives and transfers.
struct LaneSchedule {
  /// Entry is an instruction of the schedule, or several collectives that are joined
  /// (join_collectives()).
  struct Entry {
    InstrId instr = -1;
    /// The group of a collective, and the hash of what all members must announce when they reach
    /// it: ranks with equal hashes may enter one collective. Schedules are made concurrently, so
    /// there is no list of all announcements that could number them.
    GroupId group = kNoGroup;
    uint64_t announcement_hash = 0;
    /// The entry's range in `waits`: [first_wait, end_wait).
    int32_t first_wait = 0;
    int32_t end_wait = 0;
    bool if_finite = false;
    bool decides = false;
  };
  /// A Wait ends when `entries` entries of lane `lane` are done.
  struct Wait {
    int32_t lane = 0;
    int32_t entries = 0;
  };

  /// The lanes of the program, including those without entries.
  std::vector<std::vector<Entry>> lanes;
  /// The lanes that have entries.
  std::vector<int32_t> used_lanes;
  std::vector<Wait> waits;
};

/// Makes the schedule of all instructions of a program, on their lanes.
LaneSchedule make_lane_schedule(const Program& program);

/// Makes the schedule of a program's communication: all collectives on one lane, in the order of
/// the list, and transfers on the lanes of their links, with all that must be done before. If all
/// ranks reach the end of these schedules, no order that the waits allow can hang, and collectives
/// can be launched in one order everywhere: waits point backwards in the list, so the first entry
/// of this walk that has not run always can.
LaneSchedule make_collective_schedule(const Program& program);

/// Joins collectives of a make_collective_schedule() that follow each other in one group into one
/// entry, except those that transfers wait for or that wait for transfers. If all ranks reach the
/// end of the joined schedules, they also do without joining; if they do not, the cause may be the
/// joining.
LaneSchedule join_collectives(const LaneSchedule& collectives);

/// Walk advances all ranks along their schedules. An instruction may run when everything that it
/// waits for is done; a collective or a transfer may run when all members of its group have reached
/// it (so a send lasts until it is received). The caller chooses which of the instructions that may
/// run goes next: the interpreter picks at random, the checker picks any, the simulator picks the
/// earliest.
class Walk {
 public:
  /// Prepares a walk, which begin() starts. `schedules[p]` is the schedule of world.programs[p].
  /// `world` and `schedules` must outlive the walk.
  Walk(const World& world, std::span<const LaneSchedule> schedules);

  /// LaneHead is the head of a rank's lane: its next instruction. A collective is represented by
  /// the lane head of the member that reached it last.
  struct LaneHead {
    int32_t rank = 0;
    int32_t lane = 0;
  };

  /// Starts the walk of a training step. With `finite` false, instructions that run only in finite
  /// steps are skipped.
  void begin(bool finite = true);
  /// Lists the lane heads whose instructions may run now. finish() moves the last one to the
  /// position of the one that is done, and appends those that may run from then on. All others keep
  /// their positions: run_timed_walk() has a list parallel to this one, in the same order.
  const std::vector<LaneHead>& ready() const { return ready_; }
  const Instr& instr(LaneHead lane_head) const;
  /// Returns whether the lane head's instruction runs; false if it runs only in finite steps and
  /// this step is not finite.
  bool runs_in_step(LaneHead lane_head) const { return runs_in_step(entry(lane_head)); }
  /// Returns the ranks that run the lane head's instruction together, as ascending indices. The
  /// span is valid as long as the walk and its world.
  std::span<const int32_t> joint_members(LaneHead lane_head) const;
  /// Returns the lane head of one of the members that run the instruction of `lane_head` together.
  /// The lane's number may differ between members.
  LaneHead lane_head_of_member(int32_t member, LaneHead lane_head) const;
  /// Marks ready()[which] as done.
  void finish(size_t which);

  /// Describes the fault: ranks that enter different collectives in one group, a rank that uses a
  /// group without being a member, or an instruction that would start before the decision on which
  /// it depends. If nothing is ready, describes which ranks wait for which. Returns "" if all ranks
  /// reached the end.
  std::string fault_text() const;
  /// Returns whether there is a fault that no further step can resolve, so that the walk can stop.
  bool has_fault() const { return !fault_.empty(); }

 private:
  struct WalkedRank {
    const LaneSchedule* schedule = nullptr;
    /// The index of the rank's first lane in `lanes_`.
    size_t first_lane = 0;
    bool decided = false;
  };
  /// LaneState is the state of a rank's lane: the number of entries that are done, and whether the
  /// next one has become ready or waits in its group for other members.
  struct LaneState {
    int32_t next = 0;
    bool arrived = false;
  };
  struct PendingCollective {
    int32_t arrived = 0;
    /// The lane head of the member that arrived first.
    LaneHead first;
  };

  // The small functions below are called tens of millions of times.
  WalkedRank& at(int32_t rank) { return ranks_[static_cast<size_t>(rank)]; }
  const WalkedRank& at(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  LaneState& lane_at(const WalkedRank& rank, int32_t lane) {
    return lanes_[rank.first_lane + static_cast<size_t>(lane)];
  }
  const LaneState& lane_at(const WalkedRank& rank, int32_t lane) const {
    return lanes_[rank.first_lane + static_cast<size_t>(lane)];
  }
  static const std::vector<LaneSchedule::Entry>& entries(const WalkedRank& rank, int32_t lane) {
    return rank.schedule->lanes[static_cast<size_t>(lane)];
  }
  size_t next(const WalkedRank& rank, int32_t lane) const {
    return static_cast<size_t>(lane_at(rank, lane).next);
  }
  /// Returns whether a lane is at its end. This is also true for a lane that the rank's program
  /// does not have.
  bool at_end(LaneHead lane_head) const {
    const WalkedRank& rank = at(lane_head.rank);
    return static_cast<size_t>(lane_head.lane) >= rank.schedule->lanes.size() ||
           next(rank, lane_head.lane) == entries(rank, lane_head.lane).size();
  }
  const LaneSchedule::Entry& entry(LaneHead lane_head) const {
    const WalkedRank& rank = at(lane_head.rank);
    return entries(rank, lane_head.lane)[next(rank, lane_head.lane)];
  }
  bool has_arrived(LaneHead lane_head) const {
    return lane_at(at(lane_head.rank), lane_head.lane).arrived;
  }
  bool runs_in_step(const LaneSchedule::Entry& entry) const { return finite_ || !entry.if_finite; }
  bool waits_have_ended(const WalkedRank& rank, const LaneSchedule::Entry& entry) const;
  void advance_lanes(int32_t rank);
  void arrive(LaneHead lane_head);
  void join_collective(LaneHead lane_head, GroupId group);
  void advance(LaneHead lane_head);
  int32_t group_at(LaneHead lane_head) const {
    return world_.group_of(static_cast<size_t>(lane_head.rank), entry(lane_head).group);
  }
  bool is_at(LaneHead lane_head, int32_t group) const {
    return !at_end(lane_head) && has_arrived(lane_head) && entry(lane_head).group != kNoGroup &&
           group_at(lane_head) == group;
  }
  LaneHead missing_member(LaneHead lane_head) const;
  LaneHead blocking_lane(LaneHead lane_head) const;
  void set_fault(const std::string& fault);
  int global_rank(LaneHead lane_head) const;
  std::string instr_text(LaneHead lane_head) const;
  std::string group_name(LaneHead lane_head) const;
  std::string collective_text(LaneHead lane_head) const;
  std::string activity_text(LaneHead lane_head) const;
  std::string mismatch_text(LaneHead one, LaneHead other) const;
  std::string deadlock_text() const;

  const World& world_;
  std::vector<WalkedRank> ranks_;
  /// The index of each rank, to which joint_members() refers for an entry of one rank.
  std::vector<int32_t> indices_;
  /// The lanes of all ranks, rank by rank.
  std::vector<LaneState> lanes_;
  std::vector<PendingCollective> collectives_;
  std::vector<LaneHead> ready_;
  std::vector<LaneHead> member_heads_;
  bool finite_ = true;
  std::string fault_;
};

/// Assigns a number to each schedule. Schedules that differ only in the positions of their entries
/// within the programs get the same number.
std::vector<int32_t> number_equal_schedules(std::span<const LaneSchedule> schedules);

/// Walks the communication of all ranks to the end. The first walk is quick: it joins collectives
/// and represents ranks that are alike by one rank. A full walk follows only if the first one does
/// not reach the end. Returns a description of the fault, or "".
std::string walk_collectives(const World& world);

/// Returns "instruction 14 (all_reduce unit 2)".
std::string numbered_instr_text(const Program& program, InstrId id);

}  // namespace ftrun
