#include "optimizers/entries.h"

// Optimizers that DeepSpeed has and that are not offered. Their parameters are read and checked, so
// that the message lists a file's other faults too.

namespace ftrun::optimizers {
namespace {

using namespace hyperparameters;

constexpr Hyperparameter kAdamLikeParameters[]{kLr, kBetas, kEps, kWeightDecay, kBiasCorrection};
constexpr Hyperparameter kLambLikeParameters[]{
    kLr,
    kBetas,
    kEps,
    kWeightDecay,
    kBiasCorrection,
    {"max_coeff", "Largest trust ratio.", &OptimizerConfig::max_coeff},
    {"min_coeff", "Smallest trust ratio.", &OptimizerConfig::min_coeff}};
constexpr Hyperparameter kSgdLikeParameters[]{kLr, kWeightDecay, kMomentum, kDampening, kNesterov};
constexpr Hyperparameter kMuonParameters[]{kLr, kBetas, kEps, kWeightDecay, kMomentum};

}  // namespace

constinit const OptimizerTraits kLamb{.parameters = kLambLikeParameters};
constinit const OptimizerTraits kMuon{.parameters = kMuonParameters, .defaults = {.lr = 2e-2}};
constinit const OptimizerTraits kOneBitAdam{.parameters = kAdamLikeParameters,
                                            .variant_of = &kAdam};
constinit const OptimizerTraits kOneBitLamb{.parameters = kLambLikeParameters,
                                            .variant_of = &kLamb};
constinit const OptimizerTraits kZeroOneAdam{.parameters = kAdamLikeParameters,
                                             .variant_of = &kAdam};
constinit const OptimizerTraits kMuAdam{.parameters = kAdamLikeParameters, .variant_of = &kAdam};
constinit const OptimizerTraits kMuAdamW{.parameters = kAdamLikeParameters, .variant_of = &kAdam};
constinit const OptimizerTraits kMuSgd{.parameters = kSgdLikeParameters, .variant_of = &kSgd};
// kTorch stands for every class of torch.optim that is not built here. Their parameters are
// PyTorch's, so none is listed.
constinit const OptimizerTraits kTorch{};

}  // namespace ftrun::optimizers

namespace ftrun {

std::span<const std::string_view> torch_optimizer_classes() {
  static constexpr std::string_view kClasses[]{"ASGD",  "Adadelta",  "Adafactor", "Adamax",
                                               "LBFGS", "NAdam",     "RAdam",     "RMSprop",
                                               "Rprop", "SparseAdam"};
  return kClasses;
}

}  // namespace ftrun
