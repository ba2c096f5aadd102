// Times the CUDA kernels at the shapes of Llama 3 8B and SmolLM2-135M, with events around several
// calls of each.
//
//   gpu_kernel_bench [--only word] [--attention own|cudnn] [--rounds N] [--small]
//
// Prints a line of JSON per case: {"case": ..., "ms": ..., "tflops": ..., "gbytes": ...}. The
// operations and bytes are those of the plan (graph/cost.h): each operand moves once.
// Operands hold random numbers, since zeros draw less power and run faster. --small runs every case
// at toy sizes, to test that it runs; --rounds 1 calls each case once, for runs under a sanitizer.
// Exits with 77 if there is no GPU. gpu_kernel_bench.py compares these figures with torch's.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"
#include "graph/op_workspace.h"
#include "kernels/device.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/workspace.h"
#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/lora/lora.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "optimizers/optimizer_config.h"
#include "without_gpu.h"

namespace ftrun {
namespace {

/// The number of calls per timed group, and of such groups per case; the fastest group counts.
constexpr int kCalls = 5, kRounds = 5;
/// The random block's elements, which fill operands again and again; no power of two, so that rows
/// differ.
constexpr int64_t kBlockElements = (1 << 22) - 12345;

/// Operand is an operand of a case: bf16 values, or integers that are random below `below`, or 0.
struct Operand {
  std::vector<int64_t> dims;
  DType dtype = DType::kBF16;
  int32_t below = 0;
  QuantizedFormat quantized = {};
  /// The number of tokens of a row of documents, if the operand holds starts of documents.
  int64_t document_row_tokens = 0;
};

struct Options {
  std::string only;
  bool small = false;
  CudnnUse cudnn = CudnnUse::kNever;
  int rounds = kRounds;
};

struct Case {
  std::string name;
  OpKind kind;
  std::vector<Operand> in;
  std::vector<Operand> out;
  OpAttrs attrs = NoAttrs{};
  bool documents = false;
};

struct ModelShape {
  std::string name;
  int64_t hidden, query_heads, kv_heads, head_size, feed_forward, vocabulary, tokens;
};

// Fields are the letters in graph/op_spec.h.
const ModelShape kLarge{"8B", 4096, 32, 8, 128, 14336, 128256, 4096};
const ModelShape kSmall{"135M", 576, 9, 3, 64, 1536, 49152, 8192};
const ModelShape kToyLarge{"8B", 64, 4, 2, 128, 96, 160, 128};
const ModelShape kToySmall{"135M", 64, 3, 1, 64, 96, 160, 128};

Operand f32(std::vector<int64_t> dims) {
  return {std::move(dims), DType::kF32};
}
/// Makes an operand of document starts that are all 0: one document per row.
Operand starts(int64_t tokens) {
  return {{tokens}, DType::kI32};
}
Operand tokens_below(int64_t tokens, int64_t vocabulary) {
  return {{tokens}, DType::kI32, static_cast<int32_t>(vocabulary)};
}

void add_attention(std::vector<Case>& cases, const ModelShape& m, int64_t sequence_length,
                   int64_t rows) {
  const int64_t n = rows * sequence_length, wide = (m.query_heads + 2 * m.kv_heads) * m.head_size;
  const int64_t narrow = m.query_heads * m.head_size;
  AttentionAttrs attrs{};
  attrs.query_heads = m.query_heads;
  attrs.kv_heads = m.kv_heads;
  attrs.head_size = m.head_size;
  attrs.sequence_length = sequence_length;
  attrs.scale = 0.1;
  const std::string where = cat(m.name, " ", rows, " x ", sequence_length);
  cases.push_back({cat("attention ", where),
                   OpKind::kAttention,
                   {{{n, wide}}, starts(n)},
                   {{{n, narrow}}, f32({m.query_heads, n})},
                   attrs});
  cases.push_back({cat("attention_dgrad ", where),
                   OpKind::kAttentionDgrad,
                   {{{n, narrow}}, {{n, wide}}, {{n, narrow}}, f32({m.query_heads, n}), starts(n)},
                   {{{n, wide}}},
                   attrs});
}

/// Adds attention on rows of documents with 320 to 704 tokens.
void add_attention_of_documents(std::vector<Case>& cases, const ModelShape& m,
                                int64_t sequence_length, int64_t rows) {
  std::vector<Case> made;
  add_attention(made, m, sequence_length, rows);
  for (Case& c : made) {
    const std::string what = c.kind == OpKind::kAttention ? "forward" : "backward";
    c.name = cat("attention documents ", what, " ", m.name, " ", rows, " x ", sequence_length);
    c.in.back().document_row_tokens = sequence_length;
    c.documents = true;
    cases.push_back(std::move(c));
  }
}

void add_matmul(std::vector<Case>& cases, const ModelShape& m, const std::string& name,
                int64_t inputs, int64_t outputs) {
  const int64_t n = m.tokens;
  const std::string where = cat(m.name, " ", name, " ", n, " x ", inputs, " x ", outputs);
  cases.push_back({cat("linear ", where),
                   OpKind::kLinear,
                   {{{n, inputs}}, {{outputs, inputs}}},
                   {{{n, outputs}}}});
  cases.push_back({cat("linear_dgrad ", where),
                   OpKind::kLinearDgrad,
                   {{{n, outputs}}, {{outputs, inputs}}},
                   {{{n, inputs}}}});
  cases.push_back({cat("linear_wgrad ", where),
                   OpKind::kLinearWgrad,
                   {{{n, outputs}}, {{n, inputs}}},
                   {f32({outputs, inputs})}});
}

void add_model(std::vector<Case>& cases, const ModelShape& m) {
  const int64_t n = m.tokens, d = m.hidden, f = m.feed_forward;
  const int64_t wide = (m.query_heads + 2 * m.kv_heads) * m.head_size,
                narrow = m.query_heads * m.head_size;
  add_matmul(cases, m, "qkv", d, wide);
  add_matmul(cases, m, "o", narrow, d);
  add_matmul(cases, m, "gate_up", d, 2 * f);
  add_matmul(cases, m, "down", f, d);
  const CrossEntropyAttrs head{true, gpu_head_chunk(m.vocabulary, 2)};
  cases.push_back({cat("linear_cross_entropy ", m.name),
                   OpKind::kLinearCrossEntropy,
                   {{{n, d}}, {{m.vocabulary, d}}, tokens_below(n, m.vocabulary)},
                   {{{2}, DType::kF64}, {{n, d}}, f32({m.vocabulary, d})},
                   head});
  const HeadAttrs heads{m.query_heads, m.kv_heads, m.head_size, 1e-6};
  const int64_t normed = m.query_heads + m.kv_heads;
  cases.push_back({cat("rms_norm ", m.name),
                   OpKind::kRmsNorm,
                   {{{n, d}}, {{d}}},
                   {{{n, d}}, f32({n})},
                   NormAttrs{1e-5}});
  cases.push_back({cat("rms_norm_dgrad ", m.name),
                   OpKind::kRmsNormDgrad,
                   {{{n, d}}, {{n, d}}, f32({n}), {{d}}},
                   {{{n, d}}},
                   NormAttrs{}});
  cases.push_back({cat("rms_norm_wgrad ", m.name),
                   OpKind::kRmsNormWgrad,
                   {{{n, d}}, {{n, d}}, f32({n})},
                   {f32({d})}});
  cases.push_back({cat("qk_norm ", m.name),
                   OpKind::kQkNorm,
                   {{{n, wide}}, {{m.head_size}}, {{m.head_size}}},
                   {{{n, wide}}, f32({n, normed})},
                   heads});
  cases.push_back({cat("rope ", m.name),
                   OpKind::kRope,
                   {{{n, wide}}, f32({n, m.head_size})},
                   {{{n, wide}}},
                   RopeAttrs{heads}});
  cases.push_back({cat("gated_activation ", m.name),
                   OpKind::kGatedActivation,
                   {{{n, 2 * f}}},
                   {{{n, f}}},
                   ActivationAttrs{}});
  cases.push_back({cat("gated_activation_dgrad ", m.name),
                   OpKind::kGatedActivationDgrad,
                   {{{n, f}}, {{n, 2 * f}}},
                   {{{n, 2 * f}}},
                   ActivationAttrs{}});
  cases.push_back({cat("embed ", m.name),
                   OpKind::kEmbed,
                   {tokens_below(n, m.vocabulary), {{m.vocabulary, d}}},
                   {{{n, d}}}});
  cases.push_back({cat("embed_wgrad of one token ", m.name),
                   OpKind::kEmbedWgrad,
                   {tokens_below(n, 1), {{n, d}}},
                   {f32({m.vocabulary, d})}});
  cases.push_back({cat("embed_wgrad ", m.name),
                   OpKind::kEmbedWgrad,
                   {tokens_below(n, m.vocabulary), {{n, d}}},
                   {f32({m.vocabulary, d})}});
}

/// Adds matrix multiplications of an adapter of rank 16 for qkv, multiplications by a quantized
/// base, and the head after one token was added.
void add_fine_tuning(std::vector<Case>& cases, const ModelShape& m) {
  constexpr int64_t kRank = 16;
  const int64_t n = m.tokens, d = m.hidden;
  const int64_t q = m.query_heads * m.head_size, kv = m.kv_heads * m.head_size, wide = q + 2 * kv;
  const LoraAttrs qkv{{{0, 2.0}, {q, 2.0}, {q + kv, 2.0}}};
  const Operand y{{n, wide}}, h{{n, 3 * kRank}};
  const std::vector<Operand> b{{{q, kRank}}, {{kv, kRank}}, {{kv, kRank}}};
  cases.push_back({cat("linear ", m.name, " lora_a ", n, " x ", d, " x ", 3 * kRank),
                   OpKind::kLinear,
                   {{{n, d}}, {{3 * kRank, d}}},
                   {h}});
  cases.push_back(
      {cat("lora_up qkv ", m.name), OpKind::kLoraUp, {y, h, b[0], b[1], b[2]}, {y}, qkv});
  cases.push_back(
      {cat("lora_up_dgrad qkv ", m.name), OpKind::kLoraUpDgrad, {y, b[0], b[1], b[2]}, {h}, qkv});
  cases.push_back({cat("lora_up_wgrad qkv ", m.name),
                   OpKind::kLoraUpWgrad,
                   {y, h},
                   {f32({q, kRank}), f32({kv, kRank}), f32({kv, kRank})},
                   qkv});
  const QuantizedFormat nf4{QuantizationType::kNf4, 64},
      int8{QuantizationType::kInt8, kQuantizedRecord};
  for (const auto& [name, format] : {std::pair{"nf4", nf4}, {"int8", int8}})
    cases.push_back({cat("quantized_linear ", name, " ", m.name, " ", n, " x ", d, " x ", wide),
                     OpKind::kLinear,
                     {{{n, d}}, {{wide, d}, DType::kBF16, 0, format}},
                     {y}});
  const int64_t odd = m.vocabulary + 1;
  cases.push_back({cat("linear_cross_entropy odd vocabulary ", m.name),
                   OpKind::kLinearCrossEntropy,
                   {{{n, d}}, {{odd, d}}, tokens_below(n, odd)},
                   {{{2}, DType::kF64}, {{n, d}}, f32({odd, d})},
                   CrossEntropyAttrs{true, gpu_head_chunk(odd, 2)}});
}

std::vector<Case> all_cases(bool small) {
  const ModelShape &large = small ? kToyLarge : kLarge, &little = small ? kToySmall : kSmall;
  std::vector<Case> cases;
  for (const ModelShape& m : {large, little}) {
    add_attention(cases, m, small ? 64 : 4096, 1);
    add_attention(cases, m, small ? 128 : 32768, 1);
    add_attention_of_documents(cases, m, small ? 64 : 4096, 1);
    add_attention_of_documents(cases, m, small ? 64 : 2048, 8);
    add_attention_of_documents(cases, m, small ? 1024 : 32768, 1);
    add_model(cases, m);
    add_fine_tuning(cases, m);
  }
  return cases;
}

/// RandomBlock is pinned memory of random bits, which are numbers of either sign between 2^-7 and
/// 2^-5, or positive ones.
class RandomBlock {
 public:
  RandomBlock(DeviceKernels& gpu, DeviceStream stream) : gpu_(gpu), stream_(stream) {
    std::mt19937 bits(1);
    std::vector<uint16_t> narrow(kBlockElements);
    std::vector<uint32_t> wide(kBlockElements), positive(kBlockElements);
    for (int64_t i = 0; i < kBlockElements; ++i) {
      const uint32_t drawn = bits();
      wide[i] = (drawn & 0x80FFFFFFU) | 0x3C000000U;
      positive[i] = wide[i] & 0x7FFFFFFFU;
      narrow[i] = static_cast<uint16_t>(wide[i] >> 16);
    }
    narrow_ = upload(narrow.data(), 2 * kBlockElements);
    wide_ = upload(wide.data(), 4 * kBlockElements);
    positive_ = upload(positive.data(), 4 * kBlockElements);
  }
  ~RandomBlock() {
    for (void* memory : {narrow_, wide_, positive_}) gpu_.free(memory);
  }
  RandomBlock(const RandomBlock&) = delete;
  RandomBlock& operator=(const RandomBlock&) = delete;

