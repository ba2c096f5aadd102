#include <map>
#include <set>

#include "blocks.h"
#include "graph/storage.h"
#include "owned_memory.h"
#include "random_graph.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace fixtures;

std::string scratch_fault(const LayerGraph& g, const std::vector<Op>& list) {
  const ScratchPlan plan = plan_scratch(g, list);
  return OwnedMemory(g, plan).run(list);
}

const BlockShape kShapes[] = {
    {},
    {.biases = true, .qk_norm = true},
    {.rows = 1, .row_tokens = 130, .window = 7},
    {.recompute = {RecomputeLevel::kSelective}},
    {.biases = true, .qk_norm = true, .recompute = {RecomputeLevel::kSelective, 0.3}},
    {.recompute = {RecomputeLevel::kFull}},
    {.rows = 1, .row_tokens = 130, .qk_norm = true, .recompute = {RecomputeLevel::kFull}}};

TEST_CASE("no kernel of a block, head or embedding finds an operand overwritten") {
  for (const BlockShape& shape : kShapes) {
    for (const LayerGraph& g :
         {block(shape), head(shape), embedding(shape), block(shape, false), head(shape, false)}) {
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
      for (const LayerGraph& g : {split_mlp(shape, sequence), split_mlp(shape, sequence, false),
                                  split_head(shape, sequence), split_head(shape, sequence, false),
                                  split_head(shape, sequence, true, 512)}) {
        INFO(g.name << ", " << sequence);
        CHECK(scratch_fault(g, g.forward) == "");
        CHECK(scratch_fault(g, g.backward) == "");
        std::vector<Op> deferred = g.input_grad;
        deferred.insert(deferred.end(), g.weight_grad.begin(), g.weight_grad.end());
        CHECK(scratch_fault(g, deferred) == "");
      }
}

/// a = x w; y = sum of a over two ranks; b = a' w3 where a' is x, or a where it is read `again`; y
/// w2 + b.
LayerGraph beside(bool again) {
  GraphBuilder g("beside", 4, 4);
  const ValueId x = g.input(Port::kHidden, DType::kF32, {4, 16}, "x");
  const ValueId a = g.linear(x, g.param("a", {16, 16}));
  const ValueId y = g.all_reduce(a, 2);
  const ValueId b = g.linear(again ? a : x, g.param("b", {16, 16}));
  g.output(g.add(g.linear(y, g.param("y", {16, 16})), b), Port::kHidden);
  return g.finish(false);
}

TEST_CASE(
    "an all-reduce runs in place unless its input is read again; nothing else takes its place "
    "before it is read") {
  LayerGraph g = beside(false);
  CHECK(scratch_fault(g, g.forward) == "");
  ScratchPlan plan = plan_scratch(g, g.forward);
  CHECK(plan.offset[static_cast<size_t>(named(g, "a.out"))] ==
        plan.offset[static_cast<size_t>(named(g, "a.out.summed"))]);
  CHECK(plan.bytes == 3 * 4 * 16 * 4);  // a and its sum, b, the product of the sum
  g = beside(true);
  CHECK(scratch_fault(g, g.forward) == "");
  plan = plan_scratch(g, g.forward);
  CHECK(plan.offset[static_cast<size_t>(named(g, "a.out"))] !=
        plan.offset[static_cast<size_t>(named(g, "a.out.summed"))]);
}

TEST_CASE("logits of two chunks are in memory at once, however many there are") {
  const BlockShape shape{.rows = 16, .hidden = 2, .vocabulary = 4096};
  const LayerGraph two = split_head(shape, true, true, 32),
                   eight = split_head(shape, true, true, 8);
  const int64_t logits = 2048 * 4;
  CHECK(plan_scratch(two, two.forward).bytes > 2 * 32 * logits);
  CHECK(plan_scratch(eight, eight.forward).bytes > 2 * 8 * logits);
  CHECK(plan_scratch(eight, eight.forward).bytes < 3 * 8 * logits);
}

TEST_CASE("no kernel of a random graph finds an operand overwritten") {
  std::mt19937_64 random(31);
  for (int round = 0; round < 200; ++round) {
    const RecomputeLevel level = round % 2 == 0 ? RecomputeLevel::kNone : RecomputeLevel::kFull;
    const LayerGraph g = random_graph(random, 1 + round % 15, {level});
    INFO(list_text(g, g.forward));
    REQUIRE(scratch_fault(g, g.forward).empty());
    REQUIRE(scratch_fault(g, g.backward).empty());
  }
}

TEST_CASE("the memory of these tests notices values that lie on each other") {
  const LayerGraph g = block({});
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
    const LayerGraph g = block(shape);
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
        const bool scratch =
            g.values[i].role == ValueRole::kTemp || g.values[i].role == ValueRole::kWorkspace;
        CHECK((plan.offset[i] >= 0) == (scratch && used.contains(static_cast<ValueId>(i))));
        if (plan.offset[i] >= 0) CHECK(plan.offset[i] % kStorageAlignment == 0);
      }
    }
  }
}

TEST_CASE("rotation, its gradient and addition run in place when nothing reads their input again") {
  LayerGraph g = block({});
  const ScratchPlan backward = plan_scratch(g, g.backward);
  CHECK(backward.offset[static_cast<size_t>(named(g, "d_qkv.out"))] ==
        backward.offset[static_cast<size_t>(named(g, "d_rope.out"))]);
  g = block({}, false);  // rope.out is not saved: both are scratch
  const ScratchPlan forward = plan_scratch(g, g.forward);
  CHECK(forward.offset[static_cast<size_t>(named(g, "rope.out"))] ==
        forward.offset[static_cast<size_t>(named(g, "qkv.out"))]);
  // The sum leaves the layer: it has no place in scratch.
  CHECK(forward.offset[static_cast<size_t>(named(g, "sum"))] == -1);
}

/// x, then a = x w; b = a + a; c = b + (a when `again`); out = c w2.
LayerGraph additions(bool again) {
  GraphBuilder g("additions", 4, 4);
  const ValueId x = g.input(Port::kHidden, DType::kF32, {4, 16}, "x");
  const ValueId a = g.linear(x, g.param("a", {16, 16}));
  const ValueId b = g.add(a, a);
  const ValueId c = g.add(b, again ? a : b);
  g.output(g.linear(c, g.param("out", {16, 16})), Port::kHidden);
  return g.finish(false);
}

TEST_CASE(
    "an input that is read again is not overwritten; a chain of additions stays in one place") {
  const LayerGraph chain = additions(false);
  CHECK(scratch_fault(chain, chain.forward).empty());
  CHECK(plan_scratch(chain, chain.forward).bytes == 4 * 16 * 4);
  const LayerGraph kept = additions(true);
  CHECK(scratch_fault(kept, kept.forward).empty());
  CHECK(plan_scratch(kept, kept.forward).bytes == 2 * 4 * 16 * 4);
}

TEST_CASE("an empty list needs no scratch") {
  const LayerGraph g = embedding({}, false);
  CHECK(plan_scratch(g, g.backward).bytes == 0);
}

TEST_CASE("saved values lie one after another, aligned, and only they do") {
  for (const BlockShape& shape : kShapes) {
    const LayerGraph g = block(shape);
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

}  // namespace
}  // namespace ftrun
