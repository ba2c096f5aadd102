#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "mutants.h"
#include "partition/flat_layout.h"
#include "program/buffer_names.h"
#include "program/conflicts.h"
#include "program/layer_instr.h"
#include "sweep.h"

#include <catch2/catch.hpp>

// These tests change one thing at a time in programs of every stage, tier and overlap. Each mutant
// must be noticed by the checker or change the results of a run, or must be proved equivalent for
// one of the reasons listed here.

namespace ftrun {
namespace {

using namespace testing;

/// Returns a step case where a rank holds a part of each unit that is sharded over two (with four
/// ranks, two of them do). Tensor ranks hold as much each, of a model with fewer layers, because
/// their lists are cut into many parts.
StepCase base_step_case(Mesh mesh = {2, 1}) {
  ModelConfig config = small_config(mesh.tensor > 1 ? 1 : 2, true);
  config.hidden = 32;
  config.feed_forward = mesh.tensor > 1 ? 48 * mesh.tensor : 40;
  config.vocab_rows = 160 * mesh.tensor;
  StepCase step_case = small_step_case(config, mesh);
  step_case.options.gather_bucket_elements = 10'000;
  step_case.options.state.update_elements = kUnitBlock;
  step_case.options.state.decays = decays_matrices;
  step_case.options.state.optimizer_states.resize(1);
  return step_case;
}

/// Returns the stride of the sample: a case makes only every n-th of the many possible changes of
/// instructions. It is larger for tensor ranks, whose programs have more instructions.
size_t sample_stride_of(const StepCase& step_case) {
  return step_case.mesh.tensor > 1 ? 61 : 11;
}

void rebuild(StepCase& step_case, ModelDtypes dtypes, RecomputeOptions recompute) {
  step_case.built.model =
      build_model(step_case.config, step_case.built.model.batch, GraphMode::kTrain, dtypes,
                  recompute, step_case.built.model.split);
}

/// Lists the tiers where parameters and optimizer state of a stage may lie.
std::vector<std::pair<Tier, Tier>> tiers_of(int stage) {
  constexpr Tier kDevice = Tier::kDevice;
  if (stage == 0) return {{kDevice, kDevice}};
  if (stage < 3) return {{kDevice, kDevice}, {kDevice, Tier::kHost}, {kDevice, Tier::kDisk}};
  return {{kDevice, kDevice},         {Tier::kHost, Tier::kHost}, {Tier::kDisk, Tier::kDisk},
          {kDevice, Tier::kHost},     {Tier::kHost, kDevice},     {Tier::kDisk, Tier::kHost},
          {Tier::kHost, Tier::kDisk}, {kDevice, Tier::kDisk},     {Tier::kDisk, kDevice}};
}

/// Lists cases with other features that shape a step.
std::vector<MutatedCase> special_cases() {
  std::vector<MutatedCase> all;
  const auto with = [&](const std::string& name, Mesh mesh, int stage,
                        const std::function<void(StepCase&)>& change) {
    for (const bool overlap : {true, false}) {
      all.push_back(
          {cat(name, ", stage ", stage, overlap ? ", overlap" : ""), base_step_case(mesh)});
      all.back().step_case.options.state.zero_stage = stage;
      all.back().step_case.options.overlap = overlap;
      all.back().step_case.options.state.secondary_shards = mesh.secondary_shards;
      change(all.back().step_case);
    }
  };
  for (const int stage : {1, 2, 3}) with("hybrid", {2, 2}, stage, [](StepCase&) {});
  with("secondary shards", {4, 1, 2}, 3, [](StepCase&) {});
  for (const int stage : {0, 1, 2, 3})
    with("two axes", {.shards = 2, .tensor = 2}, stage, [](StepCase&) {});
  with("heads that two ranks share, whole norms", {.tensor = 4}, 0, [](StepCase& c) {
    c.built.model.split.sequence = false;
    rebuild(c, {}, {});
  });
  with("one micro-batch", {2, 1}, 2, [](StepCase& c) { c.options.micro_batches = 1; });
  with("whole gradients summed", {2, 1}, 1,
       [](StepCase& c) { c.options.state.reduce_scatter = false; });
  with("one rank, optimizer on the host", {1, 1}, 2,
       [](StepCase& c) { c.options.state.optimizer_tier = Tier::kHost; });
  with("half of the optimizer on the host", {2, 1}, 3, [](StepCase& c) {
    c.options.state.optimizer_tier = Tier::kHost;
    c.options.state.optimizer_ratio = 0.5;
  });
  with("prefetch and reuse", {2, 1}, 3, [](StepCase& c) {
    c.options.prefetch_elements = 5000;
    c.options.reuse_distance = 10'000;
  });
  for (const int stage : {0, 2})
    with("bf16, gradients in fp32 sent in bf16", {2, 1}, stage, [](StepCase& c) {
      rebuild(c, {DType::kBF16, DType::kF32}, {});
      c.options.state.communication = DType::kBF16;
      if (c.options.state.zero_stage > 0) c.options.state.optimizer_tier = Tier::kHost;
    });
  with("full recompute, inputs on the host", {2, 1}, 1, [](StepCase& c) {
    RecomputeOptions recompute;
    recompute.policy.level = RecomputeLevel::kFull;
    rebuild(c, {}, recompute);
    c.options.offload_activations = true;
  });
  return all;
}

bool has_two_axes(const StepCase& step_case) {
  return step_case.mesh.tensor > 1 && step_case.mesh.data() > 1;
}

/// Checks that a fault's message names its rank. With two axes, ranks have different programs.
void check_fault_text(const StepCase& step_case, const std::string& fault) {
  if (!has_two_axes(step_case)) return;
  INFO(fault);
  CHECK(names_place_and_reason(fault));
}

const std::vector<MutatedCase>& mutated_cases() {
  static const std::vector<MutatedCase> all = [] {
    std::vector<MutatedCase> made = special_cases();
    for (const int stage : {0, 1, 2, 3})
      for (const auto& [parameters, optimizer] : tiers_of(stage))
        for (const bool overlap : {true, false}) {
          MutatedCase one{cat("stage ", stage, ", parameters on ", tier_name(parameters),
                              ", optimizer on ", tier_name(optimizer), overlap ? ", overlap" : ""),
                          base_step_case()};
          one.step_case.options.overlap = overlap;
          one.step_case.options.state.zero_stage = stage;
          one.step_case.options.state.parameter_tier = parameters;
          one.step_case.options.state.optimizer_tier = optimizer;
          made.push_back(std::move(one));
        }
    return made;
  }();
  return all;
}

// Reasons why a mutant may be equivalent.

/// A mutation is a change of one instruction of a program, or of one of its waits.
struct Mutation {
  const StepCase& step_case;
  const Program& program;
  const Instr& instr;
  /// The wait that was removed or moved to an earlier instruction; -1 if the change is another.
  InstrId wait = -1;
  std::string change = "";
  /// The mutant, with the changed instruction at the same position; null if the instruction was
  /// removed.
  const Program* mutant = nullptr;

