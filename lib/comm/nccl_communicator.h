#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace ftrun {

/// Makes a communicator among GPUs. Buffers are memory of `device`. A collective runs after the
/// work that the current stream (Communicator::use_stream) holds when the collective is issued, and
/// wait() makes the current stream wait for it, while the host continues. Throws
/// Error(kUnsupported) in a build without CUDA.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator::Setup setup,
                                                     Rendezvous& rendezvous, int device);

}  // namespace ftrun
