#include <algorithm>

#include "blocks.h"
#include "graph/cost.h"
#include "graph/op_workspace.h"
#include "graph/storage.h"
#include "ops/activation/activation_traits.h"
#include "ops/attention/attention.h"
#include "ops/attention/gpu_workspace.h"
#include "ops/attention/workspace.h"
#include "ops/cross_entropy/workspace.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"
#include "ops/linear/workspace.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

const Op& first_of(const LayerGraph& g, OpKind kind) {
  for (const auto* list : {&g.forward, &g.backward})
    for (const Op& op : *list)
      if (op.kind == kind) return op;
  throw std::logic_error("no such operation");
}

TEST_CASE(
    "a matrix multiplication counts two operations for each token and weight, forward and for each "
    "gradient") {
  const LayerGraph g = block_graph({});
  CHECK(op_flops(g, first_of(g, OpKind::kLinear)) == 2.0 * 8 * 16 * 32);  // x[8,16] qkv[32,16]
  CHECK(op_flops(g, first_of(g, OpKind::kLinearDgrad)) ==
        2.0 * 8 * 16 * 24);  // d_sum[8,16] down[16,24]
  CHECK(op_flops(g, first_of(g, OpKind::kLinearWgrad)) == 2.0 * 8 * 16 * 24);
}

TEST_CASE(
    "the head counts its matrix multiplication once for the loss and twice more for gradients") {
  const LayerGraph train = head_graph({});
  const LayerGraph evaluate = head_graph({}, false);
  // The losses add one operation for each logit.
  CHECK(op_flops(train, first_of(train, OpKind::kLinearCrossEntropy)) ==
        3 * 2.0 * 8 * 16 * 32 + 8 * 32);
  CHECK(op_flops(evaluate, first_of(evaluate, OpKind::kLinearCrossEntropy)) ==
        2.0 * 8 * 16 * 32 + 8 * 32);
}

TEST_CASE("attention counts each pair of blocks of 64 tokens where a query of one sees the other") {
  for (const int64_t tokens : {1, 5, 64, 65, 200}) {
    for (const int64_t window : {0, 1, 2, 63, 64, 65, 66, 130, 300}) {
      const LayerGraph g = block_graph({.rows = 3, .sequence_length = tokens, .window = window});
      std::set<std::pair<int64_t, int64_t>> blocks;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t u = 0; u <= t; ++u)
          if (window == 0 || t - u < window) blocks.emplace(t / 64, u / 64);
      double pairs = 0;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t u = 0; u < tokens; ++u) pairs += blocks.contains({t / 64, u / 64}) ? 1 : 0;
      INFO(tokens << " tokens, window " << window);
      // There are 3 rows and 4 heads of size 4; forward has the multiplications for scores and
      // results, backward has five.
      const OpPass forward = op_work(g, first_of(g, OpKind::kAttention)).total();
      CHECK(forward.flops == 2 * 2.0 * 3 * pairs * 16);
      CHECK(forward.transcendentals == 3 * pairs * 4);
      const OpPass backward = op_work(g, first_of(g, OpKind::kAttentionDgrad)).total();
      CHECK(backward.flops == 5 * 2.0 * 3 * pairs * 16);
      CHECK(backward.transcendentals == 3 * pairs * 4);
    }
  }
}

TEST_CASE("the embedding moves a row for each token, whatever the size of its table") {
  const LayerGraph g = embedding_graph({});
  const Op& forward = first_of(g, OpKind::kEmbed);
  const Op& backward = first_of(g, OpKind::kEmbedWgrad);
  // For each of 8 tokens, forward reads a number and a row of 16, and writes a row; backward reads
  // two rows and writes one.
  CHECK(traffic_bytes(g, forward) == 4 * 8 * (1 + 16 + 16));
  CHECK(traffic_bytes(g, backward) == 4 * 8 * (1 + 16 + 16 + 16));
  CHECK(op_flops(g, forward) == 0);
  CHECK(op_flops(g, backward) == 8 * 16);
}

