#include <map>
#include <set>

#include "blocks.h"
#include "graph/scratch.h"
#include "graph/storage.h"
#include "ops/add/add.h"
#include "ops/collective/collective.h"
#include "ops/linear/linear.h"
#include "owned_memory.h"
#include "random_graph.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

std::string scratch_fault(const LayerGraph& g, const std::vector<Op>& list) {
  const ScratchPlan plan = plan_scratch(g, list);
  return OwnedMemory(g, plan).run(list);
}

const BlockShape kShapes[] = {
    {},
    {.biases = true, .qk_norm = true},
    {.rows = 1, .sequence_length = 130, .window = 7},
    {.recompute = {RecomputeLevel::kSelective}},
    {.biases = true, .qk_norm = true, .recompute = {RecomputeLevel::kSelective, 0.3}},
    {.recompute = {RecomputeLevel::kFull}},
    {.rows = 1, .sequence_length = 130, .qk_norm = true, .recompute = {RecomputeLevel::kFull}}};

TEST_CASE("no kernel of a block, head or embedding finds an operand overwritten") {
  for (const BlockShape& shape : kShapes) {
    for (const LayerGraph& g : {block_graph(shape), head_graph(shape), embedding_graph(shape),
                                block_graph(shape, false), head_graph(shape, false)}) {
      INFO(g.name);
      CHECK(scratch_fault(g, g.forward).empty());
      CHECK(scratch_fault(g, g.backward).empty());
    }
  }
}

TEST_CASE(
    "no kernel of a tensor-parallel rank finds an operand overwritten, nor a collective that runs "
    "beside it") {
  for (const BlockShape& shape : kShapes)
    for (const bool sequence : {true, false})
      for (const LayerGraph& g :
           {split_mlp_graph(shape, sequence), split_mlp_graph(shape, sequence, false),
            split_head_graph(shape, sequence), split_head_graph(shape, sequence, false),
            split_head_graph(shape, sequence, true, 512), exchange_graph(shape)}) {
        INFO(g.name << ", " << sequence);
        CHECK(scratch_fault(g, g.forward) == "");
        CHECK(scratch_fault(g, g.backward) == "");
        std::vector<Op> deferred = g.input_grad;
        deferred.insert(deferred.end(), g.weight_grad.begin(), g.weight_grad.end());
        CHECK(scratch_fault(g, deferred) == "");
      }
}

/// Returns all layers of the families, whole and of one tensor-parallel rank.
std::vector<LayerGraph> all_layers(const BlockShape& shape) {
  std::vector<LayerGraph> graphs{block_graph(shape), head_graph(shape), embedding_graph(shape)};
  for (const bool sequence : {true, false}) {
    graphs.push_back(split_mlp_graph(shape, sequence));
    graphs.push_back(split_head_graph(shape, sequence));
  }
  return graphs;
}

std::set<ValueId> values_made(const std::vector<Op>& list) {
  std::set<ValueId> made;
  for (const Op& op : list) made.insert(op.out.begin(), op.out.end());
  return made;
}

TEST_CASE("exactly those results of input gradients are deferred that weight gradients read") {
  size_t found = 0;
  for (const BlockShape& shape : kShapes)
    for (const LayerGraph& g : all_layers(shape)) {
      INFO(g.name);
      const std::set<ValueId> made = values_made(g.input_grad);
      std::set<ValueId> crossing;
      for (const Op& op : g.weight_grad)
        for (const ValueId id : op.in)
          if (made.contains(id) && g.at(id).role != ValueRole::kInputGrad) crossing.insert(id);
      const std::vector<ValueId> deferred = g.values_with_role(ValueRole::kDeferred);
      CHECK(crossing == std::set<ValueId>(deferred.begin(), deferred.end()));
      found += crossing.size();
    }
  CHECK(found > 80);
}

