#include "kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/library_error.h"
#include "kernels/cuda/check.h"

namespace ftrun::cuda {

namespace {

// B batch rows, T tokens of a row, H query heads, KV key and value heads, d elements of a head.

/// The version whose plans were looked at (without a GPU); those before 9.11 have faults that its notes name.
constexpr size_t kLeastVersion = 91900, kNextMajor = 100000;
constexpr int64_t kBytes = 2;

void check(const CudnnApi& api, int status, const char* what) {
  if (status == kCudnnSuccess) return;
  throw_library_error(what, "cuDNN", api.error_string(status));
}

std::string text_of(const AttentionAttrs& attrs, int64_t tokens, bool backward) {
  return cat("attention of ", attrs.query_heads, " heads of ", attrs.head_size, " elements (", attrs.kv_heads,
             " of keys) and ", tokens, " tokens", backward ? ", backward" : "");
}

/// Writes the operations of one graph; names are those of cudnn_attention_graph().
class Writer {
 public:
  Writer(CudnnAttentionGraph& to, const AttentionAttrs& attrs, int64_t tokens)
      : to_(to),
        graph_(to.graph),
        attrs_(attrs),
        rows_(tokens / attrs.row_tokens),
        tokens_(tokens),
        width_((attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size),
        out_width_(attrs.query_heads * attrs.head_size) {}

  void forward() {
    to_.q = graph_.in_memory(heads(attrs_.query_heads, width_));
    to_.k = graph_.in_memory(transposed(heads(attrs_.kv_heads, width_)));
    to_.v = graph_.in_memory(heads(attrs_.kv_heads, width_));
    to_.out = graph_.in_memory(heads(attrs_.query_heads, out_width_));
    to_.lse = graph_.in_memory(statistic());
    const int64_t scores = masked(scaled_scores());
    const int64_t largest = graph_.within(column());
    graph_.reduce(CudnnReduction::kMax, scores, largest);
    const int64_t weights = apply(CudnnPointwise::kExp, apply(CudnnPointwise::kSubtract, scores, largest));
    const int64_t sum = graph_.within(column());
    graph_.reduce(CudnnReduction::kAdd, weights, sum);
    const int64_t log_sum = graph_.within(column());
    graph_.pointwise({CudnnPointwise::kLog, sum, log_sum});
    graph_.pointwise({.mode = CudnnPointwise::kAdd, .x = largest, .y = to_.lse, .b = log_sum});
    const int64_t shares = graph_.within(square(CudnnType::kBFloat16));
    graph_.pointwise({.mode = CudnnPointwise::kDivide, .x = weights, .y = shares, .b = sum});
    graph_.matmul(shares, to_.v, to_.out);
  }

  // dV = P^T dO; dS = P * (dO V^T - delta) * scale; dK = dS^T Q; dQ = dS K. Straight to dQ, not by way of sums that
  // blocks add to as they come: that is what repeats its bits.
  void backward() {
    to_.q = graph_.in_memory(heads(attrs_.query_heads, width_));
    to_.k = graph_.in_memory(transposed(heads(attrs_.kv_heads, width_)));
    to_.v = graph_.in_memory(transposed(heads(attrs_.kv_heads, width_)));
    to_.out = graph_.in_memory(heads(attrs_.query_heads, out_width_));
    to_.lse = graph_.in_memory(statistic());
    to_.dout = graph_.in_memory(heads(attrs_.query_heads, out_width_));
    to_.dq = graph_.in_memory(heads(attrs_.query_heads, width_));
    to_.dk = graph_.in_memory(heads(attrs_.kv_heads, width_));
    to_.dv = graph_.in_memory(heads(attrs_.kv_heads, width_));
    to_.delta = graph_.in_memory(column());
    write_delta();
    const int64_t scores = masked(apply(CudnnPointwise::kSubtract, scaled_scores(), to_.lse));
    const int64_t shares = apply(CudnnPointwise::kExp, scores);
    write_head_gradient(shares, to_.dout, to_.dv);
    const int64_t dshares = graph_.within(square(CudnnType::kFloat));
    graph_.matmul(to_.dout, to_.v, dshares);
    const int64_t centred = apply(CudnnPointwise::kSubtract, dshares, to_.delta);
    const int64_t dscores = apply(CudnnPointwise::kMultiply, centred, shares);
    const int64_t scaled = graph_.within(square(CudnnType::kFloat));
    graph_.pointwise({.mode = CudnnPointwise::kMultiply, .x = dscores, .y = scaled, .b = to_.scale});
    write_head_gradient(scaled, to_.q, to_.dk);
    CudnnShape keys = heads(attrs_.kv_heads, width_);
    const int64_t k = graph_.within(keys);
    graph_.reshape(to_.k, k);
    graph_.matmul(scaled, k, to_.dq);
  }

 private:
  /// [B, heads, T, d] of rows of `width` elements.
  CudnnShape heads(int64_t count, int64_t width) const {
    return {{rows_, count, attrs_.row_tokens, attrs_.head_size},
            {attrs_.row_tokens * width, attrs_.head_size, width, 1},
            CudnnType::kBFloat16};
  }
  static CudnnShape transposed(CudnnShape shape) {
    std::swap(shape.dims[2], shape.dims[3]);
    std::swap(shape.strides[2], shape.strides[3]);
    return shape;
  }
  CudnnShape contiguous(const std::array<int64_t, 4>& dims, CudnnType type) const {
    return {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, type};
  }
  CudnnShape square(CudnnType type) const {
    return contiguous({rows_, attrs_.query_heads, attrs_.row_tokens, attrs_.row_tokens}, type);
  }
  CudnnShape column() const {
    return contiguous({rows_, attrs_.query_heads, attrs_.row_tokens, 1}, CudnnType::kFloat);
  }
  /// F32[H, N], as our kernels have it.
  CudnnShape statistic() const {
    CudnnShape shape = column();
    shape.strides = {attrs_.row_tokens, tokens_, 1, 1};
    return shape;
  }

  /// Of squares.
  int64_t apply(CudnnPointwise mode, int64_t x, std::optional<int64_t> b = {}) {
    const int64_t y = graph_.within(square(CudnnType::kFloat));
    graph_.pointwise({.mode = mode, .x = x, .y = y, .b = b});
    return y;
  }

  int64_t scaled_scores() {
    const int64_t scores = graph_.within(square(CudnnType::kFloat));
    graph_.matmul(to_.q, to_.k, scores);
    to_.scale = graph_.number();
    return apply(CudnnPointwise::kMultiply, scores, to_.scale);
  }

  int64_t place_along(int64_t axis, int64_t of) {
    const int64_t place = graph_.within(square(CudnnType::kInt32));
    graph_.pointwise({.mode = CudnnPointwise::kIndex, .x = of, .y = place, .axis = axis});
    return place;
  }

  /// Minus infinity where not seen[i].
  int64_t kept(int64_t scores, CudnnPointwise mode, int64_t left, int64_t right) {
    const int64_t seen = graph_.within(square(CudnnType::kBoolean));
    graph_.pointwise({.mode = mode, .x = left, .y = seen, .b = right, .precision = CudnnType::kBoolean});
    const int64_t masked = graph_.within(square(CudnnType::kFloat));
    graph_.pointwise({.mode = CudnnPointwise::kSelect, .x = scores, .y = masked, .b = to_.masked, .t = seen});
    return masked;
  }

  /// Rows see columns up to their own; with a window, of those the last attrs.window.
  int64_t masked(int64_t scores) {
    constexpr int64_t kRow = 2, kColumn = 3;
    to_.masked = graph_.number();
    const int64_t row = place_along(kRow, scores), column = place_along(kColumn, scores);
    const int64_t causal = kept(scores, CudnnPointwise::kGreaterOrEqual, row, column);
    if (attrs_.window == 0) return causal;
    to_.window = graph_.number();
    const int64_t first = place_along(kRow, causal), last = place_along(kColumn, causal);
    const int64_t reach = graph_.within(square(CudnnType::kFloat));
    graph_.pointwise({.mode = CudnnPointwise::kAdd, .x = last, .y = reach, .b = to_.window, .axis = kColumn});
    return kept(causal, CudnnPointwise::kGreater, reach, first);
  }

  void write_delta() {
    const int64_t products = graph_.within(contiguous(heads(attrs_.query_heads, 0).dims, CudnnType::kFloat));
    graph_.pointwise({.mode = CudnnPointwise::kMultiply, .x = to_.dout, .y = products, .b = to_.out});
    const int64_t sums = graph_.within(column());
    graph_.reduce(CudnnReduction::kAdd, products, sums);
    to_.one = graph_.number();
    graph_.pointwise({.mode = CudnnPointwise::kMultiply, .x = sums, .y = to_.delta, .b = to_.one});
  }

  /// to = x^T y, summed over the query heads that share a key head.
  void write_head_gradient(int64_t x, int64_t y, int64_t to) {
    CudnnShape turned = transposed(square(CudnnType::kBFloat16));
    const int64_t x_transposed = graph_.within(turned);
    graph_.reshape(x, x_transposed);
    if (attrs_.query_heads == attrs_.kv_heads) return graph_.matmul(x_transposed, y, to);
    const int64_t each =
        graph_.within(contiguous(heads(attrs_.query_heads, 0).dims, CudnnType::kBFloat16));
    graph_.matmul(x_transposed, y, each);
    graph_.reduce(CudnnReduction::kAdd, each, to);
  }

  CudnnAttentionGraph& to_;
  CudnnGraph& graph_;
  const AttentionAttrs& attrs_;
  const int64_t rows_, tokens_, width_, out_width_;
};

const void* element(const void* base, int64_t index) { return static_cast<const std::byte*>(base) + index * kBytes; }

}  // namespace

bool cudnn_computes(const DeviceInfo& gpu, const AttentionAttrs& attrs, DType dtype, bool documents) {
  const bool known = gpu.compute_major == 8 || gpu.compute_major == 9;
  const int64_t most = gpu.compute_major == 9 ? 256 : 128;
  return known && dtype == DType::kBF16 && !documents && attrs.head_size % 8 == 0 && attrs.head_size <= most &&
         attrs.row_tokens > 1;
}

CudnnAttentionGraph cudnn_attention_graph(const CudnnApi& api, const AttentionAttrs& attrs, int64_t tokens,
                                          bool backward) {
  CudnnAttentionGraph made{.graph = CudnnGraph(api)};
  Writer writer(made, attrs, tokens);
  backward ? writer.backward() : writer.forward();
  return made;
}

CudnnAttention::CudnnAttention(const CudnnApi& api) : api_(api) {
  const size_t found = api.version();
  if (found < kLeastVersion || found >= kNextMajor)
    throw Error(ExitCode::kEnvironment,
                cat("cuDNN's attention was asked for (kernels.attention), but cuDNN is ", cudnn_version_text(found)),
                cat("install a cuDNN 9 of version ", cudnn_version_text(kLeastVersion),
                    " or later, or set kernels.attention to own"));
  check(api_, api_.create(&handle_), "opening cuDNN");
}

CudnnAttention::~CudnnAttention() {
  prepared_.clear();
  api_.destroy(handle_);
  for (const Workspace& each : workspaces_) cudaFree(each.memory);
}

std::string CudnnAttention::version() const { return cat("cudnn ", cudnn_version_text(api_.version())); }

int64_t CudnnAttention::workspace_bytes() const {
  int64_t bytes = 0;
  for (const Workspace& each : workspaces_) bytes += each.bytes;
  return bytes;
}

void* CudnnAttention::workspace_of(int64_t bytes) {
  if (bytes == 0) return nullptr;
  for (const Workspace& each : workspaces_)
    if (each.bytes >= bytes) return each.memory;
  void* memory = nullptr;
  cuda::check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "allocating the workspace of cuDNN's attention");
  workspaces_.push_back({memory, bytes});
  return memory;
}

void CudnnAttention::prepare(const AttentionAttrs& attrs, int64_t tokens, bool backward) {
  if (find(attrs, tokens, backward) != nullptr) return;
  CudnnAttentionGraph graph = cudnn_attention_graph(api_, attrs, tokens, backward);
  CudnnPlan plan = graph.graph.plan({.handle = handle_}, text_of(attrs, tokens, backward));
  void* const workspace = workspace_of(plan.workspace_bytes());
  prepared_.push_back({.attrs = attrs,
                       .tokens = tokens,
                       .backward = backward,
                       .graph = std::move(graph),
                       .plan = std::move(plan),
                       .workspace = workspace,
                       .scale = static_cast<float>(attrs.scale),
                       .window = static_cast<float>(attrs.window)});
}

const CudnnAttention::Prepared* CudnnAttention::find(const AttentionAttrs& attrs, int64_t tokens, bool backward) const {
  for (const Prepared& each : prepared_)
    if (each.attrs == attrs && each.tokens == tokens && each.backward == backward) return &each;
  return nullptr;
}

const CudnnAttention::Prepared& CudnnAttention::at(const Attention& a, bool backward) const {
  const Prepared* const found = find(a.attrs, a.tokens, backward);
  require(found != nullptr, "the plan of cuDNN's attention was prepared");
  return *found;
}

void CudnnAttention::run(const Prepared& prepared, std::vector<CudnnArgument> arguments, cudaStream_t stream) {
  check(api_, api_.set_stream(handle_, stream), "choosing cuDNN's stream");
  arguments.push_back({prepared.graph.scale, &prepared.scale});
  arguments.push_back({prepared.graph.masked, &prepared.masked});
  if (prepared.graph.window != 0) arguments.push_back({prepared.graph.window, &prepared.window});
  if (prepared.graph.one != 0) arguments.push_back({prepared.graph.one, &prepared.one});
  prepared.plan.run(handle_, arguments, prepared.workspace);
}

void CudnnAttention::forward(const Attention& a, cudaStream_t stream) {
  const Prepared& prepared = at(a, false);
  const CudnnAttentionGraph& g = prepared.graph;
  const int64_t keys = a.attrs.query_heads * a.attrs.head_size, values = keys + a.attrs.kv_heads * a.attrs.head_size;
  run(prepared, {{g.q, a.qkv}, {g.k, element(a.qkv, keys)}, {g.v, element(a.qkv, values)}, {g.out, a.a}, {g.lse, a.lse}},
      stream);
}

void CudnnAttention::backward(const Attention& a, cudaStream_t stream) {
  const Prepared& prepared = at(a, true);
  const CudnnAttentionGraph& g = prepared.graph;
  const int64_t keys = a.attrs.query_heads * a.attrs.head_size, values = keys + a.attrs.kv_heads * a.attrs.head_size;
  run(prepared,
      {{g.q, a.qkv},
       {g.k, element(a.qkv, keys)},
       {g.v, element(a.qkv, values)},
       {g.out, a.a},
       {g.lse, a.lse},
       {g.dout, a.da},
       {g.dq, a.dqkv},
       {g.dk, element(a.dqkv, keys)},
       {g.dv, element(a.dqkv, values)},
       {g.delta, a.delta}},
      stream);
}

}  // namespace ftrun::cuda