TEST_CASE("smooth activations count an exponential per element, others none") {
  for (const Activation kind : kActivations) {
    GraphBuilder b("layer", 8, 4, {});
    const ValueId x = b.input(Port::kHidden, DType::kF32, {8, 16}, "x");
    const ValueId w = b.param("w", {32, 16}), down = b.param("down", {16, 16});
    const ValueId s = ops::gated_activation(b, ops::linear(b, x, w), kind);
    b.output(ops::activation(b, ops::linear(b, s, down), kind), Port::kHidden);
    const LayerGraph g = b.finish(true);
    const double each = traits_of(kind).is_smooth ? 1 : 0;
    for (const auto* list : {&g.forward, &g.backward})
      for (const Op& op : *list) {
        INFO(op_text(g, op));
        const bool is_linear = op_name(op.kind).starts_with("linear");
        CHECK(op_work(g, op).total().transcendentals == (is_linear ? 0 : each * 8 * 16));
      }
  }
}

/// Returns the number of bytes that a head in chunks moves, counted chunk by chunk: x[8,16],
/// w[32,16], logits[8,32].
double head_bytes_by_chunks(int64_t chunk, bool gradients) {
  double bytes = 0;
  for (int64_t first = 0; first < 8; first += chunk) {
    const double rows = static_cast<double>(std::min<int64_t>(chunk, 8 - first));
    const double x = rows * 16, logits = rows * 32, w = 32 * 16;
    bytes += x + w + logits;   // the multiplication
    bytes += logits + logits;  // the losses, in place
    if (!gradients) continue;
    bytes += logits + x + w;     // the weight's gradient, written
    bytes += first > 0 ? w : 0;  // and read
    bytes += logits + w + x;     // the input's gradient
  }
  return 4 * bytes;
}

TEST_CASE("every chunk of the head reads its weight, and reads and writes the weight's gradient") {
  for (const int64_t chunk : {1, 3, 8, 100})
    for (const bool gradients : {false, true}) {
      LayerGraph g = head_graph({}, gradients);
      Op op = first_of(g, OpKind::kLinearCrossEntropy);
      auto attrs = op.attrs.get<CrossEntropyAttrs>();
      attrs.chunk_tokens = chunk;
      op.attrs = attrs;
      INFO("chunks of " << chunk << ", gradients: " << gradients);
      CHECK(traffic_bytes(g, op) == head_bytes_by_chunks(chunk, gradients));
      CHECK(op_work(g, op).total().transcendentals == 8 * 32);
    }
}

TEST_CASE("a bias of the head adds an operation per logit, and its gradient a pass over them") {
  const LayerGraph plain = head_graph({}), biased = head_graph({.biases = true});
  const OpKind kind = OpKind::kLinearCrossEntropy;
  // A chunk has 8 tokens with 32 logits: one addition for the bias, and one for its gradient.
  CHECK(op_flops(biased, first_of(biased, kind)) ==
        op_flops(plain, first_of(plain, kind)) + 2 * 8 * 32);
  CHECK(traffic_bytes(biased, first_of(biased, kind)) ==
        traffic_bytes(plain, first_of(plain, kind)) + 4 * (8 * 32 + 32));
  // On a GPU the multiplication adds to rows of the bias, which are written first.
  LayerGraph gpu = head_graph({.biases = true}, false), gpu_plain = head_graph({}, false);
  gpu.dtypes.kernels = gpu_plain.dtypes.kernels = KernelDevice::kGpu;
  CHECK(traffic_bytes(gpu, first_of(gpu, kind)) ==
        traffic_bytes(gpu_plain, first_of(gpu_plain, kind)) + 4 * 2 * 8 * 32);
}

