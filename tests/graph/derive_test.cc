#include <algorithm>
#include <set>

#include "blocks.h"
#include "graph/check_graph.h"
#include "graph/scratch.h"
#include "ops/add/add.h"
#include "ops/collective/collective.h"
#include "ops/dora/dora.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

TEST_CASE(
    "a Llama block runs forward with one joined matrix multiplication for q, k, v and one for "
    "gate, up") {
  const LayerGraph g = block_graph({});
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[8,16] n1:[16] -> n1.out:[8,16] n1.rstd:[8]\n"
        "linear n1.out:[8,16] qkv:[32,16] -> qkv.out:[8,32]\n"
        "rope qkv.out:[8,32] rope:[8,4] -> rope.out:[8,32]\n"
        "attention rope.out:[8,32] starts:[8] -> attention.out:[8,16] attention.lse:[4,8]\n"
        "linear attention.out:[8,16] o:[16,16] -> o.out:[8,16]\n"
        "add_rms_norm x:[8,16] o.out:[8,16] n2:[16] -> n2.sum:[8,16] n2.out:[8,16] n2.rstd:[8]\n"
        "linear n2.out:[8,16] gu:[48,16] -> gu.out:[8,48]\n"
        "gated_activation gu.out:[8,48] -> gated.out:[8,24]\n"
        "linear gated.out:[8,24] down:[16,24] -> down.out:[8,16]\n"
        "add n2.sum:[8,16] down.out:[8,16] -> sum:[8,16]\n");
}

TEST_CASE("a layer norm's kernel adds the residual's gradient if the norm has a weight") {
  const LayerGraph g = plain_mlp_graph({.biases = true});
  CHECK(list_text(g, g.forward) ==
        "layer_norm x:[8,16] n:[16] n.b:[16] -> n.out:[8,16] n.mean:[8] n.rstd:[8]\n"
        "linear n.out:[8,16] up:[24,16] up.b:[24] -> up.out:[8,24]\n"
        "activation up.out:[8,24] -> activation.out:[8,24]\n"
        "linear activation.out:[8,24] down:[16,24] -> down.out:[8,16]\n"
        "add x:[8,16] down.out:[8,16] -> sum:[8,16]\n");
  CHECK(list_text(g, g.backward) ==
        "activation up.out:[8,24] -> activation.out.again:[8,24]\n"
        "linear_wgrad d_sum:[8,16] activation.out.again:[8,24] -> d_down:[16,24]\n"
        "linear_dgrad d_sum:[8,16] down:[16,24] -> d_activation.out:[8,24]\n"
        "activation_dgrad d_activation.out:[8,24] up.out:[8,24] -> d_up.out:[8,24]\n"
        "layer_norm x:[8,16] n:[16] n.b:[16] -> n.out.again:[8,16] n.mean.again:[8] "
        "n.rstd.again:[8]\n"
        "linear_wgrad d_up.out:[8,24] n.out.again:[8,16] -> d_up:[24,16]\n"
        "bias_wgrad d_up.out:[8,24] -> d_up.b:[24]\n"
        "linear_dgrad d_up.out:[8,24] up:[24,16] -> d_n.out:[8,16]\n"
        "layer_norm_wgrad d_n.out:[8,16] x:[8,16] n.mean:[8] n.rstd:[8] -> d_n:[16] d_n.b:[16]\n"
        "layer_norm_dgrad d_n.out:[8,16] x:[8,16] n.mean:[8] n.rstd:[8] n:[16] d_sum:[8,16] -> "
        "d_x:[8,16]\n");
  CHECK(saved_text(g) == "n.mean 32\nn.rstd 32\nup.out 768\n");
  const LayerGraph bare = plain_mlp_graph({});
  CHECK(list_text(bare, bare.backward)
            .ends_with("layer_norm_dgrad d_x.norm.out:[8,16] x:[8,16] x.norm.mean:[8] "
                       "x.norm.rstd:[8] -> d_x:[8,16]\n"
                       "add d_sum:[8,16] d_x:[8,16] -> d_sum.sum:[8,16]\n"));
}

