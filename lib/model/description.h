#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/box.h"
#include "base/stored_location.h"
#include "graph/layer_graph.h"
#include "graph/recompute.h"
#include "model/adapter.h"

namespace ftrun {

/// TensorId is an index in ModelDescription::tensors.
using TensorId = int32_t;

/// InitialSource specifies where a tensor's first values come from.
enum class InitialSource : uint8_t {
  kFolder,  // the model folder
  kZero,
  kUniform,  // in [-magnitude, magnitude)
  kNormal,   // standard deviation `magnitude`
  // A low-rank adapter's A [rank, inputs] and B [outputs, rank], made from a random orthogonal
  // matrix Q: A is the transpose of Q's even rows times normal numbers, B is normal numbers times
  // Q's odd rows; both are multiplied by `magnitude`.
  kOrthogonalA,
  kOrthogonalB,
  kRowNorms,  // norms of the rows of W + `magnitude` B A, with the values that layers read
};

/// InitialValues describes how the first values of a tensor are made: their source, and the
/// magnitude of random ones.
struct InitialValues {
  InitialSource source = InitialSource::kFolder;
  double magnitude = 0;
  bool operator==(const InitialValues&) const = default;
};

/// TensorInfo is a parameter of the model; `stored_location` says how files store it. The master
/// copy is F32, or BF16 with bf16_master_weights_and_grads, independently of the file's dtype.
struct TensorInfo {
  TensorInfo() = default;
  /// Makes a tensor that this rank's graphs use whole.
  TensorInfo(std::string tensor_name, Dims tensor_shape)
      : name(std::move(tensor_name)), shape(std::move(tensor_shape)), local(whole_box(shape)) {}

  /// Hugging Face's name: "model.layers.0.self_attn.q_proj.weight". If the tensor is a part of a
  /// tensor of the files (`stored_location`), the part's name precedes the last component:
  /// "...qkv_proj.q.weight".
  std::string name;
  /// The shape of the whole tensor.
  Dims shape;
  /// The box of the tensor that this rank's graphs use; the whole tensor without tensor
  /// parallelism.
  Box local;
  /// The number of zeros after these elements, in padding rows that no file has: all
  /// tensor-parallel ranks have the same number of vocabulary rows, even if the vocabulary does not
  /// divide evenly.
  int64_t padding = 0;
  /// The number of neighboring tensor-parallel ranks, [k, k+1) x copies, that use the same part.
  int copies = 1;
  /// Says whether a rank computes a partial gradient: those ranks must sum what they compute.
  /// False: each rank computes the whole gradient.
  bool partial_gradient = false;
  /// Says whether training updates the tensor. False: it is frozen (model/freeze.h).
  bool trainable = true;
  /// The source of the values when training begins: the model folder's weights, or computed (a part
  /// of an adapter).
  InitialValues initial;
  /// The rows of file tensors (of the model, or of its adapter) that hold this tensor; without a
  /// name, the files hold the tensor as it is.
  StoredLocation stored_location;

