#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Alignment in bytes of file offsets and of memory that O_DIRECT requires: between such places the
/// kernel moves data without a copy in its own memory.
inline constexpr size_t kDirectAlignment = 4096;

/// WritableFile is a file open for writing. Every call throws Error(kEnvironment) naming path,
/// bytes wanted and bytes free. A failed sync is final: the file must not be trusted or retried.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void write(const void* data, size_t size) = 0;
  virtual void write_at(int64_t offset, const void* data, size_t size) = 0;
  /// Reserves `size` bytes on disk now, so that a full disk is found before data is written.
  virtual void reserve(int64_t size) = 0;
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// The free bytes that a file system reports if it does not know them. Larger than any disk, and
/// sums of it do not overflow.
inline constexpr int64_t kFreeUnknown = int64_t{1} << 60;

/// FileSystem is the file system as checkpoints see it: a seam where tests drop what was not synced
/// and make any call fail.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;  // truncates
  virtual void make_folder(const std::string& path) = 0;                      // with parents
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Swaps two existing names in one step; where the file system cannot, returns false and changes
  /// nothing.
  virtual bool exchange(const std::string& a, const std::string& b) = 0;
  virtual void remove_all(const std::string& path) = 0;
  virtual void sync_folder(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& folder) = 0;  // sorted names
  virtual bool exists(const std::string& path) = 0;
  /// Returns the free bytes, also for a path that does not exist yet; kFreeUnknown at most.
  virtual int64_t free_bytes(const std::string& path) = 0;
};

/// Returns the machine's own file system. What it makes is for this user only (files 0600, folders
/// 0700). It never makes a file through a symbolic link of that name, nor anything through another
/// user's link in a folder that others may write to (base/written_path.h).
FileSystem& posix_files();
/// Returns the file system for files that other users may read: modes follow the umask.
FileSystem& umask_files();

/// Makes a name beside `path` that no other process chooses: path, mark, 8 random hexadecimal
/// digits, at least one of them a letter.
std::string unique_name(const std::string& path, std::string_view mark = ".tmp-");
/// Finds the name that a unique name was made from: "run.json" for "run.json.tmp-0123abcd"; nothing
/// for any other name.
std::optional<std::string> origin_of_unique(std::string_view name, std::string_view mark = ".tmp-");

/// Makes the folder with its parents and syncs each into the folder that holds it, so that what is
/// synced below it survives a power cut.
void make_lasting_folder(FileSystem& files, const std::string& path);

/// Writes a file so that a reader sees the old or the new content, never a part of it: it writes
/// under a unique name in the same folder, syncs, renames, and syncs the folder. A failure before
/// the rename leaves the old content and removes the temporary file.
void write_file_atomic(FileSystem& files, const std::string& path, std::string_view content);
/// Removes the temporary files of `names` in `folder` that processes left which were killed in
/// write_file_atomic().
void remove_atomic_leftovers(FileSystem& files, const std::string& folder,
                             const std::vector<std::string>& names);

/// The most bytes of a text file that is read whole, unless the caller gives a smaller limit.
inline constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

/// Reads a whole regular file of at most `most` bytes; its size is checked first. Error(kBadInput)
/// when it cannot be read or is larger.
std::string read_file(const std::string& path, int64_t most = kMaxTextBytes);

/// Drops a file from the page cache, so that the next read comes from its disk. Returns false where
/// the kernel refuses (a file system in memory, a file in use by another process).
bool drop_cached(const std::string& path);

/// MappedFile is a file mapped read-only; its pages are shared with every process that maps it.
class MappedFile {
 public:
  /// Maps at most `most` bytes: refuses a larger file (Error), and a placeholder for one that was
  /// not fetched (base/file_placeholder.h).
  explicit MappedFile(const std::string& path, int64_t most = std::numeric_limits<int64_t>::max());
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  /// Tells the kernel that [offset, offset+size) will not be read again soon.
  void release(size_t offset, size_t size) const;
  /// Asks the kernel to start reading [offset, offset+size), and does not wait for it.
  void read_ahead(size_t offset, size_t size) const;

 private:
  /// Calls madvise on the pages of [offset, offset+size).
  void advise(size_t offset, size_t size, int advice) const;

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Computes the XXH3 of a whole file, read piece by piece: pages that stay mapped would count as
/// this process's memory.
uint64_t xxh3_of_file(const std::string& path);
/// Hashes a file, or returns nothing once `stop` is set.
std::optional<uint64_t> xxh3_of_file(const std::string& path, const std::atomic<bool>* stop);
/// Returns why a file cannot be read ("it is a link to x, which is not there", "Permission denied",
/// "it is a Git LFS pointer; fetch it: ...", ...), or "".
std::string reading_problem(const std::string& path);

/// Returns why a folder cannot be written to, or made if it is missing, or "". Changes nothing.
std::string writing_problem(const std::string& folder);

/// Joins `name` to `folder`. Refuses a name that is not a plain file name ("..", a path, NUL), and
/// an existing path that is not a regular file, with Error(kBadInput). Links are followed wherever
/// they lead.
std::string named_file(const std::string& folder, std::string_view name);

/// Joins `name` to a folder that this program wrote, as named_file() does; refuses a link that
/// leaves the folder, too.
std::string confined_path(const std::string& folder, std::string_view name);

}  // namespace ftrun