TEST_CASE("a Llama block's backward walks its forward in reverse and recomputes cheap values") {
  const LayerGraph g = block_graph({});
  CHECK(list_text(g, g.backward) ==
        "gated_activation gu.out:[8,48] -> gated.out.again:[8,24]\n"
        "linear_wgrad d_sum:[8,16] gated.out.again:[8,24] -> d_down:[16,24]\n"
        "linear_dgrad d_sum:[8,16] down:[16,24] -> d_gated.out:[8,24]\n"
        "gated_activation_dgrad d_gated.out:[8,24] gu.out:[8,48] -> d_gu.out:[8,48]\n"
        "rms_norm n2.sum:[8,16] n2:[16] -> n2.out.again:[8,16] n2.rstd.again:[8]\n"
        "linear_wgrad d_gu.out:[8,48] n2.out.again:[8,16] -> d_gu:[48,16]\n"
        "linear_dgrad d_gu.out:[8,48] gu:[48,16] -> d_n2.out:[8,16]\n"
        "rms_norm_wgrad d_n2.out:[8,16] n2.sum:[8,16] n2.rstd:[8] -> d_n2:[16]\n"
        "rms_norm_dgrad d_n2.out:[8,16] n2.sum:[8,16] n2.rstd:[8] n2:[16] d_sum:[8,16] -> "
        "d_n2.sum:[8,16]\n"
        "linear_wgrad d_n2.sum:[8,16] attention.out:[8,16] -> d_o:[16,16]\n"
        "linear_dgrad d_n2.sum:[8,16] o:[16,16] -> d_attention.out:[8,16]\n"
        "attention_dgrad d_attention.out:[8,16] rope.out:[8,32] attention.out:[8,16] "
        "attention.lse:[4,8]"
        " starts:[8] -> d_rope.out:[8,32]\n"
        "rope_dgrad d_rope.out:[8,32] rope:[8,4] -> d_qkv.out:[8,32]\n"
        "rms_norm x:[8,16] n1:[16] -> n1.out.again:[8,16] n1.rstd.again:[8]\n"
        "linear_wgrad d_qkv.out:[8,32] n1.out.again:[8,16] -> d_qkv:[32,16]\n"
        "linear_dgrad d_qkv.out:[8,32] qkv:[32,16] -> d_n1.out:[8,16]\n"
        "rms_norm_wgrad d_n1.out:[8,16] x:[8,16] n1.rstd:[8] -> d_n1:[16]\n"
        "rms_norm_dgrad d_n1.out:[8,16] x:[8,16] n1.rstd:[8] n1:[16] d_n2.sum:[8,16] -> "
        "d_x:[8,16]\n");
}

TEST_CASE(
    "an adapter's dropout is repeated in backward, and applied to the gradient before the "
    "multiplication adds its own") {
  const LayerGraph g = adapter_graph({.dropout = 0.5});
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[8,16] n1:[16] -> n1.out:[8,16] n1.rstd:[8]\n"
        "linear n1.out:[8,16] qkv:[32,16] -> qkv.out:[8,32]\n"
        "dropout n1.out:[8,16] -> n1.out.dropout:[8,16]\n"
        "linear n1.out.dropout:[8,16] down:[5,16] -> down.out:[8,5]\n"
        "lora_up qkv.out:[8,32] down.out:[8,5] q.up:[16,2] v.up:[8,3] -> qkv.out.lora:[8,32]\n"
        "linear qkv.out.lora:[8,32] o:[16,32] -> o.out:[8,16]\n"
        "add x:[8,16] o.out:[8,16] -> sum:[8,16]\n");
  CHECK(list_text(g, g.backward) ==
        "linear_wgrad d_sum:[8,16] qkv.out.lora:[8,32] -> d_o:[16,32]\n"
        "linear_dgrad d_sum:[8,16] o:[16,32] -> d_qkv.out.lora:[8,32]\n"
        "lora_up_wgrad d_qkv.out.lora:[8,32] down.out:[8,5] -> d_q.up:[16,2] d_v.up:[8,3]\n"
        "lora_up_dgrad d_qkv.out.lora:[8,32] q.up:[16,2] v.up:[8,3] -> d_down.out:[8,5]\n"
        "rms_norm x:[8,16] n1:[16] -> n1.out.again:[8,16] n1.rstd.again:[8]\n"
        "dropout n1.out.again:[8,16] -> n1.out.dropout.again:[8,16]\n"
        "linear_wgrad d_down.out:[8,5] n1.out.dropout.again:[8,16] -> d_down:[5,16]\n"
        "linear_dgrad d_down.out:[8,5] down:[5,16] -> d_n1.out.dropout:[8,16]\n"
        "dropout d_n1.out.dropout:[8,16] -> d_n1.out:[8,16]\n"
        "rms_norm x:[8,16] n1:[16] -> n1.out.again:[8,16] n1.rstd.again:[8]\n"
        "linear_wgrad d_qkv.out.lora:[8,32] n1.out.again:[8,16] -> d_qkv:[32,16]\n"
        "linear_dgrad d_qkv.out.lora:[8,32] qkv:[32,16] d_n1.out:[8,16] -> d_n1.out:[8,16]\n"
        "rms_norm_wgrad d_n1.out:[8,16] x:[8,16] n1.rstd:[8] -> d_n1:[16]\n"
        "rms_norm_dgrad d_n1.out:[8,16] x:[8,16] n1.rstd:[8] n1:[16] d_sum:[8,16] -> d_x:[8,16]\n");
  CHECK(saved_text(g) == "n1.rstd 32\ndown.out 160\nqkv.out.lora 1024\n");
}

