#include "program/update_operands.h"

namespace ftrun {

std::optional<UpdateOperands> decode_update_operands(const Program& program, const Instr& instr) {
  const std::span<const BufferRange> reads = instr.reads, writes = instr.writes;
  if (reads.size() < 2) return std::nullopt;
  UpdateOperands operands{.gradient = reads[0], .weights = reads[1]};
  const std::span<const BufferRange> rest = reads.subspan(2);
  const bool is_8bit = !rest.empty() && program.at(rest[0].buffer).format.dtype == DType::kU8;
  const bool straddles = instr.update().blocks.has_value();
  if (straddles && !is_8bit) return std::nullopt;
  const size_t lists = straddles ? 3 : is_8bit ? 2 : 1;
  const size_t states = rest.size() / lists;
  if (rest.size() != lists * states) return std::nullopt;
  operands.states = rest.first(states);
  if (is_8bit) operands.scales = rest.subspan(states, states);
  if (straddles) operands.new_scales = rest.last(states);
  operands.updated = reads.subspan(1, 1 + rest.size() - (straddles ? 2 * states : 0));

  if (instr.kind == InstrKind::kComputeScales) {
    if (!straddles || writes.size() != states) return std::nullopt;
    return operands;
  }
  const bool copies = instr.update().writes_working_copy;
  if (writes.size() != operands.updated.size() + (copies ? 1 : 0)) return std::nullopt;
  if (copies) operands.working_copy = writes.back();
  return operands;
}

}  // namespace ftrun
