#include "report/run_follower.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/owned_fd.h"
#include "report/run_folder.h"

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kClient = "wandb";
constexpr const char* kScript = "scripts/follow_run.py";
/// Seconds: how long a Python may take to say whether it has the client, how long the script waits for a run that failed and may be
/// started again, and how long after the run's end it is ended whatever its client does.
constexpr int kProbeSeconds = 20;
constexpr const char* kPatience = "10";
constexpr const char* kSecondsAfterRun = "300";

/// The checkout or folder that holds this program and scripts/: "" for none.
std::string root_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
    if (fs::exists(folder / kScript, error)) return folder.string();
  return "";
}

std::vector<std::string> pythons(const std::string& root) {
  std::vector<std::string> found;
  std::error_code error;
  const char* environment = std::getenv("VIRTUAL_ENV");
  for (const std::string& folder : {std::string(environment == nullptr ? "" : environment), root + "/.venv"})
    if (const std::string python = folder + "/bin/python3"; !folder.empty() && fs::exists(python, error)) found.push_back(python);
  found.emplace_back("python3");
  return found;
}

/// Without what is between the ranks of a job: its token among it.
std::vector<char*> passed_environment() {
  std::vector<char*> passed;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!std::string_view(*entry).starts_with("FTRUN_")) passed.push_back(*entry);
  passed.push_back(nullptr);
  return passed;
}

/// In a session of its own, with `output` as its standard output and error. Throws std::system_error.
pid_t spawn(const std::vector<std::string>& command, int output) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment = passed_environment();
  pid_t process = -1;
  const int error = ::posix_spawnp(&process, arguments[0], &files, &attributes, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), command[0]);
  return process;
}

/// Whether a Python of that name is there and has the client.
bool has_client(const std::string& python, int output) {
  const std::string question = cat("import importlib.util, sys; sys.exit(importlib.util.find_spec('", kClient, "') is None)");
  pid_t process = -1;
  try {
    process = spawn({python, "-c", question}, output);
  } catch (const std::system_error&) {
    return false;
  }
  int status = -1;
  const auto end = Clock::now() + std::chrono::seconds(kProbeSeconds);
  pid_t ended = 0;
  while ((ended = ::waitpid(process, &status, WNOHANG)) == 0 && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (ended == 0) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
  return ended == process && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? cat("by signal ", WTERMSIG(status)) : cat("with exit code ", WEXITSTATUS(status));
}

}  // namespace

std::string RunFollower::start() noexcept {
  if (process_ > 0 || !why_not_.empty()) return "";
  try {
    why_not_ = try_to_start();
    return why_not_.empty() ? "" : cat("wandb.enabled: the run is not sent: ", why_not_);
  } catch (const std::exception& exception) {
    why_not_ = exception.what();
    return cat("wandb.enabled: the run is not sent: ", why_not_);
  }
}

std::string RunFollower::try_to_start() {
  const std::string log = RunPaths(options_.run).follower_log();
  const OwnedFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!output) return cat(log, ": ", std::strerror(errno));
  if (::flock(output.get(), LOCK_EX | LOCK_NB) != 0) return "";
  const std::string root = root_folder();
  if (root.empty()) return cat(kScript, " is in no folder above the program");
  for (const std::string& python : pythons(root)) {
    if (!has_client(python, output.get())) continue;
    std::vector<std::string> command{python,     cat(root, "/", kScript), options_.run, "--to", kClient, "--patience", kPatience, "--with-run", kSecondsAfterRun};
    if (!options_.project.empty()) command.insert(command.end(), {"--project", options_.project});
    if (!options_.group.empty()) command.insert(command.end(), {"--group", options_.group});
    if (!options_.team.empty()) command.insert(command.end(), {"--team", options_.team});
    process_ = spawn(command, output.get());
    return "";
  }
  return cat("no Python here has the client ", kClient, "; install it (pip install ", kClient, "), or send the run afterwards: ", kScript, " ",
             options_.run, " --to ", kClient);
}

std::string RunFollower::problem() noexcept {
  try {
    if (!why_not_.empty()) return cat("wandb.enabled: the run was not sent: ", why_not_);
    int status = 0;
    if (process_ <= 0 || ::waitpid(process_, &status, WNOHANG) != process_ || status == 0) return "";
    return cat("wandb.enabled: what sent the run has ended ", how_it_ended(status), ": see ", RunPaths(options_.run).follower_log());
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace ftrun
