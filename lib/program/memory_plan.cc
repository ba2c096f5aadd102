#include "program/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "base/shm_sizes.h"
#include "base/text.h"
#include "program/lifetime.h"
#include "program/memory_history.h"
#include "program/state_spec.h"

namespace ftrun {
namespace {

void add_persistent(const Program& program, MemoryPlan& plan,
                    std::set<std::pair<PersistentKind, Tier>>& seen) {
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent_kind || !seen.emplace(*buffer.persistent_kind, buffer.tier).second)
      continue;
    TierPlan& tier = plan.tiers[static_cast<size_t>(buffer.tier)];
    tier.persistent[static_cast<size_t>(buffer.category)] += buffer.bytes;
  }
}

/// Names the compute instruction that runs at a position. Instructions on other lanes may run
/// earlier or later than their position.
std::string peak_instr_label(const Program& program, size_t at) {
  const auto& instrs = program.instrs;
  while (at + 1 < instrs.size() && instrs[at].lane != Lane::kCompute) ++at;
  return instrs.empty() ? "" : instr_label(instrs[std::min(at, instrs.size() - 1)]);
}

/// Raises the peaks of `plan` (the peak of each category, and the total peak with its instruction)
/// to those of a program's arenas of a tier.
void raise_peaks(const Program& program, const std::vector<StorageRequest>& lifetimes, Tier tier,
                 TierPlan& plan) {
  const std::vector<CategoryBytes> history = arena_history(program, lifetimes, tier);
  for (size_t at = 0; at < history.size(); ++at) {
    for (size_t c = 0; c < kCategoryCount; ++c)
      plan.peak_by_category[c] = std::max(plan.peak_by_category[c], history[at][c]);
    if (sum_categories(history[at]) <= sum_categories(plan.bytes_at_joint_peak)) continue;
    plan.bytes_at_joint_peak = history[at];
    plan.peak_instr = peak_instr_label(program, at);
  }
}

void add_arenas(const std::vector<const Program*>& programs, MemoryPlan& plan) {
  std::array<int64_t, kArenaCount> largest{};
  for (const Program* program : programs) {
    for (size_t a = 0; a < kArenaCount; ++a)
      largest[a] = std::max(largest[a], program->arena_bytes[a]);
    const std::vector<StorageRequest> lifetimes = compute_buffer_lifetimes(*program);
    for (const Tier tier : {Tier::kDevice, Tier::kHost})
      raise_peaks(*program, lifetimes, tier, plan.tiers[static_cast<size_t>(tier)]);
  }
  const auto bytes = [&](Arena arena) { return largest[static_cast<size_t>(arena)]; };
  plan.tiers[static_cast<size_t>(Tier::kDevice)].arenas =
      bytes(Arena::kDevice) + bytes(Arena::kShared);
  plan.tiers[static_cast<size_t>(Tier::kHost)].arenas = bytes(Arena::kHost);
}

}  // namespace

std::string categories_text(const std::array<int64_t, kCategoryCount>& bytes) {
  std::vector<std::string> parts;
  for (size_t c = 0; c < kCategoryCount; ++c)
    if (bytes[c] > 0)
      parts.push_back(cat(category_name(static_cast<Category>(c)), " ", human_bytes(bytes[c])));
  return join(parts, ", ");
}

MemoryPlan plan_memory(const std::vector<const Program*>& programs) {
  MemoryPlan plan;
  std::set<std::pair<PersistentKind, Tier>> seen;
  for (const Program* program : programs) add_persistent(*program, plan, seen);
  add_arenas(programs, plan);
  for (TierPlan& tier : plan.tiers) tier.total = sum_categories(tier.persistent) + tier.arenas;
  return plan;
}

MemoryPlan plan_memory(const StepPlan& plan) {
  return plan_memory(plan.programs());
}

double StateFormula::bytes(int stage, int ranks) const {
  const double n = std::max(1, ranks);
  const double optimizer = moments + master;
  const double secondary = stage >= 3 && secondary_shards > 1 ? weights / secondary_shards : 0;
  return secondary + weights / (stage >= 3 ? n : 1) + gradients / (stage >= 2 ? n : 1) +
         optimizer / (stage >= 1 ? n : 1);
}

namespace {

/// Returns the bytes of optimizer state for each trained element. If only some tensors keep their
/// states as codes, this is the mean, rounded to the four decimals that are shown.
double moment_bytes(const StepPlan& plan) {
  const StateOptions& state = plan.options.state;
  double elements = 0, bytes = 0;
  for (const Unit& unit : plan.partition.units) {
    if (!unit.trainable || !stages_of(unit, state.pipeline).contains(state.pipeline_stage))
      continue;
    for (const TensorSlice& slice : unit.slices) {
      const TensorInfo& tensor = plan.train.model.tensor(slice.tensor);
      elements += static_cast<double>(slice.extent);
      for (const OptimizerStateSpec& spec : state.optimizer_states)
        if (state.has_state(tensor, spec))
          bytes += static_cast<double>(slice.extent * dtype_bytes(spec.dtype)) /
                   static_cast<double>(spec.block);
    }
  }
  return elements > 0 ? std::round(bytes / elements * 1e4) / 1e4 : 0;
}

}  // namespace

