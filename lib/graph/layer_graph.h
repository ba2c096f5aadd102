#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/quantized_format.h"
#include "base/recompute_level.h"
#include "graph/op.h"

namespace ftrun {

using Dims = std::vector<int64_t>;

int64_t element_count(const Dims& dims);

/// ValueRole specifies where a value comes from or where it is used, which decides where its
/// storage lies.
enum class ValueRole : uint8_t {
  kInput,       // from the batch or another layer
  kOutput,      // passed to another layer
  kParam,       // a parameter, in the unit's flat buffer
  kParamGrad,   // gradient of a parameter, in the gradient buffer
  kOutputGrad,  // gradient of the loss with respect to an output, from the layer after
  kInputGrad,   // gradient of the loss with respect to an input, for the layer before
  kSaved,       // computed by forward, read by backward
  kDeferred,    // computed by input gradients, read by weight gradients
  kTemp,        // used inside one list only
  kWorkspace,   // scratch of one operation: U8 bytes
};

/// Port names the values that are passed between layers, or from the loader; there is at most one
/// value for each port and direction.
enum class Port : uint8_t {
#define FTRUN_PORT(kind, name) kind,
#include "graph/ports.inc"
};

/// BatchValueKind specifies what the numbers of a value of the batch mean.
enum class BatchValueKind : uint8_t {
  kVocabulary,  // token ids: rows of the vocabulary
  kPositions,   // index of each token in its document, or 0 in padding (MicroBatch::positions)
  kStarts,      // index in the sequence of the first position that each token may attend to
                // (MicroBatch::starts)
};

/// BatchPort is a port whose value is given with each micro-batch.
struct BatchPort {
  Port port;
  BatchValueKind kind;
};
/// The ports of the batch in the order of a kLoadBatch instruction's writes.
inline constexpr BatchPort kBatchPorts[] = {
#define FTRUN_BATCH_PORT(kind, name, value_kind) {Port::kind, BatchValueKind::value_kind},
#include "graph/ports.inc"
};

std::string_view port_name(Port port);
/// Returns what the numbers at a port of the batch mean; nothing for other ports.
std::optional<BatchValueKind> batch_value_kind(Port port);

/// Value is a tensor that the operations of a layer read or write.
struct Value {
  std::string name;
  DType dtype = DType::kF32;
  Dims dims;
  ValueRole role = ValueRole::kTemp;
  Port port = Port::kNone;
  /// The value that is the gradient of a kParam, or the gradient with respect to a kOutput or
  /// kInput.
  ValueId grad = -1;
  /// The format in which the elements of a kParam are quantized, which kernels dequantize as
  /// `dtype`.
  QuantizedFormat quantized = {};

  int64_t bytes() const { return stored_bytes(dtype, quantized, element_count(dims)); }
  /// Returns the dtype of the value's storage.
  DType stored_dtype() const { return quantized ? DType::kU8 : dtype; }
};

/// KernelDevice says for which kernels a graph is made. Kernels of CPUs and GPUs need different
/// scratch memory, and compute different amounts of the head at a time.
enum class KernelDevice : uint8_t { kCpu, kGpu };

/// ModelDtypes holds the element types of a model's graphs, and the kernels that compute with them.
/// Independently of the members, statistics (rstd, lse) are F32 (F64 if `compute` is F64), rotary
/// tables F32, and losses F64.
struct ModelDtypes {
  /// Activations and parameters: F32, BF16 or F16 (F64 is for tests). In 16 bits storage and
  /// rounding are 16-bit; multiplications and sums are F32.
  DType compute = DType::kF32;
  /// Gradients of parameters: F32, BF16 or F16 (F64 with F64).
  DType gradients = DType::kF32;
  KernelDevice kernels = KernelDevice::kCpu;
  /// The quantized format of the blocks' weight matrices, if these are quantized; they do not train
  /// then.
  QuantizedFormat quantized = {};
  bool operator==(const ModelDtypes&) const = default;
};

/// LayerGraph is one layer for fixed shapes: values and three lists. `backward` runs the
/// input-gradient and weight-gradient operations interleaved (each weight gradient as soon as its
/// inputs exist), for schedules that do not defer weight gradients.
struct LayerGraph {
  std::string name;
  ModelDtypes dtypes;
  std::vector<Value> values;
  std::vector<Op> forward;
  std::vector<Op> input_grad;
  std::vector<Op> weight_grad;
  std::vector<Op> backward;
  /// The policy by which the backward lists recompute results of forward (graph/recompute.h).
  RecomputeLevel recompute = RecomputeLevel::kNone;

  const Value& at(ValueId id) const { return values[static_cast<size_t>(id)]; }
  /// Returns the values of a role, in order of their ids.
  std::vector<ValueId> values_with_role(ValueRole role) const;
  /// Returns the value at a port with this role, or -1.
  ValueId find(ValueRole role, Port port) const;
};

/// The end of the names of values that a backward list recomputes: "qkv.again".
inline constexpr std::string_view kRecomputedSuffix = ".again";
inline bool is_recomputed(const Value& value) {
  return value.name.ends_with(kRecomputedSuffix);
}

/// Formats an operation: "linear x:[512,576] qkv.weight:[960,576] -> qkv:[512,960]".
std::string op_text(const LayerGraph& graph, const Op& op);

}  // namespace ftrun
