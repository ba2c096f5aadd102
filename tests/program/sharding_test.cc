#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <set>

#include "partition/flat_layout.h"
#include "program/lifetime.h"
#include "program/memory_plan.h"
#include "program/traffic.h"
#include "step_cases.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Coverage counts how often each element of each unit occurs. It stores the positions where the
/// count changes, and by how much, because intervals have thousands of elements.
class Coverage {
 public:
  explicit Coverage(const Partition& partition) {
    for (const Unit& unit : partition.units) changes_.push_back({{0, 0}, {unit.padded_numel, 0}});
  }
  void add(UnitId unit, int64_t begin, int64_t end) {
    auto& changes = changes_[static_cast<size_t>(unit)];
    REQUIRE(0 <= begin);
    REQUIRE(begin <= end);
    REQUIRE(end <= changes.rbegin()->first);
    ++changes[begin];
    --changes[end];
  }
  bool all(int wanted) const {
    return std::all_of(
        changes_.begin(), changes_.end(), [&](const std::map<int64_t, int>& changes) {
          int times = 0;
          return std::all_of(changes.begin(), std::prev(changes.end()), [&](const auto& change) {
            times += change.second;
            return times == wanted;
          });
        });
  }

 private:
  std::vector<std::map<int64_t, int>> changes_;
};

/// BuiltStepCase is a random step case with the programs of all its ranks. The tests share a list
/// of them; each test uses as many as it needs, beginning with the first.
struct BuiltStepCase {
  StepCase step_case;
  std::vector<StepProgram> steps;
};

const BuiltStepCase& built_step_case(int number) {
  static std::mt19937_64 random(401);
  static std::deque<BuiltStepCase> made;
  while (std::ssize(made) <= number) {
    StepCase step_case = random_step_case(random);
    std::vector<StepProgram> steps = step_case.steps();
    made.push_back({std::move(step_case), std::move(steps)});
  }
  return made[static_cast<size_t>(number)];
}

TEST_CASE("the ranks of one tensor index together save each element of each state once") {
  for (int round = 0; round < sweep_rounds(120); ++round) {
    const auto& [step_case, steps] = built_step_case(round);
    INFO(step_case.text());
    for (int32_t state = UnitStatePiece::kParam;
         state < std::ssize(step_case.options.state.optimizer_states); ++state) {
      std::vector<Coverage> saved(static_cast<size_t>(step_case.mesh.tensor),
                                  Coverage(step_case.built.partition));
      for (size_t r = 0; r < steps.size(); ++r)
        for (const UnitStatePiece& piece : steps[r].pieces) {
          if (piece.state != state) continue;
          REQUIRE(piece.begin <= piece.saved.begin);
          REQUIRE(piece.saved.end <= piece.end);
          REQUIRE((piece.saved.size() == 0 || piece.saved.begin % kUnitBlock == 0));
          saved[r % saved.size()].add(piece.unit, piece.saved.begin, piece.saved.end);
        }
      for (const Coverage& of_tensor_rank : saved) REQUIRE(of_tensor_rank.all(1));
    }
    for (const StepProgram& step : steps)
      for (const UnitStatePiece& piece : step.pieces) {
        const Buffer& buffer = step.program.at(piece.range.buffer);
        REQUIRE(buffer.persistent_kind);
        REQUIRE(piece.range.bytes == (piece.end - piece.begin) * dtype_bytes(buffer.format.dtype));
        if (piece.state == UnitStatePiece::kWorking) REQUIRE(piece.saved.size() == 0);
      }
  }
}

/// Returns whether a unit is sharded: a small unit is only if it has a block for each shard.
bool is_sharded(const Unit& unit, const StepCase& step_case) {
  const int shards = step_case.mesh.shards;
  const bool pays =
      step_case.options.state.zero_stage < 3 && shard_range(unit, shards - 1, shards).size() > 0;
  return !unit.holds_small_tensors || pays;
}

