#include "gpu_operation_cases.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "graph/op_workspace.h"
#include "ops/attention/attention.h"
#include "ops/kinds.h"
#include "ops/norm/norm.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {

namespace {

constexpr int64_t kGpuGuardBytes = 256;
constexpr std::byte kGpuPattern{0xFF};
DeviceKernels* opened = nullptr;

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

DType dtype_of(const Operand& operand, DTypes dtypes) {
  switch (operand.type) {
    case Operand::Type::kActivation:
      return dtypes.activation;
    case Operand::Type::kGradient:
      return dtypes.gradient;
    case Operand::Type::kFloat:
      return DType::kF32;
    case Operand::Type::kInt:
      return DType::kI32;
    case Operand::Type::kLoss:
      return DType::kF64;
  }
  return DType::kF32;
}

/// The values of a case and their memory on the device.
class GpuRun {
 public:
  GpuRun(const OperationCase& c, DTypes dtypes) : case_(c), dtypes_(dtypes) {
    graph_.dtypes.kernels = KernelDevice::kGpu;
    for (const Operand& operand : c.in) in_.push_back(add(operand));
    for (size_t i = 0; i < c.out.size(); ++i)
      out_.push_back(i == 0 && c.in_place ? in_[*c.in_place] : add(c.out[i]));
    if (c.changed_input) out_.push_back(in_[*c.changed_input]);
  }

  void run() { run({Op{case_.kind, in_, out_, case_.attrs, -1}}, true); }
  /// Computes the two gradients of a norm, in one list of operations (`together`) or separately.
  /// Inputs: dy, x, rstd, w and e; outputs: dw and dx.
  void run_norm_gradients(bool together) {
    run({{OpKind::kRmsNormWgrad, {in_[0], in_[1], in_[2]}, {out_[0]}, NoAttrs{}, -1},
         {OpKind::kRmsNormDgrad, in_, {out_[1]}, NormAttrs{1e-5, 1.0}, -1}},
        together);
  }

  void run(std::vector<Op> ops, bool together) {
    for (Op& op : ops)
      if (const int64_t scratch = workspace_bytes(graph_, op); scratch > 0)
        op.workspace = add_value({scratch}, DType::kU8);
    graph_.forward = ops;
    gpu().prepare(graph_);
    StepScalars scalars;
    scalars.token_loss_factor = kLossScale;
    scalars.dropout_key = kDropoutKey;
    DeviceBytes on_device(sizeof scalars);
    on_device.write(&scalars);
    std::vector<void*> storage;
    for (const DeviceBytes& bytes : memory_) storage.push_back(bytes.data());
    const KernelContext context{case_.accumulate, on_device.as<StepScalars>(), kLayer, kFirstToken};
    if (together) gpu().run_ops(graph_, ops, storage, context, stream());
    for (const Op& op : ops)
      if (!together) gpu().run_ops(graph_, {&op, 1}, storage, context, stream());
    gpu().synchronize(stream());
    for (size_t i = 0; i < memory_.size(); ++i) {
      INFO(op_name(case_.kind) << ", value " << i);
      REQUIRE(memory_[i].guards_are_intact());
    }
  }

  std::vector<std::byte> bits(size_t out) const {
    return memory_[static_cast<size_t>(out_[out])].read();
  }
  Array read(size_t out) const {
    const Value& value = graph_.at(out_[out]);
    return from_bytes(bits(out), value.dims, value.dtype);
  }

 private:
  ValueId add_value(std::vector<int64_t> dims, DType dtype, const QuantizedFormat& quantized = {}) {
    Value value;
    value.name = cat("v", graph_.values.size());
    value.dtype = dtype;
    value.quantized = quantized;
    value.dims = std::move(dims);
    memory_.emplace_back(value.bytes());
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }
  ValueId add(const Operand& operand) {
    const DType dtype = dtype_of(operand, dtypes_);
    const ValueId id = add_value(operand.dims, dtype, operand.quantized);
    if (operand.quantized) {
      memory_.back().write(quantized_array(*operand.content, operand.quantized).records.data());
      return id;
    }
    if (!operand.ints.empty()) memory_.back().write(operand.ints.data());
    if (operand.content) memory_.back().write(to_bytes(*operand.content, dtype).data());
    return id;
  }

  const OperationCase& case_;
  DTypes dtypes_;
  LayerGraph graph_;
  std::vector<DeviceBytes> memory_;
  std::vector<ValueId> in_, out_;
};

}  // namespace

