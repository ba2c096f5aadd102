#include <sys/stat.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "comm/shared_memory.h"
#include "ranks.h"

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {

const CommBackend kBackends[] = {CommBackend::kGloo, CommBackend::kSharedMemory};
using Bytes = std::vector<unsigned char>;

/// Returns the input of rank `rank`, the same in every test.
template <typename T>
std::vector<T> input_of_rank(int rank, int64_t count, int salt = 0) {
  std::mt19937 random(static_cast<unsigned>(1000 * salt + rank + 1));
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) {
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(random() % 50);
    } else {
      value = static_cast<T>(std::ldexp(static_cast<double>(random()) / 4294967296.0 - 0.5,
                                        static_cast<int>(random() % 8)));
    }
  }
  return values;
}

template <typename T>
using WideType = std::conditional_t<sizeof(T) == 2, float, T>;

template <typename T>
T combine_naively(ReduceOp op, const std::vector<T>& column) {
  auto sum = static_cast<WideType<T>>(column[0]);
  for (size_t i = 1; i < column.size(); ++i) {
    const auto next = static_cast<WideType<T>>(column[i]);
    if (op == ReduceOp::kSum) sum = static_cast<WideType<T>>(sum + next);
    if (op == ReduceOp::kMax) sum = std::max(sum, next);
  }
  return static_cast<T>(sum);
}

/// Returns the expected result: each element is summed in rank order, and rounded once.
template <typename T>
std::vector<T> expected_reduction(int world_size, int64_t count, ReduceOp op, int salt = 0) {
  std::vector<std::vector<T>> inputs;
  for (int rank = 0; rank < world_size; ++rank)
    inputs.push_back(input_of_rank<T>(rank, count, salt));
  std::vector<T> result;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<T> column;
    for (const auto& values : inputs) column.push_back(values[static_cast<size_t>(i)]);
    result.push_back(combine_naively(op, column));
  }
  return result;
}

template <typename T>
bool same_bits(const T* a, const T* b, size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(T)) == 0;
}

/// Memory that the communicator or the program has allocated; collectives must accept both.
template <typename T>
struct Buffer {
  Buffer(Communicator& group, bool shared, int64_t count) {
    if (shared && count > 0) {
      owned = group.allocate(count * static_cast<int64_t>(sizeof(T)));
      data = owned.as<T>();
    } else {
      plain.resize(static_cast<size_t>(count) + 1);
      data = plain.data();
    }
  }
  void fill(const std::vector<T>& values) { std::copy(values.begin(), values.end(), data); }
  CommBuffer owned;
  std::vector<T> plain;
  T* data = nullptr;
};

template <typename T>
void check_all_reduce(CommBackend backend, int world_size, DType dtype, int64_t count, ReduceOp op,
                      bool shared) {
  const std::vector<T> expected = expected_reduction<T>(world_size, count, op);
  std::vector<char> good(static_cast<size_t>(world_size), 0);
  const auto failures = run_ranks(world_size, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, backend);
    Buffer<T> data(*group, shared, count);
    data.fill(input_of_rank<T>(group->rank(), count));
    group->all_reduce(data.data, count, dtype, op, {"test"}).wait();
    good[static_cast<size_t>(group->rank())] =
        same_bits(data.data, expected.data(), expected.size());
    group->shutdown();
  });
  CAPTURE(backend_name(backend), world_size, dtype_name(dtype), count, static_cast<int>(op),
          shared);
  REQUIRE(failures == std::vector<std::string>(static_cast<size_t>(world_size)));
  REQUIRE(good == std::vector<char>(static_cast<size_t>(world_size), 1));
}

template <typename T>
void check_type(DType dtype) {
  for (const CommBackend backend : kBackends) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax})
      check_all_reduce<T>(backend, 3, dtype, 1001, op, false);
    check_all_reduce<T>(backend, 2, dtype, 70'001, ReduceOp::kSum, true);
  }
}

}  // namespace

TEST_CASE("all_reduce adds every type in rank order, bit for bit") {
  check_type<double>(DType::kF64);
  check_type<float>(DType::kF32);
  check_type<c10::BFloat16>(DType::kBF16);
  check_type<c10::Half>(DType::kF16);
  check_type<int64_t>(DType::kI64);
  check_type<int32_t>(DType::kI32);
  check_type<int8_t>(DType::kI8);
  check_type<uint8_t>(DType::kU8);
}

