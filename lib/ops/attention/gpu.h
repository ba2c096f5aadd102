#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "ops/attention/attention.h"
#include "ops/attention/gpu_workspace.h"

// The functions of this header are defined in gpu_prologue.cu, gpu_documents.cu, gpu_f32.cu and
// gpu_narrow.cu. Each enqueues its kernels on `stream`.
namespace ftrun::cuda {

/// Attention holds the operands, results and scratch of an attention operation or of its gradient.
struct Attention {
  const void* qkv;
  const int32_t* starts;
  /// The result, and the log-sum-exp of the scores, which forward writes and backward reads.
  void* a;
  float* lse;
  /// The gradients of the result and of qkv, for backward only.
  const void* da;
  void* dqkv;
  AttentionAttrs attrs;
  int64_t tokens;
  /// The scratch in the layout of ops/attention/gpu_workspace.h: I32[N], I32[sequences, blocks],
  /// F32[H, N].
  int32_t* lowest;  // the first key that each token's query sees
  int32_t* first_block;
  float* delta;
  /// The first token that this kernel computes (I32): earlier tokens are computed elsewhere, and
  /// their blocks return at once. Null: it computes all tokens.
  const int32_t* uncovered;
};
/// BlockSharedMemory is the shared memory that a block of an attention kernel needs; if there are
/// several kernels, the largest need.
struct BlockSharedMemory {
  int64_t bytes;
  /// The calculation of the size: "192 rows of 64 x 2 bytes and 512", where 512 is a number of
  /// additional bytes.
  std::string text;
};
BlockSharedMemory attention_shared_f32(int64_t head_size, bool backward);
BlockSharedMemory attention_shared_narrow(int64_t head_size, bool backward);
void attention_prologue(DType dtype, const Attention& a, cudaStream_t stream);
void attention_forward_f32(const Attention& a, cudaStream_t stream);
void attention_backward_f32(const Attention& a, cudaStream_t stream);
/// Compute attention and its gradient in BF16 or F16, on the tensor cores.
void attention_forward_narrow(DType dtype, const Attention& a, cudaStream_t stream);
void attention_backward_narrow(DType dtype, const Attention& a, cudaStream_t stream);

/// DocumentLists holds lists of the documents that a library computes as sequences. They are in the
/// scratch, in the layout of GpuAttentionWorkspace.
struct DocumentLists {
  struct DocumentGroup {
    int64_t max_tokens, slots;
    int32_t* lengths;
    int32_t* qkv_offsets;
    int32_t* out_offsets;
    int32_t* token_offsets;
  };
  DocumentGroup groups[kMaxGpuDocumentGroups];
  int count;
  int32_t* uncovered;
};
/// Writes the lists of a.starts; a.lowest is scratch. Documents of one token are in no list. Lists
/// end at the first document for which its list has no room, and are empty if `starts` does not
/// describe documents.
void list_documents(const Attention& a, const DocumentLists& lists, cudaStream_t stream);
/// Compute attention and its gradient in bf16 for the documents of one token that begin before
/// a.uncovered.
void single_tokens_forward(const Attention& a, cudaStream_t stream);
void single_tokens_backward(const Attention& a, cudaStream_t stream);

}  // namespace ftrun::cuda
