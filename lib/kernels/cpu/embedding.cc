#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

namespace {

// The loader refuses such tokens before they come here; reading or writing outside the table would
// be worse.
void check_tokens(const int32_t* tokens, int64_t count, int64_t vocabulary) {
  for (int64_t n = 0; n < count; ++n)
    if (tokens[n] < 0 || tokens[n] >= vocabulary)
      bug(cat("token ", tokens[n], " at position ", n, " of a micro-batch is outside the table of ",
              vocabulary, " rows"));
}

}  // namespace

template <class S>
void embed(const OpCall& call) {
  const int64_t count = call.in_dims(0)[0], width = call.in_dims(1)[1];
  const int32_t* const tokens = call.in<int32_t>(0);
  const S* const table = call.in<S>(1);
  S* const x = call.out<S>(0);
  check_tokens(tokens, count, call.in_dims(1)[0]);
  parallel_ranges(count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      std::copy_n(table + tokens[n] * width, width, x + n * width);
  });
}

// Threads take columns: each row of the table gets its tokens' gradients in the order of the
// tokens.
template <class S>
void embed_wgrad(const OpCall& call) {
  constexpr int64_t kColumns = 64;
  const int64_t count = call.in_dims(0)[0], width = call.in_dims(1)[1],
                vocabulary = call.out_dims(0)[0];
  const int32_t* const tokens = call.in<int32_t>(0);
  const S* const dx = call.in<S>(1);
  S* const dtable = call.out<S>(0);
  check_tokens(tokens, count, vocabulary);
  if (!call.accumulate())
    parallel_ranges(vocabulary * width, 1 << 16, [&](int64_t begin, int64_t end) {
      std::fill(dtable + begin, dtable + end, S{0});
    });
  const auto& vec = vector_kernels<S>();
  parallel_ranges((width + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns, columns = std::min(end * kColumns, width) - first;
    for (int64_t n = 0; n < count; ++n) {
      S* const row = dtable + tokens[n] * width + first;
      vec.add(row, dx + n * width + first, row, columns);
    }
  });
}

template void embed<float>(const OpCall&);
template void embed<double>(const OpCall&);
template void embed_wgrad<float>(const OpCall&);
template void embed_wgrad<double>(const OpCall&);

}  // namespace ftrun::cpu
