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

/// The alignment in bytes of file offsets and memory addresses that O_DIRECT requires. With it the
/// kernel moves data without a copy in its own memory.
inline constexpr size_t kDirectAlignment = 4096;

/// WritableFile is a file open for writing. Every call throws Error(kEnvironment) naming the path
/// and the bytes wanted and free. A failed sync is final: the file must neither be trusted nor
/// synced again.
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

/// The free bytes of a file system that does not report them. The number is larger than any disk,
/// and small enough that sums of it do not overflow.
inline constexpr int64_t kFreeUnknown = int64_t{1} << 60;

/// FileSystem is the file system as checkpoints use it. Tests replace it by one that drops what was
/// not synced or in which any call fails.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;  // truncates
  virtual void make_folder(const std::string& path) = 0;                      // with parents
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Swaps two existing names atomically. If the file system cannot do this, returns false and
  /// changes nothing.
  virtual bool swap_names(const std::string& a, const std::string& b) = 0;
  virtual void remove_all(const std::string& path) = 0;
  virtual void sync_folder(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& folder) = 0;  // sorted names
  virtual bool exists(const std::string& path) = 0;
  /// Returns the free bytes, also for a path that does not exist yet; kFreeUnknown at most.
  virtual int64_t free_bytes(const std::string& path) = 0;
};

/// Returns the machine's own file system. Files and folders that it creates are accessible to this
/// user only (0600, 0700). It never creates a file through a symbolic link of that name, nor
/// anything through another user's link in a folder that others may write to (base/written_path.h).
FileSystem& posix_files();
/// Returns the file system for files that other users may read: their modes follow the umask.
FileSystem& umask_files();

/// Makes a name in the folder of `path` that no other process chooses: `path`, `infix`, and 8
/// random hexadecimal digits, at least one of which is a letter.
std::string make_unique_name(const std::string& path, std::string_view infix = ".tmp-");
/// Returns the name from which a unique name was made: "run.json" for "run.json.tmp-0123abcd";
/// nothing for any other name.
std::optional<std::string> strip_unique_suffix(std::string_view name,
                                               std::string_view infix = ".tmp-");

/// Makes the folder and its missing parents, and syncs each into its parent, so that what is synced
/// below the folder survives a power cut.
void make_durable_folder(FileSystem& files, const std::string& path);

/// Creates a file with this content, or replaces the content of an existing one, and syncs it.
void write_synced(FileSystem& files, const std::string& path, std::span<const std::byte> content);
/// Removes a path after a failure and ignores errors of the removal: the user must see the failure.
void remove_quietly(FileSystem& files, const std::string& path);

/// Writes a file so that a reader sees the old or the new content, never a part of it: it writes
/// under a unique name in the same folder, syncs, renames, and syncs the folder. A failure before
/// the rename leaves the old content and removes the temporary file.
void write_file_atomic(FileSystem& files, const std::string& path, std::string_view content);
/// Removes the temporary files of `names` in `folder` that were left by processes killed in
/// write_file_atomic().
void remove_atomic_leftovers(FileSystem& files, const std::string& folder,
                             const std::vector<std::string>& names);

/// The maximum size in bytes of a text file that is read whole, unless the caller gives a smaller
/// limit.
inline constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

/// Reads a whole regular file of at most `max_bytes` bytes; its size is checked first. Throws
/// Error(kBadInput) if it cannot be read or is larger.
std::string read_file(const std::string& path, int64_t max_bytes = kMaxTextBytes);

/// Drops a file from the page cache, so that the next read comes from the disk. Returns false if
/// the kernel refuses (a file system in memory, a file in use by another process).
bool drop_from_page_cache(const std::string& path);

/// MappedFile is a file mapped read-only; its pages are shared with every process that maps it.
class MappedFile {
 public:
  /// Maps a file of at most `max_bytes` bytes. Throws an Error for a larger file, and for a
  /// placeholder of a file that was not fetched (base/file_placeholder.h).
  explicit MappedFile(const std::string& path,
                      int64_t max_bytes = std::numeric_limits<int64_t>::max());
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

/// Computes the XXH3 of a whole file, which is read piece by piece and not mapped: mapped pages
/// would count as this process's memory.
uint64_t xxh3_of_file(const std::string& path);
/// Hashes a file, or returns nothing once `stop` is set.
std::optional<uint64_t> xxh3_of_file(const std::string& path, const std::atomic<bool>* stop);
/// Returns why a file cannot be read ("it is a link to x, which does not exist", "Permission
/// denied", "it is a Git LFS pointer; fetch it: ...", ...), or "".
std::string reading_problem(const std::string& path);

/// Returns why a folder cannot be written to, or made if it is missing, or "". Changes nothing.
std::string writing_problem(const std::string& folder);

/// Joins `name` to `folder`. Throws Error(kBadInput) for a name that is not a plain file name
/// ("..", a path, NUL), and for an existing path that is not a regular file. Follows links wherever
/// they lead.
std::string plain_file_path(const std::string& folder, std::string_view name);

/// Joins `name` to a folder that ftrun wrote, as plain_file_path() does; also refuses a link that
/// leads out of the folder.
std::string confined_path(const std::string& folder, std::string_view name);

}  // namespace ftrun