TEST_CASE("the cost of passes adds up: each is bound by its arithmetic or by its traffic") {
  const LayerGraph g = head_graph({});
  const Op& op = first_of(g, OpKind::kLinearCrossEntropy);
  double cost = 0, in_one = 0;
  OpPass all;
  for (const OpPass& pass : op_work(g, op)) {
    const double arithmetic = pass.flops + kFlopsPerTranscendental * pass.transcendentals;
    cost += arithmetic > kFlopsPerByte * pass.bytes ? arithmetic : kFlopsPerByte * pass.bytes;
    all.flops += pass.flops;
  }
  in_one = std::max(all.flops, kFlopsPerByte * traffic_bytes(g, op));
  CHECK(op_cost(g, op) == cost);
  CHECK(op_cost(g, op) >= in_one);
  CHECK(all.flops > op_flops(head_graph({}, false),
                             first_of(head_graph({}, false), OpKind::kLinearCrossEntropy)));
}

TEST_CASE("other kinds count one operation per element that they write") {
  const LayerGraph g = block_graph({});
  CHECK(op_flops(g, first_of(g, OpKind::kGatedActivation)) == 8 * 24);
  CHECK(op_flops(g, first_of(g, OpKind::kAdd)) == 8 * 16);
  CHECK(op_flops(g, first_of(g, OpKind::kRmsNorm)) == 8 * 16 + 8);
}

TEST_CASE("traffic of other kinds counts each operand once, in its own dtype") {
  const LayerGraph g = block_graph({});
  CHECK(traffic_bytes(g, first_of(g, OpKind::kLinear)) == 4 * (8 * 16 + 32 * 16 + 8 * 32));
  CHECK(traffic_bytes(g, first_of(g, OpKind::kAttention)) == 4 * (8 * 32 + 8 + 8 * 16 + 4 * 8));
}

TEST_CASE("operations that need scratch declare exactly what they need as a value of their list") {
  for (const LayerGraph& g :
       {block_graph({.biases = true, .qk_norm = true}), head_graph({}), embedding_graph({})}) {
    for (const auto* list : {&g.forward, &g.backward}) {
      for (const Op& op : *list) {
        INFO(op_text(g, op));
        const int64_t bytes = workspace_bytes(g, op);
        CHECK((op.workspace >= 0) == (bytes > 0));
        if (bytes == 0) continue;
        const Value& workspace = g.at(op.workspace);
        CHECK(workspace.role == ValueRole::kWorkspace);
        CHECK(workspace.dtype == DType::kU8);
        CHECK(workspace.dims == Dims{bytes});
        CHECK(workspace.name == cat(op_name(op.kind), ".workspace"));
      }
    }
  }
}

TEST_CASE(
    "attention, the head and sums over tokens have scratch; matrix multiplications and pointwise "
    "kinds have none") {
  const LayerGraph g = block_graph({.biases = true, .qk_norm = true});
  for (const OpKind kind : {OpKind::kAttention, OpKind::kAttentionDgrad, OpKind::kRmsNormWgrad,
                            OpKind::kQkNormWgrad, OpKind::kBiasWgrad})
    CHECK(workspace_bytes(g, first_of(g, kind)) > 0);
  for (const OpKind kind : {OpKind::kLinear, OpKind::kLinearWgrad, OpKind::kRmsNorm, OpKind::kRope,
                            OpKind::kGatedActivation, OpKind::kGatedActivationDgrad, OpKind::kAdd})
    CHECK(workspace_bytes(g, first_of(g, kind)) == 0);
  const LayerGraph h = head_graph({}, false);
  CHECK(workspace_bytes(h, first_of(h, OpKind::kLinearCrossEntropy)) > 0);
}

TEST_CASE("gradients summed over tokens keep one partial sum for each group of rows") {
  for (const auto& [tokens, groups] : {std::pair<int64_t, int64_t>{1, 1},
                                       {kWgradRows, 1},
                                       {kWgradRows + 1, 2},
                                       {5 * kWgradRows, 5}}) {
    const LayerGraph g =
        block_graph({.rows = 1, .sequence_length = tokens, .biases = true, .qk_norm = true});
    CHECK(workspace_bytes(g, first_of(g, OpKind::kRmsNormWgrad)) == groups * 16 * 4);
    CHECK(workspace_bytes(g, first_of(g, OpKind::kQkNormWgrad)) == groups * (4 + 4) * 4);
    CHECK(workspace_bytes(g, first_of(g, OpKind::kBiasWgrad)) == groups * 16 * 4);
  }
}

