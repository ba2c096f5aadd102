#include "report/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/machine_info.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kNameStart = "events.out.tfevents.";
/// The largest number of ten digits.
constexpr int64_t kMaxSeconds = 9'999'999'999;

// Protobuf's wire types; a field starts with (number << 3 | type).
constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kFixed32 = 5;

template <typename Unsigned>
void put_little_endian(std::string& out, Unsigned value) {
  for (size_t i = 0; i < sizeof(value); ++i, value >>= 8)
    out += static_cast<char>(static_cast<unsigned char>(value & 0xFF));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, uint32_t type) {
  put_varint(out, field << 3 | type);
}

void put_int(std::string& out, uint32_t field, int64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, kFixed64);
  put_little_endian(out, std::bit_cast<uint64_t>(value));
}

void put_float(std::string& out, uint32_t field, float value) {
  put_key(out, field, kFixed32);
  put_little_endian(out, std::bit_cast<uint32_t>(value));
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes.data(), bytes.size()), 15) + 0xa282ead8U;
}

std::string encode_record(std::string_view data) {
  std::string out;
  put_little_endian(out, static_cast<uint64_t>(data.size()));
  put_little_endian(out, masked_crc(out));
  out += data;
  put_little_endian(out, masked_crc(data));
  return out;
}

std::string encode_event(double wall_seconds, int64_t step) {
  std::string out;
  put_double(out, 1, wall_seconds);
  put_int(out, 2, step);
  return out;
}

std::string encode_scalar_event(int64_t step, const std::vector<Scalar>& scalars,
                                double wall_seconds) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_float(value, 2, static_cast<float>(scalar.value));
    put_bytes(summary, 1, value);
  }
  std::string out = encode_event(wall_seconds, step);
  put_bytes(out, 5, summary);
  return out;
}

std::string encode_version_event(double wall_seconds) {
  std::string out = encode_event(wall_seconds, 0);
  put_bytes(out, 3, "brain.Event:2");
  return out;
}

std::string encode_restart_event(double wall_seconds, int64_t first_step) {
  std::string session;
  put_int(session, 1, 1);  // START
  std::string out = encode_event(wall_seconds, first_step);
  put_bytes(out, 7, session);
  return out;
}

std::string event_file_name(const TensorBoardOptions& options, int64_t begun) {
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%010lld", static_cast<long long>(begun));
  return cat(kNameStart, seconds.data(), ".", options.hostname, ".", options.pid, ".0");
}

/// ByteReader reads the bytes of a file or message from the front. After a read beyond the end,
/// all further reads fail.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : remaining_(bytes) {}

  bool failed() const { return failed_; }
  bool at_end() const { return remaining_.empty() || failed_; }
  size_t remaining() const { return remaining_.size(); }

  std::string_view read(uint64_t size) {
    if (size > remaining_.size()) failed_ = true;
    if (failed_) return {};
    const std::string_view part = remaining_.substr(0, size);
    remaining_.remove_prefix(size);
    return part;
  }
  template <typename Unsigned>
  Unsigned read_little_endian() {
    Unsigned value = 0;
    const std::string_view part = read(sizeof(value));
    for (size_t i = part.size(); i-- > 0;)
      value = static_cast<Unsigned>(value << 8 | static_cast<unsigned char>(part[i]));
    return value;
  }
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !failed_; shift += 7) {
      const auto byte = read_little_endian<uint8_t>();
      value |= static_cast<uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
    failed_ = true;
    return 0;
  }

 private:
  std::string_view remaining_;
  bool failed_ = false;
};

/// Returns the step of an event that holds scalars; -1 for an event without scalars; nothing for an
/// event that ftrun would not write.
std::optional<int64_t> step_of_scalars(std::string_view event) {
  ByteReader bytes(event);
  int64_t step = 0;
  bool has_scalars = false;
  while (!bytes.at_end()) {
    const uint64_t key = bytes.read_varint();
    if (key == (1U << 3 | kFixed64)) {
      bytes.read(sizeof(double));
    } else if (key == (2U << 3 | kVarint)) {
      step = static_cast<int64_t>(bytes.read_varint());
    } else if (key == (3U << 3 | kBytes) || key == (5U << 3 | kBytes) ||
               key == (7U << 3 | kBytes)) {
      has_scalars = has_scalars || key >> 3 == 5;
      bytes.read(bytes.read_varint());
    } else {
      return std::nullopt;
    }
  }
  if (bytes.failed()) return std::nullopt;
  return has_scalars ? step : -1;
}

