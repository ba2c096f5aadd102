#include <fstream>
#include <map>
#include <set>

#include "base/file.h"
#include "graph/collective_attrs.h"
#include "models.h"
#include "ops/kinds.h"
#include "partition/flat_layout.h"
#include "program/buffer_names.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns the program of one of two tensor ranks, with the sums of its layers replaced by another
/// collective.
Program with_collective(OpKind kind, const CollectiveAttrs& over) {
  PartitionedModel built = build(small_config(1, false), GraphMode::kTrain, UnitGranularity::kLayer,
                                 {1, 4}, {2, 0, false});
  for (LayerGraph& graph : built.model.graphs)
    for (Op& op : graph.forward)
      if (op.kind == OpKind::kAllReduce) {
        op.kind = kind;
        op.attrs = over;
      }
  StepOptions options;
  options.state.tensor = {2, 0};
  return built.step(options, 1);
}

TEST_CASE("a layer's collective becomes an instruction of that kind, over the group of its axis") {
  const size_t sums =
      positions_of(with_collective(OpKind::kAllReduce, along_tensor(2)), InstrKind::kAllReduce)
          .size();
  const auto check_kind = [&](OpKind op, const CollectiveAttrs& over, InstrKind kind) {
    const Program program = with_collective(op, over);
    const std::vector<size_t> found = positions_of(program, kind);
    REQUIRE_FALSE(found.empty());
    CHECK(found.size() + positions_of(program, InstrKind::kAllReduce).size() == sums);
    for (const size_t i : found) {
      CHECK(axes_in(program, program.instrs[i].group()) == "tensor");
      CHECK(program.instrs[i].communication().shift == over.shift);
    }
  };
  check_kind(OpKind::kShift, {MeshAxis::kTensor, 2, 1}, InstrKind::kShift);
  check_kind(OpKind::kAllToAll, along_tensor(2), InstrKind::kAllToAll);
  CHECK_THROWS_WITH(with_collective(OpKind::kShift, {MeshAxis::kContext, 2, 1}),
                    Catch::Contains("a collective of a layer has its group"));
  CHECK_THROWS_WITH(with_collective(OpKind::kAllReduce, along_tensor(4)),
                    Catch::Contains("a collective of a layer has its group"));
}

/// Compares a program with tests/program/<name>; writes what was found to the build folder.
void check_golden(const Program& program, const std::string& name) {
  const std::string found = program_text(program);
  const std::string path = cat(testing::binary_dir(), "/", name);
  std::ofstream(path) << found;
  INFO("found: " << path);
  CHECK((found == read_file(cat(testing::source_dir(), "/tests/program/", name))));
}

TEST_CASE("the step of a one-block model on two micro-batches equals the stored program") {
  for (const bool tied : {false, true})
    check_golden(build(small_config(1, tied))
                     .step({.micro_batches = 2, .state = states(1), .bucket_elements = 1}),
                 tied ? "tied_step.golden" : "untied_step.golden");
}

TEST_CASE("ZeRO-3 gathers each layer's parameters twice and reduces each gradient into a shard") {
  StepOptions options{.state = states(1), .bucket_elements = 1};
  options.state.zero_stage = 3;
  PartitionedModel built = build(small_config(1, true));
  built.partition = build_units(built.model, UnitGranularity::kLayer, {64, INT64_MAX});
  check_golden(built.step(options, 2, 1), "zero3_step.golden");
}

TEST_CASE("ZeRO-2 with the optimizer on the host moves gradients there and parameters back") {
  StepOptions options{.micro_batches = 2, .state = states(2), .bucket_elements = 1};
  options.state.zero_stage = 2;
  options.state.optimizer_tier = Tier::kHost;
  options.state.update_elements = 4096;
  check_golden(build(small_config(1, false)).step(options), "zero2_offload_step.golden");
}

struct Case {
  PartitionedModel built;
  StepOptions options;
};