  const Instr& changed() const {
    return mutant->instrs[static_cast<size_t>(&instr - program.instrs.data())];
  }
};

/// A reason why an unnoticed mutant is equivalent to the original program.
struct EquivalenceReason {
  std::string text;
  std::function<bool(const Mutation&)> holds;
  /// The reason applies to so few mutants that a sample of the changes may contain none of them.
  bool rare = false;
  int mutants = 0;
};

/// Counts the mutant under the first reason that applies; returns false if none does.
bool count_explained(std::vector<EquivalenceReason>& reasons, const Mutation& mutation) {
  for (EquivalenceReason& reason : reasons) {
    if (!reason.holds(mutation)) continue;
    ++reason.mutants;
    return true;
  }
  return false;
}

void require_all_found(const std::vector<EquivalenceReason>& reasons) {
  for (const EquivalenceReason& reason : reasons) {
    INFO("a reason that no mutant has any more: " << reason.text);
    CHECK((reason.mutants > 0 || reason.rare));
  }
}

// Waits.

bool is_bucket(const Program& program, const BufferRange& range) {
  return program.at(range.buffer).category == Category::kBuckets;
}

bool alternates(const Instr& a, const Instr& b) {
  return (a.lane == Lane::kCompute && is_communication(b.lane)) ||
         (is_communication(a.lane) && b.lane == Lane::kCompute);
}

TEST_CASE("each wait that is left out or comes too early is noticed, or no order is lost") {
  std::vector<EquivalenceReason> reasons{
      {"without overlap, computation and communication take turns even where they share nothing",
       [](const Mutation& m) {
         return !m.step_case.options.overlap && alternates(m.instr, m.program.instr(m.wait));
       }},
      {"a bucket begins to fill when the one before the last is empty, which saves memory alone",
       [](const Mutation& m) {
         return m.instr.lane == Lane::kCompute &&
                std::any_of(m.instr.writes.begin(), m.instr.writes.end(),
                            [&](const BufferRange& range) { return is_bucket(m.program, range); });
       }},
      {"what a layer needs comes when compute is close to it, which saves memory alone",
       [](const Mutation& m) {
         return m.instr.lane != Lane::kCompute && m.program.instr(m.wait).lane == Lane::kCompute &&
                !m.instr.if_finite && !m.program.at(m.instr.writes[0].buffer).persistent_kind;
       }},
  };
  size_t noticed = 0;
  std::mt19937_64 random(29);
  for (const MutatedCase& c : mutated_cases()) {
    const std::vector<StepProgram> steps = c.step_case.steps();
    REQUIRE(check_programs(programs_of(steps)) == std::vector<std::string>{});
    for (const Program* good : {&steps.back().program}) {
      const auto pairs = conflicts(*good);
      REQUIRE(unordered_conflicts(*good, pairs).empty());
      REQUIRE(reads_only_own_bytes(*good));
      Program mutant = *good;
      std::vector<const Program*> programs = programs_of(steps);
      INFO(c.name << "\n" << program_text(*good));
      const auto check_mutant = [&](size_t at, InstrId wait) {
        if (random() % sweep_stride(1) != 0) return;
        const bool refused = !check(mutant).empty();
        INFO("instruction " << at << ", wait " << wait);
        noticed += refused ? 1 : 0;
        // A program checked alone has no rank to name. Checking it together with the others'
        // programs takes several times as long, so only some faults are checked for the rank's
        // name.
        if (refused && has_two_axes(c.step_case) && noticed % 16 == 0) {
          programs.back() = &mutant;
          check_fault_text(c.step_case, check_programs(programs).front());
        }
        if (refused) return;
        REQUIRE(unordered_conflicts(mutant, pairs).empty());
        REQUIRE(count_explained(reasons, {c.step_case, *good, good->instrs[at], wait}));
      };
      for (size_t i = 0; i < good->instrs.size(); ++i) {
        const std::vector<InstrId>& waits = good->instrs[i].waits;
        for (size_t w = 0; w < waits.size(); ++w) {
          auto& changed = mutant.instrs[i].waits;
          changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(w));
          check_mutant(i, waits[w]);
          changed = waits;
          // The wait is replaced by one for the previous instruction on the same lane.
          InstrId earlier = waits[w] - 1;
          while (earlier >= 0 && good->instr(earlier).lane != good->instr(waits[w]).lane) --earlier;
          if (earlier < 0) continue;
          changed[w] = earlier;
          check_mutant(i, waits[w]);
          changed = waits;
        }
      }
    }
  }
  CHECK(noticed > static_cast<size_t>(sweep_rounds(1000)));
  if (sweeps_all()) require_all_found(reasons);
}

// Offsets in arenas: another buffer may use the bytes of a buffer that is freed too early.

TEST_CASE("a buffer freed early or placed on another is noticed, or their lifetimes are disjoint",
          "[long]") {
  size_t noticed = 0;
  size_t apart = 0;
  for (const MutatedCase& c : mutated_cases()) {
    const StepProgram step = c.step_case.last_step();
    const Program& good = step.program;
    INFO(c.name << "\n" << program_text(good));
    Program mutant = good;
    for (size_t a = 0; a < good.buffers.size(); ++a)
      for (size_t b = 0; b < good.buffers.size(); ++b) {
        const Buffer& moved = good.buffers[a];
        const Buffer& other = good.buffers[b];
        if (a == b || moved.persistent_kind || other.persistent_kind ||
            arena_of(moved) != arena_of(other) || other.arena_offset < 0 ||
            moved.arena_offset < 0 || moved.bytes == 0 ||
            (a + 3 * b) % (c.step_case.mesh.tensor > 1 ? 101 : 23) !=
                0)  // a sample: there are many pairs
          continue;
        mutant.buffers[a].arena_offset = other.arena_offset;
        const bool inside =
            other.arena_offset + moved.bytes <= good.bytes_of_arena(arena_of(moved));
        const bool refused = !check(mutant).empty();
        INFO(moved.name << " on " << other.name);
        REQUIRE((refused || inside));
        (refused ? noticed : apart) += 1;
        if (!refused) {
          REQUIRE(reads_only_own_bytes(mutant));
          REQUIRE(unordered_conflicts(mutant, conflicts(mutant)).empty());
        }
        mutant.buffers[a].arena_offset = moved.arena_offset;
      }
  }
  CHECK(noticed > 500);
  CHECK(apart > 500);
}

// Instructions, and the ranges that they read and write.

/// A change of one instruction. `apply` returns false if the change is impossible for it.
struct InstrChange {
  std::string name;
  std::function<bool(const Program&, Instr&)> apply;
};

/// Moves a range to the next offset in its buffer that is a multiple of its size, or the previous
/// one.
bool move(const Program& program, BufferRange& range) {
  const int64_t room = program.at(range.buffer).bytes;
  if (range.bytes == 0) return false;
  if (range.offset + 2 * range.bytes <= room)
    range.offset += range.bytes;
  else if (range.offset >= range.bytes)
    range.offset -= range.bytes;
  else
    return false;
  return true;
}

/// Moves a range to the same offset in the next buffer of its kind.
bool rename(const Program& program, BufferRange& range) {
  const auto count = static_cast<BufferId>(program.buffers.size());
  const Buffer& buffer = program.at(range.buffer);
  for (BufferId step = 1; step < count; ++step) {
    const BufferId other = (range.buffer + step) % count;
    const Buffer& candidate = program.at(other);
    if (candidate.bytes < range.offset + range.bytes ||
        candidate.format.dtype != buffer.format.dtype || candidate.tier != buffer.tier ||
        candidate.category != buffer.category ||
        (!candidate.persistent_kind && candidate.arena_offset < 0))
      continue;
    range.buffer = other;
    return true;
  }
  return false;
}

bool halve_range(const Program&, BufferRange& range) {
  if (range.bytes < 8) return false;
  range.bytes /= 2;
  return true;
}

using RangeChange = bool (*)(const Program&, BufferRange&);
constexpr std::pair<const char*, RangeChange> kRangeChanges[] = {
    {"moved", move}, {"of another buffer", rename}, {"halved", halve_range}};

/// Changes a range that is both read and written, in both lists.
bool change_both(const Program& program, Instr& instr, size_t read, size_t write,
                 RangeChange change) {
  if (!(instr.reads[read] == instr.writes[write]) || !change(program, instr.reads[read]))
    return false;
  instr.writes[write] = instr.reads[read];
  return true;
}

/// Returns whether a range holds values inside a list, whose offsets are planned by the graph.
bool is_scratch(const Program& program, const BufferRange& range) {
  const std::string& name = program.at(range.buffer).name;
  return name.starts_with("scratch.") || name.starts_with("saved.");
}

bool swap_ranges(std::vector<BufferRange>& ranges, size_t k) {
  if (ranges[k] == ranges[k + 1]) return false;
  std::swap(ranges[k], ranges[k + 1]);
  return true;
}

std::span<const Binding> bindings_of(const Instr& instr) {
  return instr.runs_ops() ? std::span(instr.ops().bindings) : std::span<const Binding>();
}

void add_swaps(const Program& program, const Instr& instr, std::vector<InstrChange>& all) {
  for (size_t k = 0; k + 1 < instr.reads.size(); ++k)
    all.push_back({cat("reads ", k, " and ", k + 1, " swapped"),
                   [k](const Program&, Instr& i) { return swap_ranges(i.reads, k); }});
  for (size_t k = 0; k + 1 < instr.writes.size(); ++k)
    all.push_back({cat("writes ", k, " and ", k + 1, " swapped"),
                   [k](const Program&, Instr& i) { return swap_ranges(i.writes, k); }});
  for (size_t k = 0; k + 1 < bindings_of(instr).size(); ++k) {
    // For values inside a list, one offset is as good as another.
    if (is_scratch(program, bindings_of(instr)[k].range) &&
        is_scratch(program, bindings_of(instr)[k + 1].range))
      continue;
    all.push_back({cat("bindings ", k, " and ", k + 1, " swapped"), [k](const Program&, Instr& i) {
                     auto& bindings = i.ops().bindings;
                     if (bindings[k].range == bindings[k + 1].range) return false;
                     std::swap(bindings[k].range, bindings[k + 1].range);
                     return true;
                   }});
  }
}

/// Adds changes of the operations, or of the graph, that a list's instruction runs.
void add_operations(const Instr& instr, std::vector<InstrChange>& all) {
  if (!instr.runs_ops()) return;
  const auto by = [&](const char* name, int32_t LayerOps::*member, int32_t step) {
    all.push_back({name, [=](const Program&, Instr& i) {
                     i.ops().*member += step;
                     return i.ops().*member >= 0;
                   }});
  };
  by("one operation later", &LayerOps::first_op, 1);
  by("one operation earlier", &LayerOps::first_op, -1);
  by("one operation more", &LayerOps::op_count, 1);
  by("one operation fewer", &LayerOps::op_count, -1);
  by("of the graph before", &LayerOps::graph, -1);
}

void add_range_changes(const Program& program, const Instr& instr, std::vector<InstrChange>& all) {
  for (size_t k = 0; k < instr.reads.size(); ++k) {
    all.push_back({cat("read ", k, " left out"), [k](const Program&, Instr& i) {
                     i.reads.erase(i.reads.begin() + static_cast<std::ptrdiff_t>(k));
                     return true;
                   }});
    for (const auto& [name, change] : kRangeChanges)
      all.push_back({cat("read ", k, " ", name), [k, change = change](const Program& p, Instr& i) {
                       return change(p, i.reads[k]);
                     }});
  }
  for (size_t k = 0; k < instr.writes.size(); ++k) {
    all.push_back({cat("write ", k, " left out"), [k](const Program&, Instr& i) {
                     i.writes.erase(i.writes.begin() + static_cast<std::ptrdiff_t>(k));
                     return true;
                   }});
    for (const auto& [name, change] : kRangeChanges) {
      all.push_back({cat("write ", k, " ", name), [k, change = change](const Program& p, Instr& i) {
                       return change(p, i.writes[k]);
                     }});
      for (size_t r = 0; r < instr.reads.size(); ++r)
        all.push_back({cat("write ", k, " and its read ", name),
                       [k, r, change = change](const Program& p, Instr& i) {
                         return change_both(p, i, r, k, change);
                       }});
    }
  }
  for (size_t k = 0; k < bindings_of(instr).size(); ++k) {
    if (is_scratch(program, bindings_of(instr)[k].range)) continue;
    for (const auto& [name, change] : kRangeChanges)
      all.push_back(
          {cat("binding ", k, " ", name), [k, change = change](const Program& p, Instr& i) {
             return change(p, i.ops().bindings[k].range);
           }});
  }
}

void add_kinds(const Program& program, const Instr& instr, std::vector<InstrChange>& all) {
  for (size_t kind = 0; kind < kInstrKinds; ++kind)
    if (static_cast<InstrKind>(kind) != instr.kind)
      all.push_back(
          {cat("as ", instr_name(static_cast<InstrKind>(kind))), [kind](const Program&, Instr& i) {
             i.kind = static_cast<InstrKind>(kind);
             return true;
           }});
  const auto groups = static_cast<GroupId>(program.groups.size());
  for (GroupId group = kNoGroup; group < groups; ++group)
    if (group != instr.group())
      all.push_back({cat("in group ", group), [=](const Program&, Instr& i) {
                       if (group == kNoGroup)
                         i.detail = {};
                       else if (i.is_collective())
                         i.communication().group = group;
                       else
                         i.detail = Communication{group, DType::kF32};
                       return true;
                     }});
  for (int lane = 0; lane < lane_count(program); ++lane)
    if (static_cast<Lane>(lane) != instr.lane)
      all.push_back({cat("on lane ", lane), [=](const Program&, Instr& i) {
                       i.lane = static_cast<Lane>(lane);
                       return true;
                     }});
}

void add_flags(const Instr& instr, std::vector<InstrChange>& all) {
  const auto flag = [&](const char* name, const auto& of) {
    all.push_back({cat("other ", name), [of](const Program&, Instr& i) {
                     of(i) = !of(i);
                     return true;
                   }});
  };
  flag("if_finite", [](Instr& i) -> bool& { return i.if_finite; });
  if (instr.runs_ops()) flag("accumulate", [](Instr& i) -> bool& { return i.ops().accumulate; });
  if (instr.is_collective())
    all.push_back({"other dtype", [](const Program&, Instr& i) {
                     DType& dtype = i.communication().dtype;
                     dtype = dtype == DType::kBF16 ? DType::kF32 : DType::kBF16;
                     return true;
                   }});
  if (instr.kind == InstrKind::kLoadBatch)
    all.push_back({"another micro-batch", [](const Program&, Instr& i) {
                     i.micro_batch = 1 - i.micro_batch;
                     return true;
                   }});
  if (instr.kind != InstrKind::kUpdate) return;
  flag("decay", [](Instr& i) -> bool& { return i.update().decay; });
  flag("writes_working_copy", [](Instr& i) -> bool& { return i.update().writes_working_copy; });
  all.push_back({"another element", [](const Program&, Instr& i) {
                   i.update().first_element += 1;
                   return true;
                 }});
}

std::vector<InstrChange> changes_of(const Program& program, const Instr& instr) {
  std::vector<InstrChange> all;
  add_range_changes(program, instr, all);
  add_swaps(program, instr, all);
  add_operations(instr, all);
  add_kinds(program, instr, all);
  add_flags(instr, all);
  return all;
}

bool is_decayed(const Instr& instr) {
  return instr.kind == InstrKind::kUpdate && instr.update().decay;
}

/// Returns a text that instructions share if mutants of them should have the same fate: kind,
/// position in the step, tiers and categories of buffers.
std::string kind_text_of(const Program& program, const Instr& instr) {
  std::string text =
      cat(instr_name(instr.kind), " ", static_cast<int>(instr.lane), " ",
          static_cast<int>(instr.group()), " ", instr.if_finite,
          instr.runs_ops() && instr.ops().accumulate, is_decayed(instr), " ", instr.layer);
  for (const auto* ranges : {&instr.reads, &instr.writes})
    for (const BufferRange& range : *ranges) {
      const Buffer& buffer = program.at(range.buffer);
      text += cat(" ", category_name(buffer.category), tier_name(buffer.tier),
                  buffer.persistent_kind.has_value());
    }
  return text;
}

/// Returns the positions of the first and the last instruction of each sort.
std::set<size_t> choose_positions(const Program& program) {
  std::map<std::string, std::pair<size_t, size_t>> ends;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const auto [found, added] = ends.try_emplace(kind_text_of(program, program.instrs[i]), i, i);
    found->second.second = i;
  }
  std::set<size_t> all;
  for (const auto& [sort, pair] : ends) all.insert({pair.first, pair.second});
  return all;
}