  void fill(void* to, int64_t bytes, DType dtype, bool positive = false) const {
    const void* const block = dtype == DType::kBF16 ? narrow_ : positive ? positive_ : wide_;
    const int64_t whole = kBlockElements * (dtype == DType::kBF16 ? 2 : 4);
    for (int64_t at = 0; at < bytes; at += whole)
      gpu_.copy(static_cast<char*>(to) + at, block, std::min(whole, bytes - at), stream_);
  }

 private:
  void* upload(const void* from, int64_t bytes) {
    void* const to = gpu_.allocate(bytes);
    gpu_.copy(to, from, bytes, stream_);
    gpu_.synchronize(stream_);
    return to;
  }

  DeviceKernels& gpu_;
  DeviceStream stream_;
  void *narrow_ = nullptr, *wide_ = nullptr, *positive_ = nullptr;
};

class Bench {
 public:
  Bench(DeviceKernels& gpu, int rounds)
      : gpu_(gpu),
        rounds_(rounds),
        stream_(gpu.create_stream(false)),
        begin_(gpu.create_event(true)),
        end_(gpu.create_event(true)),
        random_(gpu, stream_) {}

  void run(const Case& c) {
    LayerGraph graph;
    graph.dtypes.kernels = KernelDevice::kGpu;
    Op op{c.kind, {}, {}, c.attrs, -1};
    for (const Operand& operand : c.in) op.in.push_back(add(graph, operand));
    for (const Operand& operand : c.out) op.out.push_back(add(graph, operand));
    if (const int64_t scratch = workspace_bytes(graph, op); scratch > 0)
      op.workspace = add(graph, {{scratch}, DType::kU8});
    graph.forward.push_back(op);
    gpu_.prepare(graph);
    const StepScalars scalars;
    void* const on_device = allocate(sizeof scalars);
    gpu_.copy(on_device, &scalars, sizeof scalars, stream_);
    const KernelContext context{false, static_cast<const StepScalars*>(on_device)};
    const double ms = milliseconds([&] {
      gpu_.run_ops(graph, {&op, 1}, storage_, context, stream_);
    });
    print(c.name, ms, op_flops(graph, op), traffic_bytes(graph, op));
    release();
  }

