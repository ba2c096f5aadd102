#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "fixtures.h"
#include "model/size.h"
#include "model/tensors.h"
#include "ops/kinds.h"
#include "ops/rope/rope.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using nlohmann::json;
using testing::config;

ModelDescription build(const std::string& name, GraphMode mode = GraphMode::kTrain,
                       BatchShape batch = {2, 64}) {
  return build_model(config(name), batch, mode);
}

std::string forward_text(const LayerGraph& graph) {
  std::string text;
  for (const Op& op : graph.forward) text += op_text(graph, op) + "\n";
  return text;
}

const json& expected_text() {
  static const json kExpected = json::parse(read_file(testing::config_path("expected")));
  return kExpected;
}

TEST_CASE("tensors have the names, shapes and order of the state dict") {
  for (const auto& [name, expected_model] : expected_text().items()) {
    INFO(name);
    ModelConfig small = config(name);
    small.layers = 2;
    small.windows.resize(2);
    const ModelDescription model = build_model(small, {1, 16}, GraphMode::kEvaluate);
    std::vector<std::pair<std::string, Dims>> found, expected;
    for (const TensorInfo& tensor : model.tensors)
      if (found.empty() || found.back().first != tensor.file_name())
        found.emplace_back(tensor.file_name(), tensor.file_shape());
    for (const json& tensor : expected_model["tensors_of_2_layers"])
      expected.emplace_back(tensor[0], tensor[1].get<Dims>());
    // transformers' classes of these models have their modules in another order.
    static const std::set<std::string> kOtherwise{"glm4", "gpt_neox", "phi3"};
    if (kOtherwise.contains(small.family)) {
      std::sort(found.begin(), found.end());
      found.erase(std::unique(found.begin(), found.end()), found.end());
      std::sort(expected.begin(), expected.end());
    }
    CHECK(found == expected);
  }
}

TEST_CASE("parameters are counted as transformers counts them") {
  for (const auto& [name, expected_model] : expected_text().items()) {
    INFO(name);
    CHECK(count_parameters(build(name)).total == expected_model["parameters"]);
  }
  const ParameterCounts smol = count_parameters(build("smollm2_135m.v4"));
  CHECK(smol == ParameterCounts{134515008, 28311552, 106203456, 134515008});
  const ParameterCounts llama2 = count_parameters(build("llama2.v4"));
  CHECK(llama2 == ParameterCounts{6738415616, 131072000, 6607343616, 6607343616});
}

TEST_CASE("layer norms of query and key heads are named in files as in transformers") {
  const auto tensors = [](const char* key, const char* base) {
    ModelConfig small = parse_model_config(testing::changed_config_text({{key, true}}, base), base);
    small.layers = 1;
    small.windows.resize(1);
    std::map<std::string, Dims> found;
    for (const TensorInfo& tensor : build_model(small, {1, 16}, GraphMode::kEvaluate).tensors)
      for (const std::string& name : tensor.file_names()) found[name] = tensor.file_shape();
    return found;
  };
  const auto stable = tensors("qk_layernorm", "stablelm.v4");
  const ModelConfig of_stable = config("stablelm.v4");
  const std::string attention = "model.layers.0.self_attn.";
  for (int64_t head = 0; head < of_stable.query_heads; ++head)
    CHECK(stable.at(cat(attention, "q_layernorm.norms.", head, ".weight")) ==
          Dims{of_stable.head_size});
  CHECK(stable.contains(cat(attention, "k_layernorm.norms.", of_stable.kv_heads - 1, ".weight")));
  CHECK_FALSE(stable.contains(cat(attention, "k_layernorm.norms.", of_stable.kv_heads, ".weight")));
  const auto cohere = tensors("use_qk_norm", "cohere.v4");
  const ModelConfig of_cohere = config("cohere.v4");
  CHECK(cohere.at(attention + "q_norm.weight") == Dims{of_cohere.query_heads, of_cohere.head_size});
  CHECK(cohere.at(attention + "k_norm.weight") == Dims{of_cohere.kv_heads, of_cohere.head_size});
}

