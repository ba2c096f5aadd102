#include "report/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine_info.h"
#include "base/text.h"
#include "base/written_path.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kElsewhere = "choose another output_dir";

[[noreturn]] void throw_environment_error(const std::string& path, const char* action,
                                          int error_number) {
  throw Error(ExitCode::kEnvironment,
              cat(path, ": ", action, " failed: ", errno_text(error_number)),
              "check that this user may write to output_dir and that its disk is not full");
}

/// Returns the value of the first line "key value" of the text of .lock; "" if there is no such
/// line.
std::string lock_field(const std::string& text, std::string_view key) {
  for (const std::string& line : split(text, '\n'))
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ')
      return line.substr(key.size() + 1);
  return {};
}

std::string read_lock_text(int fd) {
  std::array<char, 512> buffer{};
  const ssize_t size = ::pread(fd, buffer.data(), buffer.size(), 0);
  return {buffer.data(), size > 0 ? static_cast<size_t>(size) : 0};
}

/// Returns the text " (kill 4242)", or " (kill 4242 on HOST)" if the process runs on another
/// machine.
std::string kill_command_text(const std::string& pid, const std::string& host) {
  if (pid.empty()) return "";
  return cat(" (kill ", pid, host == read_machine_info().hostname ? "" : cat(" on ", host), ")");
}

[[noreturn]] void refuse_busy_folder(const std::string& root, const std::string& lock_text) {
  const std::string pid = lock_field(lock_text, "pid");
  const std::string host = lock_field(lock_text, "host");
  const std::string who =
      pid.empty() ? "a process that has not written its name yet"
                  : cat("process ", pid, " on ", host, ", since ", lock_field(lock_text, "since"));
  throw Error(
      ExitCode::kEnvironment, cat("output_dir ", root, ": another run is using it (", who, ")"),
      cat("wait for that run or stop it", kill_command_text(pid, host), ", or ", kElsewhere));
}

/// Locks the folder's lock file, or throws. A process that only checks whether a run is in progress
/// (scripts/follow_run.py) holds the lock for a moment, so this function retries for that long. If
/// the file system has no locks, the folder is used unlocked, with a warning.
void lock_folder(int fd, const std::string& root) {
  constexpr auto kMoment = std::chrono::milliseconds(500);
  const auto end = std::chrono::steady_clock::now() + kMoment;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    if (errno == EWOULDBLOCK) refuse_busy_folder(root, read_lock_text(fd));
    log_warning(cat("output_dir ", root, ": its file system has no locks (", errno_text(errno),
                    "); a second run into it would not be noticed"));
    return;
  }
}

void write_lock_text(int fd, const std::string& path) {
  const std::string text =
      cat("pid ", ::getpid(), "\nhost ", read_machine_info().hostname, "\nsince ", utc_now(), "\n");
  if (::ftruncate(fd, 0) != 0) throw_environment_error(path, "truncate", errno);
  if (::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw_environment_error(path, "write", errno);
}

bool holds_files(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return true;
  fs::recursive_directory_iterator it(path, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error))
    if (!fs::is_directory(it->symlink_status(error))) return true;
  return static_cast<bool>(error);
}

/// Lists the names in the folder, except for the lock file and folders without files.
std::vector<std::string> list_content(const std::string& root) {
  std::vector<std::string> names;
  for (const std::string& name : posix_files().list(root))
    if (name != ".lock" && holds_files(fs::path(root) / name)) names.push_back(name);
  return names;
}

std::string short_list_text(std::vector<std::string> names) {
  constexpr size_t kShown = 3;
  const size_t count = names.size();
  if (count <= kShown) return join(names, ", ");
  names.resize(kShown);
  return cat(join(names, ", "), " and ", count - kShown, " more");
}

/// Finds a folder next to this one that holds a run and has a similar name; "" for none.
std::string find_similar_run(const std::string& folder) {
  const fs::path root = fs::path(folder);
  const fs::path parent = root.parent_path();
  std::error_code error;
  std::vector<std::string> runs;
  for (fs::directory_iterator it(parent.empty() ? "." : parent, error), end; !error && it != end;
       it.increment(error))
    if (it->path().filename() != root.filename() && fs::exists(it->path() / "run.json", error))
      runs.push_back(it->path().filename().string());
  std::sort(runs.begin(), runs.end());
  const std::string near = closest_match(root.filename().string(), runs);
  return near.empty() ? "" : (parent / near).string();
}

std::optional<Error> content_problem(const RunPaths& paths, RunStart start, bool had_lock) {
  const std::vector<std::string> content = list_content(paths.root());
  if (content.empty()) return std::nullopt;
  const std::string problem_text =
      cat("output_dir ", paths.root(), ": the folder is not empty (it holds ",
          short_list_text(content), ")");
  // Checkpoints next to our lock file show that there was a run. Without the lock file, the
  // checkpoints are not ours.
  const bool has_checkpoints = had_lock && holds_files(paths.checkpoints());
  const bool has_run = has_checkpoints || posix_files().exists(paths.manifest());
  if (start == RunStart::kFresh)
    return Error(ExitCode::kUsage, problem_text,
                 has_run ? cat("continue the run that is there with --resume auto, or ", kElsewhere)
                         : std::string(kElsewhere));
  if (!has_run)
    return Error(ExitCode::kUsage,
                 cat(problem_text, " and no run.json, so there is no run to resume"),
                 std::string(kElsewhere));
  return std::nullopt;
}

