#include <set>

#include "blocks.h"
#include "graph/check_graph.h"
#include "graph/cost.h"
#include "ops/add/add.h"
#include "ops/collective/collective.h"
#include "ops/embedding/embedding.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

TEST_CASE(
    "with sequence parallelism norms have a block of the tokens, linear layers have all of them") {
  const LayerGraph g = split_mlp_graph({.biases = true}, true);
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[4,16] n:[16] -> n.out:[4,16] n.rstd:[4]\n"
        "all_gather n.out:[4,16] -> n.out.gathered:[8,16]\n"
        "linear n.out.gathered:[8,16] gu:[24,16] gu.b:[24] -> gu.out:[8,24]\n"
        "gated_activation gu.out:[8,24] -> gated.out:[8,12]\n"
        "linear gated.out:[8,12] down:[16,12] down.b:[16] -> down.out:[8,16]\n"
        "reduce_scatter down.out:[8,16] -> down.out.scattered:[4,16]\n"
        "add x:[4,16] down.out.scattered:[4,16] -> sum:[4,16]\n");
  CHECK(list_text(g, g.backward) ==
        "all_gather d_sum:[4,16] -> d_down.out:[8,16]\n"
        "gated_activation gu.out:[8,24] -> gated.out.again:[8,12]\n"
        "linear_wgrad d_down.out:[8,16] gated.out.again:[8,12] -> d_down:[16,12]\n"
        "bias_wgrad d_down.out:[8,16] -> d_down.b:[16]\n"
        "linear_dgrad d_down.out:[8,16] down:[16,12] -> d_gated.out:[8,12]\n"
        "gated_activation_dgrad d_gated.out:[8,12] gu.out:[8,24] -> d_gu.out:[8,24]\n"
        "rms_norm x:[4,16] n:[16] -> n.out.again:[4,16] n.rstd.again:[4]\n"
        "all_gather n.out.again:[4,16] -> n.out.gathered.again:[8,16]\n"
        "linear_dgrad d_gu.out:[8,24] gu:[24,16] -> d_n.out.gathered:[8,16]\n"
        "reduce_scatter d_n.out.gathered:[8,16] -> d_n.out:[4,16]\n"
        "linear_wgrad d_gu.out:[8,24] n.out.gathered.again:[8,16] -> d_gu:[24,16]\n"
        "bias_wgrad d_gu.out:[8,24] -> d_gu.b:[24]\n"
        "rms_norm_wgrad d_n.out:[4,16] x:[4,16] n.rstd:[4] -> d_n:[16]\n"
        "rms_norm_dgrad d_n.out:[4,16] x:[4,16] n.rstd:[4] n:[16] d_sum:[4,16] -> d_x:[4,16]\n");
  CHECK(list_text(g, g.weight_grad) ==
        "linear_wgrad d_down.out:[8,16] gated.out.again:[8,12] -> d_down:[16,12]\n"
        "bias_wgrad d_down.out:[8,16] -> d_down.b:[16]\n"
        "rms_norm x:[4,16] n:[16] -> n.out.again:[4,16] n.rstd.again:[4]\n"
        "all_gather n.out.again:[4,16] -> n.out.gathered.again:[8,16]\n"
        "linear_wgrad d_gu.out:[8,24] n.out.gathered.again:[8,16] -> d_gu:[24,16]\n"
        "bias_wgrad d_gu.out:[8,24] -> d_gu.b:[24]\n");
  CHECK(saved_text(g) == "n.rstd 16\ngu.out 768\n");
}