TEST_CASE("the number of operations per token follows the two published formulas") {
  // Llama 3 8B at 8192 tokens: 57.9 and 51.5 GFLOP per token.
  ModelConfig c = config("llama3.v5");
  c.hidden = 4096;
  c.feed_forward = 14336;
  c.layers = 32;
  c.head_size = 128;
  c.tied = false;
  c.windows.assign(32, 0);
  const ModelDescription model = build_model(c, {1, 8192}, GraphMode::kTrain);
  CHECK(count_parameters(model).total == 8030261248);
  const TrainingFlops flops = training_flops_per_token(model);
  CHECK(flops.full == 6.0 * 7504924672 + 12.0 * 32 * 4096 * 8192);
  CHECK(flops.causal == 6.0 * 7504924672 + 6.0 * 32 * 4096 * 8192);
  CHECK(flops.full / 1e9 == Approx(57.9).epsilon(1e-3));
  CHECK(flops.causal / 1e9 == Approx(51.5).epsilon(1e-3));
}

TEST_CASE("equal blocks share one graph, blocks with another window have their own") {
  const ModelDescription smol = build("smollm2_135m.v4");
  REQUIRE(smol.layers.size() == 32);
  REQUIRE(smol.graphs.size() == 4);  // embedding, blocks, head, and the rope table by itself
  CHECK(smol.layers.front().name == "embed");
  CHECK(smol.layers[1].name == "layers.0");
  CHECK(smol.layers[30].name == "layers.29");
  CHECK(smol.layers.back().name == "head");
  CHECK(smol.layers.back().kind == LayerKind::kHead);
  for (size_t i = 1; i <= 30; ++i) CHECK(smol.layers[i].graph == smol.layers[1].graph);

  const ModelDescription windowed = build("qwen2_window.v4", GraphMode::kTrain, {1, 256});
  REQUIRE(windowed.graphs.size() == 5);
  CHECK(windowed.graph_of(windowed.layers[4]).name == "block");
  CHECK(windowed.graph_of(windowed.layers[5]).name == "block.window128");
  CHECK(windowed.graph_of(windowed.layers[6]).name == "block.window128");
  // Rows that are as long as the window are not restricted by it.
  CHECK(build("qwen2_window.v4", GraphMode::kTrain, {1, 128}).graphs.size() == 4);
}

TEST_CASE("the forward operations of a Llama block are the expected list") {
  REQUIRE(
      forward_text(build("smollm2_135m.v4").graphs[1]) ==
      "rms_norm x:[128,576] input_norm.weight:[576] -> "
      "input_norm.weight.out:[128,576] input_norm.weight.rstd:[128]\n"
      "linear input_norm.weight.out:[128,576] qkv.weight:[960,576] -> qkv.weight.out:[128,960]\n"
      "rope qkv.weight.out:[128,960] rope:[128,64] -> rope.out:[128,960]\n"
      "attention rope.out:[128,960] starts:[128] -> attention.out:[128,576] attention.lse:[9,128]\n"
      "linear attention.out:[128,576] o.weight:[576,576] -> o.weight.out:[128,576]\n"
      "add_rms_norm x:[128,576] o.weight.out:[128,576] mlp_norm.weight:[576] -> "
      "mlp_norm.weight.sum:[128,576] mlp_norm.weight.out:[128,576] mlp_norm.weight.rstd:[128]\n"
      "linear mlp_norm.weight.out:[128,576] gate_up.weight:[3072,576] -> "
      "gate_up.weight.out:[128,3072]\n"
      "gated_activation gate_up.weight.out:[128,3072] -> gated.out:[128,1536]\n"
      "linear gated.out:[128,1536] down.weight:[576,1536] -> down.weight.out:[128,576]\n"
      "add mlp_norm.weight.sum:[128,576] down.weight.out:[128,576] -> sum:[128,576]\n");
}

