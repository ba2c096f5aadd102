#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace ftrun {

struct AttentionAttrs;

/// The size in elements of the widest head that cuDNN computes (compute capability 9.x).
inline constexpr int64_t kMaxCudnnHead = 256;
/// Returns whether cuDNN's attention can compute such an operation on some GPU: in bf16, with heads
/// whose size is a multiple of 8, sequences of at least two tokens, and no softcap.
bool cudnn_can_compute(const AttentionAttrs& attrs, DType dtype);

/// CudnnPart describes the work of one graph: `sequences` sequences of the batch, or documents of a
/// list, of up to `max_tokens` tokens, and `kv_heads` heads of keys with the query heads that share
/// them.
struct CudnnPart {
  int64_t sequences = 0;
  int64_t max_tokens = 0;
  int64_t kv_heads = 0;
  bool documents = false;
};
inline constexpr int64_t kCudnnPartBytes = int64_t{1} << 30;
/// Returns the parts of an attention operation. If one run of the graph would keep more than
/// `part_bytes` of scores, sequences and heads are computed in several runs. Documents have a graph
/// for each group of gpu_document_groups().
std::vector<CudnnPart> cudnn_parts(const AttentionAttrs& attrs, int64_t tokens, bool documents,
                                   int64_t part_bytes = kCudnnPartBytes);
/// Returns the bytes of the workspace of backward. Deterministic engines keep the scores of all
/// sequences and heads in 16 bits.
int64_t cudnn_workspace_bytes(const AttentionAttrs& attrs, const CudnnPart& part);

}  // namespace ftrun