/// Returns the position in `other` of the collective that is at `at` in `program`.
size_t corresponding_instr(const Program& other, const Program& program, size_t at) {
  const auto is_collective = [](const Instr& instr) { return instr.is_collective(); };
  const auto begin = program.instrs.begin();
  auto before = std::count_if(begin, begin + static_cast<std::ptrdiff_t>(at), is_collective);
  for (size_t i = 0;; ++i)
    if (is_collective(other.instrs.at(i)) && before-- == 0) return i;
}

/// Returns the rank whose program is changed: one that holds a part of every sharded unit.
size_t changed_rank(const std::vector<StepProgram>& steps) {
  return std::min<size_t>(1, steps.size() - 1);
}

/// Returns the programs of all ranks, where one rank has the changed program, or with `all` every
/// rank.
std::optional<std::vector<StepProgram>> changed(
    const std::vector<StepProgram>& good, size_t at, bool all,
    const std::function<bool(Program&, size_t)>& change) {
  std::vector<StepProgram> steps = good;
  const size_t rank = changed_rank(good);
  for (size_t r = 0; r < steps.size(); ++r) {
    if (!all && r != rank) continue;
    const size_t there = all ? corresponding_instr(good[r].program, good[rank].program, at) : at;
    if (!change(steps[r].program, there)) return std::nullopt;
  }
  return steps;
}

