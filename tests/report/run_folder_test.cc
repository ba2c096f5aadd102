#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <thread>

#include "base/machine_info.h"
#include "report/run_folder.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::error_of;
using testing::TemporaryFolder;

int mode_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 0777) : -1;
}

Error refusal(const std::string& path, RunStart start) {
  return error_of([&] { RunFolder folder(path, start); });
}

TEST_CASE("a run's files have fixed paths") {
  const RunPaths paths("runs/a");
  REQUIRE(paths.root() == "runs/a");
  REQUIRE(paths.lock() == "runs/a/.lock");
  REQUIRE(paths.manifest() == "runs/a/run.json");
  REQUIRE(paths.config() == "runs/a/config.yaml");
  REQUIRE(paths.metrics() == "runs/a/metrics.jsonl");
  REQUIRE(paths.report() == "runs/a/report.html");
  REQUIRE(paths.samples() == "runs/a/samples.jsonl");
  REQUIRE(paths.trace() == "runs/a/trace.json");
  REQUIRE(paths.tensorboard() == "runs/a/tensorboard");
  REQUIRE(paths.log(3) == "runs/a/logs/rank-3.log");
  REQUIRE(paths.checkpoints() == "runs/a/checkpoints");
  REQUIRE(paths.exported() == "runs/a/export");
}

TEST_CASE("a fresh run makes its folder for its owner only, and says who holds it") {
  const TemporaryFolder base;
  const std::string root = base / "deep/er/run";
  const mode_t before = ::umask(0027);
  const RunFolder folder(root + "/", RunStart::kFresh);
  ::umask(before);
  REQUIRE(folder.paths().root() == root);
  REQUIRE_FALSE(folder.has_earlier_run());
  REQUIRE(mode_of(base / "deep") == 0750);
  REQUIRE(mode_of(base / "deep/er") == 0750);
  REQUIRE(mode_of(root) == 0700);
  REQUIRE(mode_of(root + "/.lock") == 0600);
  for (const char* name : {"tensorboard", "logs", "checkpoints"})
    REQUIRE(mode_of(root + "/" + name) == 0700);
  REQUIRE_FALSE(std::filesystem::exists(root + "/export"));
  const std::regex text(cat("pid ", ::getpid(), "\nhost ", read_machine_info().hostname,
                            "\nsince \\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ\n"));
  REQUIRE(std::regex_match(read_file(root + "/.lock"), text));
}

TEST_CASE("a folder that exists keeps its mode") {
  const TemporaryFolder base;
  std::filesystem::create_directory(base / "shared");
  REQUIRE(::chmod((base / "shared").c_str(), 0750) == 0);
  const RunFolder folder(base / "shared", RunStart::kFresh);
  REQUIRE(mode_of(base / "shared") == 0750);
}

TEST_CASE("a second run into a folder in use is refused with the name of its holder") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  const RunFolder first(root, RunStart::kFresh);
  const std::string text = read_file(root + "/.lock");
  const std::string since = text.substr(text.find("since ") + 6, 20);
  for (const RunStart start : {RunStart::kFresh, RunStart::kResume}) {
    const Error error = refusal(root, start);
    REQUIRE(error.code() == ExitCode::kEnvironment);
    REQUIRE(error.message() == cat("output_dir ", root, ": another run is using it (process ",
                                   ::getpid(), " on ", read_machine_info().hostname, ", since ",
                                   since, ")"));
    REQUIRE(error.remedy() == cat("wait for that run or stop it (kill ", ::getpid(),
                                  "), or choose another output_dir"));
  }
  REQUIRE(read_file(root + "/.lock") == text);
}

TEST_CASE("the message about a holder on another machine does not suggest a kill here") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  const RunFolder first(root, RunStart::kFresh);
  std::ofstream(root + "/.lock") << "pid 4242\nhost elsewhere\nsince 2026-11-24T10:00:00Z\n";
  const Error error = refusal(root, RunStart::kFresh);
  REQUIRE(error.message() ==
          cat("output_dir ", root,
              ": another run is using it (process 4242 on elsewhere, since 2026-11-24T10:00:00Z)"));
  REQUIRE(error.remedy() ==
          "wait for that run or stop it (kill 4242 on elsewhere), or choose another output_dir");
}

TEST_CASE("a run that has the lock but has not written its name yet keeps the folder in use") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  const RunFolder first(root, RunStart::kFresh);
  std::filesystem::resize_file(root + "/.lock", 0);
  const Error error = refusal(root, RunStart::kFresh);
  REQUIRE(error.message() == cat("output_dir ", root,
                                 ": another run is using it (a process that "
                                 "has not written its name yet)"));
  REQUIRE(error.remedy() == "wait for that run or stop it, or choose another output_dir");
}