/// Returns the event file without the scalars of `first_step` and later steps, and without an
/// incomplete last record, which a killed run leaves. Returns nothing if ftrun did not write the
/// file, or it is damaged.
std::optional<std::string> records_before_step(std::string_view file, int64_t first_step) {
  std::string kept_records;
  bool has_record = false;
  for (ByteReader bytes(file); !bytes.at_end();) {
    const std::string_view record = file.substr(file.size() - bytes.remaining());
    const std::string_view length = record.substr(0, sizeof(uint64_t));
    const auto size = bytes.read_little_endian<uint64_t>();
    const auto length_crc = bytes.read_little_endian<uint32_t>();
    const std::string_view data = bytes.read(size);
    const auto data_crc = bytes.read_little_endian<uint32_t>();
    if (bytes.failed()) break;
    has_record = true;
    const std::optional<int64_t> step = step_of_scalars(data);
    if (length_crc != masked_crc(length) || data_crc != masked_crc(data) || !step)
      return std::nullopt;
    if (*step < first_step) kept_records += record.substr(0, record.size() - bytes.remaining());
  }
  return has_record ? std::optional(kept_records) : std::nullopt;
}

/// Removes from the files of earlier starts the steps that will be written again, so that readers
/// find each step once.
void remove_later_steps(const std::string& folder, int64_t first_step) {
  for (const std::string& name : posix_files().list(folder)) {
    const std::string path = folder + "/" + name;
    std::error_code error;
    if (!name.starts_with(kNameStart) || !fs::is_regular_file(fs::symlink_status(path, error)))
      continue;
    const std::string old_bytes = read_file(path, INT64_MAX);
    const std::optional<std::string> new_bytes = records_before_step(old_bytes, first_step);
    if (new_bytes && *new_bytes != old_bytes) write_file_atomic(posix_files(), path, *new_bytes);
  }
}

/// Returns the time for the name of a new file, later than in all existing names. Readers read the
/// files in the order of their names, and the clock may have been set back.
int64_t next_file_seconds(const std::string& folder, double wall_seconds) {
  auto seconds = static_cast<int64_t>(wall_seconds);
  for (const std::string& name : posix_files().list(folder)) {
    if (!name.starts_with(kNameStart)) continue;
    int64_t file_seconds = 0;
    std::from_chars(name.data() + kNameStart.size(), name.data() + name.size(), file_seconds);
    if (file_seconds < kMaxSeconds) seconds = std::max(seconds, file_seconds + 1);
  }
  return seconds;
}

/// Removes later steps from earlier files, and returns the path for a new writer's file.
std::string prepare_file(const std::string& folder, const TensorBoardOptions& options) {
  if (options.first_step) remove_later_steps(folder, *options.first_step);
  return cat(folder, "/",
             event_file_name(options, next_file_seconds(folder, options.wall_seconds)));
}

TensorBoardOptions fill_defaults(TensorBoardOptions options) {
  if (options.hostname.empty()) options.hostname = read_machine_info().hostname;
  if (options.pid == 0) options.pid = ::getpid();
  if (options.wall_seconds == 0) options.wall_seconds = wall_seconds();
  return options;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::string& folder, TensorBoardOptions options)
    : options_(fill_defaults(std::move(options))), file_(prepare_file(folder, options_)) {
  std::string start = encode_record(encode_version_event(options_.wall_seconds));
  if (options_.first_step)
    start += encode_record(encode_restart_event(options_.wall_seconds, *options_.first_step));
  file_.append(start);
}

void TensorBoardWriter::write(int64_t step, const std::vector<Scalar>& scalars) {
  write(step, scalars, wall_seconds());
}

void TensorBoardWriter::write(int64_t step, const std::vector<Scalar>& scalars,
                              double wall_seconds) {
  file_.append(encode_record(encode_scalar_event(step, scalars, wall_seconds)));
}

}  // namespace ftrun
