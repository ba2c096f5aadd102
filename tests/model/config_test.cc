#include "model/model_config.h"

#include <cmath>
#include <string>

#include "fixtures.h"
#include "model/families.h"
#include "model/rope_angles.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using nlohmann::json;
using testing::changed_config_text;
using testing::config;
using testing::kRemoved;
using testing::refusal;

const std::vector<std::string> kNames{
    "llama2", "llama3", "smollm2_135m", "llama_linear", "mistral_window", "mistral_nemo",
    "ministral", "ministral3", "qwen2", "qwen2_window", "qwen3", "granite", "phi3", "gemma",
    "gemma2", "gemma3", "olmo", "olmo2", "smollm3", "starcoder2", "stablelm", "glm", "glm4",
    "cohere", "cohere2", "gpt_neox", "phi1_5", "phi2",
    // Qwen2.5 as in its model card, gpt-oss's scaling, DeepSeek's mscale, Phi-3-mini-128k and
    // Phi-4-mini as published, and a rotation that is scaled for one layer type only.
    "qwen2_yarn", "llama_yarn", "llama_mscale", "phi3_128k", "phi4_mini", "gemma3_yarn"};

const json& expected() {
  static const json kExpected = json::parse(read_file(testing::config_path("expected")));
  return kExpected;
}

TEST_CASE("configs of transformers 4 and 5 mean the same") {
  for (const std::string& name : kNames) {
    INFO(name);
    REQUIRE(config_text(config(name + ".v4")) == config_text(config(name + ".v5")));
    REQUIRE(config(name + ".v4") == config(name + ".v5"));
  }
}

TEST_CASE("configs have the meaning that transformers gives them") {
  REQUIRE(expected().size() == 2 * kNames.size());
  for (const auto& [name, expected_config] : expected().items()) {
    INFO(name);
    const ModelConfig c = config(name);
    CHECK(c.vocab_rows == expected_config["vocab_rows"]);
    CHECK(c.hidden == expected_config["hidden"]);
    CHECK(c.feed_forward == expected_config["feed_forward"]);
    CHECK(c.layers == expected_config["layers"]);
    CHECK(c.query_heads == expected_config["query_heads"]);
    CHECK(c.kv_heads == expected_config["kv_heads"]);
    CHECK(c.head_size == expected_config["head_size"]);
    CHECK(c.max_positions == expected_config["max_positions"]);
    CHECK(c.norm_epsilon == expected_config["norm_epsilon"]);
    CHECK(c.tied == expected_config["tied"]);
    CHECK(c.rope.theta == expected_config["theta"]);
    CHECK(c.windows == expected_config["windows"].get<std::vector<int64_t>>());
    if (expected_config.contains("rotates"))
      CHECK(c.rotates == expected_config["rotates"].get<std::vector<bool>>());
  }
}

void require_angles(const ModelConfig& c, const RopeConfig& rope, const json& expected_angles,
                    int64_t longest_sequence = 1) {
  const auto angles = inverse_frequencies(rope, c.rotary_size(), longest_sequence);
  REQUIRE(angles.size() == expected_angles.size());
  for (size_t i = 0; i < angles.size(); ++i) {
    const double expected_angle = expected_angles[i];
    INFO("angle " << i << ": " << angles[i] << " for " << expected_angle);
    CHECK(std::abs(angles[i] - expected_angle) <= 2 * std::ldexp(expected_angle, -23));
    CHECK(angles[i] == static_cast<double>(static_cast<float>(angles[i])));
  }
}

TEST_CASE("rotary angles equal those of transformers within two roundings of fp32") {
  for (const auto& [name, expected_config] : expected().items()) {
    INFO(name);
    const ModelConfig c = config(name);
    require_angles(c, c.rope, expected_config["inverse_frequencies"], c.rope.original_positions());
    CHECK(c.rope.attention_factor() ==
          Approx(expected_config.value("attention_factor", 1.0)).epsilon(1e-14));
    const bool is_longrope = c.rope.as<LongRopeScaling>() != nullptr;
    REQUIRE(is_longrope == expected_config.contains("long_inverse_frequencies"));
    if (is_longrope)
      require_angles(c, c.rope, expected_config["long_inverse_frequencies"],
                     c.rope.original_positions() + 1);
    REQUIRE(c.window_rope.has_value() == expected_config.contains("window_inverse_frequencies"));
    if (c.window_rope)
      require_angles(c, *c.window_rope, expected_config["window_inverse_frequencies"]);
  }
}

