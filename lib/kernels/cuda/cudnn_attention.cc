#include "kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/library_error.h"
#include "kernels/cuda/check.h"

namespace ftrun::cuda {

namespace {

// Letters: B sequences of up to T tokens, H query heads, KV key and value heads, d elements of a
// head.

/// The oldest version that is accepted: the one whose plans were examined (without a GPU). Versions
/// before 9.11 have faults that the release notes list.
constexpr size_t kMinVersion = 91900, kNextMajor = 100000;
constexpr int64_t kBytes = 2;
/// A workspace may take 1 / kWorkspaceShare of a GPU's memory.
constexpr int64_t kWorkspaceShare = 8;

void check(const CudnnApi& api, int status, const char* what) {
  if (status == kCudnnSuccess) return;
  throw_library_error(what, "cuDNN", api.error_string(status));
}

std::string attention_part_text(const AttentionAttrs& attrs, const CudnnPart& part, int64_t tokens,
                                bool backward) {
  return cat("attention of ", attrs.query_heads, " heads of ", attrs.head_size, " elements (",
             attrs.kv_heads, " of keys) and ", tokens, " tokens",
             part.documents ? cat(", documents of up to ", part.max_tokens) : "",
             backward ? ", backward" : "");
}

/// AttentionGraphWriter writes the operations of one graph; names are those of
/// make_cudnn_attention_graph().
class AttentionGraphWriter {
 public:
  AttentionGraphWriter(CudnnAttentionGraph& attention, const AttentionAttrs& attrs,
                       const CudnnPart& part, int64_t tokens)
      : attention_(attention),
        graph_(attention.graph),
        attrs_(attrs),
        part_(part),
        query_heads_(attrs.query_heads / attrs.kv_heads * part.kv_heads),
        tokens_(tokens),
        width_((attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size),
        out_width_(attrs.query_heads * attrs.head_size) {
    if (part.documents) write_lists();
  }

  void write_forward() {
    attention_.q = graph_.add_memory_tensor(queries());
    attention_.k = graph_.add_memory_tensor(transposed(keys()));
    attention_.v = graph_.add_memory_tensor(keys());
    attention_.out = graph_.add_memory_tensor(results());
    attention_.lse = graph_.add_memory_tensor(statistic());
    const int64_t scores = mask_by_position(mask_beyond_lengths(compute_scaled_scores()));
    const int64_t largest = graph_.add_virtual_tensor(column());
    graph_.reduce(CudnnReduction::kMax, scores, largest);
    const int64_t weights =
        apply(CudnnPointwise::kExp, apply(CudnnPointwise::kSubtract, scores, largest));
    const int64_t sum = graph_.add_virtual_tensor(column());
    graph_.reduce(CudnnReduction::kAdd, weights, sum);
    const int64_t log_sum = graph_.add_virtual_tensor(column());
    graph_.pointwise({CudnnPointwise::kLog, sum, log_sum});
    graph_.pointwise(
        {.mode = CudnnPointwise::kAdd, .x = largest, .y = attention_.lse, .b = log_sum});
    const int64_t shares = graph_.add_virtual_tensor(square(CudnnType::kBFloat16));
    graph_.pointwise({.mode = CudnnPointwise::kDivide, .x = weights, .y = shares, .b = sum});
    graph_.matmul(shares, attention_.v, attention_.out,
                  {.rows = attention_.query_lengths, .depth = attention_.key_lengths});
  }

  // dV = P^T dO; dS = P * (dO V^T - delta) * scale; dK = dS^T Q; dQ = dS K. dQ is computed by one
  // matrix multiplication, not by blocks that add to sums in any order, so its bits are the same in
  // every run.
  void write_backward() {
    attention_.q = graph_.add_memory_tensor(queries());
    attention_.k = graph_.add_memory_tensor(transposed(keys()));
    attention_.v = graph_.add_memory_tensor(transposed(keys()));
    attention_.out = graph_.add_memory_tensor(results());
    attention_.lse = graph_.add_memory_tensor(statistic());
    attention_.dout = graph_.add_memory_tensor(results());
    attention_.dq = graph_.add_memory_tensor(queries());
    attention_.dk = graph_.add_memory_tensor(keys());
    attention_.dv = graph_.add_memory_tensor(keys());
    attention_.delta = graph_.add_memory_tensor(part_.documents ? statistic() : column());
    write_delta();
    const int64_t scores = mask_by_position(apply(
        CudnnPointwise::kSubtract, mask_beyond_lengths(compute_scaled_scores()), attention_.lse));
    const int64_t shares = apply(CudnnPointwise::kExp, scores);
    write_head_gradient(shares, attention_.dout, attention_.dv);
    const int64_t dshares = graph_.add_virtual_tensor(square(CudnnType::kFloat));
    graph_.matmul(attention_.dout, attention_.v, dshares,
                  {.rows = attention_.query_lengths, .columns = attention_.key_lengths});
    const int64_t centered = apply(CudnnPointwise::kSubtract, dshares, attention_.delta);
    const int64_t dscores = apply(CudnnPointwise::kMultiply, centered, shares);
    const int64_t scaled = graph_.add_virtual_tensor(square(CudnnType::kFloat));
    graph_.pointwise(
        {.mode = CudnnPointwise::kMultiply, .x = dscores, .y = scaled, .b = attention_.scale});
    write_head_gradient(scaled, attention_.q, attention_.dk);
    const int64_t k = graph_.add_virtual_tensor(keys());
    graph_.reshape(attention_.k, k);
    graph_.matmul(scaled, k, attention_.dq,
                  {.rows = attention_.query_lengths, .depth = attention_.key_lengths});
  }

 private:
  void write_lists() {
    attention_.query_lengths = graph_.add_list(part_.sequences);
    attention_.key_lengths = graph_.add_list(part_.sequences);
    attention_.qkv_offsets = graph_.add_list(part_.sequences + 1);
    attention_.out_offsets = graph_.add_list(part_.sequences + 1);
    attention_.token_offsets = graph_.add_list(part_.sequences + 1);
  }

  /// Returns the shape [B, heads, T, d] of rows of `width` elements.
  CudnnShape heads(int64_t count, int64_t width, std::optional<int64_t> offsets = {}) const {
    return {{part_.sequences, count, part_.max_tokens, attrs_.head_size},
            {part_.max_tokens * width, attrs_.head_size, width, 1},
            CudnnType::kBFloat16,
            offsets};
  }
  CudnnShape queries() const { return heads(query_heads_, width_, attention_.qkv_offsets); }
  CudnnShape keys() const { return heads(part_.kv_heads, width_, attention_.qkv_offsets); }
  CudnnShape results() const { return heads(query_heads_, out_width_, attention_.out_offsets); }
  static CudnnShape transposed(CudnnShape shape) {
    std::swap(shape.dims[2], shape.dims[3]);
    std::swap(shape.strides[2], shape.strides[3]);
    return shape;
  }
  CudnnShape contiguous(const std::array<int64_t, 4>& dims, CudnnType type) const {
    return {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, type};
  }
  CudnnShape square(CudnnType type) const {
    return contiguous({part_.sequences, query_heads_, part_.max_tokens, part_.max_tokens}, type);
  }
  CudnnShape column() const {
    return contiguous({part_.sequences, query_heads_, part_.max_tokens, 1}, CudnnType::kFloat);
  }
  /// Returns the shape F32[H, N], as our kernels have it.
  CudnnShape statistic() const {
    CudnnShape shape = column();
    shape.strides = {part_.max_tokens, tokens_, 1, 1};
    shape.offsets = attention_.token_offsets;
    return shape;
  }

  /// Applies an elementwise operation to matrices of scores.
  int64_t apply(CudnnPointwise mode, int64_t x, std::optional<int64_t> b = {}) {
    const int64_t y = graph_.add_virtual_tensor(square(CudnnType::kFloat));
    graph_.pointwise({.mode = mode, .x = x, .y = y, .b = b});
    return y;
  }

  int64_t compute_scaled_scores() {
    const int64_t scores = graph_.add_virtual_tensor(square(CudnnType::kFloat));
    graph_.matmul(attention_.q, attention_.k, scores,
                  {.rows = attention_.query_lengths, .columns = attention_.key_lengths});
    attention_.scale = graph_.add_scalar();
    return apply(CudnnPointwise::kMultiply, scores, attention_.scale);
  }

  int64_t index_along(int64_t axis, int64_t of) {
    const int64_t index = graph_.add_virtual_tensor(square(CudnnType::kInt32));
    graph_.pointwise({.mode = CudnnPointwise::kIndex, .x = of, .y = index, .axis = axis});
    return index;
  }

  /// Computes mode(left, right), a comparison, for each element.
  int64_t compare(CudnnPointwise mode, int64_t left, int64_t right) {
    const int64_t seen = graph_.add_virtual_tensor(square(CudnnType::kBoolean));
    graph_.pointwise(
        {.mode = mode, .x = left, .y = seen, .b = right, .precision = CudnnType::kBoolean});
    return seen;
  }
  /// Sets scores to minus infinity where not seen[i].
  int64_t mask_unseen(int64_t scores, int64_t seen) {
    if (attention_.masked == 0) attention_.masked = graph_.add_scalar();
    const int64_t masked = graph_.add_virtual_tensor(square(CudnnType::kFloat));
    graph_.pointwise({.mode = CudnnPointwise::kSelect,
                      .x = scores,
                      .y = masked,
                      .b = attention_.masked,
                      .t = seen});
    return masked;
  }

  static constexpr int64_t kRow = 2, kColumn = 3;

  /// Masks scores whose row or column is not below the length of its sequence.
  int64_t mask_beyond_lengths(int64_t scores) {
    if (!part_.documents) return scores;
    const int64_t row = index_along(kRow, scores), column = index_along(kColumn, scores);
    const int64_t has_row = compare(CudnnPointwise::kLess, row, *attention_.query_lengths);
    const int64_t has_column = compare(CudnnPointwise::kLess, column, *attention_.key_lengths);
    return mask_unseen(scores, compare(CudnnPointwise::kAnd, has_row, has_column));
  }

  /// Masks scores: a row sees the columns up to its own or, with a window, only the last
  /// attrs.window of these.
  int64_t mask_by_position(int64_t scores) {
    const int64_t row = index_along(kRow, scores), column = index_along(kColumn, scores);
    const int64_t causal =
        mask_unseen(scores, compare(CudnnPointwise::kGreaterOrEqual, row, column));
    if (attrs_.window == 0) return causal;
    attention_.window = graph_.add_scalar();
    const int64_t first = index_along(kRow, causal), last = index_along(kColumn, causal);
    const int64_t reach = graph_.add_virtual_tensor(square(CudnnType::kFloat));
    graph_.pointwise({.mode = CudnnPointwise::kAdd,
                      .x = last,
                      .y = reach,
                      .b = attention_.window,
                      .axis = kColumn});
    return mask_unseen(causal, compare(CudnnPointwise::kGreater, reach, first));
  }

  void write_delta() {
    const int64_t products =
        graph_.add_virtual_tensor(contiguous(heads(query_heads_, 0).dims, CudnnType::kFloat));
    graph_.pointwise({.mode = CudnnPointwise::kMultiply,
                      .x = attention_.dout,
                      .y = products,
                      .b = attention_.out});
    const int64_t sums = graph_.add_virtual_tensor(column());
    graph_.reduce(CudnnReduction::kAdd, products, sums);
    attention_.one = graph_.add_scalar();
    graph_.pointwise(
        {.mode = CudnnPointwise::kMultiply, .x = sums, .y = attention_.delta, .b = attention_.one});
  }

  /// Writes to = x^T y, summed over the query heads that share a key head.
  void write_head_gradient(int64_t x, int64_t y, int64_t to) {
    CudnnShape turned = transposed(square(CudnnType::kBFloat16));
    const int64_t x_transposed = graph_.add_virtual_tensor(turned);
    graph_.reshape(x, x_transposed);
    const CudnnMatmulLengths lengths{.rows = attention_.key_lengths,
                                     .depth = attention_.query_lengths};
    if (query_heads_ == part_.kv_heads) return graph_.matmul(x_transposed, y, to, lengths);
    const int64_t each =
        graph_.add_virtual_tensor(contiguous(heads(query_heads_, 0).dims, CudnnType::kBFloat16));
    graph_.matmul(x_transposed, y, each, lengths);
    graph_.reduce(CudnnReduction::kAdd, each, to);
  }

  CudnnAttentionGraph& attention_;
  CudnnGraph& graph_;
  const AttentionAttrs& attrs_;
  const CudnnPart& part_;
  const int64_t query_heads_, tokens_, width_, out_width_;
};

const void* element(const void* base, int64_t index) {
  return static_cast<const std::byte*>(base) + index * kBytes;
}

}  // namespace

bool cudnn_supports(const DeviceInfo& gpu, const AttentionAttrs& attrs, DType dtype, int64_t tokens,
                    bool documents) {
  const bool known = gpu.compute_major == 8 || gpu.compute_major == 9;
  const int64_t max_head = gpu.compute_major == 9 ? kMaxCudnnHead : 128;
  if (!known || !cudnn_can_compute(attrs, dtype) || attrs.head_size > max_head) return false;
  // Offsets of documents are 32 bits wide.
  const int64_t elements = tokens * (attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size;
  if (documents && (gpu.compute_major != 9 || elements > std::numeric_limits<int32_t>::max()))
    return false;
  const std::vector<CudnnPart> parts = cudnn_parts(attrs, tokens, documents);
  return std::all_of(parts.begin(), parts.end(), [&](const CudnnPart& part) {
    return cudnn_workspace_bytes(attrs, part) <= gpu.memory_bytes / kWorkspaceShare;
  });
}

CudnnAttentionGraph make_cudnn_attention_graph(const CudnnApi& api, const AttentionAttrs& attrs,
                                               const CudnnPart& part, int64_t tokens,
                                               bool backward) {
  CudnnAttentionGraph graph{.graph = CudnnGraph(api)};
  AttentionGraphWriter writer(graph, attrs, part, tokens);
  backward ? writer.write_backward() : writer.write_forward();
  return graph;
}

CudnnAttention::CudnnAttention(const CudnnApi& api, bool required, int64_t part_bytes)
    : api_(api), required_(required), part_bytes_(part_bytes) {
  const size_t version = api.version();
  if (version < kMinVersion || version >= kNextMajor)
    throw Error(ExitCode::kEnvironment,
                cat("cuDNN cannot compute attention: it is version ", cudnn_version_text(version)),
                cat("install a cuDNN 9 of version ", cudnn_version_text(kMinVersion),
                    " or later, or set kernels.attention: own"));
  check(api_, api_.create(&handle_), "opening cuDNN");
}

CudnnAttention::~CudnnAttention() {
  prepared_.clear();
  api_.destroy(handle_);
  for (const Workspace& workspace : workspaces_) cudaFree(workspace.memory);
}

std::string CudnnAttention::version() const {
  return cat("cudnn ", cudnn_version_text(api_.version()));
}

int64_t CudnnAttention::workspace_bytes() const {
  int64_t bytes = 0;
  for (const Workspace& workspace : workspaces_) bytes += workspace.bytes;
  return bytes;
}

void* CudnnAttention::find_or_allocate_workspace(int64_t bytes) {
  if (bytes == 0) return nullptr;
  for (const Workspace& workspace : workspaces_)
    if (workspace.bytes >= bytes) return workspace.memory;
  void* memory = nullptr;
  cuda::check(cudaMalloc(&memory, static_cast<size_t>(bytes)),
              "allocating the workspace of cuDNN's attention");
  workspaces_.push_back({memory, bytes});
  return memory;
}

void CudnnAttention::prepare(const AttentionAttrs& attrs, int64_t tokens, bool documents,
                             bool backward) {
  if (find(attrs, tokens, documents, backward) != nullptr) return;
  PreparedAttention prepared{.attrs = attrs,
                             .tokens = tokens,
                             .documents = documents,
                             .backward = backward,
                             .scale = static_cast<float>(attrs.scale),
                             .window = static_cast<float>(attrs.window)};
  int64_t max_workspace_bytes = 0;
  try {
    for (const CudnnPart& part : cudnn_parts(attrs, tokens, documents, part_bytes_)) {
      CudnnAttentionGraph graph = make_cudnn_attention_graph(api_, attrs, part, tokens, backward);
      CudnnPlan plan = graph.graph.make_plan({.handle = handle_},
                                             attention_part_text(attrs, part, tokens, backward));
      max_workspace_bytes = std::max(max_workspace_bytes, plan.workspace_bytes());
      prepared.parts.push_back({part, std::move(graph), std::move(plan), nullptr});
    }
    // The workspace serves all parts, which run one after the other.
    void* const workspace = find_or_allocate_workspace(max_workspace_bytes);
    for (auto& part : prepared.parts) part.workspace = workspace;
  } catch (const Error& error) {
    if (required_ || error.code() != ExitCode::kUnsupported) throw;
    unsupported_reason_ = error.message();
    prepared.parts.clear();
  }
  prepared_.push_back(std::move(prepared));
}

const CudnnAttention::PreparedAttention* CudnnAttention::find(const AttentionAttrs& attrs,
                                                              int64_t tokens, bool documents,
                                                              bool backward) const {
  for (const PreparedAttention& prepared : prepared_)
    if (prepared.attrs == attrs && prepared.tokens == tokens && prepared.documents == documents &&
        prepared.backward == backward)
      return &prepared;
  return nullptr;
}

bool CudnnAttention::has_plans() const {
  return std::any_of(prepared_.begin(), prepared_.end(),
                     [](const PreparedAttention& prepared) { return !prepared.parts.empty(); });
}

bool CudnnAttention::has_plan(const AttentionAttrs& attrs, int64_t tokens, bool documents,
                              bool backward) const {
  const PreparedAttention* const prepared = find(attrs, tokens, documents, backward);
  return prepared != nullptr && !prepared->parts.empty();
}

void CudnnAttention::run(const Attention& a, const DocumentLists* lists, bool backward,
                         cudaStream_t stream) {
  const PreparedAttention* const prepared = find(a.attrs, a.tokens, lists != nullptr, backward);
  require(prepared != nullptr, "the plan of cuDNN's attention was prepared");
  check(api_, api_.set_stream(handle_, stream), "choosing cuDNN's stream");
  for (size_t i = 0; i < prepared->parts.size(); ++i) {
    const CudnnPart& part = prepared->parts[i].part;
    const int64_t sequences =
        lists != nullptr ? lists->groups[i].slots : a.tokens / a.attrs.sequence_length;
    for (int64_t sequence = 0; sequence < sequences; sequence += part.sequences)
      for (int64_t kv_head = 0; kv_head < a.attrs.kv_heads; kv_head += part.kv_heads) {
        const int64_t token = lists != nullptr ? 0 : sequence * a.attrs.sequence_length;
        std::vector<CudnnArgument> arguments = operands(*prepared, i, a, token, kv_head);
        if (lists != nullptr)
          add_lists(arguments, prepared->parts[i].graph, lists->groups[i], sequence);
        prepared->parts[i].plan.run(handle_, arguments, prepared->parts[i].workspace);
      }
  }
}

std::vector<CudnnArgument> CudnnAttention::operands(const PreparedAttention& prepared, size_t index,
                                                    const Attention& a, int64_t token,
                                                    int64_t kv_head) {
  const CudnnAttentionGraph& g = prepared.parts[index].graph;
  const AttentionAttrs& attrs = a.attrs;
  const int64_t head = kv_head * (attrs.query_heads / attrs.kv_heads);
  const int64_t width = (attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size,
                row = token * width;
  const int64_t queries = row + head * attrs.head_size,
                keys = row + (attrs.query_heads + kv_head) * attrs.head_size;
  const int64_t values = keys + attrs.kv_heads * attrs.head_size;
  const int64_t result = (token * attrs.query_heads + head) * attrs.head_size;
  std::vector<CudnnArgument> arguments{{g.q, element(a.qkv, queries)},
                                       {g.k, element(a.qkv, keys)},
                                       {g.v, element(a.qkv, values)},
                                       {g.out, element(a.a, result)},
                                       {g.lse, a.lse + head * a.tokens + token},
                                       {g.scale, &prepared.scale},
                                       {g.masked, &prepared.masked}};
  if (g.window != 0) arguments.push_back({g.window, &prepared.window});
  if (!prepared.backward) return arguments;
  // Parts with rows of one document run one after the other and share the scratch. In it, documents
  // use the same offsets as their statistics.
  const float* const delta = a.delta + (prepared.documents ? head * a.tokens : 0);
  arguments.insert(arguments.end(), {{g.dout, element(a.da, result)},
                                     {g.dq, element(a.dqkv, queries)},
                                     {g.dk, element(a.dqkv, keys)},
                                     {g.dv, element(a.dqkv, values)},
                                     {g.delta, delta},
                                     {g.one, &prepared.one}});
  return arguments;
}

void CudnnAttention::add_lists(std::vector<CudnnArgument>& arguments,
                               const CudnnAttentionGraph& graph,
                               const DocumentLists::DocumentGroup& lists, int64_t first) {
  arguments.push_back({*graph.query_lengths, lists.lengths + first});
  arguments.push_back({*graph.key_lengths, lists.lengths + first});
  arguments.push_back({*graph.qkv_offsets, lists.qkv_offsets + first});
  arguments.push_back({*graph.out_offsets, lists.out_offsets + first});
  arguments.push_back({*graph.token_offsets, lists.token_offsets + first});
}

void CudnnAttention::forward(const Attention& a, const DocumentLists* lists, cudaStream_t stream) {
  run(a, lists, false, stream);
}

void CudnnAttention::backward(const Attention& a, const DocumentLists* lists, cudaStream_t stream) {
  run(a, lists, true, stream);
}

}  // namespace ftrun::cuda
