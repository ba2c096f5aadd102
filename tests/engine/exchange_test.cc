#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/executor.h"
#include "exchange_runs.h"
#include "program/models.h"
#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace testing {
namespace {

constexpr int64_t kNumbers = 1024, kRow = 8;

/// A program with one of the instructions of exchange_program(), and the memory that it runs on.
class ExchangeRun {
 public:
  ExchangeRun(const RankCommunicators& communicators, Gpu* gpu, size_t which, int by = 1,
              int64_t room = kNumbers)
      : communicators_(communicators),
        program_(exchange_program({communicators.group_communicators[0]->size(),
                                   communicators.group_communicators[0]->rank()},
                                  by, kRow)),
        memory_(*communicators.host_world, {}, nullptr, gpu) {
    program_.instrs = {program_.instrs[which]};
    program_.instrs[0].writes[0].bytes = room * 4;
    memory_.allocate(program_);
  }

  template <typename T>
  void write(BufferId buffer, const std::vector<T>& values) {
    memory_.write(program_, program_.full_range(buffer), values.data());
  }
  void run() {
    Executor executor(program_, model_, memory_, communicators_);
    ForwardRun run;
    executor.run_forward(run);
  }
  template <typename T>
  std::vector<T> read(BufferId buffer) const {
    std::vector<T> values(static_cast<size_t>(program_.at(buffer).bytes) / sizeof(T));
    memory_.read(program_, program_.full_range(buffer), values.data());
    return values;
  }

 private:
  const RankCommunicators& communicators_;
  const ModelDescription model_;
  Program program_;
  RankMemory memory_;
};

std::vector<float> numbers_of(int rank) {
  std::vector<float> numbers(kNumbers);
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(10'000 * rank));
  return numbers;
}

/// Returns the rows that a rank gives another one.
int32_t rows(int from, int to) {
  return from == to ? 1 : (3 * from + 5 * to) % 7;
}

std::vector<int32_t> counts_of(int rank, int ranks, bool given) {
  std::vector<int32_t> counts;
  for (int peer = 0; peer < ranks; ++peer)
    counts.push_back(given ? rows(rank, peer) : rows(peer, rank));
  return counts;
}

/// Returns the result of a rank when the rows of all ranks have arrived, followed by zeros.
std::vector<float> rows_of_all(int rank, int ranks) {
  std::vector<float> received;
  for (int peer = 0; peer < ranks; ++peer) {
    int64_t begin = 0;
    for (int before = 0; before < rank; ++before) begin += rows(peer, before) * kRow;
    const std::vector<float> theirs = numbers_of(peer);
    received.insert(received.end(), theirs.begin() + begin,
                    theirs.begin() + begin + rows(peer, rank) * kRow);
  }
  received.resize(kNumbers, 0.0F);
  return received;
}

}  // namespace

void require_exchanges(const RankCommunicators& communicators, Gpu* gpu) {
  const int ranks = communicators.group_communicators[0]->size(),
            rank = communicators.group_communicators[0]->rank();
  ExchangeRun all_to_all(communicators, gpu, 0);
  all_to_all.write(0, numbers_of(rank));
  all_to_all.run();
  std::vector<float> columns;
  for (int peer = 0; peer < ranks; ++peer) {
    const std::vector<float> theirs = numbers_of(peer);
    const auto block = kNumbers / ranks;
    columns.insert(columns.end(), theirs.begin() + rank * block,
                   theirs.begin() + (rank + 1) * block);
  }
  require(all_to_all.read<float>(1) == columns, "blocks of all ranks come");
  for (int by = 1; by < ranks; ++by) {
    ExchangeRun shift(communicators, gpu, 1, by);
    shift.write(0, numbers_of(rank));
    shift.run();
    require(shift.read<float>(1) == numbers_of((rank + ranks - by) % ranks),
            "the numbers of a rank before come");
  }
  ExchangeRun counted(communicators, gpu, 2);
  counted.write(0, numbers_of(rank));
  counted.write(1, std::vector<float>(kNumbers, -1.0F));
  counted.write(2, counts_of(rank, ranks, true));
  counted.run();
  require(counted.read<int32_t>(3) == counts_of(rank, ranks, false),
          "ranks know how many rows come");
  require(counted.read<float>(1) == rows_of_all(rank, ranks),
          "rows come in the order of ranks, and zeros behind them");
}

}  // namespace testing

namespace {

using namespace testing;

TEST_CASE("programs exchange blocks, shift and exchange counted rows among any number of ranks") {
  for (const int ranks : {2, 4})
    require_no_failures(errors_on_ranks(ranks, [](Rendezvous&, Communicator& group) {
      require_exchanges(testing::communicators_of(group));
    }));
}

TEST_CASE("a step in which rows do not fit ends with their number") {
  const auto failures = errors_on_ranks(2, [](Rendezvous&, Communicator& group) {
    const RankCommunicators communicators = testing::communicators_of(group);
    ExchangeRun counted(communicators, nullptr, 2, 1, 4 * kRow);
    counted.write(0, numbers_of(group.rank()));
    // Rank 1 receives two rows and three rows.
    counted.write(2, group.rank() == 0 ? std::vector<int32_t>{1, 2} : std::vector<int32_t>{0, 3});
    counted.run();
  });
  CHECK_THAT(failures[1],
             Catch::StartsWith("the other ranks send 5 rows of out to a rank that has room for 4"));
  CHECK_FALSE(failures[0].empty());
}

TEST_CASE("counts of more rows than exist are reported as a defect") {
  const auto failures = errors_on_ranks(2, [](Rendezvous&, Communicator& group) {
    const RankCommunicators communicators = testing::communicators_of(group);
    ExchangeRun counted(communicators, nullptr, 2);
    counted.write(0, numbers_of(group.rank()));
    counted.write(2, std::vector<int32_t>{100, 29});
    counted.run();
  });
  for (const std::string& failure : failures)
    CHECK_THAT(failure, Catch::Contains("counted_all_to_all counts 129 rows of 128"));
}

}  // namespace
}  // namespace ftrun
