#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/device.h"
#include "ops/attention/cudnn_parts.h"
#include "ops/attention/gpu.h"

// This header runs attention with cuDNN 9, as an alternative to our own kernels. cuDNN gets the
// attention of Dao et al. 2022 and 2023 as graphs of matrix multiplications, a masked softmax and
// their gradients, which it recognizes and runs as one or a few kernels. Documents are separate
// sequences. The graph reads their lengths and offsets from lists (ops/attention/gpu_documents.cu).
namespace ftrun::cuda {

/// Returns whether cuDNN may compute attention in place of our kernels: bf16; heads whose size is a
/// multiple of 8, up to 128 elements on GPUs of compute capability 8.x and up to 256 on 9.x;
/// sequences of at least two tokens; any window; a workspace (cudnn_workspace_bytes) of at most an
/// eighth of the GPU's memory. `documents` (sequences may hold several) only on 9.x: on 8.x cuDNN's
/// gradients of variable-length sequences are not deterministic.
bool cudnn_supports(const DeviceInfo& gpu, const AttentionAttrs& attrs, DType dtype, int64_t tokens,
                    bool documents);

/// CudnnAttentionGraph holds a graph and the ids of its tensors.
struct CudnnAttentionGraph {
  CudnnGraph graph;
  /// The operands, bf16[B, H, T, d] and [B, KV, T, d], inside qkv; k (and v in backward) is
  /// transposed.
  int64_t q = 0, k = 0, v = 0;
  /// The result, bf16[B, H, T, d], and the logarithm of the sum of exponentials, F32[B, H, T, 1].
  int64_t out = 0, lse = 0;
  /// Numbers that the graph reads: attrs.scale, minus infinity, and attrs.window where there is
  /// one.
  int64_t scale = 0, masked = 0, window = 0;
  /// Tensors of backward: the gradients of out and of q, k and v; scratch for dout . out, F32[B, H,
  /// T, 1]; the number 1.
  int64_t dout = 0, dq = 0, dk = 0, dv = 0, delta = 0, one = 0;
  /// The lists of documents (DocumentLists::DocumentGroup).
  std::optional<int64_t> query_lengths = {}, key_lengths = {}, qkv_offsets = {}, out_offsets = {},
                         token_offsets = {};
};
CudnnAttentionGraph make_cudnn_attention_graph(const CudnnApi& api, const AttentionAttrs& attrs,
                                               const CudnnPart& part, int64_t tokens,
                                               bool backward);

/// CudnnAttention runs cuDNN's attention on the calling thread's device, with the plans that were
/// prepared.
class CudnnAttention {
 public:
  /// Refuses a cuDNN that is too old with Error(kEnvironment). `required`: a shape without a plan
  /// is an error.
  CudnnAttention(const CudnnApi& api, bool required, int64_t part_bytes = kCudnnPartBytes);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// Returns whether the config names cuDNN; false: the rule chose it.
  bool required() const { return required_; }
  /// Returns the library's name and version: "cudnn 9.19.0".
  std::string version() const;
  /// Makes the plans of a shape and the memory they need, once: outside of steps. If cuDNN has no
  /// plan, throws Error(kUnsupported) if cuDNN is required; else has_plan() stays false.
  void prepare(const AttentionAttrs& attrs, int64_t tokens, bool documents, bool backward);
  bool has_plan(const AttentionAttrs& attrs, int64_t tokens, bool documents, bool backward) const;
  /// Returns whether cuDNN computes any of the prepared shapes.
  bool has_plans() const;
  /// Returns the reason why cuDNN does not compute a shape that it was asked to prepare; "" when it
  /// computes all.
  const std::string& unsupported_reason() const { return unsupported_reason_; }
  /// Returns the bytes of the workspace that the plans share; device memory.
  int64_t workspace_bytes() const;
  /// Computes attention of a shape that was prepared; `a` without lowest and first_block. Use one
  /// stream at a time. `lists` must be given if sequences may hold several documents.
  void forward(const Attention& a, const DocumentLists* lists, cudaStream_t stream);
  void backward(const Attention& a, const DocumentLists* lists, cudaStream_t stream);

 private:
  struct PreparedPart {
    CudnnPart part;
    CudnnAttentionGraph graph;
    CudnnPlan plan;
    void* workspace;
  };
  struct PreparedAttention {
    AttentionAttrs attrs;
    int64_t tokens;
    bool documents;
    bool backward;
    std::vector<PreparedPart> parts = {};
    /// The numbers of the graphs, which cuDNN reads when a graph runs.
    float scale;
    float masked = -std::numeric_limits<float>::infinity();
    float window;
    float one = 1.0F;
  };
  struct Workspace {
    void* memory;
    int64_t bytes;
  };

  void* find_or_allocate_workspace(int64_t bytes);
  const PreparedAttention* find(const AttentionAttrs& attrs, int64_t tokens, bool documents,
                                bool backward) const;
  void run(const Attention& a, const DocumentLists* lists, bool backward, cudaStream_t stream);
  /// Returns the operands of a part's graph. They begin at a token (the first of a sequence) and a
  /// key/value head.
  static std::vector<CudnnArgument> operands(const PreparedAttention& prepared, size_t index,
                                             const Attention& a, int64_t token, int64_t kv_head);
  static void add_lists(std::vector<CudnnArgument>& arguments, const CudnnAttentionGraph& graph,
                        const DocumentLists::DocumentGroup& lists, int64_t first);

  const CudnnApi& api_;
  const bool required_;
  const int64_t part_bytes_;
  CudnnHandle handle_ = nullptr;
  std::vector<PreparedAttention> prepared_;
  std::string unsupported_reason_;
  /// Workspaces, each larger than the previous one. A plan keeps the workspace that it was given,
  /// because captured graphs hold its address.
  std::vector<Workspace> workspaces_;
};

}  // namespace ftrun::cuda
