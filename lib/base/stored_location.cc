#include "base/stored_location.h"

#include <algorithm>

#include "base/box.h"
#include "base/error.h"

namespace ftrun {
namespace {

/// Visits rows [from, to) of the part; rows that are neighbors in the stored tensor are visited by
/// one call.
void visit_row_runs(const StoredLocation& location, int64_t from, int64_t to,
                    const std::function<void(int64_t row, int64_t stored, int64_t count)>& visit) {
  const bool is_one_run = location.rows_together == location.stride;
  for (int64_t row = from; row < to;) {
    const int64_t within = row % location.rows_together;
    const int64_t count =
        is_one_run ? to - row : std::min(to - row, location.rows_together - within);
    visit(row, location.first_row + row / location.rows_together * location.stride + within, count);
    row += count;
  }
}

/// Returns the name of the i-th of several stored tensors.
std::string piece_name(const std::string& name, int64_t i) {
  const size_t star = name.find('*');
  require(star != std::string::npos, "the names of several tensors have a number");
  return cat(name.substr(0, star), i, name.substr(star + 1));
}

}  // namespace

std::vector<std::string> StoredLocation::names() const {
  if (tensor_count == 0) return {name};
  std::vector<std::string> all;
  for (int64_t i = 0; i < tensor_count; ++i) all.push_back(piece_name(name, i));
  return all;
}

void visit_stored_tensors(const StoredLocation& location, int64_t begin, int64_t end,
                          const std::function<void(const std::string& name, int64_t from,
                                                   int64_t to, int64_t position)>& visit) {
  if (location.tensor_count == 0) return visit(location.name, begin, end, 0);
  const int64_t elements = whole_box(location.shape).numel();
  for (int64_t at = begin; at < end;) {
    const int64_t piece = at / elements;
    const int64_t last = std::min(end, (piece + 1) * elements);
    visit(piece_name(location.name, piece), at - piece * elements, last - piece * elements,
          at - begin);
    at = last;
  }
}

void visit_stored_intervals(const StoredLocation& location, int64_t begin, int64_t end,
                            const std::function<void(const StoredTensorInterval&)>& visit) {
  require(!location.transposed, "rows that lie as they are");
  const int64_t columns = location.shape.size() > 1 ? location.shape[1] : 1;
  if (begin == end) return;
  visit_row_runs(location, begin / columns, (end - 1) / columns + 1,
                 [&](int64_t row, int64_t stored, int64_t count) {
                   const int64_t first = std::max(begin, row * columns);
                   const int64_t last = std::min(end, (row + count) * columns);
                   const int64_t shift = (stored - row) * columns;
                   visit({first + shift, last + shift, first});
                 });
}

void visit_transposed_intervals(const StoredLocation& location, const std::vector<int64_t>& shape,
                                int64_t begin, int64_t end,
                                const std::function<void(const TransposedRowInterval&)>& visit) {
  require(location.transposed && shape.size() == 2, "the matrix lies transposed");
  const int64_t columns = shape[1], stored_columns = location.shape[1];
  for (const Box& box : cut_box(whole_box(shape), begin, end))
    visit_row_runs(location, box.offset[0], box.offset[0] + box.extent[0],
                   [&](int64_t row, int64_t stored, int64_t count) {
                     for (int64_t c = box.offset[1]; c < box.offset[1] + box.extent[1]; ++c)
                       visit({c * stored_columns + stored, count, row * columns + c, columns});
                   });
}

}  // namespace ftrun
