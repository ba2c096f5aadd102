#pragma once

// The part of NCCL that lib/comm/nccl_communicator.cc uses, among threads of one process.
// Communicators of the same id meet. A collective waits in its stream until all members' have
// reached it, with the same size, and a receive until a message of as many bytes has come. As in
// NCCL, destroy and abort of a communicator do not return while there is a graph that captured one
// of its collectives; and the first message between two ranks blocks the thread that issues one
// half until the peer issues the other.

#include <cuda_runtime_api.h>

struct StandInComm;
using ncclComm_t = StandInComm*;
struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  const char* commName;
};
#define NCCL_CONFIG_INITIALIZER \
  { nullptr }

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclRedOp_t { ncclSum, ncclMax, ncclMin };
enum ncclDataType_t {
  ncclInt8,
  ncclUint8,
  ncclInt32,
  ncclInt64,
  ncclFloat16,
  ncclFloat32,
  ncclFloat64,
  ncclBfloat16,
};

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* status);
const char* ncclGetErrorString(ncclResult_t status);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

/// StandIn holds the faults that tests cause.
struct StandIn {
  /// The rank that does not reach a new communicator until stand_in_reset(); -1 for none.
  int absent = -1;
  /// The network of later collectives fails: their communicators say so when asked.
  bool network_fails = false;
  /// CUDA fails in NCCL's own calls: communicators say so when asked.
  bool cuda_fails = false;
  /// An abort does not end what stands in a stream.
  bool abort_fails = false;
};
StandIn& stand_in();
/// Resets the stand-in to its first state; ranks that were held go on.
void stand_in_reset();
