#include "sim/step_time.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/round_up.h"
#include "base/text.h"
#include "sim/folded_world.h"

namespace ftrun {
namespace {

double seconds_of(Picoseconds time) {
  return static_cast<double>(time) / kPicosecondsPerSecond;
}

StepTime step_of(const RankTime& rank, Picoseconds end) {
  const auto busy = [&](InstrKind kind) {
    return seconds_of(rank.busy[static_cast<size_t>(kind)]);
  };
  const auto waited = [&](WaitedFor what) {
    return seconds_of(rank.waited[static_cast<size_t>(what)]);
  };
  StepTime time;
  time.seconds = seconds_of(end);
  for (const InstrKind kind :
       {InstrKind::kForward, InstrKind::kBackward, InstrKind::kInputGrad, InstrKind::kWeightGrad})
    time.layers += busy(kind);
  time.update = busy(InstrKind::kUpdate) + busy(InstrKind::kMeasure);
  const Picoseconds all = std::accumulate(rank.busy.begin(), rank.busy.end(), Picoseconds{0});
  time.other = seconds_of(all) - time.layers - time.update;
  time.communication = waited(WaitedFor::kGroup);
  time.stages = waited(WaitedFor::kStages);
  time.copies = waited(WaitedFor::kCopies);
  time.disk = waited(WaitedFor::kDisk);
  return time;
}

}  // namespace

StepTime predict_step(const ClassPlans& all, const Machine& machine, int64_t nodes,
                      StepTrace* trace) {
  const RankClasses& classes = all.classes();
  const auto ranks_of_node = static_cast<int>(divide_up(int64_t{classes.ranks()}, nodes));
  if (machine.has_gpus && ranks_of_node > machine.devices)
    throw Error(
        ExitCode::kUsage,
        cat(classes.ranks(), " ranks on ", nodes, nodes == 1 ? " node" : " nodes", " of ",
            machine.devices, " GPUs (", machine.name, ")"),
        cat("plan for --nodes ", divide_up(int64_t{classes.ranks()}, int64_t{machine.devices})));
  std::vector<const Program*> programs;
  std::deque<InstrCosts> costs;
  std::vector<Course> courses;
  Announcements announcements;
  for (int32_t c = 0; c < classes.count(); ++c) {
    const ProgramPlan& train = all.plan(c).train;
    programs.push_back(&train.program);
    costs.emplace_back(machine, ranks_of_node, train.program, train.model);
    courses.push_back(whole_course(train.program, announcements));
  }
  World world = world_of(classes, programs, all.plan(0).options.state);
  if (machine.has_gpus) {
    std::vector<int32_t> numbers(courses.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    if (std::optional<World> folded = folded_world(world, numbers)) world = std::move(*folded);
  }
  TimedStepSink sink;
  if (trace != nullptr)
    sink = [&](const TimedStep& step) {
      const World::Rank& rank = world.ranks[static_cast<size_t>(step.rank)];
      const Program& program = *programs[static_cast<size_t>(rank.program)];
      if (classes.first[static_cast<size_t>(classes.class_of(rank.number))] == rank.number)
        trace->add(rank.number, program, *step.instr, step.begin, step.end);
    };
  const std::vector<RankTime> times = timed_walk(
      world, courses, {ranks_of_node, machine.devices},
      [&](int32_t program, const Instr& instr) {
        return costs[static_cast<size_t>(program)].of(instr);
      },
      sink);
  Picoseconds end = 0;
  for (const RankTime& time : times) end = std::max(end, time.end);
  return step_of(times.front(), end);
}

std::string step_time_text(const StepTime& time, const Machine& machine, int ranks, int64_t tokens,
                           double flops_per_token, DType dtype) {
  const Rates& rates = machine.rates_of(machine.has_gpus ? 1 : ranks);
  const auto product = rates.products.find(dtype);
  const double peak = product == rates.products.end() ? 0 : product->second * ranks;
  const double rate = static_cast<double>(tokens) / time.seconds;
  std::string text =
      cat("time of a step on ", machine.name, ": ", format_number("%.4g", time.seconds), " s, ",
          format_number("%.4g", rate), " tokens/s");
  if (peak > 0 && flops_per_token > 0)
    text += cat(", ", percent_text(rate * flops_per_token / peak, 1), " of the rate of products");
  text += " (predicted)\n";
  const auto part = [&](const char* name, double seconds) {
    if (seconds > 0)
      text += cat("  ", name, "  ", format_number("%10.4g", seconds), " s  ",
                  format_number("%5.1f", 100 * seconds / time.seconds), " %\n");
  };
  part("layers                  ", time.layers);
  part("update                  ", time.update);
  part("norm, copies, clears    ", time.other);
  part("waits for collectives   ", time.communication);
  part("waits for other stages  ", time.stages);
  part("waits for copies        ", time.copies);
  part("waits for the disk      ", time.disk);
  return text;
}

}  // namespace ftrun