TEST_CASE("each element of each state is held by as many ranks as the stage says") {
  for (int round = 0; round < sweep_rounds(60); ++round) {
    const auto& [step_case, steps] = built_step_case(round);
    INFO(step_case.text());
    const StateOptions& state = step_case.options.state;
    std::map<std::pair<int32_t, UnitId>, int64_t> held;
    for (const StepProgram& step : steps)
      for (const UnitStatePiece& piece : step.pieces)
        if (piece.state >= 0) held[{piece.state, piece.unit}] += piece.end - piece.begin;
    for (const Unit& unit : step_case.built.partition.units) {
      const bool sharded =
          state.zero_stage > 0 && step_case.mesh.shards > 1 && is_sharded(unit, step_case);
      for (int32_t s = 0; s < std::ssize(state.optimizer_states); ++s)
        REQUIRE(held[{s, unit.id}] ==
                unit.padded_numel * step_case.mesh.tensor *
                    (sharded ? step_case.mesh.replicas : step_case.mesh.data()));
    }
  }
}

/// Returns the rank that has shard `shard` of copy `copy` of the state; a copy is a replica and a
/// tensor rank.
size_t rank_of(const Mesh& mesh, int copy, int shard) {
  return static_cast<size_t>((copy / mesh.tensor * mesh.shards + shard) * mesh.tensor +
                             copy % mesh.tensor);
}

TEST_CASE(
    "each element of each unit is updated once by its owners, with one number on every rank") {
  for (int round = 0; round < sweep_rounds(80); ++round) {
    const auto& [step_case, steps] = built_step_case(round);
    INFO(step_case.text());
    const Partition& partition = step_case.built.partition;
    const FlatLayout index = make_flat_layout(partition, FlatOrder::kForward);
    const StateOptions& state = step_case.options.state;
    for (int copy = 0; copy < step_case.mesh.replicas * step_case.mesh.tensor; ++copy) {
      Coverage cut(partition);
      for (int shard = 0; shard < step_case.mesh.shards; ++shard) {
        Coverage own(partition);
        const StepProgram& step = steps[rank_of(step_case.mesh, copy, shard)];
        for (const size_t i : positions_of(step.program, InstrKind::kUpdate)) {
          const Instr& instr = step.program.instrs[i];
          const int64_t begin = instr.update().first_element - index.at(instr.unit);
          const int64_t end = begin + element_count(step.program, instr.writes[0]);
          own.add(instr.unit, begin, end);
          const bool shared = state.zero_stage > 0 && step_case.mesh.shards > 1 &&
                              is_sharded(partition.unit(instr.unit), step_case);
          if (shared || shard == 0) cut.add(instr.unit, begin, end);
          for (const TensorSlice& slice : slices_in(partition.unit(instr.unit), begin, end))
            REQUIRE(decays_matrices(step_case.built.model.tensor(slice.tensor)) ==
                    instr.update().decay);
        }
        if (state.zero_stage == 0) REQUIRE(own.all(1));
      }
      REQUIRE(cut.all(1));
    }
  }
}

/// Returns how many elements the norm counts. Each tensor, with the padding after it, counts once
/// for each different part of it.
int64_t counted_by_norm(const StepCase& step_case) {
  int64_t elements = 0;
  for (const Unit& unit : step_case.built.partition.units)
    for (size_t i = 0; i < unit.slices.size(); ++i) {
      const bool last = i + 1 == unit.slices.size();
      const int64_t end = last ? unit.padded_numel : unit.slices[i + 1].position_in_unit;
      const int64_t begin = i == 0 ? 0 : unit.slices[i].position_in_unit;
      const int copies = step_case.built.model.tensor(unit.slices[i].tensor).copies;
      elements += (end - begin) * step_case.mesh.tensor / copies;
    }
  return elements;
}

/// Returns whether an instruction reads only parameters, or data derived from them, and writes
/// nothing that outlives the step, except secondary shards.
bool brings_parameters_only(const Program& program, const Instr& instr) {
  const auto is_way = [&](const BufferRange& range) {
    const Buffer& buffer = program.at(range.buffer);
    return buffer.category == Category::kParameters || buffer.category == Category::kBuckets ||
           buffer.category == Category::kStaging;
  };
  const auto is_kept = [&](const BufferRange& range) {
    const auto& persistent = program.at(range.buffer).persistent_kind;
    return persistent && persistent != PersistentKind::kSecondaryShards;
  };
  return (instr.kind == InstrKind::kAllGather || instr.kind == InstrKind::kCopy) &&
         std::all_of(instr.reads.begin(), instr.reads.end(), is_way) &&
         std::none_of(instr.writes.begin(), instr.writes.end(), is_kept);
}