TEST_CASE("Gemma's norms, bounds, windows and rotations are read, shown and refused by key") {
  const ModelConfig first = config("gemma.v4");
  CHECK(first.norm == NormKind::kRmsStoredLessOne);
  CHECK(first.activation == Activation::kGeluTanh);  // "gelu" in the file
  CHECK(first.embedding_scale == std::sqrt(2048.0));
  CHECK_FALSE(first.output_norms);
  const ModelConfig second = config("gemma2.v4");
  CHECK(second.attention_scale == 0.0625);
  const std::string text = config_text(second);
  for (const char* line :
       {"\nfeatures tied norms_less_one output_norms gelu_tanh\n",
        "\nscales embedding 48, attention 0.0625\n", "\nsoftcaps attention 50, logits 30\n"})
    CHECK(text.find(line) != std::string::npos);
  const ModelConfig third = config("gemma3.v5");
  CHECK(third.qk_norm == QkNorm::kEachHead);
  CHECK(third.attention_softcap + third.logit_softcap == 0);
  CHECK(config_text(third).find("\nrope linear theta 1000000 factor 8, with a window default theta "
                                "10000\n") != std::string::npos);
  // The classes have defaults for absent keys; null disables the feature.
  const ModelConfig plain =
      parse_model_config(changed_config_text({{"attn_logit_softcapping", kRemoved},
                                              {"final_logit_softcapping", nullptr},
                                              {"pad_token_id", kRemoved},
                                              {"query_pre_attn_scalar", 64}},
                                             "gemma2.v4"),
                         "m");
  CHECK(plain.attention_softcap == 50.0);
  CHECK(plain.logit_softcap == 0.0);
  CHECK(plain.padding_row == 0);
  CHECK(plain.attention_scale == 0.125);
  CHECK(refusal(changed_config_text({{"sliding_window", nullptr}, {"final_logit_softcapping", -1}},
                                    "gemma2.v4")) ==
        "4: config.json:\n  sliding_window: found null; expected the window of layers that have one"
        "\n  final_logit_softcapping: found -1; expected a number above 0");
  CHECK(refusal(changed_config_text({{"use_bidirectional_attention", true}}, "gemma3.v4")) ==
        "3: config.json: use_bidirectional_attention: is not supported yet");
  CHECK(refusal(changed_config_text({{"hidden_activation", "silu"}}, "gemma.v4")) ==
        "3: config.json: hidden_activation: is not what hidden_act says");
  CHECK(
      refusal(changed_config_text(
          {{"rope_parameters",
            {{"full_attention", {{"rope_type", "ntk"}}}, {"sliding_attention", 5}}}},
          "gemma3.v5")) ==
      "4: config.json:\n  rope_parameters.sliding_attention: found 5; expected an object\n"
      "  rope_parameters.full_attention.rope_type: \"ntk\" is not supported yet (default, linear, "
      "llama3, yarn and longrope are)");
}

TEST_CASE("a config's multipliers are read, shown and bounded") {
  const ModelConfig c = config("granite.v5");
  CHECK(c.embedding_scale == 12.0);
  CHECK(c.residual_scale == 0.22);
  CHECK(c.attention_scale == 0.015625);
  CHECK(c.logit_scale == 0.125);
  CHECK(config_text(c).find(
            "\nscales embedding 12, residual 0.22, logits 0.125, attention 0.015625\n") !=
        std::string::npos);
  const ModelConfig plain = parse_model_config(
      changed_config_text({{"embedding_multiplier", kRemoved}, {"attention_multiplier", kRemoved}},
                          "granite.v5"),
      "m");
  CHECK(plain.embedding_scale == 1.0);
  CHECK(plain.attention_scale == 1.0);
  CHECK(refusal(changed_config_text({{"logits_scaling", 0}, {"residual_multiplier", "much"}},
                                    "granite.v5")) ==
        "4: config.json:\n  residual_multiplier: found \"much\"; expected a number above 0\n"
        "  logits_scaling: found 0; expected a number above 0");
}

TEST_CASE("a config of GPT-2 has its own keys, and absent ones have the defaults of its class") {
  const ModelConfig c =
      parse_model_config(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4})", "m");
  CHECK(config_text(c) ==
        "family gpt2\n"
        "vocabulary 50257\n"
        "hidden 64\n"
        "feed_forward 256\n"
        "layers 3\n"
        "heads 4 query, 4 key/value, of 16\n"
        "positions 1024\n"
        "norm_epsilon 1e-05\n"
        "features tied qkv_bias attention_out_bias mlp_bias layer_norm learned_positions plain_mlp "
        "gelu_tanh\n"
        "rope none\n"
        "window full\n"
        "dtype unknown\n"
        "tokens eos none bos none pad none\n");
  CHECK(c.dropouts == std::vector<std::string>{"attn_pdrop", "embd_pdrop", "resid_pdrop"});
  const ModelConfig other = parse_model_config(
      R"({"model_type": "gpt2", "n_inner": 96, "activation_function": "relu", "attn_pdrop": 0,
          "embd_pdrop": 0.0, "resid_pdrop": 0, "scale_attn_weights": false})",
      "m");
  CHECK(other.feed_forward == 96);
  CHECK(other.activation == Activation::kRelu);
  CHECK(other.attention_scale == 1.0);
  CHECK(other.dropouts.empty());
  CHECK(
      refusal(R"({"model_type": "gpt2", "n_embd": 65, "scale_attn_by_inverse_layer_idx": true})") ==
      "4: config.json:\n  n_embd: 65 is not a multiple of n_head 12\n"
      "  scale_attn_by_inverse_layer_idx: is not supported yet");
}

TEST_CASE("a config of OPT has its own keys, and unsupported forms are refused by key") {
  const auto opt = [](const std::string& more) {
    return cat(R"({"model_type": "opt", "vocab_size": 512, "hidden_size": 64, "ffn_dim": 96,
                   "num_hidden_layers": 3, "num_attention_heads": 4)",
               more, "}");
  };
  const ModelConfig c = parse_model_config(opt(""), "m");
  CHECK(config_text(c) ==
        "family opt\n"
        "vocabulary 512\n"
        "hidden 64\n"
        "feed_forward 96\n"
        "layers 3\n"
        "heads 4 query, 4 key/value, of 16\n"
        "positions 2048\n"
        "norm_epsilon 1e-05\n"
        "features tied qkv_bias attention_out_bias mlp_bias layer_norm learned_positions plain_mlp "
        "relu\n"
        "rope none\n"
        "window full\n"
        "dtype unknown\n"
        "tokens eos none bos none pad 1\n");
  CHECK(c.dropouts == std::vector<std::string>{"dropout"});
  CHECK(c.position_offset == 2);
  CHECK(config_text(parse_model_config(opt(R"(, "layer_norm_elementwise_affine": false)"), "m"))
            .find("\nfeatures tied qkv_bias attention_out_bias mlp_bias layer_norm_without_weight "
                  "learned_positions plain_mlp relu\n") != std::string::npos);
  CHECK(
      refusal(opt(R"(, "do_layer_norm_before": false, "word_embed_proj_dim": 32,
                       "_remove_final_layer_norm": true)")) ==
      "3: config.json:\n"
      "  do_layer_norm_before: norms after the sums are not supported yet\n"
      "  _remove_final_layer_norm: is not supported yet\n"
      "  word_embed_proj_dim: embeddings of another width than hidden_size are not supported yet");
}

