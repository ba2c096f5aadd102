#include "sim/timed_walk.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/mix_bits.h"
#include "base/round_up.h"

namespace ftrun {
namespace {

__extension__ using Wide = __int128;

/// Returns time * by / over, rounded down. The product is computed in 128 bits, because it may
/// exceed 64 bits.
Picoseconds scale_down(Picoseconds time, int64_t by, int64_t over) {
  if (by == over) return time;  // the 128-bit division is slow and usually not needed
  return static_cast<Picoseconds>(Wide{time} * by / over);
}
/// Returns time * by / over, rounded up.
Picoseconds scale_up(Picoseconds time, int64_t by, int64_t over) {
  if (by == over) return time;
  return static_cast<Picoseconds>((Wide{time} * by + over - 1) / over);
}

class TimedWalk {
 public:
  TimedWalk(const World& world, std::span<const LaneSchedule> schedules, const SharedCores& shared,
            const std::function<InstrCost(int32_t, const Instr&)>& cost,
            const WalkedInstrSink& sink, const std::optional<TimeVariation>& variation)
      : world_(world),
        walk_(world, schedules),
        shared_(shared),
        cost_(cost),
        sink_(sink),
        variation_(variation),
        times_(world.ranks.size()),
        compute_end_(world.ranks.size(), 0),
        released_by_(world.ranks.size(), -1),
        intervals_(world.ranks.size()),
        cores_of_(world.ranks.size()) {
    int nodes = 1;
    for (const World::Rank& rank : world.ranks) nodes = std::max(nodes, node_of(rank) + 1);
    nodes_.resize(static_cast<size_t>(nodes));
    for (Node& node : nodes_) node.free_cores = shared.cores_per_node;
  }

  std::vector<RankWalkTimes> run() {
    walk_.begin();
    start_ready_instrs();
    while (!running_.empty())
      if (const std::optional<size_t> ended = advance_to_next_event()) finish(*ended);
    const std::string fault = walk_.fault_text();
    if (!fault.empty()) bug(fault);
    return std::move(times_);
  }

 private:
  using LaneHead = Walk::LaneHead;
  /// TimedInstr is an instruction that runs or waits for cores. Entry i is that of
  /// walk_.ready()[i], because both lists change as ready() promises. Its remaining time is in
  /// remaining_.
  struct TimedInstr {
    int busy_cores = 0;
    bool on_compute = false;
    /// The instruction is ready, or was interrupted, and waits for cores.
    bool is_queued = false;
    InstrKind kind = InstrKind::kBegin;
    int32_t rank = 0;
    /// The time when it first ran; -1: it has not run yet.
    Picoseconds begin = -1;
  };

  /// CoresOfRank holds the cores that a rank's compute lane has.
  struct CoresOfRank {
    /// The number of cores; 0: none.
    int count = 0;
    /// The lane runs an instruction on them. If it runs none, it loses them as time goes on.
    bool in_use = false;
    /// The time when the lane got them. Its time slice begins then.
    Picoseconds slice_begin = 0;
  };

  /// Node holds the cores of a node.
  struct Node {
    /// The sum of the cores that the running instructions of all lanes keep busy; more than there
    /// are if lanes share cores.
    int64_t busy = 0;
    /// The number of cores that no compute lane has. It is below 0 if a lane has begun an
    /// instruction for more cores than it had; both then share cores.
    int64_t free_cores = 0;
    /// The ranks whose compute lanes have cores, and those whose lanes wait for cores, in order.
    std::vector<int32_t> owners;
    std::deque<int32_t> queue;
  };

  // Ranks that take turns on cores do so as under Linux's scheduler (EEVDF, kernel/sched/fair.c) on
  // few cores. A time slice has 1.4 ms, but the kernel looks only at its ticks, here 250 a second,
  // whether one is over. It also looks when a rank wakes up, but such a rank has usually just had
  // more than its share of the core, and gets none before the others have had theirs.
  static constexpr Picoseconds kSlice = 1'400'000'000;
  static constexpr Picoseconds kTick = 4'000'000'000;
  /// The number of ticks that end slices after which ticks and slices become twice as long, so that
  /// the simulation of a step that takes hours needs thousands of them instead of millions.
  static constexpr int kTicksOfLength = 5000;

  /// InstrInterval is the time during which a lane ran an instruction.
  struct InstrInterval {
    int32_t lane = 0;
    const Instr* instr = nullptr;
    Picoseconds begin = 0;
    Picoseconds end = 0;
  };