/// Returns a program and its state as text, in which groups of shards have the same names whether
/// or not some of the shards share rows.
std::string text_of_state(const StepProgram& step) {
  std::string text = program_text(step.program);
  const auto rename = [&](const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  };
  rename("(data+context)", "data");
  rename("data+context", "data");
  for (const UnitStatePiece& piece : step.pieces)
    text += cat("state ", piece.state, " of unit ", piece.unit, " from ", piece.begin, " to ",
                piece.end, ", saved from ", piece.saved.begin, " to ", piece.saved.end, " in ",
                piece.range.buffer, "+", piece.range.offset, ", copied to ", piece.snapshot.offset,
                "\n");
  return text;
}

TEST_CASE("ranks that share rows divide the state like ranks that read different samples") {
  std::mt19937_64 random(411);
  for (const int stage : {0, 1, 2, 3})
    for (const Mesh& mesh : {Mesh{.shards = 4}, Mesh{.shards = 4, .replicas = 2, .tensor = 2},
                             Mesh{.shards = 4, .secondary_shards = 2}}) {
      StepCase apart = small_step_case(small_config(2, true), mesh);
      StateOptions& state = apart.options.state;
      state.zero_stage = stage;
      state.snapshots = true;
      state.secondary_shards = stage == 3 ? mesh.secondary_shards : 1;
      if (stage == 2) apart = with_8bit_states(apart, random);
      StepCase together = apart;
      together.mesh.context = 2;
      INFO(together.text());
      for (int rank = 0; rank < mesh.ranks(); ++rank)
        REQUIRE(text_of_state(together.step(rank)) == text_of_state(apart.step(rank)));
    }
}

TEST_CASE(
    "in each copy of the model one rank writes each slot of the gradient norm, and every element "
    "counts once") {
  for (int round = 0; round < sweep_rounds(60); ++round) {
    const auto& [step_case, steps] = built_step_case(round);
    INFO(step_case.text());
    for (int replica = 0; replica < step_case.mesh.replicas; ++replica) {
      std::map<int64_t, int> slots;
      int64_t elements = 0;
      const int ranks = step_case.mesh.shards * step_case.mesh.tensor;
      for (int rank = 0; rank < ranks; ++rank) {
        const Program& program = steps[static_cast<size_t>(replica * ranks + rank)].program;
        for (const size_t i : positions_of(program, InstrKind::kGradientNorm)) {
          const Instr& instr = program.instrs[i];
          for (const BufferRange& range : instr.writes) REQUIRE(++slots[range.offset] == 1);
          for (const BufferRange& range : instr.reads) elements += element_count(program, range);
        }
      }
      REQUIRE(elements == counted_by_norm(step_case));
    }
  }
}