TEST_CASE(
    "a config of Falcon says how many key heads there are, and unsupported forms are refused") {
  const auto falcon = [](const std::string& more) {
    return cat(R"({"model_type": "falcon", "vocab_size": 512, "hidden_size": 64,
                   "num_hidden_layers": 2, "num_attention_heads": 4)",
               more, "}");
  };
  const auto kv_heads = [&](const std::string& more) {
    return parse_model_config(falcon(more), "m").kv_heads;
  };
  CHECK(kv_heads("") == 1);
  CHECK(kv_heads(R"(, "num_kv_heads": 2)") == 1);
  CHECK(kv_heads(R"(, "multi_query": false)") == 4);
  CHECK(kv_heads(R"(, "new_decoder_architecture": true, "num_kv_heads": 2,
                      "num_ln_in_parallel_attn": 1)") == 2);
  const ModelConfig c = parse_model_config(falcon(R"(, "bias": true)"), "m");
  CHECK(c.feed_forward == 256);
  CHECK(config_text(c).find("\nfeatures tied qkv_bias attention_out_bias mlp_bias layer_norm "
                            "no_mlp_norm parallel_residual plain_mlp gelu\n") != std::string::npos);
  CHECK(parse_model_config(falcon(R"(, "parallel_attn": false)"), "m").mlp_norm);
  CHECK(refusal(falcon(
            R"(, "new_decoder_architecture": true, "parallel_attn": false, "alibi": true)")) ==
        "3: config.json:\n"
        "  alibi: attention biases by distance are not supported; Falcon models with rotary "
        "embeddings are\n"
        "  parallel_attn: is not supported yet");
  CHECK(parse_model_config(falcon(R"(, "new_decoder_architecture": true)"), "m").mlp_norm);
  CHECK(refusal(falcon(R"(, "num_ln_in_parallel_attn": 2)")) ==
        "3: config.json: num_ln_in_parallel_attn: 2 norms in blocks of the old architecture are "
        "not supported yet");
}

TEST_CASE("layers that do not rotate, and attention and MLP in parallel, are read and shown") {
  const ModelConfig smol = config("smollm3.v4");
  CHECK(config_text(smol).find("\nrope default theta 5000000, none on layers "
                               "3,7,11,15,19,23,27,31,35\n") != std::string::npos);
  const auto rotating = [](const json& value) {
    return parse_model_config(
               changed_config_text(
                   {{"no_rope_layers", value}, {"num_hidden_layers", 4}, {"layer_types", kRemoved}},
                   "smollm3.v4"),
               "m")
        .rotates;
  };
  CHECK(rotating(kRemoved) == std::vector<bool>{true, true, true, false});
  CHECK(rotating(json::array({0, 1, 0, 1, 1})) == std::vector<bool>{false, true, false, true});
  CHECK(refusal(changed_config_text({{"no_rope_layers", json::array({1, 0})}}, "smollm3.v5")) ==
        "4: config.json: no_rope_layers: found a list of 2 entries; expected a 1 or 0 for each of "
        "36 layers");
  const ModelConfig slides = parse_model_config(
      changed_config_text(
          {{"use_sliding_window", true}, {"sliding_window", 64}, {"layer_types", kRemoved}},
          "smollm3.v4"),
      "m");
  CHECK(slides.windows[2] == 0);
  CHECK(slides.windows[3] == 64);
  const ModelConfig cohere = config("cohere2.v5");
  const std::string text = config_text(cohere);
  for (const char* line :
       {"\nfeatures tied layer_norm_without_bias no_mlp_norm parallel_residual\n",
        "\nscales logits 0.25\n",
        "\nrope default theta 50000, of neighbors, none on layers "
        "3,7,11,15,19,23,27,31\n"})
    CHECK(text.find(line) != std::string::npos);
  const char* const norms =
      "\nfeatures tied own_head_norms layer_norm_without_bias no_mlp_norm "
      "parallel_residual\n";
  CHECK(config_text(
            parse_model_config(changed_config_text({{"use_qk_norm", true}}, "cohere.v4"), "m"))
            .find(norms) != std::string::npos);
  // Cohere 2's class ignores this key.
  CHECK(parse_model_config(changed_config_text({{"use_qk_norm", true}}, "cohere2.v5"), "m") ==
        cohere);
  const ModelConfig stable = parse_model_config(
      changed_config_text({{"use_parallel_residual", true}}, "stablelm.v4"), "m");
  CHECK(stable.parallel_residual);
  CHECK_FALSE(stable.mlp_norm);
  CHECK(parse_model_config(changed_config_text({{"qk_layernorm", true}}, "stablelm.v4"), "m")
            .qk_norm == QkNorm::kLayerNormByHead);
  const ModelConfig phi = config("phi2.v4");
  CHECK(phi.rope.partial == 0.4);
  CHECK(phi.activation == Activation::kGeluTanh);
  CHECK(phi.dropouts.empty());
  // The config is unchanged, as it was published.
  CHECK(parse_model_config(changed_config_text({{"resid_pdrop", 0.1}}, "phi2.v4"), "m").dropouts ==
        std::vector<std::string>{"resid_pdrop"});
  CHECK(config_text(phi).find(
            "\nfeatures qkv_bias attention_out_bias mlp_bias head_bias layer_norm "
            "no_mlp_norm parallel_residual plain_mlp gelu_tanh\n") != std::string::npos);
  CHECK(refusal(changed_config_text({{"qk_layernorm", true}}, "phi2.v4")) ==
        "3: config.json: qk_layernorm: layer norms of heads that share a weight and a bias are not "
        "supported yet");
  const ModelConfig neox = config("gpt_neox.v4");
  CHECK(neox.rope.partial == 0.25);
  CHECK(neox.mlp_norm);
  CHECK(neox.parallel_residual);
  CHECK(config_text(config("olmo.v4")).find("\nfeatures tied layer_norm_without_weight\n") !=
        std::string::npos);
  CHECK(refusal(changed_config_text({{"clip_qkv", 8.0}}, "olmo.v5")) ==
        "3: config.json: clip_qkv: found 8.0; queries, keys and values that are clipped to a bound "
        "are not supported yet (null is)");
  CHECK(config_text(config("olmo2.v4"))
            .find("\nfeatures whole_qk_norm no_input_norm no_mlp_norm "
                  "output_norms\n") != std::string::npos);
}

