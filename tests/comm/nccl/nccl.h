#pragma once

// This header emulates the part of NCCL that lib/comm/nccl_communicator.cc uses, among threads of
// one process. Communicators of the same id meet. A collective waits in its stream until all
// members' streams have reached it with the same size, and a receive waits until a message of the
// same size has arrived. As in NCCL, destroying or aborting a communicator does not return while
// there is a graph that captured one of its collectives; and the first message between two ranks
// blocks the calling thread until the peer makes the matching call.

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
enum ncclRedOp_t { ncclSum, ncclMax };
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

/// StandIn holds the failures that tests cause.
struct StandIn {
  /// The rank that never arrives at a new communicator until stand_in_reset(); -1: none.
  int absent = -1;
  /// The network of later collectives fails, and their communicators report it.
  bool network_fails = false;
  /// CUDA fails inside NCCL's calls, and communicators report it.
  bool cuda_fails = false;
  /// An abort does not end a collective that waits in a stream.
  bool abort_fails = false;
};
StandIn& stand_in();
/// Resets the stand-in to its initial state; ranks that it held continue.
void stand_in_reset();
