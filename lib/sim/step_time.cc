#include "sim/step_time.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/round_up.h"
#include "base/run_in_parallel.h"
#include "base/step_parts.h"
#include "base/text.h"
#include "program/traffic.h"
#include "sim/folded_world.h"

namespace ftrun {
namespace {

IdleByLane idle_by_lane_of(const RankWalkTimes& rank, const Program& program) {
  IdleByLane idle;
  std::map<std::string, double> groups;
  for (size_t l = 0; l < rank.idle_by_lane.size(); ++l) {
    const double seconds = seconds_of(rank.idle_by_lane[l]);
    const auto lane = static_cast<Lane>(l);
    if (seconds == 0) continue;
    switch (wait_cause(program, lane)) {
      case WaitCause::kGroup:
        groups[group_of_lane(program, lane)->members.label] += seconds;
        break;
      case WaitCause::kStages:
        idle.stage_seconds += seconds;
        break;
      case WaitCause::kCopies:
        idle.copy_seconds += seconds;
        break;
      case WaitCause::kDisk:
        idle.disk_seconds += seconds;
        break;
    }
  }
  for (const auto& [axes, seconds] : groups) idle.groups.push_back({axes, seconds});
  return idle;
}

StepTime rank_step_time(const RankWalkTimes& rank, const Program& program, Picoseconds end) {
  const auto busy = [&](InstrKind kind) {
    return seconds_of(rank.busy[static_cast<size_t>(kind)]);
  };
  const auto idle = [&](WaitCause cause) {
    return seconds_of(rank.idle_by_cause[static_cast<size_t>(cause)]);
  };
  StepTime time;
  time.seconds = seconds_of(end);
  for (const InstrTraits& traits : kInstrTraits) {
    if (is_layer_work(traits.kind)) time.layer_seconds += busy(traits.kind);
    if (is_update_work(traits.kind)) time.update_seconds += busy(traits.kind);
  }
  const Picoseconds total_busy =
      std::accumulate(rank.busy.begin(), rank.busy.end(), Picoseconds{0});
  time.other_seconds = seconds_of(total_busy) - time.layer_seconds - time.update_seconds;
  time.collective_wait_seconds = idle(WaitCause::kGroup);
  time.pipeline_wait_seconds = idle(WaitCause::kStages);
  time.copy_wait_seconds = idle(WaitCause::kCopies);
  time.disk_wait_seconds = idle(WaitCause::kDisk);
  time.idle_by_lane = idle_by_lane_of(rank, program);
  return time;
}

/// Adds `weight` times the time of a step and its parts to `sum`.
void add_times(const StepTime& step, double weight, StepTime& sum) {
  for (double StepTime::*part :
       {&StepTime::seconds, &StepTime::layer_seconds, &StepTime::update_seconds,
        &StepTime::other_seconds, &StepTime::collective_wait_seconds,
        &StepTime::pipeline_wait_seconds, &StepTime::copy_wait_seconds,
        &StepTime::disk_wait_seconds})
    sum.*part += weight * (step.*part);
  sum.idle_by_lane.stage_seconds += weight * step.idle_by_lane.stage_seconds;
  sum.idle_by_lane.copy_seconds += weight * step.idle_by_lane.copy_seconds;
  sum.idle_by_lane.disk_seconds += weight * step.idle_by_lane.disk_seconds;
  sum.stage_wait_seconds.resize(step.stage_wait_seconds.size(), 0);
  for (size_t s = 0; s < step.stage_wait_seconds.size(); ++s)
    sum.stage_wait_seconds[s] += weight * step.stage_wait_seconds[s];
  for (const GroupIdle& wait : step.idle_by_lane.groups) {
    auto& groups = sum.idle_by_lane.groups;
    auto place = std::find_if(groups.begin(), groups.end(),
                              [&](const GroupIdle& group) { return group.axes == wait.axes; });
    if (place == groups.end()) place = groups.insert(place, {wait.axes, 0});
    place->seconds += weight * wait.seconds;
  }
}

/// Returns the time of a step whose parts are means over the ranks of rank 0's pipeline stage.
StepTime mean_step_time(const World& world, const std::vector<RankWalkTimes>& times,
                        Picoseconds end) {
  std::vector<size_t> ranks;
  for (size_t r = 0; r < times.size(); ++r)
    if (world.program_of(r).stage.index == world.program_of(0).stage.index) ranks.push_back(r);
  StepTime mean;
  for (const size_t r : ranks)
    add_times(rank_step_time(times[r], world.program_of(r), end),
              1.0 / static_cast<double>(ranks.size()), mean);
  mean.seconds = seconds_of(end);  // without rounding
  return mean;
}

/// TimelineRecorder collects the instructions of the lowest rank of each class, and of each slow
/// rank.
class TimelineRecorder {
 public:
  TimelineRecorder(const RankClasses& classes, const std::vector<SlowRank>& slow_ranks,
                   const World& world, StepTimeline& timeline)
      : world_(world), timeline_(timeline), timeline_index_(world.ranks.size(), -1) {
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      const int number = world.ranks[r].number;
      if (classes.lowest_ranks[static_cast<size_t>(classes.class_of(number))] != number &&
          slow_factor_of(slow_ranks, number) == 1)
        continue;
      timeline_index_[r] = static_cast<int32_t>(timeline.ranks.size());
      timeline.ranks.push_back({.rank = number, .program = &world.program_of(r)});
    }
  }