TEST_CASE(
    "each rank has its own slots of the norm; if these are too many, ranks share one per unit") {
  const PartitionedModel built = build(small_config(12, true));
  const auto units = static_cast<int64_t>(built.partition.units.size());
  StepOptions options;
  options.state.zero_stage = 1;
  const auto slots_of = [&](int ranks) {
    const Program program = built.step(options, ranks, ranks - 1);
    return program.at(find_persistent_buffer(program, PersistentKind::kGradientNorm)).bytes /
           dtype_bytes(DType::kF64);
  };
  for (const int ranks : {1, 2, 64, 8192}) CHECK(slots_of(ranks) == units * ranks);
  CHECK(slots_of(16'384) == units);
  options.state.max_gradient_norm_slots = units * 2;
  CHECK(slots_of(2) == units * 2);
  CHECK(slots_of(3) == units);
}

TEST_CASE("frozen units have parameters and nothing else, and stage 3 gathers them") {
  std::mt19937_64 random(405);
  for (int round = 0; round < sweep_rounds(60); ++round) {
    const StepCase step_case = with_frozen(random_step_case(random), random, 50);
    const StepProgram step = step_case.last_step();
    INFO(step_case.text() << "\n" << program_text(step.program));
    const auto is_frozen = [&](int32_t unit) {
      return unit >= 0 && !step_case.built.partition.unit(unit).trainable;
    };
    for (const UnitStatePiece& piece : step.pieces)
      if (is_frozen(piece.unit)) REQUIRE(piece.state == UnitStatePiece::kParam);
    int64_t trained = 0;
    for (const Unit& unit : step_case.built.partition.units)
      trained += unit.trainable ? unit.padded_numel + kUnitBlock * step_case.mesh.shards : 0;
    int64_t kept = 0;
    std::set<int32_t> gathered;
    for (const Buffer& buffer : step.program.buffers)
      if (buffer.category == Category::kGradients)
        kept += buffer.bytes / dtype_bytes(buffer.format.dtype);
    REQUIRE(kept <= trained);
    for (const Instr& instr : step.program.instrs) {
      if (!is_frozen(instr.unit)) continue;
      REQUIRE(brings_parameters_only(step.program, instr));
      gathered.insert(instr.unit);
    }
    for (const Unit& unit : step_case.built.partition.units)
      if (!unit.trainable && !unit.holds_small_tensors && step_case.options.state.zero_stage == 3 &&
          step_case.mesh.shards > 1)
        REQUIRE(gathered.contains(unit.id));
  }
}

TEST_CASE("copies run on the lane of their link, and none is between device and disk", "[long]") {
  std::mt19937_64 random(408);
  std::set<std::string> used;
  for (int round = 0; round < sweep_rounds(150); ++round) {
    const StepCase step_case = random_step_case(random);
    const Program program = step_case.step(0).program;
    INFO(step_case.text() << "\n" << program_text(program));
    for (const Instr& instr : program.instrs) {
      if (instr.kind != InstrKind::kCopy && instr.kind != InstrKind::kAccumulate) continue;
      const Tier from = program.at(instr.reads[0].buffer).tier;
      const Tier to = program.at(instr.writes[0].buffer).tier;
      const bool disk = from == Tier::kDisk || to == Tier::kDisk;
      used.insert(is_communication(instr.lane)
                      ? axes_in(program, static_cast<GroupId>(instr.lane) -
                                             static_cast<GroupId>(Lane::kFirstGroup))
                      : std::string(lane_name(instr.lane)));
      REQUIRE_FALSE((disk && (from == Tier::kDevice || to == Tier::kDevice)));
      REQUIRE((instr.lane == Lane::kDisk) == disk);
      REQUIRE((instr.lane == Lane::kToHost) == (from == Tier::kDevice && to == Tier::kHost));
      REQUIRE((instr.lane == Lane::kToDevice) == (from == Tier::kHost && to == Tier::kDevice));
    }
  }
  // The lanes in use are those of links and of all groups that shard or replicate state.
  REQUIRE(used == std::set<std::string>{"compute", "to device", "to host", "disk", "data",
                                        "data_replicate"});
}

TEST_CASE("collectives work on memory that peers can see") {
  std::mt19937_64 random(409);
  for (int round = 0; round < sweep_rounds(100); ++round) {
    const StepCase step_case = random_step_case(random);
    const Program program = step_case.step(0).program;
    INFO(step_case.text() << "\n" << program_text(program));
    for (const Instr& instr : program.instrs) {
      if (!instr.is_collective() || (instr.unit < 0 && instr.layer < 0)) continue;
      // Ranges that are sent must be visible to peers; the results of a gather are private.
      for (const BufferRange& range : instr.reads) REQUIRE(program.at(range.buffer).peer_visible);
    }
  }
}

TEST_CASE("the programs of a rank share their persistent buffers by kind") {
  std::mt19937_64 random(410);
  for (int round = 0; round < sweep_rounds(60); ++round) {
    const StepCase step_case = random_step_case(random);
    INFO(step_case.text());
    const Program train = step_case.last_step().program;
    const StepOptions mine = step_case.options_of_rank(step_case.mesh.ranks() - 1);
    const PartitionedModel& built = step_case.built;
    const ModelDescription evaluate = step_case.model_for(GraphMode::kEvaluate);
    const ModelDescription logits = step_case.model_for(GraphMode::kLogits);
    size_t shared = 0;
    for (const Program& program : {build_evaluation_step(evaluate, built.partition, mine).program,
                                   build_generation_step(logits, built.partition, mine).program})
      for (const Buffer& buffer : program.buffers) {
        if (!buffer.persistent_kind) continue;
        const BufferId in_training =
            find_persistent_buffer(train, *buffer.persistent_kind, buffer.tier);
        REQUIRE(in_training >= 0);
        const Buffer& same = train.at(in_training);
        REQUIRE(same.bytes == buffer.bytes);
        REQUIRE(same.name == buffer.name);
        REQUIRE(same.format == buffer.format);
        REQUIRE(same.peer_visible == buffer.peer_visible);
        ++shared;
      }
    REQUIRE(shared >= 3);
  }
}

bool is_gathered(const Buffer& buffer) {
  return buffer.name.find("gathered.") == 0;
}

/// A buffer of gathered parameters, from its first to its last instruction.
struct GatheredBuffer {
  size_t first = 0;
  size_t last = 0;
  /// The first compute instruction of the list that reads the buffer.
  size_t reader = 0;
  int64_t elements = 0;
};

/// Returns the position of the first compute instruction of this instruction's list.
size_t begin_of_list(const Program& program, size_t at) {
  const Instr& instr = program.instrs[at];
  const auto same_list = [&](const Instr& other) {
    return other.kind == instr.kind && other.layer == instr.layer &&
           other.micro_batch == instr.micro_batch && other.runs_ops();
  };
  return static_cast<size_t>(std::find_if(program.instrs.begin(), program.instrs.end(), same_list) -
                             program.instrs.begin());
}

std::vector<GatheredBuffer> gathered_buffers(const Program& program) {
  std::map<BufferId, GatheredBuffer> found;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    for (const auto* ranges : {&instr.reads, &instr.writes})
      for (const BufferRange& range : *ranges) {
        const Buffer& buffer = program.at(range.buffer);
        if (!is_gathered(buffer)) continue;
        auto [it, added] = found.try_emplace(
            range.buffer, GatheredBuffer{i, i, 0, buffer.bytes / dtype_bytes(buffer.format.dtype)});
        it->second.last = i;
        if (instr.runs_ops() && it->second.reader == 0)
          it->second.reader = begin_of_list(program, i);
      }
  }
  std::vector<GatheredBuffer> all;
  for (const auto& [id, gathered] : found) all.push_back(gathered);
  return all;
}

StepCase sharded_step_case(std::mt19937_64& random) {
  for (;;) {
    StepCase step_case = random_step_case(random);
    step_case.options.state.zero_stage = 3;
    if (step_case.mesh.shards > 1) return step_case;
  }
}

TEST_CASE("gathered parameters exceed the live limit only where one layer needs that many",
          "[long]") {
  std::mt19937_64 random(405);
  int over = 0;
  for (int round = 0; round < sweep_rounds(120); ++round) {
    const StepCase step_case = sharded_step_case(random);
    INFO(step_case.text());
    const Program program = step_case.step(0).program;
    INFO(program_text(program));
    const std::vector<GatheredBuffer> gathered = gathered_buffers(program);
    for (size_t i = 0; i < program.instrs.size(); ++i) {
      int64_t live = 0;
      std::set<size_t> readers;
      for (const GatheredBuffer& g : gathered) {
        if (i < g.first || g.last < i) continue;
        live += g.elements;
        readers.insert(g.reader);
      }
      if (live <= step_case.options.max_live_elements) continue;
      ++over;
      INFO("at " << i);
      REQUIRE(readers.size() == 1);
    }
  }
  REQUIRE(over > 0);
}

TEST_CASE("no more is gathered ahead of its reader than the prefetch size, or one unit") {
  std::mt19937_64 random(406);
  bool ahead_at_all = false;
  for (int round = 0; round < sweep_rounds(120); ++round) {
    const StepCase step_case = sharded_step_case(random);
    const Program program = step_case.step(0).program;
    const std::vector<GatheredBuffer> gathered = gathered_buffers(program);
    INFO(step_case.text() << "\n" << program_text(program));
    // The elements that are gathered ahead are counted at the start of each layer.
    for (size_t i = 0; i < program.instrs.size(); ++i) {
      if (!program.instrs[i].runs_ops()) continue;
      int64_t ahead = 0;
      int units = 0;
      for (const GatheredBuffer& g : gathered) {
        if (g.first > i || i >= g.reader) continue;
        ahead += g.elements;
        ++units;
      }
      ahead_at_all |= ahead > 0;
      const int64_t most = step_case.options.overlap ? step_case.options.prefetch_elements : 0;
      REQUIRE((ahead <= most || (most > 0 && units == 1)));
    }
  }
  REQUIRE(ahead_at_all);
}

TEST_CASE(
    "a gather runs at the same time as the layer before its reader, even if it exceeds the limit") {
  StepOptions options{.prefetch_elements = 1};
  options.state.zero_stage = 3;
  const Program program = build(small_config(4, false)).step(options);
  const LaneClocks known = compute_vector_clocks(program);
  size_t beside = 0;
  for (const size_t i : positions_of(program, InstrKind::kAllGather)) {
    size_t next = i + 1;
    while (!program.instrs[next].runs_ops()) ++next;
    const BufferId arrives = program.instrs[i].writes[0].buffer;
    const auto& reads = program.instrs[next].reads;
    beside += std::none_of(reads.begin(), reads.end(),
                           [&](const BufferRange& r) { return r.buffer == arrives; });
    // The gather does not start earlier.
    size_t before = i;
    while (program.instrs[before].lane != Lane::kCompute) --before;
    REQUIRE(known[i][kComputeLane] == static_cast<InstrId>(before));
  }
  // The gathers overlap computation, except the very first one.
  CHECK(beside == positions_of(program, InstrKind::kAllGather).size() - 1);
}

/// Lists forward and backward of each layer in the order of the compute lane, then the updates in
/// the order of their elements, because updates may be cut differently.
std::vector<std::string> compute_order(const Program& program) {
  std::vector<std::string> labels;
  std::map<int64_t, std::string> updates;
  for (const Instr& instr : program.instrs) {
    if (instr.runs_ops() || instr.kind == InstrKind::kLoadBatch)
      labels.push_back(cat(instr_label(instr), " ", instr.runs_ops() && instr.ops().accumulate));
    if (instr.kind == InstrKind::kUpdate)
      updates[instr.update().first_element] =
          cat(instr_label(instr), " ", instr.update().first_element, " of ",
              element_count(program, instr.writes[0]));
  }
  for (const auto& [element, label] : updates) labels.push_back(label);
  return labels;
}

TEST_CASE("tuning keys do not change the order of computation or of sums") {
  std::mt19937_64 random(407);
  for (int round = 0; round < sweep_rounds(60); ++round) {
    const StepCase step_case = random_step_case(random);
    INFO(step_case.text());
    StepCase other = step_case;
    const StepOptions knobs = random_options(random, step_case.built, step_case.mesh);
    StepOptions& options = other.options;
    options.bucket_elements = knobs.bucket_elements;
    options.gather_bucket_elements = knobs.gather_bucket_elements;
    options.prefetch_elements = knobs.prefetch_elements;
    options.max_live_elements = knobs.max_live_elements;
    options.reuse_distance = knobs.reuse_distance;
    options.overlap = knobs.overlap;
    options.offload_activations = knobs.offload_activations;
    options.state.parameter_tier = knobs.state.parameter_tier;
    if (step_case.options.state.zero_stage < 3) options.state.parameter_tier = Tier::kDevice;
    const std::vector<StepProgram> a = step_case.steps();
    const std::vector<StepProgram> b = other.steps();
    for (size_t r = 0; r < a.size(); ++r)
      REQUIRE(compute_order(a[r].program) == compute_order(b[r].program));
  }
}

int64_t device_peak(const Program& program, Category category) {
  return plan_memory({&program}).at(Tier::kDevice).bytes_of(category);
}

TEST_CASE("unsharded gradients of ZeRO-2 live until their reduction, two buckets at a time") {
  const auto buckets = [](int64_t layers, int64_t bucket) {
    StepOptions options{.micro_batches = 2, .bucket_elements = bucket};
    options.state.zero_stage = 2;
    return device_peak(build(small_config(layers, false)).step(options), Category::kBuckets);
  };
  constexpr int64_t kUnit = 2 * kUnitBlock * 4;  // the bytes of a whole unit on two ranks
  CHECK(buckets(8, 1) <= 3 * kUnit);
  CHECK(buckets(8, 1) == buckets(20, 1));
  CHECK(buckets(20, 2 * 2 * kUnitBlock) <= 6 * kUnit);
}

TEST_CASE("gradients that are sent in another dtype are copied two buckets at a time") {
  const auto buckets = [](int64_t layers, int stage) {
    StepOptions options{.bucket_elements = 1};
    options.state.zero_stage = stage;
    options.state.communication = DType::kBF16;
    return device_peak(build(small_config(layers, false)).step(options), Category::kBuckets);
  };
  for (const int stage : {0, 1}) {
    CHECK(buckets(8, stage) <= 3 * 2 * kUnitBlock * 2);
    CHECK(buckets(8, stage) == buckets(20, stage));
  }
}

TEST_CASE("ZeRO-3 keeps a few layers' parameters and gradients, however many there are") {
  const auto buckets = [](int64_t layers) {
    StepOptions options{.bucket_elements = 1, .prefetch_elements = 2 * kUnitBlock};
    options.state.zero_stage = 3;
    return device_peak(build(small_config(layers, false)).step(options), Category::kBuckets);
  };
  constexpr int64_t kUnit = 2 * kUnitBlock * 4;
  CHECK(buckets(8) <= 5 * kUnit);
  CHECK(buckets(8) == buckets(20));
}

TEST_CASE("an update in another tier stages two intervals, however large the state is") {
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    for (int stage = 1; stage < 4; ++stage) {
      const auto staged = [&](int64_t layers) {
        PartitionedModel built;
        built.model = build_model(small_config(layers, false), {1, 4}, GraphMode::kTrain,
                                  {DType::kBF16, DType::kBF16});
        built.partition = build_units(built.model);
        StepOptions options;
        options.state.zero_stage = stage;
        options.state.optimizer_tier = tier;
        options.state.communication = DType::kBF16;
        options.state.update_elements = kUnitBlock;
        const Program program = built.step(options);
        return plan_memory({&program}).at(Tier::kHost).bytes_of(Category::kStaging);
      };
      INFO(tier_name(tier) << ", stage " << stage);
      // The gradient and the new parameter have 2 bytes each; the disk holds a weight and two
      // moments of 4 bytes each.
      const int64_t bytes = (stage == 1 ? 2 : 0) + 2 + (tier == Tier::kDisk ? 12 : 0);
      CHECK(staged(2) <= 2 * bytes * kUnitBlock);
      CHECK(staged(12) == staged(2));
    }
  }
}