  int node_of(const World::Rank& rank) const { return rank.number / shared_.ranks_per_node; }
  int node_of(int32_t rank) const { return node_of(world_.ranks[static_cast<size_t>(rank)]); }

  /// Returns the number of cores that instructions keep busy on a node, or its number of cores if
  /// that is larger. Instructions slow down by this number divided by the number of cores.
  int64_t node_load(int node) const {
    return std::max<int64_t>(nodes_[static_cast<size_t>(node)].busy, shared_.cores_per_node);
  }
  /// Returns the largest node_load() over the nodes of all ranks that run the instruction together.
  int64_t instr_load(size_t which) const {
    if (running_[which].busy_cores == 0) return shared_.cores_per_node;
    int64_t heaviest = shared_.cores_per_node;
    for (const int32_t member : walk_.joint_members(walk_.ready()[which]))
      heaviest = std::max(heaviest, node_load(node_of(member)));
    return heaviest;
  }

  void start_ready_instrs() {
    const std::vector<LaneHead>& ready = walk_.ready();
    for (size_t i = running_.size(); i < ready.size(); ++i) start(ready[i]);
  }

  void start(LaneHead lane_head) {
    const Instr& instr = walk_.instr(lane_head);
    const World::Rank& rank = world_.ranks[static_cast<size_t>(lane_head.rank)];
    const InstrCost cost = walk_.runs_in_step(lane_head) ? cost_(rank.program, instr) : InstrCost();
    const bool on_compute = instr.lane == Lane::kCompute && !instr.communicates();
    const int busy_cores = cost.unshared_time == 0 ? 0 : cost.busy_cores;
    running_.push_back({.busy_cores = busy_cores,
                        .on_compute = on_compute,
                        .kind = instr.kind,
                        .rank = lane_head.rank});
    remaining_.push_back(on_compute ? vary(cost.unshared_time, lane_head) : cost.unshared_time);
    if (busy_cores > 0) ++threaded_;
    if (on_compute && busy_cores > 0) {
      CoresOfRank& cores = cores_of(lane_head.rank);
      Node& node = node_at(lane_head.rank);
      if (cores.count == 0) {
        running_.back().is_queued = true;
        node.queue.push_back(lane_head.rank);
        return;
      }
      const int wanted = std::min(busy_cores, shared_.cores_per_node);
      node.free_cores += std::exchange(cores.count, wanted) - wanted;
    }
    begin_running(running_.size() - 1);
  }

  /// Changes the time of a compute instruction as variation_ says.
  Picoseconds vary(Picoseconds time, LaneHead lane_head) const {
    if (!variation_) return time;
    // The largest change of a time, as a share of kWhole.
    constexpr int64_t kLargest = 30'000, kWhole = 1'000'000;
    const auto rank = static_cast<size_t>(lane_head.rank);
    const auto position =
        static_cast<uint64_t>(&walk_.instr(lane_head) - world_.program_of(rank).instrs.data());
    const uint64_t key =
        splitmix64(variation_->walk / 2) + static_cast<uint64_t>(world_.ranks[rank].number);
    const uint64_t random = splitmix64(splitmix64(key) + position);
    const int64_t change = static_cast<int64_t>(random % (2 * kLargest + 1)) - kLargest;
    return scale_down(time, kWhole + (variation_->walk % 2 == 0 ? change : -change), kWhole);
  }

  CoresOfRank& cores_of(int32_t rank) { return cores_of_[static_cast<size_t>(rank)]; }
  Node& node_at(int32_t rank) { return nodes_[static_cast<size_t>(node_of(rank))]; }

  /// Lets an instruction run, which has cores if it needs them.
  void begin_running(size_t which) {
    TimedInstr& step = running_[which];
    step.is_queued = false;
    if (step.begin < 0) {
      step.begin = now_;
      if (step.on_compute) record_wait(step.rank, walk_.instr(walk_.ready()[which]));
    }
    if (step.busy_cores == 0) return;
    for (const int32_t member : walk_.joint_members(walk_.ready()[which]))
      node_at(member).busy += step.busy_cores;
    if (step.on_compute) cores_of(step.rank).in_use = true;
  }

  /// Returns the index of the instruction for which a rank's compute lane has or wants cores.
  size_t compute_instr_of(int32_t rank) const {
    const auto found = std::find_if(running_.begin(), running_.end(), [&](const TimedInstr& instr) {
      return instr.on_compute && instr.busy_cores > 0 && instr.rank == rank;
    });
    require(found != running_.end(), "a rank that uses or wants cores has an instruction");
    return static_cast<size_t>(found - running_.begin());
  }

