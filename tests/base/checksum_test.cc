#include "base/checksum.h"

#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

std::string xxh3_text(const std::string& text) {
  return hex64(xxh3(text.data(), text.size()));
}

TEST_CASE("XXH3 gives the published values") {
  CHECK(xxh3_text("") == "2d06800538d394c2");
  CHECK(xxh3_text("a") == "e6c632b61e964e1f");
  CHECK(xxh3_text("abc") == "78af5f94892f3950");
}

TEST_CASE("XXH3 of large data is the same with the instructions of every CPU") {
  std::vector<unsigned char> data(100'003);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 167 + (i >> 9));
  // The scalar code of xxHash 0.8.1 computed this value.
  CHECK(hex64(xxh3(data.data(), data.size())) == "e8c6f843e136ce29");
  CHECK(hex64(xxh3(data.data(), 1024)) == "98a2d56477567ef5");
}

TEST_CASE("XXH3 of data that arrives in pieces of any size equals XXH3 of all of it at once") {
  std::mt19937_64 random(3);
  for (const size_t size : {0, 1, 17, 240, 241, 1024, 100'000}) {
    std::vector<unsigned char> data(size);
    for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
    Xxh3Stream stream;
    for (size_t at = 0; at < size;) {
      const size_t part = std::min(size - at, static_cast<size_t>(random() % 5000));
      stream.update(data.data() + at, part);
      at += part;
    }
    INFO(size);
    CHECK(stream.digest() == xxh3(data.data(), size));
  }
}

TEST_CASE("a stream's digest may be read more than once, and the stream continues afterwards") {
  Xxh3Stream stream;
  stream.update("ab", 2);
  CHECK(stream.digest() == stream.digest());
  stream.update("c", 1);
  CHECK(hex64(stream.digest()) == "78af5f94892f3950");
}

TEST_CASE("CRC-32C gives the values of RFC 3720") {
  CHECK(crc32c("123456789", 9) == 0xE3069283U);
  CHECK(crc32c("", 0) == 0U);
  std::array<unsigned char, 32> bytes{};
  CHECK(crc32c(bytes.data(), bytes.size()) == 0x8A9136AAU);
  bytes.fill(0xFF);
  CHECK(crc32c(bytes.data(), bytes.size()) == 0x62A8AB43U);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  CHECK(crc32c(bytes.data(), bytes.size()) == 0x46DD794EU);
}

TEST_CASE("a checksum is written as sixteen lower-case hexadecimal digits") {
  CHECK(hex64(0) == "0000000000000000");
  CHECK(hex64(0xDEADBEEF) == "00000000deadbeef");
  CHECK(hex64(~uint64_t{0}) == "ffffffffffffffff");
}

}  // namespace
}  // namespace ftrun
