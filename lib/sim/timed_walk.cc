#include "sim/timed_walk.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {

__extension__ using Wide = __int128;

/// Returns time * by / over, rounded down. The product is computed in 128 bits, because it may
/// exceed 64 bits.
Picoseconds scaled_down(Picoseconds time, int64_t by, int64_t over) {
  if (by == over) return time;  // the 128-bit division is slow and usually not needed
  return static_cast<Picoseconds>(Wide{time} * by / over);
}
/// Returns time * by / over, rounded up.
Picoseconds scaled_up(Picoseconds time, int64_t by, int64_t over) {
  if (by == over) return time;
  return static_cast<Picoseconds>((Wide{time} * by + over - 1) / over);
}

class TimedWalk {
 public:
  TimedWalk(const World& world, std::span<const LaneSchedule> schedules, const SharedCores& shared,
            const std::function<InstrCost(int32_t, const Instr&)>& cost,
            const WalkedInstrSink& sink)
      : world_(world),
        walk_(world, schedules),
        shared_(shared),
        cost_(cost),
        sink_(sink),
        times_(world.ranks.size()),
        compute_end_(world.ranks.size(), 0),
        released_by_(world.ranks.size(), -1),
        intervals_(world.ranks.size()) {
    int nodes = 1;
    for (const World::Rank& rank : world.ranks) nodes = std::max(nodes, node_of(rank) + 1);
    busy_.assign(static_cast<size_t>(nodes), 0);
  }

  std::vector<RankWalkTimes> run() {
    walk_.begin();
    start_new();
    while (!running_.empty()) finish(advance_to_next_end());
    const std::string fault = walk_.fault_text();
    if (!fault.empty()) bug(fault);
    return std::move(times_);
  }

 private:
  using LaneHead = Walk::LaneHead;
  /// RunningStep is a running instruction. Entry i is that of walk_.ready()[i], because both lists
  /// change as ready() promises. Its remaining time is in left_.
  struct RunningStep {
    int threads = 0;
    bool on_compute = false;
    InstrKind kind = InstrKind::kBegin;
    Picoseconds begin = 0;
  };

  /// InstrInterval is the time during which a lane ran an instruction.
  struct InstrInterval {
    int32_t lane = 0;
    const Instr* instr = nullptr;
    Picoseconds begin = 0;
    Picoseconds end = 0;
  };

  int node_of(const World::Rank& rank) const { return rank.number / shared_.ranks_per_node; }
  int node_of(int32_t rank) const { return node_of(world_.ranks[static_cast<size_t>(rank)]); }

  /// Returns the number of busy threads of a node, or its number of cores if that is larger.
  /// Instructions slow down by this number divided by the number of cores.
  int64_t node_load(int node) const {
    return std::max<int64_t>(busy_[static_cast<size_t>(node)], shared_.cores_per_node);
  }
  /// Returns the largest node_load() over the nodes of all ranks that run the instruction together.
  int64_t instr_load(size_t which) const {
    if (running_[which].threads == 0) return shared_.cores_per_node;
    int64_t heaviest = shared_.cores_per_node;
    for (const int32_t member : walk_.members(walk_.ready()[which]))
      heaviest = std::max(heaviest, node_load(node_of(member)));
    return heaviest;
  }

  void start_new() {
    const std::vector<LaneHead>& ready = walk_.ready();
    for (size_t i = running_.size(); i < ready.size(); ++i) start(ready[i]);
  }

  void start(LaneHead lane_head) {
    const Instr& instr = walk_.instr(lane_head);
    const World::Rank& rank = world_.ranks[static_cast<size_t>(lane_head.rank)];
    const InstrCost cost = walk_.runs_in_step(lane_head) ? cost_(rank.program, instr) : InstrCost();
    const bool on_compute = instr.lane == Lane::kCompute && !instr.communicates();
    if (on_compute) record_wait(lane_head.rank, instr);
    running_.push_back({cost.threads, on_compute, instr.kind, now_});
    left_.push_back(cost.unshared_time);
    if (cost.threads == 0) return;
    ++threaded_;
    for (const int32_t member : walk_.joint_members(lane_head))
      busy_[static_cast<size_t>(node_of(member))] += cost.threads;
  }

  void record_wait(int32_t rank, const Instr& instr) {
    const auto r = static_cast<size_t>(rank);
    const Picoseconds idle = now_ - compute_end_[r];
    if (idle == 0 || released_by_[r] < 0) return;
    const auto lane = static_cast<Lane>(released_by_[r]);
    const WaitCause cause = wait_cause(world_.program_of(r), lane);
    times_[r].idle_by_cause[static_cast<size_t>(cause)] += idle;
    charge_lanes(r, instr, static_cast<int32_t>(lane));
  }

  /// Attributes the time in which compute was idle before `instr` to lanes. Follows the chain of
  /// waits backwards from `instr`: the instruction that it waited for, the instruction that that
  /// one waited for, and so on, until the end of the previous compute instruction.
  void charge_lanes(size_t rank, const Instr& instr, int32_t lane) {
    const Picoseconds since = compute_end_[rank];
    const Instr* at = &instr;
    for (Picoseconds until = now_; until > since;) {
      const InstrInterval* const before = longest_before(rank, *at, until);
      if (before != nullptr) {
        lane = before->lane;
        at = before->instr;
      }
      const Picoseconds begin = before == nullptr ? since : std::max(before->begin, since);
      std::vector<Picoseconds>& idle = times_[rank].idle_by_lane;
      idle.resize(std::max(idle.size(), static_cast<size_t>(lane) + 1), 0);
      idle[static_cast<size_t>(lane)] += until - begin;
      until = begin;
    }
  }

