#include "base/box.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using Numbers = std::vector<int64_t>;

/// Lists all boxes in a tensor of this shape, including empty ones.
std::vector<Box> boxes_in(const Numbers& shape) {
  std::vector<Box> all{{{}, {}}};
  for (const int64_t size : shape) {
    std::vector<Box> longer;
    for (const Box& box : all)
      for (int64_t offset = 0; offset <= size; ++offset)
        for (int64_t extent = 0; offset + extent <= size; ++extent) {
          longer.push_back(box);
          longer.back().offset.push_back(offset);
          longer.back().extent.push_back(extent);
        }
    all = std::move(longer);
  }
  return all;
}

/// Shapes of 0 to 3 dimensions.
std::vector<Numbers> shapes() {
  return {{},     {0},    {1},       {4},       {2, 3},    {3, 1},
          {1, 3}, {0, 2}, {2, 2, 3}, {3, 2, 2}, {1, 3, 2}, {2, 1, 2}};
}

/// Returns the elements of a box in its row-major order, as indices in the tensor. Loops over all
/// elements of the tensor.
Numbers elements_of(const Numbers& shape, const Box& box) {
  Numbers found;
  const int64_t count = whole_box(shape).numel();
  for (int64_t element = 0; element < count; ++element) {
    int64_t rest = element;
    bool inside = true;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
      const int64_t at = rest % shape[d];
      inside = inside && box.offset[d] <= at && at < box.offset[d] + box.extent[d];
    }
    if (inside) found.push_back(element);
  }
  return found;
}

void append(Numbers& all, const Numbers& more) {
  all.insert(all.end(), more.begin(), more.end());
}

Numbers numbers_between(int64_t begin, int64_t end) {
  Numbers all(static_cast<size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

}  // namespace

TEST_CASE("a box counts its elements, and a scalar has one") {
  REQUIRE(whole_box({}).numel() == 1);
  REQUIRE(whole_box({3, 4}) == Box{{0, 0}, {3, 4}});
  for (const Numbers& shape : shapes())
    for (const Box& box : boxes_in(shape))
      REQUIRE(box.numel() == static_cast<int64_t>(elements_of(shape, box).size()));
}

TEST_CASE(
    "a range of a box's elements becomes boxes that have them in order, each contiguous within the "
    "box") {
  for (const Numbers& shape : shapes())
    for (const Box& box : boxes_in(shape)) {
      const Numbers all = elements_of(shape, box);
      for (int64_t begin = 0; begin <= box.numel(); ++begin)
        for (int64_t end = begin; end <= box.numel(); ++end) {
          Numbers found;
          const std::vector<Box> parts = cut_box(box, begin, end);
          for (const Box& part : parts) {
            REQUIRE(part.numel() > 0);
            append(found, elements_of(shape, part));
          }
          REQUIRE(found == Numbers(all.begin() + begin, all.begin() + end));
          REQUIRE(parts.size() <= std::max<size_t>(1, 2 * shape.size() - 1));
        }
    }
}

TEST_CASE("a range of complete rows becomes one box, and so does a range within one row") {
  REQUIRE(cut_box({{2, 4}, {5, 6}}, 6, 18) == std::vector<Box>{{{3, 4}, {2, 6}}});
  REQUIRE(cut_box({{2, 4}, {5, 6}}, 7, 11) == std::vector<Box>{{{3, 5}, {1, 4}}});
  REQUIRE(cut_box({{2, 4}, {5, 6}}, 7, 20) ==
          std::vector<Box>{{{3, 5}, {1, 5}}, {{4, 4}, {1, 6}}, {{5, 4}, {1, 2}}});
  REQUIRE(cut_box({{}, {}}, 0, 1) == std::vector<Box>{{{}, {}}});
}

TEST_CASE("a range that exceeds the box is a bug of the caller") {
  REQUIRE_THROWS_AS(cut_box(whole_box({2, 3}), 0, 7), Error);
  REQUIRE_THROWS_AS(cut_box(whole_box({2, 3}), -1, 2), Error);
  REQUIRE_THROWS_AS(cut_box(whole_box({2, 3}), 3, 2), Error);
}

TEST_CASE("the runs of a box have its elements in order, and no two runs are adjacent") {
  for (const Numbers& shape : shapes())
    for (const Box& box : boxes_in(shape)) {
      Numbers found;
      int64_t last = -1;
      visit_runs(shape, box, [&](int64_t begin, int64_t end, int64_t position) {
        REQUIRE(position == static_cast<int64_t>(found.size()));
        REQUIRE(begin < end);
        REQUIRE(begin > last);
        last = end;
        append(found, numbers_between(begin, end));
      });
      REQUIRE(found == elements_of(shape, box));
    }
}

TEST_CASE("a box that exceeds the tensor has no runs") {
  const auto visit = [](const Box& box) {
    visit_runs({2, 3}, box, [](int64_t, int64_t, int64_t) {});
  };
  REQUIRE_THROWS_AS(visit({{0}, {2}}), Error);
  REQUIRE_THROWS_AS(visit({{1, 0}, {2, 3}}), Error);
  REQUIRE_THROWS_AS(visit({{0, -1}, {2, 3}}), Error);
}

TEST_CASE("intersection and difference divide the elements of a box") {
  for (const Numbers& shape : {Numbers{}, Numbers{4}, Numbers{3, 2}, Numbers{2, 2, 2}})
    for (const Box& box : boxes_in(shape))
      for (const Box& other : boxes_in(shape)) {
        const Numbers mine = elements_of(shape, box);
        const Numbers theirs = elements_of(shape, other);
        Numbers shared, rest;
        for (const int64_t element : mine)
          (std::count(theirs.begin(), theirs.end(), element) > 0 ? shared : rest)
              .push_back(element);
        const auto found = intersect_boxes(box, other);
        REQUIRE(found.has_value() == !shared.empty());
        if (!found) continue;
        REQUIRE(elements_of(shape, *found) == shared);
        Numbers left;
        for (const Box& part : subtract_box(box, *found)) {
          REQUIRE(part.numel() > 0);
          append(left, elements_of(shape, part));
        }
        std::sort(left.begin(), left.end());  // an element that occurs twice stays visible
        REQUIRE(left == rest);
      }
}

TEST_CASE("shared runs map one box's elements to the other's") {
  for (const Numbers& shape : {Numbers{}, Numbers{4}, Numbers{3, 2}, Numbers{2, 2, 2}})
    for (const Box& source : boxes_in(shape))
      for (const Box& target : boxes_in(shape)) {
        const auto part = intersect_boxes(source, target);
        if (!part) continue;
        const Numbers from_elements = elements_of(shape, source);
        const Numbers to_elements = elements_of(shape, target);
        Numbers found;
        int64_t from_last = -1, to_last = -1;
        visit_shared_runs(source, target, *part, [&](int64_t from, int64_t to, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            const int64_t element = from_elements[static_cast<size_t>(from + i)];
            REQUIRE(element == to_elements[static_cast<size_t>(to + i)]);
            found.push_back(element);
          }
          REQUIRE_FALSE((from == from_last && to == to_last));
          from_last = from + count;
          to_last = to + count;
        });
        REQUIRE(found == elements_of(shape, *part));
      }
}

}  // namespace ftrun
