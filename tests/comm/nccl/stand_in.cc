#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "comm/reduce.h"

struct StandInGraph {
  std::vector<std::function<void()>> work;
  /// References to the communicator of each captured collective; the graph's destructor releases
  /// them.
  std::vector<std::shared_ptr<int>> references;
};

struct StandInStream {
  StandInStream() : thread([this] { serve(); }) {}
  ~StandInStream() {
    put(nullptr);
    thread.join();
  }
  void put(std::function<void()> work) {
    if (captured) return captured->work.push_back(std::move(work));
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(work));
    changed.notify_all();
  }
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !tasks.empty(); });
      const std::function<void()> work = tasks.front();
      lock.unlock();
      if (!work) return;
      if (!faulted) work();
      lock.lock();
      tasks.pop_front();
      changed.notify_all();
    }
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return tasks.empty(); });
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  std::atomic<bool> faulted = false;
  std::unique_ptr<StandInGraph> captured;
  std::thread thread;
};

struct StandInEvent {
  std::atomic<int> recorded = 0;
  /// Shared with the stream, because an event may be destroyed before the stream has reached it.
  std::shared_ptr<std::atomic<int>> reached = std::make_shared<std::atomic<int>>(0);
  /// The stream in which the event was last recorded.
  cudaStream_t stream = nullptr;
};

namespace {

using Bytes = std::vector<std::byte>;

/// World is the state that all communicators of an id share. Its mutex guards all members.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, bool> arrived_ranks;
  std::map<int64_t, std::map<int, Bytes>> operands;
  /// Messages by sender and receiver.
  std::map<std::pair<int, int>, std::deque<Bytes>> messages;
  /// The halves of connections that were asked for: sender, receiver, and the rank that asked.
  std::set<std::tuple<int, int, int>> requested_halves;
};

/// Connection is one half of a connection that a call opens: sender, receiver and the rank that
/// asks.
struct Connection {
  std::shared_ptr<World> world;
  int from = 0;
  int to = 0;
  int requesting_rank = 0;
  std::shared_ptr<std::atomic<bool>> aborted;
};

struct Worlds {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<World>> by_id;
  int next = 0;
  int resets = 0;
};
Worlds& worlds() {
  static auto* const all = new Worlds;
  return *all;
}

// The legacy stream and the next one are never destroyed, because detached threads still use them
// when the process ends.
StandInStream& legacy_stream() {
  static auto* const stream = new StandInStream;
  return *stream;
}

ftrun::DType dtype_of(ncclDataType_t type) {
  using ftrun::DType;
  constexpr DType kTypes[] = {DType::kI8,  DType::kU8,  DType::kI32, DType::kI64,
                              DType::kF16, DType::kF32, DType::kF64, DType::kBF16};
  return kTypes[type];
}

Bytes copy_operand(const void* from, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(from);
  return {first, first + bytes};
}

thread_local bool grouped = false;
thread_local std::vector<std::function<void()>> group_sends, group_receives;
thread_local cudaStream_t group_stream = nullptr;
thread_local std::vector<Connection> group_connections;

/// Connects as NCCL does for a first message: the calling thread blocks until the peers have asked
/// for the other halves. Fails after some seconds, so that a test ends.
ncclResult_t connect(const std::vector<Connection>& connections) {
  for (const Connection& one : connections) {
    const std::lock_guard lock(one.world->mutex);
    one.world->requested_halves.insert({one.from, one.to, one.requesting_rank});
    one.world->changed.notify_all();
  }
  for (const Connection& one : connections) {
    std::unique_lock lock(one.world->mutex);
    const auto& requested_halves = one.world->requested_halves;
    const bool connected = one.world->changed.wait_for(lock, std::chrono::seconds(10), [&] {
      return *one.aborted || (requested_halves.contains({one.from, one.to, one.from}) &&
                              requested_halves.contains({one.from, one.to, one.to}));
    });
    if (!connected) return ncclRemoteError;
  }
  return ncclSuccess;
}

}  // namespace

struct StandInComm {
  std::shared_ptr<World> world;
  int ranks = 0;
  int rank = 0;
  /// The number of collectives that have run; counted when they run, because those of a graph run
  /// repeatedly.
  std::shared_ptr<std::atomic<int64_t>> next = std::make_shared<std::atomic<int64_t>>(0);
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
  /// The use count is 1 plus the number of captured collectives in existing graphs.
  std::shared_ptr<int> captured = std::make_shared<int>(0);
};

