#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>

#include "base/append_file.h"
#include "base/log.h"
#include "base/text.h"
#include "report/metrics_writer.h"
#include "report/step_metrics.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::error_of;
using testing::TemporaryFolder;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string short_line(int64_t step) {
  return cat("{\"step\":", step, "}\n");
}

TEST_CASE("a step is one JSON object with the documented keys in order") {
  StepMetrics m = example_step(7);
  m.loss_scale = 65536;
  m.skipped = true;
  m.counters = {{"bytes_sent", 1000}};
  m.memory = {{"parameters", 4096}, {"gradients", 2048}};
  REQUIRE(metrics_line(m) ==
          R"({"step":7,"samples":28,"loss":2.375,"grad_norm":1.25,"lr":1e-05,"tokens":2048,)"
          R"("tokens_per_second":1024.0,"step_seconds":2.0,"data_wait_seconds":0.001,)"
          R"("exposed_communication_seconds":0.5,"loss_scale":65536.0,"skipped":true,)"
          R"("counters":{"bytes_sent":1000},)"
          R"("memory":{"parameters":4096,"gradients":2048}})");
}

TEST_CASE("each evaluation is a separate line, and is read back with its step") {
  StepMetrics m = example_step(7);
  m.evaluations = {{.set = "validation", .loss = 0, .accuracy = 0.25, .tokens = 64, .seconds = 1.5},
                   {.set = "code", .loss = kInfinity, .tokens = 8}};
  const std::string lines = metrics_lines(m);
  REQUIRE(
      lines ==
      metrics_line(m) + "\n" +
          R"({"step":7,"evaluation":"validation","loss":0.0,"perplexity":1.0,"accuracy":0.25,)"
          R"("tokens":64,"seconds":1.5})"
          "\n"
          R"({"step":7,"evaluation":"code","loss":"Infinity","perplexity":"Infinity","tokens":8,)"
          R"("seconds":0.0})"
          "\n");
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  put_file(path, lines + R"({"step":8,"evaluation":3,"loss":1})"
                         "\n{\"step\":9,\"lo");
  int64_t unreadable = 0;
  const std::vector<StepMetrics> back = read_metrics(path, &unreadable);
  REQUIRE(back.size() == 1);
  REQUIRE(back[0].trained);
  REQUIRE(back[0].loss == m.loss);
  REQUIRE(back[0].evaluations.size() == 2);
  REQUIRE(back[0].evaluations[0].set == "validation");
  REQUIRE(back[0].evaluations[0].accuracy == 0.25);
  REQUIRE(back[0].evaluations[1].loss == kInfinity);
  REQUIRE_FALSE(back[0].evaluations[1].accuracy);
  REQUIRE(unreadable == 2);
}

TEST_CASE("an evaluation before the first step writes no training fields") {
  StepMetrics m;
  m.trained = false;
  m.evaluations = {{.set = "validation", .loss = 3.5}};
  REQUIRE(metrics_lines(m) == evaluation_line(0, m.evaluations[0]) + "\n");
  const auto back = parse_metrics_line(evaluation_line(0, m.evaluations[0]));
  REQUIRE(back);
  REQUIRE_FALSE(back->trained);
  REQUIRE(back->evaluations.at(0).loss == 3.5);
}

TEST_CASE("doubles are read back with every bit") {
  for (const double value : {0.1, 1.0 / 3, 2.2250738585072014e-308, 5e-324, 1.7976931348623157e308,
                             -0.30000000000000004, 3.141592653589793, 9007199254740993.0}) {
    StepMetrics m = example_step(1);
    m.loss = value;
    REQUIRE(parse_metrics_line(metrics_line(m))->loss == value);
  }
}

TEST_CASE("values that are not finite are written as words and read back") {
  StepMetrics m = example_step(1);
  m.loss = kNan;
  m.gradient_norm = kInfinity;
  const std::string line = metrics_line(m);
  REQUIRE(line.find(R"("loss":"NaN","grad_norm":"Infinity")") != std::string::npos);
  const auto back = parse_metrics_line(line);
  REQUIRE(std::isnan(back->loss));
  REQUIRE(back->gradient_norm == kInfinity);
}

TEST_CASE("lines that are not step objects are not read") {
  for (const char* line : {"", "{", "[]", "null", "7", R"({"loss":1})", R"({"step":"7"})",
                           R"({"step":1.5})", R"({"step":1,"loss":[]})", R"({"step":1,"loss":"x"})",
                           R"({"step":1,"memory":{"a":"b"}})", R"({"step":1} x)"})
    REQUIRE_FALSE(parse_metrics_line(line));
  REQUIRE(parse_metrics_line(R"({"step":1,"of_a_later_version":[1]})"));
  REQUIRE_FALSE(parse_metrics_line(std::string(100000, '[')));
}

TEST_CASE("a name that is not UTF-8 does not end the run") {
  StepMetrics m;
  m.trained = false;
  m.counters = {{"a\xff", 1}};
  REQUIRE(metrics_line(m) == "{\"step\":0,\"counters\":{\"a\xEF\xBF\xBD\":1}}");
}

TEST_CASE("each line is in the file when write returns, for its owner alone") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsWriter writer(path, 0);
  writer.write(example_step(1));
  REQUIRE(read_file(path) == metrics_line(example_step(1)) + "\n");
  writer.write(example_step(2));
  REQUIRE(read_metrics(path).size() == 2);
  REQUIRE(read_metrics(path)[1].step == 2);
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0600);
}

