#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/device_communicator.h"
#include "engine/gpu.h"

namespace ftrun::testing {

/// Mailbox is where ranks, which are threads of this process, leave messages for each other.
class Mailbox {
 public:
  /// Address names the group, the sender and the receiver of a message.
  struct Address {
    std::string group;
    int from = 0;
    int to = 0;
    auto operator<=>(const Address&) const = default;
  };
  void post(const Address& address, std::vector<std::byte> message);
  /// Returns the oldest message that was not received yet. Throws an Error when none arrives in
  /// time.
  std::vector<std::byte> take(const Address& address);

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<Address, std::deque<std::vector<std::byte>>> waiting_;
};

/// StagedGroup runs collectives of device memory through host memory. Each call waits for the
/// device, so ranks may share one GPU, which NCCL does not allow. A send is complete when the
/// message lies in the mailbox. The device adds the ranks' values in rank order.
class StagedGroup final : public DeviceCommunicator {
 public:
  /// Borrows all arguments; `like` supplies the name, the members and the rank.
  StagedGroup(Gpu& gpu, Mailbox& mailbox, const Communicator& like);
  ~StagedGroup() override;

  std::string_view backend() const override { return "staged"; }
  void shutdown() override {}
  void abort(const std::string&) noexcept override { show_group_aborted(); }

 protected:
  void enqueue(const Collective& collective) override;
  void enqueue(std::span<const PeerExchange> by_rank) override;
  int64_t record_begin_event() override { return 0; }
  void record_end_event(int64_t) override {}
  bool has_begun(int64_t) override { return true; }
  bool has_ended(int64_t) override { return true; }
  void release(int64_t) override {}
  bool is_peer_lost() override { return false; }
  CommBuffer allocate_memory(int64_t bytes) override;
  std::vector<PeerView> view_peers() override;

 private:
  DeviceStream here() const { return static_cast<DeviceStream>(stream()); }
  void send(const void* data, int64_t bytes, int peer);
  void receive(void* data, int peer);

  Gpu& gpu_;
  Mailbox& mailbox_;
  const std::string key_;
  std::vector<GpuBlock> blocks_;
};

}  // namespace ftrun::testing
