#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector_kernels.h"
#include "optimizers/code_map.h"

namespace ftrun::avx512 {
namespace {
#include "kernels/cpu/avx512.inc"

#include "kernels/cpu/flat_kernels.inc"
#include "kernels/cpu/vector_table.inc"
}  // namespace
#include "kernels/cpu/all_tables.inc"
}  // namespace ftrun::avx512
