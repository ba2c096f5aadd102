#include "base/streamed_file.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::TemporaryFolder;

constexpr size_t kPiece = 512 << 10;

class Staging {
 public:
  std::span<std::byte> area() const {
    return {static_cast<std::byte*>(memory_.get()), kStagedPieces * kPiece};
  }

 private:
  std::unique_ptr<void, decltype(&std::free)> memory_{
      std::aligned_alloc(kDirectAlignment, kStagedPieces* kPiece), &std::free};
};

std::string pseudorandom_text(size_t size) {
  std::string text(size, '\0');
  uint64_t value = size;
  for (char& c : text)
    c = static_cast<char>((value = value * 6364136223846793005U + 1442695040888963407U) >> 56);
  return text;
}

void write_streamed(const std::string& path, const std::string& text, size_t at_once,
                    bool reserves) {
  const Staging staging;
  StreamedFile file(posix_files().create(path), staging.area());
  if (reserves) file.reserve(static_cast<int64_t>(text.size()));
  for (size_t at = 0; at < text.size(); at += at_once)
    file.write(text.data() + at, std::min(at_once, text.size() - at));
  file.sync();
  file.close();
}

/// Calls are the operations of a stream on the file that it writes.
struct Calls {
  int64_t written = 0;
  int64_t fails_at = -1;
  int64_t synced = 0;
};

class CountedFile : public WritableFile {
 public:
  explicit CountedFile(Calls& calls) : calls_(calls) {}
  void write(const void*, size_t) override { FAIL("pieces have their place"); }
  void write_at(int64_t, const void*, size_t) override {
    if (calls_.written++ == calls_.fails_at)
      throw Error(ExitCode::kEnvironment, "no space", "free some");
  }
  void reserve(int64_t) override {}
  void sync() override { ++calls_.synced; }
  void close() override {}

 private:
  Calls& calls_;
};

TEST_CASE("a file's checksum is the same however it is read") {
  const TemporaryFolder memory("/dev/shm");
  const TemporaryFolder folder;
  const Staging staging;
  for (const size_t size : {0, 1, 4095, 4096, 4097, (8 << 20) - 1, 8 << 20, (8 << 20) + 5}) {
    INFO(size);
    std::string text(size, 'x');
    for (size_t i = 0; i < size; i += 7) text[i] = static_cast<char>(i * 31);
    for (const TemporaryFolder* where : {&memory, &folder}) {
      std::ofstream(*where / "f", std::ios::binary) << text;
      CHECK(xxh3_of_file_uncached(*where / "f", staging.area()) ==
            xxh3(text.data(), text.size()));
    }
  }
  CHECK_THROWS_AS(xxh3_of_file_uncached(folder / "absent", staging.area()), Error);
}

TEST_CASE("a streamed file holds what was streamed, wherever it ends") {
  const TemporaryFolder memory("/dev/shm");
  const TemporaryFolder disk;
  const Staging staging;
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kPiece - 1, kPiece, kPiece + 1,
        kPiece + 4096, kStagedPieces * kPiece, 3 * kStagedPieces * kPiece + 4097})
    for (const size_t at_once : {size_t{70'001}, kPiece, 5 * kPiece + 3})
      for (const TemporaryFolder* where : {&memory, &disk}) {
        INFO(size << " bytes, " << at_once << " at once");
        const std::string text = pseudorandom_text(size);
        write_streamed(*where / "f", text, at_once, at_once % 2 == 0);
        CHECK(read_file(*where / "f") == text);
        CHECK(xxh3_of_file_uncached(*where / "f", staging.area()) ==
              xxh3(text.data(), text.size()));
      }
}

TEST_CASE("bytes streamed to a disk do not stay in the page cache", "[.needs-disk]") {
  const TemporaryFolder disk;
  const std::string text = pseudorandom_text(20 * kPiece + 5000);
  write_streamed(disk / "f", text, kPiece, true);
  const MappedFile mapped(disk / "f");
  std::vector<unsigned char> resident(mapped.bytes().size() / 4096 + 1);
  REQUIRE(::mincore(const_cast<std::byte*>(mapped.bytes().data()), mapped.bytes().size(),
                    resident.data()) == 0);
  // Bytes at the end that do not fill a sector stay in the page cache.
  CHECK(std::count_if(resident.begin(), resident.end(),
                      [](auto flags) { return (flags & 1) != 0; }) <= 16);
}

TEST_CASE("a piece that cannot be written fails the stream, at its sync at the latest") {
  for (int64_t k = 0; k < 7; ++k) {
    INFO(k);
    Calls calls{.fails_at = k};
    const Staging staging;
    StreamedFile file(std::make_unique<CountedFile>(calls), staging.area());
    const std::string text = pseudorandom_text(kPiece);
    const auto write_all = [&] {
      for (int piece = 0; piece < 6; ++piece) file.write(text.data(), text.size());
      file.write(text.data(), 1);
      file.sync();
    };
    CHECK_THROWS_WITH(write_all(), Catch::StartsWith("no space"));
    CHECK_THROWS_WITH(file.sync(), Catch::StartsWith("no space"));
    CHECK(calls.written == k + 1);
    CHECK(calls.synced == 0);
  }
}

TEST_CASE("a stream that is destroyed before sync() does not sync its file") {
  Calls calls;
  {
    const Staging staging;
    StreamedFile file(std::make_unique<CountedFile>(calls), staging.area());
    const std::string text = pseudorandom_text(2 * kPiece);
    file.write(text.data(), text.size());
  }
  CHECK(calls.written <= 2);
  CHECK(calls.synced == 0);
}

TEST_CASE("a file that may not grow further says so, and keeps what was written") {
  const TemporaryFolder folder;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  // The limits are in the middle of a piece and of a sector.
  for (const size_t limit : {2 * kPiece, 2 * kPiece + 8192, 2 * kPiece + 777}) {
    INFO(limit);
    const rlimit lower{.rlim_cur = limit, .rlim_max = before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &lower) == 0);
    std::string message;
    const std::string text = pseudorandom_text(6 * kPiece);
    try {
      write_streamed(folder / "f", text, kPiece, false);
    } catch (const Error& error) {
      message = error.message();
    }
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(message.find(folder / "f" + ": write failed: File too large (") == 0);
    CHECK(read_file(folder / "f") == text.substr(0, limit));
  }
  std::signal(SIGXFSZ, old_action);
}

}  // namespace
}  // namespace ftrun
