#include "report/run_follower.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/exec_arguments.h"
#include "base/launch_variables.h"
#include "base/owned_fd.h"
#include "base/text.h"
#include "base/written_path.h"
#include "report/run_folder.h"

namespace ftrun {
namespace {

namespace fs = std::filesystem;
constexpr const char* kClient = "wandb";
constexpr const char* kScript = "scripts/follow_run.py";
/// kPatience: seconds that the script waits for a failed run to be started again. kSecondsAfterRun:
/// seconds after the end of the run at which the script ends, even if its client has not finished.
constexpr const char* kPatience = "10";
constexpr const char* kSecondsAfterRun = "300";
/// Milliseconds that the start and the end of a run wait until a Python with the client is found.
/// Training steps do not wait.
constexpr int kMomentAtStart = 300, kMomentAtEnd = 2000;

/// Python code that checks whether this Python has the client. It ignores the working folder,
/// because the client itself makes a folder named "wandb" there.
constexpr const char* kClientCheck =
    "import importlib.util, sys; sys.path[:] = [p for p in sys.path if p]; s = "
    "importlib.util.find_spec('wandb'); sys.exit(s is None or s.origin is None)";
/// A shell script. Its arguments are the code kClientCheck, the number of Pythons, the Pythons, and
/// then the script and its arguments. It is replaced (exec) by the first Python that has the
/// client; if none has it, it writes "n" to descriptor 3.
constexpr const char* kFirstPython = R"(check=$1 count=$2; shift 2
while [ "$count" -gt 0 ]; do
  python=$1; shift; count=$((count - 1))
  if timeout 20 "$python" -c "$check" 3>&-; then shift "$count"; exec "$python" "$@" 3>&-; fi
done
printf n >&3)";

/// Finds the nearest parent folder of this program that contains scripts/, as a checkout does, or
/// share/ftrun/scripts/, as an installed package does. Returns the folder above scripts/; "" if
/// there is none.
std::string find_scripts_parent() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (fs::path folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path())
    for (const fs::path& root : {folder, folder / "share" / "ftrun"})
      if (fs::exists(root / kScript, error)) return root.string();
  return "";
}

/// Lists the Pythons that may have the client: that of the active virtual environment, that of a
/// checkout, and the first one in PATH.
std::vector<std::string> list_pythons(const std::string& root) {
  std::vector<std::string> paths;
  std::error_code error;
  const char* environment = std::getenv("VIRTUAL_ENV");
  for (const std::string& folder :
       {std::string(environment == nullptr ? "" : environment), root + "/.venv"})
    if (const std::string python = folder + "/bin/python3";
        !folder.empty() && fs::exists(python, error))
      paths.push_back(python);
  paths.emplace_back("python3");
  return paths;
}

/// Lists the environment without the FTRUN_ variables, because these (for example the job's token)
/// are only for the ranks of the job.
std::vector<char*> child_environment() {
  std::vector<char*> variables;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!std::string_view(*entry).starts_with(launch_variables::kPrefix))
      variables.push_back(*entry);
  variables.push_back(nullptr);
  return variables;
}

/// Starts a command in a new session, with `output` as its standard output and error and
/// `client_check_pipe` as descriptor 3. Throws std::system_error.
pid_t spawn(const std::vector<std::string>& command, int output, int client_check_pipe) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&files, client_check_pipe, STDERR_FILENO + 1);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 2);
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::vector<char*> arguments = exec_arguments(command);
  const std::vector<char*> environment = child_environment();
  pid_t process = -1;
  const int error = ::posix_spawnp(&process, arguments[0], &files, &attributes, arguments.data(),
                                   environment.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), command[0]);
  return process;
}

std::string exit_text(int status) {
  return WIFSIGNALED(status) ? cat("by signal ", WTERMSIG(status))
                             : cat("with exit code ", WEXITSTATUS(status));
}

}  // namespace

