#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/lane_device.h"
#include "engine/memory.h"
#include "program/program.h"

namespace ftrun {

/// CommunicationRunner runs the instructions of a program that communicate with other ranks: a lane
/// calls it for each of its collectives and transfers.
class CommunicationRunner {
 public:
  /// Borrows all arguments for this object's life; `communicators` holds one for each GroupId.
  CommunicationRunner(const Program& program, const RankMemory& memory, LaneDevice& device,
            std::vector<Communicator*> communicators)
      : program_(program),
        memory_(memory),
        device_(device),
        communicators_(std::move(communicators)) {}

  void run_collective(const Instr& instr) const;
  void run_transfer(const Instr& instr) const;

 private:
  Work start_collective(const Instr& instr, size_t index, Communicator& group) const;
  void run_counted_all_to_all(const Instr& instr, Communicator& group) const;

  const Program& program_;
  const RankMemory& memory_;
  LaneDevice& device_;
  std::vector<Communicator*> communicators_;
};

}  // namespace ftrun