// Proofs that a change of an instruction does not change results.

/// Returns the bytes that ranges cover, as sorted, disjoint and non-adjacent ranges of whole words.
std::vector<BufferRange> stretches(std::vector<BufferRange> ranges,
                                   const std::vector<BufferRange>& more = {}) {
  ranges.insert(ranges.end(), more.begin(), more.end());
  std::erase_if(ranges, [](const BufferRange& range) { return range.bytes == 0; });
  std::sort(ranges.begin(), ranges.end(), [](const BufferRange& a, const BufferRange& b) {
    return std::pair(a.buffer, a.offset) < std::pair(b.buffer, b.offset);
  });
  std::vector<BufferRange> all;
  for (BufferRange range : ranges) {
    range.bytes = (range.bytes + 3) / 4 * 4;
    if (all.empty() || all.back().buffer != range.buffer ||
        all.back().offset + all.back().bytes < range.offset)
      all.push_back(range);
    else
      all.back().bytes = std::max(all.back().bytes, range.offset + range.bytes - all.back().offset);
  }
  return all;
}

bool are_among(const std::vector<BufferRange>& some, const std::vector<BufferRange>& all) {
  return std::all_of(some.begin(), some.end(), [&](const BufferRange& inner) {
    return std::any_of(all.begin(), all.end(), [&](const BufferRange& outer) {
      return inner.buffer == outer.buffer && inner.offset >= outer.offset &&
             inner.offset + inner.bytes <= outer.offset + outer.bytes;
    });
  });
}

