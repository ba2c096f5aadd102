#include "sim/step_lanes.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/round_up.h"

namespace ftrun {
namespace {

/// BarMerger merges the instructions of one lane into bars.
class BarMerger {
 public:
  BarMerger(Picoseconds pixel, std::vector<LaneBar>& bars) : pixel_(pixel), bars_(bars) {}

  void add(const TimelineInstr& one) {
    const Picoseconds takes = one.end - one.begin;
    const bool is_short = takes < pixel_;
    if (!is_short || !open_ || open_->end - open_->begin >= pixel_ ||
        one.begin - open_->end >= pixel_)
      close();
    if (!open_) open_ = LaneBar{.begin = one.begin, .first = one.instr};
    open_->end = one.end;
    open_->busy += takes;
    open_->last = one.instr;
    ++open_->count;
    by_kind_[static_cast<size_t>(work_kind(*one.instr))] += takes;
    if (!is_short) close();
  }

  void close() {
    if (!open_) return;
    const auto longest = std::max_element(by_kind_.begin(), by_kind_.end());
    open_->kind = kWorkKinds[static_cast<size_t>(longest - by_kind_.begin())];
    bars_.push_back(*open_);
    open_.reset();
    by_kind_ = {};
  }

 private:
  Picoseconds pixel_;
  std::vector<LaneBar>& bars_;
  std::optional<LaneBar> open_;
  std::array<Picoseconds, kWorkKinds.size()> by_kind_{};
};

/// Lists for each position of a rank's program the time when the compute instruction at that
/// position begins; if another lane's instruction is there, the time of the next compute
/// instruction.
std::vector<Picoseconds> compute_begins(const RankTimeline& rank, Picoseconds end) {
  const std::vector<Instr>& instrs = rank.program->instrs;
  std::vector<Picoseconds> begins(instrs.size(), end);
  for (const TimelineInstr& one : rank.instrs)
    begins[static_cast<size_t>(one.instr - instrs.data())] = one.begin;
  for (size_t at = instrs.size(); at-- > 1;)
    if (instrs[at - 1].lane != Lane::kCompute) begins[at - 1] = begins[at];
  return begins;
}

}  // namespace

WorkKind work_kind(const Instr& instr) {
  return traits_of(instr.kind).work;
}

std::string_view work_name(WorkKind kind) {
  constexpr std::array<std::string_view, kWorkKinds.size()> names{
      "forward", "backward", "weight gradients", "update", "communication", "copy", "other"};
  return names[static_cast<size_t>(kind)];
}

std::vector<LaneBars> make_lane_bars(const RankTimeline& rank, Picoseconds pixel) {
  std::map<Lane, LaneBars> lanes;
  std::map<Lane, BarMerger> mergers;
  for (const TimelineInstr& one : rank.instrs) {
    if (one.begin == one.end) continue;
    LaneBars& lane = lanes[one.instr->lane];
    lane.lane = one.instr->lane;
    lane.busy += one.end - one.begin;
    mergers.try_emplace(lane.lane, pixel, lane.bars).first->second.add(one);
  }
  std::vector<LaneBars> all;
  for (auto& [lane, merger] : mergers) {
    merger.close();
    all.push_back(std::move(lanes.at(lane)));
  }
  return all;
}

StepLanes make_step_lanes(const std::vector<const RankTimeline*>& ranks, Picoseconds end,
                          size_t max_count) {
  for (int64_t pixels = 4000;; pixels /= 2) {
    StepLanes lanes{.pixel = std::max<Picoseconds>(end / std::max<int64_t>(pixels, 1), 1)};
    size_t bars = 0;
    for (const RankTimeline* rank : ranks) {
      lanes.ranks.push_back(make_lane_bars(*rank, lanes.pixel));
      for (const LaneBars& lane : lanes.ranks.back()) bars += lane.bars.size();
    }
    if (bars <= max_count || pixels <= 1) return lanes;
  }
}

std::vector<MemorySample> sample_step_memory(const RankTimeline& rank, Tier tier, Picoseconds end,
                                             size_t max_count) {
  const Program& program = *rank.program;
  const std::vector<Picoseconds> begins = compute_begins(rank, end);
  const auto parts = static_cast<Picoseconds>(max_count);
  const Picoseconds width = std::max<Picoseconds>(divide_up(end, parts), 1);
  const std::vector<CategoryBytes> history = arena_history(program, tier);
  std::vector<MemorySample> points;
  // Each part of the step begins with the bytes in use at the end of the previous part.
  MemorySample peak;
  CategoryBytes now{};
  Picoseconds part = 0;
  const auto next_part = [&](Picoseconds to) {
    if (points.empty() || points.back().bytes != peak.bytes) points.push_back(peak);
    if (to > part + 1 && peak.bytes != now) points.push_back({(part + 1) * width, now});
    part = to;
    peak = {part * width, now};
  };
  for (size_t at = 0; at < program.instrs.size(); ++at) {
    if (const Picoseconds in = std::min(begins[at], end - 1) / width; in > part) next_part(in);
    now = history[at];
    if (sum_categories(now) > sum_categories(peak.bytes)) peak.bytes = now;
  }
  next_part(part + 1);
  return points;
}

}  // namespace ftrun
