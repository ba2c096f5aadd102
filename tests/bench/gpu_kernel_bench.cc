// Times the CUDA kernels at the shapes of Llama 3 8B and SmolLM2-135M, each by events around several calls.
//
//   gpu_kernel_bench [--only word] [--small]
//
// One line of JSON a case: {"case": ..., "ms": ..., "tflops": ..., "gbytes": ...}. The floating-point operations and
// bytes are the plan's own (graph/cost.h): each operand moves once. --small runs every case at toy sizes, to see that
// it runs. Exits with 77 where there is no GPU. gpu_kernel_bench.py puts torch's figures beside these.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/cost.h"
#include "graph/gpu_workspace.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"
#include "graph/workspace.h"
#include "kernels/device.h"

namespace ftrun {
namespace {

constexpr int kSkipped = 77;
/// Calls that are timed at once, and how often; the least counts.
constexpr int kCalls = 5, kRounds = 5;

/// An operand: activations are bf16.
struct Operand {
  std::vector<int64_t> dims;
  DType dtype = DType::kBF16;
};

struct Case {
  std::string name;
  OpKind kind;
  std::vector<Operand> in;
  std::vector<Operand> out;
  OpAttrs attrs = NoAttrs{};
};

struct ModelShape {
  std::string name;
  int64_t hidden, query_heads, kv_heads, head_size, feed_forward, vocabulary, tokens;
};

// The letters of graph/op.h.
const ModelShape kLarge{"8B", 4096, 32, 8, 128, 14336, 128256, 4096};
const ModelShape kSmall{"135M", 576, 9, 3, 64, 1536, 49152, 8192};
const ModelShape kToyLarge{"8B", 64, 4, 2, 128, 96, 160, 128};
const ModelShape kToySmall{"135M", 64, 3, 1, 64, 96, 160, 128};

Operand f32(std::vector<int64_t> dims) { return {std::move(dims), DType::kF32}; }
Operand i32(std::vector<int64_t> dims) { return {std::move(dims), DType::kI32}; }

void add_attention(std::vector<Case>& cases, const ModelShape& m, int64_t row_tokens, int64_t rows) {
  const int64_t n = rows * row_tokens, wide = (m.query_heads + 2 * m.kv_heads) * m.head_size;
  const int64_t narrow = m.query_heads * m.head_size;
  AttentionAttrs attrs{};
  attrs.query_heads = m.query_heads;
  attrs.kv_heads = m.kv_heads;
  attrs.head_size = m.head_size;
  attrs.row_tokens = row_tokens;
  attrs.scale = 0.1;
  const std::string where = cat(m.name, " ", rows, " x ", row_tokens);
  cases.push_back({cat("attention ", where), OpKind::kAttention, {{{n, wide}}, i32({n})},
                   {{{n, narrow}}, f32({m.query_heads, n})}, attrs});
  cases.push_back({cat("attention_dgrad ", where), OpKind::kAttentionDgrad,
                   {{{n, narrow}}, {{n, wide}}, {{n, narrow}}, f32({m.query_heads, n}), i32({n})}, {{{n, wide}}},
                   attrs});
}

void add_product(std::vector<Case>& cases, const ModelShape& m, const std::string& name, int64_t inputs,
                 int64_t outputs) {
  const int64_t n = m.tokens;
  const std::string where = cat(m.name, " ", name, " ", n, " x ", inputs, " x ", outputs);
  cases.push_back({cat("linear ", where), OpKind::kLinear, {{{n, inputs}}, {{outputs, inputs}}}, {{{n, outputs}}}});
  cases.push_back(
      {cat("linear_dgrad ", where), OpKind::kLinearDgrad, {{{n, outputs}}, {{outputs, inputs}}}, {{{n, inputs}}}});
  cases.push_back({cat("linear_wgrad ", where), OpKind::kLinearWgrad, {{{n, outputs}}, {{n, inputs}}},
                   {f32({outputs, inputs})}});
}

void add_model(std::vector<Case>& cases, const ModelShape& m) {
  const int64_t n = m.tokens, d = m.hidden, f = m.feed_forward;
  const int64_t wide = (m.query_heads + 2 * m.kv_heads) * m.head_size, narrow = m.query_heads * m.head_size;
  add_product(cases, m, "qkv", d, wide);
  add_product(cases, m, "o", narrow, d);
  add_product(cases, m, "gate_up", d, 2 * f);
  add_product(cases, m, "down", f, d);
  const CrossEntropyAttrs head{true, gpu_head_chunk(m.vocabulary, 2)};
  cases.push_back({cat("linear_cross_entropy ", m.name), OpKind::kLinearCrossEntropy,
                   {{{n, d}}, {{m.vocabulary, d}}, i32({n})},
                   {{{2}, DType::kF64}, {{n, d}}, f32({m.vocabulary, d})}, head});
  const HeadAttrs heads{m.query_heads, m.kv_heads, m.head_size, 1e-6};
  const int64_t normed = m.query_heads + m.kv_heads;
  cases.push_back({cat("rms_norm ", m.name), OpKind::kRmsNorm, {{{n, d}}, {{d}}}, {{{n, d}}, f32({n})}, NormAttrs{1e-5}});
  cases.push_back({cat("rms_norm_dgrad ", m.name), OpKind::kRmsNormDgrad, {{{n, d}}, {{n, d}}, f32({n}), {{d}}}, {{{n, d}}}});
  cases.push_back({cat("rms_norm_wgrad ", m.name), OpKind::kRmsNormWgrad, {{{n, d}}, {{n, d}}, f32({n})}, {f32({d})}});
  cases.push_back({cat("qk_norm ", m.name), OpKind::kQkNorm, {{{n, wide}}, {{m.head_size}}, {{m.head_size}}},
                   {{{n, wide}}, f32({n, normed})}, heads});
  cases.push_back({cat("rope ", m.name), OpKind::kRope, {{{n, wide}}, f32({n, m.head_size})}, {{{n, wide}}}, heads});
  cases.push_back({cat("swiglu ", m.name), OpKind::kSwiGlu, {{{n, 2 * f}}}, {{{n, f}}}});
  cases.push_back({cat("swiglu_dgrad ", m.name), OpKind::kSwiGluDgrad, {{{n, f}}, {{n, 2 * f}}}, {{{n, 2 * f}}}});
  cases.push_back({cat("embed ", m.name), OpKind::kEmbed, {i32({n}), {{m.vocabulary, d}}}, {{{n, d}}}});
  cases.push_back({cat("embed_wgrad ", m.name), OpKind::kEmbedWgrad, {i32({n}), {{n, d}}}, {f32({m.vocabulary, d})}});
}

std::vector<Case> all_cases(bool small) {
  const ModelShape &large = small ? kToyLarge : kLarge, &little = small ? kToySmall : kSmall;
  std::vector<Case> cases;
  for (const ModelShape& m : {large, little}) {
    add_attention(cases, m, small ? 64 : 4096, 1);
    add_attention(cases, m, small ? 128 : 32768, 1);
    add_model(cases, m);
  }
  return cases;
}

class Bench {
 public:
  explicit Bench(DeviceKernels& gpu)
      : gpu_(gpu), stream_(gpu.create_stream(false)), begin_(gpu.create_event(true)), end_(gpu.create_event(true)) {}

