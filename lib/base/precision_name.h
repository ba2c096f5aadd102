#pragma once

#include <string_view>

#include "base/dtype.h"
#include "base/error.h"

namespace ftrun {

/// Returns the name of a dtype of activations in configs and machine files: "fp32", "bf16" or
/// "fp16".
inline std::string_view precision_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    default:
      bug("a dtype of activations");
  }
}

}  // namespace ftrun
