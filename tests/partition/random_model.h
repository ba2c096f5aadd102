#pragma once

#include <random>

#include "base/error.h"
#include "model/families.h"

namespace ftrun::testing {

/// Returns a model of two layers with hidden size 48, six query heads and two key/value heads of
/// size 8, feed-forward size 76 and 112 vocabulary rows.
inline ModelDescription tiny_llama(bool tied) {
  ModelConfig c;
  c.family = "llama";
  c.vocab_rows = 112;
  c.hidden = 48;
  c.feed_forward = 76;
  c.layers = 2;
  c.query_heads = 6;
  c.kv_heads = 2;
  c.head_size = 8;
  c.tied = tied;
  c.windows = {0, 0};
  return build_model(c, {1, 16}, GraphMode::kTrain);
}

/// Makes layers whose parameters have one to three tensors of odd sizes, without graphs. In half of
/// the models the last layer shares the first layer's first parameter.
inline ModelDescription random_model(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  ModelDescription model;
  const int64_t layers = pick(1, 5);
  for (int64_t i = 0; i < layers; ++i) {
    Layer layer{cat("layer", i), i == 0 ? LayerKind::kEmbedding : LayerKind::kBlock, 0, {}};
    for (int64_t p = pick(1, 6); p > 0; --p) {
      GraphParam param{
          static_cast<ValueId>(p), {}, pick(0, 1) ? BlockPart::kMlp : BlockPart::kAttention};
      for (int64_t t = pick(1, 3); t > 0; --t) {
        param.tensors.push_back(static_cast<TensorId>(model.tensors.size()));
        const Dims shape = pick(0, 2) == 0 ? Dims{pick(1, 40)} : Dims{pick(1, 90), pick(1, 90)};
        model.tensors.push_back({cat("t", model.tensors.size()), shape});
      }
      layer.params.push_back(param);
    }
    model.layers.push_back(layer);
  }
  if (pick(0, 1) == 1)
    model.layers.push_back({"head", LayerKind::kHead, 0, {model.layers[0].params[0]}});
  return model;
}

}  // namespace ftrun::testing
