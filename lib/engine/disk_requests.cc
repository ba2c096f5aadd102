#include "engine/disk_requests.h"

#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {

/// Returns, for each instruction of the disk lane, the next one of the lane if that may start
/// early, else -1.
std::vector<InstrId> early_disk_requests(const Program& program) {
  std::vector<InstrId> next(program.instrs.size(), -1);
  InstrId last = -1;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    if (program.instrs[i].lane != Lane::kDisk) continue;
    if (last >= 0 && program.instrs[i].starts_early())
      next[static_cast<size_t>(last)] = static_cast<InstrId>(i);
    last = static_cast<InstrId>(i);
  }
  return next;
}

}  // namespace

DiskRequestQueue::DiskRequestQueue(const Program& program, const RankMemory& memory)
    : program_(program),
      memory_(memory),
      early_(early_disk_requests(program)),
      tickets_(program.instrs.size()) {}

void DiskRequestQueue::start(size_t at) {
  if (tickets_[at]) return;
  const Instr& instr = program_.instrs[at];
  const bool write = memory_.is_on_disk(program_, instr.writes[0]);
  const BufferRange& disk = write ? instr.writes[0] : instr.reads[0];
  const BufferRange& memory = write ? instr.reads[0] : instr.writes[0];
  tickets_[at] = memory_.start_disk_request(program_, disk, memory_.at(program_, memory), write);
}

void DiskRequestQueue::copy(const Instr& instr, const std::function<bool(InstrId)>& may_start) {
  const auto at = static_cast<size_t>(&instr - program_.instrs.data());
  start(at);
  const InstrId next = early_[at];
  if (next >= 0 && may_start(next)) start(static_cast<size_t>(next));
  const SwapFile::Ticket ticket = *std::exchange(tickets_[at], std::nullopt);
  memory_.swap()->wait(ticket);
}

void DiskRequestQueue::drop() {
  for (std::optional<SwapFile::Ticket>& ticket : tickets_) {
    if (!ticket) continue;
    try {
      memory_.swap()->wait(*ticket);
    } catch (const Error&) {
      // The step has failed already.
    }
    ticket.reset();
  }
}

}  // namespace ftrun