std::string RunFollower::start() noexcept {
  try {
    if (process_ <= 0 && why_not_.empty()) {
      why_not_ = try_to_start();
      check_process(kMomentAtStart);
    } else {
      check_process(0);
    }
  } catch (const std::exception& exception) {
    why_not_ = exception.what();
  }
  if (why_not_.empty() || has_reported_) return "";
  has_reported_ = true;
  return cat("wandb.enabled: the run is not sent: ", why_not_);
}

/// Checks whether the process has found a Python with the client, and whether it has ended since
/// then.
void RunFollower::check_process(int milliseconds) {
  if (process_ <= 0 || !why_not_.empty()) return;
  if (client_check_pipe_) {
    pollfd answered{client_check_pipe_.get(), POLLIN, 0};
    if (::poll(&answered, 1, milliseconds) <= 0) return;
    char word = 0;
    const bool has_no_client = ::read(client_check_pipe_.get(), &word, 1) == 1;
    client_check_pipe_.reset();
    if (has_no_client) {
      ::waitpid(process_, nullptr, 0);  // the shell is about to exit
      why_not_ = cat("no Python here has the client ", kClient, "; install it (pip install ",
                     kClient, ") and send the run afterwards: ", manual_command());
      return;
    }
  }
  int status = 0;
  if (::waitpid(process_, &status, WNOHANG) != process_) return;
  if (status != 0)
    why_not_ = cat("the process that sends it has ended ", exit_text(status), ": see ",
                   RunPaths(options_.run).follower_log());
}

/// Returns the script's arguments: the run and its destination.
std::vector<std::string> RunFollower::arguments() const {
  std::vector<std::string> words{options_.run, "--to", kClient};
  for (const auto& [word, value] : {std::pair("project", &options_.project),
                                    {"group", &options_.group},
                                    {"team", &options_.team}})
    if (!value->empty()) words.push_back(cat("--", word, "=", *value));
  return words;
}

/// Returns the command with which a user can send the run by hand.
std::string RunFollower::manual_command() const {
  return cat(kScript, " ", join(arguments(), " "));
}

std::string RunFollower::try_to_start() {
  const std::string log = RunPaths(options_.run).follower_log();
  const OwnedFd output = open_to_write(log, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0600);
  if (!output) return cat(log, ": ", std::strerror(errno));
  struct stat opened {};
  if (::fstat(output.get(), &opened) != 0 || !S_ISREG(opened.st_mode))
    return cat(log, " is not a regular file");
  if (::flock(output.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return "";
    return cat(log, " cannot be locked (", std::strerror(errno),
               "), so nothing can follow the run; send it afterwards: ", manual_command());
  }
  const std::string root = find_scripts_parent();
  if (root.empty()) return cat(kScript, " is in no folder above the program");
  const std::vector<std::string> candidates = list_pythons(root);
  std::vector<std::string> command{"/bin/sh",    "-c",         kFirstPython,
                                   "follow_run", kClientCheck, std::to_string(candidates.size())};
  command.insert(command.end(), candidates.begin(), candidates.end());
  command.push_back(cat(root, "/", kScript));
  for (const std::string& word : arguments()) command.push_back(word);
  command.insert(command.end(), {"--patience", kPatience, "--with-run", kSecondsAfterRun});
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return cat("pipe: ", std::strerror(errno));
  client_check_pipe_ = OwnedFd(ends[0]);
  const OwnedFd theirs(ends[1]);
  process_ = spawn(command, output.get(), theirs.get());
  return "";
}

std::string RunFollower::problem() noexcept {
  try {
    check_process(kMomentAtEnd);
    if (!why_not_.empty()) return cat("wandb.enabled: the run was not sent: ", why_not_);
    if (process_ > 0) return "";
    return cat(
        "wandb.enabled: the process that sends an earlier start of the run was still running, so "
        "steps of this start may be missing there; send them: ",
        manual_command());
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace ftrun
