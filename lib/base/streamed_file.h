#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/background_thread.h"
#include "base/file.h"

namespace ftrun {

/// The number of pieces of a staging area. Large files are written or read once, front to back,
/// through a staging area that the caller owns: some of its pieces are transferred to or from the
/// disk while others are filled or read. The area begins at a multiple of kDirectAlignment, and its
/// pieces have the same size, a multiple of kDirectAlignment as well. So the kernel can move them
/// between area and disk (O_DIRECT) without a copy in its own memory, which would cost more than
/// everything else.
inline constexpr size_t kStagedPieces = 4;

/// StreamedFile writes its data to `file` through such a staging area, by calls of write_at() in
/// its own thread. A later call rethrows a failure of that thread, sync() at the latest.
class StreamedFile : public WritableFile {
 public:
  StreamedFile(std::unique_ptr<WritableFile> file, std::span<std::byte> staging);

  void write(const void* data, size_t size) override;
  /// Refuses to write at an offset, because the file is written front to back: such a call is a
  /// bug.
  void write_at(int64_t offset, const void* data, size_t size) override;
  void reserve(int64_t size) override { file_->reserve(size); }
  void sync() override;
  void close() override { file_->close(); }

 private:
  std::byte* current_piece() const;
  void submit_piece();

  std::unique_ptr<WritableFile> file_;
  std::span<std::byte> staging_;
  size_t piece_bytes_;
  /// The number of pieces before the one that is being filled, and the bytes in that one.
  int64_t submitted_pieces_ = 0;
  size_t filled_bytes_ = 0;
  BackgroundThread writer_;  // last: it uses the members above
};

/// Computes the XXH3 of a whole file, which is read without the page cache if its file system
/// supports that.
uint64_t xxh3_of_file_uncached(const std::string& path, std::span<std::byte> staging);

}  // namespace ftrun