TEST_CASE("all_reduce gives the same bits for 1 to 4 ranks, any size, shared buffers or not") {
  for (const CommBackend backend : kBackends) {
    for (const int world_size : {1, 2, 3, 4}) {
      for (const int64_t count : {0, 1, 63, 16'384, 16'385, 550'001}) {
        check_all_reduce<float>(backend, world_size, DType::kF32, count, ReduceOp::kSum, false);
        check_all_reduce<float>(backend, world_size, DType::kF32, count, ReduceOp::kSum, true);
      }
    }
  }
}

TEST_CASE("one large all_reduce equals many small ones, whatever their sizes") {
  constexpr int64_t kCount = 250'000;
  const std::vector<float> expected = expected_reduction<float>(4, kCount, ReduceOp::kSum);
  for (const CommBackend backend : kBackends) {
    const auto failures = run_ranks(4, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      for (const int64_t piece : {1'000, 37'777, 249'999}) {
        Buffer<float> data(*group, piece != 37'777, kCount);
        data.fill(input_of_rank<float>(group->rank(), kCount));
        std::vector<Work> works;
        for (int64_t at = 0; at < kCount; at += piece)
          works.push_back(group->all_reduce(data.data + at, std::min(piece, kCount - at),
                                            DType::kF32, ReduceOp::kSum, {"piece"}));
        for (Work& work : works) work.wait();
        require(same_bits(data.data, expected.data(), expected.size()), "bits differ");
      }
    });
    REQUIRE(failures == std::vector<std::string>(4));
  }
}

TEST_CASE("reduce_scatter leaves each rank its block, also in place") {
  for (const CommBackend backend : kBackends) {
    for (const int world_size : {1, 2, 3, 4}) {
      for (const int64_t count : {1, 1'000, 150'001}) {
        for (const int mode : {0, 1, 2}) {  // 0: plain memory, 1: shared, 2: shared and in place
          const auto expected =
              expected_reduction<float>(world_size, count * world_size, ReduceOp::kSum);
          const auto failures = run_ranks(world_size, [&](Rendezvous& rendezvous) {
            const auto group = open_world(rendezvous, backend);
            Buffer<float> in(*group, mode > 0, count * world_size), out(*group, false, count);
            in.fill(input_of_rank<float>(group->rank(), count * world_size));
            float* target = mode == 2 ? in.data + group->rank() * count : out.data;
            group->reduce_scatter(in.data, target, count, DType::kF32, ReduceOp::kSum, {"t"})
                .wait();
            require(same_bits(target, expected.data() + group->rank() * count,
                              static_cast<size_t>(count)),
                    "bits differ");
            group->shutdown();
          });
          CAPTURE(backend_name(backend), world_size, count, mode);
          REQUIRE(failures == std::vector<std::string>(static_cast<size_t>(world_size)));
        }
      }
    }
  }
}

TEST_CASE("all_gather puts the ranks' blocks in order, also in place, for any type") {
  for (const CommBackend backend : kBackends) {
    for (const int world_size : {1, 2, 3, 4}) {
      for (const int64_t count : {1, 1'001, 700'001}) {
        for (const int mode : {0, 1, 2}) {
          std::vector<int16_t> expected;
          for (int rank = 0; rank < world_size; ++rank) {
            const auto block = input_of_rank<int16_t>(rank, count);
            expected.insert(expected.end(), block.begin(), block.end());
          }
          const auto failures = run_ranks(world_size, [&](Rendezvous& rendezvous) {
            const auto group = open_world(rendezvous, backend);
            Buffer<int16_t> in(*group, mode > 0, count), out(*group, mode > 0, count * world_size);
            const auto values = input_of_rank<int16_t>(group->rank(), count);
            int16_t* source = mode == 2 ? out.data + group->rank() * count : in.data;
            std::copy(values.begin(), values.end(), source);
            group->all_gather(source, out.data, count, DType::kI16, {"t"}).wait();
            require(same_bits(out.data, expected.data(), expected.size()), "bits differ");
            group->shutdown();
          });
          CAPTURE(backend_name(backend), world_size, count, mode);
          REQUIRE(failures == std::vector<std::string>(static_cast<size_t>(world_size)));
        }
      }
    }
  }
}

namespace {

/// ExchangedBlocks holds the blocks that ranks exchange: count(from, to) numbers, each of which
/// encodes its sender, its receiver and its index.
struct ExchangedBlocks {
  std::function<int64_t(int, int)> count;

  static void append(std::vector<float>& all, int from, int to, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      all.push_back(static_cast<float>(from * 10 + to) + static_cast<float>(i % 1013) / 1024);
  }
  std::vector<float> sent(int rank, int world_size) const {
    std::vector<float> all;
    for (int to = 0; to < world_size; ++to) append(all, rank, to, count(rank, to));
    return all;
  }
  std::vector<float> received(int rank, int world_size) const {
    std::vector<float> all;
    for (int from = 0; from < world_size; ++from) append(all, from, rank, count(from, rank));
    return all;
  }
  std::vector<int64_t> counts(int rank, int world_size, bool sent) const {
    std::vector<int64_t> all;
    for (int peer = 0; peer < world_size; ++peer)
      all.push_back(sent ? count(rank, peer) : count(peer, rank));
    return all;
  }
};

/// Starts the collective that moves a rank's blocks.
using Move = std::function<Work(Communicator&, const float* in, float* out)>;

void check_exchange(CommBackend backend, int world_size, const ExchangedBlocks& blocks,
                    int64_t room, bool shared, const Move& move) {
  const auto failures = run_ranks(world_size, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, backend);
    const int rank = group->rank();
    const std::vector<float> sent = blocks.sent(rank, world_size),
                             received = blocks.received(rank, world_size);
    Buffer<float> in(*group, shared, room),
        out(*group, shared, std::max<int64_t>(room, static_cast<int64_t>(received.size())) + 1);
    // The second round runs where shared pages were collapsed into huge ones.
    for (int round = 0; round < 2; ++round) {
      in.fill(sent);
      std::fill_n(out.data, received.size() + 1, -1.0F);
      move(*group, in.data, out.data).wait();
      require(same_bits(out.data, received.data(), received.size()), "other numbers have come");
      require(out.data[received.size()] == -1.0F, "something is written behind what comes");
      require(same_bits(in.data, sent.data(), sent.size()), "an input changed");
    }
    group->shutdown();
  });
  CAPTURE(backend_name(backend), world_size, room, shared);
  REQUIRE(failures == std::vector<std::string>(static_cast<size_t>(world_size)));
}

}  // namespace

