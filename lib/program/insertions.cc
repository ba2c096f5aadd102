#include "program/insertions.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ftrun {
namespace {

size_t position(const Insertion& insertion) {
  return 2 * insertion.plain_instr + (insertion.is_after ? 1 : 0);
}

/// InstrMerger collects instructions in their final order.
class InstrMerger {
 public:
  /// Adds an instruction of the plain program. Its waits name other instructions of the plain
  /// program, and are renumbered here.
  void add_plain(Instr&& instr) {
    for (InstrId& wait : instr.waits) wait = merged_ids_[static_cast<size_t>(wait)];
    merged_ids_.push_back(static_cast<InstrId>(result_.size()));
    add(std::move(instr));
  }

  /// Adds the instructions of an insertion. If it waits for compute, only its first instruction
  /// waits for the compute instruction: the others wait for the first one through their reads.
  void add(Insertion&& insertion) {
    if (insertion.waits_for_compute && last_compute_ >= 0)
      insertion.instrs.front().waits = {last_compute_};
    for (Instr& instr : insertion.instrs) add(std::move(instr));
  }

  std::vector<Instr> release() { return std::move(result_); }

 private:
  void add(Instr&& instr) {
    if (instr.lane == Lane::kCompute) last_compute_ = static_cast<InstrId>(result_.size());
    result_.push_back(std::move(instr));
  }

  std::vector<Instr> result_;
  /// The number of each plain instruction in the merged program.
  std::vector<InstrId> merged_ids_;
  InstrId last_compute_ = -1;
};

}  // namespace

Program merge_insertions(Program program, std::vector<Insertion> insertions) {
  std::stable_sort(
      insertions.begin(), insertions.end(),
      [](const Insertion& a, const Insertion& b) { return position(a) < position(b); });
  InstrMerger merger;
  auto next = insertions.begin();
  const auto add_insertions_before = [&](size_t end) {
    for (; next != insertions.end() && position(*next) < end; ++next)
      if (!next->instrs.empty()) merger.add(std::move(*next));
  };
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    add_insertions_before(2 * i + 1);
    merger.add_plain(std::move(program.instrs[i]));
    add_insertions_before(2 * i + 2);
  }
  program.instrs = merger.release();
  return program;
}

std::vector<BufferUse> find_buffer_uses(const Program& program) {
  std::vector<BufferUse> uses(program.buffers.size());
  for (size_t i = 0; i < program.instrs.size(); ++i)
    for (const auto* ranges : {&program.instrs[i].reads, &program.instrs[i].writes})
      for (const BufferRange& range : *ranges) {
        BufferUse& buffer = uses[static_cast<size_t>(range.buffer)];
        buffer.first = std::min(buffer.first, i);
        buffer.last = i;
      }
  return uses;
}

void replace_buffer(Instr& instr, BufferId from, BufferId to) {
  const auto rename = [&](BufferRange& range) {
    if (range.buffer == from) range.buffer = to;
  };
  for (BufferRange& range : instr.reads) rename(range);
  for (BufferRange& range : instr.writes) rename(range);
  if (!instr.runs_ops()) return;
  for (Binding& binding : instr.ops().bindings) rename(binding.range);
}

}  // namespace ftrun
