#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "cluster/collective_record.h"
#include "cluster/peers.h"
#include "cluster/progress_board.h"
#include "comm/collective_failure.h"

namespace ftrun {

/// CommStats counts what one communicator has moved, for each kind of collective. Bytes are the
/// minimum that an algorithm must transfer (sent_bytes()): for an all-reduce of B bytes among N
/// ranks, each rank sends and receives 2 B (N-1)/N.
struct CommStats {
  struct KindStats {
    int64_t calls = 0;
    int64_t bytes_sent = 0;
    int64_t bytes_received = 0;
    /// Seconds spent inside wait().
    double seconds = 0;
  };
  std::array<KindStats, kCollectiveKinds> by_kind;

  KindStats total() const;
};

/// CommBuffer is owned memory for collectives, which the communicator's backend frees. On the
/// shared-memory backend other ranks read it in place, which saves two copies. It is aligned to
/// 4096 bytes and initially zero. Must not outlive its communicator.
class CommBuffer {
 public:
  CommBuffer() = default;
  CommBuffer(void* data, int64_t bytes, void (*free)(void*, int64_t))
      : data_(data, FreeMemory{free, bytes}), bytes_(bytes) {}

  template <typename T = std::byte>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  void* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct FreeMemory {
    void (*free)(void*, int64_t);
    int64_t bytes;
    void operator()(void* data) const { free(data, bytes); }
  };
  std::unique_ptr<void, FreeMemory> data_;
  int64_t bytes_ = 0;
};

/// Collective is one collective as backends see it.
struct Collective {
  CollectiveRecord record;
  const void* in = nullptr;
  void* out = nullptr;
  /// The backend's own handle, set by begin_collective().
  int64_t handle = 0;
  /// Elements of a counted all-to-all, by rank of the group: `sends` holds how many this rank sends
  /// to each rank, `receives` how many it receives from each rank.
  std::vector<int64_t> sends = {};
  std::vector<int64_t> receives = {};
};

/// BytesByRank holds the bytes that a rank sends to each rank of the group, itself included, and
/// receives from each, in a collective that moves blocks without adding them (is_exchange()).
/// Blocks lie in the order of ranks, without gaps.
struct BytesByRank {
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
};
/// Returns the bytes of rank `rank` in a group of `size` ranks. For a counted all-to-all, `rank`
/// must be the rank whose counts `collective` holds.
BytesByRank bytes_by_rank(const Collective& collective, int rank, int size);

/// BlockSum describes the sum of the blocks of a group's ranks, side by side in device memory:
/// out[i] = blocks[i] + blocks[stride + i] + ..., in rank order. 16-bit floats are added in fp32
/// and rounded once.
struct BlockSum {
  const void* blocks = nullptr;
  int ranks = 0;
  /// Elements from the beginning of a rank's block to that of the next rank's block.
  int64_t stride = 0;
  /// F64, F32, BF16 or F16.
  DType dtype = DType::kF32;
  int64_t count = 0;
  void* out = nullptr;
  /// The device's stream, which the sum is put into.
  void* stream = nullptr;
};
using SumBlocks = std::function<void(const BlockSum&)>;

class Communicator;

/// Work is a handle of a collective in progress: a small value. Call wait() exactly once; if it is
/// dropped, the wait of a later collective finishes the work. Must not outlive its communicator.
class [[nodiscard]] Work {
 public:
  Work() = default;
  Work(Communicator* owner, int64_t id) : owner_(owner), id_(id) {}
  /// Blocks until this rank's output is final and its input may be changed. Throws Error(kPeerLost)
  /// after the communicator's timeout or if a peer is lost.
  void wait();

 private:
  Communicator* owner_ = nullptr;
  int64_t id_ = 0;
};

/// Communicator runs collectives among a group of ranks. Counts are elements; buffers are in main
/// memory (in device memory on NCCL). Collective: every rank of the group issues the same calls in
/// the same order, from one thread at a time. On CPUs a call only announces the collective; wait()
/// does the work, earlier collectives first. So a communicator that should overlap with computation
/// gets a thread of its own. On CPUs, and on GPUs where Setup::sum_blocks is given, sums add in
/// rank order, element by element: results do not depend on how data is divided into calls.
class Communicator {
 public:
  struct Setup {
    std::string name;
    /// Global ranks of the members, ascending; this rank is members[rank].
    std::vector<int> members;
    int rank = 0;
    std::chrono::milliseconds timeout = std::chrono::minutes(10);
    /// The board that shows this rank's activity to its peers and to the crash handler; may be
    /// null.
    ProgressBoard* board = nullptr;
    /// Returns what is known now of other ranks (global), for explaining a failure; may be empty.
    std::function<std::vector<PeerView>(const std::vector<int>&)> view_ranks = {};
    /// Adds in rank order on GPUs (comm/device_communicator.h); null leaves sums to the transport.
    SumBlocks sum_blocks = {};
    /// Says whether members of a group of GPUs send each other messages. Their connections are then
    /// made when the group is opened.
    bool carries_messages = false;
    /// The longest time after an abort until a thread that waits for a GPU must have called
    /// check_peers(); after it the process ends.
    std::chrono::milliseconds abort_timeout = std::chrono::seconds(30);
  };

  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return setup_.rank; }
  int size() const { return static_cast<int>(setup_.members.size()); }
  const std::string& name() const { return setup_.name; }
  const std::vector<int>& members() const { return setup_.members; }
  virtual std::string_view backend() const = 0;

