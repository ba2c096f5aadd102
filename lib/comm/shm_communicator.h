#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace ftrun {

/// Makes a communicator among ranks of one machine through shared memory. Buffers from allocate()
/// are read by the peers in place; others are copied through a staging area in pieces.
std::unique_ptr<Communicator> make_shm_communicator(Communicator::Setup setup,
                                                    Rendezvous& rendezvous);

}  // namespace ftrun
