#include "engine/step_traffic.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TrafficSums traffic_of_rank(int64_t bytes) {
  return {.steps = 2,
          .predicted_sent_bytes = 1000,
          .measured_sent_bytes = bytes,
          .predicted_disk = {4096, 8192},
          .measured_disk = {4096, 8000}};
}

TEST_CASE("traffic of the ranks is added, and its table shows what diverges") {
  TrafficSums all = decode_traffic(encode_traffic(traffic_of_rank(1004)));
  all.add(decode_traffic(encode_traffic(traffic_of_rank(996))));
  CHECK(measured_traffic_text(all, 2) ==
        "\nbytes of 2 ranks in 2 steps\n"
        "traffic        predicted  measured    error    rounded\n"
        "-------------  ---------  --------  -------  ---------\n"
        "communication       2000      2000  +0.00 %   1.95 KiB\n"
        "disk, read          8192      8192  +0.00 %   8.00 KiB\n"
        "disk, written      16384     16000  -2.34 %  15.62 KiB\n");
  const auto record = traffic_record(all);
  CHECK(record.at("steps").at("counted") == 2);
  CHECK(record.at("communication").at("program") == 2000);
  CHECK(record.at("communication").at("transport") == 2000);
  CHECK(record.at("disk_written").at("disk") == 16000);
}

TEST_CASE("the measured traffic is unknown if one rank cannot measure its transport") {
  TrafficSums unseen = traffic_of_rank(0);
  unseen.measured_sent_bytes.reset();
  TrafficSums all = traffic_of_rank(1000);
  all.add(decode_traffic(encode_traffic(unseen)));
  CHECK_FALSE(all.measured_sent_bytes);
  CHECK_FALSE(traffic_record(all).at("communication").contains("transport"));
  CHECK(measured_traffic_text(all, 2).find("communication       2000         -        -") !=
        std::string::npos);
}

TEST_CASE("a single rank without a disk tier has no traffic to report") {
  CHECK(measured_traffic_text({.steps = 3}, 1).empty());
}

}  // namespace
}  // namespace ftrun
