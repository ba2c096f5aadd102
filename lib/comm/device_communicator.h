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
#include "comm/collective_watchdog.h"
#include "comm/communicator.h"

namespace ftrun {

/// DeviceCommunicator runs collectives on device memory. begin_collective() puts a collective into
/// the stream of use_stream(), after the stream's earlier work, and the host continues. Later work
/// in that stream runs after the collective, so wait() has nothing to do. A watchdog
/// (comm/collective_watchdog.h) notices a lost peer: the next call throws the error, and so does
/// check_peers(), which must be called after a wait for the device and before the results are read.
/// If a wait for the device does not return, the process ends with the same message.
///
/// Sums: if Setup::sum_blocks is given, sums of floating-point numbers are added in rank order,
/// 16-bit floats in fp32, as on CPUs, regardless of the arithmetic of the transport. Ranks exchange
/// the parts, and each adds up its own part. If the collective is an all-reduce, a second exchange
/// gathers the sums. As many bytes are sent as by a ring. In addition the data is written to and
/// read from device memory once more, and kScratchBytes of it are needed.
class DeviceCommunicator : public Communicator, protected WatchedCommunicator {
 public:
  /// Bytes of a group's scratch memory for the parts of ordered sums that are being exchanged;
  /// larger sums are computed piece by piece.
  static constexpr int64_t kScratchBytes = int64_t{32} << 20;
  /// The largest sum for which every rank receives all ranks' numbers and adds them up itself,
  /// which needs one exchange instead of two.
  static constexpr int64_t kMaxOneExchangeBytes = int64_t{64} << 10;

  ~DeviceCommunicator() override;

  void use_stream(void* stream) override { stream_ = stream; }
  void check_peers() override;
  bool can_capture() const override { return true; }
  void set_timeout(std::chrono::milliseconds timeout) override;

 protected:
  explicit DeviceCommunicator(Setup setup);

  bool copies_when_alone() const final { return false; }
  bool runs_on_device() const final { return true; }
  void begin_collective(Collective& collective) final;
  void on_replay_begin(const CollectiveRecord& first) final;
  void on_replay_end() final;
  void complete_collective(Collective& collective) override;

  /// PeerExchange is what a rank sends to another rank and receives from it: bytes at any address.
  struct PeerExchange {
    const std::byte* send = nullptr;
    int64_t send_bytes = 0;
    std::byte* receive = nullptr;
    int64_t receive_bytes = 0;
  };

  // The backend implements the following functions. Those that put work into stream() throw
  // CollectiveFailure if that fails.
  /// Enqueues any collective for which is_exchange() is false.
  virtual void enqueue(const Collective& collective) = 0;
  /// Enqueues the exchanges, by rank in the group; a rank's exchange with itself is a copy.
  virtual void enqueue(std::span<const PeerExchange> by_rank) = 0;
  /// Records an event in stream() before a collective, and returns its handle for the functions
  /// below; record_end_event() records one after it.
  virtual int64_t record_begin_event() = 0;
  virtual void record_end_event(int64_t handle) = 0;
  bool has_begun(int64_t handle) override = 0;
  bool has_ended(int64_t handle) override = 0;
  void release(int64_t handle) override = 0;
  bool is_peer_lost() override = 0;
  /// Shows on the board that this rank has aborted the group, even if the device still runs work;
  /// called before abort() ends the device's work. Returns false if that was shown before.
  bool show_group_aborted() noexcept;

  void* stream() const { return stream_; }
  /// Starts the watchdog once the backend is open. The backend's destructor calls
  /// stop_watchdog().
  void start_watchdog();
  void stop_watchdog();
  /// Runs `calls` and explains their failure. If a collective was aborted meanwhile, its error is
  /// thrown instead; a failure of this rank's device is thrown unchanged.
  template <typename Calls>
  void call_or_report_loss(Calls calls) {
    try {
      calls();
    } catch (const RankError&) {
      throw;
    } catch (...) {
      check_peers();
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
  void publish_loss(const Failed& error);
  void wait_until_checked_or_exit(const FailureReport& report);
  void issue_watched(const Collective& collective);
  void move_blocks(const Collective& collective);
  void enqueue_by_kind(const Collective& collective);
  bool adds_in_order(const CollectiveRecord& record) const;
  std::byte* scratch();
  void all_reduce_in_order(const Collective& collective);
  void reduce_small(const Collective& collective);
  void reduce_window(const Collective& collective, int64_t first, int64_t part);
  void reduce_scatter_in_order(const Collective& collective);
  void add_blocks(const std::byte* blocks, int64_t stride, const CollectiveRecord& record,
                  int64_t count, void* out);

  void* stream_ = nullptr;
  int64_t replay_handle_ = 0;
  CommBuffer scratch_;
  std::vector<PeerExchange> exchanges_;
  std::unique_ptr<CollectiveWatchdog> watchdog_;
  std::mutex shown_mutex_;
  bool has_aborted_ = false;
  std::mutex lost_mutex_;
  std::condition_variable lost_changed_;
  /// Says whether a peer is lost; loss_error_ follows once it is known which.
  bool loss_noticed_ = false;
  /// An Error, or the RankError of this rank's device.
  std::exception_ptr loss_error_;
  bool loss_was_checked_ = false;
};

}  // namespace ftrun
