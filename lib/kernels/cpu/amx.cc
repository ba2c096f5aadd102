#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

namespace ftrun::amx {
namespace {
#include "kernels/cpu/avx512.inc"

#include "kernels/cpu/amx_units.inc"

#include "kernels/cpu/amx_matmul.inc"
}  // namespace
constinit const VectorKernels<BFloat16> kBFloat16 = make_amx_table();
}  // namespace ftrun::amx