TEST_CASE(
    "deferred values are gradients of linear layers, recomputed values that both lists need, and "
    "values smaller than their operands") {
  const auto deferred = [](const LayerGraph& g) {
    std::set<std::string> names;
    for (const ValueId id : g.values_with_role(ValueRole::kDeferred)) names.insert(g.at(id).name);
    return names;
  };
  const std::set<std::string> gradients{"d_gu.out", "d_n2.sum", "d_qkv.out"};
  std::set<std::string> all = gradients;
  all.insert("gated.out.again");
  CHECK(deferred(block_graph({})) == all);
  all.insert({"n1.out.again", "attention.out.again", "n2.out.again"});
  CHECK(deferred(block_graph({.recompute = {RecomputeLevel::kFull}})) == all);
  CHECK(deferred(block_graph({}, false)).empty());
}

TEST_CASE("in the interleaved list deferred values are scratch like temporaries") {
  for (const BlockShape& shape : kShapes)
    for (const LayerGraph& g : all_layers(shape)) {
      INFO(g.name);
      LayerGraph plain = g;
      for (Value& value : plain.values)
        if (value.role == ValueRole::kDeferred) value.role = ValueRole::kTemp;
      const ScratchPlan plan = plan_scratch(g, g.backward),
                        before = plan_scratch(plain, g.backward);
      CHECK(plan.offset == before.offset);
      CHECK(plan.bytes == before.bytes);
    }
}

/// Joins two plans of one list, one after the other in one memory: first the offsets of `scratch`,
/// then of `other`.
ScratchPlan join_plans(const ScratchPlan& scratch, const ScratchPlan& other) {
  ScratchPlan both = scratch;
  for (size_t i = 0; i < other.offset.size(); ++i) {
    if (other.offset[i] < 0) continue;
    CHECK(both.offset[i] == -1);
    both.offset[i] = scratch.bytes + other.offset[i];
  }
  both.bytes += other.bytes;
  return both;
}

TEST_CASE(
    "the separate lists find every value, deferred ones in a separate buffer that is kept from the "
    "one list to the other") {
  for (const BlockShape& shape : kShapes)
    for (const LayerGraph& g : all_layers(shape)) {
      INFO(g.name);
      const ScratchPlan deferred = plan_deferred(g);
      const ScratchPlan inputs = join_plans(plan_scratch(g, g.input_grad), deferred);
      const ScratchPlan weights = join_plans(plan_scratch(g, g.weight_grad), deferred);
      CHECK(OwnedMemory(g, inputs).run(g.input_grad) == "");
      OwnedMemory memory(g, weights);
      for (const ValueId id : g.values_with_role(ValueRole::kDeferred)) memory.mark_present(id);
      CHECK(memory.run(g.weight_grad) == "");
    }
}

TEST_CASE("an operation of the interleaved list does not run in place if its result is deferred") {
  const LayerGraph g = block_graph({});
  const ScratchPlan inputs = plan_scratch(g, g.input_grad);
  CHECK(plan_scratch(g, g.backward).offset[static_cast<size_t>(value_named(g, "d_qkv.out"))] >= 0);
  CHECK(inputs.offset[static_cast<size_t>(value_named(g, "d_qkv.out"))] == -1);
  CHECK(inputs.offset[static_cast<size_t>(value_named(g, "d_rope.out"))] >= 0);
}

/// Returns a graph with a = x w; y = sum of a over two ranks; b = a' w3, where a' is x, or with
/// `again` a; output y w2 + b.
LayerGraph all_reduce_graph(bool again) {
  GraphBuilder g("beside", 4, 4);
  const ValueId x = g.input(Port::kHidden, DType::kF32, {4, 16}, "x");
  const ValueId a = ops::linear(g, x, g.param("a", {16, 16}));
  const ValueId y = ops::all_reduce(g, a, along_tensor(2));
  const ValueId b = ops::linear(g, again ? a : x, g.param("b", {16, 16}));
  g.output(ops::add(g, ops::linear(g, y, g.param("y", {16, 16})), b), Port::kHidden);
  return g.finish(false);
}

