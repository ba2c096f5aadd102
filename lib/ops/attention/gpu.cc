#include "ops/attention/gpu.h"

#include "base/error.h"
#include "kernels/cuda/ops.h"
#include "kernels/measured_attention.h"

namespace ftrun::cuda {

namespace {

/// The largest size of a head that the kernels keep in shared memory, in elements.
constexpr int64_t kMaxHeadSize = 256;

void check_head_size(int64_t head_size) {
  if (head_size > kMaxHeadSize)
    throw Error(
        ExitCode::kUnsupported,
        cat("attention heads of ", head_size, " elements are too large for the CUDA kernels"),
        cat("use a model whose heads have at most ", kMaxHeadSize, ", or set device: cpu"));
}

/// Requires that the GPU has enough shared memory for our kernels. Of the GPUs for which they are
/// compiled, those of compute capability 8.6, 8.9 and 12.0 have too little for fp32 heads of more
/// than 128 elements.
void check_own_kernels_fit(const LayerGraph& graph, const Op& op, bool backward,
                           const DeviceInfo& gpu) {
  const int64_t head_size = op.attrs.get<AttentionAttrs>().head_size;
  check_head_size(head_size);
  const DType dtype = graph.at(op.out[0]).dtype;
  const bool narrow = dtype != DType::kF32;
  const BlockSharedMemory needed = narrow ? attention_shared_narrow(head_size, backward)
                                          : attention_shared_f32(head_size, backward);
  if (needed.bytes <= gpu.block_shared_bytes) return;
  throw Error(
      ExitCode::kUnsupported,
      cat(backward ? "the gradient of attention" : "attention", " with heads of ", head_size,
          " elements in ",
          !narrow                ? "fp32"
          : dtype == DType::kF16 ? "fp16"
                                 : "bf16",
          " needs ", needed.bytes, " bytes of shared memory per block (", needed.text, "); ",
          gpu.name, " of compute capability ", gpu.compute_major, ".", gpu.compute_minor, " has ",
          gpu.block_shared_bytes),
      "train this model on a GPU of compute capability 8.0 or 9.0, or set device: cpu");
}

Attention attention_of(const Operation& op, bool backward) {
  const auto& attrs = op.attrs<AttentionAttrs>();
  const int64_t tokens = op.in_dims(backward ? 1 : 0)[0];
  check_head_size(attrs.head_size);
  require(attrs.query_heads % attrs.kv_heads == 0,
          "the heads fill q, k and v, and groups of query heads share a key/value head");
  const GpuAttentionWorkspace layout = gpu_attention_workspace(tokens, attrs, backward);
  op.require_workspace(layout.bytes);
  Attention a{};
  a.attrs = attrs;
  a.tokens = tokens;
  a.lowest = op.workspace<int32_t>(layout.lowest);
  a.first_block = op.workspace<int32_t>(layout.first_block);
  if (backward) a.delta = op.workspace<float>(layout.delta);
  return a;
}

DocumentLists document_lists_of(const Operation& op, const GpuAttentionWorkspace& layout) {
  DocumentLists lists{};
  for (const GpuDocumentGroup& group : layout.groups)
    lists.groups[lists.count++] = {group.max_tokens,
                                   group.slots,
                                   op.workspace<int32_t>(group.lengths),
                                   op.workspace<int32_t>(group.qkv_offsets),
                                   op.workspace<int32_t>(group.out_offsets),
                                   op.workspace<int32_t>(group.token_offsets)};
  lists.uncovered = op.workspace<int32_t>(layout.uncovered);
  return lists;
}

/// Returns whether cuDNN computes this operation. One direction may use cuDNN and the other our
/// kernels, because both have the same statistics (lse).
bool uses_cudnn(const Operation& op, const Attention& a, bool backward,
                const KernelLibraries& libraries) {
  return libraries.cudnn != nullptr && op.dtype() == DType::kBF16 &&
         libraries.cudnn->has_plan(a.attrs, a.tokens, libraries.documents, backward);
}

void run_own_kernels(const Operation& op, const Attention& a, bool backward) {
  attention_prologue(op.dtype(), a, op.stream());
  if (op.dtype() == DType::kF32)
    backward ? attention_backward_f32(a, op.stream()) : attention_forward_f32(a, op.stream());
  else
    backward ? attention_backward_narrow(op.dtype(), a, op.stream())
             : attention_forward_narrow(op.dtype(), a, op.stream());
}

/// Runs attention with cuDNN. If sequences may hold documents, our kernels compute the documents of
/// one token and those for which the lists have no room.
void run_by_cudnn(const Operation& op, Attention a, bool backward, CudnnAttention& cudnn,
                  bool documents) {
  const auto compute = [&](const DocumentLists* lists) {
    backward ? cudnn.backward(a, lists, op.stream()) : cudnn.forward(a, lists, op.stream());
  };
  if (!documents) return compute(nullptr);
  const DocumentLists lists =
      document_lists_of(op, gpu_attention_workspace(a.tokens, a.attrs, backward));
  list_documents(a, lists, op.stream());
  compute(&lists);
  a.uncovered = lists.uncovered;
  backward ? single_tokens_backward(a, op.stream()) : single_tokens_forward(a, op.stream());
  run_own_kernels(op, a, backward);
}

/// Makes cuDNN's plan if cuDNN computes the operation. If our kernels compute any of it, throws
/// Error(kUnsupported), with the calculation, if they need more shared memory per block than the
/// GPU has, or if the head is too large for any kernel.
void prepare(const LayerGraph& graph, const Op& op, bool backward,
             const KernelLibraries& libraries) {
  const auto& attrs = op.attrs.get<AttentionAttrs>();
  const Value& made = graph.at(op.out[0]);
  const int64_t tokens = made.dims[0];
  const bool computes =
      libraries.cudnn != nullptr &&
      cudnn_supports(libraries.gpu, attrs, made.dtype, tokens, libraries.documents) &&
      (libraries.cudnn->required() ||
       is_cudnn_faster(libraries.gpu, attrs.head_size, libraries.documents));
  if (computes) libraries.cudnn->prepare(attrs, tokens, libraries.documents, backward);
  const bool computes_all =
      computes && !libraries.documents && libraries.cudnn->has_plan(attrs, tokens, false, backward);
  if (!computes_all) check_own_kernels_fit(graph, op, backward, libraries.gpu);
}

}  // namespace

void prepare_attention(const LayerGraph& graph, const Op& op, const KernelLibraries& libraries) {
  prepare(graph, op, false, libraries);
}

void prepare_attention_dgrad(const LayerGraph& graph, const Op& op,
                             const KernelLibraries& libraries) {
  prepare(graph, op, true, libraries);
}

void run_attention(const Operation& op, const KernelLibraries& libraries) {
  Attention a = attention_of(op, false);
  a.qkv = op.in(0);
  a.starts = op.ints_in(1);
  a.a = op.out(0);
  a.lse = op.floats_out(1);
  if (uses_cudnn(op, a, false, libraries))
    return run_by_cudnn(op, a, false, *libraries.cudnn, libraries.documents);
  run_own_kernels(op, a, false);
}

void run_attention_dgrad(const Operation& op, const KernelLibraries& libraries) {
  Attention a = attention_of(op, true);
  a.da = op.in(0);
  a.qkv = op.in(1);
  // The operation only reads this value; the pointer is not const because the forward pass, which
  // shares the struct, writes it.
  a.a = const_cast<void*>(op.in(2));
  a.lse = const_cast<float*>(op.floats_in(3));
  a.starts = op.ints_in(4);
  a.dqkv = op.out(0);
  if (uses_cudnn(op, a, true, libraries))
    return run_by_cudnn(op, a, true, *libraries.cudnn, libraries.documents);
  run_own_kernels(op, a, true);
}

}  // namespace ftrun::cuda