  void add(const WalkedInstr& step) {
    const int32_t index = timeline_index_[static_cast<size_t>(step.rank)];
    if (index < 0) return;
    timeline_.ranks[static_cast<size_t>(index)].instrs.push_back(
        {step.instr, step.begin, step.end});
  }
  void finish(const std::vector<RankWalkTimes>& times, Picoseconds end) {
    timeline_.end = end;
    for (size_t r = 0; r < timeline_index_.size(); ++r)
      if (timeline_index_[r] >= 0)
        timeline_.ranks[static_cast<size_t>(timeline_index_[r])].time =
            rank_step_time(times[r], world_.program_of(r), end);
  }

 private:
  const World& world_;
  StepTimeline& timeline_;
  /// The index in timeline_.ranks of each rank of the world; -1: it has none.
  std::vector<int32_t> timeline_index_;
};

/// Adds the bytes that an instruction copies between a GPU and main memory.
void add_copied_bytes(const Program& program, const Instr& instr, bool has_gpus, LinkBytes& sum) {
  if (instr.kind != InstrKind::kCopy) return;
  const Tier from = program.at(instr.reads[0].buffer).tier,
             to = program.at(instr.writes[0].buffer).tier;
  if (!has_gpus || from == to) return;
  const int64_t bytes = std::max(instr.reads[0].bytes, instr.writes[0].bytes);
  if (from == Tier::kDevice && to == Tier::kHost) sum.to_host += bytes;
  if (from == Tier::kHost && to == Tier::kDevice) sum.from_host += bytes;
}

/// Counts the bytes that a program moves over each kind of link. crosses[g] says whether group g
/// spans several nodes.
LinkBytes link_bytes(const Program& program, const std::vector<bool>& crosses, bool has_gpus) {
  LinkBytes sum;
  for (const TrafficRow& row : program_traffic(program).rows)
    (crosses[static_cast<size_t>(row.group)] ? sum.inter_node : sum.intra_node) += row.bytes;
  for (const Instr& instr : program.instrs) add_copied_bytes(program, instr, has_gpus, sum);
  const DiskTraffic disk = disk_traffic(program);
  sum.disk_read = disk.bytes_read;
  sum.disk_written = disk.bytes_written;
  return sum;
}

void raise_to_maxima(const LinkBytes& one, LinkBytes& largest) {
  for (int64_t LinkBytes::*link :
       {&LinkBytes::intra_node, &LinkBytes::inter_node, &LinkBytes::to_host, &LinkBytes::from_host,
        &LinkBytes::disk_read, &LinkBytes::disk_written})
    largest.*link = std::max(largest.*link, one.*link);
}

/// Returns the time when the last rank ends.
Picoseconds last_end(const std::vector<RankWalkTimes>& times) {
  return std::max_element(times.begin(), times.end(),
                          [](const auto& a, const auto& b) { return a.end < b.end; })
      ->end;
}

/// Returns the seconds that each pipeline stage waits for other stages; nothing without a pipeline.
std::vector<double> stage_wait_seconds(const World& world,
                                       const std::vector<RankWalkTimes>& times) {
  std::vector<double> waits(static_cast<size_t>(world.program_of(0).stage.count), 0);
  if (waits.size() == 1) return {};
  for (size_t r = 0; r < times.size(); ++r) {
    const Program& program = world.program_of(r);
    double& longest = waits[static_cast<size_t>(program.stage.index)];
    longest = std::max(longest, idle_by_lane_of(times[r], program).stage_seconds);
  }
  return waits;
}

/// The width of the names of parts in step_parts_text(), in columns.
constexpr size_t kPartColumns = 26;

/// The maximum number of CPU ranks that are walked. They cannot be folded, because the ranks of a
/// node share its cores.
constexpr int kMaxCpuRanks = 512;

/// The number of simulated steps whose mean is predicted if ranks take turns on cores. The waits of
/// one such step depend on small differences between the times of instructions; means of four
/// differ by 1 % of the step.
constexpr uint64_t kStepsOfTurns = 4;

void require_same_device(const RankClassPlans& class_plans, const Machine& machine) {
  const bool on_gpus = class_plans.plan(0).train.model.dtypes.kernels == KernelDevice::kGpu;
  if (on_gpus == machine.has_gpus) return;
  throw Error(ExitCode::kUsage,
              cat("the run computes on ", on_gpus ? "GPUs" : "CPUs", ", but the machine ",
                  machine.name, " is one of ", on_gpus ? "CPUs" : "GPUs"),
              on_gpus ? "set device: cpu, or use a machine file of GPUs"
                      : "set device: cuda, or use a machine file of CPUs");
}

int checked_ranks_per_node(const RankClasses& classes, const Machine& machine, int64_t nodes) {
  const int64_t ranks = classes.ranks(), ranks_per_node = divide_up(ranks, nodes);
  if (machine.has_gpus && ranks_per_node > machine.devices)
    throw Error(ExitCode::kUsage,
                cat(ranks, " ranks do not fit on ", count_text(nodes, "node"), " of ",
                    machine.devices, " GPUs (", machine.name, "): each rank needs its own GPU"),
                cat("plan for --nodes ", divide_up(ranks, int64_t{machine.devices})));
  if (!machine.has_gpus && ranks > kMaxCpuRanks)
    throw Error(ExitCode::kUsage,
                cat(ranks, " ranks on CPUs: a step's time is predicted for at most ", kMaxCpuRanks),
                "plan fewer ranks, or plan for a machine with GPUs");
  return static_cast<int>(ranks_per_node);
}

/// Returns the floating-point operations per second that all ranks of a node together reach in
/// matrix multiplications; 0: not known.
double node_matmul_flop_rate(const Machine& machine, const Rates& rates, int ranks, DType dtype) {
  const auto rate = rates.matmul_flop_rates.find(dtype);
  if (rate == rates.matmul_flop_rates.end()) return 0;
  const int concurrent = machine.has_gpus ? ranks : std::max(machine.devices / rates.threads, 1);
  return rate->second * std::min(ranks, concurrent);
}

/// RankKinds holds one program for each kind of rank. Ranks of one kind have the same class, the
/// same groups that span nodes, and the same speed.
struct RankKinds {
  std::vector<const Program*> programs;
  std::vector<std::vector<bool>> crosses;
  std::deque<InstrCostModel> costs;
  std::vector<LaneSchedule> schedules;
};

/// Returns the number of ranks of a group on the node that has the fewest of them, among the nodes
/// that have any.
template <class NodeOf>
int fewest_on_node(const World::Group& group, const NodeOf& node_of) {
  std::map<int, int> counts;
  for (const int32_t member : group.members) ++counts[node_of(member)];
  int least = static_cast<int>(group.members.size());
  for (const auto& [node, count] : counts) least = std::min(least, count);
  return least;
}

/// Returns for each group of a program whether it spans several nodes. ranks_on_node[g] is the
/// result of fewest_on_node() for group g.
std::vector<bool> crossing_groups(const Program& program, const std::vector<int>& ranks_on_node) {
  std::vector<bool> crosses;
  for (size_t g = 0; g < ranks_on_node.size(); ++g)
    crosses.push_back(ranks_on_node[g] < static_cast<int>(program.groups[g].members.size()));
  return crosses;
}

/// Finds the kinds of ranks, and makes each rank of the world refer to the program of its kind.
RankKinds assign_rank_kinds(const RankClassPlans& class_plans, const Machine& machine,
                            int ranks_per_node, const std::vector<SlowRank>& slow_ranks,
                            World& world) {
  std::vector<LaneSchedule> schedules(world.programs.size());
  run_in_parallel(schedules.size(),
                  [&](size_t p) { schedules[p] = make_lane_schedule(*world.programs[p]); });
  RankKinds kinds;
  std::map<std::tuple<int32_t, std::vector<int>, double>, int32_t> numbers;
  const auto node_of = [&](int32_t rank) {
    return world.ranks[static_cast<size_t>(rank)].number / ranks_per_node;
  };
  std::vector<int> fewest_on_node_of_group;
  for (const World::Group& group : world.groups)
    fewest_on_node_of_group.push_back(fewest_on_node(group, node_of));
  for (World::Rank& rank : world.ranks) {
    const ProgramPlan& train = class_plans.plan(rank.program).train;
    std::vector<int> ranks_on_node;
    for (size_t g = 0; g < train.program.groups.size(); ++g)
      ranks_on_node.push_back(rank.groups[g] == World::kNotMember
                                  ? train.program.groups[g].members.size()
                                  : fewest_on_node_of_group[static_cast<size_t>(rank.groups[g])]);
    const double slow_factor = slow_factor_of(slow_ranks, rank.number);
    const auto [known, added] = numbers.try_emplace({rank.program, ranks_on_node, slow_factor},
                                                    static_cast<int32_t>(kinds.programs.size()));
    if (added) {
      kinds.programs.push_back(&train.program);
      kinds.crosses.push_back(crossing_groups(train.program, ranks_on_node));
      kinds.costs.emplace_back(machine, ranks_per_node, train.program, train.model, ranks_on_node,
                               slow_factor);
      kinds.schedules.push_back(schedules[static_cast<size_t>(rank.program)]);
    }
    rank.program = known->second;
  }
  world.programs = kinds.programs;
  return kinds;
}

}  // namespace

