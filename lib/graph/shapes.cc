#include "graph/shapes.h"

#include <array>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Operands of each kind in the letters of op.h, by OpKind; dimensions of an operand are joined by
/// commas, [optional] operands come last. Q stands for (H+2K)d, R for H+K, A for H*d, G for 2F.
constexpr std::array<std::string_view, 22> kShapes{
    "N V,D -> N,D",                // embed
    "N N,D -> V,D",                // embed_wgrad
    "N -> N,d",                    // rope_table
    "N,D D -> N,D N",              // rms_norm
    "N,D N,D D -> N,D N,D N",      // add_rms_norm
    "N,D N,D N D [N,D] -> N,D",    // rms_norm_dgrad
    "N,D N,D N -> D",              // rms_norm_wgrad
    "N,I O,I [O] -> N,O",          // linear
    "N,O O,I -> N,I",              // linear_dgrad
    "N,O N,I -> O,I",              // linear_wgrad
    "N,O -> O",                    // bias_wgrad
    "N,Q d d -> N,Q N,R",          // qk_norm
    "N,Q N,Q N,R d d -> N,Q",      // qk_norm_dgrad
    "N,Q N,Q N,R -> d d",          // qk_norm_wgrad
    "N,Q N,d -> N,Q",              // rope
    "N,Q N,d -> N,Q",              // rope_dgrad
    "N,Q N -> N,A H,N",            // attention
    "N,A N,Q N,A H,N N -> N,Q",    // attention_dgrad
    "N,G -> N,F",                  // swiglu
    "N,F N,G -> N,G",              // swiglu_dgrad
    "S S -> S",                    // add: any shape, the same
    "N,D V,D N -> 2 [N,D] [V,D]",  // linear_cross_entropy
};

/// The letters of one operation and what they were found to be.
class Letters {
 public:
  explicit Letters(const Op& op) {
    const auto heads = [&](int64_t query, int64_t kv, int64_t size) {
      known_ = {{"Q", (query + 2 * kv) * size},
                {"R", query + kv},
                {"A", query * size},
                {"H", query},
                {"d", size}};
    };
    if (const auto* a = std::get_if<HeadAttrs>(&op.attrs))
      heads(a->query_heads, a->kv_heads, a->head_size);
    if (const auto* a = std::get_if<AttentionAttrs>(&op.attrs))
      heads(a->query_heads, a->kv_heads, a->head_size);
    if (const auto* a = std::get_if<RopeTableAttrs>(&op.attrs))
      known_["d"] = 2 * static_cast<int64_t>(a->inverse_frequencies.size());
    known_["2"] = 2;
  }

  /// Takes an operand's dimensions as what its letters stand for; false when they stand for others.
  bool match(std::string_view pattern, const Dims& dims) {
    if (pattern == "S") return whole_.empty() ? (whole_ = dims, true) : whole_ == dims;
    const std::vector<std::string> letters = split(pattern, ',');
    if (letters.size() != dims.size()) return false;
    for (size_t i = 0; i < dims.size(); ++i)
      if (known_.try_emplace(letters[i], dims[i]).first->second != dims[i]) return false;
    return !known_.contains("F") || !known_.contains("G") || 2 * known_["F"] == known_["G"];
  }

 private:
  std::map<std::string, int64_t> known_;
  Dims whole_;
};

/// The first operand of one side of the arrow that does not fit, or "".
std::string misfit(const LayerGraph& graph, std::string_view side,
                   const std::vector<ValueId>& operands, Letters& letters) {
  const std::vector<std::string> patterns = split(side, ' ');
  for (size_t i = 0; i < operands.size() || i < patterns.size(); ++i) {
    if (i >= patterns.size()) return cat(graph.at(operands[i]).name, " is one too many");
    const bool optional = patterns[i].front() == '[';
    if (i >= operands.size()) return optional ? "" : cat(patterns[i], " is missing");
    const std::string pattern =
        optional ? patterns[i].substr(1, patterns[i].size() - 2) : patterns[i];
    const Value& value = graph.at(operands[i]);
    if (!letters.match(pattern, value.dims)) return cat(value.name, " is no ", pattern);
  }
  return "";
}

}  // namespace

std::string shape_fault(const LayerGraph& graph, const Op& op) {
  const std::string_view shapes = kShapes[static_cast<size_t>(op.kind)];
  const size_t arrow = shapes.find(" -> ");
  Letters letters(op);
  std::string fault = misfit(graph, shapes.substr(0, arrow), op.in, letters);
  if (fault.empty()) fault = misfit(graph, shapes.substr(arrow + 4), op.out, letters);
  return fault.empty() ? "" : cat("needs ", shapes, ": ", fault);
}

}  // namespace ftrun
