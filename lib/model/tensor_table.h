#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "axes/tensor/split.h"
#include "base/error.h"
#include "base/text.h"
#include "model/adapter.h"
#include "model/block_parameters.h"
#include "model/description.h"
#include "model/linear_layers.h"
#include "model/model_config.h"
#include "model/tensor_names.h"

namespace ftrun {

/// TensorTable adds tensors in the order of a Hugging Face state dict: a module's weight, then its
/// bias.
class TensorTable {
 public:
  TensorTable(std::vector<TensorInfo>& tensors, const TensorSplit& split, LoraInit init)
      : tensors_(tensors), split_(split), init_(init) {}

  TensorId add(TensorInfo tensor) {
    tensors_.push_back(std::move(tensor));
    return static_cast<TensorId>(tensors_.size() - 1);
  }
  TensorId add_split_by_rows(std::string name, Dims shape, int copies = 1) {
    return add(split_rows(std::move(name), std::move(shape), split_, copies));
  }
  /// LoraIds holds the ids of A [rank, inputs] and B [outputs, rank] of a linear layer's adapter.
  /// Linear layers of one module share A.
  struct LoraIds {
    TensorId a = -1, b = -1;
    /// The tensor of magnitudes; -1: it has none.
    TensorId magnitudes = -1;
  };
  /// LoraModule is a module of the files with an adapter. In files, B has the rows of all its
  /// linear layers, one linear layer after the other.
  struct LoraModule {
    std::string path;
    LowRankAdapter low_rank;
    bool magnitudes;
    std::vector<LinearLayer> linear_layers;
  };
  std::vector<LoraIds> add_lora(const LoraModule& module);

  struct NormIds {
    TensorId weight = -1;
    TensorId bias = -1;
  };
  /// Adds the weight and the bias that a norm has. Sequence parallelism divides the tokens of such
  /// a norm over ranks.
  NormIds add_norm(const std::string& module, const ModelConfig& c);
  /// Adds the weights of one norm that all heads share.
  TensorId add_shared_head_norm(std::string name, int64_t size);

  /// Adds the weights of `heads` norms, one for each head. Files hold them in one tensor [heads,
  /// size] or, if the module's name has a '*', in one tensor for each head.
  TensorId add_per_head_norms(const std::string& module, int64_t heads, int64_t size, int copies);

  struct LinearIds {
    TensorId weight = -1;
    TensorId bias = -1;
  };
  /// Adds the weights and biases of the linear layers of a module of the files. If a linear layer
  /// is divided by outputs, a rank computes some of the results. Otherwise it computes a term of
  /// every result, from some of the inputs.
  std::vector<LinearIds> add_linear(const std::string& module,
                                    const std::vector<LinearLayer>& linear_layers, bool transposed);

 private:
  /// ModulePart describes a linear layer as a part of a module of the files. If the module is a
  /// single linear layer whose matrix files hold as kernels use it, the part is the whole module.
  struct ModulePart {
    std::string module;
    LinearLayer linear;
    bool is_whole;
    bool transposed;
    /// The number of outputs of all linear layers of the module, and the row of the module's matrix
    /// where this linear layer begins.
    int64_t module_outputs;
    int64_t first_row;

    /// Returns the name of the linear layer's tensor with this end (".weight").
    std::string name(std::string_view end) const {
      return is_whole ? cat(module, end) : cat(module, ".", role_name(linear.projection), end);
    }
    /// Records where files hold a matrix [outputs, ...] or vector of the linear layer.
    void record_location(TensorInfo& tensor, std::string_view end) const {
      if (is_whole) return;
      Dims shape = tensor.shape;
      shape[0] = module_outputs;
      const bool turned = transposed && shape.size() == 2;
      if (turned) std::swap(shape[0], shape[1]);
      tensor.stored_location = {.name = cat(module, end),
                                .shape = std::move(shape),
                                .first_row = first_row,
                                .rows_together = std::max<int64_t>(linear.rows_together, 1),
                                .stride = std::max<int64_t>(linear.stride, 1),
                                .transposed = turned};
    }
  };
  static std::vector<ModulePart> parts_of(const std::string& module,
                                          const std::vector<LinearLayer>& linear_layers,
                                          bool transposed = false);

  /// Describes a tensor whose rows, or elements, are the linear layer's outputs. If each rank has
  /// the whole tensor, `gradient_is_partial` says that a rank computes a partial gradient.
  TensorInfo output_row_tensor(const ModulePart& part, std::string_view end, Dims shape,
                               bool gradient_is_partial);

  TensorId add_lora_a(TensorInfo tensor);
  TensorId add_lora_b(TensorInfo tensor);
  TensorId add_magnitudes(TensorInfo tensor, const LowRankAdapter& low_rank);
  /// The scale of PEFT's orthogonal initialization.
  static constexpr double kOrthogonalScale = 0.1;
  /// Returns the initial values of a torch.nn.Linear weight: Kaiming uniform with a = sqrt(5),
  /// whose bound is 1 / sqrt(inputs).
  static InitialValues linear_init(const TensorInfo& tensor) {
    return {InitialSource::kUniform, 1.0 / std::sqrt(static_cast<double>(tensor.shape[1]))};
  }

  std::vector<TensorInfo>& tensors_;
  TensorSplit split_;
  LoraInit init_;
};

/// BlockTensors holds the ids of a block's tensors; -1 for tensors that it does not have.
struct BlockTensors {
  std::array<TensorTable::LinearIds, kProjections> linear;
  std::array<TensorTable::LoraIds, kProjections> lora;
  std::array<TensorTable::NormIds, kBlockNorms> norms;
  TensorId q_norm = -1, k_norm = -1;

  const TensorTable::LinearIds& at(Projection projection) const {
    return linear[static_cast<size_t>(projection)];
  }
  const TensorTable::LoraIds& lora_at(Projection projection) const {
    return lora[static_cast<size_t>(projection)];
  }
  const TensorTable::NormIds& at(BlockNorm norm) const { return norms[static_cast<size_t>(norm)]; }
};

/// Returns those linear layers of `linear_layers` that belong to one module of the files.
std::vector<LinearLayer> linear_layers_of(const LinearModule& module,
                                          const std::vector<LinearLayer>& linear_layers);

/// Adds the tensors of a block; `c` is the whole model's config.
BlockTensors add_block_tensors(TensorTable& table, const ModelConfig& c, const TensorSplit& split,
                               int64_t layer, const BlockAdapter& adapter);

}  // namespace ftrun