TEST_CASE(
    "magnitudes save what they scale and the row lengths, which have no gradient; the scaled "
    "results are recomputed") {
  const LayerGraph g = magnitude_graph({.biases = true});
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[8,16] n1:[16] -> n1.out:[8,16] n1.rstd:[8]\n"
        "linear n1.out:[8,16] qkv:[32,16] -> qkv.out:[8,32]\n"
        "linear n1.out:[8,16] down:[5,16] -> down.out:[8,5]\n"
        "lora_up qkv.out:[8,32] down.out:[8,5] q.up:[16,2] v.up:[8,3] -> qkv.out.lora:[8,32]\n"
        "dora_squared_lengths qkv:[32,16] down:[5,16] q.up:[16,2] v.up:[8,3] -> "
        "qkv.squared_lengths:[24]\n"
        "dora_scale qkv.out.lora:[8,32] qkv.squared_lengths:[24] m:[24] qkv.b:[32] -> "
        "qkv.out.lora.dora:[8,32]\n"
        "linear qkv.out.lora.dora:[8,32] o:[16,32] -> o.out:[8,16]\n"
        "add x:[8,16] o.out:[8,16] -> sum:[8,16]\n");
  CHECK(list_text(g, g.backward) ==
        "dora_scale qkv.out.lora:[8,32] qkv.squared_lengths:[24] m:[24] qkv.b:[32] -> "
        "qkv.out.lora.dora.again:[8,32]\n"
        "linear_wgrad d_sum:[8,16] qkv.out.lora.dora.again:[8,32] -> d_o:[16,32]\n"
        "linear_dgrad d_sum:[8,16] o:[16,32] -> d_qkv.out.lora.dora:[8,32]\n"
        "dora_scale_wgrad d_qkv.out.lora.dora:[8,32] qkv.out.lora:[8,32] qkv.squared_lengths:[24] "
        "-> d_m:[24]\n"
        "bias_wgrad d_qkv.out.lora.dora:[8,32] -> d_qkv.b:[32]\n"
        "dora_scale_dgrad d_qkv.out.lora.dora:[8,32] qkv.squared_lengths:[24] m:[24] -> "
        "d_qkv.out.lora:[8,32]\n"
        "lora_up_wgrad d_qkv.out.lora:[8,32] down.out:[8,5] -> d_q.up:[16,2] d_v.up:[8,3]\n"
        "lora_up_dgrad d_qkv.out.lora:[8,32] q.up:[16,2] v.up:[8,3] -> d_down.out:[8,5]\n"
        "rms_norm x:[8,16] n1:[16] -> n1.out.again:[8,16] n1.rstd.again:[8]\n"
        "linear_wgrad d_down.out:[8,5] n1.out.again:[8,16] -> d_down:[5,16]\n"
        "linear_dgrad d_down.out:[8,5] down:[5,16] -> d_n1.out:[8,16]\n"
        "linear_wgrad d_qkv.out.lora:[8,32] n1.out.again:[8,16] -> d_qkv:[32,16]\n"
        "linear_dgrad d_qkv.out.lora:[8,32] qkv:[32,16] d_n1.out:[8,16] -> d_n1.out:[8,16]\n"
        "rms_norm_wgrad d_n1.out:[8,16] x:[8,16] n1.rstd:[8] -> d_n1:[16]\n"
        "rms_norm_dgrad d_n1.out:[8,16] x:[8,16] n1.rstd:[8] n1:[16] d_sum:[8,16] -> d_x:[8,16]\n");
  CHECK(saved_text(g) == "n1.rstd 32\ndown.out 160\nqkv.out.lora 1024\nqkv.squared_lengths 96\n");
}