TEST_CASE("all_to_all gives each rank its block of every rank's") {
  for (const CommBackend backend : kBackends)
    for (const int world_size : {1, 2, 3, 4})
      for (const int64_t count : {0, 1, 1'001, 200'003})
        for (const bool shared : {false, true})
          check_exchange(backend, world_size, {[&](int, int) { return count; }}, count * world_size,
                         shared, [&](Communicator& group, const float* in, float* out) {
                           return group.all_to_all(in, out, count, DType::kF32, {"tokens"});
                         });
}

TEST_CASE("counted_all_to_all moves blocks of any length, and none") {
  std::mt19937 random(7);
  for (const CommBackend backend : kBackends)
    for (const int world_size : {1, 2, 3, 4})
      for (const int64_t longest : {0, 5, 40'000, 200'000})
        for (const bool shared : {false, true}) {
          const ExchangedBlocks blocks{[longest, seed = random() % 1000](int from,
                                                                         int to) -> int64_t {
            std::mt19937 random_of_pair(static_cast<unsigned>(seed) +
                                        static_cast<unsigned>(100 * from + to));
            const auto drawn = random_of_pair();
            return drawn % 3 == 0 ? 0 : static_cast<int64_t>(drawn) % (longest + 1);
          }};
          int64_t capacity = 0;
          for (int rank = 0; rank < world_size; ++rank)
            capacity =
                std::max(capacity, static_cast<int64_t>(blocks.sent(rank, world_size).size()));
          check_exchange(backend, world_size, blocks, capacity + 3, shared,
                         [&](Communicator& group, const float* in, float* out) {
                           return group.counted_all_to_all(
                               in, blocks.counts(group.rank(), world_size, true), out,
                               blocks.counts(group.rank(), world_size, false), capacity + 3,
                               DType::kF32, {"rows"});
                         });
        }
}

