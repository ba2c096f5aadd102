#pragma once

#include <cstdint>

namespace ftrun {

// This header is included by the vector code of every instruction set, so it has only the
// enumeration; activation_traits.h describes its values.

/// Activation is one of silu x sigmoid(x); gelu x Phi(x), Phi being the normal distribution
/// (Hendrycks and Gimpel 2016); gelu_tanh, its approximation
/// x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2; relu max(x, 0), and its square.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kRelu2 };

}  // namespace ftrun