  void run(const Case& c) {
    LayerGraph graph;
    graph.dtypes.kernels = Kernels::kGpu;
    Op op{c.kind, {}, {}, c.attrs, -1};
    for (const Operand& operand : c.in) op.in.push_back(add(graph, operand));
    for (const Operand& operand : c.out) op.out.push_back(add(graph, operand));
    if (const int64_t scratch = workspace_bytes(graph, op); scratch > 0)
      op.workspace = add(graph, {{scratch}, DType::kU8});
    const StepScalars scalars;
    void* const on_device = allocate(sizeof scalars);
    gpu_.copy(on_device, &scalars, sizeof scalars, stream_);
    const KernelContext context{false, static_cast<const StepScalars*>(on_device)};
    const double ms = milliseconds([&] { gpu_.run_ops(graph, {&op, 1}, storage_, context, stream_); });
    print(c.name, ms, flops(graph, op), static_cast<double>(traffic_bytes(graph, op)));
    release();
  }

  void run_flat(int64_t count) {
    auto* const parameters = static_cast<float*>(allocate(4 * count));
    void* const gradients = allocate(4 * count);
    auto* const m = static_cast<float*>(allocate(4 * count));
    auto* const v = static_cast<float*>(allocate(4 * count));
    void* const copy = allocate(2 * count);
    const StepScalars scalars;
    auto* const on_device = static_cast<StepScalars*>(allocate(sizeof scalars));
    gpu_.copy(on_device, &scalars, sizeof scalars, stream_);
    const DeviceUpdate update{parameters, gradients, DType::kF32, m, v, copy, count, nullptr};
    const auto wide = static_cast<double>(count);
    print("adam", milliseconds([&] { gpu_.adam_update(update, {}, on_device, stream_); }), 0, 30 * wide);
    void* const scratch = allocate(gpu_.sum_of_squares_scratch_bytes(count));
    auto* const sum = static_cast<double*>(allocate(8));
    print("sum_of_squares",
          milliseconds([&] { gpu_.sum_of_squares(gradients, DType::kF32, count, false, sum, scratch, stream_); }), 0,
          4 * wide);
    print("convert fp32 to bf16",
          milliseconds([&] { gpu_.convert(gradients, DType::kF32, copy, DType::kBF16, count, stream_); }), 0, 6 * wide);
    const int64_t part = count / 8 / 8 * 8;
    print("sum_blocks of 8 ranks, bf16",
          milliseconds([&] { gpu_.sum_blocks(gradients, 8, part, DType::kBF16, part, copy, stream_); }), 0,
          static_cast<double>(part) * 18);
    release();
  }

