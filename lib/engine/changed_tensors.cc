#include "engine/changed_tensors.h"

#include <algorithm>

#include "base/error.h"
#include "base/precision_name.h"
#include "base/text.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {

/// The number of elements that are compared at a time. Nearly always the first of them have
/// changed, so no more of the initial model is read.
constexpr int64_t kCompared = 4096;
/// The largest number of names that a warning lists.
constexpr size_t kMaxNamed = 8;

std::string first_names_text(const std::vector<std::string>& names) {
  const std::vector<std::string> first(
      names.begin(),
      names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMaxNamed)));
  return cat(join(first, ", "),
             names.size() > kMaxNamed ? cat(" and ", names.size() - kMaxNamed, " more") : "");
}

}  // namespace

ChangedTensors::ChangedTensors(const ModelDescription& model, const InitialWeights& initial,
                               DType dtype)
    : initial_(initial), dtype_(dtype) {
  for (const TensorInfo& tensor : model.tensors)
    // Row norms are computed from the whole matrix, but they change by the gradients of A and B.
    if (tensor.trainable && tensor.initial.source != InitialSource::kRowNorms)
      trained_[tensor.name] = &tensor;
}

void ChangedTensors::compare(const std::string& tensor, int64_t begin,
                             std::span<const float> values) {
  const auto known = trained_.find(tensor);
  if (known == trained_.end()) return;
  TensorChange& state = changes_.try_emplace(tensor, TensorChange::kNone).first->second;
  for (int64_t at = 0; at < std::ssize(values) && state != TensorChange::kChanged;
       at += kCompared) {
    const auto exported = values.subspan(
        static_cast<size_t>(at), static_cast<size_t>(std::min(kCompared, std::ssize(values) - at)));
    initial_values_.resize(exported.size());
    initial_.read(*known->second, begin + at, begin + at + std::ssize(exported), initial_values_);
    for (size_t i = 0; i < exported.size() && state != TensorChange::kChanged; ++i) {
      // 16-bit master weights begin as the rounded initial values.
      if (exported[i] == initial_values_[i] ||
          exported[i] == rounded_to(DType::kBF16, initial_values_[i]))
        continue;
      state = rounded_to(dtype_, exported[i]) == rounded_to(dtype_, initial_values_[i])
                  ? TensorChange::kLostInRounding
                  : TensorChange::kChanged;
    }
  }
}

std::string ChangedTensors::warning() const {
  std::vector<std::string> unchanged, lost, absent;
  for (const auto& [name, tensor] : trained_)
    if (!changes_.contains(name)) absent.push_back(name);
  for (const auto& [name, state] : changes_) {
    if (state == TensorChange::kNone) unchanged.push_back(name);
    if (state == TensorChange::kLostInRounding) lost.push_back(name);
  }
  std::vector<std::string> parts;
  if (!unchanged.empty())
    parts.push_back(cat(
        unchanged.size() == changes_.size() ? "none" : std::to_string(unchanged.size()), " of ",
        changes_.size(), " trained tensors ",
        unchanged.size() == changes_.size() ? "has"
        : unchanged.size() == 1             ? "has not"
                                            : "have not",
        " changed since training began: ", first_names_text(unchanged),
        "; no gradient has reached them, or the learning rate is 0 or too small to change them"));
  if (!lost.empty())
    parts.push_back(cat("what ", lost.size(), " of ", changes_.size(),
                        " trained tensors have learned is too small for ", precision_name(dtype_),
                        ", so the export has their first values: ", first_names_text(lost),
                        "; export.dtype: fp32 keeps it"));
  if (!absent.empty())
    parts.push_back(cat(absent.size(), " of ", trained_.size(),
                        " trained tensors are not in the export: ", first_names_text(absent)));
  return join(parts, "; ");
}

}  // namespace ftrun