TEST_CASE("a model's config is described in a text") {
  REQUIRE(config_text(config("llama3.v5")) ==
          "family llama\n"
          "vocabulary 128256\n"
          "hidden 2048\n"
          "feed_forward 8192\n"
          "layers 16\n"
          "heads 32 query, 8 key/value, of 64\n"
          "positions 131072\n"
          "norm_epsilon 1e-05\n"
          "features tied\n"
          "rope llama3 theta 500000 factor 32 low 1 high 4 original 8192\n"
          "window full\n"
          "dtype BF16\n"
          "tokens eos 128001,128008,128009 bos 128000 pad none\n");
  REQUIRE(config_text(config("qwen2_window.v4")) ==
          "family qwen2\n"
          "vocabulary 1000\n"
          "hidden 256\n"
          "feed_forward 512\n"
          "layers 6\n"
          "heads 8 query, 4 key/value, of 32\n"
          "positions 4096\n"
          "norm_epsilon 1e-06\n"
          "features qkv_bias\n"
          "rope default theta 1000000\n"
          "window full x4, 128 x2\n"
          "dtype F32\n"
          "tokens eos 151645 bos 151643 pad none\n");
  const std::string linear = config_text(config("llama_linear.v4"));
  REQUIRE(linear.find(
              "features qkv_bias attention_out_bias mlp_bias\nrope linear theta 10000 factor 4\n"
              "window full\ndtype F32\ntokens eos none bos 1 pad none\n") != std::string::npos);
  REQUIRE(config_text(config("qwen3.v5")).find("features tied qk_norm\n") != std::string::npos);
}

TEST_CASE("keys that may be absent take their class's defaults") {
  const auto parsed = [](const std::string& text) {
    return parse_model_config(text, "config.json");
  };
  CHECK(parsed(changed_config_text({{"num_key_value_heads", kRemoved}})).kv_heads == 9);
  CHECK(parsed(changed_config_text({{"num_key_value_heads", nullptr}})).kv_heads == 9);
  CHECK(parsed(changed_config_text({{"head_dim", nullptr}})).head_size == 64);
  CHECK(parsed(changed_config_text({{"rope_theta", kRemoved}})).rope.theta == 10000.0);
  CHECK(parsed(changed_config_text({{"rms_norm_eps", kRemoved}})).norm_epsilon == 1e-6);
  CHECK_FALSE(parsed(changed_config_text({{"tie_word_embeddings", kRemoved}})).tied);
  CHECK(parsed(changed_config_text({{"eos_token_id", kRemoved}})).eos_ids.empty());
  CHECK(parsed(changed_config_text({{"pad_token_id", -1}})).pad_id == std::nullopt);
  const int64_t rows = parsed(changed_config_text({})).vocab_rows;
  CHECK(parsed(changed_config_text({{"pad_token_id", -1}})).padding_row ==
        rows - 1);  // as torch takes it
  CHECK(parsed(changed_config_text({{"pad_token_id", 3}})).padding_row == 3);
  CHECK(parsed(changed_config_text({{"pad_token_id", rows}})).padding_row == std::nullopt);
  CHECK(parsed(changed_config_text({{"pad_token_id", nullptr}})).padding_row == std::nullopt);
  CHECK(parsed(changed_config_text({{"hidden_act", "swish"}})).hidden == 576);
  CHECK(parsed(changed_config_text({{"torch_dtype", kRemoved}})).dtype == std::nullopt);

  const auto mistral = [&](const std::string& key, const json& value) {
    return parsed(changed_config_text({{key, value}}, "mistral_window.v4"));
  };
  CHECK(mistral("sliding_window", kRemoved).windows == std::vector<int64_t>(32, 4096));
  CHECK(mistral("sliding_window", nullptr).windows == std::vector<int64_t>(32, 0));
  CHECK(mistral("num_key_value_heads", kRemoved).kv_heads == 8);
  CHECK(parsed(changed_config_text({{"head_dim", kRemoved}}, "qwen3.v5")).head_size == 128);
}