TEST_CASE(
    "without sequence parallelism results are all-reduced, and in backward the gradients of what "
    "all ranks have") {
  const LayerGraph g = split_mlp_graph({}, false);
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[8,16] n:[16] -> n.out:[8,16] n.rstd:[8]\n"
        "linear n.out:[8,16] gu:[24,16] -> gu.out:[8,24]\n"
        "gated_activation gu.out:[8,24] -> gated.out:[8,12]\n"
        "linear gated.out:[8,12] down:[16,12] -> down.out:[8,16]\n"
        "all_reduce down.out:[8,16] -> down.out.summed:[8,16]\n"
        "add x:[8,16] down.out.summed:[8,16] -> sum:[8,16]\n");
  CHECK(list_text(g, g.backward) ==
        "gated_activation gu.out:[8,24] -> gated.out.again:[8,12]\n"
        "linear_wgrad d_sum:[8,16] gated.out.again:[8,12] -> d_down:[16,12]\n"
        "linear_dgrad d_sum:[8,16] down:[16,12] -> d_gated.out:[8,12]\n"
        "gated_activation_dgrad d_gated.out:[8,12] gu.out:[8,24] -> d_gu.out:[8,24]\n"
        "rms_norm x:[8,16] n:[16] -> n.out.again:[8,16] n.rstd.again:[8]\n"
        "linear_dgrad d_gu.out:[8,24] gu:[24,16] -> d_n.out:[8,16]\n"
        "all_reduce d_n.out:[8,16] -> d_n.out.summed:[8,16]\n"
        "linear_wgrad d_gu.out:[8,24] n.out.again:[8,16] -> d_gu:[24,16]\n"
        "rms_norm_wgrad d_n.out.summed:[8,16] x:[8,16] n.rstd:[8] -> d_n:[16]\n"
        "rms_norm_dgrad d_n.out.summed:[8,16] x:[8,16] n.rstd:[8] n:[16] d_sum:[8,16] -> "
        "d_x:[8,16]\n");
}

TEST_CASE("a split head exchanges a chunk's statistics while it multiplies the next one") {
  const LayerGraph g = split_head_graph({}, true);
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[4,16] n:[16] -> n.out:[4,16] n.rstd:[4]\n"
        "all_gather n.out:[4,16] -> n.out.gathered:[8,16]\n"
        "vocabulary_logits n.out.gathered:[8,16] w:[16,16] labels:[8] -> logits.0:[3,16] "
        "statistics.0:[3,2] "
        "label_logit.0:[3]\n"
        "all_gather statistics.0:[3,2] -> statistics.0.gathered:[6,2]\n"
        "vocabulary_logits n.out.gathered:[8,16] w:[16,16] labels:[8] -> logits.1:[3,16] "
        "statistics.1:[3,2] "
        "label_logit.1:[3]\n"
        "all_gather statistics.1:[3,2] -> statistics.1.gathered:[6,2]\n"
        "vocabulary_cross_entropy n.out.gathered:[8,16] w:[16,16] labels:[8] logits.0:[3,16] "
        "statistics.0.gathered:[6,2] label_logit.0:[3] -> loss:[2] d_n.out.gathered:[8,16] "
        "d_w:[16,16] "
        "logits.0:[3,16]\n"
        "vocabulary_logits n.out.gathered:[8,16] w:[16,16] labels:[8] -> logits.2:[2,16] "
        "statistics.2:[2,2] "
        "label_logit.2:[2]\n"
        "all_gather statistics.2:[2,2] -> statistics.2.gathered:[4,2]\n"
        "vocabulary_cross_entropy n.out.gathered:[8,16] w:[16,16] labels:[8] logits.1:[3,16] "
        "statistics.1.gathered:[6,2] label_logit.1:[3] loss:[2] d_n.out.gathered:[8,16] "
        "d_w:[16,16] -> loss:[2] "
        "d_n.out.gathered:[8,16] d_w:[16,16] logits.1:[3,16]\n"
        "vocabulary_cross_entropy n.out.gathered:[8,16] w:[16,16] labels:[8] logits.2:[2,16] "
        "statistics.2.gathered:[4,2] label_logit.2:[2] loss:[2] d_n.out.gathered:[8,16] "
        "d_w:[16,16] -> loss:[2] "
        "d_n.out.gathered:[8,16] d_w:[16,16] logits.2:[2,16]\n");
  CHECK(list_text(g, g.backward) ==
        "reduce_scatter d_n.out.gathered:[8,16] -> d_n.out:[4,16]\n"
        "rms_norm_wgrad d_n.out:[4,16] x:[4,16] n.rstd:[4] -> d_n:[16]\n"
        "rms_norm_dgrad d_n.out:[4,16] x:[4,16] n.rstd:[4] n:[16] -> d_x:[4,16]\n");
  CHECK(saved_text(g) == "n.rstd 16\nd_n.out.gathered 512\n");
  const LayerGraph whole = split_head_graph({}, false);
  CHECK(list_text(whole, whole.backward)
            .starts_with("all_reduce d_n.out:[8,16] -> "
                         "d_n.out.summed:[8,16]\nrms_norm_wgrad d_n.out.summed:[8,16]"));
  const LayerGraph evaluate = split_head_graph({}, true, false);
  CHECK(op_text(evaluate, evaluate.forward.back()) ==
        "vocabulary_cross_entropy n.out.gathered:[8,16] w:[16,16] labels:[8] logits.2:[2,16] "
        "statistics.2.gathered:[4,2] label_logit.2:[2] loss:[2] -> loss:[2]");
}

