#include "base/quantized_format.h"

#include "base/error.h"

namespace ftrun {

int64_t QuantizedFormat::record_bytes() const {
  require(type != QuantizationType::kNone && (block == 64 || block == 128 || block == 256),
          "the format quantizes, in blocks that fit a record");
  return scales_offset() +
         (holds_scale_codes() ? kScaleCodesBytes : scales() * static_cast<int64_t>(sizeof(float)));
}

}  // namespace ftrun