TEST_CASE(
    "a resume removes the lines that it will write again and keeps the others byte for byte") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string kept =
      "{\"step\":0,  \"of_a_later_version\": 9}\n" + short_line(1) + short_line(2);
  put_file(path, kept + short_line(3) + short_line(4));
  MetricsWriter writer(path, 3);
  REQUIRE(read_file(path) == kept);
  REQUIRE_FALSE(std::filesystem::exists(path + ".tmp"));
  writer.write(example_step(3));
  REQUIRE(read_file(path) == kept + metrics_line(example_step(3)) + "\n");
}

TEST_CASE(
    "a file that is removed or replaced while a run writes it is begun again, with a warning") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsWriter writer(path, 0);
  writer.write(example_step(1));
  writer.write(example_step(2));
  std::filesystem::remove(path);
  start_log({.file = folder / "log", .to_stderr = false});
  writer.write(example_step(3));
  const std::string log = read_file(folder / "log");
  writer.write(example_step(4));
  REQUIRE(read_file(folder / "log") == log);
  start_log({});
  REQUIRE(log.ends_with(cat("warning: ", path,
                            ": was removed or replaced while this run writes it; the run writes "
                            "a new file, without the lines up to step 2\n")));
  REQUIRE(read_file(path) ==
          metrics_line(example_step(3)) + "\n" + metrics_line(example_step(4)) + "\n");
}

TEST_CASE("a line that a crash tore is removed on opening") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const auto opened = [&](const std::string& before) {
    put_file(path, before);
    const MetricsWriter writer(path, 100);
    return read_file(path);
  };
  const std::string two = short_line(1) + short_line(2);
  REQUIRE(opened(two + R"({"step":3,"lo)") == two);
  REQUIRE(opened(two + std::string(4096, '\0')) == two);
  REQUIRE(opened(short_line(1) + R"({"step":2})") == two);  // only the line end is missing
  REQUIRE(opened(two) == two);
  REQUIRE(opened("").empty());
}

TEST_CASE("a file with nothing to remove is not replaced") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  put_file(path, short_line(1));
  struct stat before {
  }, after{};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  const MetricsWriter writer(path, 2);
  REQUIRE(::stat(path.c_str(), &after) == 0);
  REQUIRE(before.st_ino == after.st_ino);
}

TEST_CASE("a record that the disk has no room for is not written in part") {
  const TemporaryFolder folder;
  AppendFile file(folder / "records");
  file.append("whole\n");
  // The file-size limit simulates a disk with room for ten more bytes.
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const rlimit tight{16, old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
  const Error error = error_of([&] { file.append("a record of more bytes\n"); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  REQUIRE(error.code() == ExitCode::kEnvironment);
  REQUIRE(error.message() == folder / "records" + ": write failed: File too large");
  REQUIRE(error.remedy() == "raise the limit of file sizes (ulimit -f), which is 16 B");
  REQUIRE(read_file(folder / "records") == "whole\n");
  file.append("next\n");
  REQUIRE(read_file(folder / "records") == "whole\nnext\n");
}

TEST_CASE("a write to a full device fails with a message that says so") {
  AppendFile file("/dev/full");
  REQUIRE(error_of([&] { file.append("x"); }).message() ==
          "/dev/full: write failed: No space left on device");
}

TEST_CASE("a file is not opened through a link or without its folder") {
  const TemporaryFolder folder;
  put_file(folder / "target", "");
  std::filesystem::create_symlink(folder / "target", folder / "link");
  REQUIRE(error_of([&] { AppendFile file(folder / "link"); }).message() ==
          folder / "link" + ": open failed: Too many levels of symbolic links");
  const Error error = error_of([&] { MetricsWriter writer(folder / "no/metrics.jsonl", 0); });
  REQUIRE(error.code() == ExitCode::kEnvironment);
  REQUIRE(error.message() ==
          folder / "no/metrics.jsonl" + ": open failed: No such file or directory");
  REQUIRE(error.remedy() == "check that the folder exists and that this user may write to it");
}

TEST_CASE("a step's charts are named by group") {
  StepMetrics m = example_step(1);
  m.loss_scale = 2;
  m.skipped = true;
  m.evaluations = {{.set = "code", .loss = 0, .accuracy = 0.5}};
  m.counters = {{"bytes_sent", 5}};
  m.memory = {{"parameters", 6}};
  std::vector<std::string> names;
  for (const Scalar& scalar : tensorboard_scalars(m))
    names.push_back(scalar.tag + "=" + number_text(scalar.value));
  REQUIRE(
      join(names, " ") ==
      "train/loss=3.125 train/samples=4 train/grad_norm=1.25 train/learning_rate=1e-05 "
      "train/tokens_per_second=1024 time/step_seconds=2 time/data_wait_seconds=0.001 "
      "time/exposed_communication_seconds=0.5 train/loss_scale=2 train/skipped=1 "
      "code/loss=0 code/perplexity=1 code/accuracy=0.5 counters/bytes_sent=5 memory/parameters=6");
  m = StepMetrics{};
  m.trained = false;
  REQUIRE(tensorboard_scalars(m).empty());
}

}  // namespace
}  // namespace ftrun