TEST_CASE("llama3 scaling falls back on the model's positions") {
  const json scaling{{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0}};
  const auto text = changed_config_text({{"rope_scaling", scaling}});
  CHECK(parse_model_config(text, "c").rope.original_positions() == 8192);
  const auto outer =
      changed_config_text({{"rope_scaling", scaling}, {"original_max_position_embeddings", 4096}});
  CHECK(parse_model_config(outer, "c").rope.original_positions() == 4096);
}

json yarn_json(const std::vector<std::pair<std::string, json>>& changes) {
  json scaling{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}};
  for (const auto& [key, value] : changes) {
    if (value.is_discarded())
      scaling.erase(key);
    else
      scaling[key] = value;
  }
  return scaling;
}

TEST_CASE("yarn reads the same keys of its object and its class as transformers") {
  const auto read = [](const json& scaling) {
    return parse_model_config(changed_config_text({{"rope_scaling", scaling}}), "c").rope;
  };
  const RopeConfig plain = read(yarn_json({}));
  REQUIRE(plain.as<YarnScaling>());
  CHECK(plain.original_positions() == 2048);
  CHECK(plain.attention_factor() == Approx(0.1 * std::log(4.0) + 1.0));
  // Zeros have the same effect as absent keys. A null factor is computed as the ratio of the
  // longest contexts.
  CHECK(read(yarn_json(
            {{"beta_fast", 0}, {"beta_slow", nullptr}, {"mscale", 0}, {"mscale_all_dim", 2}})) ==
        plain);
  CHECK(read(yarn_json({{"factor", nullptr}})).factor() == 4.0);
  CHECK(read(yarn_json({{"attention_factor", 1.5}, {"mscale", 1}, {"mscale_all_dim", 2}}))
            .attention_factor() == 1.5);
  CHECK(read(yarn_json({{"mscale", 2}, {"mscale_all_dim", 1}})).attention_factor() ==
        Approx((0.2 * std::log(4.0) + 1.0) / (0.1 * std::log(4.0) + 1.0)));
  CHECK(read(yarn_json({{"factor", 1}})).attention_factor() == 1.0);
  CHECK(read(yarn_json({{"original_max_position_embeddings", kRemoved}})).original_positions() ==
        8192);
  const auto outer = changed_config_text(
      {{"rope_scaling", yarn_json({})}, {"original_max_position_embeddings", 4096}});
  CHECK(parse_model_config(outer, "c").rope.original_positions() == 4096);
  // A class with a rotation for each layer type reads only the object.
  const auto inner =
      changed_config_text({{"original_max_position_embeddings", 4096}}, "gemma3_yarn.v5");
  CHECK(parse_model_config(inner, "c").rope.original_positions() == 16384);
  CHECK(config_text(config("llama_yarn.v4"))
            .find("\nrope yarn theta 150000 factor 32 fast 32 slow 1 not truncated original 4096 "
                  "attention 1.346574\n") != std::string::npos);
}

TEST_CASE("longrope is also spelled su, and Phi-3's class takes yarn for it") {
  const ModelConfig published = config("phi3_128k.v4");
  const json scaling = json::parse(changed_config_text({}, "phi3_128k.v4"))["rope_scaling"];
  for (const char* name : {"su", "yarn"}) {
    json other = scaling;
    other["type"] = name;
    CHECK(parse_model_config(changed_config_text({{"rope_scaling", other}}, "phi3_128k.v4"), "c") ==
          published);
  }
  // The class has its own original_max_position_embeddings, 4096, which takes precedence over the
  // object's.
  json inner = scaling;
  inner["original_max_position_embeddings"] = 8192;
  CHECK(parse_model_config(changed_config_text({{"rope_scaling", inner},
                                                {"original_max_position_embeddings", kRemoved}},
                                               "phi3_128k.v4"),
                           "c") == published);
  inner["attention_factor"] = 1.25;
  const ModelConfig given =
      parse_model_config(changed_config_text({{"rope_scaling", inner}}, "phi3_128k.v4"), "c");
  CHECK(given.rope.attention_factor() == 1.25);
  CHECK_FALSE(uses_long_factors(given.rope, 4096));
  CHECK(uses_long_factors(given.rope, 4097));
  CHECK(config_text(config("phi4_mini.v5"))
            .find("\nrope longrope theta 10000 of 0.75 of a head factor 32 original 4096 attention "
                  "1.190238\n") != std::string::npos);
}

TEST_CASE(
    "the message about sequences longer than the model's positions suggests a rope scaling that "
    "reaches them") {
  CHECK(max_supported_positions(config("smollm2_135m.v4")) == 8192);
  CHECK(suggest_rope_scaling(config("smollm2_135m.v4"), 20000) ==
        "yarn reaches them: \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2.45, "
        "\"original_max_position_embeddings\": 8192} in config.json");
  CHECK(max_supported_positions(config("llama3.v4")) == 131072);
  CHECK(suggest_rope_scaling(config("llama3.v4"), 262144) ==
        "factor 64 instead of 32 in the rope scaling of config.json reaches them");
  CHECK(max_supported_positions(config("qwen2_yarn.v4")) == 131072);
  CHECK(suggest_rope_scaling(config("qwen2_yarn.v4"), 196608) ==
        "factor 6 instead of 4 in the rope scaling of config.json reaches them");
  CHECK(suggest_rope_scaling(config("phi4_mini.v4"), 200000) ==
        "longrope's long_factor is for sequences of at most 131072 tokens; longer ones need "
        "factors that were found for them");
  CHECK(suggest_rope_scaling(config("phi3.v4"), 8192) ==
        "longrope reaches them: rope_scaling with a short_factor and a long_factor that were found "
        "for this model");
  const auto gpt2 =
      parse_model_config(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4})", "m");
  CHECK(suggest_rope_scaling(gpt2, 2048).empty());
}

