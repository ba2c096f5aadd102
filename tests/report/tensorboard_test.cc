#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>

#include "base/append_file.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/machine_info.h"
#include "report/csv_monitor.h"
#include "report/tensorboard.h"
#include "report/wall_time.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::TemporaryFolder;

template <typename T>
T take_value(std::string_view& bytes) {
  REQUIRE(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));  // the machines of this project are little-endian
  bytes.remove_prefix(sizeof(T));
  return value;
}

std::string_view take_value(std::string_view& bytes, uint64_t size) {
  REQUIRE(bytes.size() >= size);
  const std::string_view part = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return part;
}

void require_crc(std::string_view bytes, uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8U;
  REQUIRE(((rotated >> 17) | (rotated << 15)) == crc32c(bytes.data(), bytes.size()));
}

/// Returns the records of an event file; checks the two checksums of each record.
std::vector<std::string_view> records_of(std::string_view file) {
  std::vector<std::string_view> records;
  while (!file.empty()) {
    const std::string_view head = file.substr(0, 8);
    const auto size = take_value<uint64_t>(file);
    require_crc(head, take_value<uint32_t>(file));
    records.push_back(take_value(file, size));
    require_crc(records.back(), take_value<uint32_t>(file));
  }
  return records;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take_value<uint8_t>(bytes);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) return value;
  }
}

/// The fields of one message by number: fixed and varint fields as 64 bits, others as bytes.
struct Message {
  std::multimap<uint64_t, uint64_t> numbers;
  std::multimap<uint64_t, std::string_view> bytes;
};

Message message_of(std::string_view text) {
  Message message;
  while (!text.empty()) {
    const uint64_t key = take_varint(text);
    switch (key & 7) {
      case 0:
        message.numbers.emplace(key >> 3, take_varint(text));
        break;
      case 1:
        message.numbers.emplace(key >> 3, take_value<uint64_t>(text));
        break;
      case 2:
        message.bytes.emplace(key >> 3, take_value(text, take_varint(text)));
        break;
      case 5:
        message.numbers.emplace(key >> 3, take_value<uint32_t>(text));
        break;
      default:
        FAIL("unknown wire type");
    }
  }
  return message;
}

double wall_time(const Message& event) {
  return std::bit_cast<double>(event.numbers.find(1)->second);
}
int64_t event_step(const Message& event) {
  return static_cast<int64_t>(event.numbers.find(2)->second);
}

/// Returns "tag=value" of a scalar event.
std::vector<std::pair<std::string, float>> tag_values(const Message& event) {
  std::vector<std::pair<std::string, float>> out;
  const Message summary = message_of(event.bytes.find(5)->second);
  for (const auto& [field, text] : summary.bytes) {
    REQUIRE(field == 1);
    const Message value = message_of(text);
    out.emplace_back(value.bytes.find(1)->second,
                     std::bit_cast<float>(static_cast<uint32_t>(value.numbers.find(2)->second)));
  }
  return out;
}

TEST_CASE("an event file has the name and the beginning that TensorBoard expects") {
  const TemporaryFolder folder;
  const TensorBoardWriter writer(folder.path(),
                                 {.hostname = "node7", .pid = 42, .wall_seconds = 1234.5});
  REQUIRE(writer.path() == folder / "events.out.tfevents.0000001234.node7.42.0");
  const std::string file = read_file(writer.path());
  const auto records = records_of(file);
  REQUIRE(records.size() == 1);
  const Message event = message_of(records[0]);
  REQUIRE(wall_time(event) == 1234.5);
  REQUIRE(event_step(event) == 0);
  REQUIRE(event.bytes.find(3)->second == "brain.Event:2");
}

TEST_CASE("the bytes of a first record agree with the format") {
  const TemporaryFolder folder;
  const TensorBoardWriter writer(folder.path(), {.hostname = "h", .pid = 1, .wall_seconds = 1.0});
  const std::string file = read_file(writer.path());
  const std::string data =
      std::string("\x09\0\0\0\0\0\0\xF0\x3F\x10\0\x1A\x0D", 13) + "brain.Event:2";
  REQUIRE(file.substr(0, 8) == std::string("\x1A\0\0\0\0\0\0\0", 8));
  REQUIRE(file.substr(12, 26) == data);
  REQUIRE(file.size() == 8 + 4 + 26 + 4);
}

