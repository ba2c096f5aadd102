#include "axes/tensor/split.h"

#include <algorithm>

#include <map>
#include <set>
#include <string>

#include "base/text.h"
#include "fixtures.h"
#include "graph/op_spec.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/embedding.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::config;

ModelConfig two_layer_config(const std::string& name) {
  ModelConfig c = config(name);
  c.layers = 2;
  c.windows.resize(2);
  return c;
}

ModelDescription split_model(const ModelConfig& c, const TensorSplit& split,
                             GraphMode mode = GraphMode::kTrain, BatchShape batch = {2, 64}) {
  return build_model(c, batch, mode, {}, {}, split);
}

std::string list_text(const LayerGraph& graph, const std::vector<Op>& list) {
  std::string text;
  for (const Op& op : list) text += op_text(graph, op) + "\n";
  return text;
}

const TensorInfo& tensor_named(const ModelDescription& model, const std::string& name) {
  for (const TensorInfo& tensor : model.tensors)
    if (tensor.name == name) return tensor;
  throw std::logic_error("no tensor " + name);
}

/// Returns "offset extent copies[ partial]" of a tensor; dimensions are joined by commas.
std::string local_text(const ModelDescription& model, const std::string& name) {
  const TensorInfo& t = tensor_named(model, name);
  std::string text;
  for (size_t d = 0; d < t.shape.size(); ++d)
    text += cat(d > 0 ? ", " : "", t.local.offset[d], "+", t.local.extent[d]);
  return cat(text, " x", t.copies, t.partial_gradient ? " partial" : "");
}

TEST_CASE("tensor degree 1 gives the model without a split, with sequence parallelism or without") {
  for (const char* name : {"smollm2_135m.v4", "llama_linear.v4", "qwen3.v4", "mistral_window.v4"})
    for (const GraphMode mode : {GraphMode::kTrain, GraphMode::kEvaluate, GraphMode::kLogits}) {
      INFO(name);
      const ModelDescription plain = build_model(two_layer_config(name), {2, 64}, mode);
      const ModelDescription split = split_model(two_layer_config(name), {1, 0, true}, mode);
      CHECK(split.tensors == plain.tensors);
      REQUIRE(split.graphs.size() == plain.graphs.size());
      for (size_t g = 0; g < plain.graphs.size(); ++g) {
        CHECK(list_text(split.graphs[g], split.graphs[g].forward) ==
              list_text(plain.graphs[g], plain.graphs[g].forward));
        CHECK(list_text(split.graphs[g], split.graphs[g].backward) ==
              list_text(plain.graphs[g], plain.graphs[g].backward));
        for (const auto& list : {split.graphs[g].forward, split.graphs[g].backward})
          for (const Op& op : list) {
            CHECK_FALSE(is_collective(op.kind));
            CHECK_FALSE(op.attrs.holds<LinearAttrs>());
            CHECK_FALSE(op.attrs.holds<EmbeddingRowsAttrs>());
          }
      }
    }
}

