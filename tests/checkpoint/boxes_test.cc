// These tests check checkpoints of parts of tensors: whatever boxes were saved, any other boxes can
// be read.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inspect.h"
#include "checkpoint/save.h"
#include "checkpoint/stored_boxes.h"
#include "sweep.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

using Random = std::mt19937_64;

struct Layout {
  int ranks;
  ToySplit split;
};

const std::vector<Layout> kLayouts{{1, ToySplit::kFlat}, {3, ToySplit::kFlat},
                                   {4, ToySplit::kRows}, {4, ToySplit::kColumns},
                                   {2, ToySplit::kBoth}, {6, ToySplit::kBoth}};

int64_t below(Random& random, int64_t limit) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}

std::vector<int64_t> random_shape(Random& random) {
  std::vector<int64_t> shape(random() % 4);
  for (int64_t& size : shape) size = 1 + below(random, 7);
  return shape;
}

Box random_box(Random& random, const std::vector<int64_t>& shape) {
  Box box;
  for (const int64_t size : shape) {
    box.offset.push_back(below(random, size));
    box.extent.push_back(1 + below(random, size - box.offset.back()));
  }
  return box;
}

/// Cuts a box in two, then some of the parts again.
std::vector<Box> random_tiling(Random& random, const std::vector<int64_t>& shape) {
  std::vector<Box> boxes{whole_box(shape)};
  for (int round = 0; round < 12 && !shape.empty(); ++round) {
    Box& box = boxes[random() % boxes.size()];
    const size_t d = random() % shape.size();
    if (box.extent[d] < 2) continue;
    Box rest = box;
    box.extent[d] = 1 + below(random, box.extent[d] - 1);
    rest.offset[d] += box.extent[d];
    rest.extent[d] -= box.extent[d];
    boxes.push_back(rest);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

std::vector<int64_t> elements_of(const std::vector<int64_t>& shape, const Box& box) {
  std::vector<int64_t> elements;
  visit_runs(shape, box, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t i = begin; i < end; ++i) elements.push_back(i);
  });
  return elements;
}

/// A slice of tensor "a" where the value of each element is its index in the tensor.
struct NumberedSlice {
  NumberedSlice(const std::vector<int64_t>& shape, const Box& box) {
    for (const int64_t element : elements_of(shape, box))
      values.push_back(static_cast<float>(element));
    slice = {"a", "param", DType::kF32, shape, box, nullptr, nullptr};
  }
  /// Returns the slice with `data` as the memory to save from or to read into.
  StateSlice with_data(std::vector<float>& data) const {
    StateSlice made = slice;
    made.data = data.data();
    return made;
  }
  StateSlice slice;
  std::vector<float> values;
};

}  // namespace

TEST_CASE(
    "slices that ranks save by rows, columns or flat ranges can be loaded divided in any other "
    "way") {
  for (const Layout& writer : kLayouts) {
    const MemoryFolder run;
    const auto errors = run_ranks(writer.ranks, [&](const CheckpointGroup& group) {
      ToyState state(writer.ranks, group.rank, 5, writer.split);
      save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, writer.ranks),
                      state.slices(), group);
    });
    REQUIRE(errors == std::vector<std::string>(static_cast<size_t>(writer.ranks)));
    REQUIRE(verify_checkpoint(run.path()).empty());
    Checkpoint checkpoint(run / "step-00000001");
    for (const Layout& reader : kLayouts)
      for (int rank = 0; rank < reader.ranks; ++rank) {
        ToyState state(reader.ranks, rank, 5, reader.split);
        state.clear();
        checkpoint.read(state.slices());
        REQUIRE(state.equals(5));
      }
  }
}

