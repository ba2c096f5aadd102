#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/model_folder.h"
#include "model/adapter_tensors.h"
#include "model/description.h"

namespace ftrun {

/// Computes the initial values of elements [begin, end) of a tensor (of any InitialSource but
/// kFolder). They depend only on seed, name and position, so they are the same in every layout.
void compute_initial_values(const TensorInfo& tensor, uint64_t seed, int64_t begin, int64_t end,
                            std::span<float> out);

/// TensorPart names elements [begin, end) of a tensor, which is borrowed.
struct TensorPart {
  const TensorInfo* tensor = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

/// InitialWeights holds the values of a model's tensors when training begins; frozen tensors keep
/// these values.
class InitialWeights {
 public:
  /// Borrows all arguments. If `adapter` has a tensor, its values are used, not those of `folder`.
  InitialWeights(const ModelFolder& folder, uint64_t seed = 0,
                 const AdapterFolder* adapter = nullptr)
      : folder_(folder), seed_(seed), adapter_(adapter) {}

  /// Throws Error(kBadInput) for a folder that does not fit `model`, with the name of every tensor
  /// that is missing, unknown or misshapen. `model` is borrowed.
  void check_fit(const ModelDescription& model);
  /// Computes the row norms of the wanted parts of tensors of InitialSource::kRowNorms, each
  /// once, on `threads` threads. Call it before these tensors are read.
  void measure_row_norms(const std::vector<TensorPart>& wanted, size_t threads);
  /// Reads elements [begin, end) of a tensor, converted to fp32.
  void read(const TensorInfo& tensor, int64_t begin, int64_t end, std::span<float> out) const;
  /// Releases the memory of elements that are not read again.
  void release(const TensorInfo& tensor, int64_t begin, int64_t end) const;

 private:
  /// RowNorms holds the norms of rows from `begin` on.
  struct RowNorms {
    int64_t begin = 0;
    std::vector<float> values;
  };
  const TensorInfo& tensor_of(const std::string& name) const;
  void measure(const TensorInfo& magnitudes, RowNorms& norms) const;
  void copy_row_norms(const TensorInfo& magnitudes, int64_t begin, std::span<float> out) const;

  const ModelFolder& folder_;
  uint64_t seed_;
  const AdapterFolder* adapter_;
  /// The model, after check_fit().
  const ModelDescription* model_ = nullptr;
  /// The tensors of `adapter_`, by the model's names; check_fit() fills the map.
  std::map<std::string, AdapterTensor> stored_;
  /// The computed row norms, by the tensor's name.
  std::map<std::string, RowNorms> row_norms_;
};

}  // namespace ftrun