TEST_CASE("a process that ends releases its folder, even if it is killed") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunFolder folder(root, RunStart::kFresh);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  REQUIRE(refusal(root, RunStart::kFresh).message().find(cat("process ", child, " on ")) !=
          std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE_NOTHROW(RunFolder(root, RunStart::kFresh));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a folder that is not empty is refused without resume, and left as it was") {
  const TemporaryFolder base;
  put_file(base / "thesis.tex", "years of work");
  const Error error = refusal(base.path(), RunStart::kFresh);
  REQUIRE(error.code() == ExitCode::kUsage);
  REQUIRE(error.message() ==
          cat("output_dir ", base.path(), ": the folder is not empty (it holds thesis.tex)"));
  // The folder has no run that could be continued.
  REQUIRE(error.remedy() == "choose another output_dir");
  REQUIRE(posix_files().list(base.path()) == std::vector<std::string>{"thesis.tex"});
}

TEST_CASE("a long list of existing files is shortened") {
  const TemporaryFolder base;
  for (const char* name : {"a", "b", "c", "d", "e"}) put_file(base / name, "");
  REQUIRE(
      refusal(base.path(), RunStart::kFresh).message() ==
      cat("output_dir ", base.path(), ": the folder is not empty (it holds a, b, c and 2 more)"));
}

TEST_CASE("an earlier run is refused without resume and accepted with it") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  {
    const RunFolder first(root, RunStart::kFresh);
    put_file(first.paths().manifest(), "{}");
    put_file(first.paths().log(0), "text");
  }
  REQUIRE(refusal(root, RunStart::kFresh).message() ==
          cat("output_dir ", root, ": the folder is not empty (it holds logs, run.json)"));
  REQUIRE(refusal(root, RunStart::kFresh).remedy() ==
          "continue the run that is there with --resume auto, or choose another output_dir");
  const RunFolder second(root, RunStart::kResume);
  REQUIRE(second.has_earlier_run());
}

TEST_CASE("a run that ended before it wrote anything does not block the folder") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  { const RunFolder first(root, RunStart::kFresh); }
  const RunFolder second(root, RunStart::kFresh);
  REQUIRE_FALSE(second.has_earlier_run());
}

TEST_CASE("a file that a kill left incomplete is removed by the next run of the folder") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  { const RunFolder first(root, RunStart::kFresh); }
  for (const std::string& name : RunPaths::replaced_files())
    put_file(make_unique_name(cat(root, "/", name)), "");
  const RunFolder second(root, RunStart::kFresh);
  REQUIRE(posix_files().list(root) ==
          std::vector<std::string>{".lock", "checkpoints", "logs", "tensorboard"});
}

TEST_CASE("a folder without a run is not changed, whatever its files are called") {
  const TemporaryFolder base;
  put_file(base / "run.json.tmp-0123456a", "years of work");
  REQUIRE(refusal(base.path(), RunStart::kFresh).code() == ExitCode::kUsage);
  REQUIRE(posix_files().list(base.path()) == std::vector<std::string>{"run.json.tmp-0123456a"});
}

TEST_CASE("a run without run.json is resumed only if its folder has its lock and its checkpoints") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  { const RunFolder first(root, RunStart::kFresh); }
  put_file(root + "/metrics.jsonl", "{}");
  const Error error = refusal(root, RunStart::kResume);
  REQUIRE(error.code() == ExitCode::kUsage);
  REQUIRE(error.message() ==
          cat("output_dir ", root,
              ": the folder is not empty (it holds metrics.jsonl) and no run.json, "
              "so there is no run to resume"));
  std::filesystem::create_directory(root + "/checkpoints/step-00000001");
  put_file(root + "/checkpoints/step-00000001/checkpoint.json", "{}");
  REQUIRE_FALSE(RunFolder(root, RunStart::kResume).has_earlier_run());
  std::filesystem::remove(root + "/.lock");
  REQUIRE(refusal(root, RunStart::kResume).code() == ExitCode::kUsage);
}

TEST_CASE("a run in a folder with a similar name is suggested") {
  const TemporaryFolder base;
  for (const char* name : {"mine", "minor", "other"})
    std::filesystem::create_directory(base / name);
  for (const char* name : {"mine", "other"}) put_file(base / name + "/run.json", "{}");
  REQUIRE(RunFolder(base / "mien", RunStart::kResume).similar_run() == base / "mine");
  REQUIRE(RunFolder(base / "else", RunStart::kResume).similar_run().empty());
}