DeviceKernels& gpu() {
  require(opened != nullptr, "a GPU is open");
  return *opened;
}
void set_gpu(DeviceKernels* kernels) {
  opened = kernels;
}

DeviceStream stream() {
  static const DeviceStream created = gpu().create_stream(false);
  return created;
}

DeviceBytes::DeviceBytes(int64_t bytes) : size_(bytes) {
  memory_ = gpu().allocate(bytes + 2 * kGpuGuardBytes);
  begin_ = static_cast<std::byte*>(memory_) + kGpuGuardBytes;
  const std::vector<std::byte> pattern(static_cast<size_t>(bytes + 2 * kGpuGuardBytes),
                                       kGpuPattern);
  gpu().copy(memory_, pattern.data(), bytes + 2 * kGpuGuardBytes, stream());
  gpu().synchronize(stream());
}

DeviceBytes::DeviceBytes(DeviceBytes&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), begin_(other.begin_), size_(other.size_) {}

DeviceBytes::~DeviceBytes() {
  if (memory_ != nullptr) gpu().free(memory_);
}

void DeviceBytes::write(const void* from) {
  gpu().copy(begin_, from, size_, stream());
  gpu().synchronize(stream());
}

std::vector<std::byte> DeviceBytes::read() const {
  std::vector<std::byte> bytes(static_cast<size_t>(size_));
  gpu().copy(bytes.data(), begin_, size_, stream());
  gpu().synchronize(stream());
  return bytes;
}

bool DeviceBytes::guards_are_intact() const {
  std::vector<std::byte> all(static_cast<size_t>(size_ + 2 * kGpuGuardBytes));
  gpu().copy(all.data(), memory_, size_ + 2 * kGpuGuardBytes, stream());
  gpu().synchronize(stream());
  const auto watched = [](std::byte b) { return b == kGpuPattern; };
  return std::all_of(all.begin(), all.begin() + kGpuGuardBytes, watched) &&
         std::all_of(all.end() - kGpuGuardBytes, all.end(), watched);
}

std::vector<std::byte> to_bytes(const Array& array, DType dtype) {
  std::vector<std::byte> bytes(array.data.size() * static_cast<size_t>(dtype_bytes(dtype)));
  for (size_t i = 0; i < array.data.size(); ++i) {
    const auto as_float = static_cast<float>(array.data[i]);
    const uint16_t as_bf16 = to_bf16(as_float);
    if (dtype == DType::kF64) std::memcpy(&bytes[i * 8], &array.data[i], 8);
    if (dtype == DType::kF32) std::memcpy(&bytes[i * 4], &as_float, 4);
    if (dtype == DType::kBF16) std::memcpy(&bytes[i * 2], &as_bf16, 2);
    if (dtype == DType::kF16) convert(&as_float, DType::kF32, &bytes[i * 2], DType::kF16, 1);
  }
  return bytes;
}

Array from_bytes(const std::vector<std::byte>& bytes, std::vector<int64_t> dims, DType dtype) {
  Array array{std::move(dims), {}};
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(dtype_bytes(dtype))) {
    double wide = 0.0;
    float narrow = 0.0F;
    uint16_t half = 0;
    if (dtype == DType::kF64) std::memcpy(&wide, &bytes[at], 8);
    if (dtype == DType::kF32) std::memcpy(&narrow, &bytes[at], 4);
    if (dtype == DType::kBF16) {
      std::memcpy(&half, &bytes[at], 2);
      narrow = from_bf16(half);
    }
    if (dtype == DType::kF16) convert(&bytes[at], DType::kF16, &narrow, DType::kF32, 1);
    array.data.push_back(dtype == DType::kF64 ? wide : static_cast<double>(narrow));
  }
  return array;
}

std::vector<Array> run_on_gpu(const OperationCase& c, DTypes dtypes) {
  GpuRun run(c, dtypes);
  run.run();
  std::vector<Array> outputs;
  for (size_t i = 0; i < c.out.size(); ++i) outputs.push_back(run.read(i));
  return outputs;
}

std::vector<std::vector<std::byte>> norm_gradient_bits(const std::vector<Operand>& in,
                                                       DTypes dtypes, bool together,
                                                       const Operand& dw) {
  OperationCase c{OpKind::kRmsNormDgrad, NormAttrs{1e-5, 1.0}, in, {dw, Operand::out(in[0].dims)}};
  c.accumulate = dw.content.has_value();
  GpuRun run(c, dtypes);
  run.run_norm_gradients(together);
  return {run.bits(0), run.bits(1)};
}