TEST_CASE(
    "the bias of a split head is read with the logits, and its gradient is that of all chunks") {
  const LayerGraph g = split_head_graph({.biases = true}, false);
  CHECK(op_text(g, g.forward[1]) ==
        "vocabulary_logits n.out:[8,16] w:[16,16] labels:[8] b:[16] -> logits.0:[3,16] "
        "statistics.0:[3,2] label_logit.0:[3]");
  CHECK(op_text(g, g.forward.back()) ==
        "vocabulary_cross_entropy n.out:[8,16] w:[16,16] labels:[8] logits.2:[2,16] "
        "statistics.2.gathered:[4,2] label_logit.2:[2] loss:[2] d_n.out:[8,16] d_w:[16,16] "
        "d_b:[16] -> loss:[2] d_n.out:[8,16] d_w:[16,16] d_b:[16] logits.2:[2,16]");
}

TEST_CASE(
    "logits and statistics of a 16-bit head are fp32, for as many tokens as fit the bytes of "
    "16-bit logits") {
  const LayerGraph g = split_head_graph({.dtypes = {DType::kBF16, DType::kF32}}, true, true, 6);
  for (const char* name : {"logits.0", "statistics.0", "label_logit.0", "statistics.0.gathered"})
    CHECK(g.at(value_named(g, name)).dtype == DType::kF32);
  CHECK(g.at(value_named(g, "logits.0")).dims == Dims{3, 16});
  CHECK(g.at(value_named(g, "d_n.out.gathered")).dtype == DType::kBF16);
}

TEST_CASE("the operations of a split head count the matrix multiplications of their chunk") {
  const LayerGraph g = split_head_graph({}, true), evaluate = split_head_graph({}, true, false);
  CHECK(op_flops(g, g.forward[2]) == 2.0 * 3 * 16 * 16 + 3 * 16);
  CHECK(op_flops(g, g.forward[6]) == 2 * 2.0 * 3 * 16 * 16 + 3 * 16);
  CHECK(op_flops(evaluate, evaluate.forward[6]) == 3);
  // A bias is added to each logit, and its gradient sums over each logit.
  const LayerGraph biased = split_head_graph({.biases = true}, true);
  for (const size_t op : {size_t{2}, size_t{6}})
    CHECK(op_flops(biased, biased.forward[op]) == op_flops(g, g.forward[op]) + 3 * 16);
}

TEST_CASE("the gradient of data moved among ranks is moved back, over the same axis") {
  const LayerGraph g = exchange_graph({}, true, 4);
  const auto collectives = [](const std::vector<Op>& list) {
    std::vector<std::pair<OpKind, CollectiveAttrs>> found;
    for (const Op& op : list)
      if (is_collective(op.kind)) found.emplace_back(op.kind, op.attrs.get<CollectiveAttrs>());
    return found;
  };
  using Moves = std::vector<std::pair<OpKind, CollectiveAttrs>>;
  const CollectiveAttrs all{MeshAxis::kContext, 4}, on{MeshAxis::kContext, 4, 1},
      back{MeshAxis::kContext, 4, 3};
  CHECK(collectives(g.forward) == Moves{{OpKind::kAllToAll, all}, {OpKind::kShift, on}});
  CHECK(collectives(g.input_grad) == Moves{{OpKind::kShift, back}, {OpKind::kAllToAll, all}});
  CHECK(
      bug_text([] {
        GraphBuilder b("wrong", 8, 4);
        ops::shift(b, b.input(Port::kHidden, DType::kF32, {8, 4}, "x"), {MeshAxis::kContext, 4, 4});
      }) == "a shift moves to another rank");
  CHECK(bug_text([] {
          GraphBuilder b("wrong", 8, 4);
          ops::all_to_all(b, b.input(Port::kHidden, DType::kF32, {8, 4}, "x"),
                          {MeshAxis::kContext, 3});
        }) == "an all-to-all has blocks of equal size");
}

