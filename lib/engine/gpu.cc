#include "engine/gpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {

/// Bytes of a slot of the pinned memory that uploads and downloads pass through.
constexpr int64_t kStagingBytes = int64_t{8} << 20;

}  // namespace

struct Gpu::Staging {
  explicit Staging(Gpu& gpu) : ring(gpu, kStagingBytes) {}
  PinnedRing ring;
};

Gpu::Gpu(std::unique_ptr<DeviceKernels> kernels, const GpuOptions& options)
    : kernels_(std::move(kernels)), options_(options) {
  kernels_->bind_thread();
  open_lane(Lane::kCompute);
  gate_ = kernels_->create_event(false);
  staging_ = std::make_unique<Staging>(*this);
}

Gpu::~Gpu() {
  staging_.reset();
  for (const auto& [lane, open] : lanes_) kernels_->destroy(open.tail);
  kernels_->destroy(gate_);
  for (const auto& [lane, open] : lanes_) kernels_->destroy(open.stream);
}

void Gpu::open_lane(Lane lane) {
  if (lanes_.contains(lane)) return;
  // Streams of copies and collectives have priority: other work waits for them, and they are short
  // compared to a layer.
  const bool goes_first = lane != Lane::kCompute;
  lanes_[lane] = {kernels_->create_stream(goes_first), kernels_->create_event(false)};
}

DeviceStream Gpu::stream(Lane lane) const {
  return lanes_.at(lane).stream;
}

void Gpu::add_lane_barrier() {
  kernels_->bind_thread();
  const DeviceStream compute = stream(Lane::kCompute);
  for (const auto& [lane, open] : lanes_) {
    if (lane == Lane::kCompute) continue;
    kernels_->record(open.tail, open.stream);
    kernels_->wait(compute, open.tail);
  }
  kernels_->record(gate_, compute);
  for (const auto& [lane, open] : lanes_)
    if (lane != Lane::kCompute) kernels_->wait(open.stream, gate_);
}

void Gpu::begin_capture() {
  kernels_->bind_thread();
  const DeviceStream compute = stream(Lane::kCompute);
  kernels_->begin_capture(compute);
  kernels_->record(gate_, compute);
  for (const auto& [lane, open] : lanes_)
    if (lane != Lane::kCompute) kernels_->wait(open.stream, gate_);
}

DeviceGraph Gpu::end_capture() {
  const DeviceStream compute = stream(Lane::kCompute);
  for (const auto& [lane, open] : lanes_) {
    if (lane == Lane::kCompute) continue;
    kernels_->record(open.tail, open.stream);
    kernels_->wait(compute, open.tail);
  }
  return kernels_->end_capture(compute);
}

void Gpu::drain() {
  kernels_->bind_thread();
  for (const auto& [lane, open] : lanes_) kernels_->synchronize(open.stream);
}

void Gpu::upload(void* to, const void* from, int64_t bytes) {
  drain();
  const DeviceStream drained = stream(Lane::kCompute);
  for (int64_t at = 0; at < bytes; at += kStagingBytes) {
    const int64_t piece = std::min(kStagingBytes, bytes - at);
    staging_->ring.send(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                        piece, drained);
  }
  kernels_->synchronize(drained);
}

void Gpu::download(void* to, const void* from, int64_t bytes) {
  drain();
  const DeviceStream drained = stream(Lane::kCompute);
  for (int64_t at = 0; at < bytes; at += kStagingBytes) {
    const int64_t piece = std::min(kStagingBytes, bytes - at);
    std::byte* const slot = staging_->ring.acquire();
    kernels_->copy(slot, static_cast<const std::byte*>(from) + at, piece, drained);
    staging_->ring.record_use(drained);
    staging_->ring.wait(staging_->ring.slot());
    std::memcpy(static_cast<std::byte*>(to) + at, slot, static_cast<size_t>(piece));
  }
}

GpuBlock::GpuBlock(Gpu& gpu, void* data, int64_t bytes, bool pinned)
    : gpu_(&gpu), data_(static_cast<std::byte*>(data)), bytes_(bytes), pinned_(pinned) {}

GpuBlock GpuBlock::allocate_on_device(Gpu& gpu, int64_t bytes) {
  if (bytes == 0) return {};
  gpu.kernels().bind_thread();
  GpuBlock block(gpu, gpu.kernels().allocate(bytes), bytes, false);
  gpu.kernels().fill_zero(block.data(), bytes, gpu.stream(Lane::kCompute));
  gpu.kernels().synchronize(gpu.stream(Lane::kCompute));
  return block;
}

GpuBlock GpuBlock::allocate_pinned(Gpu& gpu, int64_t bytes) {
  if (bytes == 0) return {};
  gpu.kernels().bind_thread();
  GpuBlock block(gpu, gpu.kernels().allocate_pinned(bytes), bytes, true);
  std::memset(block.data(), 0, static_cast<size_t>(bytes));
  return block;
}

GpuBlock::~GpuBlock() {
  if (data_ == nullptr) return;
  if (pinned_)
    gpu_->kernels().free_pinned(data_);
  else
    gpu_->kernels().free(data_);
}

GpuBlock::GpuBlock(GpuBlock&& other) noexcept
    : gpu_(other.gpu_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      pinned_(other.pinned_) {}

GpuBlock& GpuBlock::operator=(GpuBlock&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(pinned_, other.pinned_);
  return *this;
}

GpuEvent::~GpuEvent() {
  if (event_ != nullptr) gpu_->kernels().destroy(event_);
}

GpuEvent::GpuEvent(GpuEvent&& other) noexcept
    : gpu_(other.gpu_), event_(std::exchange(other.event_, nullptr)) {}

PinnedRing::PinnedRing(Gpu& gpu, int64_t slot_bytes)
    : gpu_(gpu),
      memory_(GpuBlock::allocate_pinned(gpu, 2 * ((slot_bytes + 63) / 64 * 64))),
      slot_events_{GpuEvent(gpu, GpuEvent::Purpose::kHostWait),
                   GpuEvent(gpu, GpuEvent::Purpose::kHostWait)} {}

std::byte* PinnedRing::acquire() {
  slot_ = 1 - slot_;
  slot_events_[slot_].synchronize();
  return memory_.data() + static_cast<int64_t>(slot_) * slot_bytes();
}

void PinnedRing::send(void* to, const void* from, int64_t bytes, DeviceStream stream) {
  std::byte* const slot = acquire();
  std::memcpy(slot, from, static_cast<size_t>(bytes));
  gpu_.kernels().copy(to, slot, bytes, stream);
  record_use(stream);
}

}  // namespace ftrun