  void run_flat(int64_t count) {
    auto* const parameters = static_cast<float*>(allocate(4 * count));
    void* const gradients = allocate(4 * count);
    auto* const m = static_cast<float*>(allocate(4 * count));
    auto* const v = static_cast<float*>(allocate(4 * count));
    void* const copy = allocate(2 * count);
    for (void* memory : {static_cast<void*>(parameters), gradients, static_cast<void*>(m)})
      random_.fill(memory, 4 * count, DType::kF32);
    random_.fill(v, 4 * count, DType::kF32, true);
    const StepScalars scalars;
    auto* const on_device = static_cast<StepScalars*>(allocate(sizeof scalars));
    gpu_.copy(on_device, &scalars, sizeof scalars, stream_);
    const FlatUpdate update{.parameters = parameters,
                            .gradients = gradients,
                            .states = {m, v},
                            .copy = copy,
                            .count = count};
    const auto wide = static_cast<double>(count);
    print("adam", milliseconds([&] { gpu_.optimizer_update(update, {}, on_device, stream_); }), 0,
          30 * wide);
    void* const scratch = allocate(gpu_.sum_of_squares_scratch_bytes(count));
    auto* const sum = static_cast<double*>(allocate(8));
    print("sum_of_squares", milliseconds([&] {
            gpu_.sum_of_squares(gradients, DType::kF32, count, false, sum, scratch, stream_);
          }),
          0, 4 * wide);
    print("convert fp32 to bf16", milliseconds([&] {
            gpu_.convert(gradients, DType::kF32, copy, DType::kBF16, count, stream_);
          }),
          0, 6 * wide);
    const int64_t part = count / 8 / 8 * 8;
    print("sum_blocks of 8 ranks, bf16", milliseconds([&] {
            gpu_.sum_blocks(gradients, 8, part, DType::kBF16, part, copy, stream_);
          }),
          0, static_cast<double>(part) * 18);
    release();
  }

