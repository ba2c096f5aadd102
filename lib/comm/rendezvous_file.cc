#include "comm/rendezvous_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr std::string_view kAnyVersion = "ftrun rendezvous ";
constexpr std::string_view kFirstLine = "ftrun rendezvous 2";
constexpr const char* kOtherWays =
    "choose another output_dir, or give every rank the same FTRUN_TOKEN and MASTER_PORT";

[[noreturn]] void throw_not_rendezvous_file(const std::string& path) {
  throw Error(ExitCode::kEnvironment, cat(path, ": exists, but is not ftrun's rendezvous file"),
              kOtherWays);
}

/// Reads the file's text; nothing if the file does not exist.
std::optional<std::string> read_rendezvous_text(const std::string& path) {
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::nullopt;
  struct stat status {};
  const bool known = fd && ::fstat(fd.get(), &status) == 0;
  const bool is_own_file = known && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
                           (status.st_mode & 077) == 0;
  if (!is_own_file)
    throw Error(
        ExitCode::kEnvironment,
        cat(path, ": the rendezvous file must be a regular file of this user with mode 0600"),
        cat("remove it, ", kOtherWays));
  std::array<char, 1024> buffer{};
  const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
  return std::string(buffer.data(), size > 0 ? static_cast<size_t>(size) : 0);
}

}  // namespace

RendezvousFile::RendezvousFile(std::string path, const RendezvousFileContent& content)
    : path_(std::move(path)),
      content_(cat(kFirstLine, "\njob ", content.job, "\naddress ", content.address, "\nport ",
                   content.port, "\ntoken ", content.token, "\n")) {
  if (const auto earlier = read_rendezvous_text(path_);
      earlier && !earlier->empty() && !earlier->starts_with(kAnyVersion))
    throw_not_rendezvous_file(path_);
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  if (!parent.empty()) make_durable_folder(umask_files(), parent);
  write_file_atomic(posix_files(), path_, content_);
}

/// Removes the file if this rank wrote it: by now, ranks of another job may be meeting by a file of
/// this name.
RendezvousFile::~RendezvousFile() {
  try {
    if (read_rendezvous_text(path_) == content_) ::unlink(path_.c_str());
  } catch (const std::exception&) {
    // The file is no longer this rank's.
  }
}

void RendezvousFile::check_not_replaced() const {
  const auto current = read_rendezvous_text(path_);
  if (current == content_) return;
  throw Error(ExitCode::kUsage,
              cat(path_, ": the rendezvous file was ",
                  current ? "replaced by rank 0 of another job" : "removed",
                  " before all ranks of this job had connected"),
              "start one job at a time in an output_dir, or choose another");
}

std::optional<RendezvousFileContent> RendezvousFile::read(const std::string& path) {
  const auto text = read_rendezvous_text(path);
  if (!text) return std::nullopt;
  const std::vector<std::string> lines = split(*text, '\n');
  const auto value = [&](size_t line, std::string_view name) {
    if (lines.size() <= line || !lines[line].starts_with(name)) throw_not_rendezvous_file(path);
    return lines[line].substr(name.size());
  };
  // A file of another version was left by an earlier start.
  if (text->starts_with(kAnyVersion) && lines[0] != kFirstLine) return std::nullopt;
  if (lines[0] != kFirstLine) throw_not_rendezvous_file(path);
  RendezvousFileContent content{.job = value(1, "job "), .address = value(2, "address ")};
  const std::string port = value(3, "port ");
  content.token = value(4, "token ");
  std::from_chars(port.data(), port.data() + port.size(), content.port);
  return content;
}

}  // namespace ftrun
