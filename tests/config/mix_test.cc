#include "config/write.h"
#include "helpers.h"

#include <catch2/catch.hpp>

// These tests check data.train as a list of data sets with weights.

namespace ftrun {

TEST_CASE("data sets with weights are read as paths and weights") {
  const std::string mixed =
      "data:\n  train:\n    - {path: a, weight: 0.7}\n    - {path: b*.bin, weight: 2}\n    - "
      "{path: c}\n";
  const Config config = config_of(mixed);
  CHECK(config.data.train == Lines{"a", "b*.bin", "c"});
  CHECK(config.data.train_weights == std::vector<double>{0.7, 2, 1});
  CHECK(config_of("data: {train: [a, 'b*.bin', c], train_weights: [0.7, 2, 1]}") == config);
  CHECK(config_of(R"({"data": {"train": [{"path": "a", "weight": 3}]}})", {}, "c.json")
            .data.train_weights == std::vector<double>{3});
  // The printed config reads back as the same one.
  CHECK(config_of(effective_yaml(config)).data == config.data);
}

TEST_CASE("without weights data.train is one stream, and the printed config has no weights") {
  for (const char* text :
       {"data: {train: a}", "data: {train: [a, b]}", "data: {train: [a, b], train_weights: []}"})
    CHECK(config_of(text).data.train_weights.empty());
}

TEST_CASE("invalid weights are refused with their position") {
  CHECK(problems_of("c.yaml", "data:\n  train: [a, {path: b, weight: 1}]") ==
        Lines{"c.yaml:2:11: error: data.train: expected {path, weight} as in the other entries, "
              "found \"a\"\n  remedy: write each entry as {path: FILE, weight: NUMBER}"});
  CHECK(problems_of("c.yaml", "data:\n  train: [{path: b, wait: 1}]") ==
        Lines{"c.yaml:2:21: error: data.train: unknown key \"wait\" of a data set\n  remedy: "
              "write only path and weight"});
  CHECK(problems_of("c.yaml", "data:\n  train: [{path: b, weight: 0}]") ==
        Lines{"c.yaml:2:29: error: data.train: expected a list of numbers above 0, found 0"});
  CHECK(problems_of("c.yaml", "data:\n  train: [{path: b}]\n  train_weights: [1]") ==
        Lines{"c.yaml:3:3: error: data.train_weights: set together with the weights in data.train "
              "(line 2)\n  remedy: keep one of the two"});
  CHECK(
      problem_texts(
          resolve(written_of("data: {train: [a, b], train_weights: [1]}\ntrain_batch_size: 1"), {})
              .problems) == Lines{"c.yaml:1:38: error: data.train_weights has 1 number, "
                                  "data.train 2 data sets\n  remedy: give each data set a "
                                  "weight, or none: train_weights: []"});
}

}  // namespace ftrun
