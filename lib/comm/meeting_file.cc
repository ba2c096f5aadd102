#include "comm/meeting_file.h"

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

constexpr std::string_view kFirstLine = "ftrun rendezvous 1";

/// The file's text; nothing where there is none.
std::optional<std::string> text_of(const std::string& path) {
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::nullopt;
  struct stat status {};
  const bool known = fd && ::fstat(fd.get(), &status) == 0;
  const bool ours = known && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
  if (!ours)
    throw Error(ExitCode::kEnvironment, cat(path, ": not a file of this user's alone (mode 0600), so ranks cannot meet by it"),
                "remove it, choose another output_dir, or give every rank the same FTRUN_TOKEN and MASTER_PORT");
  std::array<char, 1024> buffer{};
  const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
  return std::string(buffer.data(), size > 0 ? static_cast<size_t>(size) : 0);
}

}  // namespace

MeetingFile::MeetingFile(std::string path, const MeetingPlace& place)
    : path_(std::move(path)),
      content_(cat(kFirstLine, "\njob ", place.job, "\nport ", place.port, "\ntoken ", place.token, "\n")) {
  if (const auto before = text_of(path_); before && !before->empty() && !before->starts_with(kFirstLine))
    throw Error(ExitCode::kEnvironment, cat(path_, ": ranks meet by a file of this name, and this is something else"),
                "choose another output_dir, or give every rank the same FTRUN_TOKEN and MASTER_PORT");
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  if (!parent.empty()) make_lasting_folder(umask_files(), parent);
  write_file_atomic(posix_files(), path_, content_);
}

/// Only what this rank wrote: another job's ranks may be meeting there by now.
MeetingFile::~MeetingFile() {
  try {
    if (text_of(path_) == content_) ::unlink(path_.c_str());
  } catch (const std::exception&) {
    // Not ours any more.
  }
}

std::optional<MeetingPlace> MeetingFile::read(const std::string& path, const std::string& job) {
  const auto text = text_of(path);
  if (!text) return std::nullopt;
  const std::vector<std::string> lines = split(*text, '\n');
  if (lines.size() < 4 || lines[0] != kFirstLine || lines[1] != "job " + job || !lines[2].starts_with("port ") ||
      !lines[3].starts_with("token "))
    return std::nullopt;
  MeetingPlace place{.job = job, .token = lines[3].substr(6)};
  const std::string port = lines[2].substr(5);
  std::from_chars(port.data(), port.data() + port.size(), place.port);
  return place;
}

}  // namespace ftrun