std::vector<StepPart> list_step_parts(const StepTime& time) {
  return {{step_parts::kLayers.name, time.layer_seconds},
          {step_parts::kUpdate.name, time.update_seconds},
          {step_parts::kOther.name, time.other_seconds},
          {step_parts::kCollectives.name, time.idle_by_lane.collective_seconds()},
          {step_parts::kStages.name, time.idle_by_lane.stage_seconds},
          {step_parts::kCopies.name, time.idle_by_lane.copy_seconds},
          {step_parts::kDisk.name, time.idle_by_lane.disk_seconds}};
}

StepTime predict_step(const RankClassPlans& class_plans, const Machine& machine,
                      const RunConditions& conditions, StepTimeline* timeline) {
  require_same_device(class_plans, machine);
  const RankClasses& classes = class_plans.classes();
  check_slow_ranks_exist(conditions.slow_ranks, classes.ranks());
  const int ranks_per_node = checked_ranks_per_node(classes, machine, conditions.nodes);
  const Rates& rates = machine.rates_of(machine.has_gpus ? 1 : ranks_per_node);
  if (!machine.has_gpus && conditions.threads > 0 && conditions.threads != rates.threads)
    throw Error(ExitCode::kUsage,
                cat("threads is ", conditions.threads, ", but the machine ", machine.name,
                    " was measured with ", rates.threads, " per rank for ",
                    count_text(ranks_per_node, "rank")),
                "remove threads");
  std::vector<const Program*> programs;
  for (int32_t c = 0; c < classes.count(); ++c)
    programs.push_back(&class_plans.plan(c).train.program);
  World world = world_of(classes, programs, class_plans.plan(0).options.state);
  RankKinds kinds =
      assign_rank_kinds(class_plans, machine, ranks_per_node, conditions.slow_ranks, world);
  if (machine.has_gpus) {
    std::vector<int32_t> numbers(kinds.schedules.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    if (std::optional<World> folded = fold_world(world, numbers)) world = std::move(*folded);
  }
  std::optional<TimelineRecorder> recorder;
  if (timeline != nullptr) recorder.emplace(classes, conditions.slow_ranks, world, *timeline);
  const bool takes_turns = !machine.has_gpus && ranks_per_node * rates.threads > machine.devices;
  const uint64_t steps = takes_turns ? kStepsOfTurns : 1;
  if (timeline != nullptr) timeline->simulated_steps = static_cast<int>(steps);
  StepTime time;
  for (uint64_t step = 0; step < steps; ++step) {
    WalkedInstrSink sink;
    if (recorder && step == 0) sink = [&](const WalkedInstr& instr) { recorder->add(instr); };
    const std::vector<RankWalkTimes> times = run_timed_walk(
        world, kinds.schedules, {ranks_per_node, machine.devices},
        [&](int32_t program, const Instr& instr) {
          return kinds.costs[static_cast<size_t>(program)].cost_of(instr);
        },
        sink, takes_turns ? std::optional(TimeVariation{step}) : std::nullopt);
    const Picoseconds end = last_end(times);
    if (recorder && step == 0) recorder->finish(times, end);
    StepTime simulated = machine.has_gpus ? rank_step_time(times.front(), world.program_of(0), end)
                                          : mean_step_time(world, times, end);
    simulated.stage_wait_seconds = stage_wait_seconds(world, times);
    add_times(simulated, 1.0 / static_cast<double>(steps), time);
  }
  for (size_t k = 0; k < kinds.programs.size(); ++k)
    raise_to_maxima(link_bytes(*kinds.programs[k], kinds.crosses[k], machine.has_gpus),
                    time.link_bytes);
  time.matmul_flop_rate = node_matmul_flop_rate(machine, rates, ranks_per_node,
                                                class_plans.plan(0).train.model.dtypes.compute) *
                          static_cast<double>(conditions.nodes);
  return time;
}

double IdleByLane::collective_seconds() const {
  double seconds = 0;
  for (const GroupIdle& wait : groups) seconds += wait.seconds;
  return seconds;
}

std::string step_parts_text(const StepTime& time) {
  std::string text;
  const auto add = [&](const std::string& name, double seconds) {
    std::string padded = name;
    padded.resize(std::max(kPartColumns, name.size() + 2), ' ');
    if (seconds > 0)
      text += cat("  ", padded, format_number("%10.4g", seconds), " s  ",
                  format_number("%5.1f", 100 * seconds / time.seconds), " %\n");
  };
  for (const auto& [name, seconds] : list_step_parts(time)) {
    add(name, seconds);
    if (std::string_view(name) == step_parts::kCollectives.name)
      for (const GroupIdle& wait : time.idle_by_lane.groups)
        add(cat("  along ", wait.axes), wait.seconds);
  }
  if (!time.stage_wait_seconds.empty()) {
    const auto [lowest, highest] =
        std::minmax_element(time.stage_wait_seconds.begin(), time.stage_wait_seconds.end());
    text += cat("bubble: a stage waits for other stages for at least ",
                percent_text(*lowest / time.seconds, 1), " and at most ",
                percent_text(*highest / time.seconds, 1), " of the step\n");
  }
  std::vector<std::string> links;
  const auto link = [&](const char* name, int64_t bytes) {
    if (bytes > 0) links.push_back(cat(human_bytes(bytes), " ", name));
  };
  link("to ranks of its node", time.link_bytes.intra_node);
  link("to other nodes", time.link_bytes.inter_node);
  link("to main memory", time.link_bytes.to_host);
  link("from main memory", time.link_bytes.from_host);
  link("from the disk", time.link_bytes.disk_read);
  link("to the disk", time.link_bytes.disk_written);
  if (!links.empty()) text += cat("links: a rank moves at most ", join(links, ", "), "\n");
  return text;
}

}  // namespace ftrun