TEST_CASE(
    "the ranks sum the gradient of a linear layer's operand once, whatever dropout and magnitudes "
    "make of it") {
  const auto count = [](const LayerGraph& g, const std::string& line) {
    const std::string text = list_text(g, g.backward);
    int found = 0;
    for (size_t at = text.find(line); at != text.npos; at = text.find(line, at + 1)) ++found;
    return found;
  };
  for (const double dropout : {0.0, 0.5})
    for (const int64_t ranks : {1, 2}) {
      CAPTURE(dropout, ranks);
      const LayerGraph g = magnitude_graph({.biases = true, .dropout = dropout}, true, ranks);
      CHECK(count(g, "all_reduce") == (ranks > 1 ? 1 : 0));
      // The sum is complete after the terms of all linear layers, and before the norm's gradients
      // read it.
      const auto find = [&](OpKind kind) {
        return std::find_if(g.backward.begin(), g.backward.end(),
                            [&](const Op& op) { return op.kind == kind; });
      };
      const auto sum = find(OpKind::kAllReduce), norm = find(OpKind::kRmsNormDgrad);
      CHECK(std::count_if(g.backward.begin(), sum, [](const Op& op) {
              return op.kind == OpKind::kLinearDgrad;
            }) == (dropout > 0 ? 4 : 3));
      if (ranks > 1) CHECK(norm->in[0] == sum->out[0]);
      // Each parameter has exactly one gradient operation: the multiplication with dropped elements
      // does not add to the weight's.
      for (const char* gradient : {"d_qkv:[32,16]", "d_qkv.b:[32]", "d_down:[5,16]",
                                   "d_q.up:[16,2]", "d_v.up:[8,3]", "d_m:[24]", "d_o:[16,32]"})
        CHECK(count(g, gradient) == 1);
      CHECK(count(g, "linear_wgrad") == 3);
      CHECK(count(g, "linear_dgrad") == (dropout > 0 ? 4 : 3));
      CHECK(count(g, "dropout d_") == (dropout > 0 ? 2 : 0));
    }
}

TEST_CASE("a sum over the ranks has a gradient unless it is a sum of row lengths") {
  GraphBuilder g("sums", 8, 8);
  const ValueId x = g.input(Port::kHidden, DType::kF32, {8, 16}, "x");
  ops::all_reduce(g, ops::linear(g, x, g.param("unread", {16, 16})), along_tensor(2));
  g.output(ops::add(g, x, ops::linear(g, x, g.param("w", {16, 16}))), Port::kHidden);
  CHECK_THROWS_WITH(g.finish(true), Catch::Contains("sums: nothing reads unread.out.summed"));
  GraphBuilder h("lengths", 8, 8);
  const ValueId y = h.input(Port::kHidden, DType::kF32, {8, 16}, "x");
  const ValueId w = h.param("w", {16, 16}), down = h.param("down", {2, 16}),
                up = h.param("up", {16, 2});
  const LoraAttrs attrs{{{0, 1.0}}};
  const ValueId squares =
      ops::all_reduce(h, ops::dora_squared_lengths(h, w, down, {up}, attrs), along_tensor(2));
  h.output(ops::dora_scale(h, ops::lora(h, y, ops::linear(h, y, w), down, {up}, attrs), squares,
                           h.fp32_param("m", {16}), -1, {{{0, 16}}}),
           Port::kHidden);
  const LayerGraph lengths = h.finish(true);
  CHECK(list_text(lengths, lengths.backward).find("all_reduce") == std::string::npos);
}

TEST_CASE("a Llama block saves what cannot be recomputed cheaply, and no more") {
  const LayerGraph g = block_graph({});
  // These are N, NQ, NA, HN, ND, N and N2F numbers of 4 bytes; each value begins at a multiple of
  // 64 bytes.
  CHECK(saved_text(g) ==
        "n1.rstd 32\nrope.out 1024\nattention.out 512\nattention.lse 128\nn2.sum 512\nn2.rstd "
        "32\ngu.out 1536\n");
  CHECK(plan_saved(g).bytes == 64 + 1024 + 512 + 128 + 512 + 64 + 1536);
}