  /// Takes cores from compute lanes that run nothing, and gives free cores to the lanes that wait
  /// for them. Returns whether another instruction runs now.
  bool assign_cores() {
    bool has_started = false;
    for (Node& node : nodes_) {
      if (node.queue.empty()) continue;
      std::erase_if(node.owners, [&](int32_t rank) {
        CoresOfRank& cores = cores_of(rank);
        if (cores.in_use) return false;
        node.free_cores += std::exchange(cores.count, 0);
        return true;
      });
      while (!node.queue.empty()) {
        const int32_t rank = node.queue.front();
        const size_t which = compute_instr_of(rank);
        const int wanted = std::min(running_[which].busy_cores, shared_.cores_per_node);
        if (wanted > node.free_cores) break;
        node.queue.pop_front();
        node.free_cores -= wanted;
        node.owners.push_back(rank);
        cores_of(rank) = {.count = wanted, .in_use = true, .slice_begin = now_};
        begin_running(which);
        has_started = true;
      }
    }
    return has_started;
  }

  /// Returns the first tick at which a lane's time slice is over.
  Picoseconds first_tick_after_slice(const CoresOfRank& cores) const {
    return round_up(cores.slice_begin + scale_ * kSlice, scale_ * kTick);
  }

  /// Returns the time until the tick at which a slice ends while other ranks wait.
  Picoseconds time_to_slice_end() const {
    const Picoseconds tick = scale_ * kTick;
    // The tick of this moment may still be to come, if an instruction ended at the same time.
    const Picoseconds next_tick = round_up(std::max(now_, last_tick_ + 1), tick);
    Picoseconds soonest = INT64_MAX;
    for (const Node& node : nodes_)
      if (!node.queue.empty())
        for (const int32_t rank : node.owners) {
          const CoresOfRank& cores = cores_of_[static_cast<size_t>(rank)];
          if (cores.in_use)
            soonest = std::min(soonest, std::max(first_tick_after_slice(cores), next_tick) - now_);
        }
    return soonest;
  }

  /// Interrupts, at a tick, the instructions whose slice is over, as many as ranks wait for cores.
  /// Those that got their cores first are interrupted first.
  void end_slices() {
    for (Node& node : nodes_) {
      size_t waiting = node.queue.size();
      for (const int32_t rank : node.owners) {
        const CoresOfRank& cores = cores_of(rank);
        if (waiting == 0) break;
        if (!cores.in_use || now_ < first_tick_after_slice(cores)) continue;
        interrupt(node, rank);
        --waiting;
      }
    }
    last_tick_ = now_;
    if (++ended_slices_ % kTicksOfLength == 0) scale_ *= 2;
  }

  void interrupt(Node& node, int32_t rank) {
    TimedInstr& instr = running_[compute_instr_of(rank)];
    instr.is_queued = true;
    node.busy -= instr.busy_cores;
    cores_of(rank).in_use = false;
    node.queue.push_back(rank);
  }

  void record_wait(int32_t rank, const Instr& instr) {
    const auto r = static_cast<size_t>(rank);
    const Picoseconds idle = now_ - compute_end_[r];
    if (idle == 0 || released_by_[r] < 0) return;
    const auto lane = static_cast<Lane>(released_by_[r]);
    if (lane == Lane::kCompute) return;  // it waited only for cores
    const WaitCause cause = wait_cause(world_.program_of(r), lane);
    times_[r].idle_by_cause[static_cast<size_t>(cause)] += idle;
    attribute_idle_time(r, instr, static_cast<int32_t>(lane));
  }

