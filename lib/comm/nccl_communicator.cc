#include "comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/library_error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/device_communicator.h"
#include "comm/in_thread.h"

namespace ftrun {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI8:
      return ncclInt8;
    default:
      return ncclUint8;
  }
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMax:
      return ncclMax;
  }
  return ncclSum;
}

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw_library_error(what, "CUDA",
                      cat(::cudaGetErrorName(status), ", ", ::cudaGetErrorString(status)),
                      status == cudaErrorMemoryAllocation);
}

void free_device(void* data, int64_t) {
  ::cudaFree(data);
}

/// Formats the id as hexadecimal digits, because it is sent as a text through the store.
std::string to_hex(const ncclUniqueId& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : id.internal) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

ncclUniqueId from_hex(const std::string& text) {
  ncclUniqueId id{};
  if (text.size() != 2 * sizeof id.internal) bug("the group's first rank sent no NCCL id");
  for (size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

/// Returns NCCL's description of an error, with the last error message of the communicator.
std::string error_text(ncclResult_t status, ncclComm_t comm) {
  const char* const noted = ::ncclGetLastError(comm);
  const std::string last = noted == nullptr ? "" : noted;
  return cat(::ncclGetErrorString(status), last.empty() ? "" : ": ", last);
}

/// Throws RankError if a call of NCCL failed because CUDA failed on this rank; all other errors of
/// NCCL may have other causes than this rank's device.
void check_own_device(ncclResult_t status, ncclComm_t comm, const char* what) {
  if (status != ncclUnhandledCudaError) return;
  const std::string words = error_text(status, comm);
  throw_library_error(what, "NCCL", words, words.find("out of memory") != std::string::npos);
}

/// Sets memory to zero and waits for it, so that later work in any stream finds it zero.
void clear_device(void* memory, size_t bytes) {
  // cudaMemset would run in the legacy stream, for which non-blocking streams do not wait.
  cudaStream_t stream = nullptr;
  check_cuda(::cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  cudaError_t status = ::cudaMemsetAsync(memory, 0, bytes, stream);
  if (status == cudaSuccess) status = ::cudaStreamSynchronize(stream);
  ::cudaStreamDestroy(stream);
  check_cuda(status, "clearing memory");
}

/// barrier_buffer_ has kBarrierBufferBytes: first the number that barriers add up, then at these
/// offsets a byte that is sent and one that is received.
constexpr int64_t kBarrierBufferBytes = 16, kSentByte = 8, kReceivedByte = 12;

/// Sends every other member a byte. The first message between two ranks connects them, which blocks
/// the issuing thread until the peer issues its half; two ranks that both send first would
/// deadlock. A group of calls connects both ways.
ncclResult_t exchange_bytes(const CommBuffer& buffer, int size, int rank, ncclComm_t comm,
                            cudaStream_t stream) {
  ncclResult_t status = ::ncclGroupStart();
  for (int peer = 0; peer < size && status == ncclSuccess; ++peer) {
    if (peer == rank) continue;
    status = ::ncclSend(buffer.as<std::byte>() + kSentByte, 1, ncclUint8, peer, comm, stream);
    if (status == ncclSuccess)
      status = ::ncclRecv(buffer.as<std::byte>() + kReceivedByte, 1, ncclUint8, peer, comm, stream);
  }
  const ncclResult_t ended = ::ncclGroupEnd();
  return status == ncclSuccess ? ended : status;
}

/// NcclCommunicator is a group with its own NCCL communicator. Calls put kernels into the current
/// stream.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(Setup setup, Rendezvous& rendezvous, int device)
      : DeviceCommunicator(std::move(setup)), rendezvous_(rendezvous), device_(device) {
    check_cuda(::cudaSetDevice(device), "setting the CUDA device");
    void* buffer = nullptr;
    check_cuda(::cudaMalloc(&buffer, kBarrierBufferBytes), "allocating device memory");
    barrier_buffer_ = std::make_shared<CommBuffer>(buffer, kBarrierBufferBytes, free_device);
    clear_device(buffer, kBarrierBufferBytes);
    connect();
    start_watchdog();
  }

  ~NcclCommunicator() override {
    stop_watchdog();
    for (const WorkEvents& events : events_) {
      ::cudaEventDestroy(events.begin);
      ::cudaEventDestroy(events.end);
    }
    // A communicator that shutdown() did not close is aborted.
    if (comm_ != nullptr) start_abort(comm_);
  }

  std::string_view backend() const override { return "nccl"; }

  void shutdown() override {
    require_no_captures();
    barrier({"shutdown"});
    stop_watchdog();
    const std::lock_guard lock(comm_mutex_);
    if (comm_ == nullptr) return;
    std::packaged_task<ncclResult_t()> destroy(
        [comm = std::exchange(comm_, nullptr), device = device_] {
          ::cudaSetDevice(device);
          return ::ncclCommDestroy(comm);
        });
    const auto end = std::chrono::steady_clock::now() + setup().timeout;
    const auto should_abandon = [end] { return std::chrono::steady_clock::now() > end; };
    if (!run_in_abandonable_thread(std::move(destroy), std::chrono::milliseconds(100),
                                   should_abandon))
      log_warning(cat("NCCL did not close group ", name(), " within ",
                      human_seconds(std::chrono::duration<double>(setup().timeout).count()),
                      "; no data is lost; the process exits without closing it"));
  }

  /// Ends NCCL's kernels, and with them this rank's waits for its device. NCCL does not notify
  /// members on the same machine, so this rank leaves them a note in the store.
  void abort(const std::string& reason) noexcept override {
    const bool is_first = show_group_aborted();
    end_kernels();
    if (is_first) rendezvous_.post_abort(name(), reason);
  }

 protected:
  void enqueue(const Collective& collective) override {
    const CollectiveRecord& record = collective.record;
    const auto count = static_cast<size_t>(record.count);
    const auto bytes = static_cast<size_t>(payload_bytes(record));
    const ncclDataType_t type = nccl_type(record.dtype);
    call_nccl([&](ncclComm_t comm) {
      switch (record.kind) {
        case CollectiveKind::kAllReduce:
          return ::ncclAllReduce(collective.in, collective.out, count, type, nccl_op(record.op),
                                 comm, cuda_stream());
        case CollectiveKind::kReduceScatter:
          return ::ncclReduceScatter(collective.in, collective.out, count, type, nccl_op(record.op),
                                     comm, cuda_stream());
        case CollectiveKind::kAllGather:
          return ::ncclAllGather(collective.in, collective.out, bytes, ncclUint8, comm,
                                 cuda_stream());
        case CollectiveKind::kBroadcast:
          return ::ncclBroadcast(collective.in, collective.out, bytes, ncclUint8, record.peer, comm,
                                 cuda_stream());
        case CollectiveKind::kSend:
          return ::ncclSend(collective.in, bytes, ncclUint8, record.peer, comm, cuda_stream());
        case CollectiveKind::kReceive:
          return ::ncclRecv(collective.out, bytes, ncclUint8, record.peer, comm, cuda_stream());
        case CollectiveKind::kBarrier:
          return ::ncclAllReduce(barrier_buffer_->data(), barrier_buffer_->data(), 1, ncclFloat32,
                                 ncclSum, comm, cuda_stream());
        case CollectiveKind::kAllToAll:
        case CollectiveKind::kCountedAllToAll:
        case CollectiveKind::kShift:
          break;  // enqueued as exchanges
      }
      bug("unknown collective");
    });
  }

  void enqueue(std::span<const PeerExchange> by_rank) override {
    call_nccl([&](ncclComm_t comm) {
      ncclResult_t status = ::ncclGroupStart();
      for (int peer = 0; peer < size() && status == ncclSuccess; ++peer) {
        const PeerExchange& part = by_rank[static_cast<size_t>(peer)];
        if (part.send_bytes > 0)
          status = ::ncclSend(part.send, static_cast<size_t>(part.send_bytes), ncclUint8, peer,
                              comm, cuda_stream());
        if (part.receive_bytes > 0 && status == ncclSuccess)
          status = ::ncclRecv(part.receive, static_cast<size_t>(part.receive_bytes), ncclUint8,
                              peer, comm, cuda_stream());
      }
      const ncclResult_t ended = ::ncclGroupEnd();
      return status == ncclSuccess ? ended : status;
    });
  }

  /// Waits on the host only for a barrier.
  void complete_collective(Collective& collective) override {
    if (collective.record.kind == CollectiveKind::kBarrier)
      call_or_report_loss(
          [&] { check_cuda(::cudaStreamSynchronize(cuda_stream()), "waiting for the device"); });
    check_peers();
  }

  int64_t record_begin_event() override {
    check_cuda(::cudaSetDevice(device_), "setting the CUDA device");
    const int64_t handle = acquire_events();
    check_cuda(::cudaEventRecord(events_of(handle).begin, cuda_stream()), "recording an event");
    return handle;
  }
  void record_end_event(int64_t handle) override {
    check_cuda(::cudaEventRecord(events_of(handle).end, cuda_stream()), "recording an event");
  }
  bool has_begun(int64_t handle) override { return has_passed(events_of(handle).begin); }
  bool has_ended(int64_t handle) override {
    if (has_passed(events_of(handle).end)) return true;
    const std::unique_lock lock(comm_mutex_, std::try_to_lock);
    ncclResult_t status = ncclSuccess;
    if (lock.owns_lock() && comm_ != nullptr) ::ncclCommGetAsyncError(comm_, &status);
    check_own_device(status, comm_, "a collective");
    if (status != ncclSuccess && status != ncclInProgress)
      throw Error(ExitCode::kPeerLost,
                  cat("NCCL failed in group ", name(), ": ", error_text(status, comm_)),
                  "look at the other ranks' logs; set NCCL_DEBUG=INFO for details");
    return false;
  }
  void release(int64_t handle) override {
    const std::lock_guard lock(events_mutex_);
    free_events_.push_back(handle);
  }
  bool is_peer_lost() override { return rendezvous_.is_any_lost(members(), name()); }

  std::vector<PeerView> view_peers() override {
    return rendezvous_.view_members(members(), name());
  }

  CommBuffer allocate_memory(int64_t bytes) override {
    void* data = nullptr;
    if (::cudaMalloc(&data, static_cast<size_t>(bytes)) != cudaSuccess) {
      ::cudaGetLastError();
      throw Error(ExitCode::kEnvironment,
                  cat("no device memory for a communication buffer of ", human_bytes(bytes)),
                  "use a smaller zero_optimization.reduce_bucket_size or micro-batch");
    }
    CommBuffer memory(data, bytes, free_device);
    clear_device(data, static_cast<size_t>(bytes));
    return memory;
  }

 private:
  struct WorkEvents {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };

  void end_kernels() noexcept {
    ::cudaSetDevice(device_);
    // An NCCL call that hangs keeps the communicator locked. The kernels then cannot be ended, and
    // the watchdog ends the process.
    const std::unique_lock lock(comm_mutex_, std::chrono::seconds(5));
    if (!lock.owns_lock() || comm_ == nullptr) return;
    start_abort(std::exchange(comm_, nullptr));
  }

  /// Aborts in a thread that nobody waits for. ncclCommAbort() first sets the flag that ends NCCL's
  /// kernels; then it waits, possibly forever, for CUDA graphs that hold the communicator's
  /// collectives, and for NCCL's own threads.
  void start_abort(ncclComm_t comm) noexcept {
    try {
      std::thread([comm, device = device_, buffer = barrier_buffer_] {
        ::cudaSetDevice(device);
        ::ncclCommAbort(comm);
      }).detach();
    } catch (const std::exception&) {
      // No thread could be started. The watchdog ends the process if the device does not return.
    }
  }

  cudaStream_t cuda_stream() const { return static_cast<cudaStream_t>(stream()); }

  WorkEvents events_of(int64_t handle) {
    const std::lock_guard lock(events_mutex_);
    return events_[static_cast<size_t>(handle)];
  }

  /// Returns an unused pair of events; creates one if there is none.
  int64_t acquire_events() {
    const std::lock_guard lock(events_mutex_);
    if (free_events_.empty()) {
      WorkEvents events;
      check_cuda(::cudaEventCreateWithFlags(&events.begin, cudaEventDisableTiming),
                 "creating an event");
      check_cuda(::cudaEventCreateWithFlags(&events.end, cudaEventDisableTiming),
                 "creating an event");
      events_.push_back(events);
      return static_cast<int64_t>(events_.size()) - 1;
    }
    const int64_t handle = free_events_.back();
    free_events_.pop_back();
    return handle;
  }

  bool has_passed(cudaEvent_t event) const {
    // The watchdog's thread sets its device, because CUDA would otherwise open the default GPU for
    // it.
    check_cuda(::cudaSetDevice(device_), "setting the CUDA device");
    const cudaError_t status = ::cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
      ::cudaGetLastError();  // resets the status, which later calls would report
      return false;
    }
    check_cuda(status, "querying an event");
    return true;
  }

  template <typename Calls>
  void call_nccl(Calls calls) {
    const std::lock_guard lock(comm_mutex_);
    if (comm_ == nullptr) throw CollectiveFailure{"gave up before", ""};
    const ncclResult_t status = calls(comm_);
    check_own_device(status, comm_, "starting a collective");
    if (status != ncclSuccess)
      throw CollectiveFailure{"could not start", error_text(status, comm_)};
  }

  /// Connects in another thread, because NCCL waits forever for members that do not come, and waits
  /// for that thread up to the time limit. The first sum, and in groups that carry messages the
  /// first bytes, are sent here to test the network before a training step relies on it.
  void connect() {
    const CollectiveRecord record = enter_connecting_state("connecting over NCCL");
    const ncclUniqueId id = exchange_id();
    struct Opened {
      ncclComm_t comm = nullptr;
      cudaError_t cuda = cudaSuccess;
      ncclResult_t status = ncclSuccess;
    };
    std::packaged_task<Opened()> task([id, size = size(), rank = rank(), device = device_,
                                       buffer = barrier_buffer_, label = name(),
                                       messages = setup().carries_messages] {
      Opened opened;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.commName = label.c_str();
      cudaStream_t stream = nullptr;
      opened.cuda = ::cudaSetDevice(device);
      if (opened.cuda == cudaSuccess)
        opened.cuda = ::cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      if (opened.cuda == cudaSuccess)
        opened.status = ::ncclCommInitRankConfig(&opened.comm, size, id, rank, &config);
      if (opened.cuda == cudaSuccess && opened.status == ncclSuccess) {
        opened.status = ::ncclAllReduce(buffer->data(), buffer->data(), 1, ncclFloat32, ncclSum,
                                        opened.comm, stream);
        if (messages && opened.status == ncclSuccess)
          opened.status = exchange_bytes(*buffer, size, rank, opened.comm, stream);
        opened.cuda = ::cudaStreamSynchronize(stream);
      }
      if (stream != nullptr) ::cudaStreamDestroy(stream);
      return opened;
    });
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] { return std::chrono::steady_clock::now() - start; };
    const auto should_abandon = [&] {
      return elapsed() > setup().timeout || (elapsed() > std::chrono::seconds(1) && is_peer_lost());
    };
    const std::optional<Opened> opened =
        run_in_abandonable_thread(std::move(task), std::chrono::milliseconds(100), should_abandon);
    if (!opened) {
      const double seconds = std::chrono::duration<double>(elapsed()).count();
      throw failure_error(record, {cat("waited ", human_seconds(seconds), " in"), ""});
    }
    comm_ = opened->comm;
    check_cuda(opened->cuda, "connecting over NCCL");
    check_own_device(opened->status, comm_, "connecting");
    if (opened->status != ncclSuccess)
      throw Error(ExitCode::kPeerLost,
                  cat("rank ", rendezvous_.rank(), " could not connect group ", name(),
                      " over NCCL: ", error_text(opened->status, comm_)),
                  "set NCCL_DEBUG=INFO for details; NCCL refuses two ranks on one GPU");
    if (board_slot() != nullptr) board_slot()->finish();
  }

  ncclUniqueId exchange_id() {
    ncclUniqueId id{};
    if (rank() == 0) {
      const ncclResult_t status = ::ncclGetUniqueId(&id);
      if (status != ncclSuccess)
        throw Error(ExitCode::kEnvironment,
                    cat("NCCL cannot open group ", name(), ": ", error_text(status, nullptr)),
                    "set NCCL_DEBUG=INFO for details");
    }
    if (size() == 1) return id;
    return from_hex(
        rendezvous_.all_gather_text("nccl/" + name(), rank() == 0 ? to_hex(id) : "", members())[0]);
  }

  Rendezvous& rendezvous_;
  const int device_;
  /// Shared with the connecting thread, which may still use it after this communicator was given
  /// up.
  std::shared_ptr<CommBuffer> barrier_buffer_;
  std::timed_mutex comm_mutex_;
  /// Null after it was aborted or closed.
  ncclComm_t comm_ = nullptr;
  std::mutex events_mutex_;
  std::vector<WorkEvents> events_;
  std::vector<int64_t> free_events_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator::Setup setup,
                                                     Rendezvous& rendezvous, int device) {
  return std::make_unique<NcclCommunicator>(std::move(setup), rendezvous, device);
}

}  // namespace ftrun