/// Returns the error for a folder without a run if a resume from a given step was requested.
std::optional<Error> absence_problem(const RunPaths& paths) {
  std::error_code unseen;
  if (fs::is_directory(paths.root(), unseen) && !list_content(paths.root()).empty())
    return std::nullopt;
  return Error(
      ExitCode::kUsage,
      cat("output_dir ", paths.root(), " contains no run to resume",
          did_you_mean(find_similar_run(paths.root()))),
      "correct output_dir, or give --resume auto, which starts a new run if there is none");
}

void refuse_foreign_content(const RunPaths& paths, RunStart start, bool had_lock) {
  if (const auto problem = content_problem(paths, start, had_lock)) throw *problem;
}

void make_output_folder(const std::string& root) {
  std::error_code error;
  if (fs::is_directory(root, error)) return;
  const std::string parent = fs::path(root).parent_path().string();
  // Other users may use the parent folder too, so its mode follows the umask.
  if (!parent.empty()) make_durable_folder(umask_files(), parent);
  // Another run may make the folder at the same time. The lock then decides which run gets it.
  make_durable_folder(posix_files(), root);
}

std::string without_end_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

void refuse_non_folder(const std::string& output_dir) {
  if (output_dir.empty())
    throw Error(ExitCode::kUsage, "output_dir is empty", "name the folder that the run writes to");
  std::error_code error;
  const fs::file_status status = fs::status(output_dir, error);
  if (fs::exists(status) && !fs::is_directory(status))
    throw Error(ExitCode::kUsage, cat("output_dir ", output_dir, ": it exists and is not a folder"),
                std::string(kElsewhere));
}

std::optional<Error> run_folder_problem(const std::string& output_dir, RunStart start) {
  const RunPaths paths(without_end_slashes(output_dir));
  std::error_code unseen;
  if (start == RunStart::kResumeStep)
    if (auto problem = absence_problem(paths)) return problem;
  if (!fs::is_directory(paths.root(), unseen)) return std::nullopt;
  return content_problem(paths, start, posix_files().exists(paths.lock()));
}

RunFolder::RunFolder(const std::string& output_dir, RunStart start)
    : paths_(without_end_slashes(output_dir)) {
  refuse_non_folder(paths_.root());
  if (start == RunStart::kResumeStep)
    if (const auto problem = absence_problem(paths_)) throw *problem;
  make_output_folder(paths_.root());
  const std::string lock = paths_.lock();
  const bool had_lock = posix_files().exists(lock);
  // A folder with foreign files is refused before a lock file is made in it.
  if (!had_lock) refuse_foreign_content(paths_, start, had_lock);
  lock_fd_ = open_to_write(lock, O_RDWR | O_CREAT, 0600).release();
  if (lock_fd_ < 0) throw_environment_error(lock, "open", errno);
  try {
    lock_folder(lock_fd_, paths_.root());
    if (had_lock) remove_atomic_leftovers(posix_files(), paths_.root(), paths_.replaced_files());
    refuse_foreign_content(paths_, start, had_lock);
    write_lock_text(lock_fd_, lock);
    has_earlier_run_ = posix_files().exists(paths_.manifest());
    for (const std::string& folder : {paths_.tensorboard(), paths_.logs(), paths_.checkpoints()})
      make_durable_folder(posix_files(), folder);
  } catch (...) {
    ::close(std::exchange(lock_fd_, -1));
    throw;
  }
}

std::string RunFolder::similar_run() const {
  return find_similar_run(paths_.root());
}

bool RunFolder::belongs_to_another_run() const {
  struct stat held {
  }, current{};
  return lock_fd_ >= 0 && ::fstat(lock_fd_, &held) == 0 &&
         ::lstat(paths_.lock().c_str(), &current) == 0 &&
         (held.st_dev != current.st_dev || held.st_ino != current.st_ino);
}

void RunFolder::check_still_owned() const {
  if (belongs_to_another_run())
    throw Error(ExitCode::kEnvironment,
                cat("output_dir ", paths_.root(),
                    ": was removed while this run wrote into it, and another run has it now"),
                "start this run again with another output_dir; nothing more is written there");
}

RunFolder::~RunFolder() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : paths_(std::move(other.paths_)),
      has_earlier_run_(other.has_earlier_run_),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

RunFolder& RunFolder::operator=(RunFolder&& other) noexcept {
  std::swap(paths_, other.paths_);
  std::swap(has_earlier_run_, other.has_earlier_run_);
  std::swap(lock_fd_, other.lock_fd_);
  return *this;
}

}  // namespace ftrun