 private:
  ValueId add(LayerGraph& graph, const Operand& operand) {
    Value value;
    value.name = cat("v", graph.values.size());
    value.dtype = operand.dtype;
    value.dims = operand.dims;
    value.quantized = operand.quantized;
    storage_.push_back(allocate(value.bytes()));
    fill(value, operand, storage_.back());
    graph.values.push_back(std::move(value));
    return static_cast<ValueId>(graph.values.size()) - 1;
  }

  void fill(const Value& value, const Operand& operand, void* memory) {
    if (operand.below > 1) {
      std::mt19937 numbers(2);
      std::vector<int32_t> drawn(element_count(operand.dims));
      for (int32_t& token : drawn)
        token = static_cast<int32_t>(numbers() % static_cast<uint32_t>(operand.below));
      gpu_.copy(memory, drawn.data(), value.bytes(), stream_);
      gpu_.synchronize(stream_);
    } else if (operand.document_row_tokens > 0) {
      const std::vector<int32_t> starts =
          starts_of_documents(operand.dims[0], operand.document_row_tokens);
      gpu_.copy(memory, starts.data(), value.bytes(), stream_);
      gpu_.synchronize(stream_);
    } else if (operand.quantized || operand.dtype == DType::kBF16) {
      random_.fill(memory, value.bytes(), DType::kBF16);
    } else if (operand.dtype == DType::kF32) {
      random_.fill(memory, value.bytes(), DType::kF32);
    }
  }

