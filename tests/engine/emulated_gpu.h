#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "comm/device_communicator.h"
#include "comm/rendezvous.h"
#include "graph/op.h"
#include "kernels/device.h"

namespace ftrun::testing {

struct EmulatorOptions {
  /// The seed of the random order in which streams advance.
  uint64_t seed = 1;
  int64_t bytes = int64_t{256} << 20;
  /// The maximum number of bytes that may be pinned; requests beyond it are refused.
  int64_t max_pinned_bytes = INT64_MAX;
};

/// EmulatedGpu is a GPU in main memory, for tests of code that uses a GPU. Calls only record work;
/// captured work runs when somebody waits for it. Streams advance in a random order that their
/// events allow: a stream that nobody waits for runs sometimes early, sometimes as late as
/// possible, so that a missing wait shows as a wrong result. Device memory is inaccessible to the
/// host: reading or writing it ends the process. Fresh memory holds NaN patterns. Operations are
/// the CPU's kernels, so results have the same bits as on the CPU, or those of another
/// DeviceKernels object that works on host memory.
class EmulatedGpu final : public DeviceKernels {
 public:
  explicit EmulatedGpu(const EmulatorOptions& options = {},
                       std::unique_ptr<DeviceKernels> operations = nullptr);
  ~EmulatedGpu() override;

  const DeviceInfo& info() const override { return info_; }
  size_t streams() const { return streams_.size(); }
  DeviceMemory memory() const override;
  void bind_thread() override {}
  void* allocate(int64_t bytes) override;
  void free(void* memory) noexcept override;
  void* allocate_pinned(int64_t bytes) override;
  void free_pinned(void* memory) noexcept override;
  void copy(void* to, const void* from, int64_t bytes, DeviceStream stream) override;
  void fill_zero(void* to, int64_t bytes, DeviceStream stream) override;

  DeviceStream create_stream(bool high_priority) override;
  void destroy(DeviceStream stream) noexcept override;
  void synchronize(DeviceStream stream) override;
  DeviceEvent create_event(bool timed, bool host_waits) override;
  void destroy(DeviceEvent event) noexcept override;
  void record(DeviceEvent event, DeviceStream stream) override;
  void wait(DeviceStream stream, DeviceEvent event) override;
  void synchronize(DeviceEvent event) override;
  bool is_done(DeviceEvent event) override;
  double milliseconds(DeviceEvent begin, DeviceEvent end) override;

  void push_range(const char* name) override;
  void pop_range() override;
  void begin_capture(DeviceStream stream) override;
  DeviceGraph end_capture(DeviceStream stream) override;
  void launch(DeviceGraph graph, DeviceStream stream) override;
  void destroy(DeviceGraph graph) noexcept override;

  void prepare(const LayerGraph& graph) override;
  AttentionLibraryUse library_use() const override {
    if (!operations_) return {};
    AttentionLibraryUse use = operations_->library_use();
    use.workspace_bytes = 0;  // the emulated library allocates none on this device
    return use;
  }
  void run_ops(const LayerGraph& graph, std::span<const Op> ops, std::span<void* const> storage,
               const KernelContext& context, DeviceStream stream) override;
  int64_t sum_of_squares_scratch_bytes(int64_t count) const override;
  void sum_of_squares(const void* g, DType dtype, int64_t count, bool accumulate, double* sum,
                      void* scratch, DeviceStream stream) override;
  void optimizer_update(const FlatUpdate& update, const OptimizerConfig& config,
                        const StepScalars* scalars, DeviceStream stream) override;
  void compute_scales(const FlatUpdate& update, const OptimizerConfig& config,
                      const StepScalars* scalars, DeviceStream stream) override;
  void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count,
               DeviceStream stream) override;
  void add_into(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count,
                DeviceStream stream) override;
  void sum_blocks(const void* blocks, int ranks, int64_t stride, DType dtype, int64_t count,
                  void* out, DeviceStream stream) override;

