#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/families.h"
#include "partition/units.h"
#include "program/passes.h"
#include "program/step_builder.h"
#include "sim/program_checker.h"

namespace ftrun::testing {

/// Returns a model with hidden size 16, four query and two key/value heads of size 4, feed-forward
/// size 24 and a vocabulary of 32.
inline ModelConfig small_config(int64_t layers, bool tied) {
  ModelConfig c;
  c.family = "llama";
  c.vocab_rows = 32;
  c.hidden = 16;
  c.feed_forward = 24;
  c.layers = layers;
  c.query_heads = 4;
  c.kv_heads = 2;
  c.head_size = 4;
  c.tied = tied;
  c.windows.assign(static_cast<size_t>(layers), 0);
  return c;
}

/// Draws a small decoder, with features of Llama or Qwen, sliding windows in some layers, and units
/// of one block or of many.
inline ModelConfig random_config(std::mt19937_64& random) {
  const auto flip = [&] { return random() % 2 == 1; };
  ModelConfig c = small_config(static_cast<int64_t>(1 + random() % 4), flip());
  c.hidden = static_cast<int64_t>(8 * (1 + random() % 6));
  c.feed_forward = static_cast<int64_t>(4 + random() % 60);
  c.vocab_rows = static_cast<int64_t>(20 + random() % 400);
  c.qkv_bias = flip();
  c.attention_out_bias = flip();
  c.mlp_bias = flip();
  if (flip()) c.qk_norm = QkNorm::kEachHead;
  for (int64_t& window : c.windows) window = flip() ? 3 : 0;
  return c;
}

inline constexpr UnitGranularity kGranularities[] = {
    UnitGranularity::kBlock, UnitGranularity::kLayer, UnitGranularity::kModel};

/// PartitionedModel is a model and its partition, from which programs are built.
struct PartitionedModel {
  ModelDescription model;
  Partition partition;

  /// Plans the step of rank `rank` of `ranks` ranks that share one copy of the state.
  StepProgram plan(StepOptions options, int ranks = 2, int rank = 0) const {
    options.state.data = {ranks, rank};
    return build_training_step(model, partition, options);
  }
  Program step(const StepOptions& options, int ranks = 2, int rank = 0) const {
    return plan(options, ranks, rank).program;
  }
};

inline PartitionedModel build(const ModelConfig& config, GraphMode mode = GraphMode::kTrain,
                              UnitGranularity granularity = UnitGranularity::kLayer,
                              BatchShape batch = {1, 4}, const TensorSplit& split = {}) {
  PartitionedModel built;
  built.model = build_model(config, batch, mode, {}, {}, split);
  built.partition = build_units(built.model, granularity);
  return built;
}

/// Returns the options of the state that most tests use.
inline StateOptions states(size_t optimizer_states,
                           std::function<bool(const TensorInfo&)> decays = {}) {
  StateOptions state;
  state.optimizer_states.resize(optimizer_states);
  state.decays = std::move(decays);
  return state;
}

/// Returns the total size of all arenas in bytes.
inline int64_t arena_total(const Program& program) {
  return std::accumulate(program.arena_bytes.begin(), program.arena_bytes.end(), int64_t{0});
}

/// Returns the positions of all instructions of a kind.
inline std::vector<size_t> positions_of(const Program& program, InstrKind kind) {
  std::vector<size_t> found;
  for (size_t i = 0; i < program.instrs.size(); ++i)
    if (program.instrs[i].kind == kind) found.push_back(i);
  return found;
}

inline BufferId buffer_named(const Program& program, const std::string& name) {
  for (size_t i = 0; i < program.buffers.size(); ++i)
    if (program.buffers[i].name == name) return static_cast<BufferId>(i);
  throw std::logic_error("no buffer " + name);
}

inline bool is_gradient(const Program& program, const BufferRange& range) {
  return program.at(range.buffer).category == Category::kGradients;
}

/// Returns the size of a rank's gradients in the first `buffers` buffers of its program, in bytes.
inline int64_t gradient_bytes(const Program& program, size_t buffers) {
  int64_t bytes = 0;
  for (size_t b = 0; b < buffers; ++b)
    if (program.buffers[b].category == Category::kGradients) bytes += program.buffers[b].bytes;
  return bytes;
}
inline int64_t gradient_bytes(const Program& program) {
  return gradient_bytes(program, program.buffers.size());
}

/// Returns the offset of a range in a rank's gradients, in bytes, as if their buffers followed each
/// other.
inline int64_t gradient_offset(const Program& program, const BufferRange& range) {
  return gradient_bytes(program, static_cast<size_t>(range.buffer)) + range.offset;
}

/// Returns the range of gradients that begins at an offset of gradient_offset().
inline BufferRange gradients_at(const Program& program, int64_t offset, int64_t bytes) {
  for (BufferId b = 0; b < static_cast<BufferId>(program.buffers.size()); ++b) {
    if (program.at(b).category != Category::kGradients) continue;
    if (offset < program.at(b).bytes) return {b, offset, bytes};
    offset -= program.at(b).bytes;
  }
  throw std::logic_error("no gradients there");
}

/// Returns the ranges of gradients that each all-reduce sums, in the order of the program.
inline std::vector<std::vector<BufferRange>> gradient_reduces(const Program& program) {
  std::vector<std::vector<BufferRange>> found;
  for (const size_t i : positions_of(program, InstrKind::kAllReduce))
    if (is_gradient(program, program.instrs[i].writes[0]))
      found.push_back(program.instrs[i].writes);
  return found;
}

/// Returns `result` where result[j][i] says whether instruction i is done before instruction j
/// starts, by the order of lanes and by waits.
inline std::vector<std::vector<char>> happens_before(const Program& program) {
  const size_t n = program.instrs.size();
  std::vector<std::vector<char>> before(n, std::vector<char>(n, 0));
  const auto follow = [&](size_t j, size_t i) {
    before[j][i] = 1;
    for (size_t k = 0; k < i; ++k) before[j][k] |= before[i][k];
  };
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < j; ++i)
      if (program.instrs[i].lane == program.instrs[j].lane) before[j][i] = 1;
    for (size_t i = j; i-- > 0;)
      if (program.instrs[i].lane == program.instrs[j].lane) {
        follow(j, i);
        break;
      }
    for (const InstrId wait : program.instrs[j].waits) follow(j, static_cast<size_t>(wait));
  }
  return before;
}