bool accesses_the_same_bytes(const Mutation& m) {
  if (m.mutant == nullptr || !m.instr.runs_ops() || !m.changed().runs_ops()) return false;
  const Instr& other = m.changed();
  const auto same_place = [](const Binding& x, const Binding& y) { return x.range == y.range; };
  return other.kind == m.instr.kind && other.lane == m.instr.lane &&
         other.ops().accumulate == m.instr.ops().accumulate &&
         other.if_finite == m.instr.if_finite &&
         std::equal(other.ops().bindings.begin(), other.ops().bindings.end(),
                    m.instr.ops().bindings.begin(), same_place) &&
         are_among(stretches(other.writes), stretches(m.instr.writes)) &&
         stretches(other.reads, other.writes) == stretches(m.instr.reads, m.instr.writes);
}

bool computes_no_gradient(const Mutation& m) {
  if (m.change != "other accumulate") return false;
  const LayerGraph& graph =
      m.step_case.built.model.graphs[static_cast<size_t>(m.instr.ops().graph)];
  const std::span<const Op> ops = ops_of(graph, m.instr);
  return std::none_of(ops.begin(), ops.end(), [&](const Op& op) {
    return std::any_of(op.out.begin(), op.out.end(),
                       [&](ValueId id) { return graph.at(id).role == ValueRole::kParamGrad; });
  });
}

/// Returns whether a repeated instruction computes the same again, because it does not read what it
/// writes.
bool repeats_the_same_result(const Mutation& m) {
  if (m.change != "twice" || m.instr.runs_ops() || m.instr.kind == InstrKind::kAccumulate)
    return false;
  if (m.instr.kind == InstrKind::kAllGather) return true;  // it writes its own part unchanged
  for (const BufferRange& read : m.instr.reads)
    for (const BufferRange& write : m.instr.writes)
      if (overlaps(read, write)) return false;
  return true;
}

bool sums_in_another_order(const Mutation& m) {
  return m.instr.kind == InstrKind::kGradientNorm && m.change.starts_with("reads ") &&
         m.change.ends_with(" swapped");
}

bool gathers_any_bytes(const Mutation& m) {
  return m.instr.kind == InstrKind::kAllGather && m.change == "other dtype";
}

/// Returns whether a smaller clear is harmless: the checker has proved that everything that is read
/// was written before, so the bytes it no longer zeroes are overwritten first.
bool zeroes_overwritten_bytes(const Mutation& m) {
  return (m.instr.kind == InstrKind::kBegin || m.instr.kind == InstrKind::kClear) &&
         m.change.starts_with("write ") &&
         (m.change.ends_with(" left out") || m.change.ends_with(" halved"));
}

bool copies_persistent_bytes(const Mutation& m) {
  const bool moves = m.instr.kind == InstrKind::kAllGather || m.instr.kind == InstrKind::kCopy;
  const auto persists = [&](const BufferRange& range) {
    return m.program.at(range.buffer).persistent_kind;
  };
  return m.change == "other if_finite" && moves &&
         std::all_of(m.instr.reads.begin(), m.instr.reads.end(), persists) &&
         std::all_of(m.instr.writes.begin(), m.instr.writes.end(), persists);
}

