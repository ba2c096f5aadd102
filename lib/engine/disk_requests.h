#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "engine/memory.h"
#include "program/program.h"

namespace ftrun {

/// DiskRequestQueue runs the copies of a program's disk lane. A copy may start while the previous
/// one still runs (DiskRequest::starts_early), so that the disk stays busy.
class DiskRequestQueue {
 public:
  /// Borrows both arguments.
  DiskRequestQueue(const Program& program, const RankMemory& memory);

  /// Copies to or from the disk. Also starts the next request of the lane if it starts early and
  /// `may_start` returns true for it. All earlier work of the lane is over, so at most two requests
  /// are in progress.
  void copy(const Instr& instr, const std::function<bool(InstrId)>& may_start);

  /// Waits for the requests that a failed step has started, and drops them. Otherwise the next step
  /// would take them for its own.
  void drop();

 private:
  void start(size_t at);

  const Program& program_;
  const RankMemory& memory_;
  /// The next request of each instruction of the lane if that starts early; else -1.
  std::vector<InstrId> early_;
  /// The requests in progress, by instruction.
  std::vector<std::optional<SwapFile::Ticket>> tickets_;
};

}  // namespace ftrun
