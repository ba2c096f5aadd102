#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace ftrun {

/// Makes a communicator over TCP. Floating-point sums among more than two ranks are exchanged in
/// pieces, and the communicator adds them in rank order: the order in which Gloo's own ring adds
/// depends on sizes. `checked_collectives` is that of CommOptions.
std::unique_ptr<Communicator> make_gloo_communicator(Communicator::Setup setup,
                                                     Rendezvous& rendezvous,
                                                     int64_t checked_collectives);

}  // namespace ftrun