TEST_CASE("scalars of a step are one event") {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  writer.write(300, {{"train/loss", 3.25}, {"validation/loss", 0.1}}, 99.25);
  writer.write(int64_t{1} << 40, {{"x", std::numeric_limits<double>::quiet_NaN()}}, 100);
  const std::string file = read_file(writer.path());
  const auto records = records_of(file);
  REQUIRE(records.size() == 3);
  const Message event = message_of(records[1]);
  REQUIRE(wall_time(event) == 99.25);
  REQUIRE(event_step(event) == 300);
  REQUIRE(tag_values(event) == std::vector<std::pair<std::string, float>>{
                                   {"train/loss", 3.25F}, {"validation/loss", 0.1F}});
  const Message last = message_of(records[2]);
  REQUIRE(event_step(last) == int64_t{1} << 40);
  REQUIRE(std::isnan(tag_values(last)[0].second));
}

TEST_CASE("a resumed run tells the charts which steps to drop") {
  const TemporaryFolder folder;
  const TensorBoardWriter writer(folder.path(), {.first_step = 101});
  const std::string file = read_file(writer.path());
  const auto records = records_of(file);
  REQUIRE(records.size() == 2);
  const Message event = message_of(records[1]);
  REQUIRE(event_step(event) == 101);
  const Message session = message_of(event.bytes.find(7)->second);
  REQUIRE(session.numbers.find(1)->second == 1);
}

TEST_CASE("a resumed run has each step once in all event files, read in the order of their names") {
  const TemporaryFolder folder;
  const auto start = [&](std::optional<int64_t> first_step, int64_t last, double wall_seconds) {
    TensorBoardWriter writer(
        folder.path(),
        {.hostname = "h", .pid = 1, .wall_seconds = wall_seconds, .first_step = first_step});
    for (int64_t step = first_step.value_or(1); step <= last; ++step)
      writer.write(step, {{"x", static_cast<float>(wall_seconds)}}, 1);
    return writer.path();
  };
  const std::string first = start(std::nullopt, 6, 1000);
  AppendFile(first).append("a torn record");
  const std::string foreign = folder / "events.out.tfevents.0000000009.other";
  write_file_atomic(posix_files(), foreign, "no events");
  start(5, 7, 1000);  // starts in the same second
  start(3, 4, 900);   // the clock was set back, and an earlier checkpoint was chosen
  std::vector<std::pair<int64_t, float>> found;
  for (const std::string& name : posix_files().list(folder.path())) {
    if (name == "events.out.tfevents.0000000009.other") continue;
    const std::string file = read_file(folder / name);
    for (const std::string_view record : records_of(file))
      if (const Message event = message_of(record); event.bytes.contains(5))
        found.emplace_back(event_step(event), tag_values(event)[0].second);
  }
  REQUIRE(found ==
          std::vector<std::pair<int64_t, float>>{{1, 1000.F}, {2, 1000.F}, {3, 900.F}, {4, 900.F}});
  REQUIRE(read_file(foreign) == "no events");
}

TEST_CASE("an event file is named after this process and the time now by default") {
  const TemporaryFolder folder;
  const double before = wall_seconds();
  TensorBoardWriter writer(folder.path());
  writer.write(1, {{"x", 1}});
  const std::string end = cat(".", read_machine_info().hostname, ".", ::getpid(), ".0");
  REQUIRE(writer.path().ends_with(end));
  const std::string file = read_file(writer.path());
  const double stamped = wall_time(message_of(records_of(file)[1]));
  REQUIRE(stamped >= before);
  REQUIRE(stamped <= wall_seconds());
}