TEST_CASE("shift moves each rank's numbers by the given number of ranks, in a ring") {
  for (const CommBackend backend : kBackends)
    for (const int world_size : {1, 2, 3, 4})
      for (int by = 0; by < world_size; ++by)
        for (const int64_t count : {1, 70'001, 400'001})
          for (const bool shared : {false, true})
            check_exchange(backend, world_size, {[&](int from, int to) {
                             return (from + by) % world_size == to ? count : 0;
                           }},
                           count, shared, [&](Communicator& group, const float* in, float* out) {
                             return group.shift(in, out, count, DType::kF32, by, {"keys"});
                           });
}

TEST_CASE("several exchanges may be started before the first is waited for") {
  for (const CommBackend backend : kBackends) {
    const auto failures = run_ranks(3, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      const auto rank = static_cast<float>(group->rank());
      const std::vector<float> in{10 * rank, 10 * rank + 1, 10 * rank + 2};
      std::vector<float> once(3), on(3), back(3);
      Work first = group->all_to_all(in.data(), once.data(), 1, DType::kF32, {"t"});
      Work second = group->shift(in.data(), on.data(), 3, DType::kF32, 1, {"t"});
      second.wait();
      first.wait();
      group->shift(on.data(), back.data(), 3, DType::kF32, 2, {"t"}).wait();
      require(once == std::vector<float>{rank, 10 + rank, 20 + rank}, "columns have come");
      require(back == in, "what is shifted round comes back");
      group->shutdown();
    });
    REQUIRE(failures == std::vector<std::string>(3));
  }
}

TEST_CASE("ranks that call different exchanges fail with a message that names both calls") {
  for (const CommBackend backend : kBackends) {
    const auto failures = run_ranks(3, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      std::vector<float> in(6), out(6);
      group->shift(in.data(), out.data(), 2, DType::kF32, group->rank() == 2 ? 1 : 2, {"keys"})
          .wait();
    });
    for (const std::string& failure : failures)
      CHECK_THAT(
          failure,
          Catch::Contains(
              "the ranks of group world disagree: rank 0 is in shift #1 (keys, 2 x F32, by 2), "
              "rank 1 is in shift #1 (keys, 2 x F32, by 2), rank 2 is in shift #1 (keys, 2 x "
              "F32, by 1); rank 2 is in another collective than the majority"));
  }
}

TEST_CASE("a counted_all_to_all with counts that differ from those sent names the rank") {
  for (const CommBackend backend : kBackends) {
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      std::vector<float> in(8), out(8);
      const bool wrong = group->rank() == 1;
      group
          ->counted_all_to_all(in.data(), std::vector<int64_t>{2, 2}, out.data(),
                               std::vector<int64_t>{wrong ? 3 : 2, 2}, 8, DType::kF32, {"rows"})
          .wait();
    });
    CHECK_THAT(
        failures[1],
        Catch::Contains(
            "rank 0 sends 2 elements to rank 1 in counted_all_to_all #1 (rows, at most 8 x F32), "
            "but rank 1 expects 3"));
  }
}

TEST_CASE("invalid arguments of exchanges are refused") {
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    std::vector<float> in(8), out(8);
    using Counts = std::vector<int64_t>;
    const auto refused = [&](const std::function<Work()>& call) {
      try {
        call().wait();
      } catch (const Error& error) {
        return error.code() == ExitCode::kBug ? error.message() : "another error";
      }
      return std::string("nothing");
    };
    const auto says = [&](const std::string& text, const std::string& part) {
      require(text.find(part) != std::string::npos, text.c_str());
    };
    says(refused([&] { return group->shift(in.data(), out.data(), 8, DType::kF32, 2, {"k"}); }),
         "group world has 2 ranks");
    says(refused([&] { return group->shift(in.data(), in.data(), 8, DType::kF32, 1, {"k"}); }),
         "its input is its output");
    const auto counted = [&](const Counts& sends, const Counts& receives) {
      return refused([&] {
        return group->counted_all_to_all(in.data(), sends, out.data(), receives, 8, DType::kF32,
                                         {"r"});
      });
    };
    const auto own = static_cast<size_t>(group->rank());
    Counts other{1, 1};
    other[own] = 2;
    says(counted({1}, {1, 1}), "1 counts for 2 ranks");
    says(counted({1, -1}, {1, 1}), "negative count");
    says(counted({8, 1}, {8, 1}), "9 are sent");
    says(counted({1, 1}, other), " elements to rank ");
  });
  REQUIRE(failures == std::vector<std::string>(2));
}