 private:
  ValueId add(LayerGraph& graph, const Operand& operand) {
    Value value;
    value.name = cat("v", graph.values.size());
    value.dtype = operand.dtype;
    value.dims = operand.dims;
    storage_.push_back(allocate(value.bytes()));
    graph.values.push_back(std::move(value));
    return static_cast<ValueId>(graph.values.size()) - 1;
  }

  /// Zeros: tokens and labels exist, and no arithmetic becomes faster or slower by it.
  void* allocate(int64_t bytes) {
    void* const memory = gpu_.allocate(std::max<int64_t>(bytes, 1));
    gpu_.fill_zero(memory, bytes, stream_);
    memory_.push_back(memory);
    return memory;
  }
  void release() {
    gpu_.synchronize(stream_);
    for (void* memory : memory_) gpu_.free(memory);
    memory_.clear();
    storage_.clear();
  }

  double milliseconds(const std::function<void()>& body) {
    body();
    double least = 1e30;
    for (int round = 0; round < kRounds; ++round) {
      gpu_.record(begin_, stream_);
      for (int call = 0; call < kCalls; ++call) body();
      gpu_.record(end_, stream_);
      gpu_.synchronize(stream_);
      least = std::min(least, gpu_.milliseconds(begin_, end_) / kCalls);
    }
    return least;
  }

  static void print(const std::string& name, double ms, double operations, double bytes) {
    std::printf("{\"case\": \"%s\", \"ms\": %.6f, \"tflops\": %.3f, \"gbytes\": %.3f}\n", name.c_str(), ms,
                ms > 0 ? operations / ms * 1e-9 : 0.0, ms > 0 ? bytes / ms * 1e-6 : 0.0);
    std::fflush(stdout);
  }

  DeviceKernels& gpu_;
  DeviceStream stream_;
  DeviceEvent begin_, end_;
  std::vector<void*> memory_, storage_;
};

int run(const std::vector<std::string>& words) {
  std::string only;
  bool small = false;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--only" && i + 1 < words.size()) only = words[++i];
    if (words[i] == "--small") small = true;
  }
  std::unique_ptr<DeviceKernels> gpu;
  try {
    gpu = open_cuda_kernels(0);
  } catch (const Error& error) {
    std::printf("no GPU: %s\n", error.message().c_str());
    return kSkipped;
  }
  std::fprintf(stderr, "on %s\n", gpu->info().name.c_str());
  Bench bench(*gpu);
  for (const Case& c : all_cases(small))
    if (c.name.find(only) != std::string::npos) bench.run(c);
  if (std::string("adam sum_of_squares convert sum_blocks").find(only) != std::string::npos)
    bench.run_flat(small ? 1 << 14 : 256 << 20);
  return 0;
}

}  // namespace
}  // namespace ftrun

int main(int argc, char** argv) {
  try {
    return ftrun::run({argv + 1, argv + argc});
  } catch (const ftrun::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
