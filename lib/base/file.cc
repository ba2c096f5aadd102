#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file_placeholder.h"
#include "base/limit_remedies.h"
#include "base/owned_fd.h"
#include "base/text.h"
#include "base/uninterrupted.h"
#include "base/written_path.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr size_t kIdDigits = 8;

/// Describes the file system of `path` or, if it does not exist, of the folder in which it will be
/// made; zeros if neither is found.
struct statvfs file_system_of(const std::string& path) {
  struct statvfs info {};
  std::string at = path;
  while (::statvfs(at.c_str(), &info) != 0) {
    const std::string parent = fs::path(at).parent_path().string();
    if (parent == at || at == ".") return {};
    at = parent.empty() ? "." : parent;
  }
  return info;
}

int64_t bytes_free_at(const std::string& path) {
  const struct statvfs info = file_system_of(path);
  // Some file systems (FUSE, network) report zeros for everything.
  if (info.f_blocks == 0 || info.f_frsize == 0) return kFreeUnknown;
  const uint64_t max_blocks = static_cast<uint64_t>(kFreeUnknown) / info.f_frsize;
  return static_cast<int64_t>(std::min<uint64_t>(info.f_bavail, max_blocks) * info.f_frsize);
}

std::string disk_space_text(const std::string& path, int64_t wanted) {
  const int64_t free = bytes_free_at(path);
  const std::string free_text = free < kFreeUnknown ? cat(", ", human_bytes(free), " free") : "";
  return cat(" (", human_bytes(wanted), " wanted", free_text, ")");
}

/// Returns whether the error says that the file system does not support the call, at least for this
/// kind of file, and not that permissions or space are missing.
bool is_unsupported(int error_number) {
  return error_number == EINVAL || error_number == ENOSYS || error_number == EOPNOTSUPP;
}

[[noreturn]] void throw_disk_error(const std::string& path, const std::string& action,
                                   int error_number, int64_t wanted = 0) {
  std::string message = cat(path, ": ", action, " failed: ", errno_text(error_number));
  if (wanted > 0) message += disk_space_text(path, wanted);
  throw Error(ExitCode::kEnvironment, message, writing_remedy(error_number));
}

[[noreturn]] void throw_sync_error(const std::string& path, int error_number) {
  if (!is_unsupported(error_number)) throw_disk_error(path, "fsync", error_number);
  throw Error(
      ExitCode::kEnvironment, cat(path, ": fsync failed: ", errno_text(error_number)),
      "write to another file system (output_dir): this one cannot tell when a file is on its disk");
}

/// FileModes are the permission bits of new files and folders, from which the umask removes some.
struct FileModes {
  mode_t file;
  mode_t folder;
};

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, mode_t mode) : path_(std::move(path)) {
    OwnedFd opened = open_to_write(path_, O_WRONLY | O_CREAT | O_TRUNC, mode);
    if (!opened) throw_disk_error(path_, "create", errno);
    fd_ = opened.release();
  }
  ~PosixWritableFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  void write(const void* data, size_t size) override {
    write_at(position_, data, size);
    position_ += static_cast<int64_t>(size);
  }
  /// Writes around the page cache (O_DIRECT) if the size makes that worthwhile and the file system
  /// supports it.
  void write_at(int64_t offset, const void* data, size_t size) override {
    const char* source = static_cast<const char*>(data);
    size_t remaining = size;
    while (remaining > 0) {
      set_direct(!refuses_direct_ && size >= kMinDirect && is_direct(source, remaining, offset));
      const ssize_t n = uninterrupted([&] { return ::pwrite(fd_, source, remaining, offset); });
      // File systems refuse direct writes with many errors. After a refusal the rest is written
      // through the page cache, where the same error counts.
      if (n < 0 && direct_ && !is_out_of_space(errno)) {
        refuses_direct_ = true;
        continue;
      }
      if (n <= 0)
        throw_disk_error(path_, "write", n < 0 ? errno : ENOSPC, static_cast<int64_t>(remaining));
      source += n;
      offset += n;
      remaining -= static_cast<size_t>(n);
    }
  }
  void reserve(int64_t size) override {
    if (size <= 0) return;
    // posix_fallocate() is not used: if the file system does not support the call, it would write a
    // byte into every block.
    const int result = uninterrupted([&] { return ::fallocate(fd_, 0, 0, size); });
    if (result != 0 && !is_unsupported(errno)) throw_disk_error(path_, "reserve", errno, size);
  }
  void sync() override {
    if (uninterrupted([&] { return ::fsync(fd_); }) != 0) throw_sync_error(path_, errno);
  }
  void close() override {
    const int fd = std::exchange(fd_, -1);
    // EINTR is no failure: Linux closes the file even if a signal interrupts close(), and the data
    // was synced before.
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) throw_disk_error(path_, "close", errno);
  }

 private:
  static constexpr size_t kMinDirect = 256 << 10;

  static bool is_direct(const char* data, size_t size, int64_t offset) {
    return (reinterpret_cast<uintptr_t>(data) | size | static_cast<size_t>(offset)) %
               kDirectAlignment ==
           0;
  }
  static bool is_out_of_space(int error_number) {
    return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  }
  void set_direct(bool direct) {
    if (direct == direct_) return;
    const int flags = ::fcntl(fd_, F_GETFL);
    if (flags >= 0 && ::fcntl(fd_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0)
      direct_ = direct;
    else if (direct)
      refuses_direct_ = true;
    else
      throw_disk_error(path_, "write", errno);  // otherwise direct writes would be tried forever
  }

  std::string path_;
  int fd_ = -1;
  int64_t position_ = 0;
  bool direct_ = false;
  bool refuses_direct_ = false;
};