/// The copies of optimizer state to and from the staging buffers of one interval, and its last
/// update.
struct UpdateInterval {
  std::vector<size_t> fetches;
  size_t update = 0;
  std::vector<size_t> evicts;
  std::set<std::string> buffers;
};

/// Returns the intervals in the order of their updates.
std::vector<UpdateInterval> intervals_of(const Program& program) {
  const auto staging = [&](const BufferRange& range) {
    const Buffer& buffer = program.at(range.buffer);
    return !buffer.persistent_kind && buffer.category == Category::kStaging;
  };
  std::vector<UpdateInterval> all;
  std::map<BufferId, size_t> writer;  // the last fetch into each staging buffer
  for (size_t i = positions_of(program, InstrKind::kDecide)[0]; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.kind == InstrKind::kCopy && staging(instr.writes[0]))
      writer[instr.writes[0].buffer] = i;
    if (instr.kind == InstrKind::kUpdate && staging(instr.writes[0])) {
      const size_t fetch = writer.at(instr.writes[0].buffer);
      if (all.empty() || all.back().fetches[0] != fetch) all.push_back({{fetch}, i, {}, {}});
      all.back().update = i;
      for (const BufferRange& range : instr.writes)
        all.back().buffers.insert(program.at(range.buffer).name);
      for (const BufferRange& range : instr.reads)
        if (staging(range)) all.back().fetches.push_back(writer.at(range.buffer));
    }
    if (instr.kind == InstrKind::kCopy && staging(instr.reads[0])) all.back().evicts.push_back(i);
  }
  return all;
}

