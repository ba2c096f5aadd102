#include <cstddef>
#include <utility>
#include <vector>

#include "program/passes.h"

namespace ftrun {
namespace {

bool is_gradient_reduce(const Program& program, const Instr& instr) {
  return instr.kind == InstrKind::kAllReduce &&
         program.at(instr.writes[0].buffer).category == Category::kGradients;
}

bool continues(const Range& bucket, const Range& next) {
  return bucket.buffer == next.buffer && bucket.offset + bucket.bytes == next.offset;
}

}  // namespace

Program bucket_gradients(Program program, int64_t bucket_elements) {
  std::vector<Instr> result;
  Instr bucket;
  bool open = false;
  // A bucket leaves as soon as its last gradient is there, not when the next one does not fit.
  size_t position = 0;
  const auto flush = [&] {
    if (open) result.insert(result.begin() + static_cast<std::ptrdiff_t>(position), std::exchange(bucket, Instr{}));
    open = false;
  };
  for (Instr& instr : program.instrs) {
    if (!is_gradient_reduce(program, instr)) {
      // What reads the gradients must stay behind their reduction.
      if (instr.kind == InstrKind::kGradientNorm) flush();
      result.push_back(std::move(instr));
      continue;
    }
    const Range range = instr.writes[0];
    const auto elements = [size = dtype_bytes(instr.dtype)](int64_t bytes) { return bytes / size; };
    const bool fits = open && elements(bucket.writes[0].bytes + range.bytes) <= bucket_elements;
    if (open && !(fits && continues(bucket.writes[0], range))) flush();
    if (!open) {
      bucket = std::move(instr);
      open = true;
    } else {
      bucket.writes[0].bytes += range.bytes;
      bucket.reads = bucket.writes;
    }
    position = result.size();
    if (elements(bucket.writes[0].bytes) >= bucket_elements) flush();
  }
  flush();
  program.instrs = std::move(result);
  return program;
}

}  // namespace ftrun
