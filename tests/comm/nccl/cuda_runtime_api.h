#pragma once

// The part of CUDA's runtime that lib/comm/nccl_communicator.cc and its tests use, on host memory:
// a stream is a thread that does its work in order, while its host goes on. cudaMemset is late: it
// reaches the memory some time after the host has gone on, as other streams do not wait for the
// legacy stream.

#include <cstddef>
#include <functional>

struct StandInStream;
struct StandInEvent;
struct StandInGraph;
using cudaStream_t = StandInStream*;
using cudaEvent_t = StandInEvent*;
/// cudaGraph_t is a graph, started as it was captured: there is nothing to instantiate.
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

/// Puts any work into the stream, in its order.
void put_into(cudaStream_t stream, std::function<void()> work);
/// Makes the device fail in the stream: later work there is not done, and its events say so.
void fault_in(cudaStream_t stream);