/// Returns whether the mutant, in a step without update, writes back what is there already: a copy
/// that was read from there in this step.
bool writes_back_same_bytes(const Mutation& m) {
  if (m.change != "other if_finite" || m.instr.kind != InstrKind::kCopy) return false;
  const BufferRange& from = m.instr.reads[0];
  const auto place = [&](const BufferRange& range) {
    const Buffer& buffer = m.program.at(range.buffer);
    return std::pair(arena_of(buffer), buffer.arena_offset + range.offset);
  };
  for (const Instr* before = &m.instr; before-- != m.program.instrs.data();) {
    if (before->if_finite) continue;
    for (const BufferRange& written : before->writes)
      if (share_bytes(m.program, written, from))
        return before->kind == InstrKind::kCopy && before->reads[0] == m.instr.writes[0] &&
               place(written) == place(from) && written.bytes == from.bytes;
  }
  return false;
}

bool zeroes_in_another_order(const Mutation& m) {
  return m.instr.kind == InstrKind::kClear && m.change.starts_with("write") &&
         m.change.ends_with(" swapped");
}

bool fetches_only_for_updates(const Mutation& m) {
  const auto of_update = [&](const BufferRange& written) {
    return !m.program.at(written.buffer).persistent_kind &&
           std::all_of(m.program.instrs.begin(), m.program.instrs.end(), [&](const Instr& reader) {
             return reader.if_finite || std::none_of(reader.reads.begin(), reader.reads.end(),
                                                     [&](const BufferRange& range) {
                                                       return range.buffer == written.buffer;
                                                     });
           });
  };
  return m.change == "other if_finite" &&
         std::all_of(m.instr.writes.begin(), m.instr.writes.end(), of_update);
}

/// Returns the range of a unit's elements in a gradient buffer: all of them, or this rank's part.
std::optional<UnitRange> gradient_elements(const Mutation& m, const BufferRange& range, UnitId id) {
  const Category category = m.program.at(range.buffer).category;
  if (category != Category::kGradients && category != Category::kBuckets) return std::nullopt;
  StateOptions state = m.step_case.options.state;
  state.data = m.program.place_in_group(group_along(m.program, "data"));
  const Sharding sharding = shard_units(m.step_case.built.partition, state);
  const int64_t elements = element_count(m.program, range);
  const int64_t begin = elements == sharding.padded_elements(id) ? 0 : state.data.index * elements;
  if (elements != sharding.padded_elements(id) &&
      elements * state.data.count != sharding.padded_elements(id))
    return std::nullopt;
  return UnitRange{begin, begin + elements};
}

/// Returns whether two names mean the same list: all of the embedding's backward list is weight
/// gradients, and all of the head's is input gradients (its matrix gets its gradient in forward).
bool names_the_same_list(const Mutation& m) {
  if (m.instr.kind != InstrKind::kBackward) return false;
  const LayerGraph& graph =
      m.step_case.built.model.graphs[static_cast<size_t>(m.instr.ops().graph)];
  return (m.change == cat("as ", instr_name(InstrKind::kWeightGrad)) && graph.input_grad.empty()) ||
         (m.change == cat("as ", instr_name(InstrKind::kInputGrad)) && graph.weight_grad.empty());
}

/// Returns whether this rank's part begins past the unit's end, where neither norm nor update read.
bool is_past_the_unit_end(const Mutation& m) {
  const bool moves = m.instr.kind == InstrKind::kCopy || m.instr.kind == InstrKind::kAccumulate;
  const bool twice = m.change == "twice";
  if (!moves || m.instr.unit < 0 || (m.mutant == nullptr && !twice)) return false;
  const auto elements = gradient_elements(m, m.instr.reads[0], m.instr.unit);
  return elements &&
         elements->begin >= m.step_case.built.partition.unit(m.instr.unit).padded_numel &&
         (twice ||
          (m.changed().writes == m.instr.writes && m.changed().if_finite == m.instr.if_finite));
}

/// Returns whether a range of what stage 3 gathers lies past the unit's end: a rank's shard, a
/// node's secondary shard, or a range of a whole copy.
bool is_padding_of_gathered(const Mutation& m, const BufferRange& part) {
  if (m.instr.unit < 0) return false;
  const std::string& name = m.program.at(part.buffer).name;
  const int64_t elements = element_count(m.program, part);
  const auto index = [&](const std::string& axes) {
    return m.program.place_in_group(group_along(m.program, axes)).index;
  };
  int64_t begin = -1;
  if (name == buffer_names::kParameters) begin = index("data") * elements;
  if (name == buffer_names::kSecondary)
    begin = index(cat("data/", m.step_case.mesh.secondary_shards)) * elements;
  if (name.starts_with("gathered.")) begin = part.offset * elements / part.bytes;
  return begin >= m.step_case.built.partition.unit(m.instr.unit).padded_numel;
}

/// Returns whether a range of the parameters lies past its unit's end.
bool is_padding_of_parameters(const Mutation& m, const BufferRange& part) {
  StateOptions state = m.step_case.options.state;
  if (state.zero_stage == 3) return is_padding_of_gathered(m, part);
  if (m.program.at(part.buffer).name != buffer_names::kParameters) return false;
  state.data = m.program.place_in_group(group_along(m.program, "data"));
  const Sharding sharding = shard_units(m.step_case.built.partition, state);
  std::vector<int64_t> whole;
  for (const Unit& unit : m.step_case.built.partition.units)
    whole.push_back(sharding.padded_elements(unit.id));
  const FlatLayout layout = make_flat_layout(whole, FlatOrder::kForward);
  const int64_t begin = part.offset / dtype_bytes(m.program.at(part.buffer).format.dtype);
  const auto behind = [&](const Unit& unit) {
    const auto next = static_cast<size_t>(unit.id) + 1;
    const int64_t end = next < layout.offset.size() ? layout.offset[next] : layout.total_elements;
    return layout.at(unit.id) + unit.padded_numel <= begin && begin < end;
  };
  const std::vector<Unit>& units = m.step_case.built.partition.units;
  return std::any_of(units.begin(), units.end(), behind);
}

/// Returns whether other ranks receive changed bytes only where neither lists nor updates read.
bool receives_other_padding(const Mutation& m) {
  const bool moves = m.instr.kind == InstrKind::kAllGather || m.instr.kind == InstrKind::kCopy;
  if (!moves || !m.change.starts_with("read ") || m.mutant == nullptr) return false;
  const std::vector<BufferRange>& reads = m.changed().reads;
  if (reads.size() != m.instr.reads.size()) return false;
  for (size_t i = 0; i < reads.size(); ++i)
    if (reads[i] != m.instr.reads[i] && !is_padding_of_parameters(m, m.instr.reads[i]))
      return false;
  return true;
}