TEST_CASE("the forward operations of a Qwen3 block are the expected list") {
  REQUIRE(
      forward_text(build("qwen3.v4").graphs[1]) ==
      "rms_norm x:[128,1024] input_norm.weight:[1024] -> input_norm.weight.out:[128,1024] "
      "input_norm.weight.rstd:[128]\n"
      "linear input_norm.weight.out:[128,1024] qkv.weight:[4096,1024] -> "
      "qkv.weight.out:[128,4096]\n"
      "qk_norm qkv.weight.out:[128,4096] q_norm.weight:[128] k_norm.weight:[128] -> "
      "qk_norm.out:[128,4096] qk_norm.rstd:[128,24]\n"
      "rope qk_norm.out:[128,4096] rope:[128,128] -> rope.out:[128,4096]\n"
      "attention rope.out:[128,4096] starts:[128] -> attention.out:[128,2048] "
      "attention.lse:[16,128]\n"
      "linear attention.out:[128,2048] o.weight:[1024,2048] -> o.weight.out:[128,1024]\n"
      "add_rms_norm x:[128,1024] o.weight.out:[128,1024] mlp_norm.weight:[1024] -> "
      "mlp_norm.weight.sum:[128,1024] mlp_norm.weight.out:[128,1024] mlp_norm.weight.rstd:[128]\n"
      "linear mlp_norm.weight.out:[128,1024] gate_up.weight:[6144,1024] -> "
      "gate_up.weight.out:[128,6144]\n"
      "gated_activation gate_up.weight.out:[128,6144] -> gated.out:[128,3072]\n"
      "linear gated.out:[128,3072] down.weight:[1024,3072] -> down.weight.out:[128,1024]\n"
      "add mlp_norm.weight.sum:[128,1024] down.weight.out:[128,1024] -> sum:[128,1024]\n");
}

TEST_CASE("biases are operands of their linear layers") {
  const ModelDescription model = build("llama_linear.v4");
  std::map<std::string, size_t> inputs;
  const LayerGraph& block = model.graphs[1];
  for (const Op& op : block.forward)
    if (op.kind == OpKind::kLinear) inputs[block.at(op.in[1]).name] = op.in.size();
  CHECK(inputs ==
        std::map<std::string, size_t>{
            {"qkv.weight", 3}, {"o.weight", 3}, {"gate_up.weight", 3}, {"down.weight", 3}});
}

TEST_CASE("every parameter of a graph is bound to tensors whose rows together form it") {
  for (const auto& item : expected_text().items()) {
    INFO(item.key());
    const ModelDescription model = build(item.key());
    std::set<TensorId> seen;
    for (const Layer& layer : model.layers) {
      const LayerGraph& graph = model.graph_of(layer);
      REQUIRE(layer.params.size() == graph.values_with_role(ValueRole::kParam).size());
      for (const GraphParam& param : layer.params) {
        Dims whole = graph.at(param.value).dims;
        int64_t rows = 0;
        for (TensorId id : param.tensors) {
          Dims shape = model.tensor(id).shape;
          rows += shape[0];
          seen.insert(id);
          shape[0] = whole[0];
          REQUIRE(shape == whole);
        }
        REQUIRE(rows == whole[0]);
      }
    }
    CHECK(seen.size() == model.tensors.size());
  }
}

TEST_CASE("query, key and value are one matrix multiplication, gate and up another") {
  const ModelDescription model = build("smollm2_135m.v4");
  const auto names = [&](const GraphParam& param) {
    std::string text;
    for (TensorId id : param.tensors) text += model.tensor(id).name + " ";
    return text;
  };
  const Layer& block = model.layers[1];
  CHECK(names(block.params[1]) ==
        "model.layers.0.self_attn.q_proj.weight model.layers.0.self_attn.k_proj.weight "
        "model.layers.0.self_attn.v_proj.weight ");
  CHECK(names(block.params[4]) ==
        "model.layers.0.mlp.gate_proj.weight model.layers.0.mlp.up_proj.weight ");
  CHECK(block.params[1].part == BlockPart::kAttention);
  CHECK(block.params[4].part == BlockPart::kMlp);
}

TEST_CASE("a tied head names the embedding's tensor") {
  const ModelDescription tied = build("smollm2_135m.v4");
  CHECK(tied.layers.back().params[1].tensors == tied.layers.front().params[0].tensors);
  CHECK(tied.tensors.back().name == "model.norm.weight");
  const ModelDescription untied = build("llama2.v4");
  CHECK(untied.tensor(untied.layers.back().params[1].tensors[0]).name == "lm_head.weight");
}

