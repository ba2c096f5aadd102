#pragma once

// Only this folder's sources include this header, because it includes c10d's.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/rendezvous.h"

namespace ftrun {

/// Returns the job's store under a prefix of its own.
c10::intrusive_ptr<c10d::Store> store_with_prefix(Rendezvous& rendezvous,
                                                  const std::string& prefix);

}  // namespace ftrun
