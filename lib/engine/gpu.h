#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/device.h"
#include "program/program.h"

namespace ftrun {

struct GpuOptions {
  /// Host memory that copies use is pinned; false: it is pageable, and a copy holds up its lane.
  bool pin_memory = true;
  /// Measures what every instruction takes on the device.
  bool timed = false;
  /// Programs that leave all to the device are recorded once and started as a whole from then on.
  bool step_graph = false;
};

/// Gpu is one GPU as a rank uses it: its kernels, a stream for each lane, which all programs share,
/// and the way by which host code reaches its memory. It outlives all memory allocated through it.
class Gpu {
 public:
  explicit Gpu(std::unique_ptr<DeviceKernels> kernels, const GpuOptions& options = {});
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  DeviceKernels& kernels() const { return *kernels_; }
  const DeviceInfo& info() const { return kernels_->info(); }
  const GpuOptions& options() const { return options_; }
  /// Makes the stream of a lane if it does not exist; compute has one from the start. Not beside
  /// lanes that run.
  void open_lane(Lane lane);
  /// Returns the stream of a lane that is open.
  DeviceStream stream(Lane lane) const;

  /// Separates runs: all later work on any lane waits for all earlier work on every lane. Not
  /// beside lanes that run.
  void separate_runs();
  /// Begins a recording on compute's stream, in which all lanes' streams take part; end_recording()
  /// ends it there. Not beside lanes that run.
  void begin_recording();
  DeviceGraph end_recording();
  /// Waits for all work that was put on any lane. Not beside lanes that run.
  void drain();

  /// Copies between device memory and any host memory, after all work that was put on any lane;
  /// returns when it is done. Not beside lanes that run.
  void upload(void* to, const void* from, int64_t bytes);
  void download(void* to, const void* from, int64_t bytes);

 private:
  struct Staging;
  struct LaneStream {
    DeviceStream stream = nullptr;
    /// The event behind the work that was put into the stream before the current run.
    DeviceEvent tail = nullptr;
  };

  const std::unique_ptr<DeviceKernels> kernels_;
  const GpuOptions options_;
  /// The lanes that are open.
  std::map<Lane, LaneStream> lanes_;
  DeviceEvent gate_ = nullptr;
  std::unique_ptr<Staging> staging_;
};

/// GpuBlock is memory that a GPU gave, its own or pinned host memory. Zero at first.
class GpuBlock {
 public:
  GpuBlock() = default;
  /// Allocates device memory. Error(kEnvironment) of DeviceKernels::allocate.
  static GpuBlock on_device(Gpu& gpu, int64_t bytes);
  /// Allocates pinned host memory. Error(kEnvironment) where the system does not pin it.
  static GpuBlock pinned(Gpu& gpu, int64_t bytes);
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

/// GpuEvent is a mark in a stream, owned.
class GpuEvent {
 public:
  enum class Use { kOrder, kTiming, kHostWait };

  explicit GpuEvent(Gpu& gpu, Use use = Use::kOrder)
      : gpu_(&gpu),
        event_(gpu.kernels().create_event(use == Use::kTiming, use == Use::kHostWait)) {}
  ~GpuEvent();
  GpuEvent(GpuEvent&& other) noexcept;
  GpuEvent& operator=(GpuEvent&&) = delete;
  GpuEvent(const GpuEvent&) = delete;

  DeviceEvent get() const { return event_; }
  void record(DeviceStream stream) const { gpu_->kernels().record(event_, stream); }
  /// Waits for an event of Use::kHostWait.
  void synchronize() const { gpu_->kernels().synchronize(event_); }

 private:
  Gpu* gpu_;
  DeviceEvent event_;
};

/// PinnedRing is pinned memory for data that passes between host code and copies: two slots in
/// turn, so that the host fills one while a copy still reads the other. One thread at a time.
class PinnedRing {
 public:
  PinnedRing(Gpu& gpu, int64_t slot_bytes);

  int64_t slot_bytes() const { return memory_.bytes() / 2; }
  /// Takes the next slot, once the copy that used it last is done.
  std::byte* acquire();
  /// Notes that the work now in the stream reads or writes the slot taken last.
  void sent(DeviceStream stream) { used_[at_].record(stream); }
  /// Copies host data that fits a slot to the device by way of the next slot: the data may change
  /// when this returns.
  void send(void* to, const void* from, int64_t bytes, DeviceStream stream);
  /// Returns the number of the slot taken last; wait() waits for the copy of a slot.
  size_t at() const { return at_; }
  void wait(size_t slot) { used_[slot].synchronize(); }

 private:
  Gpu& gpu_;
  GpuBlock memory_;
  std::array<GpuEvent, 2> used_;
  size_t at_ = 0;
};

}  // namespace ftrun
