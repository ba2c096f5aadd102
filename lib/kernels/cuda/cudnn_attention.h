#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "graph/op.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/launchers.h"
#include "kernels/device.h"

// Attention as cuDNN 9 computes it, beside ours: Dao et al. 2022 and 2023 as graphs of products, a masked softmax and
// their gradients, which cuDNN recognises and runs as one or a few kernels. Never run on a GPU yet.
namespace ftrun::cuda {

/// The table of what cuDNN may compute in our stead: bf16; heads of a multiple of 8 elements, up to 128 on GPUs of
/// compute capability 8.x and up to 256 on 9.x; rows of at least two tokens that hold one document (`documents`: they may
/// hold several, which its masks do not know); any window.
bool cudnn_computes(const DeviceInfo& gpu, const AttentionAttrs& attrs, DType dtype, bool documents);

/// A graph and its tensors' ids.
struct CudnnAttentionGraph {
  CudnnGraph graph;
  /// bf16[B, H, T, d] and [B, KV, T, d], within qkv; k (and v in backward) transposed.
  int64_t q = 0, k = 0, v = 0;
  /// bf16[B, H, T, d]; F32[B, H, T, 1]: the logarithm of the sum of exponentials.
  int64_t out = 0, lse = 0;
  /// Numbers: attrs.scale; minus infinity; attrs.window where there is one.
  int64_t scale = 0, masked = 0, window = 0;
  /// Backward: gradients of out and of q, k and v; F32[B, H, T, 1], scratch: dout . out; the number 1.
  int64_t dout = 0, dq = 0, dk = 0, dv = 0, delta = 0, one = 0;
};
CudnnAttentionGraph cudnn_attention_graph(const CudnnApi& api, const AttentionAttrs& attrs, int64_t tokens, bool backward);

/// cuDNN on the calling thread's device, with the plans that were prepared.
class CudnnAttention {
 public:
  /// Error(kEnvironment) for a cuDNN that is too old.
  explicit CudnnAttention(const CudnnApi& api);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// "cudnn 9.19.0"
  std::string version() const;
  /// Makes the plan of a shape and the memory it needs, once: outside of steps. Error(kUnsupported) where cuDNN has none.
  void prepare(const AttentionAttrs& attrs, int64_t tokens, bool backward);
  /// Whether it computes anything.
  bool has_plans() const { return !prepared_.empty(); }
  /// What the plans share; device memory.
  int64_t workspace_bytes() const;
  /// Of a shape that was prepared; `a` without lowest, first_block and starts. One stream at a time.
  void forward(const Attention& a, cudaStream_t stream);
  void backward(const Attention& a, cudaStream_t stream);

 private:
  struct Prepared {
    AttentionAttrs attrs;
    int64_t tokens;
    bool backward;
    CudnnAttentionGraph graph;
    CudnnPlan plan;
    void* workspace;
    /// What the graph's numbers are; cuDNN reads them when it is run.
    float scale;
    float masked = -std::numeric_limits<float>::infinity();
    float window;
    float one = 1.0F;
  };
  struct Workspace {
    void* memory;
    int64_t bytes;
  };

  void* workspace_of(int64_t bytes);
  const Prepared* find(const AttentionAttrs& attrs, int64_t tokens, bool backward) const;
  const Prepared& at(const Attention& a, bool backward) const;
  void run(const Prepared& prepared, std::vector<CudnnArgument> arguments, cudaStream_t stream);

  const CudnnApi& api_;
  CudnnHandle handle_ = nullptr;
  std::vector<Prepared> prepared_;
  /// One larger than the other; plans keep the one that they were given, whose address recordings know.
  std::vector<Workspace> workspaces_;
};

}  // namespace ftrun::cuda
