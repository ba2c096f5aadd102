#pragma once

// This header emulates the part of CUDA's runtime that lib/kernels/cuda uses, in host memory. Every
// call on a stream is executed at once.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotReady = 600,
  cudaErrorNotSupported = 801
};
enum {
  cudaMemcpyDefault,
  cudaHostAllocDefault,
  cudaStreamNonBlocking,
  cudaEventDefault = 0,
  cudaEventBlockingSync = 1,
  cudaEventDisableTiming = 2,
  cudaStreamCaptureModeThreadLocal,
  cudaDeviceScheduleBlockingSync = 4,
  cudaInitDeviceFlagsAreValid = 1,
  cudaEnableDefault = 0,
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
};

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  int major, minor, multiProcessorCount;
  size_t sharedMemPerBlockOptin;
  size_t totalGlobalMem;
};

/// Runtime holds the emulator's settings and records for tests. Settings: the order in which blocks
/// run, the shared memory per block, whether an event is done, the last error. Records: the number
/// of kernels started, and the flags with which waits were requested.
namespace emulator {
struct Runtime {
  size_t block_shared = 232448;
  int compute_major = 9;
  bool event_has_come = true;
  int last_error = 0;
  unsigned device_flags = 0;
  unsigned event_flags = 0;
  int64_t launches = 0;
  /// Runs the blocks of a kernel from the last to the first.
  bool last_block_first = false;
  /// The number of matrix multiplications with rows that do not begin at multiples of 16 bytes,
  /// which are slow on tensor cores.
  int64_t unaligned_matmuls = 0;
  /// The number of matrix multiplications of at least 64 rows, columns and depth where one of the
  /// three is not a multiple of 8: cuBLAS's fast kernels do not support them.
  int64_t matmuls_not_multiple_of_8 = 0;
  /// The calling thread's current GPU.
  int device = 0;
  /// The number of times that an attribute of a kernel was set.
  int64_t attributes_set = 0;
};
/// The mutex that a thread holds while it runs a kernel: the emulator runs one at a time.
inline std::mutex launching;
inline Runtime& runtime() {
  static Runtime state;
  return state;
}
/// SharedMemory holds the dynamic shared memory that was requested for each kernel and GPU, in
/// bytes. It is not part of Runtime, because tests restore the settings but kernels keep their
/// memory.
struct SharedMemory {
  std::mutex mutex;
  std::map<std::pair<const void*, int>, size_t> bytes;
};
inline SharedMemory& shared_memory_of_kernels() {
  static SharedMemory given;
  return given;
}
inline size_t shared_asked(const void* kernel) {
  const std::lock_guard lock(shared_memory_of_kernels().mutex);
  return shared_memory_of_kernels().bytes[{kernel, runtime().device}];
}
}  // namespace emulator

inline const char* cudaGetErrorName(cudaError_t) {
  return "an error";
}
inline const char* cudaGetErrorString(cudaError_t) {
  return "of the emulator";
}
inline cudaError_t cudaGetLastError() {
  const int last = emulator::runtime().last_error;
  emulator::runtime().last_error = cudaSuccess;
  return static_cast<cudaError_t>(last);
}

constexpr size_t kEmulatedBytes = size_t{4} << 30;
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = bytes > kEmulatedBytes ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
inline cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = kEmulatedBytes;
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = emulator::runtime().device;
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, int, int bytes) {
  if (static_cast<size_t>(bytes) > emulator::runtime().block_shared)
    return cudaErrorInvalidConfiguration;
  const std::lock_guard lock(emulator::shared_memory_of_kernels().mutex);
  emulator::shared_memory_of_kernels().bytes[{kernel, emulator::runtime().device}] =
      static_cast<size_t>(bytes);
  ++emulator::runtime().attributes_set;
  return cudaSuccess;
}
inline cudaError_t cudaInitDevice(int, unsigned flags, unsigned) {
  emulator::runtime().device_flags = flags;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"the emulator, on the host",
                 {"\x01\x23\x45\x67\xff"},
                 emulator::runtime().compute_major,
                 0,
                 1,
                 emulator::runtime().block_shared,
                 size_t{80} << 30};
  return cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned,
                                                    void*) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaDeviceGetPCIBusId(char* text, int, int) {
  std::strcpy(text, "none");
  return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int* version) {
  return cudaDriverGetVersion(version);
}

inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  static char place;
  *stream = reinterpret_cast<cudaStream_t>(&place);
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  emulator::runtime().event_flags = flags;
  static char place;
  *event = reinterpret_cast<cudaEvent_t>(&place);
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t) {
  if (emulator::runtime().event_has_come) return cudaSuccess;
  emulator::runtime().last_error = cudaErrorNotReady;
  return cudaErrorNotReady;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0.0F;
  return cudaSuccess;
}

inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
  return cudaErrorNotSupported;
}
