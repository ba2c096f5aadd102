#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <string_view>

#include "base/enum_names.h"
#include "ops/activation/activations.h"

namespace ftrun {

/// ActivationTraits holds what code other than the kernels knows about an activation.
struct ActivationTraits {
  Activation activation{};
  std::string_view name;  // in texts
  /// The names in Hugging Face's config.json; the second is "" if there is only one.
  std::array<std::string_view, 2> config_names;
  /// Says whether each element costs an exponential or a similar function.
  bool is_smooth = false;
};

/// The traits of all activations, in the order of Activation.
inline constexpr ActivationTraits kActivationTraits[] = {
    {.activation = Activation::kSilu,
     .name = "silu",
     .config_names = {"silu", "swish"},
     .is_smooth = true},
    {.activation = Activation::kGelu, .name = "gelu", .config_names = {"gelu"}, .is_smooth = true},
    {.activation = Activation::kGeluTanh,
     .name = "gelu_tanh",
     .config_names = {"gelu_new", "gelu_pytorch_tanh"},
     .is_smooth = true},
    {.activation = Activation::kRelu, .name = "relu", .config_names = {"relu"}, .is_smooth = false},
    {.activation = Activation::kRelu2,
     .name = "relu2",
     .config_names = {"relu2"},
     .is_smooth = false},
};

/// Returns whether kActivationTraits has one row for each activation, in the order of the
/// enumeration.
consteval bool lists_each_activation() {
  for (size_t i = 0; i < std::size(kActivationTraits); ++i)
    if (static_cast<size_t>(kActivationTraits[i].activation) != i) return false;
  return has_values<Activation, std::size(kActivationTraits)>();
}
static_assert(lists_each_activation(), "each activation has a row in kActivationTraits");

constexpr const ActivationTraits& traits_of(Activation activation) {
  return kActivationTraits[static_cast<size_t>(activation)];
}

/// All activations, in the order of their numbers.
inline constexpr auto kActivations = [] {
  std::array<Activation, std::size(kActivationTraits)> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = kActivationTraits[i].activation;
  return all;
}();

}  // namespace ftrun
