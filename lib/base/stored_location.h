#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ftrun {

/// StoredLocation specifies where a file holds a tensor of the model that is not stored under its
/// own name in its own shape: as some rows of a larger tensor (q, k and v in one matrix), and
/// perhaps transposed ([inputs, outputs]).
///
/// Row r of the tensor is row `first_row + r / rows_together * stride + r % rows_together` of the
/// stored tensor or, if it is transposed, of its transpose. The rows of a vector are its elements.
///
/// Several stored tensors of one shape may hold it, too (for example a vector for each head), one
/// after another.
struct StoredLocation {
  /// Name of the stored tensor; empty: the tensor is stored under its own name and shape. A '*' in
  /// the name stands for the numbers of several stored tensors.
  std::string name;
  std::vector<int64_t> shape;
  /// The number of stored tensors that '*' stands for, which hold the rows in order and
  /// untransposed; 0: there is a single one, whose name has no '*'.
  int64_t tensor_count = 0;
  int64_t first_row = 0;
  int64_t rows_together = 1;
  int64_t stride = 1;
  bool transposed = false;

  bool operator==(const StoredLocation&) const = default;

  /// Lists the names of all stored tensors.
  std::vector<std::string> names() const;
};

/// Calls `visit(name, from, to, position)` for each stored tensor that holds some of elements
/// [begin, end) of the tensor at `location`. Elements [from, to) of the stored tensor are those
/// that begin `position` elements after `begin`.
void visit_stored_tensors(const StoredLocation& location, int64_t begin, int64_t end,
                          const std::function<void(const std::string& name, int64_t from,
                                                   int64_t to, int64_t position)>& visit);

/// StoredTensorInterval says that elements [begin, end) of the stored tensor are the elements of
/// the part from `position` on.
struct StoredTensorInterval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t position = 0;

  bool operator==(const StoredTensorInterval&) const = default;
};

/// Calls `visit` for each interval of elements [begin, end) of a tensor that is stored untransposed
/// at `location`, in order and as few as possible. Positions count from the tensor's first element.
void visit_stored_intervals(const StoredLocation& location, int64_t begin, int64_t end,
                            const std::function<void(const StoredTensorInterval&)>& visit);

/// TransposedRowInterval is an interval within one row of a stored tensor. The row is a column of a
/// part that is stored transposed: elements [begin, begin + count) of the stored tensor are
/// elements `position`, `position + step`, ... of the part.
struct TransposedRowInterval {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t position = 0;
  int64_t step = 0;
};

/// Calls `visit` for the intervals that hold elements [begin, end) of a matrix of this shape that
/// is stored transposed at `location`.
void visit_transposed_intervals(const StoredLocation& location, const std::vector<int64_t>& shape,
                                int64_t begin, int64_t end,
                                const std::function<void(const TransposedRowInterval&)>& visit);

/// Reads elements [begin, end) of a tensor of this shape that is stored at `location`: `read(from,
/// to, out)` fills `out` with elements [from, to) of the stored tensor.
template <class T, class Read>
void read_stored(const StoredLocation& location, const std::vector<int64_t>& shape, int64_t begin,
                 int64_t end, std::span<T> out, Read read) {
  if (!location.transposed)
    return visit_stored_intervals(location, begin, end, [&](const StoredTensorInterval& interval) {
      read(interval.begin, interval.end,
           out.subspan(static_cast<size_t>(interval.position - begin),
                       static_cast<size_t>(interval.end - interval.begin)));
    });
  std::vector<T> column;
  visit_transposed_intervals(location, shape, begin, end, [&](const TransposedRowInterval& stored) {
    column.resize(static_cast<size_t>(stored.count));
    read(stored.begin, stored.begin + stored.count, std::span<T>(column));
    int64_t at = stored.position - begin;
    for (size_t i = 0; i < column.size(); ++i, at += stored.step)
      out[static_cast<size_t>(at)] = column[i];
  });
}

}  // namespace ftrun
