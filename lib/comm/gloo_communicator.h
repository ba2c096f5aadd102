#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace ftrun {

/// Makes a communicator over TCP. Floating sums among more than two ranks are exchanged piecewise
/// and added here in rank order: Gloo's own ring adds in an order that depends on sizes.
std::unique_ptr<Communicator> make_gloo_communicator(Communicator::Setup setup,
                                                     Rendezvous& rendezvous,
                                                     int64_t checked_collectives);

}  // namespace ftrun