TEST_CASE(
    "collectives for an input's gradient are in the list of input gradients, those for weights in "
    "theirs") {
  const auto collectives = [](const std::vector<Op>& list) {
    std::vector<OpKind> kinds;
    for (const Op& op : list)
      if (is_collective(op.kind)) kinds.push_back(op.kind);
    return kinds;
  };
  using Kinds = std::vector<OpKind>;
  const LayerGraph g = split_mlp_graph({}, true);
  CHECK(collectives(g.input_grad) == Kinds{OpKind::kAllGather, OpKind::kReduceScatter});
  CHECK(collectives(g.weight_grad) == Kinds{OpKind::kAllGather});
  // An embedding has only the gradient of its table.
  GraphBuilder b("embed", 8, 4);
  const ValueId tokens = b.input(Port::kTokens, DType::kI32, {8}, "tokens");
  b.output(ops::reduce_scatter(b, ops::embed(b, tokens, b.param("table", {5, 16}), {5, 10}),
                               along_tensor(2)),
           Port::kHidden);
  const LayerGraph embed = b.finish(true);
  CHECK(embed.input_grad.empty());
  CHECK(list_text(embed, embed.weight_grad) ==
        "all_gather d_embedding.scattered:[4,16] -> d_embedding:[8,16]\n"
        "embed_wgrad tokens:[8] d_embedding:[8,16] -> d_table:[5,16]\n");
  CHECK(embed.weight_grad[1].attrs.get<EmbeddingRowsAttrs>() == EmbeddingRowsAttrs{5, 10});
}

TEST_CASE("all weight gradients of split layers may be deferred until after the input gradients") {
  for (const RecomputePolicy policy :
       {RecomputePolicy{}, {RecomputeLevel::kSelective, 0.4}, {RecomputeLevel::kFull}})
    for (const bool sequence : {true, false})
      for (LayerGraph g : {split_mlp_graph({.biases = true, .recompute = policy}, sequence),
                           split_head_graph({}, sequence)}) {
        g.backward = g.input_grad;
        g.backward.insert(g.backward.end(), g.weight_grad.begin(), g.weight_grad.end());
        CHECK(bug_text([&] { check_graph(g); }) == "nothing");
      }
}

TEST_CASE(
    "two linear layers of one gathered input have one reduce-scatter, before the gradients of both "
    "weights") {
  GraphBuilder b("two", 8, 4);
  const ValueId x = b.input(Port::kHidden, DType::kF32, {4, 16}, "x");
  const ValueId all =
      ops::all_gather(b, ops::rms_norm(b, x, b.param("n", {16}), {1e-5}), along_tensor(2));
  const ValueId one = ops::linear(b, all, b.param("a", {8, 16}), -1, {.gradient_ranks = 2});
  const ValueId two = ops::linear(b, all, b.param("b", {8, 16}), -1, {.gradient_ranks = 2});
  b.output(ops::reduce_scatter(b, ops::linear(b, ops::add(b, one, two), b.param("c", {16, 8})),
                               along_tensor(2)),
           Port::kHidden);
  const LayerGraph g = b.finish(true);
  std::vector<std::string> kinds;
  for (const Op& op : g.backward) kinds.emplace_back(op_name(op.kind));
  CHECK(kinds == std::vector<std::string>{"all_gather", "linear_wgrad", "linear_dgrad", "rms_norm",
                                          "all_gather", "linear_dgrad", "linear_dgrad",
                                          "reduce_scatter", "linear_wgrad", "linear_wgrad",
                                          "rms_norm_wgrad", "rms_norm_dgrad"});
}

}  // namespace
}  // namespace ftrun
