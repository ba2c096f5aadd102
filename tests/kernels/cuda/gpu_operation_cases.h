#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "operation_runner.h"
#include "ops/attention/attention.h"

namespace ftrun::testing {

/// Returns the GPU under test, opened once by main().
DeviceKernels& gpu();
void set_gpu(DeviceKernels* kernels);

/// DeviceBytes is device memory that is filled with NaN patterns, with guard bytes on both sides.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes);
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes(DeviceBytes&& other) noexcept;
  ~DeviceBytes();

  void* data() const { return begin_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(begin_);
  }
  int64_t size() const { return size_; }
  void write(const void* from);
  std::vector<std::byte> read() const;
  /// Returns whether the guard bytes are unchanged.
  bool guards_are_intact() const;

 private:
  void* memory_ = nullptr;
  void* begin_ = nullptr;
  int64_t size_ = 0;
};

/// Returns the stream on which all tests run.
DeviceStream stream();

/// Returns the bytes of an array in `dtype` (also F64); from_bytes() returns the array again.
std::vector<std::byte> to_bytes(const Array& array, DType dtype);
Array from_bytes(const std::vector<std::byte>& bytes, std::vector<int64_t> dims, DType dtype);

/// Operand is an operand of an operation: its content (if empty, its memory holds NaN), and a type
/// that selects its dtype.
struct Operand {
  enum class Type { kActivation, kGradient, kFloat, kInt, kLoss };
  Type type = Type::kActivation;
  std::vector<int64_t> dims;
  std::optional<Array> content;
  std::vector<int32_t> ints;
  /// The format in which a weight is quantized; empty: it is not.
  QuantizedFormat quantized = {};

  static Operand weight(Array a, const QuantizedFormat& format) {
    return {Type::kActivation, a.dims, a, {}, format};
  }
  static Operand activation(Array a) { return {Type::kActivation, a.dims, a, {}}; }
  static Operand floats(Array a) { return {Type::kFloat, a.dims, a, {}}; }
  static Operand tokens(std::vector<int32_t> v) {
    return {Type::kInt, {static_cast<int64_t>(v.size())}, {}, v};
  }
  static Operand loss(double sum, double count) {
    return {Type::kLoss, {2}, Array{{2}, {sum, count}}, {}};
  }
  static Operand out(std::vector<int64_t> dims) {
    return {Type::kActivation, std::move(dims), {}, {}};
  }
  static Operand statistic(std::vector<int64_t> dims) {
    return {Type::kFloat, std::move(dims), {}, {}};
  }
  static Operand gradient(std::vector<int64_t> dims) {
    return {Type::kGradient, std::move(dims), {}, {}};
  }
  static Operand gradient(Array before) { return {Type::kGradient, before.dims, before, {}}; }
};

struct OperationCase {
  OpKind kind;
  OpAttrs attrs = NoAttrs{};
  std::vector<Operand> in;
  std::vector<Operand> out;
  bool accumulate = false;
  /// The index of the input whose memory output 0 shares.
  std::optional<size_t> in_place;
  /// The index of the input that the operation changes; it is listed as the last output as well.
  std::optional<size_t> changed_input;
};

/// AttentionCases holds attention and its gradient; the gradient's inputs are the results of the
/// CPU's forward pass. Each row consists of documents of `lengths`, repeated; if empty, of one
/// document.
struct AttentionCases {
  OperationCase forward;
  OperationCase backward;
};
AttentionCases attention_of_documents(const AttentionAttrs& attrs, int64_t rows,
                                      const std::vector<int64_t>& lengths = {});

struct DTypes {
  DType activation;
  DType gradient;
};
/// Activation and gradient dtypes: fp32; bf16 with fp32 gradients; bf16 with bf16 gradients; fp16.
inline const std::vector<DTypes> kDTypes{{DType::kF32, DType::kF32},
                                         {DType::kBF16, DType::kF32},
                                         {DType::kBF16, DType::kBF16},
                                         {DType::kF16, DType::kF16}};

/// Returns the outputs of the case on the GPU. run_on_cpu() returns those on the CPU in fp32, for
/// inputs that are rounded to the same dtypes.
std::vector<Array> run_on_gpu(const OperationCase& c, DTypes dtypes);
std::vector<Array> run_on_cpu(const OperationCase& c, DTypes dtypes);
/// Returns the bits of dw and dx of a norm. With `together`, both operations are in one list, as in
/// a layer; otherwise they run separately.
std::vector<std::vector<std::byte>> norm_gradient_bits(const std::vector<Operand>& in,
                                                       DTypes dtypes, bool together,
                                                       const Operand& dw);
/// Returns the raw bytes of the outputs on the GPU.
std::vector<std::vector<std::byte>> bits_on_gpu(const OperationCase& c, DTypes dtypes);
/// The factor that every case of the tests uses as StepScalars::token_loss_factor.
inline constexpr float kLossScale = 0.125F;
/// The inputs of dropout masks: StepScalars::dropout_key, and the layer and first token of
/// KernelContext.
inline constexpr uint64_t kDropoutKey = 0x123456789abcdef0;
inline constexpr int64_t kLayer = 5, kFirstToken = 70'000;

/// Runs the case in all dtypes on the GPU and on the CPU, and requires that they agree: within 2e-5
/// of the largest number if results are computed and stored in fp32, otherwise within
/// `bf16_tolerance`.
void require_agreement(const OperationCase& c, double bf16_tolerance = 1e-2);

}  // namespace ftrun::testing