/// Returns random models with 1 to 4 micro-batches, random granularities and bucket sizes, with
/// overlap and without.
std::vector<Case> random_cases(uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case c{build(random_config(random), GraphMode::kTrain, kGranularities[i % 3], {1 + i % 2, 4}),
           {}};
    c.options.micro_batches = 1 + i % 4;
    c.options.state.optimizer_states.resize(random() % 3);
    c.options.bucket_elements = int64_t{1} << (random() % 20);
    c.options.overlap = random() % 2 == 0;
    c.options.state.gradient_buffer_bytes = random() % 2 == 0 ? 1 : 1 << 16;
    c.options.state.decays = [](const TensorInfo& tensor) { return tensor.shape.size() > 1; };
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST_CASE("programs of random models pass the checker") {
  for (const Case& c : random_cases(41, 60)) {
    const Program program = c.built.step(c.options);
    INFO(program_text(program));
    REQUIRE(check(program).empty());
  }
}

TEST_CASE("each layer runs once forward and backward per micro-batch, in order and in reverse") {
  for (const Case& c : random_cases(42, 12)) {
    const Program program = c.built.step(c.options);
    std::vector<std::string> labels;
    for (const Instr& instr : program.instrs)
      if (instr.kind == InstrKind::kLoadBatch || instr.layer >= 0)
        labels.push_back(instr_label(instr));
    std::vector<std::string> expected;
    const auto layers = static_cast<int>(c.built.model.layers.size());
    for (int m = 0; m < c.options.micro_batches; ++m) {
      expected.push_back(cat("load_batch mb ", m));
      for (int l = 0; l < layers; ++l) expected.push_back(cat("forward layer ", l, " mb ", m));
      for (int l = layers; l-- > 0;) expected.push_back(cat("backward layer ", l, " mb ", m));
    }
    REQUIRE(labels == expected);
  }
}

/// Returns the history of a tensor's gradient, as letters: "w" overwritten, "a" added to, "r"
/// reduced, "u" read by an update.
std::string gradient_history(const Program& program, const BufferRange& gradient) {
  std::string text;
  for (const Instr& instr : program.instrs) {
    const auto touches_gradient = [&](const std::vector<BufferRange>& ranges) {
      for (const BufferRange& range : ranges)
        if (overlaps(range, gradient)) return true;
      return false;
    };
    if (instr.kind == InstrKind::kAllReduce && touches_gradient(instr.writes))
      text += 'r';
    else if (instr.kind == InstrKind::kGradientNorm)
      continue;
    else if (instr.kind == InstrKind::kUpdate && touches_gradient(instr.reads))
      text += 'u';
    else if (touches_gradient(instr.writes))
      text += instr.ops().accumulate ? 'a' : 'w';
  }
  return text;
}

TEST_CASE("a gradient is overwritten first, then added to, reduced once and used once") {
  for (const Case& c : random_cases(43, 40)) {
    const Program program = c.built.step(c.options);
    const FlatLayout layout = make_flat_layout(c.built.partition, FlatOrder::kBackward);
    for (const Unit& unit : c.built.partition.units) {
      for (const TensorSlice& slice : unit.slices) {
        const BufferRange range = gradients_at(
            program, (layout.at(unit.id) + slice.position_in_unit) * 4, slice.extent * 4);
        const std::string& name = c.built.model.tensor(slice.tensor).name;
        // In every micro-batch a tied matrix gets two gradients, the embedding's and the head's.
        const bool twice = c.built.model.tied && name == "model.embed_tokens.weight";
        const int writes = c.options.micro_batches * (twice ? 2 : 1);
        INFO(name);
        REQUIRE(gradient_history(program, range) ==
                "w" + std::string(static_cast<size_t>(writes - 1), 'a') + "ru");
      }
    }
  }
}

TEST_CASE("each shard of each unit counts in the norm on one rank, in a separate slot") {
  for (const Case& c : random_cases(47, 12)) {
    for (const int ranks : {1, 2, 3}) {
      std::map<int64_t, int> slots;
      std::map<int64_t, int64_t> covered;  // the number of gradient elements, by offset
      for (int rank = 0; rank < ranks; ++rank) {
        const Program program = c.built.step(c.options, ranks, rank);
        const BufferId norm = buffer_named(program, buffer_names::kGradientNorm);
        const size_t at = positions_of(program, InstrKind::kGradientNorm).at(0);
        const Instr& sum = program.instrs[at];
        REQUIRE(sum.reads.size() == sum.writes.size());
        for (size_t i = 0; i < sum.reads.size(); ++i) {
          REQUIRE(sum.writes[i].buffer == norm);
          REQUIRE(++slots[sum.writes[i].offset] == 1);
          REQUIRE(
              covered.emplace(gradient_offset(program, sum.reads[i]), sum.reads[i].bytes).second);
        }
        const bool exchanged = ranks > 1;
        REQUIRE((program.instrs[at + 1].kind == InstrKind::kAllReduce) == exchanged);
        if (exchanged)
          REQUIRE(program.instrs[at + 1].writes[0] == BufferRange{norm, 0, program.at(norm).bytes});
      }
      int64_t end = 0;
      for (const auto& [begin, bytes] : covered) {
        REQUIRE(begin == end);
        end += bytes;
      }
      REQUIRE(end == make_flat_layout(c.built.partition, FlatOrder::kBackward).total_elements * 4);
    }
  }
}

/// Returns the tensor of each element of a range (padding: -1), for parameters that an update
/// writes and gradients that it reads. The range's offset counts from the beginning of the layout.
std::vector<TensorId> tensors_of(const PartitionedModel& built, const FlatLayout& layout,
                                 const BufferRange& range) {
  std::vector<TensorId> out(static_cast<size_t>(range.bytes / 4), -1);
  for (const Unit& unit : built.partition.units)
    for (const TensorSlice& slice : unit.slices)
      for (int64_t e = 0; e < slice.extent; ++e) {
        const int64_t at = layout.at(unit.id) + slice.position_in_unit + e - range.offset / 4;
        if (at >= 0 && at < range.bytes / 4) out[static_cast<size_t>(at)] = slice.tensor;
      }
  return out;
}

TEST_CASE("updates cover every parameter once, each with its own gradient, state and decay") {
  for (const Case& c : random_cases(44, 15)) {
    const Program program = c.built.step(c.options);
    const FlatLayout parameters = make_flat_layout(c.built.partition, FlatOrder::kForward);
    const FlatLayout gradients = make_flat_layout(c.built.partition, FlatOrder::kBackward);
    std::vector<int> updated(c.built.model.tensors.size(), 0);
    for (const size_t i : positions_of(program, InstrKind::kUpdate)) {
      const Instr& instr = program.instrs[i];
      REQUIRE(instr.if_finite);
      REQUIRE(instr.writes.size() == 1 + c.options.state.optimizer_states.size());
      const auto tensors = tensors_of(c.built, parameters, instr.writes[0]);
      REQUIRE(tensors ==
              tensors_of(c.built, gradients,
                         {-1, gradient_offset(program, instr.reads[0]), instr.reads[0].bytes}));
      for (int32_t s = 0; s < std::ssize(c.options.state.optimizer_states); ++s) {
        const BufferRange& state = instr.writes[static_cast<size_t>(1 + s)];
        REQUIRE(program.at(state.buffer).name == optimizer_buffer_name(s));
        REQUIRE(state.offset == instr.writes[0].offset);
        REQUIRE(state.bytes == instr.writes[0].bytes);
      }
      for (const TensorId tensor : std::set<TensorId>(tensors.begin(), tensors.end())) {
        if (tensor < 0) continue;
        ++updated[static_cast<size_t>(tensor)];
        REQUIRE(instr.update().decay == c.options.state.decays(c.built.model.tensor(tensor)));
      }
    }
    REQUIRE(updated == std::vector<int>(updated.size(), 1));
  }
}

TEST_CASE("the loss is reduced once, after the last forward and before the decision") {
  for (const Case& c : random_cases(45, 12)) {
    const Program program = c.built.step(c.options);
    const BufferId loss = buffer_named(program, buffer_names::kLoss);
    std::vector<size_t> reduced;
    for (const size_t i : positions_of(program, InstrKind::kAllReduce))
      if (program.instrs[i].writes[0].buffer == loss) reduced.push_back(i);
    REQUIRE(reduced.size() == 1);
    const Instr& instr = program.instrs[reduced[0]];
    REQUIRE(instr.communication().dtype == DType::kF64);
    REQUIRE(instr.writes[0] == BufferRange{loss, 0, kLossSlots * 8});
    REQUIRE(reduced[0] > positions_of(program, InstrKind::kForward).back());
    REQUIRE(reduced[0] < positions_of(program, InstrKind::kDecide).front());
    REQUIRE(happens_before(program)[positions_of(program, InstrKind::kDecide).front()][reduced[0]]);
  }
}

TEST_CASE("every value that a layer's lists touch is bound to bytes of its size") {
  for (const Case& c : random_cases(46, 12)) {
    const Program program = c.built.step(c.options);
    for (const Instr& instr : program.instrs) {
      if (!instr.runs_ops()) continue;
      const LayerGraph& graph = c.built.model.graphs[static_cast<size_t>(instr.ops().graph)];
      std::map<ValueId, int64_t> bound;
      for (const Binding& b : instr.ops().bindings)
        REQUIRE(bound.emplace(b.value, b.range.bytes).second);
      for (const Op& op : instr.kind == InstrKind::kForward ? graph.forward : graph.backward) {
        std::vector<ValueId> used = op.in;
        used.insert(used.end(), op.out.begin(), op.out.end());
        if (op.workspace >= 0) used.push_back(op.workspace);
        for (const ValueId id : used) {
          INFO(graph.at(id).name);
          // The loss buffer also has the flags of ranks, after the layer's two sums.
          REQUIRE(bound.at(id) == graph.at(id).bytes());
        }
      }
    }
  }
}

TEST_CASE("a step needs a model that was built for it") {
  const PartitionedModel evaluate = build(small_config(1, false), GraphMode::kEvaluate);
  const PartitionedModel train = build(small_config(1, false));
  CHECK_THROWS_WITH(evaluate.step({}),
                    Catch::Contains("a training step needs a model built for training"));
  CHECK_THROWS_WITH(build_evaluation_step(train.model, train.partition, {}),
                    Catch::Contains("an evaluation step needs a model built for evaluation"));
  CHECK_THROWS_WITH(build_generation_step(train.model, train.partition, {}),
                    Catch::Contains("a generation step needs a model built for logits"));
}

}  // namespace
}  // namespace ftrun
