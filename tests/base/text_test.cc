#include "base/text.h"

#include <cmath>
#include <limits>
#include <random>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("bytes are shown in binary units with two digits") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_bytes(int64_t{3} << 20) == "3.00 MiB");
  CHECK(human_bytes(int64_t{3} << 29) == "1.50 GiB");
  CHECK(human_bytes(int64_t{5} << 40) == "5.00 TiB");
  CHECK(human_bytes(int64_t{7} << 50) == "7.00 PiB");
  CHECK(human_bytes(std::numeric_limits<int64_t>::max()) == "8192.00 PiB");
  CHECK(human_bytes(-2048) == "-2.00 KiB");
}

TEST_CASE("counts are shown in decimal units") {
  CHECK(human_count(0) == "0");
  CHECK(human_count(9999) == "9999");
  CHECK(human_count(10000) == "10.0 k");
  CHECK(human_count(134515008) == "134.5 M");
  CHECK(human_count(1235814432) == "1.24 B");
  CHECK(human_count(2'000'000'000'000) == "2.00 T");
}

TEST_CASE("seconds are shown in the two largest units") {
  CHECK(human_seconds(0.04) == "0.0s");
  CHECK(human_seconds(7.26) == "7.3s");
  CHECK(human_seconds(59.94) == "59.9s");
  CHECK(human_seconds(59.95) == "1m 00s");
  CHECK(human_seconds(59.97) == "1m 00s");
  CHECK(human_seconds(60) == "1m 00s");
  CHECK(human_seconds(3599.4) == "59m 59s");
  CHECK(human_seconds(3599.6) == "1h 00m");
  CHECK(human_seconds(245) == "4m 05s");
  CHECK(human_seconds(7383) == "2h 03m");
  CHECK(human_seconds(360000) == "100h 00m");
}

TEST_CASE("a number is formatted as by printf, whatever its length") {
  CHECK(format_number("%.2f", 1.005) == "1.00");
  CHECK(format_number("%+.1f %%", -12.34) == "-12.3 %");
  CHECK(format_number("%.3g", 1234567) == "1.23e+06");
  CHECK(format_number("%.4f", std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0)) ==
        "nan");
  CHECK(format_number("%.0f", 1e300).size() == 301);
}

TEST_CASE("a number's text is the shortest that reads back as the same number") {
  CHECK(number_text(0.1) == "0.1");
  CHECK(number_text(1e-5) == "1e-05");
  CHECK(number_text(3) == "3");
  CHECK(number_text(-0.0) == "-0");
  CHECK(number_text(std::nan("")) == "nan");
  CHECK(number_text(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(number_text(-std::numeric_limits<double>::infinity()) == "-inf");
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const auto value =
        std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 600) - 300);
    REQUIRE(std::stod(number_text(value)) == value);
  }
}

TEST_CASE("split keeps empty parts and join undoes it") {
  CHECK(split("a,b,c", ',') == std::vector<std::string>{"a", "b", "c"});
  CHECK(split("", ',') == std::vector<std::string>{""});
  CHECK(split(",x,", ',') == std::vector<std::string>{"", "x", ""});
  CHECK(join({}, ", ").empty());
  CHECK(join({"a"}, ", ") == "a");
  CHECK(join_numbers(std::vector<int>{}, ", ").empty());
  CHECK(join_numbers(std::vector<int64_t>{10, -2, 3}, ", ") == "10, -2, 3");
  for (const std::string text : {"", ",", "a", "a,,b", ",a,"})
    CHECK(join(split(text, ','), ",") == text);
}

TEST_CASE("edit distance counts insertions, deletions, replacements and swaps of neighbors") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("stpes", "steps") == 1);
  CHECK(edit_distance("batch", "batch_size") == 5);
  CHECK(edit_distance("ab", "ba") == 1);
}

TEST_CASE("edit distance is symmetric and obeys the triangle inequality through a single edit") {
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string a(random() % 8, 'a');
    std::string b(random() % 8, 'a');
    for (char& c : a) c = static_cast<char>('a' + random() % 3);
    for (char& c : b) c = static_cast<char>('a' + random() % 3);
    REQUIRE(edit_distance(a, b) == edit_distance(b, a));
    REQUIRE((edit_distance(a, b) == 0) == (a == b));
    REQUIRE(std::abs(edit_distance(a + "x", b) - edit_distance(a, b)) <= 1);
  }
}

TEST_CASE("the nearest word forgives case, dashes and a third of its letters") {
  const std::vector<std::string> keys{"learning_rate", "weight_decay", "betas", "eps"};
  CHECK(closest_match("learning_rte", keys) == "learning_rate");
  CHECK(closest_match("LearningRate", keys) == "learning_rate");
  CHECK(closest_match("weight-decay", keys) == "weight_decay");
  CHECK(closest_match("beta", keys) == "betas");
  CHECK(closest_match("esp", keys) == "eps");
  CHECK(closest_match("optimizer", keys).empty());
  CHECK(closest_match("anything", {}).empty());
}

TEST_CASE("the first of two equally near words is named") {
  CHECK(closest_match("cat", {"hat", "bat"}) == "hat");
}

TEST_CASE("a shell word is quoted if a shell would not read it as one plain word") {
  CHECK(shell_word("runs/v1.2_a-b") == "runs/v1.2_a-b");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("run [v2] a*b") == "'run [v2] a*b'");
  CHECK(shell_word("it's $HOME") == "'it'\\''s $HOME'");
  CHECK(shell_word("日本") == "'日本'");
}

}  // namespace
}  // namespace ftrun