namespace {

/// Checks all-reduce, reduce-scatter and all-gather of blocks of many huge pages. The blocks begin
/// behind other data in the same memory.
void check_large(int ranks, bool shared) {
  constexpr int64_t kCount = 1'300'001, kBegin = 1'001;  // elements of a block: 5 MB
  const int64_t all = ranks * kCount;
  const auto sum = expected_reduction<float>(ranks, all, ReduceOp::kSum);
  const auto failures = run_ranks(ranks, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    Buffer<float> memory(*group, shared, kBegin + all), out(*group, shared, kCount);
    float* const data = memory.data + kBegin;
    float* const own = data + group->rank() * kCount;
    const auto values = input_of_rank<float>(group->rank(), all);
    // The second round runs in memory that the first one collapsed into huge pages.
    for (int round = 0; round < 2; ++round) {
      std::copy(values.begin(), values.end(), data);
      group->reduce_scatter(data, out.data, kCount, DType::kF32, ReduceOp::kSum, {"t"}).wait();
      require(same_bits(out.data, sum.data() + (own - data), kCount),
              "bits of reduce_scatter differ");
      require(same_bits(data, values.data(), values.size()), "an input changed");
      group->all_reduce(data, all, DType::kF32, ReduceOp::kSum, {"t"}).wait();
      require(same_bits(data, sum.data(), sum.size()), "bits of all_reduce differ");
      std::fill(data, own, 0.0F);
      std::fill(own + kCount, data + all, 0.0F);
      group->all_gather(own, data, kCount, DType::kF32, {"t"}).wait();
      require(same_bits(data, sum.data(), sum.size()), "bits of all_gather differ");
    }
    group->shutdown();
  });
  CAPTURE(ranks, shared);
  REQUIRE(failures == std::vector<std::string>(static_cast<size_t>(ranks)));
}

}  // namespace

TEST_CASE("large buffers are added and gathered bit for bit, wherever they begin") {
  check_large(2, true);
  check_large(3, false);
}

namespace {

/// Returns how many bytes of a file its file system stores.
int64_t allocated_file_bytes(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return status.st_blocks * 512;
}

/// Returns the number of bytes of shared pages that this process has mapped; all ranks of a test
/// are its threads.
int64_t mapped_shared_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssShmem:")) return std::stoll(line.substr(9)) << 10;
  return -1;
}

/// Maps all pages of a buffer by reading them.
void touch_pages(const CommBuffer& buffer) {
  for (int64_t at = 0; at < buffer.bytes(); at += 4096)
    *static_cast<volatile std::byte*>(buffer.as<>() + at);
}

}  // namespace

TEST_CASE(
    "collapsing into huge pages takes no memory and changes none of it, however much of it is in "
    "use") {
  constexpr int64_t kBytes = 7 << 20;
  const CommBuffer buffer = allocate_shared(kBytes);
  const int fd = shared_location_of(buffer.data(), kBytes).fd;
  const auto values = input_of_rank<uint64_t>(0, kBytes / 8);
  // The cases fill half of the second huge page, then all of it, then everything; the last huge
  // page is incomplete.
  for (const int64_t filled : {int64_t{3} << 20, int64_t{4} << 20, kBytes}) {
    std::copy_n(values.begin(), filled / 8, buffer.as<uint64_t>());
    // If shared memory is allocated in huge pages, more bytes are stored.
    const int64_t kept = allocated_file_bytes(fd);
    REQUIRE(kept >= filled);
    for (int round = 0; round < 2; ++round) {
      collapse_into_huge_pages(buffer.data(), kBytes);
      REQUIRE(allocated_file_bytes(fd) == kept);
      REQUIRE(same_bits(buffer.as<uint64_t>(), values.data(), static_cast<size_t>(filled / 8)));
    }
  }
}

