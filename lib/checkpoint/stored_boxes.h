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
};

/// StoredBoxes holds the boxes of one state tensor in a checkpoint's files, which may overlap, and
/// finds those that fill a target box. The boxes are ordered by the range of the flattened tensor
/// that they span, so only boxes whose range overlaps the target box's are examined.
class StoredBoxes {
 public:
  /// Takes boxes that are not empty, in a tensor of this shape. `subject` begins the errors of
  /// visit_covering_parts().
  StoredBoxes(std::string subject, const std::vector<int64_t>& shape, std::vector<StoredBox> boxes);

  /// Calls `use(stored, part)` for parts of `target`, each with a box that holds it; no two parts
  /// share an element. Returns the first element of `target`, counted row by row in the tensor,
  /// that is in no box; nothing if the parts cover `target`. Throws Error(kBadInput) if the boxes
  /// overlap in a way that no layout of ranks produces and that would take hours to combine.
  std::optional<int64_t> visit_covering_parts(
      const Box& target,
      const std::function<void(const StoredBox& stored, const Box& part)>& use) const;

 private:
  /// ElementRange is the range from the first element of a box to past its last one, counted row by
  /// row in the tensor.
  struct ElementRange {
    int64_t begin = 0;
    int64_t end = 0;
  };
  ElementRange element_range(const Box& box) const;
  int64_t first_element(const std::vector<Box>& boxes) const;

  std::string subject_;
  std::vector<int64_t> shape_;
  /// The boxes, sorted by the beginning of their ranges; of several with the same beginning, the
  /// longest is first.
  std::vector<StoredBox> boxes_;
  std::vector<ElementRange> ranges_;
  /// The largest end among ranges 0 to i.
  std::vector<int64_t> largest_ends_;
};

}  // namespace ftrun
