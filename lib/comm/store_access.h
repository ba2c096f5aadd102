#pragma once

// Seen by this folder's sources only: brings c10d's headers.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/rendezvous.h"
#include "comm/store_worker.h"

namespace ftrun {

/// The job's store under a prefix of its own.
c10::intrusive_ptr<c10d::Store> prefixed_store(Rendezvous& rendezvous, const std::string& prefix);

/// The thread that uses the job's store: operations that may hang on it run there.
StoreWorker& store_worker(Rendezvous& rendezvous);

/// c10's exceptions carry a stack trace below their first line.
inline std::string first_line(const std::string& what) {
  return what.substr(0, what.find('\n'));
}

}  // namespace ftrun
