#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace ftrun {

/// The entry points of libftrun_nccl.so. What make_nccl_communicator() returns, owned by the caller.
using NcclMakeEntry = Communicator* (*)(Communicator::Setup* setup, Rendezvous* rendezvous, int device);
inline constexpr const char* kNcclMakeEntry = "ftrun_make_nccl_communicator";
/// set_nccl_stream()
using NcclStreamEntry = void (*)(int device, void* stream);
inline constexpr const char* kNcclStreamEntry = "ftrun_set_nccl_stream";

}  // namespace ftrun
