#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace ftrun {

/// A part of a tensor: elements [offset[d], offset[d] + extent[d]) along each dimension d.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

/// The whole of a tensor of this shape.
Box whole_box(const std::vector<int64_t>& shape);

/// Elements [begin, end) of the box's own row-major order, as boxes of the tensor, in that order and
/// each in one piece: one box where [begin, end) is whole rows, else at most 2 dimensions - 1.
std::vector<Box> cut_box(const Box& box, int64_t begin, int64_t end);

/// Calls `run(begin, end, position)` for each stretch of the box that is one range in a tensor of
/// this shape, in order: elements [begin, end) of the tensor are elements from `position` of the box.
/// Neighbouring ranges are one: a box of whole rows is one run.
void visit_runs(const std::vector<int64_t>& shape, const Box& box,
                const std::function<void(int64_t begin, int64_t end, int64_t position)>& run);

}  // namespace ftrun
