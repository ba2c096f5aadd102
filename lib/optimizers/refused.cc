#include "optimizers/entries.h"

// Optimizers that DeepSpeed has and that are not offered. Their parameters are read and checked, so
// that the message lists a file's other faults too.

namespace ftrun::optimizers {
namespace {

using namespace parameters;

constexpr OptimizerParameter kLikeAdam[]{kLr, kBetas, kEps, kWeightDecay, kBiasCorrection};
constexpr OptimizerParameter kLikeLamb[]{
    kLr,
    kBetas,
    kEps,
    kWeightDecay,
    kBiasCorrection,
    {"max_coeff", "Largest trust ratio.", &OptimizerConfig::max_coeff},
    {"min_coeff", "Smallest trust ratio.", &OptimizerConfig::min_coeff}};
constexpr OptimizerParameter kLikeSgd[]{kLr, kWeightDecay, kMomentum, kDampening, kNesterov};
constexpr OptimizerParameter kOfMuon[]{kLr, kBetas, kEps, kWeightDecay, kMomentum};

}  // namespace

constinit const Optimizer kLamb{.parameters = kLikeLamb};
constinit const Optimizer kMuon{.parameters = kOfMuon, .defaults = {.lr = 2e-2}};
constinit const Optimizer kOneBitAdam{.parameters = kLikeAdam, .variant_of = &kAdam};
constinit const Optimizer kOneBitLamb{.parameters = kLikeLamb, .variant_of = &kLamb};
constinit const Optimizer kZeroOneAdam{.parameters = kLikeAdam, .variant_of = &kAdam};
constinit const Optimizer kMuAdam{.parameters = kLikeAdam, .variant_of = &kAdam};
constinit const Optimizer kMuAdamW{.parameters = kLikeAdam, .variant_of = &kAdam};
constinit const Optimizer kMuSgd{.parameters = kLikeSgd, .variant_of = &kSgd};
// A class of torch.optim that is not built here, whose parameters are PyTorch's.
constinit const Optimizer kTorch{};

}  // namespace ftrun::optimizers

namespace ftrun {

std::span<const std::string_view> torch_optimizer_classes() {
  static constexpr std::string_view kClasses[]{"ASGD",  "Adadelta",  "Adafactor", "Adamax",
                                               "LBFGS", "NAdam",     "RAdam",     "RMSprop",
                                               "Rprop", "SparseAdam"};
  return kClasses;
}

}  // namespace ftrun
