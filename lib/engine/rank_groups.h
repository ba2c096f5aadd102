#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/open.h"
#include "comm/rendezvous.h"
#include "program/program.h"

namespace ftrun {

/// RankGroups holds the communicators of a rank, borrowed.
struct RankGroups {
  /// The communicators of the groups of its programs, each once. Among GPUs they move device
  /// memory.
  std::vector<Communicator*> open;
  /// The communicators for memory of host code: of all ranks, and of those that hold one copy of
  /// the model's state between them.
  Communicator* host_world = nullptr;
  Communicator* host_model = nullptr;
  /// The board on which this rank shows what it does; may be null.
  ProgressBoard* board = nullptr;

  /// Returns the groups of a rank that has only this one.
  static RankGroups of_one(Communicator& group) { return {{&group}, &group, &group, nullptr}; }

  int rank() const { return host_world->rank(); }
  /// Returns all of them, each once.
  std::vector<Communicator*> distinct() const;
  /// Returns the one whose memory peers of this machine can see: the largest of shared memory.
  Communicator& peer_visible() const;
  /// Returns the one of these ranks; null when it is not open.
  Communicator* find(const ProgramGroup& group) const;
};

/// OpenGroups opens the communicators of a rank's programs.
class OpenGroups {
 public:
  /// Opens the groups. Collective: every rank opens its groups in the order of the list. `model` is
  /// among them, kNoGroup for a single rank. With options.device, those of host memory are opened
  /// beside them. Errors of open_communicator().
  OpenGroups(Rendezvous& rendezvous, const std::vector<ProgramGroup>& groups, GroupId model,
             CommOptions options);

  const RankGroups& groups() const { return groups_; }
  /// Closes them. Collective: waits until every rank is done with them.
  void close();

 private:
  Communicator* open(Rendezvous& rendezvous, const RankGroup& group, const std::string& prefix,
                     const CommOptions& options);

  std::vector<std::unique_ptr<Communicator>> owned_;
  RankGroups groups_;
};

}  // namespace ftrun
