#include "comm/nccl_entry.h"

#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "comm/nccl_communicator.h"

extern "C" __attribute__((visibility("default"))) ftrun::Communicator* ftrun_make_nccl_communicator(
    ftrun::Communicator::Setup* setup, ftrun::Rendezvous* rendezvous, int device) {
  return ftrun::make_nccl_communicator(std::move(*setup), *rendezvous, device).release();
}

extern "C" __attribute__((visibility("default"))) void ftrun_set_nccl_stream(int device, void* stream) {
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream),
                                                                   static_cast<c10::DeviceIndex>(device)));
}
