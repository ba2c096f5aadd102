#include "checkpoint/stored_boxes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The maximum number of boxes into which the missing rest of a wanted box may be divided. Columns
/// of 128 ranks with unequal ranges lead to 171.
constexpr size_t kMaxBoxesLeft = 2048;

/// Passes to `use` the parts of `left` that `stored` holds, and removes them from `left`.
void use_box(const StoredBox& stored, std::vector<Box>& left,
             const std::function<void(const StoredBox&, const Box&)>& use) {
  std::vector<Box> rest;
  for (Box& box : left) {
    const auto part = intersection(box, stored.box);
    if (!part) {
      rest.push_back(std::move(box));
      continue;
    }
    use(stored, *part);
    for (Box& other : difference(box, *part)) rest.push_back(std::move(other));
  }
  left = std::move(rest);
}

}  // namespace

StoredBoxes::StoredBoxes(std::string subject, const std::vector<int64_t>& shape,
                         std::vector<StoredBox> boxes)
    : subject_(std::move(subject)), shape_(shape) {
  std::vector<Span> spans;
  for (const StoredBox& stored : boxes) spans.push_back(span_of(stored.box));
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(spans[a].begin, -spans[a].end) < std::pair(spans[b].begin, -spans[b].end);
  });
  int64_t reach = 0;
  for (const size_t i : order) {
    boxes_.push_back(std::move(boxes[i]));
    spans_.push_back(spans[i]);
    largest_ends_.push_back(reach = std::max(reach, spans[i].end));
  }
}

std::optional<int64_t> StoredBoxes::cover(
    const Box& wanted, const std::function<void(const StoredBox&, const Box&)>& use) const {
  require(holds(whole_box(shape_), wanted), "the wanted box lies inside the tensor");
  if (wanted.numel() == 0) return std::nullopt;
  const Span span = span_of(wanted);
  std::vector<Box> left{wanted};
  const auto first = std::upper_bound(largest_ends_.begin(), largest_ends_.end(), span.begin) -
                     largest_ends_.begin();
  for (auto i = static_cast<size_t>(first); i < boxes_.size() && !left.empty(); ++i) {
    // This box and all later ones begin after the first missing element, so none of them holds it.
    if (spans_[i].begin >= span.end || first_of(left) < spans_[i].begin) break;
    if (spans_[i].end > span.begin) use_box(boxes_[i], left, use);
    if (left.size() > kMaxBoxesLeft)
      throw Error(
          ExitCode::kBadInput,
          cat(subject_, ": its boxes overlap in a way no layout of ranks produces (more than ",
              kMaxBoxesLeft, " boxes)"),
          "resume from another checkpoint: ftrun does not write such checkpoints");
  }
  if (left.empty()) return std::nullopt;
  return first_of(left);
}

StoredBoxes::Span StoredBoxes::span_of(const Box& box) const {
  Span span;
  for (size_t d = 0; d < shape_.size(); ++d) {
    span.begin = span.begin * shape_[d] + box.offset[d];
    span.end = span.end * shape_[d] + box.offset[d] + box.extent[d] - 1;
  }
  ++span.end;
  return span;
}

int64_t StoredBoxes::first_of(const std::vector<Box>& boxes) const {
  int64_t first = INT64_MAX;
  for (const Box& box : boxes) first = std::min(first, span_of(box).begin);
  return first;
}

}  // namespace ftrun