TEST_CASE("while an interval is updated the next is fetched, even with small units between them") {
  PartitionedModel built;
  built.model = build_model(small_config(5, false), {1, 4}, GraphMode::kTrain);
  // The norms of blocks and head stay on the device; they are between the intervals of the blocks.
  built.partition = build_units(built.model, UnitGranularity::kLayer, {64, INT64_MAX});
  StepOptions options;
  options.state.zero_stage = 3;
  options.state.parameter_tier = options.state.optimizer_tier = Tier::kDisk;
  options.state.update_elements = kUnitBlock;
  for (const bool overlap : {true, false}) {
    options.overlap = overlap;
    const Program program = built.step(options, 1);
    INFO(program_text(program));
    REQUIRE(check(program).empty());
    const std::vector<UpdateInterval> intervals = intervals_of(program);
    REQUIRE(intervals.size() >= 7);
    REQUIRE(std::count_if(built.partition.units.begin(), built.partition.units.end(),
                          [](const Unit& u) { return u.holds_small_tensors; }) == 6);
    const auto before = happens_before(program);
    // The first two gathers run at the same time as the updates of the small units.
    for (const size_t i : positions_of(program, InstrKind::kUpdate))
      for (const size_t k : {0, 1})
        for (const size_t fetch : intervals[k].fetches) CHECK_FALSE(before[fetch][i]);
    std::map<std::string, int> used;
    for (size_t k = 0; k < intervals.size(); ++k) {
      // Each interval has weights and two moments.
      REQUIRE(intervals[k].buffers.size() == 3);
      for (const std::string& name : intervals[k].buffers) ++used[name];
      if (k + 1 == intervals.size()) continue;
      for (const size_t fetch : intervals[k + 1].fetches) {
        CHECK_FALSE(before[fetch][intervals[k].update]);
        // The disk reads the next interval before it writes this one.
        for (const size_t evict : intervals[k].evicts) CHECK(fetch < evict);
      }
    }
    REQUIRE(used.size() == 6);
    for (const auto& [name, times] : used) {
      INFO(name);
      CHECK((times == static_cast<int>(intervals.size() / 2) ||
             times == static_cast<int>((intervals.size() + 1) / 2)));
    }
  }
}