/// Returns whether ranges that begin at the given offsets (or -1: absent) and have the given sizes
/// are aligned, disjoint and within `bytes`.
bool ranges_fit(std::vector<std::pair<int64_t, int64_t>> ranges, int64_t bytes) {
  std::erase_if(ranges, [](const auto& range) { return range.first < 0; });
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& [start, size] : ranges) {
    if (start < end || start % kStorageAlignment != 0) return false;
    end = start + size;
  }
  return end <= bytes;
}

TEST_CASE(
    "parts of attention's scratch are aligned, disjoint and as large as their documented shapes") {
  for (const int64_t element : {4, 8}) {
    for (const int64_t tokens : {1, 63, 64, 65, 300}) {
      const int64_t rows = 3, heads = 6, kv = 2, n = rows * tokens;
      const AttentionAttrs attrs{heads, kv, 20, tokens, 1.0, 0};
      const AttentionWorkspace f = attention_workspace(n, attrs, element, false);
      const int64_t blocks = (tokens + 63) / 64;
      CHECK(f.padded_head >= 20);
      CHECK(f.blocks == blocks);
      CHECK(f.batch_rows == rows);
      const int64_t tile = kAttentionBlock * f.padded_head * element;
      CHECK(ranges_fit({{f.lowest, n * 4},
                        {f.first_block, rows * blocks * 4},
                        {f.keys, rows * kv * blocks * tile},
                        {f.values, rows * kv * blocks * tile}},
                       f.bytes));
      const AttentionWorkspace b = attention_workspace(n, attrs, element, true);
      CHECK(ranges_fit({{b.lowest, n * 4},
                        {b.first_block, rows * blocks * 4},
                        {b.delta, heads * n * element},
                        {b.dq, b.classes * rows * heads * blocks * tile}},
                       b.bytes));
      CHECK(b.classes >= 1);
      CHECK(b.classes <= std::max<int64_t>(1, blocks));
    }
  }
}

TEST_CASE(
    "parts of the head's scratch are aligned, disjoint and as large as their documented shapes") {
  for (const int64_t tokens : {1, 100, 256, 1000}) {
    for (const int64_t chunk : {1, 96, 256}) {
      const CrossEntropyWorkspace w = cross_entropy_workspace(tokens, 17, 133, {true, chunk}, 4);
      CHECK(w.chunk == std::min(chunk, tokens));
      CHECK(ranges_fit({{w.counted, tokens * 4},
                        {w.losses, w.chunk * 8},
                        {w.rows, w.chunk * 17 * 4},
                        {w.logits, w.chunk * 133 * 4}},
                       w.bytes));
    }
  }
}

TEST_CASE("scratch of 16-bit attention and head is F32, in the bytes of the head's 16-bit logits") {
  const AttentionAttrs attrs{6, 2, 20, 300, 1.0, 0};
  for (const bool backward : {false, true})
    CHECK(attention_workspace(600, attrs, 2, backward).bytes ==
          attention_workspace(600, attrs, 4, backward).bytes);
  for (const int64_t chunk : {1, 95, 96, 256}) {
    const CrossEntropyWorkspace w = cross_entropy_workspace(100, 17, 133, {true, chunk}, 2);
    const int64_t kept = std::min<int64_t>(chunk, 100);
    CHECK(w.chunk == kept);
    CHECK(w.wide_chunk == std::max<int64_t>(kept / 2, 1));
    const int64_t row_bytes = std::max<int64_t>(kept * 2, 4);
    CHECK(w.panel_rows == 133);
    CHECK(ranges_fit({{w.counted, 100 * 4},
                      {w.losses, kept * 8},
                      {w.rows, row_bytes * 17},
                      {w.logits, row_bytes * 133},
                      {w.panel, 133 * 17 * 4}},
                     w.bytes));
    // The logits of a kernel without panels begin at the same offset.
    CHECK(cross_entropy_workspace(100, 17, 133, {true, chunk}, 2, 2).logits == w.logits);
  }
  CHECK(cross_entropy_workspace(100, 17, 133, {true, 96}, 4).panel == -1);
  CHECK(cross_entropy_workspace(100, 17, 133, {true, 96}, 4, 2).panel_rows == 133);
  CHECK(cross_entropy_workspace(100, 4096, 9999, {true, 96}, 2).panel_rows == 256);
}

