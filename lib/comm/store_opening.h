#pragma once

// Only the sources of Rendezvous include this header, because it includes c10d's.
#include <functional>
#include <memory>
#include <optional>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/rendezvous.h"
#include "comm/rendezvous_file.h"
#include "comm/store_server.h"

namespace ftrun {

/// StoreClients are the connections of a rank to the store of its job.
struct StoreClients {
  c10::intrusive_ptr<c10d::Store> main, control;
  std::function<c10::intrusive_ptr<c10d::Store>()> connect_again;
  /// The rendezvous file of rank 0, until all have met.
  std::unique_ptr<RendezvousFile> rendezvous_file;
  std::optional<TorchrunLaunch> torchrun_launch;
  std::shared_ptr<const StoreServer> server;
};

/// Finds the store of the job, which rank 0 serves, and connects to it; logs a long wait. Throws
/// Error(kEnvironment) if rank 0's port is taken, Error(kPeerLost) after the timeout.
StoreClients connect_to_store(const RendezvousOptions& options);

}  // namespace ftrun