TEST_CASE("a non-empty rope_scaling takes precedence over rope_parameters") {
  const json five{{"rope_type", "default"}, {"rope_theta", 5000.0}};
  const json four{{"type", "linear"}, {"factor", 2.0}};
  const auto both = parse_model_config(
      changed_config_text({{"rope_parameters", five}, {"rope_scaling", four}}), "c");
  CHECK(both.rope == RopeConfig{.theta = 100000.0, .scaling = LinearScaling{2.0}});
  const auto empty = parse_model_config(
      changed_config_text({{"rope_parameters", five}, {"rope_scaling", json::object()}}), "c");
  CHECK(empty.rope == RopeConfig{.theta = 5000.0});
}

TEST_CASE("all problems of a config are reported at once, each with its key") {
  const std::string text = changed_config_text({{"vocab_size", kRemoved},
                                                {"hidden_size", "wide"},
                                                {"num_hidden_layers", 30.5},
                                                {"num_attention_heads", -9},
                                                {"intermediate_size", 99999999999999999ULL},
                                                {"tie_word_embeddings", 1},
                                                {"rms_norm_eps", 0},
                                                {"rope_scaling", json::array({1})},
                                                {"eos_token_id", json::array({3, "x"})},
                                                {"hidden_act", "quick_gelu"}});
  REQUIRE(
      refusal(text) ==
      "4: config.json:\n"
      "  vocab_size: missing; expected a whole number from 1 to 16777216\n"
      "  hidden_size: found \"wide\"; expected a whole number from 1 to 1048576\n"
      "  intermediate_size: found 99999999999999999; expected a whole number from 1 to 4194304\n"
      "  num_hidden_layers: found 30.5; expected a whole number from 1 to 10000\n"
      "  num_attention_heads: found -9; expected a whole number from 1 to 16384\n"
      "  rms_norm_eps: found 0; expected a number above 0\n"
      "  tie_word_embeddings: found 1; expected true or false\n"
      "  rope_scaling: found a list of 1 entry; expected an object\n"
      "  eos_token_id: entry 1 is \"x\"; expected a token id\n"
      "  hidden_act: \"quick_gelu\" is not supported yet (gelu, gelu_new, gelu_pytorch_tanh, relu, "
      "relu2, silu, swish are)");
}

struct RefusedConfig {
  std::vector<std::pair<std::string, json>> changes;
  std::string base;
  std::string message;
};

TEST_CASE("dimensions that do not fit together are refused") {
  const std::string llama = "smollm2_135m.v4";
  const std::vector<RefusedConfig> cases{
      {{{"num_key_value_heads", 2}},
       llama,
       "4: config.json: num_key_value_heads: 2 does not divide num_attention_heads 9"},
      {{{"hidden_size", 577}},
       llama,
       "4: config.json: hidden_size: 577 is not a multiple of num_attention_heads 9, and there is "
       "no head_dim"},
      {{{"head_dim", 63}}, llama, "4: config.json: head_dim: 63 is odd; the rotation needs pairs"},
      {{{"num_attention_heads", 16384}, {"num_key_value_heads", 1}, {"head_dim", 128}},
       llama,
       "4: config.json: head_dim: 128 times num_attention_heads 16384 is above 1048576"},
      {{{"hidden_size", nullptr}},
       llama,
       "4: config.json: hidden_size: found null; expected a whole number from 1 to 1048576"},
      {{{"attention_dropout", 1.5}},
       llama,
       "4: config.json: attention_dropout: found 1.5; expected a number from 0 to below 1"},
      {{{"layer_types", json::array({"full_attention"})}},
       "qwen3.v4",
       "4: config.json: layer_types: has 1 entries for num_hidden_layers 28"},
      {{{"sliding_window", 0}},
       "mistral_window.v4",
       "4: config.json: sliding_window: found 0; expected a whole number from 1 to 1099511627776"},
      {{{"rope_scaling", {{"rope_type", "linear"}}}},
       llama,
       "4: config.json: rope_scaling.factor: missing; expected a number above 0"},
      {{{"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 8},
          {"low_freq_factor", 4},
          {"high_freq_factor", 4}}}},
       llama,
       "4: config.json: rope_scaling.high_freq_factor: must be above low_freq_factor"},
      {{{"rope_scaling", yarn_json({{"factor", kRemoved}})}},
       llama,
       "4: config.json: rope_scaling.factor: missing; expected a number of at least 1"},
      {{{"rope_scaling", yarn_json({{"factor", nullptr}})}, {"max_position_embeddings", kRemoved}},
       llama,
       "4: config.json: rope_scaling.factor: missing, and it cannot be computed without "
       "max_position_embeddings"},
      {{{"rope_scaling", yarn_json({{"factor", 0.5}, {"mscale", -1}, {"truncate", 0}})}},
       llama,
       "4: config.json:\n"
       "  rope_scaling.factor: found 0.5; expected a number of at least 1\n"
       "  rope_scaling.truncate: found 0; expected true or false\n"
       "  rope_scaling.mscale: found -1; expected a number of at least 0"},
      {{{"rope_scaling", yarn_json({{"beta_fast", 1}, {"beta_slow", 2}, {"rope_theta", 1}})}},
       llama,
       "4: config.json:\n"
       "  rope_scaling.rope_type: \"yarn\" expects a rope_theta above 1, found 1\n"
       "  rope_scaling.beta_fast: found 1; expected at least beta_slow, 2"},
      {{{"rope_parameters", {{"full_attention", yarn_json({{"truncate", false}})}}}},
       "gemma3.v5",
       "3: config.json: rope_parameters.full_attention.truncate: transformers reads it only for "
       "models with one rotation"},
      {{{"rope_scaling", {{"rope_type", "yarn"}}}},
       "phi3.v4",
       "4: config.json: rope_scaling.rope_type: \"yarn\" is read as \"longrope\" in this family, "
       "and needs short_factor and long_factor"},
      {{{"rope_scaling",
         {{"type", "longrope"},
          {"short_factor", json::array({1.0})},
          {"long_factor", json::array({1.0, "x"})}}},
        {"original_max_position_embeddings", 1}},
       "phi3.v4",
       "4: config.json:\n"
       "  rope_scaling.original_max_position_embeddings: found 1; longrope expects at least 2\n"
       "  rope_scaling.short_factor: has 1 numbers; expected 48, one for each pair of elements "
       "that "
       "rotates\n"
       "  rope_scaling.long_factor: entry 1 is \"x\"; expected a number above 0"},
      {{{"rope_theta", "big"}},
       llama,
       "4: config.json: rope_theta: found \"big\"; expected a number above 0"},
  };
  for (const RefusedConfig& c : cases)
    CHECK(refusal(changed_config_text(c.changes, c.base)) == c.message);
  const json one_sliding = [] {
    json types(std::vector<std::string>(24, "full_attention"));
    types[3] = "sliding_attention";
    return types;
  }();
  CHECK(refusal(changed_config_text({{"layer_types", one_sliding}}, "qwen2.v4")) ==
        "4: config.json: layer_types: layer 3 is \"sliding_attention\", but no sliding window is "
        "in use");
}