TEST_CASE(
    "an all-reduce runs in place unless its input is read again; nothing else uses its memory "
    "before it is read") {
  LayerGraph g = all_reduce_graph(false);
  CHECK(scratch_fault(g, g.forward) == "");
  ScratchPlan plan = plan_scratch(g, g.forward);
  CHECK(plan.offset[static_cast<size_t>(value_named(g, "a.out"))] ==
        plan.offset[static_cast<size_t>(value_named(g, "a.out.summed"))]);
  CHECK(plan.bytes == 3 * 4 * 16 * 4);  // a with its sum, b, and the product of the sum
  g = all_reduce_graph(true);
  CHECK(scratch_fault(g, g.forward) == "");
  plan = plan_scratch(g, g.forward);
  CHECK(plan.offset[static_cast<size_t>(value_named(g, "a.out"))] !=
        plan.offset[static_cast<size_t>(value_named(g, "a.out.summed"))]);
}

TEST_CASE("logits of two chunks are in memory at once, however many there are") {
  const BlockShape shape{.rows = 16, .hidden = 2, .vocabulary = 4096};
  const LayerGraph two = split_head_graph(shape, true, true, 32),
                   eight = split_head_graph(shape, true, true, 8);
  const int64_t logits = 2048 * 4;
  CHECK(plan_scratch(two, two.forward).bytes > 2 * 32 * logits);
  CHECK(plan_scratch(eight, eight.forward).bytes > 2 * 8 * logits);
  CHECK(plan_scratch(eight, eight.forward).bytes < 3 * 8 * logits);
}

TEST_CASE("no kernel of a random graph finds an operand overwritten") {
  std::mt19937_64 random(31);
  for (int round = 0; round < sweep_rounds(200); ++round) {
    const RecomputeLevel level = round % 2 == 0 ? RecomputeLevel::kNone : RecomputeLevel::kFull;
    const LayerGraph g = random_graph(random, 1 + round % 15, {level});
    INFO(list_text(g, g.forward));
    REQUIRE(scratch_fault(g, g.forward).empty());
    REQUIRE(scratch_fault(g, g.backward).empty());
  }
}

TEST_CASE("the memory that these tests simulate notices values that overlap") {
  const LayerGraph g = block_graph({});
  ScratchPlan plan = plan_scratch(g, g.backward);
  int noticed = 0;
  int tried = 0;
  for (const Op& op : g.backward) {
    for (const ValueId id : op.out) {
      int64_t& offset = plan.offset[static_cast<size_t>(id)];
      if (offset < 0 || op.in.empty()) continue;
      const int64_t right = offset;
      for (const ValueId in : op.in) {
        const int64_t other = plan.offset[static_cast<size_t>(in)];
        if (other < 0 || other == right || other + g.at(id).bytes() > plan.bytes) continue;
        offset = other;
        ++tried;
        noticed += OwnedMemory(g, plan).run(g.backward).empty() ? 0 : 1;
        offset = right;
      }
    }
  }
  CHECK(tried >= 5);
  CHECK(noticed == tried);
}

TEST_CASE("scratch holds temporaries and workspaces of the list, aligned, and nothing else") {
  for (const BlockShape& shape : kShapes) {
    const LayerGraph g = block_graph(shape);
    for (const auto& list : {g.forward, g.backward}) {
      std::set<ValueId> used;
      for (const Op& op : list) {
        used.insert(op.in.begin(), op.in.end());
        used.insert(op.out.begin(), op.out.end());
        used.insert(op.workspace);
      }
      const ScratchPlan plan = plan_scratch(g, list);
      for (size_t i = 0; i < g.values.size(); ++i) {
        INFO(g.values[i].name);
        const bool scratch = lives_in_list(g.values[i]) && used.contains(static_cast<ValueId>(i));
        CHECK((plan.offset[i] >= 0) == scratch);
        if (plan.offset[i] >= 0) CHECK(plan.offset[i] % kStorageAlignment == 0);
      }
    }
  }
}

