#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/round_up.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_libraries.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kernels.h"

namespace ftrun {
namespace {

/// The number of terms that a multiplication adds up for each element of its result. MKL packs up
/// to 1024 terms in fp32 and 2048 in bf16 at a time. It keeps the memory into which it packs,
/// separately for each size. For oneDNN, OperandMemoryScope keeps it.
constexpr int64_t kDepth = 2048;
constexpr int64_t kOperandBytes = kMaxMatmulTile * kDepth * 4;
constexpr int64_t kResultBytes = kMaxMatmulTile * kMaxMatmulTile * 4;

/// Multiplies two matrices of type S, both at `operands`, into a tile of the largest size. For
/// oneDNN the second is transposed, as weights are in the forward pass: otherwise oneDNN would
/// multiply these in fp32 without packing them.
template <class S>
void multiply_tile(MatmulLibrary library, const std::byte* operands, std::byte* result) {
  constexpr int kSide = static_cast<int>(kMaxMatmulTile);
  const auto* const operand = reinterpret_cast<const S*>(operands);
  const bool transpose_b = library == MatmulLibrary::kOneDnn;
  multiply_with(library, MatmulCall<S, float>{.transpose_b = transpose_b,
                                              .m = kSide,
                                              .n = kSide,
                                              .k = static_cast<int>(kDepth),
                                              .a = operand,
                                              .lda = static_cast<int>(kDepth),
                                              .b = operand,
                                              .ldb = transpose_b ? static_cast<int>(kDepth) : kSide,
                                              .beta = 0,
                                              .c = reinterpret_cast<float*>(result),
                                              .ldc = kSide});
}

}  // namespace

int64_t warm_up_bytes() {
  return kOperandBytes + kernel_threads() * kResultBytes;
}

void warm_up_matmul(DType compute_dtype, std::byte* memory) {
  const MatmulRule rule = matmul_rule_in_use();
  // The tiles below are too large for some of oneDNN's kernels, which a step needs.
  compile_fp32_kernels(rule.fp32);
  const int threads = kernel_threads();
  std::atomic<int> begun{0};
  parallel_library_calls(threads, [&](int64_t task) {
    // Each thread waits here until all threads have begun, so that no thread multiplies twice. The
    // wait is limited because the system may provide fewer threads.
    ++begun;
    for (const auto start = std::chrono::steady_clock::now();
         begun < threads && seconds_since(start) < 0.05;)
      std::this_thread::yield();
    std::byte* const result = memory + kOperandBytes + task * kResultBytes;
    multiply_tile<float>(rule.fp32, memory, result);
    // A run that computes in fp32 never multiplies bf16, and compiles no code for it here.
    if (compute_dtype == DType::kBF16 && multiplies_bf16())
      multiply_tile<BFloat16>(*rule.bf16, memory, result);
  });
}

int64_t attention_tile_bytes(int64_t head_size) {
  constexpr int64_t kVector = 16, kTiles = 7;  // as many as the backward pass uses
  const int64_t tile = kAttentionBlock * round_up(head_size, kVector);
  return (kTiles * tile + kBackwardScratch) * static_cast<int64_t>(sizeof(float));
}

}  // namespace ftrun
