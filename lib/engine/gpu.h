#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/device.h"
#include "program/program.h"

namespace ftrun {

/// GpuOptions holds the options with which a rank uses its GPU.
struct GpuOptions {
  /// Says whether host memory for copies is pinned. If false, it is pageable, and a copy blocks its
  /// lane.
  bool pin_memory = true;
  /// Says whether the device times of all instructions are measured.
  bool timed = false;
  /// Says whether programs whose work is all on the device are captured once, and from then on
  /// replayed as a whole.
  bool step_graph = false;
};

/// Gpu is the GPU of a rank: its kernels, a stream for each lane, which all programs share, and
/// copies between its memory and host code. It must outlive all memory allocated through it.
class Gpu {
 public:
  explicit Gpu(std::unique_ptr<DeviceKernels> kernels, const GpuOptions& options = {});
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  DeviceKernels& kernels() const { return *kernels_; }
  const DeviceInfo& info() const { return kernels_->info(); }
  const GpuOptions& options() const { return options_; }
  /// Makes the stream of a lane if it does not exist; the compute lane has one from the start. Must
  /// not be called while lanes run.
  void open_lane(Lane lane);
  /// Returns the stream of an open lane.
  DeviceStream stream(Lane lane) const;

  /// Makes all later work of any lane wait for all earlier work of every lane. Must not be called
  /// while lanes run.
  void add_lane_barrier();
  /// Begins a capture on the compute lane's stream that includes the streams of all lanes;
  /// end_capture() ends it there. Must not be called while lanes run.
  void begin_capture();
  DeviceGraph end_capture();
  /// Waits for all work of all lanes. Must not be called while lanes run.
  void drain();

  /// Copies between device memory and any host memory, after all work of all lanes; returns when
  /// the copy is done. Must not be called while lanes run.
  void upload(void* to, const void* from, int64_t bytes);
  void download(void* to, const void* from, int64_t bytes);

 private:
  struct Staging;
  struct LaneStream {
    DeviceStream stream = nullptr;
    /// The event after all work that was enqueued in the stream before the current run.
    DeviceEvent tail = nullptr;
  };

  const std::unique_ptr<DeviceKernels> kernels_;
  const GpuOptions options_;
  /// The open lanes.
  std::map<Lane, LaneStream> lanes_;
  DeviceEvent gate_ = nullptr;
  std::unique_ptr<Staging> staging_;
};

/// GpuBlock is memory that was allocated through a GPU: device memory or pinned host memory. It is
/// zero at first.
class GpuBlock {
 public:
  GpuBlock() = default;
  /// Allocates device memory. Throws Error(kEnvironment) as DeviceKernels::allocate does.
  static GpuBlock allocate_on_device(Gpu& gpu, int64_t bytes);
  /// Allocates pinned host memory. Throws Error(kEnvironment) where the system cannot pin it.
  static GpuBlock allocate_pinned(Gpu& gpu, int64_t bytes);
  ~GpuBlock();
  GpuBlock(GpuBlock&& other) noexcept;
  GpuBlock& operator=(GpuBlock&& other) noexcept;
  GpuBlock(const GpuBlock&) = delete;
  GpuBlock& operator=(const GpuBlock&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  GpuBlock(Gpu& gpu, void* data, int64_t bytes, bool pinned);

  Gpu* gpu_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool pinned_ = false;
};

/// GpuEvent owns an event: a point in a stream that other streams or the host can wait for.
class GpuEvent {
 public:
  enum class Purpose { kOrder, kTiming, kHostWait };

  explicit GpuEvent(Gpu& gpu, Purpose purpose = Purpose::kOrder)
      : gpu_(&gpu),
        event_(gpu.kernels().create_event(purpose == Purpose::kTiming,
                                          purpose == Purpose::kHostWait)) {}
  ~GpuEvent();
  GpuEvent(GpuEvent&& other) noexcept;
  GpuEvent& operator=(GpuEvent&&) = delete;
  GpuEvent(const GpuEvent&) = delete;

  DeviceEvent get() const { return event_; }
  void record(DeviceStream stream) const { gpu_->kernels().record(event_, stream); }
  /// Waits for an event of Purpose::kHostWait.
  void synchronize() const { gpu_->kernels().synchronize(event_); }

 private:
  Gpu* gpu_;
  DeviceEvent event_;
};

/// PinnedRing is pinned memory for data that passes between host code and copies. It has two slots:
/// the host can fill one while a copy still reads the other. Only one thread may use it at a time.
class PinnedRing {
 public:
  PinnedRing(Gpu& gpu, int64_t slot_bytes);

  int64_t slot_bytes() const { return memory_.bytes() / 2; }
  /// Returns the next slot, once the copy that used it last is done.
  std::byte* acquire();
  /// Records that the work now in the stream reads or writes the slot acquired last.
  void record_use(DeviceStream stream) { slot_events_[slot_].record(stream); }
  /// Copies host data that fits a slot to the device through the next slot. The data may change
  /// once this returns.
  void send(void* to, const void* from, int64_t bytes, DeviceStream stream);
  /// Returns the number of the slot acquired last; wait() waits for the copy of a slot.
  size_t slot() const { return slot_; }
  void wait(size_t slot) { slot_events_[slot].synchronize(); }

 private:
  Gpu& gpu_;
  GpuBlock memory_;
  std::array<GpuEvent, 2> slot_events_;
  size_t slot_ = 0;
};

}  // namespace ftrun