TEST_CASE(
    "the operations of a block on one of three ranks with sequence parallelism are the expected "
    "lists") {
  const ModelDescription model =
      split_model(two_layer_config("smollm2_135m.v4"), {3, 1, true}, GraphMode::kTrain, {3, 64});
  CHECK(
      list_text(model.graphs[1], model.graphs[1].forward) ==
      "rms_norm x:[64,576] input_norm.weight:[576] -> input_norm.weight.out:[64,576] "
      "input_norm.weight.rstd:[64]\n"
      "all_gather input_norm.weight.out:[64,576] -> "
      "input_norm.weight.out.gathered:[192,576]\n"
      "linear input_norm.weight.out.gathered:[192,576] qkv.weight:[320,576] -> "
      "qkv.weight.out:[192,320]\n"
      "rope qkv.weight.out:[192,320] rope:[192,64] -> rope.out:[192,320]\n"
      "attention rope.out:[192,320] starts:[192] -> attention.out:[192,192] attention.lse:[3,192]\n"
      "linear attention.out:[192,192] o.weight:[576,192] -> o.weight.out:[192,576]\n"
      "reduce_scatter o.weight.out:[192,576] -> o.weight.out.scattered:[64,576]\n"
      "add_rms_norm x:[64,576] o.weight.out.scattered:[64,576] mlp_norm.weight:[576] -> "
      "mlp_norm.weight.sum:[64,576] mlp_norm.weight.out:[64,576] mlp_norm.weight.rstd:[64]\n"
      "all_gather mlp_norm.weight.out:[64,576] -> mlp_norm.weight.out.gathered:[192,576]\n"
      "linear mlp_norm.weight.out.gathered:[192,576] gate_up.weight:[1024,576] -> "
      "gate_up.weight.out:[192,1024]\n"
      "gated_activation gate_up.weight.out:[192,1024] -> gated.out:[192,512]\n"
      "linear gated.out:[192,512] down.weight:[576,512] -> down.weight.out:[192,576]\n"
      "reduce_scatter down.weight.out:[192,576] -> down.weight.out.scattered:[64,576]\n"
      "add mlp_norm.weight.sum:[64,576] down.weight.out.scattered:[64,576] -> sum:[64,576]\n");
  CHECK(
      list_text(model.graphs[1], model.graphs[1].backward) ==
      "all_gather d_sum:[64,576] -> d_down.weight.out:[192,576]\n"
      "gated_activation gate_up.weight.out:[192,1024] -> gated.out.again:[192,512]\n"
      "linear_wgrad d_down.weight.out:[192,576] gated.out.again:[192,512] -> "
      "d_down.weight:[576,512]\n"
      "linear_dgrad d_down.weight.out:[192,576] down.weight:[576,512] -> d_gated.out:[192,512]\n"
      "gated_activation_dgrad d_gated.out:[192,512] gate_up.weight.out:[192,1024] -> "
      "d_gate_up.weight.out:[192,1024]\n"
      "rms_norm mlp_norm.weight.sum:[64,576] mlp_norm.weight:[576] -> "
      "mlp_norm.weight.out.again:[64,576] mlp_norm.weight.rstd.again:[64]\n"
      "all_gather mlp_norm.weight.out.again:[64,576] -> "
      "mlp_norm.weight.out.gathered.again:[192,576]\n"
      "linear_dgrad d_gate_up.weight.out:[192,1024] gate_up.weight:[1024,576] -> "
      "d_mlp_norm.weight.out.gathered:[192,576]\n"
      "reduce_scatter d_mlp_norm.weight.out.gathered:[192,576] -> d_mlp_norm.weight.out:[64,576]\n"
      "linear_wgrad d_gate_up.weight.out:[192,1024] mlp_norm.weight.out.gathered.again:[192,576] "
      "-> d_gate_up.weight:[1024,576]\n"
      "rms_norm_wgrad d_mlp_norm.weight.out:[64,576] mlp_norm.weight.sum:[64,576] "
      "mlp_norm.weight.rstd:[64] -> d_mlp_norm.weight:[576]\n"
      "rms_norm_dgrad d_mlp_norm.weight.out:[64,576] mlp_norm.weight.sum:[64,576] "
      "mlp_norm.weight.rstd:[64] mlp_norm.weight:[576] d_sum:[64,576] -> "
      "d_mlp_norm.weight.sum:[64,576]\n"
      "all_gather d_mlp_norm.weight.sum:[64,576] -> d_o.weight.out:[192,576]\n"
      "linear_wgrad d_o.weight.out:[192,576] attention.out:[192,192] -> d_o.weight:[576,192]\n"
      "linear_dgrad d_o.weight.out:[192,576] o.weight:[576,192] -> d_attention.out:[192,192]\n"
      "attention_dgrad d_attention.out:[192,192] rope.out:[192,320] attention.out:[192,192] "
      "attention.lse:[3,192] starts:[192] -> d_rope.out:[192,320]\n"
      "rope_dgrad d_rope.out:[192,320] rope:[192,64] -> d_qkv.weight.out:[192,320]\n"
      "rms_norm x:[64,576] input_norm.weight:[576] -> input_norm.weight.out.again:[64,576] "
      "input_norm.weight.rstd.again:[64]\n"
      "all_gather input_norm.weight.out.again:[64,576] -> "
      "input_norm.weight.out.gathered.again:[192,576]\n"
      "linear_dgrad d_qkv.weight.out:[192,320] qkv.weight:[320,576] -> "
      "d_input_norm.weight.out.gathered:[192,576]\n"
      "reduce_scatter d_input_norm.weight.out.gathered:[192,576] -> "
      "d_input_norm.weight.out:[64,576]\n"
      "linear_wgrad d_qkv.weight.out:[192,320] input_norm.weight.out.gathered.again:[192,576] -> "
      "d_qkv.weight:[320,576]\n"
      "rms_norm_wgrad d_input_norm.weight.out:[64,576] x:[64,576] input_norm.weight.rstd:[64] -> "
      "d_input_norm.weight:[576]\n"
      "rms_norm_dgrad d_input_norm.weight.out:[64,576] x:[64,576] input_norm.weight.rstd:[64] "
      "input_norm.weight:[576] d_mlp_norm.weight.sum:[64,576] -> d_x:[64,576]\n");
}