TEST_CASE("memory that a rank has read from its peers does not stay mapped") {
  constexpr int64_t kCount = 4 << 20, kSmall = 32 << 10;  // a huge page is 512 Ki elements
  int64_t before = 0, after = 0;
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    const CommBuffer shared = group->allocate(4 * kCount);
    auto* const data = shared.as<float>();
    std::fill_n(data, kCount, 1.0F);
    std::vector<float> message(kSmall);
    const auto note = [&](int64_t& mapped) {
      touch_pages(shared);  // maps collapsed pages again
      group->barrier({"t"});
      if (group->rank() == 0) mapped = mapped_shared_bytes();
      group->barrier({"t"});
    };
    note(before);
    group->all_reduce(data, kCount, DType::kF32, ReduceOp::kSum, {"t"}).wait();
    for (int64_t at = 0; at < kCount; at += 512 << 10) {
      group->all_reduce(data + at, kSmall, DType::kF32, ReduceOp::kSum, {"t"}).wait();
      if (group->rank() == 1) group->send(data + at, kSmall, DType::kF32, 0, {"t"}).wait();
      if (group->rank() == 0) group->receive(message.data(), kSmall, DType::kF32, 1, {"t"}).wait();
    }
    note(after);
    group->shutdown();
  });
  REQUIRE(failures == std::vector<std::string>(2));
  REQUIRE(before >= 2 * 4 * kCount);
  REQUIRE(after - before < 512 << 10);
}

TEST_CASE("broadcast gives every rank the root's data, from any root") {
  for (const CommBackend backend : kBackends) {
    const auto failures = run_ranks(3, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      for (const int64_t count : {1, 400'001}) {
        for (const int root : {0, 1, 2}) {
          for (const bool shared : {false, true}) {
            const auto expected = input_of_rank<float>(root, count, 7);
            Buffer<float> data(*group, shared, count);
            data.fill(input_of_rank<float>(group->rank(), count, 7));
            group->broadcast(data.data, count, DType::kF32, root, {"weights"}).wait();
            require(same_bits(data.data, expected.data(), expected.size()), "bits differ");
          }
        }
      }
      group->shutdown();
    });
    REQUIRE(failures == std::vector<std::string>(3));
  }
}

TEST_CASE("two ranks that both send first and receive afterwards do not block each other") {
  for (const CommBackend backend : kBackends) {
    for (const bool shared : {false, true}) {
      const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
        const auto group = open_world(rendezvous, backend);
        const int peer = 1 - group->rank();
        constexpr int64_t kCount = 20'000;
        std::vector<std::unique_ptr<Buffer<float>>> outgoing;
        std::vector<Work> sends;
        for (int i = 0; i < 100; ++i) {  // more messages than a mailbox holds
          outgoing.push_back(std::make_unique<Buffer<float>>(*group, shared, kCount));
          outgoing.back()->fill(input_of_rank<float>(group->rank(), kCount, i));
          if (i < 80)
            sends.push_back(group->send(outgoing.back()->data, kCount, DType::kF32, peer, {"a"}));
        }
        Buffer<float> incoming(*group, false, kCount);
        for (int i = 0; i < 100; ++i) {
          if (i >= 80)
            sends.push_back(group->send(outgoing[static_cast<size_t>(i)]->data, kCount, DType::kF32,
                                        peer, {"a"}));
          group->receive(incoming.data, kCount, DType::kF32, peer, {"a"}).wait();
          const auto expected = input_of_rank<float>(peer, kCount, i);
          require(same_bits(incoming.data, expected.data(), expected.size()), "bits differ");
        }
        for (Work& work : sends) work.wait();
        group->shutdown();
      });
      CAPTURE(backend_name(backend), shared);
      REQUIRE(failures == std::vector<std::string>(2));
    }
  }
}

namespace {

/// Returns the number of mappings of this process; all ranks of a test are its threads.
int64_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int64_t lines = 0;
  while (std::getline(maps, line)) ++lines;
  return lines;
}

