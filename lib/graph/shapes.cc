#include "graph/shapes.h"

#include <initializer_list>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"

namespace ftrun {
namespace {

/// LetterSizes maps the dimensions of one operation's shapes ("N", "(H+2K)d") to their sizes. A
/// dimension is a name here; the sizes of sums and products of letters come from the attributes
/// (OpSpec::add_letter_sizes) or are compared with those of their letters.
class LetterSizes {
 public:
  explicit LetterSizes(const Op& op) : sizes_{{"2", 2}, {"t", 1}} {
    if (const auto add_sizes = op_spec(op.kind).add_letter_sizes) add_sizes(op, sizes_);
  }

  /// Binds the letters of a pattern to an operand's dimensions; returns false if a letter already
  /// has another value.
  bool match(std::string_view pattern, const Dims& dims) {
    if (pattern == "S") return match_any_shape(dims);
    if (pattern == "tS") return match_blocks(dims);
    const std::vector<std::string> letters = split(pattern, ',');
    if (letters.size() != dims.size()) return false;
    for (size_t i = 0; i < dims.size(); ++i)
      if (sizes_.try_emplace(letters[i], dims[i]).first->second != dims[i]) return false;
    return is_multiple("F", 2, "2F") && is_multiple("C", sizes_.at("t"), "tC");
  }

  /// Returns the fault of sums, which can be checked only once all operands are known: the sum of
  /// the LoRA ranks, and the sum of the outputs with DoRA magnitudes. Returns "" if there is none.
  std::string sums_fault() const {
    if (!is_sum("r1+r2+r3", {"r1", "r2", "r3"})) return "r1+r2+r3 is not the sum of the ranks";
    if (sizes_.contains("O1") && !is_sum("O1+O2+O3", {"O1", "O2", "O3"}))
      return "O1+O2+O3 is not the sum of the parts";
    return "";
  }

 private:
  /// Returns whether the size of `whole` is the sum of its parts; true if the size is not known.
  bool is_sum(const char* whole, std::initializer_list<const char*> parts) const {
    const auto known = sizes_.find(whole);
    if (known == sizes_.end()) return true;
    int64_t sum = 0;
    for (const char* part : parts)
      if (const auto found = sizes_.find(part); found != sizes_.end()) sum += found->second;
    return sum == known->second;
  }

  bool is_multiple(const char* one, int64_t times, const char* other) const {
    const auto a = sizes_.find(one), b = sizes_.find(other);
    return a == sizes_.end() || b == sizes_.end() || times * a->second == b->second;
  }

  bool match_any_shape(const Dims& dims) {
    if (any_shape_.empty()) any_shape_ = dims;
    return any_shape_ == dims;
  }

  /// Returns whether dims are t blocks: [t R, ...], or [t, R, ...] if the shape [R, ...] of a block
  /// is known.
  bool match_blocks(Dims dims) {
    const int64_t ranks = sizes_.at("t");
    if (dims.empty() || dims[0] % ranks != 0) return false;
    if (!any_shape_.empty() && dims.size() == any_shape_.size() + 1 && dims[0] == ranks)
      return Dims(dims.begin() + 1, dims.end()) == any_shape_;
    dims[0] /= ranks;
    return match_any_shape(dims);
  }

  std::map<std::string, int64_t> sizes_;
  Dims any_shape_;
};

/// Names the first operand of one side of the arrow ("inputs -> results") that does not fit; "" if
/// all fit.
std::string first_misfit(const LayerGraph& graph, std::string_view side,
                         const std::vector<ValueId>& operands, LetterSizes& letters) {
  const std::vector<std::string> patterns = split(side, ' ');
  size_t next = 0;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const bool optional = patterns[i].front() == '[', last = i + 1 == patterns.size();
    if (next >= operands.size()) return optional ? "" : cat(patterns[i], " is missing");
    const std::string pattern =
        optional ? patterns[i].substr(1, patterns[i].size() - 2) : patterns[i];
    const Value& value = graph.at(operands[next]);
    // An optional operand was left out if the next operand has another number of dimensions than
    // the pattern.
    if (optional && !last && value.dims.size() != split(pattern, ',').size()) continue;
    if (!letters.match(pattern, value.dims))
      return cat(value.name, " does not have shape ", pattern);
    ++next;
  }
  if (next < operands.size()) return cat(graph.at(operands[next]).name, " is one too many");
  return "";
}

}  // namespace

std::string shape_fault(const LayerGraph& graph, const Op& op) {
  const std::string_view shapes = op_spec(op.kind).shapes;
  const size_t arrow = shapes.find(" -> ");
  LetterSizes letters(op);
  std::string fault = first_misfit(graph, shapes.substr(0, arrow), op.in, letters);
  if (fault.empty()) fault = first_misfit(graph, shapes.substr(arrow + 4), op.out, letters);
  if (fault.empty()) fault = letters.sums_fault();
  return fault.empty() ? "" : cat("needs ", shapes, ": ", fault);
}

}  // namespace ftrun
