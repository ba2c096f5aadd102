#include "cluster/core_share.h"

#include "base/error.h"
#include "base/text.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

CoreLimit limit_of(std::vector<int> allowed, double quota = 0, const std::string& group = "") {
  return {.allowed_cores = std::move(allowed),
          .quota_cores = quota,
          .quota_group = group,
          .quota_group_id = group};
}

/// Returns the number of threads of each rank, as "2 2".
std::string thread_counts_text(const std::vector<RankCores>& ranks) {
  std::vector<int> counts;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    counts.push_back(threads_of_rank(ranks, static_cast<int>(rank)));
  return join_numbers(counts, " ");
}

TEST_CASE("the ranks of a machine divide its CPUs equally") {
  const CoreLimit four = limit_of({0, 1, 2, 3});
  CHECK(thread_counts_text({{"n1", four}}) == "4");
  CHECK(thread_counts_text({{"n1", four}, {"n1", four}}) == "2 2");
  CHECK(thread_counts_text({{"n1", four}, {"n1", four}, {"n1", four}}) == "1 1 1");
  CHECK(thread_counts_text({{"n1", four}, {"n2", four}}) == "4 4");
  CHECK(thread_counts_text({{"n1", limit_of({0})}, {"n1", limit_of({0})}}) == "1 1");
}

TEST_CASE("ranks that a launcher has pinned to cores of their own have all of them") {
  CHECK(thread_counts_text({{"n1", limit_of({0, 1})}, {"n1", limit_of({2, 3})}}) == "2 2");
  CHECK(thread_counts_text({{"n1", limit_of({0, 1, 2, 3})},
                            {"n1", limit_of({4})},
                            {"n1", limit_of({0, 1, 2, 3})}}) == "2 1 2");
}

TEST_CASE("a quota is divided among the ranks of its group") {
  const std::vector<int> eight{0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(thread_counts_text({{"n1", limit_of(eight, 0.5, "job")}}) == "1");
  CHECK(thread_counts_text({{"n1", limit_of(eight, 1.5, "job")}}) == "2");
  CHECK(thread_counts_text(
            {{"n1", limit_of(eight, 4, "job")}, {"n1", limit_of(eight, 4, "job")}}) == "2 2");
  CHECK(thread_counts_text(
            {{"n1", limit_of(eight, 0.5, "job")}, {"n1", limit_of(eight, 0.5, "job")}}) == "1 1");
  // The ranks are in separate containers, on the same CPUs.
  CHECK(thread_counts_text({{"n1", limit_of(eight, 2, "a")}, {"n1", limit_of(eight, 3, "b")}}) ==
        "2 3");
  CHECK(thread_counts_text({{"n1", limit_of(eight, 64, "job")}}) == "8");
}

TEST_CASE("a core limit survives its text form unchanged") {
  const auto there = [](const CoreLimit& limit) {
    const CoreLimit back = parse_core_limit(core_limit_text(limit));
    return cat(join_numbers(back.allowed_cores, " "), " | ", number_text(back.quota_cores), " | ",
               back.quota_group, " | ", back.quota_group_id);
  };
  CHECK(there({.allowed_cores = {0, 1, 2, 5, 7, 8},
               .quota_cores = 1.5,
               .quota_group = "/a b",
               .quota_group_id = "3:4"}) == "0 1 2 5 7 8 | 1.5 | /a b | 3:4");
  CHECK(there(limit_of({3})) == "3 | 0 |  | ");
}

TEST_CASE("an unparsable text gives a limit of one core") {
  for (const char* text : {"", "x", "\n\n\n\n\n", "-1\nnan", "5-\n-3", "9-1"}) {
    const CoreLimit limit = parse_core_limit(text);
    CHECK(limit.allowed_cores.size() <= 1);
    CHECK(limit.max_threads() == 1);
    CHECK(limit.quota_cores == 0);
  }
}

TEST_CASE("a range of cores in a limit's text is cut at 65,536 cores") {
  CHECK(parse_core_limit("0-2000000000").allowed_cores.size() == 65536);
}

TEST_CASE("a quota below the number of cores is reported") {
  CHECK(quota_text(limit_of({0, 1}, 0.5, "/job")) ==
        "the control group /job grants the time of 0.5 cores");
  CHECK(quota_text(limit_of({0, 1}, 1, "/")) == "the control group / grants the time of 1 core");
  CHECK(quota_text(limit_of({0, 1}, 1.5, "/job")).empty());
  CHECK(quota_text(limit_of({0, 1})).empty());
}

}  // namespace
}  // namespace ftrun
