#include "training/stop_lead.h"

#include <map>
#include <string>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("a stop may take two of the longest steps and the longest save") {
  StopLead lead(120, false);
  lead.add_step_time(40.5);
  lead.add_step_time(12);
  REQUIRE(lead.new_warning().empty());
  lead.add_save_time(38.9);
  REQUIRE(lead.costs().longest_stop_seconds() == Approx(119.9));
  REQUIRE(lead.new_warning().empty());
  lead.add_save_time(39.25);
  REQUIRE(lead.new_warning() ==
          "--stop-lead 120.0 s is too short: a stop may take 2 x 40.5 s (longest step) + 39.2 s "
          "(longest save) = 120.2 s"
          "\n  remedy: have the scheduler send its signal earlier, at least 121 s before it kills "
          "(sbatch --signal=B:USR1@SECONDS, and --stop-lead the same), or make steps shorter "
          "(gradient_accumulation_steps)");
}

TEST_CASE("steps alone may be too long for the lead, before anything was saved") {
  StopLead lead(30, true);
  lead.add_step_time(15.5);
  REQUIRE(lead.new_warning().starts_with(
      "--stop-lead 30.0 s is too short: a stop may take 2 x 15.5 s "
      "(longest step) = 31.0 s plus a save, whose time has not been measured yet\n"));
}

TEST_CASE("a save in the background may be in progress when the signal arrives") {
  StopLead lead(100, true);
  lead.add_step_time(10);
  lead.add_save_time(45);
  REQUIRE(lead.costs().longest_stop_seconds() == 110);
  REQUIRE(lead.new_warning().starts_with(
      "--stop-lead 100.0 s is too short: a stop may take 2 x 10.0 s (longest step) + "
      "2 x 45.0 s (longest save; one may be under way) = 110.0 s\n"));
}

TEST_CASE(
    "a lead that is too short is reported once, and again when a stop may take a tenth longer") {
  StopLead lead(10, false);
  lead.add_step_time(6);
  REQUIRE(!lead.new_warning().empty());
  REQUIRE(lead.new_warning().empty());
  lead.add_step_time(6.5);
  REQUIRE(lead.new_warning().empty());
  lead.add_step_time(6.7);
  REQUIRE(!lead.new_warning().empty());
}

TEST_CASE("without a lead nothing is reported, but measurements are kept") {
  StopLead lead(0, false);
  lead.add_step_time(1e6);
  REQUIRE(lead.new_warning().empty());
  std::map<std::string, int64_t> counters;
  lead.write_counters(counters);
  REQUIRE(counters == std::map<std::string, int64_t>{{"longest_step_milliseconds", 1000000000}});
}

TEST_CASE("a resumed run knows the lead and the costs of the earlier one before its first step") {
  StopLead before(20, false);
  before.add_step_time(5.0004);
  before.add_save_time(11);
  std::map<std::string, int64_t> counters{{"checkpoints_saved", 3}};
  before.write_counters(counters);
  REQUIRE(counters == std::map<std::string, int64_t>{{"checkpoints_saved", 3},
                                                     {"stop_lead_milliseconds", 20000},
                                                     {"longest_step_milliseconds", 5001},
                                                     {"longest_save_milliseconds", 11000}});
  StopLead resumed(0, false);
  resumed.read_counters(counters);
  REQUIRE(resumed.lead_seconds() == 20);
  REQUIRE(
      resumed.new_warning().starts_with("--stop-lead 20.0 s is too short: a stop may take 2 x 5.0 "
                                        "s (longest step) + 11.0 s (longest save) = 21.0 s\n"));
  StopLead longer(30, false);
  longer.read_counters(counters);
  REQUIRE(longer.lead_seconds() == 30);
  REQUIRE(longer.new_warning().empty());
}

TEST_CASE("only costs that have grown notably are written during a run") {
  StopLead lead(0, false);
  REQUIRE(!lead.has_grown());
  lead.add_step_time(0.04);
  REQUIRE(!lead.has_grown());
  lead.add_step_time(1);
  REQUIRE(lead.has_grown());
  lead.mark_costs_written();
  lead.add_step_time(1.09);
  REQUIRE(!lead.has_grown());
  lead.add_step_time(1.2);
  REQUIRE(lead.has_grown());
  lead.mark_costs_written();
  lead.add_save_time(0.5);
  REQUIRE(lead.has_grown());
}

}  // namespace
}  // namespace ftrun