TEST_CASE("embedding and head are split by the vocabulary") {
  const ModelDescription model =
      split_model(two_layer_config("smollm2_135m.v4"), {3, 2, false}, GraphMode::kTrain, {1, 16});
  CHECK(list_text(model.graphs[0], model.graphs[0].forward) ==
        "embed tokens:[16] embed.weight:[16384,576] -> embedding:[16,576]\n"
        "all_reduce embedding:[16,576] -> embedding.summed:[16,576]\n"
        "rope_table positions:[16] -> rope:[16,64]\n");
  CHECK(model.graphs[0].forward[0].attrs.get<EmbeddingRowsAttrs>() ==
        EmbeddingRowsAttrs{32768, 49152});
  const LayerGraph& head = model.graph_of(model.layers.back());
  CHECK(op_text(head, head.forward[1]) ==
        "vocabulary_logits norm.weight.out:[16,576] lm_head.weight:[16384,576] labels:[16] -> "
        "logits.0:[16,16384] statistics.0:[16,2] label_logit.0:[16]");
  CHECK(head.forward[1].attrs.get<VocabularyAttrs>() == VocabularyAttrs{true, 3, 2, 0});
}

TEST_CASE("a rank has the bias of its rows of the head, and the same padding as its matrix") {
  ModelConfig phi = two_layer_config("phi2.v4");
  phi.vocab_rows = 51201;
  const ModelDescription model = split_model(phi, {2, 1, false}, GraphMode::kTrain, {1, 16});
  const TensorInfo& bias = model.tensors.back();
  CHECK(bias.name == "lm_head.bias");
  CHECK(bias.local.offset == Dims{25601});
  CHECK(bias.local.extent == Dims{25600});
  CHECK(bias.padding == 1);
  CHECK_FALSE(bias.partial_gradient);
  const LayerGraph& head = model.graph_of(model.layers.back());
  CHECK(op_text(head, head.forward[1]) ==
        "vocabulary_logits norm.weight.out:[16,2560] lm_head.weight:[25601,2560] labels:[16] "
        "lm_head.bias:[25601] -> logits.0:[16,25601] statistics.0:[16,2] label_logit.0:[16]");
  CHECK(head.forward[1].attrs.get<VocabularyAttrs>().rows == 51201);
  const ModelDescription logits = split_model(phi, {2, 1, false}, GraphMode::kLogits, {1, 16});
  const LayerGraph& alone = logits.graph_of(logits.layers.back());
  CHECK(op_text(alone, alone.forward[1]) ==
        "linear norm.weight.out:[16,2560] lm_head.weight:[25601,2560] lm_head.bias:[25601] -> "
        "lm_head.weight.out:[16,25601]");
}

TEST_CASE("logits of all ranks are gathered as blocks of the vocabulary") {
  const ModelDescription model =
      split_model(two_layer_config("smollm2_135m.v4"), {3, 0, true}, GraphMode::kLogits, {1, 48});
  const LayerGraph& head = model.graph_of(model.layers.back());
  CHECK(list_text(head, head.forward) ==
        "rms_norm x:[16,576] norm.weight:[576] -> norm.weight.out:[16,576] norm.weight.rstd:[16]\n"
        "all_gather norm.weight.out:[16,576] -> norm.weight.out.gathered:[48,576]\n"
        "linear norm.weight.out.gathered:[48,576] lm_head.weight:[16384,576] -> "
        "lm_head.weight.out:[48,16384]\n"
        "all_gather lm_head.weight.out:[48,16384] -> "
        "lm_head.weight.out.gathered:[3,48,16384]\n");
  CHECK(head.at(head.find(ValueRole::kOutput, Port::kLogits)).dims == Dims{3, 48, 16384});
}