  static std::vector<int32_t> starts_of_documents(int64_t tokens, int64_t sequence_length) {
    std::mt19937 numbers(3);
    std::vector<int32_t> starts;
    int32_t start = 0;
    for (int64_t token = 0, end = 0; token < tokens; ++token) {
      if (token == end || token % sequence_length == 0) {
        start = static_cast<int32_t>(token % sequence_length);
        end = token + 320 + static_cast<int64_t>(numbers() % 385);
      }
      starts.push_back(start);
    }
    return starts;
  }

  /// Returns memory that holds zeros.
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
    for (int round = 0; round < rounds_; ++round) {
      gpu_.record(begin_, stream_);
      for (int call = 0; call < kCalls; ++call) body();
      gpu_.record(end_, stream_);
      gpu_.synchronize(stream_);
      least = std::min(least, gpu_.milliseconds(begin_, end_) / kCalls);
    }
    return least;
  }

  static void print(const std::string& name, double ms, double operations, double bytes) {
    std::printf("{\"case\": \"%s\", \"ms\": %.6f, \"tflops\": %.3f, \"gbytes\": %.3f}\n",
                name.c_str(), ms, ms > 0 ? operations / ms * 1e-9 : 0.0,
                ms > 0 ? bytes / ms * 1e-6 : 0.0);
    std::fflush(stdout);
  }

  DeviceKernels& gpu_;
  int rounds_;
  DeviceStream stream_;
  DeviceEvent begin_, end_;
  RandomBlock random_;
  std::vector<void*> memory_, storage_;
};

Options parse_options(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool has_value = i + 1 < words.size();
    if (words[i] == "--small")
      options.small = true;
    else if (words[i] == "--only" && has_value)
      options.only = words[++i];
    else if (words[i] == "--rounds" && has_value)
      options.rounds = std::max(1, std::stoi(words[++i]));
    else if (words[i] == "--attention" && has_value)
      options.cudnn = words[++i] == "cudnn" ? CudnnUse::kAlways : CudnnUse::kNever;
    else
      throw Error(ExitCode::kUsage, cat("unknown option ", words[i]),
                  "--only WORD, --attention own|cudnn, --rounds N, --small");
  }
  return options;
}

int run(const Options& options) {
  std::unique_ptr<DeviceKernels> gpu, with_documents;
  try {
    gpu = open_cuda_kernels(0, {.cudnn = options.cudnn});
    with_documents = open_cuda_kernels(0, {.cudnn = options.cudnn, .documents = true});
  } catch (const Error& error) {
    return testing::exit_code_without_gpu(error);
  }
  std::fprintf(stderr, "on %s, attention: %s\n", gpu->info().name.c_str(),
               gpu->library_use().chosen.c_str());
  Bench bench(*gpu, options.rounds), bench_of_documents(*with_documents, options.rounds);
  for (const Case& c : all_cases(options.small))
    if (c.name.find(options.only) != std::string::npos)
      (c.documents ? bench_of_documents : bench).run(c);
  if (std::string("adam sum_of_squares convert sum_blocks").find(options.only) != std::string::npos)
    bench.run_flat(options.small ? 1 << 14 : 256 << 20);
  return 0;
}

}  // namespace
}  // namespace ftrun

int main(int argc, char** argv) {
  try {
    return ftrun::run(ftrun::parse_options({argv + 1, argv + argc}));
  } catch (const ftrun::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