class PosixFileSystem : public FileSystem {
 public:
  explicit PosixFileSystem(FileModes modes) : modes_(modes) {}

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<PosixWritableFile>(path, modes_.file);
  }
  void make_folder(const std::string& path) override {
    std::error_code error;
    const fs::path parent = fs::path(path).parent_path();
    if (!parent.empty() && parent != path && !fs::exists(parent, error))
      make_folder(parent.string());
    const FolderEntry to = open_parent(path);
    if (!to.folder) throw_disk_error(path, "create folder", errno);
    if (::mkdirat(to.folder.get(), to.name.c_str(), modes_.folder) == 0) return;
    const int error_number = errno;
    if (!open_folder_safely(path)) throw_disk_error(path, "create folder", error_number);
  }
  void rename(const std::string& from, const std::string& to) override {
    const FolderEntry source = open_parent(from), target = open_parent(to);
    if (!source.folder || !target.folder ||
        ::renameat(source.folder.get(), source.name.c_str(), target.folder.get(),
                   target.name.c_str()) != 0)
      throw_disk_error(to, "rename", errno);
  }
  bool swap_names(const std::string& a, const std::string& b) override {
    const FolderEntry one = open_parent(a), other = open_parent(b);
    if (one.folder && other.folder) {
      if (::renameat2(one.folder.get(), one.name.c_str(), other.folder.get(), other.name.c_str(),
                      RENAME_EXCHANGE) == 0)
        return true;
      if (is_unsupported(errno)) return false;
    }
    throw_disk_error(b, "exchange", errno);
  }
  void remove_all(const std::string& path) override {
    if (const int error_number = remove_tree(path); error_number != 0)
      throw_disk_error(path, "remove", error_number);
  }
  void sync_folder(const std::string& path) override {
    const OwnedFd entered = open_folder_safely(path);
    const OwnedFd folder(entered ? uninterrupted([&] {
      return ::openat(entered.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    })
                                 : -1);
    // A folder that this user may enter but not list cannot be opened, so it cannot be synced.
    if (!folder && errno == EACCES) return;
    if (!folder) throw_disk_error(path, "open folder", errno);
    const int result = uninterrupted([&] { return ::fsync(folder.get()); });
    const int error_number = errno;
    // Some file systems (network, FUSE) cannot sync a folder, and order renames themselves. SMB
    // servers report that the folder was not opened for writing (EBADF).
    if (result != 0 && !is_unsupported(error_number) && error_number != EBADF)
      throw_disk_error(path, "fsync folder", error_number);
  }
  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
      names.push_back(it->path().filename().string());
    if (error) throw_disk_error(folder, "list", error.value());
    std::sort(names.begin(), names.end());
    return names;
  }
  bool exists(const std::string& path) override {
    std::error_code error;
    return fs::exists(path, error);
  }
  int64_t free_bytes(const std::string& path) override { return bytes_free_at(path); }

 private:
  const FileModes modes_;
};

size_t size_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<size_t>(info.st_size) : 0;
}

/// Returns whether any page of the file is in memory, as far as the kernel shows it.
bool is_cached(int fd) {
  constexpr size_t kMappedBytes = 64 << 20;  // of address space, which may be limited
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t size = size_of(fd);
  std::vector<unsigned char> resident((std::min(size, kMappedBytes) + page - 1) / page);
  for (size_t at = 0; at < size; at += kMappedBytes) {
    const size_t bytes = std::min(size - at, kMappedBytes);
    void* const start = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, static_cast<off_t>(at));
    if (start == MAP_FAILED) return true;
    const bool reported = ::mincore(start, bytes, resident.data()) == 0;
    ::munmap(start, bytes);
    const auto end = resident.begin() + static_cast<std::ptrdiff_t>((bytes + page - 1) / page);
    if (!reported ||
        std::any_of(resident.begin(), end, [](unsigned char flags) { return flags & 1; }))
      return true;
  }
  return false;
}

