#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/open.h"
#include "comm/rendezvous.h"
#include "program/program.h"

namespace ftrun {

/// RankCommunicators lists the communicators of a rank, which it borrows.
struct RankCommunicators {
  /// The communicators of the groups of the rank's programs, each once. On GPUs they move device
  /// memory.
  std::vector<Communicator*> group_communicators;
  /// The communicators that move memory of host code: the one of all ranks, and the one of the
  /// ranks that together hold one copy of the model's state.
  Communicator* host_world = nullptr;
  Communicator* host_model = nullptr;
  /// The board on which this rank shows its progress; may be null.
  ProgressBoard* board = nullptr;

  int rank() const { return host_world->rank(); }
  /// Returns all communicators, each once.
  std::vector<Communicator*> distinct_communicators() const;
  /// Returns the communicator that allocates memory which ranks of the same machine can read: the
  /// largest one that uses shared memory.
  Communicator& shared_memory_communicator() const;
  /// Returns the communicator of a group's ranks; null when it is not open.
  Communicator* find_communicator(const ProgramGroup& group) const;
};

/// OwnedCommunicators opens the communicators of a rank, and owns them.
class OwnedCommunicators {
 public:
  /// Opens a communicator for each group. Collective: every rank opens its groups in the order of
  /// the list. `model` is one of them; kNoGroup for a single rank. With options.device, it also
  /// opens the communicators of host memory. Throws the errors of open_communicator().
  OwnedCommunicators(Rendezvous& rendezvous, const std::vector<ProgramGroup>& groups, GroupId model,
                     CommOptions options);

  const RankCommunicators& communicators() const { return communicators_; }
  /// Closes the communicators. Collective: waits until every rank is done with them.
  void close();

 private:
  Communicator* open(Rendezvous& rendezvous, const RankGroup& group, const std::string& prefix,
                     const CommOptions& options);

  std::vector<std::unique_ptr<Communicator>> owned_;
  RankCommunicators communicators_;
};

}  // namespace ftrun
