#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/file.h"
#include "base/side_thread.h"

namespace ftrun {

/// Large files are written or read once, front to back, through a staging area that the caller
/// owns: some of its pieces are transferred to or from the disk while others are filled or read.
/// The area begins at a multiple of kDirectAlignment and is cut into kStagedPieces pieces of as
/// many bytes each, multiples of kDirectAlignment as well, so that the kernel can move them between
/// area and disk (O_DIRECT) without a copy in its own memory, which costs more than all the rest.
inline constexpr size_t kStagedPieces = 4;

/// StreamedFile writes its data to `file` in such pieces, by write_at(), from its own thread. A
/// later call rethrows a failure of that thread, sync() at the latest.
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
  std::byte* piece() const;
  void submit_piece();

  std::unique_ptr<WritableFile> file_;
  std::span<std::byte> staging_;
  size_t piece_bytes_;
  /// The number of pieces before the one that is being filled, and the bytes that this one holds.
  int64_t pieces_ = 0;
  size_t filled_ = 0;
  SideThread writer_;  // last: uses the others
};

/// Computes the XXH3 of a whole file, read without the page cache where its file system supports
/// that.
uint64_t xxh3_of_disk(const std::string& path, std::span<std::byte> staging);

}  // namespace ftrun