StateFormula state_formula(const StepPlan& plan) {
  const StateOptions& state = plan.options.state;
  const ModelDtypes& dtypes = plan.train.model.dtypes;
  StateFormula formula;
  formula.weights = static_cast<double>(dtype_bytes(dtypes.compute));
  formula.gradients = static_cast<double>(dtype_bytes(dtypes.gradients));
  formula.moments = moment_bytes(plan);
  const std::vector<StateSpec> specs =
      make_state_specs(plan.train.model, plan.partition, state, make_group_collection(state),
                       plan.options.micro_batches);
  const bool master = std::any_of(specs.begin(), specs.end(),
                                  [](const StateSpec& spec) { return spec.has_master; });
  if (master) formula.master = static_cast<double>(dtype_bytes(state.master));
  if (state.zero_stage == 3) formula.secondary_shards = state.secondary_shards;
  return formula;
}

int64_t model_state_bytes(const MemoryPlan& plan) {
  int64_t bytes = 0;
  for (const TierPlan& tier : plan.tiers)
    for (const Category category :
         {Category::kParameters, Category::kGradients, Category::kOptimizer})
      bytes += tier.bytes_of(category);
  return bytes;
}

namespace {

/// Returns the range of a peer's memory that the other ranks read in call i of a collective.
const BufferRange& peer_range(const Instr& instr, size_t i) {
  const bool in_place = instr.kind == InstrKind::kAllReduce || instr.kind == InstrKind::kReceive;
  return in_place ? instr.writes[i] : instr.reads[i];
}

/// MappedBytes computes an upper bound on the bytes of peers' memory that a rank has mapped.
class MappedBytes {
 public:
  explicit MappedBytes(const Program& program) : program_(program) {
    for (const Instr& instr : program.instrs) {
      if (!instr.communicates()) continue;
      for (size_t i = 0; i < instr.writes.size(); ++i)
        in_huge_pages_ |= peer_range(instr, i).bytes >= kShmHugePage / 2;
    }
  }

  /// Returns an upper bound on the bytes that call i of a collective has mapped at one time: one
  /// peer's part for an all-gather, the message for a receive, a block of one peer for shifts and
  /// all-to-alls, and this rank's part of each peer's buffer for reductions.
  int64_t bytes_of_call(const Instr& instr, size_t i, int ranks) const {
    const BufferRange& in = peer_range(instr, i);
    if (instr.kind == InstrKind::kReceive) return bytes_of_part(in.bytes);
    if (!in_shared_memory(program_.at(in.buffer))) return 0;
    const bool is_shift = instr.kind == InstrKind::kShift,
               is_counted = instr.kind == InstrKind::kCountedAllToAll;
    if (is_shift || is_counted || instr.kind == InstrKind::kAllToAll) {
      // One peer's block is mapped at a time. In a shift or a counted all-to-all the block may be
      // the peer's whole buffer.
      if (in.bytes <= kShmStagedBytes) return 0;
      return bytes_of_part(is_shift || is_counted ? in.bytes : in.bytes / ranks);
    }
    const int64_t whole = instr.kind == InstrKind::kAllGather ? in.bytes * ranks : in.bytes;
    if (whole <= kShmStagedBytes) return 0;
    // An all-gather maps one peer after another. A reduction maps the same part of all peers.
    return bytes_of_part(whole / ranks) * (instr.kind == InstrKind::kAllGather ? 1 : ranks - 1);
  }

 private:
  /// Returns an upper bound on the bytes that are mapped to read `part` bytes of a peer's memory:
  /// at most kShmMappedBytes, and all of each block that the part may touch. A block is a huge page
  /// or the bytes that the kernel maps around a read (kShmReadAround). All collectives read the
  /// same shared memory, so a small part may lie in a huge page that a larger collective has
  /// requested.
  int64_t bytes_of_part(int64_t part) const {
    if (part == 0) return 0;
    const int64_t block = in_huge_pages_ ? kShmHugePage : kShmReadAround;
    return std::min(round_up(part, block) + block, kShmMappedBytes);
  }

