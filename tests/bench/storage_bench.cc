// storage_bench FOLDER [MIB] [BLOCK_KIB] [DEPTH] [ROUNDS] compares a swap file with fio on the same
// file system, with the same block size and depth. Every round runs all candidates one after the
// other. The table shows each one's median rate and its ratio to fio's. fio uses what makes it
// fastest: io_uring, direct I/O, registered buffers and a registered file; its file is reserved and
// written before.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "storage/swap_file.h"

namespace {

using namespace ftrun;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string folder;
  int64_t bytes = int64_t{512} << 20;
  AioOptions aio;
  int rounds = 5;
};

/// WithoutRing is the machine's storage with a kernel that refuses io_uring.
class WithoutRing : public StorageSystem {
 public:
  int make_folder(const std::string& path) override { return machine_.make_folder(path); }
  int open_new(const std::string& path) override { return machine_.open_new(path); }
  int remove(const std::string& path) override { return machine_.remove(path); }
  int reserve(int fd, int64_t bytes) override { return machine_.reserve(fd, bytes); }
  int use_direct(int fd) override { return machine_.use_direct(fd); }
  int use_page_cache(int fd) override { return machine_.use_page_cache(fd); }
  int64_t free_bytes(const std::string& folder) override { return machine_.free_bytes(folder); }
  bool is_in_memory(const std::string& folder) override { return machine_.is_in_memory(folder); }
  QueueOrErrno open_ring_queue(int, int, bool) override { return {nullptr, EPERM}; }
  std::unique_ptr<BlockQueue> open_thread_queue(int fd, int depth) override {
    return machine_.open_thread_queue(fd, depth);
  }
  double now_seconds() override { return machine_.now_seconds(); }
  void sleep(double seconds) override { machine_.sleep(seconds); }

 private:
  StorageSystem& machine_ = machine_storage();
};

/// Candidate uses a swap file as the disk lane does: with two windows of memory, one of which is in
/// flight while the other would be computed on.
class Candidate {
 public:
  Candidate(const Settings& settings, const std::string& name, StorageSystem& system)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kHugePage, 2 * kWindow))),
        file_(
            {.folder = settings.folder, .name = name, .bytes = settings.bytes, .aio = settings.aio},
            system) {
    // The memory is on huge pages, as the executor's is.
    ::madvise(memory_.get(), 2 * kWindow, MADV_HUGEPAGE);
    std::memset(memory_.get(), 1, 2 * kWindow);
  }

  const SwapFile& file() const { return file_; }

  /// Returns the bytes per second of a pass over the whole file.
  double rate(bool write) {
    const auto start = Clock::now();
    SwapFile::Ticket before{};
    int64_t at = 0;
    for (int i = 0; at < file_.bytes(); ++i) {
      const int64_t bytes = std::min<int64_t>(kWindow, file_.bytes() - at);
      std::byte* window = memory_.get() + i % 2 * kWindow;
      const auto ticket = write ? file_.write(window, bytes, at) : file_.read(window, bytes, at);
      if (i > 0) file_.wait(before);
      before = ticket;
      at += bytes;
    }
    file_.wait(before);
    const std::chrono::duration<double> took = Clock::now() - start;
    return static_cast<double>(file_.bytes()) / took.count();
  }

 private:
  static constexpr int64_t kWindow = int64_t{16} << 20;  // a layer of a small model
  static constexpr size_t kHugePage = size_t{2} << 20;

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::unique_ptr<std::byte, Free> memory_;  // must outlive the file
  SwapFile file_;
};

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char part[4096];
  for (size_t n = 0; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, n);
  return ::pclose(pipe) == 0 ? text : "";
}

/// Returns the rate that fio reports for one pass over its file; 0 if it failed.
double fio_rate(const Settings& settings, const SwapFile& like, bool write) {
  const std::string text = output_of(
      cat("fio --name=bench --filename='", settings.folder, "/fio.tmp' --size=", settings.bytes,
          " --bs=", settings.aio.block_size, " --iodepth=", settings.aio.blocks_in_flight(),
          like.uses_ring() ? " --ioengine=io_uring --fixedbufs=1 --registerfiles=1"
                           : " --ioengine=libaio",
          " --direct=", like.is_direct() ? 1 : 0, " --rw=", write ? "write" : "read",
          " --fallocate=native --thread --output-format=json 2>/dev/null"));
  const size_t section = text.find(write ? "\"write\" : {" : "\"read\" : {");
  const std::string key = "\"bw_bytes\" : ";
  const size_t value = section == std::string::npos ? section : text.find(key, section);
  return value == std::string::npos ? 0 : std::atof(text.c_str() + value + key.size());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

using Rates = std::map<std::string, std::vector<double>>;

void print_table(bool write, const Rates& rates) {
  const double base = rates.count("fio") != 0 ? median(rates.at("fio")) : 0;
  for (const auto& [name, values] : rates) {
    std::printf("%-6s %-16s median %8.1f MB/s   from %8.1f to %8.1f", write ? "write" : "read",
                name.c_str(), median(values) * 1e-6,
                *std::min_element(values.begin(), values.end()) * 1e-6,
                *std::max_element(values.begin(), values.end()) * 1e-6);
    if (base > 0) std::printf("   %5.2fx fio", median(values) / base);
    std::printf("\n");
  }
}

void bench(const Settings& settings) {
  const bool have_fio = !output_of("fio --version 2>/dev/null").empty();
  if (!have_fio) std::printf("fio is not installed (Debian package fio): no comparison\n");
  WithoutRing no_ring;
  Candidate ring(settings, "bench", machine_storage()), threads(settings, "bench-threads", no_ring);
  std::printf("%s: %lld MiB, blocks of %lld KiB, %d in flight, %s\n", settings.folder.c_str(),
              static_cast<long long>(settings.bytes >> 20),
              static_cast<long long>(settings.aio.block_size >> 10),
              settings.aio.blocks_in_flight(), ring.file().is_direct() ? "direct" : "page cache");
  std::map<bool, Rates> rates;
  for (int round = 0; round <= settings.rounds; ++round) {
    for (const bool write : {true, false}) {
      std::vector<std::pair<std::string, std::function<double()>>> turns = {
          {"ftrun threads", [&] { return threads.rate(write); }},
          {"ftrun io_uring", [&] { return ring.rate(write); }}};
      if (!ring.file().uses_ring()) turns.pop_back();
      if (have_fio)
        turns.emplace_back("fio", [&] { return fio_rate(settings, ring.file(), write); });
      std::rotate(turns.begin(), turns.begin() + round % static_cast<int>(turns.size()),
                  turns.end());
      for (auto& [name, run] : turns) {
        const double rate = run();
        if (round > 0) rates[write][name].push_back(rate);  // the first pass writes new blocks
      }
    }
  }
  for (const bool write : {false, true}) print_table(write, rates[write]);
  ::unlink((settings.folder + "/fio.tmp").c_str());
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) {
    std::fprintf(stderr, "usage: storage_bench FOLDER [MIB] [BLOCK_KIB] [DEPTH] [ROUNDS]\n");
    return 2;
  }
  Settings settings{.folder = words[1]};
  if (count > 2) settings.bytes = std::atoll(words[2]) << 20;
  if (count > 3) settings.aio.block_size = std::atoll(words[3]) << 10;
  if (count > 4) settings.aio.queue_depth = std::atoi(words[4]);
  if (count > 5) settings.rounds = std::max(1, std::atoi(words[5]));
  try {
    bench(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