TEST_CASE("numbers are written as Python writes floats") {
  const std::pair<double, const char*> cases[] = {
      {1, "1.0"},
      {0, "0.0"},
      {-0.0, "-0.0"},
      {100000, "100000.0"},
      {0.0001, "0.0001"},
      {0.00001, "1e-05"},
      {1.5e-7, "1.5e-07"},
      {3.25, "3.25"},
      {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},
      {1.25e100, "1.25e+100"},
      {0.1, "0.1"},
      {1.0 / 3, "0.3333333333333333"},
      {std::numeric_limits<double>::quiet_NaN(), "nan"},
      {-std::numeric_limits<double>::infinity(), "-inf"},
      {5e-324, "5e-324"}};
  for (const auto& [value, text] : cases) REQUIRE(python_float_text(value) == text);
}

TEST_CASE("csv_monitor writes DeepSpeed's files") {
  const TemporaryFolder folder;
  CsvMonitor monitor({.output_path = folder.path(), .job_name = "job"});
  StepMetrics m = example_step(1);
  monitor.write(m);
  m = example_step(2);
  m.loss_scale = 65536;
  monitor.write(m);
  REQUIRE(posix_files().list(folder / "job") ==
          std::vector<std::string>{"Train_Samples_loss_scale.csv", "Train_Samples_lr.csv",
                                   "Train_Samples_train_loss.csv"});
  REQUIRE(read_file(folder / "job/Train_Samples_lr.csv") == "step,lr\r\n4,1e-05\r\n8,1e-05\r\n");
  REQUIRE(read_file(folder / "job/Train_Samples_train_loss.csv") ==
          "step,train_loss\r\n4,3.125\r\n8,3.0\r\n");
  REQUIRE(read_file(folder / "job/Train_Samples_loss_scale.csv") ==
          "step,loss_scale\r\n8,65536.0\r\n");
}

TEST_CASE("csv_monitor continues a resumed run's rows, with each step once and one header") {
  const TemporaryFolder folder;
  const std::string path = folder / "DeepSpeedJobName/Train_a_b.csv";
  const auto write = [&](std::optional<int64_t> resumed, int64_t first, int64_t last) {
    CsvMonitor monitor({.output_path = folder.path(), .resumed_samples = resumed});
    for (int64_t step = first; step <= last; ++step)
      monitor.write("Train/a b", static_cast<double>(first), 4 * step);
  };
  write(std::nullopt, 1, 3);
  // The run was killed in the middle of a row, and is resumed after step 2.
  AppendFile(path).append("16,1");
  write(8, 3, 4);
  REQUIRE(read_file(path) == "step,a b\r\n4,1.0\r\n8,1.0\r\n12,3.0\r\n16,3.0\r\n");
  // The run resumes from a step before the last one written, and before any checkpoint.
  write(4, 2, 2);
  REQUIRE(read_file(path) == "step,a b\r\n4,1.0\r\n8,2.0\r\n");
  write(0, 1, 1);
  REQUIRE(read_file(path) == "step,a b\r\n4,1.0\r\n");
  // A file may have the header and steps twice, if starts of a run only appended to it.
  AppendFile(path).append("8,1.0\r\n12,1.0\r\nstep,a b\r\n8,2.0\r\n12,2.0\r\n");
  write(12, 4, 4);
  REQUIRE(read_file(path) == "step,a b\r\n4,1.0\r\n8,2.0\r\n12,2.0\r\n16,4.0\r\n");
}

TEST_CASE("files that another run has left for csv_monitor are moved away") {
  const TemporaryFolder folder;
  for (const double value : {1.0, 2.0})
    CsvMonitor({.output_path = folder.path(), .job_name = "job"}).write("Train/a", value, 4);
  REQUIRE(read_file(folder / "job/Train_a.csv") == "step,a\r\n4,2.0\r\n");
  const std::vector<std::string> names = posix_files().list(folder / "job");
  REQUIRE(names.size() == 2);
  REQUIRE(names[1].starts_with("Train_a.csv.other-"));
  REQUIRE(read_file(folder / ("job/" + names[1])) == "step,a\r\n4,1.0\r\n");
}

TEST_CASE("csv_monitor skips a validation before the first step") {
  const TemporaryFolder folder;
  StepMetrics m;
  m.trained = false;
  CsvMonitor({.output_path = folder.path(), .job_name = "job"}).write(m);
  REQUIRE(posix_files().list(folder / "job").empty());
}

}  // namespace
}  // namespace ftrun