/// Sends `sends` messages of about `bytes` from rank 1 to rank 0: from memory that peers cannot
/// read, or each from a new shared buffer. Returns how many mappings the process gained after the
/// first message.
int64_t growth_of_sends(int sends, int64_t bytes, bool shared) {
  int64_t before = 0, after = 0;
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    std::vector<unsigned char> data(static_cast<size_t>(bytes));
    for (int i = 0; i < sends; ++i) {
      const int64_t count = bytes - i * 16;
      if (group->rank() == 1) {
        Buffer<unsigned char> own(*group, shared, count);
        std::fill_n(own.data, count, static_cast<unsigned char>(i));
        group->send(own.data, count, DType::kU8, 0, {"piece"}).wait();
      } else {
        group->receive(data.data(), count, DType::kU8, 1, {"piece"}).wait();
        require(data[0] == static_cast<unsigned char>(i) &&
                    data[static_cast<size_t>(count) - 1] == static_cast<unsigned char>(i),
                "another piece");
        if (i == 0) before = count_mappings();
      }
    }
    group->barrier({"end"});
    if (group->rank() == 0) after = count_mappings();
    group->shutdown();
  });
  REQUIRE(failures == std::vector<std::string>(2));
  return after - before;
}

}  // namespace

TEST_CASE("messages leave no mapping behind, whatever memory they come from") {
  REQUIRE(growth_of_sends(200, 1 << 20, false) < 8);
  REQUIRE(growth_of_sends(200, 1 << 20, true) < 8);
  // The message is larger than the buffer that is kept for the next send.
  REQUIRE(growth_of_sends(20, (64 << 20) + 4096, false) < 8);
}

TEST_CASE("groups of some ranks work at the same time as each other and as the group of all") {
  for (const CommBackend backend : kBackends) {
    const auto failures = run_ranks(4, [&](Rendezvous& rendezvous) {
      const int rank = rendezvous.rank();
      const std::vector<int> half = rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
      const auto group =
          open_communicator(rendezvous, cat("half", rank % 2), half, {.backend = backend});
      const auto world = open_world(rendezvous, backend);
      int64_t sum = rank, all = rank;
      for (int i = 0; i < 50; ++i) {
        sum = all = rank;
        group->all_reduce(&sum, 1, DType::kI64, ReduceOp::kSum, {"half"}).wait();
        world->all_reduce(&all, 1, DType::kI64, ReduceOp::kSum, {"all"}).wait();
        require(sum == (rank % 2 == 0 ? 2 : 4) && all == 6, "wrong sum");
      }
      world->shutdown();
    });
    REQUIRE(failures == std::vector<std::string>(4));
  }
}

TEST_CASE("a communicator of one rank copies and returns") {
  const auto failures = run_ranks(1, [](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kAuto);
    require(group->backend() == "none", "no backend is needed");
    float in[2] = {1, 2}, out[2] = {};
    group->all_gather(in, out, 2, DType::kF32, {"t"}).wait();
    require(out[1] == 2, "copied");
    group->barrier({"t"});
  });
  REQUIRE(failures == std::vector<std::string>(1));
}

TEST_CASE("ranks of one machine use shared memory by default") {
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    require(open_world(rendezvous, CommBackend::kAuto)->backend() == "shm", "shared memory");
  });
  REQUIRE(failures == std::vector<std::string>(2));
}

