#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/box.h"

namespace ftrun {

/// StoredBox is a box of a state tensor in a file.
struct StoredBox {
  Box box;
  /// The index of the file, and of the slice in the file.
  size_t file = 0;
  size_t slice = 0;
  /// The element of the slice's data at which the box begins.
  int64_t position = 0;
};

/// StoredBoxes holds the boxes of one state tensor in a checkpoint's files, which may overlap, and
/// finds those that fill a wanted box. The boxes are ordered by the range of the flattened tensor
/// that they span, so only boxes whose range overlaps the wanted box's are examined.
class StoredBoxes {
 public:
  /// Takes boxes that are not empty, in a tensor of this shape. `subject` begins the errors of
  /// cover().
  StoredBoxes(std::string subject, const std::vector<int64_t>& shape, std::vector<StoredBox> boxes);

  /// Calls `use(stored, part)` for parts of `wanted` and a box that holds each; no two parts share
  /// an element. Returns the first element of `wanted`, counted row by row in the tensor, that is
  /// in no box; nothing when the parts cover `wanted`. Throws Error(kBadInput) if the boxes overlap
  /// in a way that no layout of ranks produces, so that combining them would take hours.
  std::optional<int64_t> cover(
      const Box& wanted,
      const std::function<void(const StoredBox& stored, const Box& part)>& use) const;

 private:
  /// Span is the range from the first element of a box to past its last one, counted row by row in
  /// the tensor.
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Span span_of(const Box& box) const;
  int64_t first_of(const std::vector<Box>& boxes) const;

  std::string subject_;
  std::vector<int64_t> shape_;
  /// The boxes in the order in which their spans begin; of several that begin at one place, the
  /// longest is first.
  std::vector<StoredBox> boxes_;
  std::vector<Span> spans_;
  /// The largest end of spans [0, i].
  std::vector<int64_t> reach_;
};

}  // namespace ftrun