TEST_CASE("a slice with some of a matrix's columns is a separate tensor in the file") {
  const MemoryFolder run;
  std::vector<NumberedSlice> halves{{{3, 4}, {{0, 0}, {3, 2}}}, {{3, 4}, {{0, 2}, {3, 2}}}};
  save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 1),
                  {halves[0].with_data(halves[0].values), halves[1].with_data(halves[1].values)},
                  {});
  const SafetensorsFile file(run / "step-00000001/rank-00000.safetensors");
  const TensorView half = file.tensor("a.param[0:3,2:4]");
  REQUIRE(half.shape == std::vector<int64_t>{3, 2});
  const std::vector<float> expected{2, 3, 6, 7, 10, 11};
  const auto bytes = std::as_bytes(std::span(expected));
  REQUIRE(std::equal(half.bytes.begin(), half.bytes.end(), bytes.begin(), bytes.end()));
}

TEST_CASE(
    "a box is filled from boxes that are divided differently, and the first missing element is "
    "named") {
  Random random(7);
  int incomplete = 0;
  for (int round = 0; round < sweep_rounds(20'000); ++round) {
    const std::vector<int64_t> shape = random_shape(random);
    std::vector<Box> tiles = random_tiling(random, shape);
    if (random() % 3 == 0) tiles.pop_back();
    for (uint64_t more = random() % 3; more > 0; --more) tiles.push_back(random_box(random, shape));
    std::vector<StoredBox> boxes;
    std::vector<char> there(static_cast<size_t>(whole_box(shape).numel()));
    for (const Box& tile : tiles) {
      boxes.push_back({tile, 0, boxes.size()});
      for (const int64_t element : elements_of(shape, tile))
        there[static_cast<size_t>(element)] = 1;
    }
    const StoredBoxes stored("a", shape, boxes);
    const Box wanted = random() % 4 == 0 ? whole_box(shape) : random_box(random, shape);
    std::vector<int> given(there.size());
    const auto missing =
        stored.visit_covering_parts(wanted, [&](const StoredBox& from, const Box& part) {
          REQUIRE(contains_box(from.box, part));
          REQUIRE(from.box == tiles[from.slice]);
          for (const int64_t element : elements_of(shape, part))
            ++given[static_cast<size_t>(element)];
        });
    std::optional<int64_t> expected;
    for (const int64_t element : elements_of(shape, wanted))
      if (there[static_cast<size_t>(element)] == 0 && !expected) expected = element;
    REQUIRE(missing == expected);
    incomplete += expected ? 1 : 0;
    if (expected) continue;
    std::vector<int> all(there.size());
    for (const int64_t element : elements_of(shape, wanted)) all[static_cast<size_t>(element)] = 1;
    REQUIRE(given == all);
  }
  REQUIRE(incomplete > sweep_rounds(1000));
}

TEST_CASE("random boxes in the files of several ranks are read as any other boxes") {
  Random random(11);
  for (int round = 0; round < 60; ++round) {
    const MemoryFolder run;
    const std::vector<int64_t> shape = random_shape(random);
    std::vector<std::vector<NumberedSlice>> of_rank(3);
    for (const Box& box : random_tiling(random, shape))
      of_rank[random() % of_rank.size()].emplace_back(shape, box);
    const auto errors = run_ranks(3, [&](const CheckpointGroup& group) {
      std::vector<StateSlice> slices;
      for (NumberedSlice& mine : of_rank[static_cast<size_t>(group.rank)])
        slices.push_back(mine.with_data(mine.values));
      const SaveOptions options{.root = run.path(), .verify_written = false};
      save_checkpoint(posix_files(), options, toy_meta(1, 3), slices, group);
    });
    REQUIRE(errors == std::vector<std::string>(3));
    Checkpoint checkpoint(run / "step-00000001");
    checkpoint.check_complete();
    for (int i = 0; i < 20; ++i) {
      const NumberedSlice wanted(shape, random_box(random, shape));
      std::vector<float> room(wanted.values.size(), -1);
      checkpoint.read(wanted.with_data(room));
      REQUIRE(room == wanted.values);
    }
  }
}

TEST_CASE("of several equal boxes in the files only one is read") {
  const StoredBoxes stored(
      "a", {4, 4}, {{{{0, 0}, {4, 4}}, 0, 0}, {{{0, 0}, {4, 4}}, 1, 0}, {{{2, 0}, {2, 4}}, 2, 0}});
  std::vector<size_t> files;
  const auto missing = stored.visit_covering_parts(
      {{1, 1}, {3, 2}}, [&](const StoredBox& from, const Box&) { files.push_back(from.file); });
  REQUIRE_FALSE(missing);
  REQUIRE(files == std::vector<size_t>{0});
}

TEST_CASE("boxes that interlock in a way no run produces are refused before they take hours") {
  // Columns of different heights: what remains to be read has a step at each column.
  const int64_t columns = 8192;
  std::vector<StoredBox> boxes;
  for (int64_t column = 0; column < columns; ++column)
    boxes.push_back({{{0, column}, {1 + column * 7919 % 16000, 1}}, 0, 0});
  const StoredBoxes stored("f: tensor \"a\"", {16384, columns}, boxes);
  REQUIRE(require_bad_input([&] {
            stored.visit_covering_parts(whole_box({16384, columns}),
                                        [](const StoredBox&, const Box&) {});
          }) ==
          "f: tensor \"a\": its boxes overlap in a way no layout of ranks produces (more than 2048 "
          "boxes)");
}

TEST_CASE("files that disagree about a state's shape or dtype are refused") {
  for (const bool other_shape : {true, false}) {
    const MemoryFolder run;
    const auto errors = run_ranks(2, [&](const CheckpointGroup& group) {
      std::vector<float> values(12);
      const bool other = group.rank == 1;
      const std::vector<int64_t> shape =
          other && other_shape ? std::vector<int64_t>{4, 3} : std::vector<int64_t>{3, 4};
      StateSlice slice{"a", "param", DType::kF32, shape, whole_box(shape), values.data(), nullptr};
      if (other && !other_shape) slice.dtype = DType::kBF16;
      save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 2), {slice}, group);
    });
    REQUIRE(errors == std::vector<std::string>(2));
    REQUIRE(
        require_bad_input([&] { Checkpoint checkpoint(run / "step-00000001"); }) ==
        (run / "step-00000001/checkpoint.json") +
            ": tensor \"a\" (param): rank-00001.safetensors and rank-00000.safetensors disagree "
            "about its dtype or shape");
  }
}