TEST_CASE("training, evaluation and logits differ in the head and in the backward lists") {
  const ModelDescription train = build("smollm2_135m.v4", GraphMode::kTrain);
  const ModelDescription evaluate = build("smollm2_135m.v4", GraphMode::kEvaluate);
  const ModelDescription logits = build("smollm2_135m.v4", GraphMode::kLogits);
  for (const Layer& layer : train.layers) CHECK_FALSE(train.graph_of(layer).backward.empty());
  for (const LayerGraph& graph : evaluate.graphs) CHECK(graph.backward.empty());
  CHECK(train.graph_of(train.layers.back()).find(ValueRole::kOutput, Port::kLoss) >= 0);
  CHECK(evaluate.graph_of(evaluate.layers.back()).find(ValueRole::kOutput, Port::kLoss) >= 0);
  const LayerGraph& head = logits.graph_of(logits.layers.back());
  const ValueId out = head.find(ValueRole::kOutput, Port::kLogits);
  REQUIRE(out >= 0);
  CHECK(head.at(out).dims == Dims{128, 49152});
  CHECK(head.find(ValueRole::kInput, Port::kLabels) == -1);
  CHECK(train.tensors == logits.tensors);
}

TEST_CASE("dropout is refused in training only") {
  ModelConfig c = config("smollm2_135m.v4");
  c.dropouts = {"attention_dropout"};
  CHECK_NOTHROW(build_model(c, {1, 8}, GraphMode::kEvaluate));
  try {
    build_model(c, {1, 8}, GraphMode::kTrain);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUnsupported);
    CHECK(std::string(error.what()) ==
          "attention_dropout: dropout in training is not supported yet\n  remedy: set "
          "attention_dropout to 0 in the model's config.json");
  }
}

/// Returns the angles of the rope table that a model computes for a micro-batch.
std::vector<RopeAngle> angles_of(const std::string& name, const BatchShape& batch) {
  ModelConfig c = config(name);
  c.layers = 1;
  c.windows.resize(1);
  const ModelDescription model = build_model(c, batch, GraphMode::kLogits);
  const LayerGraph& graph = model.graphs[static_cast<size_t>(model.rope_graph)];
  return graph.forward.at(0).attrs.get<RopeTableAttrs>().angles;
}

TEST_CASE("one table has the angles of all rotations, each with its attention factor") {
  const std::vector<RopeAngle> angles = angles_of("gemma3_yarn.v5", {1, 16});
  REQUIRE(angles.size() == 256);
  for (size_t i = 0; i < angles.size(); ++i)
    CHECK(angles[i].magnitude ==
          (i < 128 ? config("gemma3_yarn.v5").rope.attention_factor() : 1.0));
  CHECK(angles[1].frequency != angles[129].frequency);
}

TEST_CASE("longrope's factors of all graphs follow from the longest sequence that a run can have") {
  const std::vector<RopeAngle> fitting = angles_of("phi4_mini.v4", {1, 4096});
  const std::vector<RopeAngle> beyond = angles_of("phi4_mini.v4", {1, 4097});
  REQUIRE(fitting.size() == 48);
  CHECK(fitting[1].frequency == Approx(1.118320672 * beyond[1].frequency));
  CHECK(fitting[1].magnitude == beyond[1].magnitude);
  CHECK(angles_of("phi4_mini.v4", {1, 16}) == fitting);
  // A shorter row in a run with longer ones, and padding, which is not part of a row.
  CHECK(angles_of("phi4_mini.v4", {.sequence_length = 16, .longest_sequence = 4097}) == beyond);
  CHECK(angles_of("phi4_mini.v4", {1, 4098, 2}) == fitting);
}

TEST_CASE("activations and parameters have the dtype of computation, gradients have their own") {
  const ModelConfig c = config("smollm2_135m.v4");
  const ModelDtypes dtypes{.compute = DType::kBF16, .gradients = DType::kF32};
  const ModelDescription model = build_model(c, {1, 16}, GraphMode::kTrain, dtypes);
  CHECK(model.dtypes == dtypes);
  for (const LayerGraph& graph : model.graphs) {
    CHECK(graph.dtypes == dtypes);
    for (const Value& value : graph.values) {
      INFO(value.name);
      if (value.port == Port::kHidden || value.role == ValueRole::kParam)
        CHECK(value.dtype == DType::kBF16);
      if (value.role == ValueRole::kParamGrad || value.port == Port::kRope)
        CHECK(value.dtype == DType::kF32);
    }
  }
  CHECK(build_model(c, {1, 16}, GraphMode::kTrain).dtypes == ModelDtypes{});
}