[[noreturn]] void refuse_reading(const std::string& path, const std::string& why,
                                 ExitCode code = ExitCode::kBadInput,
                                 const char* remedy = "check the path and the permissions") {
  throw Error(code, cat(path, ": cannot be read: ", why), remedy);
}

[[noreturn]] void throw_read_error(const std::string& path, int error) {
  const std::string why = errno_text(error);
  switch (error) {
    case ENOMEM:
      refuse_reading(path, why, ExitCode::kEnvironment, more_memory_remedy());
    case EMFILE:
    case ENFILE:
      refuse_reading(path, why, ExitCode::kEnvironment, kMoreFiles);
    case EIO:
      refuse_reading(path, why, ExitCode::kEnvironment,
                     "check that disk (dmesg, smartctl): it cannot read what was written");
    default:
      refuse_reading(path, why);
  }
}

[[noreturn]] void refuse_name(const std::string& folder, std::string_view name, const char* why) {
  throw Error(ExitCode::kBadInput, cat(folder, ": file name \"", name, "\" is refused: ", why),
              "put the files of a model or checkpoint inside its folder");
}

/// Checks the first bytes of a file for a placeholder. Large files are not read, because they
/// cannot be placeholders.
FilePlaceholder read_placeholder(int fd, const std::string& path) {
  std::array<std::byte, kPlaceholderHead> head{};
  if (size_of(fd) > kMaxPlaceholder) return {};
  const ssize_t bytes = uninterrupted([&] { return ::pread(fd, head.data(), head.size(), 0); });
  return detect_placeholder(
      path, std::span(head).first(static_cast<size_t>(std::max<ssize_t>(bytes, 0))));
}

/// Returns whether an id has a letter. This distinguishes a temporary file from a user's own file
/// whose name ends in a date ("model.tmp-20251125").
bool has_letter(std::string_view id) {
  return id.find_first_of("abcdef") != std::string_view::npos;
}

}  // namespace

FileSystem& posix_files() {
  static PosixFileSystem files({.file = 0600, .folder = 0700});
  return files;
}

FileSystem& umask_files() {
  static PosixFileSystem files({.file = 0666, .folder = 0777});
  return files;
}

std::string make_unique_name(const std::string& path, std::string_view infix) {
  std::random_device random;
  for (;;)
    if (const std::string id = hex64(random()).substr(16 - kIdDigits); has_letter(id))
      return cat(path, infix, id);
}

std::optional<std::string> strip_unique_suffix(std::string_view name, std::string_view infix) {
  if (name.size() <= infix.size() + kIdDigits) return std::nullopt;
  const size_t stem = name.size() - kIdDigits - infix.size();
  const std::string_view id = name.substr(stem + infix.size());
  const bool made_here = name.substr(stem, infix.size()) == infix &&
                         id.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
                         has_letter(id);
  return made_here ? std::optional(std::string(name.substr(0, stem))) : std::nullopt;
}

void remove_atomic_leftovers(FileSystem& files, const std::string& folder,
                             const std::vector<std::string>& names) {
  for (const std::string& name : files.list(folder)) {
    const auto origin = strip_unique_suffix(name);
    const std::string path = (fs::path(folder) / name).string();
    std::error_code error;
    if (origin && std::find(names.begin(), names.end(), *origin) != names.end() &&
        fs::is_regular_file(fs::symlink_status(path, error)))
      files.remove_all(path);
  }
}

void make_durable_folder(FileSystem& files, const std::string& path) {
  if (files.exists(path)) return files.make_folder(path);
  const std::string parent = fs::path(path).parent_path().string();
  if (!parent.empty() && parent != path) make_durable_folder(files, parent);
  files.make_folder(path);
  files.sync_folder(parent);
}

void write_synced(FileSystem& files, const std::string& path, std::span<const std::byte> content) {
  const auto file = files.create(path);
  file->write(content.data(), content.size());
  file->sync();
  file->close();
}

void remove_quietly(FileSystem& files, const std::string& path) {
  try {
    files.remove_all(path);
  } catch (const Error&) {
  }
}

