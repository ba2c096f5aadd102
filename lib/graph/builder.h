#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/layer_graph.h"
#include "graph/recompute.h"

namespace ftrun {

/// Builds the forward list of a layer: add values, then operations in order. The builder infers the
/// output shapes, declares workspaces and checks every operand; finish() derives the backward lists.
class GraphBuilder {
 public:
  /// `tokens` is N of every activation.
  GraphBuilder(std::string name, int64_t tokens, int64_t row_tokens, const ModelDtypes& dtypes = {});

  ValueId input(Port port, DType dtype, Dims dims, std::string name);
  ValueId param(std::string name, Dims dims);
  /// One that kernels read in fp32 where layers compute in 16 bits.
  ValueId fp32_param(std::string name, Dims dims);
  /// A weight of products, packed where the graph's are (ModelDtypes::packed).
  ValueId product_weight(std::string name, Dims dims);

  /// `rows`: which rows of the vocabulary the table has, when it has not all.
  ValueId embed(ValueId tokens, ValueId table, const RowsAttrs& rows = {});
  ValueId rope_table(ValueId positions, std::vector<double> inverse_frequencies, double magnitude);
  ValueId rms_norm(ValueId x, ValueId weight, double epsilon);
  struct SumAndNorm {
    ValueId sum;
    ValueId norm;
  };
  SumAndNorm add_rms_norm(ValueId x, ValueId r, ValueId weight, double epsilon);
  ValueId linear(ValueId x, ValueId weight, ValueId bias = -1, const LinearAttrs& attrs = {});
  ValueId dropout(ValueId x, const DropoutAttrs& attrs);
  /// A product's results `y` with low-rank adapters: see OpKind::kLoraUp. `down` is [J,I] for the product's operand, of
  /// which (after dropout, where there is one) `x` is given; `up` holds b_p of each part of `attrs`. `y_attrs` as the
  /// product's own.
  ValueId lora(ValueId x, ValueId y, ValueId down, const std::vector<ValueId>& up, const LoraAttrs& attrs,
               const LinearAttrs& y_attrs = {});
  /// Of the rows of W + scale B A, whose `weight`, `down`, `up` and `attrs` these are: see OpKind::kDoraSquaredLengths.
  ValueId dora_squared_lengths(ValueId weight, ValueId down, const std::vector<ValueId>& up, const LoraAttrs& attrs);
  /// The product's results `z`, with adapters and without bias, by `magnitudes` over the lengths; then the bias.
  ValueId dora_scale(ValueId z, ValueId squares, ValueId magnitudes, ValueId bias, const DoraAttrs& attrs);
  ValueId qk_norm(ValueId qkv, ValueId weight_q, ValueId weight_k, const HeadAttrs& heads);
  ValueId rope(ValueId qkv, ValueId table, const HeadAttrs& heads);
  ValueId attention(ValueId qkv, ValueId starts, AttentionAttrs attrs);
  ValueId swiglu(ValueId gate_up);
  ValueId add(ValueId a, ValueId b);
  /// Returns the F64[2] loss value (an output at Port::kLoss). With gradients it also produces the
  /// gradient by `x`, so the backward lists start from it.
  ValueId linear_cross_entropy(ValueId x, ValueId weight, ValueId labels, const CrossEntropyAttrs& attrs);
  /// The same of one of `ranks` tensor-parallel ranks, whose `weight` is the rank-th block of the
  /// rows. A chunk's exchange may run beside the product of the chunk after it; logits of two
  /// chunks are in memory at once.
  ValueId vocabulary_cross_entropy(ValueId x, ValueId weight, ValueId labels,
                                   const CrossEntropyAttrs& attrs, int64_t ranks, int64_t rank);

  // Among `ranks` tensor-parallel ranks; see OpKind.
  ValueId all_reduce(ValueId x, int64_t ranks);
  ValueId all_gather(ValueId x, int64_t ranks);
  /// The ranks' blocks of x[R,...] apart: [ranks,R,...].
  ValueId all_gather_blocks(ValueId x, int64_t ranks);
  ValueId reduce_scatter(ValueId x, int64_t ranks);

  void output(ValueId value, Port port);

  /// `with_backward` derives input_grad, weight_grad and backward (see derive_backward).
  LayerGraph finish(bool with_backward, const RecomputePolicy& recompute = {});

 private:
  ValueId add_value(std::string name, DType dtype, Dims dims, ValueRole role, Port port = Port::kNone);
  ValueId temp(const std::string& name, Dims dims);
  void emit(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out, OpAttrs attrs = NoAttrs{});
  ValueId weight_gradient(ValueId weight);

  /// x, weight and labels; loss and, with gradients, dx and dw; the attributes of the chunk at
  /// hand.
  struct SplitHead {
    std::vector<ValueId> operands, results;
    VocabularyAttrs attrs;
  };
  /// What a chunk's first operation made; statistics of all ranks.
  struct SplitChunk {
    VocabularyAttrs attrs;
    ValueId logits = -1, statistics = -1, label_logit = -1;
  };
  SplitChunk begin_chunk(const SplitHead& head, const std::string& suffix, int64_t tokens);
  void end_chunk(const SplitHead& head, const SplitChunk& chunk);
  ValueId collective(OpKind kind, ValueId x, std::string name, Dims dims, int64_t ranks);

  LayerGraph graph_;
  int64_t tokens_;
  int64_t row_tokens_;
  /// Of rstd and lse, which are never kept in 16 bits.
  DType statistics_;
};

}  // namespace ftrun
