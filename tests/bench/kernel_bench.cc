// Times each kernel at the shapes of SmolLM2-135M, and compares it with ATen and this machine's own
// limits (matrix multiplication, add in place), all in one run.
//
//   kernel_bench [--threads N] [--rows B] [--row-tokens T] [--isa avx2|avx512|avx512_bf16|amx]
//                [--only word] [--dtype F32|BF16|F16] [--matmul mkl|onednn|openblas]
//
// The dtype is that of activations; gradients of parameters are F32, as is everything in ATen.
//
// With one thread, times are CPU time, which other load on the machine hardly affects. Every figure
// is the minimum of several samples.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/matmul_library.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/op_workspace.h"
#include "kernels/choose_matmul_library.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kernels.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "optimizers/optimizer_config.h"

namespace ftrun {
namespace {

struct Options {
  int threads = 1;
  int64_t rows = 1;
  int64_t sequence_length = 512;
  std::string only;
  DType dtype = DType::kF32;
};

// Shapes of SmolLM2-135M.
constexpr int64_t kHidden = 576, kQueryHeads = 9, kKvHeads = 3, kHead = 64, kFeedForward = 1536,
                  kVocabulary = 49152;
constexpr int64_t kQkv = (kQueryHeads + 2 * kKvHeads) * kHead;
constexpr int64_t kOptimizerElements = 32 << 20;

double clock_seconds(int threads) {
  timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Returns the minimum seconds per call of `body`, from samples of at least 20 ms over about half a
/// second.
double measure_min_seconds(int threads, const std::function<void()>& body) {
  body();
  double start = clock_seconds(threads);
  body();
  const double one = std::max(clock_seconds(threads) - start, 1e-7);
  const int calls = std::max(1, static_cast<int>(0.02 / one));
  const int samples = std::clamp(static_cast<int>(0.6 / (one * calls)), 4, 30);
  double best = 1e30;
  for (int sample = 0; sample < samples; ++sample) {
    start = clock_seconds(threads);
    for (int call = 0; call < calls; ++call) body();
    best = std::min(best, (clock_seconds(threads) - start) / calls);
  }
  return best;
}

class Bench {
 public:
  explicit Bench(Options options)
      : options_(std::move(options)), tokens_(options_.rows * options_.sequence_length) {}

  void run();

 private:
  struct FreeDeleter {
    void operator()(void* p) const { std::free(p); }
  };
  ValueId value(DType dtype, Dims dims);
  ValueId f32(Dims dims) { return value(DType::kF32, std::move(dims)); }
  /// Adds a value of the activations' dtype.
  ValueId real(Dims dims) { return value(options_.dtype, std::move(dims)); }
  ValueId i32(Dims dims) { return value(DType::kI32, std::move(dims)); }
  int32_t* int_data(ValueId id) {
    return reinterpret_cast<int32_t*>(memory_[static_cast<size_t>(id)].get());
  }

  double time(const std::function<void()>& body) const {
    return measure_min_seconds(options_.threads, body);
  }
  /// Times one operation and prints its line; `aten`, which may be empty, does the same in ATen.
  void op(const char* label, OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
          OpAttrs attrs, const std::function<void()>& aten = {});
  void line(const char* label, double ours, double aten, double flops, double bytes) const;
  bool is_selected(const char* label) const {
    return options_.only.empty() || std::string(label).find(options_.only) != std::string::npos;
  }

  void limits();
  void linear(const char* name, int64_t outputs, int64_t inputs);
  void norms();
  void heads();
  void attention();
  void mlp();
  void embedding();
  void head();
  void optimizer();
  void flat(const char* label, double bytes, const std::function<void()>& body);
  void mixed_optimizer();
  void conversions();

  Options options_;
  int64_t tokens_;
  LayerGraph graph_;
  std::vector<std::unique_ptr<std::byte, FreeDeleter>> memory_;
  StepScalars scalars_;
  double matmul_rate_ = 0.0, memory_rate_ = 0.0;
};

ValueId Bench::value(DType dtype, Dims dims) {
  Value v;
  v.name = "v";
  v.dtype = dtype;
  v.dims = std::move(dims);
  const auto bytes = static_cast<size_t>((v.bytes() + 63) / 64 * 64);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
  std::memset(memory, 0, bytes);
  if (dtype == DType::kF32) {
    auto* const x = reinterpret_cast<float*>(memory);
    for (int64_t i = 0; i < element_count(v.dims); ++i)
      x[i] = static_cast<float>(i * 37 % 101 - 50) * 0.01F;
  }
  if (dtype == DType::kBF16 || dtype == DType::kF16) {
    std::vector<float> x(static_cast<size_t>(element_count(v.dims)));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) * 0.01F;
    convert(x.data(), DType::kF32, memory, dtype, static_cast<int64_t>(x.size()));
  }
  memory_.emplace_back(memory);
  graph_.values.push_back(std::move(v));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

void Bench::line(const char* label, double ours, double aten, double flops, double bytes) const {
  std::printf("%-26s %9.3f ms %8.1f GFLOP/s (%4.2f) %7.1f GB/s (%4.2f)", label, ours * 1e3,
              flops / ours * 1e-9, flops / ours / matmul_rate_, bytes / ours * 1e-9,
              bytes / ours / memory_rate_);
  if (aten > 0.0) std::printf("  ATen %9.3f ms  x%.2f", aten * 1e3, aten / ours);
  std::printf("\n");
  std::fflush(stdout);
}

void Bench::op(const char* label, OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
               OpAttrs attrs, const std::function<void()>& aten) {
  if (!is_selected(label)) return;
  Op op{kind, std::move(in), std::move(out), std::move(attrs), -1};
  const int64_t scratch = workspace_bytes(graph_, op);
  if (scratch > 0) op.workspace = value(DType::kU8, {scratch});
  std::vector<void*> storage;
  for (const auto& memory : memory_) storage.push_back(memory.get());
  const KernelContext context{false, &scalars_};
  const double ours = time([&] { run_op(graph_, op, storage, context); });
  line(label, ours, aten ? time(aten) : 0.0, op_flops(graph_, op), traffic_bytes(graph_, op));
}

/// Measures this machine's limits: a large square matrix multiplication, and an add in place (3
/// passes over memory).
void Bench::limits() {
  const at::Tensor a = at::randn({2048, 2048}), b = at::randn({2048, 2048});
  at::Tensor c = at::empty({2048, 2048});
  matmul_rate_ = 2.0 * 2048.0 * 2048.0 * 2048.0 / time([&] { at::mm_out(c, a, b); });
  at::Tensor x = at::ones({kOptimizerElements}), y = at::ones({kOptimizerElements});
  memory_rate_ = 12.0 * static_cast<double>(kOptimizerElements) / time([&] { y.add_(x); });
  std::printf("limits: matmul %.1f GFLOP/s, add in place %.1f GB/s\n", matmul_rate_ * 1e-9,
              memory_rate_ * 1e-9);
}

void Bench::linear(const char* name, int64_t outputs, int64_t inputs) {
  const ValueId x = real({tokens_, inputs}), w = real({outputs, inputs}),
                dy = real({tokens_, outputs});
  const at::Tensor tx = at::randn({tokens_, inputs}), tw = at::randn({outputs, inputs}),
                   ty = at::randn({tokens_, outputs});
  at::Tensor oy = at::empty({tokens_, outputs}), ox = at::empty({tokens_, inputs}),
             ow = at::empty({outputs, inputs});
  const auto label = [&](const char* part) { return std::string(name) + part; };
  op(label(" linear").c_str(), OpKind::kLinear, {x, w}, {real({tokens_, outputs})}, NoAttrs{},
     [&] { at::mm_out(oy, tx, tw.t()); });
  op(label(" linear_dgrad").c_str(), OpKind::kLinearDgrad, {dy, w}, {real({tokens_, inputs})},
     NoAttrs{}, [&] { at::mm_out(ox, ty, tw); });
  op(label(" linear_wgrad").c_str(), OpKind::kLinearWgrad, {dy, x}, {f32({outputs, inputs})},
     NoAttrs{}, [&] { at::mm_out(ow, ty.t(), tx); });
}

void Bench::norms() {
  const ValueId x = real({tokens_, kHidden}), r = real({tokens_, kHidden}), w = real({kHidden}),
                sum = real({tokens_, kHidden}), y = real({tokens_, kHidden}), rstd = f32({tokens_}),
                dx = real({tokens_, kHidden}), dw = f32({kHidden});
  const at::Tensor tx = at::randn({tokens_, kHidden}), tr = at::randn({tokens_, kHidden}),
                   tw = at::randn({kHidden});
  op("rms_norm", OpKind::kRmsNorm, {x, w}, {y, rstd}, NormAttrs{},
     [&] { at::rms_norm(tx, {kHidden}, tw, 1e-5); });
  op("add_rms_norm", OpKind::kAddRmsNorm, {x, r, w}, {sum, y, rstd}, NormAttrs{},
     [&] { at::rms_norm(tx + tr, {kHidden}, tw, 1e-5); });
  op("rms_norm_dgrad", OpKind::kRmsNormDgrad, {y, x, rstd, w, r}, {dx}, NormAttrs{});
  op("rms_norm_wgrad", OpKind::kRmsNormWgrad, {y, x, rstd}, {dw}, NoAttrs{});
  op("add", OpKind::kAdd, {x, r}, {x}, NoAttrs{}, [&] { at::add(tx, tr); });
}

void Bench::heads() {
  const HeadAttrs heads{kQueryHeads, kKvHeads, kHead, 1e-6};
  const ValueId qkv = real({tokens_, kQkv}), y = real({tokens_, kQkv}),
                table = f32({tokens_, kHead}), w = real({kHead}),
                rstd = f32({tokens_, kQueryHeads + kKvHeads}), dw = f32({kHead}), dk = f32({kHead}),
                bias = f32({kQkv});
  op("rope in place", OpKind::kRope, {qkv, table}, {qkv}, RopeAttrs{heads});
  op("qk_norm", OpKind::kQkNorm, {qkv, w, w}, {y, rstd}, heads);
  op("qk_norm_dgrad", OpKind::kQkNormDgrad, {qkv, y, rstd, w, w}, {qkv}, heads);
  op("qk_norm_wgrad", OpKind::kQkNormWgrad, {qkv, y, rstd}, {dw, dk}, heads);
  op("bias_wgrad", OpKind::kBiasWgrad, {qkv}, {bias}, NoAttrs{});
}

void Bench::attention() {
  const AttentionAttrs attrs{kQueryHeads, kKvHeads, kHead, options_.sequence_length, 0.125};
  const int64_t width = kQueryHeads * kHead;
  const ValueId qkv = real({tokens_, kQkv}), starts = i32({tokens_}), a = real({tokens_, width}),
                lse = f32({kQueryHeads, tokens_}), da = real({tokens_, width}),
                dqkv = real({tokens_, kQkv});
  at::Tensor q = at::randn({options_.rows, kQueryHeads, options_.sequence_length, kHead})
                     .set_requires_grad(true);
  at::Tensor k =
      at::randn({options_.rows, kKvHeads, options_.sequence_length, kHead}).set_requires_grad(true);
  at::Tensor v =
      at::randn({options_.rows, kKvHeads, options_.sequence_length, kHead}).set_requires_grad(true);
  const at::Tensor g = at::randn_like(q);
  const auto forward = [&] {
    return at::scaled_dot_product_attention(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1),
                                            {}, 0.0, true);
  };
  const at::Tensor out = forward();
  op("attention", OpKind::kAttention, {qkv, starts}, {a, lse}, attrs, [&] { forward(); });
  op("attention_dgrad", OpKind::kAttentionDgrad, {da, qkv, a, lse, starts}, {dqkv}, attrs, [&] {
    torch::autograd::grad({out}, {q, k, v}, {g}, true);
  });
}

void Bench::mlp() {
  const ValueId gu = real({tokens_, 2 * kFeedForward}), s = real({tokens_, kFeedForward});
  at::Tensor g = at::randn({tokens_, kFeedForward}), u = at::randn({tokens_, kFeedForward});
  op("gated_activation", OpKind::kGatedActivation, {gu}, {s}, ActivationAttrs{},
     [&] { at::silu(g) * u; });
  op("gated_activation_dgrad in place", OpKind::kGatedActivationDgrad, {s, gu}, {gu},
     ActivationAttrs{});
}

void Bench::embedding() {
  const ValueId tokens = i32({tokens_}), table = real({kVocabulary, kHidden}),
                x = real({tokens_, kHidden});
  for (int64_t n = 0; n < tokens_; ++n)
    int_data(tokens)[n] = static_cast<int32_t>(n * 7919 % kVocabulary);
  op("embed", OpKind::kEmbed, {tokens, table}, {x}, NoAttrs{});
  op("embed_wgrad overwrite", OpKind::kEmbedWgrad, {tokens, x}, {f32({kVocabulary, kHidden})},
     NoAttrs{});
  const ValueId positions = i32({tokens_}), rope = f32({tokens_, kHead});
  op("rope_table", OpKind::kRopeTable, {positions}, {rope},
     RopeTableAttrs{std::vector<RopeAngle>(kHead / 2, RopeAngle{0.1})});
}

void Bench::head() {
  const ValueId x = real({tokens_, kHidden}), w = real({kVocabulary, kHidden}),
                labels = i32({tokens_}), loss = value(DType::kF64, {2}),
                dx = real({tokens_, kHidden}), dw = f32({kVocabulary, kHidden});
  for (int64_t n = 0; n < tokens_; ++n)
    int_data(labels)[n] = static_cast<int32_t>(n * 7919 % kVocabulary);
  const at::Tensor tx = at::randn({tokens_, kHidden}), tw = at::randn({kVocabulary, kHidden});
  at::Tensor logits = at::empty({tokens_, kVocabulary}), ox = at::empty({tokens_, kHidden}),
             ow = at::empty({kVocabulary, kHidden});
  for (const int64_t chunk : {128, 256, 512})
    op(("head+loss chunk " + std::to_string(chunk)).c_str(), OpKind::kLinearCrossEntropy,
       {x, w, labels}, {loss, dx, dw}, CrossEntropyAttrs{true, chunk},
       chunk > 128 ? std::function<void()>{} : [&] {
         at::mm_out(logits, tx, tw.t());
         at::mm_out(ow, logits.t(), tx);
         at::mm_out(ox, logits, tw);
       });
}

void Bench::optimizer() {
  if (!is_selected("optimizer")) return;
  const ValueId p = f32({kOptimizerElements}), g = f32({kOptimizerElements}),
                m = f32({kOptimizerElements}), v = f32({kOptimizerElements});
  const auto data = [&](ValueId id) {
    return reinterpret_cast<float*>(memory_[static_cast<size_t>(id)].get());
  };
  std::fill_n(data(v), kOptimizerElements, 1.0F);
  const auto elements = static_cast<double>(kOptimizerElements);
  const FlatUpdate update{.parameters = data(p),
                          .gradients = data(g),
                          .states = {data(m), data(v)},
                          .count = kOptimizerElements};
  line("optimizer adam", time([&] { optimizer_update(update, {}, scalars_); }), 0.0, elements,
       28.0 * elements);
  line("optimizer sgd momentum", time([&] {
         optimizer_update(update, {.type = OptimizerType::kSgd, .momentum = 0.9}, scalars_);
       }),
       0.0, elements, 20.0 * elements);
  line("optimizer sum_of_squares",
       time([&] { sum_of_squares(data(g), DType::kF32, kOptimizerElements); }), 0.0, elements,
       4.0 * elements);
}

void Bench::flat(const char* label, double bytes, const std::function<void()>& body) {
  if (!is_selected(label)) return;
  const auto elements = static_cast<double>(kOptimizerElements);
  line(label, time(body), 0.0, elements, bytes * elements);
}

/// Measures updates with states of mixed precision. The bytes are the minimum possible traffic:
/// each array is read once and written once.
void Bench::mixed_optimizer() {
  if (!is_selected("mixed")) return;
  const auto data = [&](ValueId id) { return memory_[static_cast<size_t>(id)].get(); };
  const Dims dims{kOptimizerElements};
  const ValueId g = value(DType::kBF16, dims), copy = value(DType::kBF16, dims);
  const ValueId p = f32(dims), m = f32(dims), v = f32(dims);
  const ValueId p16 = value(DType::kBF16, dims), m16 = value(DType::kBF16, dims),
                v16 = value(DType::kBF16, dims);
  std::fill_n(reinterpret_cast<float*>(data(v)), kOptimizerElements, 1.0F);
  convert(data(v), DType::kF32, data(v16), DType::kBF16, kOptimizerElements);
  FlatUpdate update{.parameters = data(p),
                    .gradients = data(g),
                    .gradient_dtype = DType::kBF16,
                    .states = {data(m), data(v)},
                    .count = kOptimizerElements};
  flat("mixed adam g16", 26.0, [&] { optimizer_update(update, {}, scalars_); });
  update.copy = data(copy);
  flat("mixed adam g16 copy", 28.0, [&] { optimizer_update(update, {}, scalars_); });
  update.states[0] = data(m16);
  update.states[1] = data(v16);
  update.state_dtype = DType::kBF16;
  flat("mixed adam g16 m16 copy", 20.0, [&] { optimizer_update(update, {}, scalars_); });
  update.parameters = data(p16);
  update.parameter_dtype = DType::kBF16;
  update.copy = nullptr;
  flat("mixed adam all 16", 14.0, [&] { optimizer_update(update, {}, scalars_); });
}

void Bench::conversions() {
  if (!is_selected("flat")) return;
  const auto data = [&](ValueId id) { return memory_[static_cast<size_t>(id)].get(); };
  const Dims dims{kOptimizerElements};
  const ValueId wide = f32(dims), narrow = value(DType::kBF16, dims), more = f32(dims);
  flat("flat convert F32 BF16", 6.0,
       [&] { convert(data(wide), DType::kF32, data(narrow), DType::kBF16, kOptimizerElements); });
  flat("flat convert BF16 F32", 6.0,
       [&] { convert(data(narrow), DType::kBF16, data(wide), DType::kF32, kOptimizerElements); });
  flat("flat add F32 F32", 12.0,
       [&] { add_into(data(wide), DType::kF32, data(more), DType::kF32, kOptimizerElements); });
  flat("flat add F32 BF16", 10.0,
       [&] { add_into(data(wide), DType::kF32, data(narrow), DType::kBF16, kOptimizerElements); });
  flat("flat sum_of_squares BF16", 2.0,
       [&] { sum_of_squares(data(narrow), DType::kBF16, kOptimizerElements); });
}

void Bench::run() {
  limits();
  linear("qkv", kQkv, kHidden);
  linear("out", kHidden, kHidden);
  linear("gate_up", 2 * kFeedForward, kHidden);
  linear("down", kHidden, kFeedForward);
  norms();
  heads();
  attention();
  mlp();
  embedding();
  if (is_selected("head+loss")) head();
  optimizer();
  mixed_optimizer();
  conversions();
}

MatmulLibrary matmul_library(const std::string& name) {
  for (const MatmulLibrary library :
       {MatmulLibrary::kMkl, MatmulLibrary::kOneDnn, MatmulLibrary::kOpenBlas})
    if (matmul_library_name(library) == name) return library;
  throw std::invalid_argument(name + " is no library of matrix multiplication");
}

Isa runnable_isa(const std::string& name) {
  const std::pair<const char*, Isa> names[] = {{"avx2", Isa::kAvx2},
                                               {"avx512", Isa::kAvx512},
                                               {"avx512_bf16", Isa::kAvx512Bf16},
                                               {"amx", Isa::kAmx}};
  for (const auto& [spelled, value] : names) {
    if (name != spelled) continue;
    if (!can_run(value)) throw std::invalid_argument("this CPU cannot run " + name);
    return value;
  }
  throw std::invalid_argument(name + " is no instruction set of the kernels");
}

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], text = argv[i + 1];
    if (key == "--threads")
      options.threads = std::stoi(text);
    else if (key == "--rows")
      options.rows = std::stoll(text);
    else if (key == "--row-tokens")
      options.sequence_length = std::stoll(text);
    else if (key == "--only")
      options.only = text;
    else if (key == "--dtype")
      options.dtype = dtype_from_name(text).value();
    else if (key == "--matmul")
      choose_matmul_library(matmul_library(text));
    else if (key == "--isa")
      set_isa(runnable_isa(text));
  }
  return options;
}

}  // namespace
}  // namespace ftrun

int main(int argc, char** argv) {
  const ftrun::Options options = ftrun::parse_options(argc, argv);
  ftrun::set_kernel_threads(options.threads);
  ftrun::Bench(options).run();
  return 0;
}