StandIn& stand_in() {
  static StandIn options;
  return options;
}

void stand_in_reset() {
  const std::lock_guard lock(worlds().mutex);
  stand_in() = {};
  ++worlds().resets;
  worlds().changed.notify_all();
}

void put_into(cudaStream_t stream, std::function<void()> work) {
  stream->put(std::move(work));
}
void fault_in(cudaStream_t stream) {
  stream->put([stream] { stream->faulted = true; });
}

const char* cudaGetErrorName(cudaError_t) {
  return "an error";
}
const char* cudaGetErrorString(cudaError_t) {
  return "of the stand-in";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  legacy_stream().wait();
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  legacy_stream().put([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::memset(memory, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  stream->put([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new StandInStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->wait();
  return stream->faulted ? cudaErrorIllegalAddress : cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new StandInEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const int count = ++event->recorded;
  event->stream = stream;
  stream->put([reached = event->reached, count] { *reached = count; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (*event->reached >= event->recorded) return cudaSuccess;
  return event->stream->faulted ? cudaErrorIllegalAddress : cudaErrorNotReady;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream) {
  stream->captured = std::make_unique<StandInGraph>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->captured.release();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraph_t graph, cudaStream_t stream) {
  for (const auto& work : graph->work) stream->put(work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  {
    const std::lock_guard lock(worlds().mutex);
    delete graph;
  }
  worlds().changed.notify_all();
  return cudaSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(worlds().mutex);
  std::memset(id->internal, 0xF7, sizeof id->internal);
  std::strcpy(id->internal, std::to_string(++worlds().next).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  std::unique_lock lock(worlds().mutex);
  const int resets = worlds().resets;
  const auto gone_on = [resets] { return worlds().resets != resets; };
  if (rank == stand_in().absent) worlds().changed.wait(lock, gone_on);
  auto& world = worlds().by_id[id.internal];
  if (!world) world = std::make_shared<World>();
  world->arrived_ranks[rank] = true;
  worlds().changed.notify_all();
  worlds().changed.wait(
      lock, [&] { return static_cast<int>(world->arrived_ranks.size()) == ranks || gone_on(); });
  if (static_cast<int>(world->arrived_ranks.size()) < ranks) return ncclRemoteError;
  *comm = new StandInComm{world, ranks, rank};
  return ncclSuccess;
}

namespace {

/// Waits as NCCL does: "keep polling until all graphs referencing us die".
void await_graphs(ncclComm_t comm) {
  std::unique_lock lock(worlds().mutex);
  worlds().changed.wait(lock, [&] { return comm->captured.use_count() == 1; });
}

}  // namespace

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  await_graphs(comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->world->mutex);
    *comm->aborted = !stand_in().abort_fails;
    comm->world->changed.notify_all();
  }
  await_graphs(comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* status) {
  *status = *comm->failed           ? ncclRemoteError
            : stand_in().cuda_fails ? ncclUnhandledCudaError
                                    : ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t status) {
  if (status == ncclUnhandledCudaError) return "unhandled cuda error";
  return status == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "invalid usage";
}
const char* ncclGetLastError(ncclComm_t) {
  return "socketProgress: Connection closed";
}

namespace {

bool all_have_arrived(const std::map<int, Bytes>& operands, int ranks) {
  return static_cast<int>(operands.size()) == ranks &&
         std::all_of(operands.begin(), operands.end(), [&](const auto& one) {
           return one.second.size() == operands.begin()->second.size();
         });
}

/// Makes the graph of a stream that is being captured hold a reference to the communicator.
void hold_if_captured(ncclComm_t comm, cudaStream_t stream) {
  if (stream->captured) stream->captured->references.push_back(comm->captured);
}

/// Waits in the stream until all ranks have given their data; then `take` gets it, by rank.
ncclResult_t arrive_and_wait(ncclComm_t comm, cudaStream_t stream, const void* in, size_t bytes,
                             std::function<void(const std::map<int, Bytes>&)> take) {
  if (stand_in().network_fails) *comm->failed = true;
  hold_if_captured(comm, stream);
  stream->put([=, world = comm->world, ranks = comm->ranks, rank = comm->rank,
               aborted = comm->aborted, failed = comm->failed, next = comm->next,
               take = std::move(take)] {
    const int64_t number = (*next)++;
    std::unique_lock lock(world->mutex);
    if (*aborted) return;
    world->operands[number][rank] = copy_operand(in, bytes);
    world->changed.notify_all();
    world->changed.wait(lock, [&] {
      return *aborted || (!*failed && all_have_arrived(world->operands[number], ranks));
    });
    if (!*aborted) take(world->operands[number]);
  });
  return ncclSuccess;
}

void reduce(const std::map<int, Bytes>& operands, size_t skip, size_t count, ftrun::DType dtype,
            ncclRedOp_t op, void* out) {
  std::vector<const void*> inputs;
  for (const auto& [rank, bytes] : operands) inputs.push_back(bytes.data() + skip);
  ftrun::reduce_in_order(dtype, static_cast<ftrun::ReduceOp>(op), inputs.data(),
                         static_cast<int>(inputs.size()), out, static_cast<int64_t>(count));
}

size_t bytes_of(size_t count, ncclDataType_t type) {
  return count * static_cast<size_t>(ftrun::dtype_bytes(dtype_of(type)));
}

ncclResult_t enqueue_or_group(const Connection& connection, cudaStream_t stream,
                              std::function<void()> work,
                              std::vector<std::function<void()>>& list) {
  if (!grouped) {
    const ncclResult_t status = connect({connection});
    if (status == ncclSuccess) stream->put(std::move(work));
    return status;
  }
  group_connections.push_back(connection);
  list.push_back(std::move(work));
  group_stream = stream;
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return arrive_and_wait(comm, stream, in, bytes_of(count, type),
                         [=](const std::map<int, Bytes>& operands) {
                           reduce(operands, 0, count, dtype_of(type), op, out);
                         });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const size_t part = bytes_of(count, type), own = static_cast<size_t>(comm->rank);
  return arrive_and_wait(comm, stream, in, part * static_cast<size_t>(comm->ranks),
                         [=](const std::map<int, Bytes>& operands) {
                           reduce(operands, own * part, count, dtype_of(type), op, out);
                         });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t part = bytes_of(count, type);
  return arrive_and_wait(comm, stream, in, part, [=](const std::map<int, Bytes>& operands) {
    for (const auto& [rank, bytes] : operands)
      std::memcpy(static_cast<std::byte*>(out) + static_cast<size_t>(rank) * part, bytes.data(),
                  part);
  });
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return arrive_and_wait(comm, stream, in, bytes_of(count, type),
                         [=](const std::map<int, Bytes>& operands) {
                           std::memcpy(out, operands.at(root).data(), operands.at(root).size());
                         });
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const size_t bytes = bytes_of(count, type);
  hold_if_captured(comm, stream);
  return enqueue_or_group(
      {comm->world, comm->rank, peer, comm->rank, comm->aborted}, stream,
      [=, world = comm->world, rank = comm->rank] {
        const std::lock_guard lock(world->mutex);
        world->messages[{rank, peer}].push_back(copy_operand(in, bytes));
        world->changed.notify_all();
      },
      group_sends);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const size_t bytes = bytes_of(count, type);
  hold_if_captured(comm, stream);
  return enqueue_or_group(
      {comm->world, peer, comm->rank, comm->rank, comm->aborted}, stream,
      [=, world = comm->world, rank = comm->rank, aborted = comm->aborted] {
        std::unique_lock lock(world->mutex);
        auto& messages = world->messages[{peer, rank}];
        world->changed.wait(lock, [&] {
          return *aborted || (!messages.empty() && messages.front().size() == bytes);
        });
        if (*aborted) return;
        std::memcpy(out, messages.front().data(), bytes);
        messages.pop_front();
      },
      group_receives);
}

ncclResult_t ncclGroupStart() {
  grouped = true;
  return ncclSuccess;
}

/// Ends a group of calls: a rank sends all its messages before it waits for those that it receives.
ncclResult_t ncclGroupEnd() {
  grouped = false;
  const ncclResult_t status = connect(std::exchange(group_connections, {}));
  for (auto* list : {&group_sends, &group_receives}) {
    for (auto& work : *list) group_stream->put(std::move(work));
    list->clear();
  }
  return status;
}