TEST_CASE("biases and norms of q and k add their gradients to a Qwen block") {
  const LayerGraph g = block_graph({.biases = true, .qk_norm = true});
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[8,16] n1:[16] -> n1.out:[8,16] n1.rstd:[8]\n"
        "linear n1.out:[8,16] qkv:[32,16] qkv.b:[32] -> qkv.out:[8,32]\n"
        "qk_norm qkv.out:[8,32] wq:[4] wk:[4] -> qk_norm.out:[8,32] qk_norm.rstd:[8,6]\n"
        "rope qk_norm.out:[8,32] rope:[8,4] -> rope.out:[8,32]\n"
        "attention rope.out:[8,32] starts:[8] -> attention.out:[8,16] attention.lse:[4,8]\n"
        "linear attention.out:[8,16] o:[16,16] o.b:[16] -> o.out:[8,16]\n"
        "add_rms_norm x:[8,16] o.out:[8,16] n2:[16] -> n2.sum:[8,16] n2.out:[8,16] n2.rstd:[8]\n"
        "linear n2.out:[8,16] gu:[48,16] gu.b:[48] -> gu.out:[8,48]\n"
        "gated_activation gu.out:[8,48] -> gated.out:[8,24]\n"
        "linear gated.out:[8,24] down:[16,24] down.b:[16] -> down.out:[8,16]\n"
        "add n2.sum:[8,16] down.out:[8,16] -> sum:[8,16]\n");
  CHECK(list_text(g, g.weight_grad) ==
        "linear_wgrad d_sum:[8,16] gated.out.again:[8,24] -> d_down:[16,24]\n"
        "bias_wgrad d_sum:[8,16] -> d_down.b:[16]\n"
        "rms_norm n2.sum:[8,16] n2:[16] -> n2.out.again:[8,16] n2.rstd.again:[8]\n"
        "linear_wgrad d_gu.out:[8,48] n2.out.again:[8,16] -> d_gu:[48,16]\n"
        "bias_wgrad d_gu.out:[8,48] -> d_gu.b:[48]\n"
        "linear_wgrad d_n2.sum:[8,16] attention.out:[8,16] -> d_o:[16,16]\n"
        "bias_wgrad d_n2.sum:[8,16] -> d_o.b:[16]\n"
        "rms_norm x:[8,16] n1:[16] -> n1.out.again:[8,16] n1.rstd.again:[8]\n"
        "linear_wgrad d_qkv.out:[8,32] n1.out.again:[8,16] -> d_qkv:[32,16]\n"
        "bias_wgrad d_qkv.out:[8,32] -> d_qkv.b:[32]\n");
  CHECK(saved_text(g) ==
        "n1.rstd 32\nqkv.out 1024\nqk_norm.rstd 192\nrope.out 1024\nattention.out "
        "512\nattention.lse 128\n"
        "n2.sum 512\nn2.rstd 32\ngu.out 1536\n");
}

TEST_CASE("an embedding's only gradient is its table's") {
  const LayerGraph g = embedding_graph({});
  CHECK(list_text(g, g.forward) ==
        "embed tokens:[8] table:[32,16] -> embedding:[8,16]\nrope_table positions:[8] -> "
        "rope:[8,4]\n");
  CHECK(list_text(g, g.backward) ==
        "embed_wgrad tokens:[8] d_embedding:[8,16] -> d_table:[32,16]\n");
  CHECK(list_text(g, g.weight_grad) == list_text(g, g.backward));
  CHECK(g.input_grad.empty());
  CHECK(saved_text(g).empty());
  CHECK(plan_saved(g).bytes == 0);
}

TEST_CASE(
    "a head computes the gradients of its matrix and of its input in forward, and backward starts "
    "from the latter") {
  const LayerGraph g = head_graph({});
  CHECK(list_text(g, g.forward) ==
        "rms_norm x:[8,16] n:[16] -> n.out:[8,16] n.rstd:[8]\n"
        "linear_cross_entropy n.out:[8,16] w:[32,16] labels:[8] -> loss:[2] d_n.out:[8,16] "
        "d_w:[32,16]\n");
  CHECK(list_text(g, g.backward) ==
        "rms_norm_wgrad d_n.out:[8,16] x:[8,16] n.rstd:[8] -> d_n:[16]\n"
        "rms_norm_dgrad d_n.out:[8,16] x:[8,16] n.rstd:[8] n:[16] -> d_x:[8,16]\n");
  CHECK(saved_text(g) == "n.rstd 32\nd_n.out 512\n");
  CHECK(g.at(g.at(value_named(g, "w")).grad).role == ValueRole::kParamGrad);
}