  /// Return the number of elements of the whole tensor, and of this rank's part, its padding
  /// included.
  int64_t numel() const { return element_count(shape); }
  int64_t local_numel() const { return local.numel() + padding; }
  /// Returns the number of elements along a dimension that each of the ranks sharing the tensor
  /// has, including the last rank's padding.
  int64_t rank_extent(size_t d) const {
    const int64_t padding_rows = d == 0 ? padding * local.extent[0] / local.numel() : 0;
    return local.extent[d] + padding_rows;
  }
  /// Return the name and the shape of the file tensor, which may hold several tensors of the model.
  /// If several file tensors hold this one together, a '*' in the name stands for their numbers
  /// (file_names() lists them).
  const std::string& file_name() const {
    return stored_location.name.empty() ? name : stored_location.name;
  }
  std::vector<std::string> file_names() const {
    return stored_location.name.empty() ? std::vector{name} : stored_location.names();
  }
  const Dims& file_shape() const {
    return stored_location.name.empty() ? shape : stored_location.shape;
  }
  bool operator==(const TensorInfo&) const = default;
};

/// TensorSplit describes how layers are split over the tensor-parallel ranks of a group.
struct TensorSplit {
  /// The number of ranks of the group, and the index of this rank in it.
  int degree = 1;
  int index = 0;
  /// Says whether norms and residuals are split by tokens, too (sequence parallelism).
  bool sequence = true;
  bool operator==(const TensorSplit&) const = default;
};

/// BlockPart is the half of a block that a parameter belongs to: units of granularity `block` keep
/// them apart.
enum class BlockPart : uint8_t { kAttention, kMlp };

/// GraphParam is a parameter of a layer's graph: rows of `tensors`, one after another (q, k, v;
/// gate, up).
struct GraphParam {
  ValueId value = -1;
  std::vector<TensorId> tensors;
  BlockPart part = BlockPart::kAttention;
  /// Says whether the elements are quantized as ModelDtypes::quantized says.
  bool quantized = false;
  /// The elements are fp32 although layers compute in 16 bits, because small changes of them
  /// matter; there are few of them.
  bool fp32 = false;
};

enum class LayerKind : uint8_t { kEmbedding, kBlock, kHead };

/// Layer is one layer of the model: an instance of a graph with its own parameters.
struct Layer {
  /// The name of the layer: "embed", "layers.0", ..., "head".
  std::string name;
  LayerKind kind = LayerKind::kBlock;
  /// The index in ModelDescription::graphs; equal layers share a graph.
  int graph = 0;
  /// The parameters in forward order of first use.
  std::vector<GraphParam> params;
};

/// RecomputeOptions specifies which blocks recompute activations in their backward lists, and how
/// many of them (graph/recompute.h).
struct RecomputeOptions {
  RecomputePolicy policy;
  /// Blocks 0, every, 2 every, ... follow `policy`. The other blocks keep all values that backward
  /// needs.
  int64_t every = 1;
  bool operator==(const RecomputeOptions&) const = default;

  RecomputePolicy policy_of_block(int64_t index) const {
    return index % every == 0 ? policy : RecomputePolicy{};
  }
};

/// BatchShape is the shape of a micro-batch: a number of sequences (B) of `sequence_length`
/// positions (T), of which the last `sequence_padding` are always padding.
struct BatchShape {
  int64_t sequences = 1;
  int64_t sequence_length = 1;
  int64_t sequence_padding = 0;
  /// The number of tokens of the longest sequence that any micro-batch of the run can have, on
  /// which the choice of a rotation may depend; 0: no sequence is longer than those of this batch.
  int64_t longest_sequence = 0;

  int64_t tokens() const { return sequences * sequence_length; }
  int64_t max_sequence_tokens() const {
    return longest_sequence > 0 ? longest_sequence : sequence_length - sequence_padding;
  }
  bool operator==(const BatchShape&) const = default;
};

/// GraphMode specifies what the graphs of a model compute.
enum class GraphMode : uint8_t {
  kTrain,     // computes loss and gradients
  kEvaluate,  // computes the loss
  kLogits,    // computes logits [N,V] of every token, for generation
};

/// ModelDescription is a model for one batch shape and mode: its tensors, its distinct graphs, its
/// layers in order.
struct ModelDescription {
  std::string family;
  /// The multimodal class (ModelConfig::multimodal).
  std::string multimodal;
  int64_t vocab_rows = 0;
  int64_t hidden = 0;
  int64_t feed_forward = 0;
  int64_t block_count = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool tied = false;
  BatchShape batch;
  GraphMode mode = GraphMode::kTrain;
  ModelDtypes dtypes;
  TensorSplit split;
  Adapter adapter;
  /// The tensors in the order of a Hugging Face state dict; a tied output matrix is the same tensor
  /// as the embedding.
  std::vector<TensorInfo> tensors;
  std::vector<LayerGraph> graphs;
  /// The layers: embedding, blocks, head.
  std::vector<Layer> layers;
  /// The graph that computes only the rope table, for pipeline stages without the embedding; the
  /// embedding's graph computes the table together with the hidden states.
  int rope_graph = -1;
  /// The first layer with a tensor that trains (the number of layers: none). Layers before it have
  /// no backward lists, and it computes no gradient with respect to its input.
  int32_t first_trained = 0;
  /// The token whose row of the embedding gets no gradient from the tokens that are read
  /// (without_row_gradient()); -1: none.
  int64_t row_without_gradient = -1;

  const LayerGraph& graph_of(const Layer& layer) const {
    return graphs[static_cast<size_t>(layer.graph)];
  }
  const TensorInfo& tensor(TensorId id) const { return tensors[static_cast<size_t>(id)]; }
  /// Returns whether nothing is frozen.
  bool trains_all() const {
    return std::all_of(tensors.begin(), tensors.end(),
                       [](const TensorInfo& info) { return info.trainable; });
  }
};

}  // namespace ftrun