  /// Finds the instruction that ended at `end` and that delayed `instr`: it was on another lane and
  /// `instr` waited for it, or it kept the lane of `instr` busy. If there are several, returns the
  /// longest. Returns null if `instr` waited for the other ranks of a collective or transfer.
  const InstrInterval* longest_before(size_t rank, const Instr& instr, Picoseconds end) const {
    const Program& program = world_.program_of(rank);
    const InstrInterval* longest = nullptr;
    for (const InstrInterval& one : intervals_[rank]) {
      const auto is_wait = [&](InstrId id) { return &program.instr(id) == one.instr; };
      const bool before = one.lane == static_cast<int32_t>(instr.lane)
                              ? one.instr < &instr
                              : std::any_of(instr.waits.begin(), instr.waits.end(), is_wait);
      if (one.end != end || !before) continue;
      if (longest == nullptr ||
          std::pair(one.begin, one.lane) < std::pair(longest->begin, longest->lane))
        longest = &one;
    }
    return longest;
  }

  /// Finds the running instruction that ends first, and advances all running instructions to that
  /// time.
  size_t advance_to_next_end() {
    if (threaded_ == 0) return next_unshared();
    size_t first = 0;
    Picoseconds soonest = INT64_MAX;
    loads_.clear();
    for (size_t i = 0; i < running_.size(); ++i) {
      loads_.push_back(instr_load(i));
      const Picoseconds lasts = scaled_up(left_[i], loads_[i], shared_.cores_per_node);
      if (lasts < soonest) {
        soonest = lasts;
        first = i;
      }
    }
    advance(soonest);
    for (size_t i = 0; i < running_.size(); ++i)
      left_[i] = std::max<Picoseconds>(
          left_[i] - scaled_down(soonest, shared_.cores_per_node, loads_[i]), 0);
    return first;
  }

  /// Advances to the next end of an instruction if no running instruction shares a core, as on
  /// GPUs, so that none is slowed down. Returns its index.
  size_t next_unshared() {
    const auto first = std::min_element(left_.begin(), left_.end());
    const auto which = static_cast<size_t>(first - left_.begin());
    const Picoseconds soonest = *first;
    advance(soonest);
    for (Picoseconds& left : left_) left -= soonest;
    return which;
  }

  void advance(Picoseconds time) {
    // Sums of longer times would wrap: such times come from a wrong rate.
    constexpr Picoseconds kMaxTime = 1'000'000'000'000'000'000;
    if (time > kMaxTime - now_)
      throw Error(ExitCode::kUsage, "a step would take more than 1,000,000 s",
                  "look at the rates of the machine file, and at --slow and --stack");
    now_ += time;
  }

  void finish(size_t which) {
    const LaneHead lane_head = walk_.ready()[which];
    const RunningStep done = running_[which];
    for (const int32_t member : walk_.joint_members(lane_head)) {
      const auto r = static_cast<size_t>(member);
      busy_[static_cast<size_t>(node_of(member))] -= done.threads;
      times_[r].end = now_;
      const LaneHead own = walk_.lane_head_of_member(member, lane_head);
      released_by_[r] = own.lane;
      if (sink_) sink_({member, &walk_.instr(own), done.begin, now_});
      if (!done.on_compute) {
        intervals_[r].push_back({own.lane, &walk_.instr(own), done.begin, now_});
        continue;
      }
      intervals_[r].clear();
      times_[r].busy[static_cast<size_t>(done.kind)] += now_ - done.begin;
      compute_end_[r] = now_;
    }
    running_[which] = running_.back();
    running_.pop_back();
    left_[which] = left_.back();
    left_.pop_back();
    if (done.threads > 0) --threaded_;
    walk_.finish(which);
    start_new();
  }

  const World& world_;
  Walk walk_;
  SharedCores shared_;
  const std::function<InstrCost(int32_t, const Instr&)>& cost_;
  const WalkedInstrSink& sink_;
  std::vector<RankWalkTimes> times_;
  std::vector<RunningStep> running_;
  /// The time that each running instruction still takes if nothing slows it down.
  std::vector<Picoseconds> left_;
  /// The number of running instructions that have threads, which share the cores of their nodes.
  int64_t threaded_ = 0;
  /// The number of threads of the running instructions, by node.
  std::vector<int64_t> busy_;
  std::vector<int64_t> loads_;
  std::vector<Picoseconds> compute_end_;
  /// The lane whose instruction ended last, by rank.
  std::vector<int32_t> released_by_;
  /// Instructions of other lanes that have ended since the last compute instruction, by rank.
  std::vector<std::vector<InstrInterval>> intervals_;
  Picoseconds now_ = 0;
};

}  // namespace

WaitCause wait_cause(const Program& program, Lane lane) {
  if (lane == Lane::kDisk) return WaitCause::kDisk;
  if (!is_communication(lane)) return WaitCause::kCopies;
  return is_between_stages(program, lane) ? WaitCause::kStages : WaitCause::kGroup;
}

std::vector<RankWalkTimes> timed_walk(const World& world, std::span<const LaneSchedule> schedules,
                                      const SharedCores& shared,
                                      const std::function<InstrCost(int32_t, const Instr&)>& cost,
                                      const WalkedInstrSink& sink) {
  return TimedWalk(world, schedules, shared, cost, sink).run();
}

}  // namespace ftrun