TEST_CASE("an entry of another shape than its box is refused") {
  const MemoryFolder run;
  NumberedSlice half({3, 4}, {{0, 0}, {3, 2}});
  save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 1),
                  {half.with_data(half.values)}, {});
  const std::string file = run / "step-00000001/rank-00000.safetensors";
  std::string text = read_text(file);
  const std::string shape = "\"shape\":[3,2]";
  REQUIRE(text.find(shape) != std::string::npos);
  text.replace(text.find(shape), shape.size(), "\"shape\":[2,3]");
  write_text(file, text);
  const std::string path = run / "step-00000001/checkpoint.json";
  CheckpointManifest manifest = parse_manifest(read_text(path), path);
  manifest.files[0].header_xxh3 = SafetensorsFile(file).header_xxh3();
  write_text(path, manifest_text(manifest));
  Checkpoint checkpoint(run / "step-00000001");
  REQUIRE(require_bad_input([&] { checkpoint.verify_file(0); }) ==
          file + ": \"a.param[0:3,0:2]\" has another dtype or shape than the manifest says");
}

TEST_CASE("a slice that is empty or leaves its tensor is a bug of the caller") {
  const MemoryFolder run;
  std::vector<float> values(12);
  for (const Box& box :
       std::vector<Box>{{{0, 3}, {3, 2}}, {{0, 0}, {3, 0}}, {{0}, {3}}, {{-1, 0}, {2, 4}}}) {
    const StateSlice slice{"a", "param", DType::kF32, {3, 4}, box, values.data(), nullptr};
    REQUIRE_THROWS_AS(
        save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 1), {slice}, {}), Error);
  }
}

}  // namespace ftrun::testing