TEST_CASE("a head with a bias computes the bias' gradient before the matrix's") {
  const LayerGraph g = head_graph({.biases = true});
  CHECK(op_text(g, g.forward.back()) ==
        "linear_cross_entropy n.out:[8,16] w:[32,16] labels:[8] b:[32] -> loss:[2] d_n.out:[8,16] "
        "d_b:[32] d_w:[32,16]");
  CHECK(g.at(g.at(value_named(g, "b")).grad).role == ValueRole::kParamGrad);
}

TEST_CASE("without backward there is one list, nothing is saved and no gradient exists") {
  for (const LayerGraph& g :
       {block_graph({}, false), embedding_graph({}, false), head_graph({}, false)}) {
    CHECK(g.backward.empty());
    CHECK(g.input_grad.empty());
    CHECK(g.weight_grad.empty());
    for (const Value& value : g.values) {
      CHECK(value.grad == -1);
      CHECK(value.role != ValueRole::kSaved);
      CHECK(value.role != ValueRole::kParamGrad);
    }
  }
}

TEST_CASE("cheap kinds' results are never saved, whatever the block") {
  for (const BlockShape& shape : {BlockShape{}, BlockShape{.biases = true, .qk_norm = true}}) {
    const LayerGraph g = block_graph(shape);
    for (const char* name : {"n1.out", "n2.out", "gated.out"})
      CHECK(g.at(value_named(g, name)).role == ValueRole::kTemp);
  }
}

TEST_CASE("gradients of inputs and outputs carry the port by which neighbors find them") {
  const LayerGraph g = block_graph({});
  const ValueId x = g.find(ValueRole::kInput, Port::kHidden);
  const ValueId y = g.find(ValueRole::kOutput, Port::kHidden);
  CHECK(g.at(x).name == "x");
  CHECK(g.at(x).grad == g.find(ValueRole::kInputGrad, Port::kHidden));
  CHECK(g.at(g.at(x).grad).name == "d_x");
  CHECK(g.at(y).grad == g.find(ValueRole::kOutputGrad, Port::kHidden));
  CHECK(g.at(g.at(y).grad).name == "d_sum");
  CHECK(g.find(ValueRole::kInput, Port::kLabels) == -1);
}

TEST_CASE("all weight gradients may be deferred until after the input gradients") {
  const LayerGraph graphs[] = {block_graph({}), block_graph({.biases = true, .qk_norm = true}),
                               head_graph({}), embedding_graph({})};
  for (const LayerGraph& g : graphs) {
    LayerGraph deferred = g;
    deferred.backward = g.input_grad;
    deferred.backward.insert(deferred.backward.end(), g.weight_grad.begin(), g.weight_grad.end());
    CHECK(deferred.backward.size() == g.backward.size());
    // Values that are recomputed for a weight gradient move with it.
    CHECK(bug_text([&] { check_graph(deferred); }) == "nothing");
  }
}

TEST_CASE("a gradient that only a norm reads does not wait for weight gradients") {
  for (const BlockShape& shape : {BlockShape{}, BlockShape{.biases = true, .qk_norm = true}}) {
    const LayerGraph g = block_graph(shape);
    std::set<std::string> deferred;
    for (const ValueId id : g.values_with_role(ValueRole::kDeferred))
      deferred.insert(g.at(id).name);
    CHECK(deferred ==
          std::set<std::string>{"gated.out.again", "d_gu.out", "d_n2.sum", "d_qkv.out"});
  }
  // The head has computed its gradient in forward.
  CHECK(head_graph({}).weight_grad.empty());
  CHECK(plan_deferred(head_graph({})).bytes == 0);
}

TEST_CASE("every parameter has exactly one operation that writes its gradient") {
  const LayerGraph g = block_graph({.biases = true, .qk_norm = true});
  std::multiset<ValueId> written;
  for (const auto* list : {&g.input_grad, &g.weight_grad})
    for (const Op& op : *list) written.insert(op.out.begin(), op.out.end());
  for (const ValueId param : g.values_with_role(ValueRole::kParam)) {
    INFO(g.at(param).name);
    REQUIRE(g.at(param).grad >= 0);
    CHECK(g.at(g.at(param).grad).dims == g.at(param).dims);
    CHECK(written.count(g.at(param).grad) == 1);
  }
}

}  // namespace
}  // namespace ftrun
