#include "base/streamed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "base/checksum.h"
#include "base/copy_non_temporal.h"
#include "base/error.h"
#include "base/owned_fd.h"
#include "base/round_up.h"
#include "base/uninterrupted.h"

namespace ftrun {
namespace {

/// Returns the size of each piece of a staging area.
size_t piece_bytes_of(std::span<std::byte> staging) {
  const size_t bytes = staging.size() / kStagedPieces;
  require(bytes > 0 && bytes % kDirectAlignment == 0 &&
              reinterpret_cast<uintptr_t>(staging.data()) % kDirectAlignment == 0,
          "a staging area has whole sectors");
  return bytes;
}

/// Reads the bytes of [offset, offset + bytes) that lie before the file's end, and returns their
/// number; -1 if the file cannot be read without the page cache.
int64_t read_piece(int fd, std::byte* to, size_t bytes, int64_t offset) {
  size_t bytes_read = 0;
  while (bytes_read < bytes) {
    const ssize_t n = uninterrupted([&] {
      return ::pread(fd, to + bytes_read, bytes - bytes_read,
                     offset + static_cast<int64_t>(bytes_read));
    });
    if (n < 0) return -1;
    if (n == 0) break;
    bytes_read += static_cast<size_t>(n);
    if (bytes_read % kDirectAlignment != 0) break;  // the end of the file
  }
  return static_cast<int64_t>(bytes_read);
}

/// Hashes a file without the page cache; returns nothing if it cannot be read this way.
std::optional<uint64_t> xxh3_read_directly(const std::string& path, std::span<std::byte> staging) {
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_DIRECT));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const size_t piece_bytes = piece_bytes_of(staging);
  const auto bytes = static_cast<int64_t>(piece_bytes);
  const int64_t pieces = divide_up(info.st_size, bytes);
  std::array<int64_t, kStagedPieces> piece_sizes{};
  BackgroundThread reader;
  const auto start = [&](int64_t number) {
    if (number >= pieces) return;
    reader.enqueue([&, number] {
      const size_t slot = static_cast<size_t>(number) % kStagedPieces;
      piece_sizes[slot] =
          read_piece(fd.get(), staging.data() + slot * piece_bytes, piece_bytes, number * bytes);
    });
  };
  for (size_t slot = 0; slot < kStagedPieces; ++slot) start(static_cast<int64_t>(slot));
  Xxh3Stream stream;
  for (int64_t number = 0; number < pieces; ++number) {
    reader.wait(number + 1);
    const size_t slot = static_cast<size_t>(number) % kStagedPieces;
    if (piece_sizes[slot] != std::min(bytes, info.st_size - number * bytes)) return std::nullopt;
    stream.update(staging.data() + slot * piece_bytes, static_cast<size_t>(piece_sizes[slot]));
    start(number + static_cast<int64_t>(kStagedPieces));
  }
  return stream.digest();
}

}  // namespace

StreamedFile::StreamedFile(std::unique_ptr<WritableFile> file, std::span<std::byte> staging)
    : file_(std::move(file)), staging_(staging), piece_bytes_(piece_bytes_of(staging)) {}

std::byte* StreamedFile::current_piece() const {
  return staging_.data() + static_cast<size_t>(submitted_pieces_) % kStagedPieces * piece_bytes_;
}

void StreamedFile::write(const void* data, size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  while (size > 0) {
    // The piece may be filled only after its earlier contents have been written.
    if (filled_bytes_ == 0)
      writer_.wait(submitted_pieces_ - static_cast<int64_t>(kStagedPieces) + 1);
    const size_t part = std::min(size, piece_bytes_ - filled_bytes_);
    copy_non_temporal(current_piece() + filled_bytes_, from, part);
    filled_bytes_ += part;
    from += part;
    size -= part;
    if (filled_bytes_ == piece_bytes_) submit_piece();
  }
}

void StreamedFile::submit_piece() {
  if (filled_bytes_ == 0) return;
  const int64_t offset = submitted_pieces_ * static_cast<int64_t>(piece_bytes_);
  writer_.enqueue([this, offset, from = current_piece(), bytes = filled_bytes_] {
    file_->write_at(offset, from, bytes);
  });
  ++submitted_pieces_;
  filled_bytes_ = 0;
}

void StreamedFile::write_at(int64_t, const void*, size_t) {
  bug("a streamed file is written front to back");
}

void StreamedFile::sync() {
  submit_piece();
  writer_.wait();
  file_->sync();
}

uint64_t xxh3_of_file_uncached(const std::string& path, std::span<std::byte> staging) {
  const std::optional<uint64_t> found = xxh3_read_directly(path, staging);
  return found ? *found : xxh3_of_file(path);
}

}  // namespace ftrun
