#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "comm/reduce.h"

struct StandInStream {
  StandInStream() : thread([this] { serve(); }) {}
  ~StandInStream() {
    put(nullptr);
    thread.join();
  }
  void put(std::function<void()> work) {
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
      work();
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
  std::thread thread;
};

struct StandInEvent {
  std::atomic<int> recorded = 0;
  /// The stream's too: an event may be destroyed before the stream has come to it.
  std::shared_ptr<std::atomic<int>> reached = std::make_shared<std::atomic<int>>(0);
};

namespace {

using Bytes = std::vector<std::byte>;

/// Of all communicators of an id. Its mutex guards all there is.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, bool> here;
  std::map<int64_t, std::map<int, Bytes>> given;
  /// By sender and receiver.
  std::map<std::pair<int, int>, std::deque<Bytes>> letters;
};

struct Worlds {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<World>> by_id;
  int next = 0;
  int resets = 0;
};
Worlds& worlds() {
  static Worlds all;
  return all;
}

ftrun::DType dtype_of(ncclDataType_t type) {
  using ftrun::DType;
  constexpr DType kTypes[] = {DType::kI8,  DType::kU8,  DType::kI32, DType::kI64,
                              DType::kF16, DType::kF32, DType::kF64, DType::kBF16};
  return kTypes[type];
}

Bytes copied(const void* from, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(from);
  return {first, first + bytes};
}

thread_local bool grouped = false;
thread_local std::vector<std::function<void()>> group_sends, group_receives;
thread_local cudaStream_t group_stream = nullptr;

}  // namespace

struct StandInComm {
  std::shared_ptr<World> world;
  int ranks = 0;
  int rank = 0;
  int64_t next = 0;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
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

void put_into(cudaStream_t stream, std::function<void()> work) { stream->put(std::move(work)); }

const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the stand-in"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
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
  return cudaSuccess;
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
  stream->put([reached = event->reached, count] { *reached = count; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return *event->reached >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(worlds().mutex);
  std::memset(id->internal, 0xF7, sizeof id->internal);
  std::strcpy(id->internal, std::to_string(++worlds().next).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  std::unique_lock lock(worlds().mutex);
  const int resets = worlds().resets;
  const auto gone_on = [resets] { return worlds().resets != resets; };
  if (rank == stand_in().absent) worlds().changed.wait(lock, gone_on);
  auto& world = worlds().by_id[id.internal];
  if (!world) world = std::make_shared<World>();
  world->here[rank] = true;
  worlds().changed.notify_all();
  worlds().changed.wait(lock, [&] { return static_cast<int>(world->here.size()) == ranks || gone_on(); });
  if (static_cast<int>(world->here.size()) < ranks) return ncclRemoteError;
  *comm = new StandInComm{world, ranks, rank};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->world->mutex);
    *comm->aborted = !stand_in().abort_fails;
    comm->world->changed.notify_all();
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* status) {
  *status = *comm->failed ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t status) {
  return status == ncclRemoteError ? "remote process exited or there was a network error" : "invalid usage";
}
const char* ncclGetLastError(ncclComm_t) { return "socketProgress: Connection closed"; }

namespace {

bool all_have_given(const std::map<int, Bytes>& given, int ranks) {
  return static_cast<int>(given.size()) == ranks && std::all_of(given.begin(), given.end(), [&](const auto& one) {
           return one.second.size() == given.begin()->second.size();
         });
}

/// Stands in the stream until all have given theirs; then `take` gets them by rank.
ncclResult_t meet(ncclComm_t comm, cudaStream_t stream, const void* in, size_t bytes,
                  std::function<void(const std::map<int, Bytes>&)> take) {
  const int64_t number = comm->next++;
  if (stand_in().network_fails) *comm->failed = true;
  stream->put([=, world = comm->world, ranks = comm->ranks, rank = comm->rank, aborted = comm->aborted,
               failed = comm->failed, take = std::move(take)] {
    std::unique_lock lock(world->mutex);
    if (*aborted) return;
    world->given[number][rank] = copied(in, bytes);
    world->changed.notify_all();
    world->changed.wait(lock, [&] { return *aborted || (!*failed && all_have_given(world->given[number], ranks)); });
    if (!*aborted) take(world->given[number]);
  });
  return ncclSuccess;
}

void reduce(const std::map<int, Bytes>& given, size_t skip, size_t count, ftrun::DType dtype, ncclRedOp_t op,
            void* out) {
  std::vector<const void*> inputs;
  for (const auto& [rank, bytes] : given) inputs.push_back(bytes.data() + skip);
  ftrun::reduce_in_order(dtype, static_cast<ftrun::ReduceOp>(op), inputs.data(), static_cast<int>(inputs.size()), out,
                         static_cast<int64_t>(count));
}

size_t bytes_of(size_t count, ncclDataType_t type) {
  return count * static_cast<size_t>(ftrun::dtype_bytes(dtype_of(type)));
}

ncclResult_t group(cudaStream_t stream, std::function<void()> work, std::vector<std::function<void()>>& list) {
  if (!grouped) {
    stream->put(std::move(work));
    return ncclSuccess;
  }
  list.push_back(std::move(work));
  group_stream = stream;
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return meet(comm, stream, in, bytes_of(count, type), [=](const std::map<int, Bytes>& given) {
    reduce(given, 0, count, dtype_of(type), op, out);
  });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  const size_t part = bytes_of(count, type), own = static_cast<size_t>(comm->rank);
  return meet(comm, stream, in, part * static_cast<size_t>(comm->ranks), [=](const std::map<int, Bytes>& given) {
    reduce(given, own * part, count, dtype_of(type), op, out);
  });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t part = bytes_of(count, type);
  return meet(comm, stream, in, part, [=](const std::map<int, Bytes>& given) {
    for (const auto& [rank, bytes] : given)
      std::memcpy(static_cast<std::byte*>(out) + static_cast<size_t>(rank) * part, bytes.data(), part);
  });
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return meet(comm, stream, in, bytes_of(count, type), [=](const std::map<int, Bytes>& given) {
    std::memcpy(out, given.at(root).data(), given.at(root).size());
  });
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const size_t bytes = bytes_of(count, type);
  return group(
      stream,
      [=, world = comm->world, rank = comm->rank] {
        const std::lock_guard lock(world->mutex);
        world->letters[{rank, peer}].push_back(copied(in, bytes));
        world->changed.notify_all();
      },
      group_sends);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = bytes_of(count, type);
  return group(
      stream,
      [=, world = comm->world, rank = comm->rank, aborted = comm->aborted] {
        std::unique_lock lock(world->mutex);
        auto& letters = world->letters[{peer, rank}];
        world->changed.wait(lock, [&] { return *aborted || !letters.empty(); });
        if (*aborted) return;
        std::memcpy(out, letters.front().data(), bytes);
        letters.pop_front();
      },
      group_receives);
}

ncclResult_t ncclGroupStart() {
  grouped = true;
  return ncclSuccess;
}

/// All that a rank sends goes before it waits for what it gets.
ncclResult_t ncclGroupEnd() {
  grouped = false;
  for (auto* list : {&group_sends, &group_receives}) {
    for (auto& work : *list) group_stream->put(std::move(work));
    list->clear();
  }
  return ncclSuccess;
}