TEST_CASE("bytes over shared memory are counted where they are copied, and agree with theory") {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 64 * 1024, kBytes = 4 * kCount;  // of a block
  // Peers read the buffers in place or, where they cannot, go through staging areas.
  for (const bool in_place : {true, false}) {
    std::atomic<int64_t> all_reduce{0}, reduce_scatter{0}, all_gather{0}, broadcast{0}, message{0};
    std::atomic<int64_t> all_to_all{0}, shift{0}, counted{0};
    const auto failures = run_ranks(kRanks, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
      const CommBuffer shared = group->allocate(kRanks * kBytes);
      std::vector<float> own(kRanks * kCount), moved(kRanks * kCount);
      float* const data = in_place ? shared.as<float>() : own.data();
      const auto carried = [&](std::atomic<int64_t>& sum, const std::function<Work()>& collective) {
        const int64_t before = *group->transported_bytes();
        collective().wait();
        sum += *group->transported_bytes() - before;
      };
      const int rank = group->rank();
      carried(all_reduce, [&] {
        return group->all_reduce(data, kRanks * kCount, DType::kF32, ReduceOp::kSum, {"t"});
      });
      carried(reduce_scatter, [&] {
        return group->reduce_scatter(data, data + rank * kCount, kCount, DType::kF32,
                                     ReduceOp::kSum, {"t"});
      });
      carried(all_gather, [&] {
        return group->all_gather(data + rank * kCount, data, kCount, DType::kF32, {"t"});
      });
      carried(broadcast, [&] { return group->broadcast(data, kCount, DType::kF32, 2, {"t"}); });
      carried(all_to_all,
              [&] { return group->all_to_all(data, moved.data(), kCount, DType::kF32, {"t"}); });
      carried(shift,
              [&] { return group->shift(data, moved.data(), kCount, DType::kF32, 3, {"t"}); });
      // Every rank sends half a block to rank 2, and nothing to the others.
      std::vector<int64_t> sends(kRanks, 0), receives(kRanks, rank == 2 ? kCount / 2 : 0);
      sends[2] = kCount / 2;
      carried(counted, [&] {
        return group->counted_all_to_all(data, sends, moved.data(), receives, kCount, DType::kF32,
                                         {"t"});
      });
      if (rank == 1)
        carried(message, [&] { return group->send(data, kCount, DType::kF32, 3, {"t"}); });
      if (rank == 3)
        carried(message, [&] { return group->receive(data, kCount, DType::kF32, 1, {"t"}); });
      group->shutdown();
    });
    REQUIRE(failures == std::vector<std::string>(kRanks));
    REQUIRE(all_reduce == 2 * (kRanks - 1) * kRanks * kBytes);
    REQUIRE(reduce_scatter == kRanks * (kRanks - 1) * kBytes);
    REQUIRE(all_gather == kRanks * (kRanks - 1) * kBytes);
    REQUIRE(broadcast == (kRanks - 1) * kBytes);
    REQUIRE(all_to_all == kRanks * (kRanks - 1) * kBytes);
    REQUIRE(shift == kRanks * kBytes);
    REQUIRE(counted == (kRanks - 1) * kBytes / 2);
    REQUIRE(message == kBytes);
  }
}

TEST_CASE("bytes are counted by kind as the algorithm must move them") {
  const auto failures = run_ranks(4, [](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    std::vector<float> a(100), b(400);
    group->all_reduce(b.data(), 400, DType::kF32, ReduceOp::kSum, {"t"}).wait();
    group->reduce_scatter(b.data(), a.data(), 100, DType::kF32, ReduceOp::kSum, {"t"}).wait();
    group->all_gather(a.data(), b.data(), 100, DType::kF32, {"t"}).wait();
    const std::vector<int64_t> sends{5, 6, 7, 8}, receives(4, 5 + group->rank());
    group->all_to_all(b.data(), std::vector<float>(400).data(), 100, DType::kF32, {"t"}).wait();
    group->shift(a.data(), std::vector<float>(100).data(), 100, DType::kF32, 3, {"t"}).wait();
    group
        ->counted_all_to_all(b.data(), sends, std::vector<float>(100).data(), receives, 26,
                             DType::kF32, {"t"})
        .wait();
    const CommStats& stats = group->stats();
    const auto of_kind = [&](CollectiveKind kind) {
      return stats.by_kind[static_cast<size_t>(kind)];
    };
    require(of_kind(CollectiveKind::kAllToAll).bytes_sent == 3 * 400, "all_to_all");
    require(of_kind(CollectiveKind::kShift).bytes_received == 400, "shift");
    require(of_kind(CollectiveKind::kCountedAllToAll).bytes_sent == 4 * (26 - 5 - group->rank()),
            "counted, sent");
    require(of_kind(CollectiveKind::kCountedAllToAll).bytes_received == 4 * 3 * (5 + group->rank()),
            "counted, received");
    require(of_kind(CollectiveKind::kAllReduce).bytes_sent == 2 * 1600 * 3 / 4, "all_reduce");
    require(of_kind(CollectiveKind::kReduceScatter).bytes_sent == 3 * 400, "reduce_scatter");
    require(of_kind(CollectiveKind::kAllGather).bytes_received == 3 * 400, "all_gather");
    require(stats.total().calls == 6, "calls");
    require(stats.total().bytes_sent == 2400 + 1200 + 1200 + 1200 + 400 + 4 * (21 - group->rank()),
            "total");
  });
  REQUIRE(failures == std::vector<std::string>(4));
}