  /// Makes the first elements of the results of all later operations of this kind wrong.
  void corrupt_results_of(OpKind kind) { corrupted_ = kind; }

  /// Enqueues any work in a stream. If `ready` is given, the work runs only when it returns true;
  /// peers bring that about.
  void enqueue(DeviceStream stream, std::function<void()> work, std::function<bool()> ready = {});
  /// Adds a function that lets peers advance while a stream waits for work that is not ready.
  void add_peer_progress(std::function<void()> peers) { peers_.push_back(std::move(peers)); }
  /// Runs one task of the stream or of the stream that it waits for, unless another thread is
  /// running one.
  void advance(DeviceStream stream);

  /// Returns the address at which the device sees this memory. A test may read there once the
  /// device is synchronized; through the address of device memory itself the host cannot.
  std::byte* seen_by_device(const void* address) const;

  /// Returns the names of profiler ranges, in the order in which threads began them.
  std::vector<std::string> ranges() const;

  struct Counters {
    int64_t copies = 0;
    int64_t operations = 0;
    /// The number of streams, events and blocks of memory that were created.
    int64_t created_objects = 0;
    /// The number of times that the host waited for the device.
    int64_t host_waits = 0;
    /// The number of graphs that were launched.
    int64_t launches = 0;
  };
  Counters counters() const;

 private:
  struct Event;
  struct Graph;
  struct Task;
  struct Stream;
  enum class Order { kLazy, kRandom, kEager };

  bool is_pinned(const void* address, int64_t bytes) const;
  bool is_device(const void* address) const;
  bool can_run(const Stream& stream) const;
  void step(Stream& stream);
  Stream* choose_stream(Stream& target, Order order);
  Stream* next_stream_for(Stream& target);
  void step_for(Stream& target, Order order);
  void run_until_empty(Stream& stream);
  void run_some();
  bool is_captured(const Stream& stream) const;
  template <typename T>
  T* device_view(T* address) const {
    return address == nullptr ? nullptr : reinterpret_cast<T*>(seen_by_device(address));
  }
  FlatUpdate device_view(const FlatUpdate& update) const;

  DeviceInfo info_;
  EmulatorOptions options_;
  std::unique_ptr<DeviceKernels> operations_;
  std::optional<OpKind> corrupted_;
  DeviceStream operations_stream_ = nullptr;
  /// The memory is mapped twice: `shown_` for the host, which cannot access it, and `real_` for the
  /// device.
  std::byte* shown_ = nullptr;
  std::byte* real_ = nullptr;
  std::map<int64_t, int64_t> used_;
  std::map<std::byte*, int64_t> pinned_;
  std::set<Stream*> streams_;
  std::set<Event*> events_;
  std::vector<std::function<void()>> peers_;
  mutable std::recursive_mutex mutex_;
  std::mt19937_64 random_;
  /// The graph that is being captured (null: none), and all captured graphs.
  Graph* captured_ = nullptr;
  std::set<Graph*> graphs_;
  Counters counters_;
  std::vector<std::string> ranges_;
  /// The number of ranges, of all threads, that have begun and not ended.
  int open_ranges_ = 0;
};

/// EmulatedSums selects the order in which a transport adds: in rank order, as hosts do, or as NCCL
/// may, in another order and rounded at each hop.
enum class EmulatedSums { kRankOrder, kHopByHop };

/// EmulatedLinks is where the ranks of a group leave their operands of collectives. It must outlive
/// the work of their GPUs.
class EmulatedLinks {
 public:
  explicit EmulatedLinks(int ranks, EmulatedSums sums = EmulatedSums::kRankOrder)
      : sums_(sums), peers_(static_cast<size_t>(ranks)) {}

