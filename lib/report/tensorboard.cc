#include "report/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "report/machine.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

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

std::string record(std::string_view data) {
  std::string out;
  put_little_endian(out, static_cast<uint64_t>(data.size()));
  put_little_endian(out, masked_crc(out));
  out += data;
  put_little_endian(out, masked_crc(data));
  return out;
}

std::string event(double wall_seconds, int64_t step) {
  std::string out;
  put_double(out, 1, wall_seconds);
  put_int(out, 2, step);
  return out;
}

std::string scalar_event(int64_t step, const std::vector<Scalar>& scalars, double wall_seconds) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_float(value, 2, static_cast<float>(scalar.value));
    put_bytes(summary, 1, value);
  }
  std::string out = event(wall_seconds, step);
  put_bytes(out, 5, summary);
  return out;
}

std::string version_event(double wall_seconds) {
  std::string out = event(wall_seconds, 0);
  put_bytes(out, 3, "brain.Event:2");
  return out;
}

std::string restart_event(double wall_seconds, int64_t first_step) {
  std::string session;
  put_int(session, 1, 1);  // START
  std::string out = event(wall_seconds, first_step);
  put_bytes(out, 7, session);
  return out;
}

std::string file_name(const TensorBoardOptions& options) {
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%010lld",
                static_cast<long long>(options.wall_seconds));
  return cat("events.out.tfevents.", seconds.data(), ".", options.hostname, ".", options.pid, ".0");
}

TensorBoardOptions filled(TensorBoardOptions options) {
  if (options.hostname.empty()) options.hostname = read_machine().hostname;
  if (options.pid == 0) options.pid = ::getpid();
  if (options.wall_seconds == 0) options.wall_seconds = wall_seconds();
  return options;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::string& folder, TensorBoardOptions options)
    : options_(filled(std::move(options))), file_(folder + "/" + file_name(options_)) {
  std::string start = record(version_event(options_.wall_seconds));
  if (options_.first_step)
    start += record(restart_event(options_.wall_seconds, *options_.first_step));
  file_.append(start);
}

void TensorBoardWriter::write(int64_t step, const std::vector<Scalar>& scalars) {
  write(step, scalars, wall_seconds());
}

void TensorBoardWriter::write(int64_t step, const std::vector<Scalar>& scalars,
                              double wall_seconds) {
  file_.append(record(scalar_event(step, scalars, wall_seconds)));
}

}  // namespace ftrun