TEST_CASE(
    "with sequence parallelism a rank's hidden states are a block of the tokens, and the loader's "
    "values are of all tokens") {
  for (const bool sequence : {true, false}) {
    const ModelDescription model = split_model(two_layer_config("qwen3.v4"), {4, 3, sequence});
    CHECK(model.split == TensorSplit{4, 3, sequence});
    for (const LayerGraph& graph : model.graphs)
      for (const Value& value : graph.values) {
        INFO(graph.name << " " << value.name);
        if (value.port == Port::kHidden) CHECK(value.dims == Dims{sequence ? 32 : 128, 1024});
        const bool given = value.role == ValueRole::kInput && value.dtype == DType::kI32;
        if (given) CHECK(value.dims == Dims{128});
      }
  }
}

TEST_CASE("matrices are split by rows or by columns, norms and biases of sums are on every rank") {
  ModelConfig c = two_layer_config("llama_linear.v4");  // attention_bias and mlp_bias
  c.query_heads = 8;
  c.kv_heads = 4;
  c.head_size = 16;
  c.hidden = 64;
  c.feed_forward = 96;
  c.vocab_rows = 128;
  c.tied = false;
  const ModelDescription model = split_model(c, {2, 1, true});
  const std::string layer = "model.layers.1.";
  CHECK(local_text(model, "model.embed_tokens.weight") == "64+64, 0+64 x1");
  CHECK(local_text(model, layer + "self_attn.q_proj.weight") == "64+64, 0+64 x1");
  CHECK(local_text(model, layer + "self_attn.q_proj.bias") == "64+64 x1");
  CHECK(local_text(model, layer + "self_attn.k_proj.weight") == "32+32, 0+64 x1");
  CHECK(local_text(model, layer + "self_attn.v_proj.bias") == "32+32 x1");
  CHECK(local_text(model, layer + "self_attn.o_proj.weight") == "0+64, 64+64 x1");
  CHECK(local_text(model, layer + "self_attn.o_proj.bias") == "0+64 x2");
  CHECK(local_text(model, layer + "mlp.gate_proj.weight") == "48+48, 0+64 x1");
  CHECK(local_text(model, layer + "mlp.up_proj.bias") == "48+48 x1");
  CHECK(local_text(model, layer + "mlp.down_proj.weight") == "0+64, 48+48 x1");
  CHECK(local_text(model, layer + "mlp.down_proj.bias") == "0+64 x2");
  CHECK(local_text(model, layer + "input_layernorm.weight") == "0+64 x2 partial");
  CHECK(local_text(model, "model.norm.weight") == "0+64 x2 partial");
  CHECK(local_text(model, "lm_head.weight") == "64+64, 0+64 x1");
  // Without sequence parallelism every rank computes every token at a norm.
  CHECK(local_text(split_model(c, {2, 1, false}), "model.norm.weight") == "0+64 x2");
}

TEST_CASE(
    "fewer key and value heads than ranks are on several ranks, which compute parts of their "
    "gradients") {
  ModelConfig c = two_layer_config("qwen3.v4");  // 16 query heads, 8 key/value heads of 128
  c.kv_heads = 2;
  for (int rank = 0; rank < 8; ++rank) {
    const ModelDescription model = split_model(c, {8, rank, false});
    const std::string attention = "model.layers.0.self_attn.";
    CHECK(local_text(model, attention + "k_proj.weight") ==
          cat(rank / 4 * 128, "+128, 0+1024 x4 partial"));
    CHECK(local_text(model, attention + "v_proj.weight") ==
          local_text(model, attention + "k_proj.weight"));
    CHECK(local_text(model, attention + "q_proj.weight") == cat(rank * 256, "+256, 0+1024 x1"));
    for (const char* norm : {"q_norm.weight", "k_norm.weight"})
      CHECK(local_text(model, attention + norm) == "0+128 x8 partial");
    const auto& attrs = model.graphs[1].forward[4].attrs.get<AttentionAttrs>();
    CHECK(attrs.query_heads == 2);
    CHECK(attrs.kv_heads == 1);
  }
}

TEST_CASE("only the first rank adds the bias of a sum, but all ranks store it") {
  for (int rank = 0; rank < 2; ++rank) {
    ModelConfig c = two_layer_config("llama_linear.v4");
    const ModelDescription model = split_model(c, {2, rank, true});
    const LayerGraph& block = model.graphs[1];
    std::map<std::string, bool> adds;
    for (const Op& op : block.forward)
      if (op.kind == OpKind::kLinear) {
        CHECK(op.in.size() == 3);
        adds[block.at(op.in[1]).name] = adds_bias(op);
      }
    CHECK(adds == std::map<std::string, bool>{{"qkv.weight", true},
                                              {"gate_up.weight", true},
                                              {"o.weight", rank == 0},
                                              {"down.weight", rank == 0}});
  }
}

