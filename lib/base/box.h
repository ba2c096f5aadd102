#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace ftrun {

/// Box is a part of a tensor: elements [offset[d], offset[d] + extent[d]) along each dimension d.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

/// Returns the box of a whole tensor of this shape.
Box whole_box(const std::vector<int64_t>& shape);

/// Returns whether `box` contains all of `part`; both have the same number of dimensions.
bool contains_box(const Box& box, const Box& part);

/// Cuts elements [begin, end) of the box's own row-major order into boxes of the tensor, in that
/// order. Each box is contiguous. Whole rows make one box; other ranges of a tensor of d dimensions
/// make at most 2 * d - 1 boxes.
std::vector<Box> cut_box(const Box& box, int64_t begin, int64_t end);

/// Returns the box of the elements that `a` and `b` share; nothing if they share none.
std::optional<Box> intersect_boxes(const Box& a, const Box& b);

/// Returns the elements of `box` outside `hole`, which lies inside it, as disjoint boxes, at most 2
/// for each dimension.
std::vector<Box> subtract_box(const Box& box, const Box& hole);

/// Calls `run(begin, end, position)` for each run of elements of the box that is contiguous in a
/// tensor of this shape, in order: elements [begin, end) of the tensor are the box's elements from
/// `position` on. Adjacent ranges are joined, so a box of whole rows is one run.
void visit_runs(const std::vector<int64_t>& shape, const Box& box,
                const std::function<void(int64_t begin, int64_t end, int64_t position)>& run);

/// Calls `run(from, to, count)` for each run of elements of `part`, which lies inside both boxes,
/// that is contiguous in each of them: `count` elements at `from` of `source` are those at `to` of
/// `target`, both counted in the boxes' own row-major order. Runs come in order and are as few as
/// possible.
void visit_shared_runs(const Box& source, const Box& target, const Box& part,
                       const std::function<void(int64_t from, int64_t to, int64_t count)>& run);

}  // namespace ftrun
