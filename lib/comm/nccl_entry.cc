#include "comm/nccl_entry.h"

#include <utility>

#include "comm/nccl_communicator.h"

extern "C" __attribute__((visibility("default"))) ftrun::Communicator* ftrun_make_nccl_communicator(
    ftrun::Communicator::Setup* setup, ftrun::Rendezvous* rendezvous, int device) {
  return ftrun::make_nccl_communicator(std::move(*setup), *rendezvous, device).release();
}
