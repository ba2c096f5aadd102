#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/rank_error.h"
#include "cluster/failure_report.h"
#include "comm/collective_watch.h"
#include "comm/communicator.h"

namespace ftrun {

/// DeviceCommunicator runs collectives of device memory: begin() puts them into the stream of
/// use_stream(), after its earlier work, and the host continues; later work in that stream finds
/// them done, so wait() has nothing to do. A watch (comm/collective_watch.h) notices a peer that is
/// lost: the next call throws the error, and so does check(), which must be called after a wait for
/// the device, before the results are read. Where the device does not come back to whoever waits
/// for it, the process ends with the same message.
///
/// Sums: where Setup::sum_blocks is given, sums of floating-point numbers add in rank order, 16
/// bits in fp32, as on hosts, whatever the transport would do: ranks exchange the parts, each adds
/// up its own, and an all-reduce gathers them again. The bytes on the wire are those of a ring; on
/// top come one more write and read of the data in device memory and kScratchBytes of it.
class DeviceCommunicator : public Communicator, protected WatchedCollectives {
 public:
  /// Bytes of a group's scratch for parts of ordered sums on their way; larger sums are done piece
  /// by piece.
  static constexpr int64_t kScratchBytes = int64_t{32} << 20;
  /// The largest sum for which every rank receives all ranks' numbers and adds them up itself: one
  /// exchange instead of two.
  static constexpr int64_t kSmallBytes = int64_t{64} << 10;

  ~DeviceCommunicator() override;

  void use_stream(void* stream) override { stream_ = stream; }
  void check() override;
  bool can_record() const override { return true; }
  void set_timeout(std::chrono::milliseconds timeout) override;

 protected:
  explicit DeviceCommunicator(Setup setup);

  bool copies_alone() const final { return false; }
  bool device_runs() const final { return true; }
  void begin(Collective& collective) final;
  void on_replay_begin(const CollectiveRecord& first) final;
  void on_replay_end() final;
  void complete(Collective& collective) override;

  /// PeerExchange is what a rank sends to another one and receives from it, bytes at any address.
  struct PeerExchange {
    const std::byte* send = nullptr;
    int64_t send_bytes = 0;
    std::byte* receive = nullptr;
    int64_t receive_bytes = 0;
  };

  // The back end. All of these put work into stream(), and throw CollectiveFailure where that
  // fails.
  /// Enqueues any collective except those of which moves_blocks() is true.
  virtual void enqueue(const Collective& collective) = 0;
  /// Enqueues the exchanges, by rank in the group; what a rank sends itself is copied.
  virtual void enqueue(std::span<const PeerExchange> by_rank) = 0;
  /// Puts a mark before a collective, and mark_end() one after it: a handle for the three below.
  virtual int64_t mark_begin() = 0;
  virtual void mark_end(int64_t handle) = 0;
  bool has_begun(int64_t handle) override = 0;
  bool has_ended(int64_t handle) override = 0;
  void release(int64_t handle) override = 0;
  bool peer_lost() override = 0;
  /// Shows on the board that this rank has given up, before abort() frees the device, whatever the
  /// device still runs. Returns false where it had before.
  bool show_given_up() noexcept;

  void* stream() const { return stream_; }
  /// Starts the watch once the back end is open; the back end stops it before it is destroyed.
  void start_watch();
  void stop_watch();
  /// Makes calls and explains their failures: a failure that follows from a collective that was
  /// given up meanwhile is reported as that one, a failure of this rank's device as it is.
  template <typename Calls>
  void call_or_report_loss(Calls calls) {
    try {
      calls();
    } catch (const RankError&) {
      throw;
    } catch (...) {
      check();
      throw;
    }
  }

 private:
  void on_begin(const CollectiveRecord& record) final;
  void on_end() final;
  void on_peer_lost(const CollectiveRecord& record, const CollectiveFailure& failure) final;
  void on_device_failed(const CollectiveRecord& record, const RankError& error) final;
  int own_global_rank() const { return members()[static_cast<size_t>(rank())]; }
  void mark_group_lost();
  template <typename Failed>
  void show_lost(const Failed& error);
  void wait_until_checked_or_exit(const FailureReport& report);
  void issue_watched(const Collective& collective);
  void move_blocks(const Collective& collective);
  void run(const Collective& collective);
  bool adds_in_order(const CollectiveRecord& record) const;
  std::byte* scratch();
  void all_reduce_in_order(const Collective& collective);
  void reduce_small(const Collective& collective);
  void reduce_window(const Collective& collective, int64_t first, int64_t part);
  void reduce_scatter_in_order(const Collective& collective);
  void add_blocks(const std::byte* blocks, int64_t stride, const CollectiveRecord& record,
                  int64_t count, void* out);

  void* stream_ = nullptr;
  int64_t replay_mark_ = 0;
  CommBuffer scratch_;
  std::vector<PeerExchange> exchanges_;
  std::unique_ptr<CollectiveWatch> watch_;
  std::mutex shown_mutex_;
  bool gave_up_ = false;
  std::mutex lost_mutex_;
  std::condition_variable lost_changed_;
  /// A rank is missing; the error follows once it is known which.
  bool losing_ = false;
  /// An Error, or this device's RankError.
  std::exception_ptr lost_;
  bool asked_ = false;
};

}  // namespace ftrun