  /// Attributes the time in which compute was idle before `instr` to lanes. Follows the chain of
  /// waits backwards from `instr`: the instruction that it waited for, the instruction that that
  /// one waited for, and so on, until the end of the previous compute instruction.
  void attribute_idle_time(size_t rank, const Instr& instr, int32_t lane) {
    const Picoseconds since = compute_end_[rank];
    const Instr* at = &instr;
    for (Picoseconds until = now_; until > since;) {
      const InstrInterval* const before = find_delaying_instr(rank, *at, until);
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
  const InstrInterval* find_delaying_instr(size_t rank, const Instr& instr, Picoseconds end) const {
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

  /// Advances all running instructions to the next time when one of them ends, and returns its
  /// index, or when a time slice ends, and returns nothing.
  std::optional<size_t> advance_to_next_event() {
    if (threaded_ == 0) return advance_to_next_end();
    EndOfInstr next = find_next_end();
    // An instruction that follows another one at once keeps its cores, so cores are reassigned only
    // when time goes on.
    if (next.time > 0 && assign_cores()) next = find_next_end();
    const Picoseconds slice = time_to_slice_end(), time = std::min(next.time, slice);
    advance(time);
    for (size_t i = 0; i < running_.size(); ++i)
      if (!running_[i].is_queued)
        remaining_[i] = std::max<Picoseconds>(
            remaining_[i] - scale_down(time, shared_.cores_per_node, loads_[i]), 0);
    if (next.time <= slice) return next.which;
    end_slices();
    return std::nullopt;
  }

  /// EndOfInstr is the time until the first running instruction ends, and its index.
  struct EndOfInstr {
    Picoseconds time = INT64_MAX;
    size_t which = 0;
  };

  /// Finds the running instruction that ends first, and computes the load of each.
  EndOfInstr find_next_end() {
    EndOfInstr next;
    loads_.clear();
    for (size_t i = 0; i < running_.size(); ++i) {
      loads_.push_back(instr_load(i));
      if (running_[i].is_queued) continue;
      const Picoseconds lasts = scale_up(remaining_[i], loads_[i], shared_.cores_per_node);
      if (lasts < next.time) next = {lasts, i};
    }
    return next;
  }

  /// Advances to the next end of an instruction if no running instruction shares a core, as on
  /// GPUs, so that none is slowed down. Returns its index.
  size_t advance_to_next_end() {
    const auto first = std::min_element(remaining_.begin(), remaining_.end());
    const auto which = static_cast<size_t>(first - remaining_.begin());
    const Picoseconds soonest = *first;
    advance(soonest);
    for (Picoseconds& remaining : remaining_) remaining -= soonest;
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
    const TimedInstr done = running_[which];
    for (const int32_t member : walk_.joint_members(lane_head)) {
      const auto r = static_cast<size_t>(member);
      node_at(member).busy -= done.busy_cores;
      times_[r].end = now_;
      const LaneHead own = walk_.lane_head_of_member(member, lane_head);
      released_by_[r] = own.lane;
      if (sink_) sink_({member, &walk_.instr(own), done.begin, now_});
      if (!done.on_compute) {
        intervals_[r].push_back({own.lane, &walk_.instr(own), done.begin, now_});
        continue;
      }
      cores_of(member).in_use = false;
      intervals_[r].clear();
      times_[r].busy[static_cast<size_t>(done.kind)] += now_ - done.begin;
      compute_end_[r] = now_;
    }
    running_[which] = running_.back();
    running_.pop_back();
    remaining_[which] = remaining_.back();
    remaining_.pop_back();
    if (done.busy_cores > 0) --threaded_;
    walk_.finish(which);
    start_ready_instrs();
  }

  const World& world_;
  Walk walk_;
  SharedCores shared_;
  const std::function<InstrCost(int32_t, const Instr&)>& cost_;
  const WalkedInstrSink& sink_;
  std::optional<TimeVariation> variation_;
  std::vector<RankWalkTimes> times_;
  std::vector<TimedInstr> running_;
  /// The time that each running instruction still takes if nothing slows it down.
  std::vector<Picoseconds> remaining_;
  /// The number of running instructions that keep cores busy.
  int64_t threaded_ = 0;
  std::vector<Node> nodes_;
  std::vector<int64_t> loads_;
  std::vector<Picoseconds> compute_end_;
  /// The lane whose instruction ended last, by rank.
  std::vector<int32_t> released_by_;
  /// Instructions of other lanes that have ended since the last compute instruction, by rank.
  std::vector<std::vector<InstrInterval>> intervals_;
  std::vector<CoresOfRank> cores_of_;
  /// The factor by which slices and ticks are longer now, the last tick that ended slices, and the
  /// number of such ticks.
  Picoseconds scale_ = 1;
  Picoseconds last_tick_ = 0;
  int ended_slices_ = 0;
  Picoseconds now_ = 0;
};

}  // namespace

WaitCause wait_cause(const Program& program, Lane lane) {
  if (lane == Lane::kDisk) return WaitCause::kDisk;
  if (!is_communication(lane)) return WaitCause::kCopies;
  return is_between_stages(program, lane) ? WaitCause::kStages : WaitCause::kGroup;
}

std::vector<RankWalkTimes> run_timed_walk(
    const World& world, std::span<const LaneSchedule> schedules, const SharedCores& shared,
    const std::function<InstrCost(int32_t, const Instr&)>& cost, const WalkedInstrSink& sink,
    std::optional<TimeVariation> variation) {
  return TimedWalk(world, schedules, shared, cost, sink, variation).run();
}

}  // namespace ftrun