  /// Reduces `count` elements over the ranks with `op`, in place. `dtype` is F64, F32, BF16,
  /// F16, I64, I32, I8 or U8; 16-bit floats are added in F32.
  Work all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, CallSite site);
  /// Reduces size() blocks of `count` in `in`; block rank() of the result goes to `out`, which may
  /// be that block of `in`.
  Work reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                      CallSite site);
  /// Gathers size() blocks of `count` into `out`; `in` may be block rank() of `out`.
  Work all_gather(const void* in, void* out, int64_t count, DType dtype, CallSite site);
  /// Exchanges blocks: `in` and `out` hold size() blocks of `count` elements and must not overlap;
  /// block i of `out` is block rank() of rank i's `in`.
  Work all_to_all(const void* in, void* out, int64_t count, DType dtype, CallSite site);
  /// Exchanges blocks of any length: `sends[i]` elements go to rank i, whose receives[rank()] must
  /// be the same number. `in` holds `capacity` elements, a number that is equal on all ranks, and
  /// `out` holds the received ones. Memory after the blocks does not change.
  Work counted_all_to_all(const void* in, std::span<const int64_t> sends, void* out,
                          std::span<const int64_t> receives, int64_t capacity, DType dtype,
                          CallSite site);
  /// Sends rank i's `in` to `out` of rank (i + by) mod size(); `by` is in [0, size()). `in` and
  /// `out` must not overlap.
  Work shift(const void* in, void* out, int64_t count, DType dtype, int by, CallSite site);
  Work broadcast(void* data, int64_t count, DType dtype, int root, CallSite site);
  Work send(const void* data, int64_t count, DType dtype, int to, CallSite site);
  Work receive(void* data, int64_t count, DType dtype, int from, CallSite site);
  void barrier(CallSite site);

  /// Makes `stream` (a cudaStream_t) the calling thread's stream: collectives run after the work in
  /// it, and wait() makes this stream wait for the collective. Does nothing on CPUs.
  virtual void use_stream(void* stream) { static_cast<void>(stream); }

  /// Returns whether a device may capture and replay the work that collectives put into its streams
  /// (LaneDevice::begin_capture). Calls between begin_capture() and end_capture() are not counted
  /// and are not waited for; begin_replay() and end_replay(), around each replay, count the
  /// captured calls.
  virtual bool can_capture() const { return false; }
  void begin_capture();
  std::vector<CollectiveRecord> end_capture();
  void begin_replay(std::span<CollectiveRecord> captured);
  void end_replay();
  /// Reports that the device has destroyed `count` captured graphs. A transport may wait, without
  /// end, for graphs that hold its collectives: all are destroyed before shutdown().
  void release_captures(int64_t count) { unreleased_captures_ -= count; }

  CommBuffer allocate(int64_t bytes);
  const CommStats& stats() const { return stats_; }
  /// Returns the bytes that the transport was observed to transfer for this rank since the group
  /// was opened; each transfer is counted on one of its two ranks. Over shared memory these are the
  /// bytes that this rank copied, or read and added, from and to its peers' memory; over sockets,
  /// the bytes that the kernel reports as received. Unlike stats(), the number does not depend on
  /// which collectives were called. Returns nothing if the backend cannot observe it. Must not be
  /// called while a collective runs.
  virtual std::optional<int64_t> transported_bytes() const { return std::nullopt; }
  /// Returns an upper bound on the bytes that the backend allocates while collectives run, without
  /// its callers' buffers and the peers' memory that it maps.
  virtual int64_t working_bytes() const { return 0; }
  /// Sets the limit of every later wait.
  virtual void set_timeout(std::chrono::milliseconds timeout) { setup_.timeout = timeout; }
  /// Throws Error(kPeerLost) if a collective among GPUs, whose wait() does not wait on the host,
  /// has failed or a peer is lost. Any thread. Call it after a wait for the device, before the
  /// results are read.
  virtual void check_peers() {}

  /// Collective: waits until every rank is done with this communicator. No calls after it.
  virtual void shutdown() {}
  /// Releases the threads of this rank that wait in the group, and reports to peers, if the backend
  /// can, that this rank aborts the group, so that they fail immediately. Any thread, any time.
  virtual void abort(const std::string& reason) noexcept { static_cast<void>(reason); }

 protected:
  explicit Communicator(Setup setup);

  bool is_capturing() const { return capture_.has_value(); }
  /// Throws Error(kBug) while the device holds captured graphs of this communicator's collectives;
  /// for shutdown().
  void require_no_captures() const;
  /// Begins a replay of several collectives, the first of which is `first`; on_replay_end() ends
  /// it.
  virtual void on_replay_begin(const CollectiveRecord& first) { static_cast<void>(first); }
  virtual void on_replay_end() {}

  /// Starts the collective if the backend can; must not block for long.
  virtual void begin_collective(Collective& collective) { static_cast<void>(collective); }
  /// Runs the collective or waits for it; throws CollectiveFailure, or an Error.
  virtual void complete_collective(Collective& collective) = 0;
  /// Returns what is known of the members now, by rank in the group.
  virtual std::vector<PeerView> view_peers() = 0;
  virtual CommBuffer allocate_memory(int64_t bytes);
  /// Returns whether a group of one rank copies between buffers in main memory instead of calling
  /// the backend.
  virtual bool copies_when_alone() const { return size() == 1; }
  /// Returns whether a device runs collectives while the host continues: the backend then decides
  /// what the board shows.
  virtual bool runs_on_device() const { return false; }

  /// Makes the Error(kBug) for ranks whose calls differ. `by_rank` holds the calls by rank in the
  /// group. For backends that compare calls.
  Error mismatch_error(const std::vector<CollectiveRecord>& by_rank) const;
  /// Throws Error(kBug) if rank `from` does not send as many elements as `collective`, a counted
  /// all-to-all, receives from it.
  void check_received_count(const Collective& collective, int from, int64_t sent_count) const;
  /// Throws Error(kBug) if the sender's message differs from the one that this rank wants to
  /// receive.
  void check_message_matches(const CollectiveRecord& sent, const CollectiveRecord& expected) const;
  /// Makes the error that is thrown for a failure, with what is known of the peers. May block for
  /// two heartbeats. Any thread.
  Error failure_error(const CollectiveRecord& record, const CollectiveFailure& failure);
  /// Aborts the group and makes the error of the failure that caused this. After a wait that timed
  /// out, the states of the peers are read first, because aborting releases the peers, which then
  /// continue.
  Error abort_with_error(const CollectiveRecord& record, const CollectiveFailure& failure);
  /// Shows on the board that the group is connecting; returns the record to name in the error if
  /// this fails.
  CollectiveRecord enter_connecting_state(std::string_view how);
  const Setup& setup() const { return setup_; }
  ProgressBoard::CommunicatorSlot* board_slot() const { return board_slot_; }

 private:
  friend class Work;
  struct PendingCollective {
    int64_t id;
    Collective collective;
  };

  Work issue(CollectiveKind kind, const void* in, void* out, int64_t count, DType dtype,
             ReduceOp op, int peer, CallSite site);
  Work issue(Collective collective, CallSite site);
  void wait_for(int64_t id);
  void finish_pending(size_t index);
  bool must_finish_before(const PendingCollective& earlier, const PendingCollective& target) const;
  void check_arguments(const Collective& collective) const;
  void check_counts(const Collective& collective) const;
  void record_time(const Collective& collective, double seconds);
  int64_t next_sequence_number(const CollectiveRecord& record);
  template <typename Calls>
  void call_or_abort(const CollectiveRecord& record, Calls calls);
  void show_aborted(const CollectiveRecord& record);

  Setup setup_;
  ProgressBoard::CommunicatorSlot* board_slot_ = nullptr;
  CommStats stats_;
  std::vector<PendingCollective> pending_;
  std::vector<int64_t> send_sequences_,
      receive_sequences_;  // sequence of sends and receives, per peer
  int64_t sequence_ = 0;
  int64_t next_id_ = 1;
  /// CapturedCalls holds the calls captured so far, and the sequence numbers before the capture.
  struct CapturedCalls {
    std::vector<CollectiveRecord> records;
    std::vector<int64_t> send_sequences, receive_sequences;
    int64_t sequence = 0;
  };
  std::optional<CapturedCalls> capture_;
  bool is_replaying_ = false;
  /// Captured graphs that were made and not released.
  int64_t unreleased_captures_ = 0;
  std::string failure_reason_;  // why no more calls are possible; "" while they are
};

/// Returns whether all_reduce and reduce_scatter accept the type.
bool is_reducible(DType dtype);

}  // namespace ftrun