TEST_CASE("rotation, its gradient and addition run in place when nothing reads their input again") {
  LayerGraph g = block_graph({});
  const ScratchPlan backward = plan_scratch(g, g.backward);
  CHECK(backward.offset[static_cast<size_t>(value_named(g, "d_qkv.out"))] ==
        backward.offset[static_cast<size_t>(value_named(g, "d_rope.out"))]);
  g = block_graph({}, false);  // rope.out is not saved, so both are scratch
  const ScratchPlan forward = plan_scratch(g, g.forward);
  CHECK(forward.offset[static_cast<size_t>(value_named(g, "rope.out"))] ==
        forward.offset[static_cast<size_t>(value_named(g, "qkv.out"))]);
  // The sum is the layer's output, so it has no offset in scratch.
  CHECK(forward.offset[static_cast<size_t>(value_named(g, "sum"))] == -1);
}

/// Returns a graph with x, then a = x w; b = a + a; c = b + a with `again`, else c = b; out = c w2.
LayerGraph addition_graph(bool again) {
  GraphBuilder g("additions", 4, 4);
  const ValueId x = g.input(Port::kHidden, DType::kF32, {4, 16}, "x");
  const ValueId a = ops::linear(g, x, g.param("a", {16, 16}));
  const ValueId b = ops::add(g, a, a);
  const ValueId c = ops::add(g, b, again ? a : b);
  g.output(ops::linear(g, c, g.param("out", {16, 16})), Port::kHidden);
  return g.finish(false);
}

TEST_CASE("an input that is read again is not overwritten; a chain of additions runs in place") {
  const LayerGraph chain = addition_graph(false);
  CHECK(scratch_fault(chain, chain.forward).empty());
  CHECK(plan_scratch(chain, chain.forward).bytes == 4 * 16 * 4);
  const LayerGraph kept = addition_graph(true);
  CHECK(scratch_fault(kept, kept.forward).empty());
  CHECK(plan_scratch(kept, kept.forward).bytes == 2 * 4 * 16 * 4);
}

TEST_CASE("an empty list of operations needs no scratch") {
  const LayerGraph g = embedding_graph({}, false);
  CHECK(plan_scratch(g, g.backward).bytes == 0);
}

TEST_CASE("saved values are stored one after another, aligned, and only these") {
  for (const BlockShape& shape : kShapes) {
    const LayerGraph g = block_graph(shape);
    const ScratchPlan plan = plan_saved(g);
    int64_t end = 0;
    for (size_t i = 0; i < g.values.size(); ++i) {
      if (g.values[i].role != ValueRole::kSaved) {
        CHECK(plan.offset[i] == -1);
        continue;
      }
      CHECK(plan.offset[i] == end);
      end += (g.values[i].bytes() + 63) / 64 * 64;
    }
    CHECK(plan.bytes == end);
  }
}

TEST_CASE(
    "saved values that weight gradients do not read are stored apart from those that they do") {
  for (const BlockShape& shape : kShapes) {
    const LayerGraph g = block_graph(shape);
    std::set<ValueId> read;
    for (const Op& op : g.weight_grad) read.insert(op.in.begin(), op.in.end());
    const ScratchPlan early = plan_saved(g, SavedValueReader::kInputGrad),
                      late = plan_saved(g, SavedValueReader::kWeightGrad);
    CHECK(early.bytes + late.bytes == plan_saved(g).bytes);
    for (const ValueId id : g.values_with_role(ValueRole::kSaved)) {
      CAPTURE(g.at(id).name);
      const auto at = static_cast<size_t>(id);
      CHECK((read.contains(id) ? early : late).offset[at] == -1);
      CHECK((read.contains(id) ? late : early).offset[at] >= 0);
    }
  }
  // The statistics of both norms; the rotated queries, keys and values; the statistics of
  // attention; gate and up.
  CHECK(plan_saved(block_graph({}), SavedValueReader::kInputGrad).bytes ==
        64 + 64 + 1024 + 128 + 1536);
}

}  // namespace
}  // namespace ftrun