/// Returns the program with instruction `from` moved to position `to`, and with new waits and
/// offsets of buffers.
inline Program with_instruction_moved(Program program, size_t from, size_t to,
                                      bool overlap = true) {
  const auto at = [&](size_t i) { return program.instrs.begin() + static_cast<std::ptrdiff_t>(i); };
  if (from < to)
    std::rotate(at(from), at(from) + 1, at(to) + 1);
  else
    std::rotate(at(to), at(from), at(from) + 1);
  for (Instr& instr : program.instrs) instr.waits.clear();
  return assign_arena_offsets(add_waits(std::move(program), overlap));
}

/// Touch describes an instruction that touches one of the buffers temp0, temp1, ... of 64 bytes
/// each.
struct Touch {
  Lane lane;
  BufferId buffer;
  bool reads = false;
  bool writes = true;
  std::vector<InstrId> waits = {};
};
inline Program program_of_touches(const std::vector<Touch>& touches) {
  Program program;
  for (const Touch& touch : touches) {
    while (static_cast<size_t>(touch.buffer) >= program.buffers.size())
      program.buffers.push_back({.name = cat("temp", program.buffers.size()), .bytes = 64});
    Instr instr{.kind = InstrKind::kBegin, .lane = touch.lane, .waits = touch.waits};
    if (touch.reads) instr.reads = {{touch.buffer, 0, 64}};
    if (touch.writes) instr.writes = {{touch.buffer, 0, 64}};
    while (static_cast<int>(touch.lane) >= lane_count(program))
      program.groups.push_back({{"pair", {0, 1}}, {2, 0}});
    program.instrs.push_back(instr);
  }
  return program;
}

/// Returns the program of a rank that exchanges 4096 bytes by each kind of instruction: all-to-all,
/// shift by `by` ranks, and counted rows of `row_elements` elements.
inline Program exchange_program(GroupPlace place, int by, int64_t row_elements = 8) {
  Program program;
  program.buffers = {{.name = "in",
                      .bytes = 4096,
                      .persistent_kind = PersistentKind::kParameters,
                      .format = {.dtype = DType::kF32}},
                     {.name = "out",
                      .bytes = 4096,
                      .persistent_kind = PersistentKind::kMaster,
                      .format = {.dtype = DType::kF32}},
                     {.name = "counts",
                      .bytes = 4 * place.count,
                      .persistent_kind = PersistentKind::kGradientNorm,
                      .format = {.dtype = DType::kI32}},
                     {.name = "come",
                      .bytes = 4 * place.count,
                      .persistent_kind = PersistentKind::kLoss,
                      .format = {.dtype = DType::kI32}}};
  program.initialized_ranges = {program.full_range(0), program.full_range(2)};
  RankGroup all{
      .label = "context", .ranks = {}, .factors = {{{MeshAxis::kContext}, place.count, 1}}};
  for (int rank = 0; rank < place.count; ++rank) all.ranks.push_back(rank);
  program.groups = {{all, place}};
  const BufferRange in = program.full_range(0), out = program.full_range(1);
  program.instrs = {make_collective(InstrKind::kAllToAll, {.group = 0}, in, out),
                    make_collective(InstrKind::kShift, {.group = 0, .shift = by}, in, out),
                    make_collective(InstrKind::kCountedAllToAll,
                                    {.group = 0, .row_elements = row_elements}, in, out)};
  program.instrs[2].reads.push_back(program.full_range(2));
  program.instrs[2].writes.push_back(program.full_range(3));
  return program;
}

/// Returns the faults of these programs, which may be those of some ranks only.
inline std::vector<std::string> check_programs(std::span<const RankProgram> ranks) {
  return find_program_faults(world_of(ranks));
}

/// Returns the faults of the programs of ranks 0, 1, ...
inline std::vector<std::string> check_programs(std::span<const Program* const> ranks) {
  std::vector<RankProgram> numbered;
  for (const Program* program : ranks)
    numbered.push_back({static_cast<int>(numbered.size()), program});
  return check_programs(std::span<const RankProgram>(numbered));
}

inline std::vector<std::string> check(const Program& program) {
  const int rank =
      program.groups.empty()
          ? 0
          : program.groups[0].members.ranks[static_cast<size_t>(program.groups[0].place.index)];
  const RankProgram ranks[] = {{rank, &program}};
  return check_programs(std::span<const RankProgram>(ranks));
}

/// Returns the axes of a group of the program ("data"). group_along() returns the group along
/// these axes, or kNoGroup.
inline std::string axes_in(const Program& program, GroupId group) {
  return program.group(group).members.label;
}
inline GroupId group_along(const Program& program, const std::string& axes) {
  for (size_t g = 0; g < program.groups.size(); ++g)
    if (axes_in(program, static_cast<GroupId>(g)) == axes) return static_cast<GroupId>(g);
  return kNoGroup;
}

}  // namespace ftrun::testing