TEST_CASE("unsupported features of a model are refused by name") {
  const std::string llama = "smollm2_135m.v4";
  const std::vector<RefusedConfig> cases{
      {{{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 4.0}}}},
       llama,
       "3: config.json: rope_scaling.rope_type: \"ntk\" is not supported yet (default, linear, "
       "llama3, yarn and longrope are)"},
      {{{"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}}},
       llama,
       "3: config.json: rope_scaling.type: \"dynamic\" changes all angles with the longest "
       "sequence of a batch, so what is learned from a sequence would depend on the others of its "
       "batch; remove it for sequences of at most 8192 tokens, which rotate as without it, and for "
       "longer ones write \"yarn\" or \"linear\" with the same factor"},
      {{{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}},
       "phi3.v4",
       "3: config.json: rope_scaling.rope_type: \"dynamic\" changes all angles with the longest "
       "sequence of a batch, so what is learned from a sequence would depend on the others of its "
       "batch; remove it for sequences of at most 4096 tokens, which rotate as without it, and for "
       "longer ones write "
       "\"longrope\" with its factors"},
      {{{"rope_scaling",
         {{"rope_type", "yarn"},
          {"factor", 4.0},
          {"original_max_position_embeddings", 2048},
          {"attn_factor", 1.0}}}},
       llama,
       "3: config.json: rope_scaling.\"attn_factor\": is not a key of yarn that ftrun reads "
       "(attention_factor, beta_fast, beta_slow, factor, finetuned, mscale, mscale_all_dim, "
       "original_max_position_embeddings, partial_rotary_factor, rope_theta, rope_type, truncate, "
       "type)"},
      {{{"partial_rotary_factor", 0.5}},
       llama,
       "3: config.json: partial_rotary_factor: partial rotation is not supported yet"},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "qwen3.v5",
       "3: config.json: rope_parameters: a rotation for each layer type is not supported yet"},
      {{{"hidden_act", "quick_gelu"}},
       llama,
       "3: config.json: hidden_act: \"quick_gelu\" is not supported yet (gelu, gelu_new, "
       "gelu_pytorch_tanh, relu, relu2, silu, swish are)"},
      {{{"partial_rotary_factor", 0.7}},
       "phi3.v4",
       "4: config.json: partial_rotary_factor: 0.7 of 128 is 89, which is odd; the rotation needs "
       "pairs"},
      {{{"embd_pdrop", "some"}},
       "phi3.v5",
       "4: config.json: embd_pdrop: found \"some\"; expected a number"},
      {{{"architectures", {"LlamaForSequenceClassification"}}},
       llama,
       "3: config.json: architectures: \"LlamaForSequenceClassification\" is not supported yet "
       "(LlamaForCausalLM is)"},
      {{{"quantization_config", {{"bits", 4}}}},
       llama,
       "3: config.json: quantization_config: the weights are already quantized with an unnamed "
       "method, which ftrun cannot read (it reads fp8 with scales, and bitsandbytes); give the "
       "original model, which quantization quantizes while it is loaded"},
      {{{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}},
       llama,
       "3: config.json: quantization_config: the weights are already quantized with GPTQ, which "
       "ftrun cannot read (it reads fp8 with scales, and bitsandbytes); give the original "
       "model, which quantization quantizes while it is loaded"},
      {{{"quantization_config", {{"quant_method", "mxfp4"}}}},
       llama,
       "3: config.json: quantization_config: the weights are already quantized with MXFP4, "
       "which ftrun cannot read (it reads fp8 with scales, and bitsandbytes); give the original "
       "model, which quantization quantizes while it is loaded"},
      {{{"quantization_config", {{"quant_method", "spqr"}}}},
       llama,
       "3: config.json: quantization_config: the weights are already quantized with \"spqr\", "
       "which ftrun cannot read (it reads fp8 with scales, and bitsandbytes); give the original "
       "model, which quantization quantizes while it is loaded"},
      {{{"num_hidden_layers", 1}, {"layer_types", {"linear_attention"}}},
       llama,
       "3: config.json: layer_types: layer 0 is \"linear_attention\", which is not supported yet"},
      {{{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "sliding_attention"}}},
       "mistral_window.v4",
       "3: config.json: layer_types: a mistral model with two kinds of layers is not supported "
       "yet"},
      {{{"model_type", "mamba"}},
       llama,
       "3: config.json: model_type \"mamba\" is not supported yet\n  remedy: use a model of a "
       "supported family: " +
           family_names() + ", or a decoder of gemma3, mistral3"},
      {{{"model_type", "gemma3"}},
       llama,
       "4: config.json:\n  text_config: missing; expected the object of the model's decoder\n  "
       "architectures: LlamaForCausalLM is not supported yet (Gemma3ForConditionalGeneration is)"},
      {{{"model_type", "gemma3"}, {"architectures", nullptr}, {"text_config", 3}},
       llama,
       "4: config.json: text_config: found 3; expected the object of the model's decoder"},
      {{{"model_type", "mistral3"},
        {"architectures", nullptr},
        {"text_config", {{"model_type", "mamba"}}}},
       llama,
       "3: config.json: text_config.model_type \"mamba\" is not supported yet\n  remedy: use a "
       "model of a supported family: " +
           family_names() + ", or a decoder of gemma3, mistral3"},
      {{{"model_type", "gemma3"},
        {"architectures", nullptr},
        {"text_config", {{"hidden_size", "wide"}, {"intermediate_size", 64}}}},
       llama,
       "4: config.json: text_config.hidden_size: found \"wide\"; expected a whole number from 1 to "
       "1048576"},
  };
  for (const RefusedConfig& c : cases)
    CHECK(refusal(changed_config_text(c.changes, c.base)) == c.message);
}