/// Returns the block, built for GPU kernels.
LayerGraph gpu_block(int64_t tokens) {
  return block_graph({.rows = 2,
                      .sequence_length = tokens,
                      .biases = true,
                      .qk_norm = true,
                      .dtypes = {DType::kBF16, DType::kF32, KernelDevice::kGpu}});
}

TEST_CASE(
    "on GPUs matrix multiplications, embedding and attention's forward and backward have no "
    "scratch of the CPU's") {
  for (const int64_t tokens : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{300}}) {
    const LayerGraph g = gpu_block(tokens);
    const Op& forward = first_of(g, OpKind::kAttention);
    const Op& backward = first_of(g, OpKind::kAttentionDgrad);
    const auto& attrs = forward.attrs.get<AttentionAttrs>();
    const int64_t n = 2 * tokens, blocks = (tokens + 63) / 64;
    const GpuAttentionWorkspace f = gpu_attention_workspace(n, attrs, false);
    const auto parts = [&](const GpuAttentionWorkspace& w) {
      std::vector<std::pair<int64_t, int64_t>> all{
          {w.lowest, n * 4}, {w.first_block, 2 * blocks * 4}, {w.uncovered, 4}};
      for (const GpuDocumentGroup& group : w.groups) {
        all.emplace_back(group.lengths, group.slots * 4);
        for (const int64_t offsets : {group.qkv_offsets, group.out_offsets, group.token_offsets})
          all.emplace_back(offsets, (group.slots + 1) * 4);
      }
      return all;
    };
    CHECK(ranges_fit(parts(f), f.bytes));
    CHECK(f.delta == -1);
    const GpuAttentionWorkspace b = gpu_attention_workspace(n, attrs, true);
    std::vector<std::pair<int64_t, int64_t>> backward_parts = parts(b);
    backward_parts.emplace_back(b.delta, attrs.query_heads * n * 4);
    CHECK(ranges_fit(backward_parts, b.bytes));
    CHECK(workspace_bytes(g, forward) == f.bytes);
    CHECK(workspace_bytes(g, backward) == b.bytes);
    CHECK(g.at(backward.workspace).bytes() == b.bytes);
    for (const OpKind kind : {OpKind::kLinear, OpKind::kLinearDgrad, OpKind::kLinearWgrad}) {
      CHECK(workspace_bytes(g, first_of(g, kind)) == 0);
      CHECK(first_of(g, kind).workspace == -1);
    }
    CHECK(workspace_bytes(g, first_of(g, OpKind::kRmsNormWgrad)) ==
          std::min<int64_t>(256, (n + 7) / 8) * 16 * 4);
  }
}

TEST_CASE(
    "on GPUs documents are listed in groups whose lengths halve, and only the last one can "
    "overflow") {
  for (const int64_t sequence_length : {1, 2, 255, 256, 257, 300, 1000, 2048, 32768})
    for (const int64_t rows : {1, 3}) {
      CAPTURE(sequence_length, rows);
      const std::vector<GpuDocumentGroup> groups =
          gpu_document_groups(rows * sequence_length, sequence_length);
      REQUIRE(groups.front().max_tokens == sequence_length);
      for (size_t i = 0; i + 1 < groups.size(); ++i) {
        const int64_t least = groups[i + 1].max_tokens + 1;
        REQUIRE(least <= groups[i].max_tokens);
        REQUIRE(groups[i].slots >= rows * (sequence_length / least));
        REQUIRE(groups[i].slots * groups[i].max_tokens <= 2 * rows * sequence_length);
      }
      REQUIRE(groups.back().max_tokens <= 256);
      REQUIRE(groups.back().slots * groups.back().max_tokens >= 4 * rows * sequence_length);
    }
}