std::vector<std::vector<std::byte>> bits_on_gpu(const OperationCase& c, DTypes dtypes) {
  GpuRun run(c, dtypes);
  run.run();
  std::vector<std::vector<std::byte>> outputs;
  for (size_t i = 0; i < c.out.size(); ++i) outputs.push_back(run.bits(i));
  return outputs;
}

std::vector<Array> run_on_cpu(const OperationCase& c, DTypes dtypes) {
  OperationRunner runner(DType::kF32);
  runner.scalars.token_loss_factor = kLossScale;
  runner.scalars.dropout_key = kDropoutKey;
  runner.layer = kLayer;
  runner.first_token = kFirstToken;
  const auto add = [&](const Operand& operand) {
    if (operand.type == Operand::Type::kInt) return runner.ints(operand.ints);
    const bool loss = operand.type == Operand::Type::kLoss;
    if (!operand.content) return runner.output(operand.dims);
    // A quantized weight is compared by its decoded numbers; the CPU's decoding has separate tests.
    if (operand.quantized)
      return runner.input(
          rounded(quantized_array(*operand.content, operand.quantized).numbers, dtypes.activation),
          DType::kF32);
    return runner.input(rounded(*operand.content, dtype_of(operand, dtypes)),
                        loss ? DType::kF64 : DType::kF32);
  };
  std::vector<ValueId> in, out;
  for (const Operand& operand : c.in) in.push_back(add(operand));
  for (const Operand& operand : c.out) out.push_back(add(operand));
  runner.run(c.kind, in, out, c.attrs, c.accumulate);
  std::vector<Array> outputs;
  for (const ValueId id : out) outputs.push_back(runner.read(id));
  return outputs;
}

namespace {

std::vector<int32_t> starts_of_documents(int64_t rows, int64_t sequence_length,
                                         const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts;
  size_t next = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t start = 0; start < sequence_length;) {
      const int64_t length = lengths.empty() ? sequence_length : lengths[next++ % lengths.size()];
      const int64_t end = std::min(start + length, sequence_length);
      starts.insert(starts.end(), static_cast<size_t>(end - start), static_cast<int32_t>(start));
      start = end;
    }
  return starts;
}

}  // namespace

AttentionCases attention_of_documents(const AttentionAttrs& a, int64_t rows,
                                      const std::vector<int64_t>& lengths) {
  const int64_t tokens = rows * a.sequence_length;
  const Dims qkv{tokens, (a.query_heads + 2 * a.kv_heads) * a.head_size},
      out{tokens, a.query_heads * a.head_size};
  const auto given = [](const Dims& dims, int seed) {
    return Operand::activation(random_array(dims, seed));
  };
  const Operand starts = Operand::tokens(starts_of_documents(rows, a.sequence_length, lengths));
  OperationCase forward{OpKind::kAttention,
                        a,
                        {given(qkv, 1), starts},
                        {Operand::out(out), Operand::statistic({a.query_heads, tokens})}};
  const std::vector<Array> made = run_on_cpu(forward, {DType::kBF16, DType::kBF16});
  OperationCase backward{OpKind::kAttentionDgrad,
                         a,
                         {given(out, 2), given(qkv, 1), Operand::activation(made[0]),
                          Operand::floats(made[1]), starts},
                         {Operand::out(qkv)}};
  return {std::move(forward), std::move(backward)};
}

void require_agreement(const OperationCase& c, double bf16_tolerance) {
  const bool has_gradient = std::any_of(c.out.begin(), c.out.end(), [](const Operand& operand) {
    return operand.type == Operand::Type::kGradient;
  });
  for (const DTypes dtypes : kDTypes) {
    if (!has_gradient && dtypes.gradient != dtypes.activation) continue;
    const std::vector<Array> actual = run_on_gpu(c, dtypes), expected = run_on_cpu(c, dtypes);
    const double tolerance = dtypes.activation == DType::kF32 ? 2e-5 : bf16_tolerance;
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(op_name(c.kind), dtype_name(dtypes.activation), dtype_name(dtypes.gradient), i);
      REQUIRE(relative_error(actual[i], expected[i]) < tolerance);
    }
  }
}

}  // namespace ftrun::testing