TEST_CASE("a unit that consecutive lists of one direction read is gathered once for them") {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    StepOptions options{.micro_batches = 3};
    options.state.zero_stage = 3;
    options.state.parameter_tier = options.state.optimizer_tier = tier;
    const PartitionedModel built =
        build(small_config(4, false), GraphMode::kTrain, UnitGranularity::kModel);
    REQUIRE(built.partition.units.size() == 1);
    const Program program = built.step(options);
    INFO(program_text(program));
    REQUIRE(check(program).empty());
    // Each micro-batch has one gather for forward and one for backward.
    CHECK(positions_of(program, InstrKind::kAllGather).size() == 2 * 3);
    CHECK(gathered_buffers(program).size() == 2 * 3);
    options.state.data = {2, 0};
    for (const TrafficDeviation& deviation :
         compare_traffic_with_theory(program, built.model, built.partition, options).deviations)
      CHECK(deviation.cause.find("units that not") == std::string::npos);
  }
  // Parameters are gathered again for lists that are not consecutive; here this is the tied matrix,
  // for the embedding and for the head.
  StepOptions options;
  options.state.zero_stage = 3;
  std::map<UnitId, int> gathers;
  const Program program = build(small_config(2, true)).step(options);
  for (const size_t i : positions_of(program, InstrKind::kAllGather))
    ++gathers[program.instrs[i].unit];
  INFO(program_text(program));
  CHECK(gathers == std::map<UnitId, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}});
}