  void join(int rank, EmulatedGpu& gpu, DeviceStream stream);
  void leave(int rank);
  /// OperandParts holds a rank's operand of one collective: one part for each receiving rank, or a
  /// single part for all. Collectives are numbered in the order of their streams.
  using OperandParts = std::vector<std::vector<std::byte>>;
  void add_operand(int rank, int64_t number, const CollectiveRecord& record, OperandParts operand);
  /// Returns whether all ranks have added their operands.
  bool is_complete(int64_t number) const;
  /// Returns a rank's result, and removes it.
  std::vector<std::byte> remove_result(int rank, int64_t number);
  /// Returns the parts of an exchange, by the rank that sent them, and removes them.
  OperandParts remove_exchange(int rank, int64_t number);
  /// Lets the devices of all ranks advance, as real devices do without their hosts.
  void advance();

 private:
  struct Peer {
    EmulatedGpu* gpu = nullptr;
    DeviceStream stream = nullptr;
    /// The number of threads in which advance() lets the device advance.
    int advancing = 0;
  };
  struct PendingCollective {
    CollectiveRecord record;
    std::map<int, OperandParts> operands;
    size_t removed_results = 0;
  };
  void reduce(const PendingCollective& pending, int64_t first,
              std::vector<std::byte>& result) const;
  void count_removal(int64_t number);

  const EmulatedSums sums_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<Peer> peers_;
  std::map<int64_t, PendingCollective> pending_;
};

/// EmulatedNetwork holds the links of all groups of a mesh; it creates them on first use.
class EmulatedNetwork {
 public:
  EmulatedLinks& of(const Communicator& group) {
    const std::lock_guard lock(mutex_);
    auto& links = links_[{group.name(), group.members()}];
    if (!links) links = std::make_unique<EmulatedLinks>(group.size());
    return *links;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, std::unique_ptr<EmulatedLinks>> links_;
};

struct EmulatedNcclOptions {
  SumBlocks sum_blocks = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  /// The rendezvous that knows the state of peers; null if a test needs no such knowledge.
  Rendezvous* rendezvous = nullptr;
  /// The text that is appended to the name of the hosts' group.
  std::string suffix = " of GPUs";
};

/// EmulatedNccl runs collectives among emulated GPUs, in the caller's stream as NCCL does: each
/// collective waits there until the streams of all ranks have reached it.
class EmulatedNccl : public DeviceCommunicator {
 public:
  /// Borrows all arguments; `like` supplies the name, the members and the rank.
  EmulatedNccl(EmulatedGpu& gpu, EmulatedLinks& links, const Communicator& like,
               const EmulatedNcclOptions& options = {});
  ~EmulatedNccl() override;

  std::string_view backend() const override { return "emulated"; }
  /// Requires that no captured graphs are left: NCCL would wait for them forever.
  void shutdown() override { require_no_captures(); }
  void use_stream(void* stream) override;
  void abort(const std::string&) noexcept override {
    show_group_aborted();
    *aborted_ = true;
  }

 protected:
  using DeviceCommunicator::PeerExchange;
  void enqueue(const Collective& collective) override;
  void enqueue(std::span<const PeerExchange> by_rank) override;
  void transfer(const Collective& collective);
  int64_t record_begin_event() override;
  void record_end_event(int64_t handle) override;
  bool has_begun(int64_t handle) override { return mark(handle).begun; }
  bool has_ended(int64_t handle) override { return mark(handle).ended; }
  void release(int64_t) override {}
  bool is_peer_lost() override { return false; }
  CommBuffer allocate_memory(int64_t bytes) override;
  std::vector<PeerView> view_peers() override;

 private:
  struct Mark {
    std::atomic<bool> begun = false;
    std::atomic<bool> ended = false;
  };
  Mark& mark(int64_t handle);
  DeviceStream caller() const { return static_cast<DeviceStream>(stream()); }
  std::function<bool()> arrival_condition() const;

  EmulatedGpu& gpu_;
  EmulatedLinks& links_;
  Rendezvous* const rendezvous_;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex marks_mutex_;
  std::deque<Mark> marks_;
  /// The number of collectives that the device has reached. It is counted when the device runs
  /// them, because captured ones run more than once.
  std::shared_ptr<int64_t> reached_collectives_ = std::make_shared<int64_t>(0);
};

}  // namespace ftrun::testing
