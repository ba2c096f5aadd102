#include "base/box.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "base/round_up.h"

namespace ftrun {
namespace {

/// Returns the stride of each dimension: the number of elements by which neighbors along it
/// differ.
std::vector<int64_t> strides_of(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
}

/// Cuts elements [begin, end) of `box` into boxes along dimension `d` and those after it; the
/// dimensions before `d` have a single index.
void cut_from(const Box& box, const std::vector<int64_t>& strides, size_t d, int64_t begin,
              int64_t end, std::vector<Box>& out) {
  if (begin >= end) return;
  const int64_t stride = d < strides.size() ? strides[d] : 1;
  const auto slab = [&](int64_t first, int64_t count) {
    Box result = box;
    if (d < box.extent.size()) {
      result.offset[d] += first;
      result.extent[d] = count;
    }
    return result;
  };
  const int64_t first = begin / stride;
  const int64_t last = end / stride;
  if (begin % stride == 0 && end % stride == 0) return out.push_back(slab(first, last - first));
  const int64_t first_whole = divide_up(begin, stride);
  if (first_whole > last) {
    return cut_from(slab(first, 1), strides, d + 1, begin - first * stride, end - first * stride,
                    out);
  }
  if (first < first_whole)
    cut_from(slab(first, 1), strides, d + 1, begin - first * stride, stride, out);
  if (first_whole < last) out.push_back(slab(first_whole, last - first_whole));
  cut_from(slab(last, 1), strides, d + 1, 0, end - last * stride, out);
}

}  // namespace

int64_t Box::numel() const {
  int64_t count = 1;
  for (const int64_t size : extent) count *= size;
  return count;
}

Box whole_box(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

bool contains_box(const Box& box, const Box& part) {
  const size_t dimensions = box.extent.size();
  if (part.offset.size() != dimensions || part.extent.size() != dimensions) return false;
  for (size_t d = 0; d < dimensions; ++d)
    if (part.offset[d] < box.offset[d] ||
        part.offset[d] + part.extent[d] > box.offset[d] + box.extent[d])
      return false;
  return true;
}

std::vector<Box> cut_box(const Box& box, int64_t begin, int64_t end) {
  require(0 <= begin && begin <= end && end <= box.numel(), "the range lies inside the box");
  std::vector<Box> out;
  cut_from(box, strides_of(box.extent), 0, begin, end, out);
  return out;
}

std::optional<Box> intersect_boxes(const Box& a, const Box& b) {
  require(a.extent.size() == b.extent.size(), "both boxes have the same dimensions");
  Box shared = a;
  for (size_t d = 0; d < a.extent.size(); ++d) {
    shared.offset[d] = std::max(a.offset[d], b.offset[d]);
    shared.extent[d] =
        std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]) - shared.offset[d];
    if (shared.extent[d] <= 0) return std::nullopt;
  }
  return shared;
}

std::vector<Box> subtract_box(const Box& box, const Box& hole) {
  require(contains_box(box, hole), "the hole lies inside the box");
  std::vector<Box> rest;
  // `uncut` is what is still to be cut; it has the hole's extent in all dimensions before `d`.
  Box uncut = box;
  const auto add = [&](size_t d, int64_t begin, int64_t end) {
    if (begin >= end) return;
    rest.push_back(uncut);
    rest.back().offset[d] = begin;
    rest.back().extent[d] = end - begin;
  };
  for (size_t d = 0; d < box.extent.size(); ++d) {
    add(d, box.offset[d], hole.offset[d]);
    add(d, hole.offset[d] + hole.extent[d], box.offset[d] + box.extent[d]);
    uncut.offset[d] = hole.offset[d];
    uncut.extent[d] = hole.extent[d];
  }
  return rest;
}

void visit_shared_runs(const Box& source, const Box& target, const Box& part,
                       const std::function<void(int64_t, int64_t, int64_t)>& run) {
  require(contains_box(source, part) && contains_box(target, part),
          "the part lies inside both boxes");
  const int64_t elements = part.numel();
  if (elements == 0) return;
  const size_t dimensions = part.extent.size();
  // Dimensions from `inner` on form one contiguous range: all dimensions after `inner` are whole in
  // both boxes.
  size_t inner = dimensions;
  int64_t length = 1;
  while (inner > 0) {
    --inner;
    length *= part.extent[inner];
    if (part.extent[inner] != source.extent[inner] || part.extent[inner] != target.extent[inner])
      break;
  }
  const std::vector<int64_t> source_strides = strides_of(source.extent);
  const std::vector<int64_t> target_strides = strides_of(target.extent);
  std::vector<int64_t> at = part.offset;
  for (int64_t done = 0; done < elements; done += length) {
    int64_t from = 0;
    int64_t to = 0;
    for (size_t d = 0; d < dimensions; ++d) {
      from += (at[d] - source.offset[d]) * source_strides[d];
      to += (at[d] - target.offset[d]) * target_strides[d];
    }
    run(from, to, length);
    for (size_t d = inner; d-- > 0;) {
      if (++at[d] < part.offset[d] + part.extent[d]) break;
      at[d] = part.offset[d];
    }
  }
}

void visit_runs(const std::vector<int64_t>& shape, const Box& box,
                const std::function<void(int64_t, int64_t, int64_t)>& run) {
  visit_shared_runs(whole_box(shape), box, box,
                    [&](int64_t from, int64_t to, int64_t count) { run(from, from + count, to); });
}

}  // namespace ftrun
