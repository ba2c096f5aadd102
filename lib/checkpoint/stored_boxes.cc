#include "checkpoint/stored_boxes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The maximum number of boxes into which the missing rest of a target box may be divided. Columns
/// of 128 ranks with unequal ranges lead to 171.
constexpr size_t kMaxBoxesLeft = 2048;

/// Passes to `use` the parts of `missing_boxes` that `stored` holds, and removes them from
/// `missing_boxes`.
void visit_held_parts(const StoredBox& stored, std::vector<Box>& missing_boxes,
                      const std::function<void(const StoredBox&, const Box&)>& use) {
  std::vector<Box> still_missing;
  for (Box& box : missing_boxes) {
    const auto held_part = intersect_boxes(box, stored.box);
    if (!held_part) {
      still_missing.push_back(std::move(box));
      continue;
    }
    use(stored, *held_part);
    for (Box& remaining_box : subtract_box(box, *held_part))
      still_missing.push_back(std::move(remaining_box));
  }
  missing_boxes = std::move(still_missing);
}

}  // namespace

StoredBoxes::StoredBoxes(std::string subject, const std::vector<int64_t>& shape,
                         std::vector<StoredBox> boxes)
    : subject_(std::move(subject)), shape_(shape) {
  std::vector<ElementRange> ranges;
  for (const StoredBox& stored : boxes) ranges.push_back(element_range(stored.box));
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(ranges[a].begin, -ranges[a].end) < std::pair(ranges[b].begin, -ranges[b].end);
  });
  int64_t reach = 0;
  for (const size_t i : order) {
    boxes_.push_back(std::move(boxes[i]));
    ranges_.push_back(ranges[i]);
    largest_ends_.push_back(reach = std::max(reach, ranges[i].end));
  }
}

std::optional<int64_t> StoredBoxes::visit_covering_parts(
    const Box& target, const std::function<void(const StoredBox&, const Box&)>& use) const {
  require(contains_box(whole_box(shape_), target), "the wanted box lies inside the tensor");
  if (target.numel() == 0) return std::nullopt;
  const ElementRange range = element_range(target);
  std::vector<Box> missing_boxes{target};
  const auto first = std::upper_bound(largest_ends_.begin(), largest_ends_.end(), range.begin) -
                     largest_ends_.begin();
  for (auto i = static_cast<size_t>(first); i < boxes_.size() && !missing_boxes.empty(); ++i) {
    // This box and all later ones begin after the first missing element, so none of them holds it.
    if (ranges_[i].begin >= range.end || first_element(missing_boxes) < ranges_[i].begin) break;
    if (ranges_[i].end > range.begin) visit_held_parts(boxes_[i], missing_boxes, use);
    if (missing_boxes.size() > kMaxBoxesLeft)
      throw Error(
          ExitCode::kBadInput,
          cat(subject_, ": its boxes overlap in a way no layout of ranks produces (more than ",
              kMaxBoxesLeft, " boxes)"),
          "resume from another checkpoint: ftrun does not write such checkpoints");
  }
  if (missing_boxes.empty()) return std::nullopt;
  return first_element(missing_boxes);
}

StoredBoxes::ElementRange StoredBoxes::element_range(const Box& box) const {
  ElementRange range;
  for (size_t d = 0; d < shape_.size(); ++d) {
    range.begin = range.begin * shape_[d] + box.offset[d];
    range.end = range.end * shape_[d] + box.offset[d] + box.extent[d] - 1;
  }
  ++range.end;
  return range;
}

int64_t StoredBoxes::first_element(const std::vector<Box>& boxes) const {
  int64_t first = INT64_MAX;
  for (const Box& box : boxes) first = std::min(first, element_range(box).begin);
  return first;
}

}  // namespace ftrun