TEST_CASE("selective recompute repeats no communication") {
  const auto collectives = [](const ModelConfig& c, bool sequence, RecomputeLevel level,
                              int64_t tokens) {
    RecomputeOptions recompute;
    recompute.policy.level = level;
    const ModelDescription model =
        build_model(c, {1, tokens}, GraphMode::kTrain, {}, recompute, {2, 0, sequence});
    std::vector<int64_t> counts;
    for (const LayerGraph& graph : model.graphs)
      counts.push_back(std::count_if(graph.backward.begin(), graph.backward.end(),
                                     [](const Op& op) { return is_collective(op.kind); }));
    return counts;
  };
  for (const char* name : {"llama_linear.v4", "qwen2.v4", "qwen3.v4"})
    for (const bool sequence : {true, false})
      for (const int64_t tokens : {64, 4096}) {
        INFO(name << ", " << tokens << " tokens" << (sequence ? ", sequence" : ""));
        const ModelConfig c = two_layer_config(name);
        CHECK(collectives(c, sequence, RecomputeLevel::kSelective, tokens) ==
              collectives(c, sequence, RecomputeLevel::kNone, tokens));
      }
}

TEST_CASE("the ranks' parts cover each tensor as often as it has copies") {
  for (const char* name : {"smollm2_135m.v4", "llama_linear.v4", "qwen2.v4", "qwen3.v4"})
    for (const int degree : {1, 2, 3, 4, 8}) {
      const ModelConfig c = two_layer_config(name);
      if (!tensor_split_problems(c, degree).empty()) continue;
      std::vector<ModelDescription> ranks;
      for (int rank = 0; rank < degree; ++rank)
        ranks.push_back(split_model(c, {degree, rank, false}));
      for (size_t t = 0; t < ranks[0].tensors.size(); ++t) {
        INFO(ranks[0].tensors[t].name);
        int64_t elements = 0;
        for (const ModelDescription& rank : ranks) {
          const TensorInfo& tensor = rank.tensors[t];
          elements += tensor.local_numel();
          CHECK(tensor.shape == ranks[0].tensors[t].shape);
          // Ranks with equal copies are neighbors.
          const int first = rank.split.index / tensor.copies * tensor.copies;
          CHECK(tensor.local == ranks[static_cast<size_t>(first)].tensors[t].local);
          if (first > 0 && first == rank.split.index)
            CHECK_FALSE(tensor.local == ranks[static_cast<size_t>(first) - 1].tensors[t].local);
        }
        CHECK(elements == ranks[0].tensors[t].numel() * ranks[0].tensors[t].copies);
      }
      // The local parts together form the parameters of the graphs.
      for (const ModelDescription& model : ranks)
        for (const Layer& layer : model.layers)
          for (const GraphParam& param : layer.params) {
            Dims made = model.tensor(param.tensors[0]).local.extent;
            for (size_t i = 1; i < param.tensors.size(); ++i)
              made[0] += model.tensor(param.tensors[i]).local.extent[0];
            CHECK(made == model.graph_of(layer).at(param.value).dims);
          }
    }
}

