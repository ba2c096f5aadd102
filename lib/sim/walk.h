#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/numbering.h"
#include "sim/world.h"

namespace ftrun {

/// A Course is a program as a walk sees it: the steps of each lane, what they wait for, and in
/// which of them ranks meet.
struct Course {
  struct Step {
    InstrId instr = -1;
    /// The group of a collective, and what all members must announce when they reach it.
    GroupId group = kNoGroup;
    int32_t announced = -1;
    /// The step's range in `waits`: [first_wait, end_wait).
    int32_t first_wait = 0;
    int32_t end_wait = 0;
    bool if_finite = false;
    bool decides = false;
  };
  /// A Wait is over when this many steps of a lane are done.
  struct Wait {
    int32_t lane = 0;
    int32_t steps = 0;
  };

  /// The lanes of the program, also those without steps.
  std::vector<std::vector<Step>> lanes;
  /// The lanes that have steps.
  std::vector<int32_t> used;
  std::vector<Wait> waits;
};

/// Announcements gives numbers to what ranks announce: ranks with equal numbers meet.
using Announcements = Numbering<std::unordered_map<std::string, int32_t>>;

/// Makes the course of all instructions of a program, on their lanes.
Course whole_course(const Program& program, Announcements& announcements);

/// Makes the course of a program's communication: all collectives on one lane, in the order of the
/// list, and transfers on the lanes of their links, with all that must be done before. If all ranks
/// reach the end of these courses, no order that the waits allow can hang, and collectives can be
/// launched in one order everywhere: waits point backwards in the list, so the first step of this
/// walk that has not run always can.
Course collective_course(const Program& program, Announcements& announcements);

/// Joins collectives of a collective_course() that follow each other in one group into one step,
/// except those that transfers wait for or that wait for transfers. If all ranks reach the end of
/// the joined courses, they also do without joining; if they do not, the cause may be the joining.
Course joined(const Course& collectives, Announcements& announcements);

/// Walk moves all ranks along their courses. An instruction may run when what it waits for is done,
/// a collective or a transfer when all members of its group have reached it (so a send lasts until
/// it is received). The caller chooses which of the instructions that may run goes next: the
/// interpreter picks at random, the checker picks any, the simulator picks the earliest.
class Walk {
 public:
  /// Prepares a walk, which begin() starts. `courses[p]` is that of world.programs[p]; both are
  /// borrowed.
  Walk(const World& world, std::span<const Course> courses);

  /// Turn is a rank's next step on a lane. The last member to reach a collective stands for all.
  struct Turn {
    int32_t rank = 0;
    int32_t lane = 0;
  };

  /// Goes to the beginning of a step whose decision is `finite`: if false, instructions that run
  /// only in finite steps take no part.
  void begin(bool finite = true);
  /// Lists the turns that may go now, in no order.
  const std::vector<Turn>& ready() const { return ready_; }
  const Instr& instr(Turn turn) const;
  /// Returns whether the turn's instruction runs: some do not where the step is not finite.
  bool takes_part(Turn turn) const { return takes_part(step(turn)); }
  /// Returns the ranks that run the turn together: indices, ascending.
  std::span<const int32_t> members(const Turn& turn) const;
  /// Returns the turn of one of the members that run `turn` together, on that member's lane.
  Turn turn_of(int32_t member, Turn turn) const;
  /// Marks ready()[which] as done.
  void finish(size_t which);

  /// Describes the fault: ranks that meet in a group for different collectives, a rank in a group
  /// of others, an instruction that would start before the decision that it depends on; once
  /// nothing is ready, which ranks wait for which. "" when all ranks reached the end.
  std::string fault() const;
  /// Returns whether there is a fault that no further step can resolve: the walk can stop.
  bool has_fault() const { return !fault_.empty(); }

 private:
  struct WalkedRank {
    const Course* course = nullptr;
    /// Index of its first lane in `lanes_`.
    size_t first_lane = 0;
    bool decided = false;
  };
  /// LaneState is the state of a rank's lane: how many of its steps are done, and whether the next
  /// one is ready, or waits in its group for others.
  struct LaneState {
    int32_t next = 0;
    bool arrived = false;
  };
  struct Meeting {
    int32_t arrived = 0;
    /// The turn that came first.
    Turn first;
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
  static const std::vector<Course::Step>& steps(const WalkedRank& rank, int32_t lane) {
    return rank.course->lanes[static_cast<size_t>(lane)];
  }
  size_t next(const WalkedRank& rank, int32_t lane) const {
    return static_cast<size_t>(lane_at(rank, lane).next);
  }
  /// Returns whether a lane is at its end; lanes that the rank's program does not have always are.
  bool at_end(Turn turn) const {
    const WalkedRank& rank = at(turn.rank);
    return static_cast<size_t>(turn.lane) >= rank.course->lanes.size() ||
           next(rank, turn.lane) == steps(rank, turn.lane).size();
  }
  const Course::Step& step(Turn turn) const {
    const WalkedRank& rank = at(turn.rank);
    return steps(rank, turn.lane)[next(rank, turn.lane)];
  }
  bool has_arrived(Turn turn) const { return lane_at(at(turn.rank), turn.lane).arrived; }
  bool takes_part(const Course::Step& step) const { return finite_ || !step.if_finite; }
  bool waits_done(const WalkedRank& rank, const Course::Step& step) const;
  void advance_lanes(int32_t rank);
  void arrive(Turn turn);
  void join_collective(Turn turn, GroupId group);
  void advance(Turn turn);
  int32_t group_at(Turn turn) const {
    return world_.group_of(static_cast<size_t>(turn.rank), step(turn).group);
  }
  bool is_at(Turn turn, int32_t group) const {
    return !at_end(turn) && has_arrived(turn) && step(turn).group != kNoGroup &&
           group_at(turn) == group;
  }
  Turn missing(Turn turn) const;
  Turn held_by(Turn turn) const;
  void set_fault(const std::string& fault);
  int number(Turn turn) const;
  std::string place(Turn turn) const;
  std::string group_name(Turn turn) const;
  std::string entry(Turn turn) const;
  std::string doing(Turn turn) const;
  std::string difference(Turn one, Turn other) const;
  std::string stalled() const;

  const World& world_;
  std::vector<WalkedRank> ranks_;
  /// Lanes of all ranks, one rank's after another's.
  std::vector<LaneState> lanes_;
  std::vector<Meeting> meetings_;
  std::vector<Turn> ready_;
  std::vector<Turn> meeting_turns_;
  bool finite_ = true;
  std::string fault_;
};

/// Numbers courses: those that differ only in the positions of their steps in their
/// programs have the same number.
std::vector<int32_t> course_numbers(std::span<const Course> courses);

/// Walks the communication of all ranks to the end: first, which is quick, with collectives on one
/// lane, joined, and one rank for all that are alike. Returns what stops them, or "".
std::string walk_collectives(const World& world);

/// Returns "instruction 14 (all_reduce unit 2)".
std::string instr_place(const Program& program, InstrId id);

}  // namespace ftrun
