#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace ftrun {

/// NcclMakeEntry is the entry point of libftrun_nccl.so: it returns what make_nccl_communicator()
/// returns, owned by the caller.
using NcclMakeEntry = Communicator* (*)(Communicator::Setup* setup, Rendezvous* rendezvous,
                                        int device);
inline constexpr const char* kNcclMakeEntry = "ftrun_make_nccl_communicator";

}  // namespace ftrun
