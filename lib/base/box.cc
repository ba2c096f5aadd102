#include "base/box.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"

namespace ftrun {
namespace {

/// Elements of one step along each dimension.
std::vector<int64_t> strides_of(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
}

/// Elements [begin, end) of `box` along dimension `d` and those behind it; what lies before `d` is
/// one place.
void cut_from(const Box& box, const std::vector<int64_t>& strides, size_t d, int64_t begin,
              int64_t end, std::vector<Box>& out) {
  if (begin >= end) return;
  const int64_t stride = d < strides.size() ? strides[d] : 1;
  const auto part = [&](int64_t first, int64_t count) {
    Box made = box;
    if (d < box.extent.size()) {
      made.offset[d] += first;
      made.extent[d] = count;
    }
    return made;
  };
  const int64_t first = begin / stride;
  const int64_t last = end / stride;
  if (begin % stride == 0 && end % stride == 0) return out.push_back(part(first, last - first));
  const int64_t whole = (begin + stride - 1) / stride;
  if (whole > last) {
    return cut_from(part(first, 1), strides, d + 1, begin - first * stride, end - first * stride,
                    out);
  }
  if (first < whole)
    cut_from(part(first, 1), strides, d + 1, begin - first * stride, stride, out);
  if (whole < last) out.push_back(part(whole, last - whole));
  cut_from(part(last, 1), strides, d + 1, 0, end - last * stride, out);
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

std::vector<Box> cut_box(const Box& box, int64_t begin, int64_t end) {
  require(0 <= begin && begin <= end && end <= box.numel(), "a range inside the box");
  std::vector<Box> out;
  cut_from(box, strides_of(box.extent), 0, begin, end, out);
  return out;
}

void visit_runs(const std::vector<int64_t>& shape, const Box& box,
                const std::function<void(int64_t, int64_t, int64_t)>& run) {
  require(shape.size() == box.extent.size() && shape.size() == box.offset.size(),
          "a box has the dimensions of its tensor");
  if (box.numel() == 0) return;
  const std::vector<int64_t> strides = strides_of(shape);
  // Dimensions from `inner` on are one range: all behind it are whole.
  size_t inner = shape.size();
  int64_t length = 1;
  while (inner > 0) {
    --inner;
    length = box.extent[inner] * strides[inner];
    if (box.extent[inner] != shape[inner]) break;
  }
  std::vector<int64_t> at = box.offset;
  for (int64_t position = 0; position < box.numel(); position += length) {
    int64_t begin = 0;
    for (size_t d = 0; d < shape.size(); ++d) begin += at[d] * strides[d];
    run(begin, begin + length, position);
    for (size_t d = inner; d-- > 0;) {
      if (++at[d] < box.offset[d] + box.extent[d]) break;
      at[d] = box.offset[d];
    }
  }
}

}  // namespace ftrun