TEST_CASE("the optimizer's tier does not change how micro-batches are added, even on one rank") {
  for (const int ranks : {1, 2})
    for (const int replicas : {1, 2})
      for (const int stage : {2, 3})
        for (const int32_t micro_batches : {1, 2, 3}) {
          const auto sums = [&](Tier tier) {
            StepOptions options{.micro_batches = micro_batches};
            options.state.zero_stage = stage;
            options.state.replicas = replicas;
            options.state.optimizer_tier = tier;
            int in_lists = 0;
            int apart = 0;
            for (const Instr& instr : build(small_config(2, false)).step(options, ranks).instrs) {
              in_lists += instr.runs_ops() && instr.ops().accumulate;
              apart += instr.kind == InstrKind::kAccumulate;
            }
            return std::pair{in_lists, apart};
          };
          INFO(ranks << " x " << replicas << " ranks, stage " << stage << ", " << micro_batches
                     << " micro-batches");
          // The four units are gathered again for every micro-batch after the first, and never
          // within the lists.
          const std::pair expected{0, 4 * (micro_batches - 1)};
          for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk})
            CHECK(sums(tier) == expected);
        }
}

TEST_CASE("activations on the host leave room on the device") {
  const auto peak = [](int64_t layers, bool offload) {
    PartitionedModel built;
    RecomputeOptions recompute;
    recompute.policy.level = RecomputeLevel::kFull;
    built.model =
        build_model(small_config(layers, false), {1, 64}, GraphMode::kTrain, {}, recompute);
    built.partition = build_units(built.model);
    StepOptions options{.micro_batches = 2};
    options.offload_activations = offload;
    return built.step(options, 1).bytes_of_arena(Arena::kDevice);
  };
  const int64_t hidden = 64 * 16 * 4;
  CHECK(peak(12, true) <= peak(12, false) - 8 * hidden);
  const int64_t grows = peak(12, true) - peak(11, true);
  CHECK(grows == peak(12, false) - peak(11, false) - hidden);
}

}  // namespace
}  // namespace ftrun
