#include "ops/cross_entropy/workspace.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "base/round_up.h"
#include "graph/offset_allocator.h"
#include "ops/cross_entropy/cross_entropy.h"

namespace ftrun {
namespace {

void reserve_panel(CrossEntropyWorkspace& w, OffsetAllocator& offsets, int64_t hidden,
                   int64_t vocabulary, int64_t element_bytes, int64_t gradient_bytes) {
  constexpr int64_t kPanelElements = 1 << 20, kMinRows = 64;
  if (!is_narrow(element_bytes) && !is_narrow(gradient_bytes)) return;
  w.panel_rows = std::min(vocabulary, std::max(kPanelElements / hidden, kMinRows));
  w.panel = offsets.reserve(w.panel_rows * hidden * wide_bytes(element_bytes));
}

/// Reserves the memory of the losses only, without logits.
GpuHeadWorkspace reserve_losses(OffsetAllocator& offsets, int64_t tokens, bool with_gradients) {
  GpuHeadWorkspace w;
  w.chunk = tokens;
  w.losses = offsets.reserve(tokens * dtype_bytes(DType::kF64));
  if (!with_gradients) w.correct = offsets.reserve(tokens * dtype_bytes(DType::kI32));
  return w;
}

void reserve_bias_sums(GpuHeadWorkspace& w, OffsetAllocator& offsets, int64_t vocabulary) {
  w.bias_sums = offsets.reserve(kGpuBiasParts * vocabulary * dtype_bytes(DType::kF32));
}

/// The number of elements of a row of logits is a multiple of it. Loads for tensor cores need rows
/// that begin at multiples of 16 bytes; with multiples of 128 bytes, rows also begin at a cache
/// line.
constexpr int64_t kHeadRowElements = 64;

}  // namespace

CrossEntropyWorkspace cross_entropy_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                              const CrossEntropyAttrs& attrs, int64_t element_bytes,
                                              int64_t gradient_bytes) {
  require(attrs.chunk_tokens > 0, "a chunk of cross entropy has at least one token");
  CrossEntropyWorkspace w;
  w.chunk = std::min(attrs.chunk_tokens, tokens);
  const int64_t wide = wide_bytes(element_bytes);
  w.wide_chunk = std::max<int64_t>(w.chunk * element_bytes / wide, 1);
  const int64_t row_bytes = std::max(w.chunk * element_bytes, w.wide_chunk * wide);
  OffsetAllocator offsets;
  w.counted = offsets.reserve(tokens * dtype_bytes(DType::kI32));
  w.losses = offsets.reserve(w.chunk * dtype_bytes(DType::kF64));
  w.rows = offsets.reserve(row_bytes * hidden);
  w.logits = offsets.reserve(row_bytes * vocabulary);
  reserve_panel(w, offsets, hidden, vocabulary, element_bytes, gradient_bytes);
  w.bytes = offsets.bytes();
  return w;
}

CrossEntropyWorkspace vocabulary_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                           int64_t element_bytes, int64_t gradient_bytes) {
  CrossEntropyWorkspace w;
  w.chunk = w.wide_chunk = tokens;
  OffsetAllocator offsets;
  w.counted = offsets.reserve(tokens * dtype_bytes(DType::kI32));
  w.losses = offsets.reserve(tokens * dtype_bytes(DType::kF64));
  w.rows = offsets.reserve(tokens * hidden * wide_bytes(element_bytes));
  reserve_panel(w, offsets, hidden, vocabulary, element_bytes, gradient_bytes);
  w.bytes = offsets.bytes();
  return w;
}

GpuHeadWorkspace gpu_head_workspace(int64_t tokens, int64_t vocabulary,
                                    const CrossEntropyAttrs& attrs, int64_t element_bytes,
                                    bool bias_gradient) {
  require(attrs.chunk_tokens > 0, "a chunk of cross entropy has at least one token");
  OffsetAllocator offsets;
  const int64_t chunk = std::min(attrs.chunk_tokens, tokens);
  GpuHeadWorkspace w = reserve_losses(offsets, chunk, attrs.with_gradients);
  w.row_stride = round_up(vocabulary, kHeadRowElements);
  w.logits = offsets.reserve(w.chunk * w.row_stride * element_bytes);
  if (bias_gradient) reserve_bias_sums(w, offsets, vocabulary);
  w.bytes = offsets.bytes();
  return w;
}

GpuHeadWorkspace gpu_vocabulary_workspace(int64_t tokens, bool with_gradients, int64_t bias_rows) {
  OffsetAllocator offsets;
  GpuHeadWorkspace w = reserve_losses(offsets, tokens, with_gradients);
  if (bias_rows > 0) reserve_bias_sums(w, offsets, bias_rows);
  w.bytes = offsets.bytes();
  return w;
}

int64_t gpu_head_chunk(int64_t vocabulary, int64_t element_bytes) {
  constexpr int64_t kMaxTokens = 4096, kMinTokens = 512, kLogitBytes = int64_t{512} << 20;
  int64_t chunk = kMaxTokens;
  while (chunk > kMinTokens && chunk * vocabulary * element_bytes > kLogitBytes) chunk /= 2;
  return chunk;
}

}  // namespace ftrun