TEST_CASE("a step of a missing run is refused before anything is created") {
  const TemporaryFolder base;
  std::filesystem::create_directory(base / "mine");
  put_file(base / "mine/run.json", "{}");
  const Error error = refusal(base / "mien", RunStart::kResumeStep);
  REQUIRE(error.code() == ExitCode::kUsage);
  REQUIRE(error.message() == cat("output_dir ", base / "mien",
                                 " contains no run to resume (did you mean \"", base / "mine",
                                 "\"?)"));
  REQUIRE(error.remedy() ==
          "correct output_dir, or give --resume auto, which starts a new run if there is none");
  REQUIRE(posix_files().list(base.path()) == std::vector<std::string>{"mine"});
  REQUIRE(RunFolder(base / "mine", RunStart::kResumeStep).has_earlier_run());
}

TEST_CASE("a file that blocks a run's folder is reported without changing the folder") {
  const TemporaryFolder base;
  put_file(base / "thesis.tex", "years of work");
  REQUIRE(run_folder_problem(base.path(), RunStart::kFresh)->message() ==
          refusal(base.path(), RunStart::kFresh).message());
  REQUIRE_FALSE(run_folder_problem(base / "new", RunStart::kFresh));
  REQUIRE(run_folder_problem(base / "new", RunStart::kResumeStep)->code() == ExitCode::kUsage);
  REQUIRE(posix_files().list(base.path()) == std::vector<std::string>{"thesis.tex"});
}

TEST_CASE("a check whether a run is active does not block the next run") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  { const RunFolder first(root, RunStart::kFresh); }
  const int looking = ::open((root + "/.lock").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(::flock(looking, LOCK_SH | LOCK_NB) == 0);
  std::thread leaves([looking] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ::close(looking);
  });
  REQUIRE_NOTHROW(RunFolder(root, RunStart::kFresh));
  leaves.join();
}

TEST_CASE("resume starts a new run in an empty folder, and refuses a folder without a run") {
  const TemporaryFolder base;
  REQUIRE_FALSE(RunFolder(base / "new", RunStart::kResume).has_earlier_run());
  std::filesystem::create_directory(base / "photos");
  put_file(base / "photos/cat.jpg", "");
  const Error error = refusal(base / "photos", RunStart::kResume);
  REQUIRE(error.code() == ExitCode::kUsage);
  REQUIRE(error.message() == cat("output_dir ", base / "photos",
                                 ": the folder is not empty (it holds cat.jpg) and no run.json, "
                                 "so there is no run to resume"));
  REQUIRE(error.remedy() == "choose another output_dir");
  REQUIRE(posix_files().list(base / "photos") == std::vector<std::string>{"cat.jpg"});
}

TEST_CASE("an output_dir that cannot be one is refused") {
  const TemporaryFolder base;
  put_file(base / "file", "");
  const Error error = refusal(base / "file", RunStart::kFresh);
  REQUIRE(error.code() == ExitCode::kUsage);
  REQUIRE(error.message() == cat("output_dir ", base / "file", ": it exists and is not a folder"));
  REQUIRE(error.remedy() == "choose another output_dir");
  REQUIRE(refusal("", RunStart::kFresh).message() == "output_dir is empty");
  REQUIRE(refusal(base / "file/run", RunStart::kFresh).code() == ExitCode::kEnvironment);
}

TEST_CASE("a lock file that is a link is not followed") {
  const TemporaryFolder base;
  put_file(base / "precious", "text");
  std::filesystem::create_directory(base / "run");
  std::filesystem::create_symlink(base / "precious", base / "run/.lock");
  REQUIRE(refusal(base / "run", RunStart::kFresh).message() ==
          base / "run/.lock" + ": open failed: Too many levels of symbolic links");
  REQUIRE(read_file(base / "precious") == "text");
}

TEST_CASE("a folder that another run has created again no longer belongs to this run") {
  const TemporaryFolder base;
  const std::string root = base / "run";
  const RunFolder first(root, RunStart::kFresh);
  CHECK_FALSE(first.belongs_to_another_run());
  std::filesystem::remove_all(root);
  CHECK_FALSE(first.belongs_to_another_run());  // only removed: the next save creates it again
  const RunFolder second(root, RunStart::kFresh);
  CHECK(first.belongs_to_another_run());
  CHECK_FALSE(second.belongs_to_another_run());
  second.check_still_owned();
  CHECK_THROWS_WITH(
      first.check_still_owned(),
      Catch::Contains("was removed while this run wrote into it, and another run has it now"));
}

TEST_CASE("a moved RunFolder keeps its lock until the new object is destroyed") {
  const TemporaryFolder base;
  RunFolder first(base / "a", RunStart::kFresh);
  {
    const RunFolder second = std::move(first);
    REQUIRE(refusal(base / "a", RunStart::kFresh).code() == ExitCode::kEnvironment);
  }
  REQUIRE_NOTHROW(RunFolder(base / "a", RunStart::kFresh));
}

}  // namespace
}  // namespace ftrun
