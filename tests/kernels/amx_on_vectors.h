#pragma once

#include "kernels/cpu/vector_kernels.h"

namespace ftrun::amx_on_vectors {
extern const VectorKernels<BFloat16> kBFloat16;
}  // namespace ftrun::amx_on_vectors