TEST_CASE("texts that are not a config are refused") {
  CHECK(
      refusal("") ==
      "4: config.json: not valid JSON: parse error at line 1, column 1: syntax error while parsing "
      "value - unexpected end of input; expected '[', '{', or a literal");
  CHECK(refusal("[]") == "4: config.json: found a list of 0 entries; expected an object");
  CHECK(refusal("null") == "4: config.json: found null; expected an object");
  CHECK(refusal("{}") ==
        "4: config.json: model_type: missing; expected a text such as \"llama\"\n  remedy: give a "
        "Hugging Face model folder");
  CHECK(refusal("{\"model_type\": 7}") ==
        "4: config.json: model_type: found 7; expected a text such as \"llama\"\n  remedy: give a "
        "Hugging Face model folder");
  CHECK(refusal("{\"model_type\": 1e999}")
            .rfind("4: config.json: not valid JSON: number overflow", 0) == 0);
  CHECK(refusal("{\"model_type\": \"\xff\"}").rfind("4: config.json: not valid JSON: ", 0) == 0);
  CHECK(refusal(std::string(5 << 20, ' ')) ==
        "4: config.json: 5242880 bytes; a model's configuration has at most 4194304");
}

TEST_CASE("hostile texts in place of a config are refused with a message") {
  const std::string deep(1 << 20, '[');
  CHECK(refusal(deep).rfind("4: config.json: not valid JSON: ", 0) == 0);
  const std::string closed = std::string(1 << 19, '[') + std::string(1 << 19, ']');
  CHECK(refusal(closed) == "4: config.json: found a list of 1 entry; expected an object");
  CHECK(refusal("{\"model_type\":" + closed + "}")
            .rfind("4: config.json: model_type: found a list", 0) == 0);
  CHECK(refusal(changed_config_text({{"model_type", std::string(100000, 'x')}})).size() < 400);
  CHECK(refusal("{\"" + std::string(1 << 20, 'k')).size() < 300);
}

TEST_CASE("a damaged config is either read or refused, and never crashes the reader") {
  const std::string text =
      read_file(testing::config_path(GENERATE("llama3.v5", "llama_mscale.v4")));
  const std::string alphabet = "\"{}[],:0-9eE.tn\\ \x01\xff";
  for (size_t at = 0; at < text.size(); ++at) {
    for (size_t pick = at % 3; pick < alphabet.size(); pick += 3) {
      std::string damaged = text;
      damaged[at] = alphabet[pick];
      const std::string result = refusal(damaged);
      const bool known =
          result == "accepted" || result.rfind("4: ", 0) == 0 || result.rfind("3: ", 0) == 0;
      if (!known) FAIL("at " << at << ": " << result);
    }
  }
}

TEST_CASE("a truncated config is refused") {
  const std::string text = read_file(testing::config_path("llama3.v5"));
  for (size_t size = 0; size < text.rfind('}'); ++size) {
    const std::string cut = refusal(text.substr(0, size));
    if (cut.rfind("4: config.json: not valid JSON: ", 0) != 0) FAIL("at " << size << ": " << cut);
  }
}

}  // namespace
}  // namespace ftrun
