#pragma once

// This header emulates the part of CUDA's runtime that lib/comm/nccl_communicator.cc and its tests
// use, in host memory. A stream is a thread that does its work in order while the host continues.
// cudaMemset writes the memory some time after the call, because streams other than the legacy
// stream do not wait for it.

#include <cstddef>
#include <functional>

struct StandInStream;
struct StandInEvent;
struct StandInGraph;
using cudaStream_t = StandInStream*;
using cudaEvent_t = StandInEvent*;
/// cudaGraph_t is a graph that can be launched as it was captured: instantiating does nothing.
using cudaGraph_t = StandInGraph*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

const char* cudaGetErrorName(cudaError_t status);
const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphLaunch(cudaGraph_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/// Enqueues any work in the stream.
void put_into(cudaStream_t stream, std::function<void()> work);
/// Makes the device fail at this point of the stream: later work is not done, and events after it
/// report the failure.
void fault_in(cudaStream_t stream);