void write_file_atomic(FileSystem& files, const std::string& path, std::string_view content) {
  const std::string temporary = make_unique_name(path);
  try {
    write_synced(files, temporary, std::as_bytes(std::span(content)));
    files.rename(temporary, path);
  } catch (...) {
    remove_quietly(files, temporary);
    throw;
  }
  files.sync_folder(fs::path(path).parent_path().string());
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  const MappedFile file(path, max_bytes);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool drop_from_page_cache(const std::string& path) {
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  // Pages that are not on the disk yet would stay in the page cache.
  if (!fd || uninterrupted([&] { return ::fsync(fd.get()); }) != 0) return false;
  return ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0 && !is_cached(fd.get());
}

MappedFile::MappedFile(const std::string& path, int64_t max_bytes) : path_(path) {
  const OwnedFd fd(
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd) throw_read_error(path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    refuse_reading(path, "not a regular file");
  if (info.st_size > max_bytes)
    throw Error(ExitCode::kBadInput,
                cat(path, ": is ", human_bytes(info.st_size), ", larger than the limit of ",
                    human_bytes(max_bytes)),
                "check that the path names the right file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  if (const FilePlaceholder placeholder = read_placeholder(fd.get(), path);
      !placeholder.kind.empty())
    refuse_placeholder(path, placeholder);
  // Some file systems (FUSE) refuse shared mappings. In a private mapping, pages that nobody writes
  // are shared as well.
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) throw_read_error(path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release(size_t offset, size_t size) const {
  advise(offset, size, MADV_DONTNEED);
}

void MappedFile::read_ahead(size_t offset, size_t size) const {
  advise(offset, size, MADV_WILLNEED);
}

void MappedFile::advise(size_t offset, size_t size, int advice) const {
  if (data_ == nullptr || size == 0) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = std::min(size_, offset + size);
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, advice);
}

uint64_t xxh3_of_file(const std::string& path) {
  return xxh3_of_file(path, nullptr).value();
}

std::optional<uint64_t> xxh3_of_file(const std::string& path, const std::atomic<bool>* stop) {
  const OwnedFd fd(
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd) throw_read_error(path, errno);
  Xxh3Stream stream;
  // The buffer is small, because a thread may hash data during training steps, whose memory is
  // planned.
  std::vector<std::byte> piece(64 << 10);
  for (;;) {
    if (stop != nullptr && *stop) return std::nullopt;
    const ssize_t got = uninterrupted([&] { return ::read(fd.get(), piece.data(), piece.size()); });
    if (got < 0) throw_read_error(path, errno);
    if (got == 0) return stream.digest();
    stream.update(piece.data(), static_cast<size_t>(got));
  }
}

std::string reading_problem(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status) && fs::is_symlink(fs::symlink_status(path, error)))
    return cat("it is a link to ", fs::read_symlink(path, error).string(),
               ", which does not exist");
  if (fs::exists(status) && !fs::is_regular_file(status)) return "it is not a regular file";
  const OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return errno_text(errno);
  const FilePlaceholder placeholder = read_placeholder(file.get(), path);
  return placeholder.kind.empty() ? "" : cat("it is ", placeholder.kind, "; ", placeholder.remedy);
}

std::string writing_problem(const std::string& folder) {
  std::error_code error;
  fs::path existing = fs::absolute(folder, error);
  while (!fs::exists(fs::symlink_status(existing, error)) && existing.has_relative_path())
    existing = existing.parent_path();
  if (!fs::exists(fs::status(existing, error)))
    return cat(existing.string(), ": is a link to ", fs::read_symlink(existing, error).string(),
               ", which does not exist");
  if (!fs::is_directory(existing, error)) return cat(existing.string(), ": is not a folder");
  try {
    static_cast<void>(open_folder_safely(existing.string()));
  } catch (const Error& foreign_link) {
    return foreign_link.message();
  }
  if (::faccessat(AT_FDCWD, existing.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return "";
  return cat(existing.string(), ": cannot be written: ", errno_text(errno));
}

std::string plain_file_path(const std::string& folder, std::string_view name) {
  if (name.empty()) refuse_name(folder, name, "it is empty");
  if (name.find('\0') != std::string_view::npos) refuse_name(folder, name, "it holds a NUL byte");
  if (name.size() > 255) refuse_name(folder, name, "it is longer than 255 bytes");
  if (name.find('/') != std::string_view::npos || name == "." || name == "..")
    refuse_name(folder, name, "it must be a plain file name");
  std::string path = (fs::path(folder) / name).string();
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    refuse_name(folder, name, "it is not a regular file");
  return path;
}

std::string confined_path(const std::string& folder, std::string_view name) {
  std::string path = plain_file_path(folder, name);
  std::error_code error;
  const fs::path root = fs::weakly_canonical(folder, error);
  const fs::path real = fs::weakly_canonical(path, error);
  if (real.parent_path() != root) refuse_name(folder, name, "it is a link that leaves the folder");
  return path;
}

}  // namespace ftrun