std::string split_refusal(const ModelConfig& c, const BatchShape& batch, const TensorSplit& split) {
  try {
    build_model(c, batch, GraphMode::kTrain, {}, {}, split);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("a degree that does not divide is refused with arithmetic and the degrees that work") {
  const ModelConfig c =
      config("smollm2_135m.v4");  // 9 query and 3 key/value heads, F 1536, V 49152
  CHECK(split_refusal(c, {2, 64}, {2, 0, true}) ==
        "the model cannot be split over 2 tensor-parallel ranks\n"
        "  9 query heads cannot be shared out among 2 ranks: 9 = 4 x 2 + 1; degrees that work: "
        "1, 3, 9\n"
        "  3 key/value heads and 2 ranks, neither of which divides the other: 3 = 1 x 2 + 1; "
        "degrees that work: 1, 3, 6, 9\n"
        "  remedy: set parallel.tensor to one of these degrees: 1, 3");
  CHECK(split_refusal(c, {2, 64}, {3, 0, true}) == "accepted");
  ModelConfig odd = c;
  odd.query_heads = 16;
  odd.kv_heads = 6;
  odd.feed_forward = 1537;
  odd.vocab_rows = 50257;
  CHECK(tensor_split_problems(odd, 8) ==
        std::vector<std::string>{"6 key/value heads and 8 ranks, neither of which divides the "
                                 "other: 8 = 1 x 6 + 2; degrees that work: 1, 2, 3, 6, 12",
                                 "a feed-forward of 1537 cannot be shared out among 8 ranks: 1537 "
                                 "= 192 x 8 + 1; degrees that work: 1"});
  CHECK(tensor_split_degrees(c) == std::vector<int64_t>{1, 3});
  odd.vocab_rows = 9;
  CHECK(tensor_split_problems(odd, 8).back() ==
        "a vocabulary of 9 rows, 2 per rank, leaves none for the last of 8 ranks; degrees that "
        "work: 1, 2, 3, 5, 9");
}

TEST_CASE("rows get the least padding with which the tokens of a micro-batch can be divided") {
  for (const int64_t rows : {1, 2, 3, 6})
    for (const int64_t tokens : {1, 5, 63, 64, 65})
      for (const int degree : {1, 2, 3, 4, 8}) {
        CAPTURE(rows, tokens, degree);
        int64_t padded = tokens;
        while (rows * padded % degree != 0) ++padded;
        CHECK(pad_sequence_length({rows, tokens}, {degree, 0, true}) ==
              BatchShape{rows, padded, padded - tokens});
        CHECK(pad_sequence_length({rows, tokens}, {degree, 0, false}) == BatchShape{rows, tokens});
        // A padded row is not padded again.
        const BatchShape once = pad_sequence_length({rows, tokens}, {degree, 0, true});
        CHECK(pad_sequence_length(once, {degree, 0, true}) == once);
      }
  const ModelConfig c = two_layer_config("llama2.v4");
  const ModelDescription model = build_model(c, {1, 63}, GraphMode::kTrain, {}, {}, {2, 1, true});
  CHECK(model.batch == BatchShape{1, 64, 1});
}

TEST_CASE("a vocabulary that ranks cannot divide evenly is padded on the last one") {
  ModelConfig c = two_layer_config("llama2.v4");
  c.vocab_rows = 50257;
  for (const int index : {0, 1, 2, 3}) {
    CAPTURE(index);
    const ModelDescription model = split_model(c, {4, index, true});
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      const auto found = std::find_if(model.tensors.begin(), model.tensors.end(),
                                      [&](const TensorInfo& t) { return t.name == name; });
      REQUIRE(found != model.tensors.end());
      CHECK(found->shape == Dims{50257, c.hidden});
      CHECK(found->local.offset == std::vector<int64_t>{index * 12565, 0});
      CHECK(found->local.extent[0] == (index < 3 ? 12565 : 12562));
      CHECK(found->padding == (index < 3 ? 0 : 3 * c.hidden));
      CHECK(found->local_numel() == 12565 * c.hidden);
      for (const int other : {0, 1, 2, 3}) {
        const Box part = box_of_rank(*found, other);
        CHECK(part.offset[0] == other * 12565);
        CHECK(part.extent[0] == (other < 3 ? 12565 : 12562));
      }
    }
    const Op& loss = model.graphs[static_cast<size_t>(model.layers.back().graph)].forward.back();
    CHECK(loss.attrs.get<VocabularyAttrs>().unpadded_rows(12565) == (index < 3 ? 12565 : 12562));
  }
}

/// Returns the operations of a list without collectives. Keys are the kind and the name of the
/// parameter's gradient that the operation computes, or its number if it computes none. Positions
/// would not do: gradients of parameters may wait for a collective and come after others of their
/// kind.
std::map<std::pair<OpKind, std::string>, const Op*> ops_by_result(const LayerGraph& graph,
                                                                  const std::vector<Op>& list) {
  std::map<OpKind, size_t> count;
  std::map<std::pair<OpKind, std::string>, const Op*> ops;
  for (const Op& op : list) {
    if (is_collective(op.kind)) continue;
    const Value& made = graph.at(op.out[0]);
    ops[{op.kind,
         made.role == ValueRole::kParamGrad ? made.name : std::to_string(count[op.kind]++)}] = &op;
  }
  return ops;
}

/// Finds the letters of an operation's shapes whose sizes differ between the whole model and one
/// rank.
class SharedLetters {
 public:
  void compare(std::string_view patterns, const LayerGraph& whole, const std::vector<ValueId>& all,
               const LayerGraph& local, const std::vector<ValueId>& own) {
    const std::vector<std::string> operands = split(patterns, ' ');
    REQUIRE(all.size() == own.size());
    for (size_t i = 0; i < all.size(); ++i) {
      std::string operand = operands.at(i);
      std::erase_if(operand, [](char c) { return c == '[' || c == ']'; });
      const Dims &dims = whole.at(all[i]).dims, &part = local.at(own[i]).dims;
      if (operand == "S") {
        add(operand, dims != part);
        continue;
      }
      const std::vector<std::string> dimensions = split(operand, ',');
      for (size_t d = 0; d < dims.size(); ++d) add(dimensions.at(d), dims[d] != part.at(d));
    }
  }
  /// Returns the divided letters. Requires that no letter is divided in one operand and whole in
  /// another.
  std::string found() const {
    for (const char letter : shared_) CHECK_FALSE(whole_.contains(letter));
    return {shared_.begin(), shared_.end()};
  }

 private:
  /// Records whether a dimension is divided, under the letter along which ranks divide it.
  void add(const std::string& dimension, bool is_shared) {
    const char letter = dimension.find_first_of("HK") != std::string::npos ? 'H'
                        : dimension == "2F"                                ? 'F'
                                                                           : dimension[0];
    (is_shared ? shared_ : whole_).insert(letter);
  }

  std::set<char> shared_, whole_;
};

/// LayerPair is the same layer of the whole model and of one rank.
struct LayerPair {
  const LayerGraph& whole;
  const LayerGraph& local;
};

/// Returns the letter in which two corresponding operations differ, or "".
std::string shared_letter(const LayerPair& pair, const Op& whole, const Op& local) {
  const std::string_view shapes = op_spec(local.kind).shapes;
  const size_t arrow = shapes.find(" -> ");
  SharedLetters letters;
  letters.compare(shapes.substr(0, arrow), pair.whole, whole.in, pair.local, local.in);
  letters.compare(shapes.substr(arrow + 4), pair.whole, whole.out, pair.local, local.out);
  const std::string found = letters.found();
  REQUIRE(found.size() <= 1);
  return found;
}

/// Returns whether the reader's result is a term of a sum over ranks too, where `id` is this rank's
/// term of a linear layer's result. It is for adapters, magnitudes and dropout; lengths of rows
/// must be whole sums.
bool keeps_term(const LayerGraph& graph, const Op& reader, ValueId id) {
  const auto makes = [&](ValueId result) {
    return std::find_if(graph.forward.begin(), graph.forward.end(),
                        [&](const Op& op) { return op.out[0] == result; });
  };
  const auto is_summed = [](const Op& op) {
    return op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter;
  };
  const auto is_linear = [&](ValueId result) {
    const auto maker = makes(result);
    return maker != graph.forward.end() &&
           (maker->kind == OpKind::kLinear || maker->kind == OpKind::kLoraUp ||
            maker->kind == OpKind::kDoraScale);
  };
  // The two operands are both terms, and neither is summed over the ranks, not even in place.
  const bool sums_two_terms =
      reader.kind == OpKind::kAdd && is_linear(reader.in[0]) && is_linear(reader.in[1]) &&
      std::none_of(graph.forward.begin(), graph.forward.end(), [&](const Op& op) {
        return is_summed(op) && (op.in[0] == reader.in[0] || op.in[0] == reader.in[1]);
      });
  return reader.kind == OpKind::kLoraUp ||
         (reader.kind == OpKind::kDoraScale && reader.in[0] == id) || sums_two_terms;
}

/// Requires that a term is read only by a sum over the ranks, either itself or as part of a linear
/// layer's result to which an adapter adds. Requires that a value which is not a term is never
/// summed.
void check_summed(const LayerGraph& graph, ValueId id, bool is_partial) {
  for (const Op& reader : graph.forward) {
    if (std::find(reader.in.begin(), reader.in.end(), id) == reader.in.end()) continue;
    if (is_partial && keeps_term(graph, reader, id)) {
      check_summed(graph, reader.out[0], true);
      continue;
    }
    const bool sums = reader.kind == OpKind::kAllReduce || reader.kind == OpKind::kReduceScatter;
    CHECK(sums == is_partial);
  }
}

void check_sums(const LayerGraph& graph, const Op& op, char letter) {
  for (size_t i = 0; i < op.out.size(); ++i)
    check_summed(graph, op.out[i], result_is_partial(op.kind, i, letter));
}

/// Requires that the tensor table marks the same gradients of parameters as partial. (Lengths of
/// rows have none.)
void check_partial_gradients(const ModelDescription& model, const Layer& layer, const Op& op,
                             char letter) {
  if (op.kind == OpKind::kDoraSquaredLengths) return;
  for (const GraphParam& param : layer.params)
    for (size_t i = 0; i < op.in.size(); ++i)
      if (op.in[i] == param.value)
        CHECK(model.tensor(param.tensors[0]).partial_gradient ==
              gradient_is_partial(op.kind, i, letter));
}

using KindsAndLetters = std::set<std::pair<OpKind, char>>;

/// Compares a layer of both models, and records the letters that are divided.
void compare_layer(const ModelDescription& whole, const ModelDescription& local, size_t layer,
                   KindsAndLetters& seen) {
  const LayerPair pair{whole.graph_of(whole.layers[layer]), local.graph_of(local.layers[layer])};
  for (const auto list : {&LayerGraph::forward, &LayerGraph::backward}) {
    const auto of_whole = ops_by_result(pair.whole, pair.whole.*list),
               of_rank = ops_by_result(pair.local, pair.local.*list);
    REQUIRE(of_whole.size() == of_rank.size());
    for (const auto& [key, op] : of_rank) {
      INFO(op_text(pair.local, *op));
      const std::string letter = shared_letter(pair, *of_whole.at(key), *op);
      if (letter.empty()) continue;
      CHECK(op_spec(op->kind).split_along.find(letter) != std::string_view::npos);
      seen.emplace(op->kind, letter[0]);
      if (list == &LayerGraph::backward) continue;
      check_sums(pair.local, *op, letter[0]);
      check_partial_gradients(local, local.layers[layer], *op, letter[0]);
    }
  }
}

TEST_CASE("a rank's operations are divided as the table of kinds says, and terms are summed") {
  ModelConfig c = two_layer_config("llama_linear.v4");  // with biases
  c.query_heads = 8;
  c.kv_heads = 4;
  c.head_size = 16;
  c.hidden = 64;
  c.feed_forward = 96;
  c.vocab_rows = 128;
  c.qk_norm = QkNorm::kEachHead;
  c.residual_scale = 0.5;
  KindsAndLetters seen;
  for (const bool sequence : {true, false})
    for (const size_t layer : {0, 1})  // layer 0 is the embedding, layer 1 a block
      compare_layer(split_model(c, {}), split_model(c, {2, 1, sequence}), layer, seen);
  Adapter adapter;
  adapter.blocks.resize(static_cast<size_t>(c.layers));
  adapter.dropout = 0.5;
  for (const Projection p : {Projection::kQ, Projection::kV, Projection::kO})
    adapter.blocks[0].by_projection[static_cast<size_t>(p)] = {4, 2.0};
  const auto adapted = [&](const TensorSplit& split) {
    return build_model(c, {2, 64}, GraphMode::kTrain, {}, {}, split, adapter);
  };
  compare_layer(adapted({}), adapted({2, 1, true}), 1, seen);
  adapter.blocks[0].magnitudes = true;
  for (const bool sequence : {true, false})
    compare_layer(adapted({}), adapted({2, 1, sequence}), 1, seen);
  ModelConfig beside = c;
  beside.parallel_residual = true;
  beside.qk_norm = QkNorm::kAllHeads;
  for (const bool has_norm : {true, false})
    for (const bool sequence : {true, false}) {
      beside.mlp_norm = has_norm;
      compare_layer(split_model(beside, {}), split_model(beside, {2, 1, sequence}), 1, seen);
    }
  ModelConfig by_head = c;
  by_head.qk_norm = QkNorm::kLayerNormByHead;
  for (const bool sequence : {true, false})
    compare_layer(split_model(by_head, {}), split_model(by_head, {2, 1, sequence}), 1, seen);
  const ModelConfig learned = parse_model_config(
      R"({"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4,
          "n_positions": 64, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0})",
      "m");
  // The rank gets its block of tokens; the two terms of the embedding are summed together.
  for (const bool sequence : {true, false})
    compare_layer(split_model(learned, {}), split_model(learned, {2, 1, sequence}), 1, seen);
  // Every letter in the table is used by some model.
  KindsAndLetters table;
  for (int i = 0; i < kOpKinds; ++i)
    for (const char letter : op_spec(static_cast<OpKind>(i)).split_along)
      table.emplace(static_cast<OpKind>(i), letter);
  CHECK(seen == table);
}

}  // namespace
}  // namespace ftrun