/// Returns the unit whose sum of squares is written to a slot of the norm. Each gradient
/// norm range of a unit (slices that equally many tensor ranks hold) has a slot for each rank of a
/// copy of the model.
UnitId unit_of_slot(const Mutation& m, const BufferRange& slot) {
  std::vector<UnitId> units;
  for (const Unit& unit : m.step_case.built.partition.units)
    for (size_t s = 0; s < unit.slices.size(); ++s) {
      const auto copies = [&](size_t i) {
        return m.step_case.built.model.tensor(unit.slices[i].tensor).copies;
      };
      if (s == 0 || copies(s) != copies(s - 1)) units.push_back(unit.id);
    }
  const int64_t ranks = m.step_case.mesh.shards * m.step_case.mesh.tensor;
  return units.at(static_cast<size_t>(slot.offset / dtype_bytes(DType::kF64) / ranks));
}

/// Returns whether the bytes that the mutant no longer covers lie between tensors, where gradients
/// are 0.
bool leaves_out_padding(const Mutation& m) {
  const bool half = m.change.ends_with(" halved");
  if (!half && m.change != "left out") return false;
  const bool norm = m.instr.kind == InstrKind::kGradientNorm;
  if (!norm && (m.instr.unit < 0 || m.instr.runs_ops() || m.instr.writes.size() != 1)) return false;
  if (norm && !half) return false;
  size_t which = 0;
  while (half && m.changed().reads[which] == m.instr.reads[which])
    if (++which == m.instr.reads.size()) return false;
  const UnitId id = norm ? unit_of_slot(m, m.instr.writes[which]) : m.instr.unit;
  const auto elements = gradient_elements(m, m.instr.reads[which], id);
  if (!elements) return false;
  const int64_t begin = half ? (elements->begin + elements->end) / 2 : elements->begin;
  const Unit& unit = m.step_case.built.partition.unit(id);
  const int64_t end = std::min(elements->end, unit.padded_numel);
  return begin >= end || slices_in(unit, begin, end).empty();
}

/// Returns whether the sum of losses leaves out only flags of the training loop. A step program
/// alone sets no flags, so these are zeros.
bool leaves_out_flags(const Mutation& m) {
  if (m.instr.kind != InstrKind::kAllReduce || !m.change.ends_with(" halved")) return false;
  const BufferRange& range = m.changed().writes.front();
  return m.program.at(range.buffer).persistent_kind == PersistentKind::kLoss &&
         range.bytes >= kLossSums * dtype_bytes(DType::kF64);
}

/// Returns whether an instruction runs on another lane. The checker has proved that it still runs
/// after what it reads and before what reads it.
bool runs_on_another_lane(const Mutation& m) {
  return m.change.starts_with("on lane ") && !m.instr.communicates();
}

/// Returns whether all that the mutant adds, elsewhere or a second time, lies between tensors:
/// zeros.
bool adds_only_padding(const Mutation& m) {
  const bool adds_again = m.change == "twice";
  if (!m.change.ends_with(" moved") && !adds_again) return false;
  if (m.instr.unit < 0 || m.instr.reads.size() != 1) return false;
  const bool adds = m.instr.kind == InstrKind::kAccumulate || m.instr.kind == InstrKind::kAllReduce;
  const auto elements = gradient_elements(m, m.instr.reads[0], m.instr.unit);
  if (!adds || !elements) return false;
  const Unit& unit = m.step_case.built.partition.unit(m.instr.unit);
  const int64_t end = std::min(elements->end, unit.padded_numel);
  return elements->begin >= end || slices_in(unit, elements->begin, end).empty();
}

TEST_CASE("each change of an instruction or of what it reads or writes is noticed, or equivalent",
          "[long]") {
  std::vector<EquivalenceReason> reasons{
      {"the list computes no gradients that it could add to", computes_no_gradient},
      {"another of the list's ranges says the same bytes, or it reads or writes, with the waits "
       "that this needs, what it says one of alone",
       accesses_the_same_bytes},
      {"an unchanged range is copied again", copies_persistent_bytes},
      {"the instruction runs twice on inputs that it does not change", repeats_the_same_result},
      {"fetches what only updates read, and no update runs", fetches_only_for_updates, true},
      {"only the zeros between gradients are left out", leaves_out_padding},
      {"only flags are left out of the sum of losses", leaves_out_flags, true},
      {"an instruction runs on another lane, in the same order", runs_on_another_lane, true},
      {"the moved part begins past the unit's end, and nothing reads it", is_past_the_unit_end,
       true},
      {"a layer with one kind of gradients has one list under two names", names_the_same_list,
       true},
      {"ranks receive other bytes only past the unit's end", receives_other_padding, true},
      {"only the zeros between gradients are added elsewhere, or twice", adds_only_padding, true},
      {"sums of squares are added in another order", sums_in_another_order},
      {"a gather brings bytes, whatever they are", gathers_any_bytes, true},
      {"what it no longer zeroes is written before it is read", zeroes_overwritten_bytes, true},
      {"without an update it writes back what was there", writes_back_same_bytes, true},
      {"padding is zeroed in another order", zeroes_in_another_order},
  };
  size_t refused = 0;
  size_t found = 0;
  size_t turn = 0;
  for (const MutatedCase& c : mutated_cases()) {
    if (!c.step_case.options.overlap) continue;  // results do not depend on overlap
    Mutants mutants(c, 1200 + turn);
    const Program& program = mutants.good()[changed_rank(mutants.good())].program;
    INFO(c.name << "\n" << program_text(program));
    const auto check_mutant = [&](size_t at, bool all, const InstrChange& change,
                                  const std::function<bool(Program&, size_t)>& apply) {
      const auto steps = changed(mutants.good(), at, all, apply);
      if (!steps) return;
      INFO("instruction " << at << ", " << change.name << (all ? " on all ranks" : ""));
      const Program& mutant = (*steps)[changed_rank(*steps)].program;
      const bool same_length = mutant.instrs.size() == program.instrs.size();
      if (const auto faults = mutants.faults(*steps); !faults.empty()) {
        ++refused;
        check_fault_text(c.step_case, faults.front());
        return;
      }
      // Every mutant that passes the checker runs; it needs a reason exactly if its results do not
      // change.
      if (mutants.compute_other_results(*steps)) {
        ++found;
      } else {
        CHECK(count_explained(reasons, {c.step_case, program, program.instrs[at], -1, change.name,
                                        same_length ? &mutant : nullptr}));
      }
    };
    for (const size_t at : choose_positions(program)) {
      const Instr& instr = program.instrs[at];
      for (const bool all : {false, true}) {
        if (all && (!instr.is_collective() || mutants.good().size() == 1)) continue;
        if (c.step_case.mesh.tensor == 1 || at % 4 == 0)
          check_mutant(at, all, {"left out", {}}, [](Program& p, size_t i) {
            p = without_instruction(p, i);
            return true;
          });
        // Most instructions are alike in all cases, so each case makes only some of the changes.
        if (++turn % 3 == 0)
          check_mutant(at, all, {"twice", {}}, [](Program& p, size_t i) {
            p = with_instruction_twice(p, i);
            return true;
          });
        for (const InstrChange& change : changes_of(program, instr))
          if (++turn % sample_stride_of(c.step_case) == 0)
            check_mutant(at, all, change,
                         [&](Program& p, size_t i) { return change.apply(p, p.instrs[i]); });
      }
    }
  }
  CHECK(refused > 1000);
  CHECK(found > 100);
  require_all_found(reasons);
}

