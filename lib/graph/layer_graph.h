#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "graph/op.h"
#include "graph/recompute.h"

namespace ftrun {

using Dims = std::vector<int64_t>;

int64_t element_count(const Dims& dims);

/// Where a value comes from or goes to, which decides where its storage lies.
enum class ValueRole : uint8_t {
  kInput,       // from the batch or another layer
  kOutput,      // handed to another layer
  kParam,       // a parameter, in the unit's flat buffer
  kParamGrad,   // its gradient, in the gradient buffer
  kOutputGrad,  // gradient of the loss by an output, from the layer after
  kInputGrad,   // gradient of the loss by an input, for the layer before
  kSaved,       // made by forward, read by backward
  kDeferred,    // made by the input gradients, read by the weight gradients
  kTemp,        // inside one list
  kWorkspace,   // scratch of one operation: U8 bytes
};

/// What a value carries between layers and the loader; at most one value a port and direction.
enum class Port : uint8_t { kNone, kTokens, kPositions, kStarts, kLabels, kHidden, kRope, kLogits, kLoss };

std::string_view port_name(Port port);

struct Value {
  std::string name;
  DType dtype = DType::kF32;
  Dims dims;
  ValueRole role = ValueRole::kTemp;
  Port port = Port::kNone;
  /// For kParam: the value of its gradient. For kOutput and kInput: the value of the gradient by it.
  ValueId grad = -1;

  int64_t bytes() const { return element_count(dims) * dtype_bytes(dtype); }
};

/// Element types of a model's graphs. Statistics (rstd, lse) are F32 (F64 when `compute` is), rotary
/// tables F32, losses F64 whatever these are.
struct ModelDtypes {
  /// Activations and parameters: F32, BF16 or F16 (F64 is for tests). In 16 bits storage and rounding
  /// are 16-bit; products and sums are F32.
  DType compute = DType::kF32;
  /// Gradients of parameters: F32, BF16 or F16 (F64 with F64).
  DType gradients = DType::kF32;
  bool operator==(const ModelDtypes&) const = default;
};

/// One layer for fixed shapes: values and three lists. `backward` runs the input-gradient and
/// weight-gradient operations interleaved (each weight gradient as soon as its inputs exist), which
/// is what a schedule uses that does not defer weight gradients.
struct LayerGraph {
  std::string name;
  ModelDtypes dtypes;
  std::vector<Value> values;
  std::vector<Op> forward;
  std::vector<Op> input_grad;
  std::vector<Op> weight_grad;
  std::vector<Op> backward;

  const Value& at(ValueId id) const { return values[static_cast<size_t>(id)]; }
  /// Values of a role, in order of their ids.
  std::vector<ValueId> with_role(ValueRole role) const;
  /// The value at a port with that role, or -1.
  ValueId find(ValueRole role, Port port) const;
};

/// Builds the forward list of a layer: add values, then operations in order. The builder infers the
/// output shapes, declares workspaces and checks every operand; finish() derives the backward lists.
class GraphBuilder {
 public:
  /// `tokens` is N of every activation.
  GraphBuilder(std::string name, int64_t tokens, int64_t row_tokens, const ModelDtypes& dtypes = {});

  ValueId input(Port port, DType dtype, Dims dims, std::string name);
  ValueId param(std::string name, Dims dims);

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

/// Fills input_grad, weight_grad and backward of a graph whose forward list is complete: walks the
/// forward list in reverse, emits each kind's gradient operations, sums gradients of values used
/// twice (a residual is handed to the norm's gradient as its extra term), marks what must be saved
/// and runs forward operations again, each right before its first reader, to make what is not:
/// results of cheap kinds, and what `policy` chooses not to keep.
///
/// An all-gather's gradient is a reduce-scatter and the other way round; an all-reduce's is the
/// gradient itself. Where LinearAttrs says that an input's gradient is a share, it is summed over
/// the ranks: by the reduce-scatter when the input was gathered, else by an all-reduce. The weight
/// gradients of such a product come behind that collective, to run beside it.
void derive_backward(LayerGraph& graph, const RecomputePolicy& policy = {});

/// Throws Error(kBug) unless every operation's operands are defined before use, shapes agree with
/// its kind, and nothing is written twice (a list overwrites or adds as a whole: two operations
/// that write one parameter's gradient would lose the first), but by operations that read it as
/// well: they change what is there. Backward is looked at both ways: interleaved, and as input
/// gradients followed by weight gradients, between which no kTemp lives.
void check_graph(const LayerGraph& graph);

/// Bytes of scratch an operation needs with `values`' shapes; the kernels rely on exactly this.
int64_t workspace_bytes(const LayerGraph& graph, const Op& op);

/// Floating-point operations of one operation (multiply and add count as two); causal attention
/// counts the half that is computed.
double flops(const LayerGraph& graph, const Op& op);
/// Bytes read plus written, each operand once.
int64_t traffic_bytes(const LayerGraph& graph, const Op& op);

/// Storage of one list: where each of its temporaries and workspaces lies in a scratch buffer.
struct ScratchPlan {
  /// Byte offset by value; -1 for values that do not live in scratch.
  std::vector<int64_t> offset;
  int64_t bytes = 0;
};
/// Offsets of `list`'s kTemp, kWorkspace and kDeferred values, overlapping where lifetimes allow;
/// 64-byte aligned. A collective may run beside the operations that follow it, until one reads its
/// result: so long nothing else lies on its operands. kDeferred values that another list makes or
/// reads are left out (see plan_deferred): none in `backward`, all in `input_grad` and in
/// `weight_grad`.
ScratchPlan plan_scratch(const LayerGraph& graph, std::span<const Op> list);

/// Storage of the values that forward leaves for backward, in one buffer; 64-byte aligned.
ScratchPlan plan_saved(const LayerGraph& graph);

/// Storage of the values that `input_grad` leaves for `weight_grad`, in one buffer; 64-byte aligned.
/// Besides these the weight gradients read kSaved values, what is given to the layer, and gradients
/// at its borders (kOutputGrad, kInputGrad): all these live until they have run.
ScratchPlan plan_deferred(const LayerGraph& graph);

/// "linear x:[512,576] qkv.weight:[960,576] -> qkv:[512,960]"
std::string op_text(const LayerGraph& graph, const Op& op);

}  // namespace ftrun