  const Program& program_;
  bool in_huge_pages_ = false;
};

/// Returns the bytes of peers' memory that each instruction has mapped while it runs. Its calls run
/// one after another, so the largest call counts.
std::vector<int64_t> mapped_bytes_by_instr(
    const Program& program, const std::function<bool(const ProgramGroup&)>& over_shared_memory) {
  std::vector<int64_t> mapped(program.instrs.size(), 0);
  const MappedBytes bytes(program);
  for (size_t at = 0; at < program.instrs.size(); ++at) {
    const Instr& instr = program.instrs[at];
    if (instr.group() == kNoGroup || !over_shared_memory(program.group(instr.group()))) continue;
    for (size_t i = 0; i < instr.writes.size(); ++i)
      mapped[at] = std::max(
          mapped[at], bytes.bytes_of_call(instr, i, program.group(instr.group()).place.count));
  }
  return mapped;
}

/// Lists the communication instructions of each lane, in the order in which they run.
std::vector<std::vector<size_t>> collectives_by_lane(const Program& program) {
  std::vector<std::vector<size_t>> lanes(static_cast<size_t>(lane_count(program)));
  for (size_t at = 0; at < program.instrs.size(); ++at)
    if (program.instrs[at].communicates())
      lanes[static_cast<size_t>(program.instrs[at].lane)].push_back(at);
  return lanes;
}

/// Returns the maximum number of bytes that an instruction in `others` (all on one other lane) has
/// mapped while collective `at` may run. Two instructions may run at the same time if neither has
/// to wait for the other.
int64_t max_concurrent_bytes(const Program& program, size_t at, const std::vector<size_t>& others,
                             const LaneClocks& clocks, const std::vector<int64_t>& mapped) {
  if (others.empty()) return 0;
  const auto lane = static_cast<size_t>(program.instrs[at].lane);
  const auto done = clocks[at][static_cast<size_t>(program.instrs[others.front()].lane)];
  int64_t largest = 0;
  const auto first =
      std::upper_bound(others.begin(), others.end(), done,
                       [](InstrId id, size_t other) { return id < static_cast<InstrId>(other); });
  for (auto other = first; other != others.end(); ++other) {
    if (clocks[*other][lane] >= static_cast<InstrId>(at)) break;  // later ones wait for `at` too
    largest = std::max(largest, mapped[*other]);
  }
  return largest;
}

/// Returns the maximum number of bytes that all instructions together have mapped at one time.
/// `mapped` holds the bytes of each instruction.
int64_t peak_mapped_bytes(const Program& program, const std::vector<int64_t>& mapped) {
  const LaneClocks clocks = compute_vector_clocks(program);
  const std::vector<std::vector<size_t>> lanes = collectives_by_lane(program);
  int64_t largest = 0;
  for (size_t at = 0; at < mapped.size(); ++at) {
    if (mapped[at] == 0) continue;
    int64_t sum = mapped[at];
    for (size_t lane = 0; lane < lanes.size(); ++lane)
      if (lane != static_cast<size_t>(program.instrs[at].lane))
        sum += max_concurrent_bytes(program, at, lanes[lane], clocks, mapped);
    largest = std::max(largest, sum);
  }
  return largest;
}

/// Returns an upper bound on the bytes that call i of a collective fills in each half of a rank's
/// staging area.
int64_t staged_bytes_of_call(const Program& program, const Instr& instr, size_t i, int ranks) {
  // A message that peers cannot read is copied, not staged.
  if (instr.kind == InstrKind::kSend || instr.kind == InstrKind::kReceive) return 0;
  const BufferRange& in = peer_range(instr, i);
  const int64_t whole = instr.kind == InstrKind::kAllGather ? in.bytes * ranks : in.bytes;
  if (whole <= kShmStagedBytes || in_shared_memory(program.at(in.buffer))) return 0;
  return std::min(in.bytes, kShmHalfBytes);
}

}  // namespace

int64_t staged_peer_bytes(const std::vector<const Program*>& programs,
                          const std::function<bool(const ProgramGroup&)>& over_shared_memory) {
  std::map<std::vector<int>, int64_t> half;  // bytes of a half, by the ranks of a group
  for (const Program* program : programs)
    for (const Instr& instr : program->instrs) {
      if (!instr.communicates() || instr.group() == kNoGroup) continue;
      const ProgramGroup& group = program->group(instr.group());
      if (!over_shared_memory(group)) continue;
      int64_t& largest = half[group.members.ranks];
      for (size_t i = 0; i < instr.writes.size(); ++i)
        largest = std::max(largest, staged_bytes_of_call(*program, instr, i, group.place.count));
    }
  int64_t bytes = 0;
  for (const auto& [ranks, largest] : half)
    bytes += 2 * std::ssize(ranks) * std::max<int64_t>(0, largest - kShmStagedBytes);
  return bytes;
}

int64_t mapped_peer_bytes(const std::vector<const Program*>& programs,
                          const std::function<bool(const ProgramGroup&)>& over_shared_memory) {
  int64_t largest = 0;
  for (const Program* program : programs)
    largest = std::max(
        largest, peak_mapped_bytes(*program, mapped_bytes_by_instr(*program, over_shared_memory)));
  return largest;
}

}  // namespace ftrun