TEST_CASE("dtypes that no kernel computes with are refused") {
  const ModelConfig c = config("smollm2_135m.v4");
  const auto refusal = [&](const ModelDtypes& dtypes) {
    try {
      build_model(c, {1, 16}, GraphMode::kTrain, dtypes);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUnsupported);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal({DType::kF16, DType::kBF16}) == "accepted");
  CHECK(refusal({DType::kI32, DType::kF32}) ==
        "activations in I32 are not supported\n  remedy: use fp32, bf16 or fp16");
  CHECK(refusal({DType::kF32, DType::kF64}) ==
        "gradients in F64 are not supported\n  remedy: use fp32, bf16 or fp16");
}

TEST_CASE("a micro-batch whose tokens cannot be numbered is refused") {
  const ModelConfig c = config("smollm2_135m.v4");
  try {
    build_model(c, {int64_t{1} << 40, int64_t{1} << 40}, GraphMode::kTrain);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(
        error.message() ==
        "a micro-batch of 1099511627776 sequences of 1099511627776 tokens has more than 2147483647 "
        "tokens");
  }
}

TEST_CASE("a folder's tensors are compared with the model's") {
  const ModelDescription model = build("smollm2_135m.v4");
  std::vector<std::pair<std::string, Dims>> found;
  for (const TensorInfo& tensor : model.tensors) found.emplace_back(tensor.name, tensor.shape);
  CHECK(check_tensors(model, found).empty());

  found.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", Dims{32});
  found.emplace_back("lm_head.weight", Dims{49152, 576});
  CHECK(check_tensors(model, found).empty());

  found[1].second = {576, 577};
  found.erase(found.begin() + 4);
  found.emplace_back("model.layers.30.mlp.up_proj.weight", Dims{1536, 576});
  found.emplace_back("model.norm.weight", Dims{576});
  CHECK(
      check_tensors(model, found) ==
      std::vector<std::string>{
          "tensor model.norm.weight occurs twice",
          "tensor model.layers.0.self_attn.q_proj.weight has shape [576, 577]; expected [576, 576]",
          "tensor model.layers.0.self_attn.o_proj.weight is missing; expected shape [576, 576]",
          "tensor model.layers.30.mlp.up_proj.weight is not a parameter of a llama model"});
  // An untied model needs a separate output matrix.
  const ModelDescription untied = build("llama2.v4");
  CHECK(check_tensors(untied, {}).back() ==
        "tensor lm_head.weight is missing; expected shape [32000, 4096]");
}

TEST_CASE("norms and biases are exempt from weight decay, magnitudes are not") {
  std::map<bool, std::set<std::string>> last_words;
  for (const auto& name : {"llama_linear.v4", "qwen3.v4"}) {
    for (const TensorInfo& tensor : build(name).tensors) {
      const auto parts = tensor.name.substr(tensor.name.rfind('.', tensor.name.rfind('.') - 1) + 1);
      last_words[has_weight_decay(tensor)].insert(parts);
    }
  }
  CHECK(last_words[true] == std::set<std::string>{"embed_tokens.weight", "q_proj.weight",
                                                  "k_proj.weight", "v_proj.weight", "o_proj.weight",
                                                  "gate_proj.weight", "up_proj.weight",
                                                  "down_proj.weight", "lm_head.weight"});
  CHECK(last_words[false] == std::set<std::string>{"q_proj.bias", "k_proj.bias", "v_proj.bias",
                                                   "o_proj.bias", "gate_proj.bias", "up_proj.bias",
                                                   "down_proj.bias", "input_layernorm.weight",
                                                   "post_attention_layernorm.weight", "norm.weight",
                                                   "q_norm.weight", "k_norm.weight"});
  for (const char* name : {"q_proj.lora_A.weight", "q_proj.lora_B.weight"})
    CHECK(has_weight_decay(TensorInfo(name, {4, 4})));
  CHECK(has_weight_decay(TensorInfo("q_proj.lora_magnitude_vector", {4})));
}

}  // namespace
}  // namespace ftrun