// Disk requests that start early.

size_t last_disk_request(const Program& program, size_t at) {
  while (at-- > 0)
    if (program.instrs[at].lane == Lane::kDisk) return at;
  return program.instrs.size();
}

TEST_CASE("each disk request with a wrong early start is noticed, or only makes the disk idle") {
  size_t refused = 0;
  size_t slower = 0;
  for (const MutatedCase& c : mutated_cases()) {
    const std::vector<StepProgram> steps = c.step_case.steps();
    for (const StepProgram& step : steps) {
      const Program& good = step.program;
      INFO(c.name << "\n" << program_text(good));
      Program mutant = good;
      for (size_t i = 0; i < good.instrs.size(); ++i) {
        const bool disk = good.instrs[i].lane == Lane::kDisk;
        if (!disk && i % 7 != 0) continue;  // a sample: the mark is wrong on all of them
        mutant.instrs[i].detail = DiskRequest{!good.instrs[i].starts_early()};
        const bool noticed = !check(mutant).empty();
        mutant.instrs[i].detail = good.instrs[i].detail;
        INFO("instruction " << i);
        const size_t last = last_disk_request(good, i);
        const bool allowed = disk && last < i && !in_conflict(good, last, i);
        CHECK(noticed != allowed);
        CHECK(good.instrs[i].starts_early() == allowed);
        (noticed ? refused : slower) += 1;
      }
    }
  }
  CHECK(refused > 100);
  CHECK(slower > 100);
}

// The order of collectives.

/// Returns the positions of adjacent collectives of different groups.
std::vector<std::pair<size_t, size_t>> neighbors(const Program& program) {
  std::vector<std::pair<size_t, size_t>> found;
  size_t last = program.instrs.size();
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    if (!program.instrs[i].is_collective()) continue;
    if (last < i && program.instrs[last].group() != program.instrs[i].group())
      found.emplace_back(last, i);
    last = i;
  }
  return found;
}

size_t common_ranks(const Program& program, GroupId a, GroupId b) {
  const auto& ranks = program.group(a).members;
  const auto& others = program.group(b).members.ranks;
  return static_cast<size_t>(std::count_if(others.begin(), others.end(),
                                           [&](int rank) { return ranks.index_of(rank) >= 0; }));
}

TEST_CASE("each swap of two groups' collectives is noticed, or leaves no rank waiting for another",
          "[long]") {
  size_t refused = 0;
  size_t otherwise = 0;
  size_t harmless = 0;
  size_t turn = 0;
  for (const MutatedCase& c : mutated_cases()) {
    if (c.step_case.mesh.tensor == 1 && c.step_case.mesh.replicas == 1) continue;
    Mutants mutants(c, 1300);
    const std::vector<StepProgram>& good = mutants.good();
    const Program& program = good[changed_rank(good)].program;
    INFO(c.name << "\n" << program_text(program));
    for (const auto& [first, second] : neighbors(program))
      for (const bool all : {false, true})
        for (const bool back : {false, true}) {
          if (++turn % 11 != 0) continue;
          const auto steps = changed(good, back ? second : first, all, [&](Program& p, size_t at) {
            const size_t from = corresponding_instr(p, program, back ? second : first);
            const size_t to = corresponding_instr(p, program, back ? first : second);
            require(from == at || !all, "collectives stand in one order on all ranks");
            p = with_instruction_moved(std::move(p), from, to, c.step_case.options.overlap);
            return true;
          });
          INFO(first << " and " << second << (back ? " back" : "") << (all ? " on all ranks" : ""));
          if (const auto faults = mutants.faults(*steps); !faults.empty()) {
            ++refused;
            check_fault_text(c.step_case, faults.front());
          } else if (mutants.compute_other_results(*steps)) {
            ++otherwise;
          } else {
            ++harmless;
            // The order is the same on all ranks, or this rank is the only one in both groups: no
            // other rank has both collectives, so no rank can wait for it in the other one.
            const GroupId a = program.instrs[first].group();
            const GroupId b = program.instrs[second].group();
            CHECK((all || common_ranks(program, a, b) == 1));
          }
        }
  }
  INFO(refused << " refused, " << otherwise << " compute otherwise, " << harmless << " harmless");
  CHECK(refused > 20);
  CHECK(harmless > 0);
}

}  // namespace
}  // namespace ftrun