TEST_CASE("on GPUs the head's logits are kept in their own dtype, in chunks that fit 512 MiB") {
  for (const int64_t element : {2, 4}) {
    const GpuHeadWorkspace w = gpu_head_workspace(1000, 133, {true, 96}, element);
    CHECK(w.chunk == 96);
    // Rows of 133 logits begin at multiples of 64 elements.
    CHECK(w.row_stride == 192);
    CHECK(ranges_fit({{w.losses, 96 * 8}, {w.logits, 96 * 192 * element}}, w.bytes));
    CHECK(w.correct == -1);
    const GpuHeadWorkspace evaluated = gpu_head_workspace(1000, 133, {false, 96}, element);
    CHECK(ranges_fit({{evaluated.losses, 96 * 8},
                      {evaluated.correct, 96 * 4},
                      {evaluated.logits, 96 * 192 * element}},
                     evaluated.bytes));
  }
  CHECK(gpu_head_workspace(1000, 128, {true, 96}, 2).row_stride == 128);
  CHECK(gpu_head_workspace(50, 133, {true, 96}, 4).chunk == 50);
  CHECK(gpu_head_chunk(49'152, 2) == 4096);
  CHECK(gpu_head_chunk(128'256, 2) == 2048);
  CHECK(gpu_head_chunk(128'256, 4) == 1024);
  CHECK(gpu_head_chunk(4'000'000, 4) == 512);
}

TEST_CASE(
    "matrix multiplications of 16-bit numbers have fp32 panels of bounded size, others none") {
  const MatmulWorkspace none = matmul_workspace(5000, 5000, 5000, 4, 4);
  CHECK(none.bytes == 0);
  const MatmulWorkspace all = matmul_workspace(5000, 5000, 5000, 2, 2);
  CHECK(ranges_fit({{all.a, all.rows * all.depth * 4},
                    {all.b, all.depth * all.columns * 4},
                    {all.c, all.rows * all.columns * 4}},
                   all.bytes));
  CHECK(all.bytes <= 16 << 20);
  const MatmulWorkspace small = matmul_workspace(3, 5, 7, 2, 4);
  CHECK((small.rows == 3 && small.columns == 5 && small.depth == 7 && small.c == -1));
  CHECK(matmul_workspace(3, 5, 7, 4, 2).a == -1);
  CHECK(matmul_workspace(3, 5, 7, 4, 2).bytes == 64);

  GraphBuilder b("layer", 8, 4, {DType::kBF16, DType::kF32});
  const ValueId x = b.input(Port::kHidden, DType::kBF16, {8, 16}, "x");
  b.output(ops::linear(b, x, b.param("w", {16, 16})), Port::kHidden);
  const LayerGraph g = b.finish(true);
  const auto bytes = [&](const std::vector<Op>& list, OpKind kind) {
    for (const Op& op : list)
      if (op.kind == kind) return g.at(op.workspace).bytes();
    return int64_t{-1};
  };
  CHECK(bytes(g.forward, OpKind::kLinear) == (8 * 16 + 16 * 16 + 8 * 16) * 4);
  CHECK(bytes(g.backward, OpKind::kLinearDgrad) == (8 * 16 + 16 * 16 + 8 * 16) * 4);
  // The gradient is fp32, which BLAS writes directly.
  CHECK(bytes(g.backward, OpKind::kLinearWgrad) == (16 * 8 + 8 * 16) * 4);
}

TEST_CASE("rows that do not divide the tokens and empty chunks are defects") {
  CHECK(bug_text([] {
          attention_workspace(10, {1, 1, 4, 4, 1.0, 0}, 4, false);
        }) == "the tokens of attention fill whole sequences");
  CHECK(bug_text([] {
          attention_workspace(10, {1, 1, 4, 0, 1.0, 0}, 4, false);
        }) == "the tokens of attention fill whole sequences");
  CHECK(bug_text([] {
          cross_entropy_workspace(10, 4, 4, {true, 0}, 4);
        }) == "a chunk of cross entropy has at least one token");
}

}  // namespace
}  // namespace ftrun
