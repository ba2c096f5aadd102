#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/box.h"
#include "base/stored_place.h"
#include "graph/layer_graph.h"
#include "graph/recompute.h"
#include "model/adapter.h"

namespace ftrun {

/// Index in ModelDescription::tensors.
using TensorId = int32_t;

/// InitialSource says where a tensor's first values come from.
enum class InitialSource : uint8_t {
  kFolder,  // the model folder
  kZero,
  kUniform,  // in [-size, size)
  kNormal,   // standard deviation `size`
  // A low-rank adapter's A [rank, inputs] and B [outputs, rank]: Q's rows of even number,
  // transposed, by normal numbers, and normal numbers by those of odd number, all by `size`; Q is
  // a random orthogonal matrix of the two.
  kOrthogonalA,
  kOrthogonalB,
  kRowLengths,  // of W + `size` B A of the module, in the numbers that layers read
};

/// Initial says how a tensor's first values are made: their source, and the size of drawn ones.
struct Initial {
  InitialSource kind = InitialSource::kFolder;
  double size = 0;
  bool operator==(const Initial&) const = default;
};

/// TensorInfo is a parameter as the model folder stores it. The master copy is F32 whatever the
/// file's dtype.
struct TensorInfo {
  TensorInfo() = default;
  /// Makes a tensor that this rank's graphs use whole.
  TensorInfo(std::string tensor_name, Dims tensor_shape)
      : name(std::move(tensor_name)), shape(std::move(tensor_shape)), local(whole_box(shape)) {}

  /// Hugging Face's name: "model.layers.0.self_attn.q_proj.weight". A part of a tensor of the
  /// files (`stored`) has the part's name before the last one: "...qkv_proj.q.weight".
  std::string name;
  /// The shape of the whole tensor.
  Dims shape;
  /// The box of it that this rank's graphs use; all of it without tensor parallelism.
  Box local;
  /// Elements of zeros after those, in rows that no file has: tensor-parallel ranks all have the
  /// same number of rows of a vocabulary, even where they cannot share it out evenly.
  int64_t padding = 0;
  /// Neighbouring tensor-parallel ranks [k, k+1) x copies that use the same part.
  int copies = 1;
  /// The gradient that a rank makes is its share of a sum over those ranks, which must add them up.
  /// False where each makes the whole.
  bool partial_gradient = false;
  /// Updated by training; false: frozen (model/freeze.h).
  bool trainable = true;
  /// The values when training begins: the model folder's weights, or made here (a part of an
  /// adapter).
  Initial initial;
  /// The place in files of the model, or of its adapter; without a name they hold it as it is.
  StoredPlace stored;

  /// Return the elements of the whole tensor, and of what this rank uses, its padding included.
  int64_t numel() const { return element_count(shape); }
  int64_t local_numel() const { return local.numel() + padding; }
  /// Returns how many elements along a dimension each of the ranks that share the tensor has, the
  /// padding of the last one included.
  int64_t rank_extent(size_t d) const {
    const int64_t padding_rows = d == 0 ? padding * local.extent[0] / local.numel() : 0;
    return local.extent[d] + padding_rows;
  }
  /// Return name and shape of the tensor of the files, which may hold several of the model's. A '*'
  /// stands for the numbers of several that hold this one together (file_names() lists them).
  const std::string& file_name() const { return stored.name.empty() ? name : stored.name; }
  std::vector<std::string> file_names() const {
    return stored.name.empty() ? std::vector{name} : stored.names();
  }
  const Dims& file_shape() const { return stored.name.empty() ? shape : stored.shape; }
  bool operator==(const TensorInfo&) const = default;
};

/// TensorSplit says how layers are split over the tensor-parallel ranks of a group.
struct TensorSplit {
  /// Ranks of the group, and which of them this one is.
  int degree = 1;
  int index = 0;
  /// Norms and residuals are split by tokens too (sequence parallelism).
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
  /// The elements are packed as ModelDtypes::packed says.
  bool packed = false;
  /// The elements are fp32 although layers compute in 16 bits: there are few of them, and small
  /// changes of them matter.
  bool fp32 = false;
};

enum class LayerKind : uint8_t { kEmbedding, kBlock, kHead };

/// Layer is one layer of the model: an instance of a graph with its own parameters.
struct Layer {
  /// "embed", "layers.0", ..., "head".
  std::string name;
  LayerKind kind = LayerKind::kBlock;
  /// Index in ModelDescription::graphs; equal layers share one.
  int graph = 0;
  /// The parameters in forward order of first use.
  std::vector<GraphParam> params;
};

/// RecomputeOptions says which blocks make activations again in their backward lists, and how much
/// of them; see graph/recompute.h.
struct RecomputeOptions {
  RecomputePolicy policy;
  /// Blocks 0, every, 2 every, ... follow `policy`; the others keep what they need.
  int64_t every = 1;
  bool operator==(const RecomputeOptions&) const = default;

  RecomputePolicy of_block(int64_t index) const {
    return index % every == 0 ? policy : RecomputePolicy{};
  }
};

/// BatchShape is the shape of a micro-batch: `rows` sequences (B) of `row_tokens` places for tokens
/// (T), the last `row_padding` of which are never taken.
struct BatchShape {
  int64_t rows = 1;
  int64_t row_tokens = 1;
  int64_t row_padding = 0;
  /// Tokens of the longest row that any micro-batch of the run can have, by which a rotation may be
  /// chosen; 0: rows are as long as these.
  int64_t longest_row = 0;

  int64_t tokens() const { return rows * row_tokens; }
  int64_t longest() const { return longest_row > 0 ? longest_row : row_tokens - row_padding; }
  bool operator==(const BatchShape&) const = default;
};

enum class Mode : uint8_t {
  kTrain,     // loss and gradients
  kEvaluate,  // loss
  kLogits,    // logits [N,V] of every token, for generation
};

/// ModelDescription is a model for one batch shape and mode: its tensors, its distinct graphs, its
/// layers in order.
struct ModelDescription {
  std::string family;
  /// ModelConfig::multimodal.
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
  Mode mode = Mode::kTrain;
  ModelDtypes dtypes;
  TensorSplit split;
  Adapter adapter;
  /// The tensors in the order of a Hugging Face state dict; a tied output matrix is the embedding's
  /// tensor.
  std::vector<TensorInfo> tensors;
  std::vector<LayerGraph> graphs;
  /// Embedding, blocks, head.
  std::vector<Layer> layers;
  /// The graph that makes only the rope table, which the embedding's graph makes beside the hidden
  /// states: for stages of a pipeline that have no embedding.
  int rope_graph = -1;
  /// The first layer with a tensor that trains (the number of layers: none). Layers before it have
  /// no backward lists, and it makes no gradient with respect to its input.
  int32_t first_trained = 0;
  /// The token whose row of the embedding gets no gradient from where it is read
  /// (without_row_gradient()); -1: none.
  int64_t row_without_gradient = -1;

  const LayerGraph& graph_of(const Layer& layer) const {
    return graphs[static_cast<size_t>(layer.graph)];
  }
  const TensorInfo& tensor(TensorId id) const { return tensors[static_cast<size_t>(id)]; }
  /// Says whether nothing is frozen.
  bool trains_all() const {
    return std::all_of(tensors.begin(), tensors.end(),
                       [](const TensorInfo& info) { return info.trainable; });
  }
};

}  // namespace ftrun
