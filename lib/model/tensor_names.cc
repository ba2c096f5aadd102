#include "model/tensor_names.h"

#include <algorithm>

#include "base/error.h"
#include "model/families.h"

namespace ftrun {

std::string_view role_name(Projection projection) {
  static constexpr std::array<std::string_view, kProjections> kNames{"q",    "k",  "v",   "o",
                                                                     "gate", "up", "down"};
  return kNames[static_cast<size_t>(projection)];
}

std::string TensorNames::in_block(int64_t layer, std::string_view module) const {
  return cat(blocks, layer, ".", module);
}

const TensorNames& tensor_names(std::string_view family) {
  static const TensorNames kCommonNames;
  const Family* known = find_family(family);
  return known ? known->names : kCommonNames;
}

std::vector<LinearModule> linear_modules(const TensorNames& names) {
  std::vector<LinearModule> modules;
  for (size_t p = 0; p < kProjections; ++p) {
    const std::string_view name = names.linear_layers[p];
    if (name.empty()) continue;
    if (modules.empty() || modules.back().name != name) modules.push_back({name, {}});
    modules.back().projections.push_back(static_cast<Projection>(p));
  }
  return modules;
}

std::vector<std::string> adaptable_module_names(const TensorNames& names) {
  std::vector<std::string> modules;
  for (const LinearModule& module : linear_modules(names)) {
    const std::string name(last_path_part(module.name));
    if (std::find(modules.begin(), modules.end(), name) == modules.end()) modules.push_back(name);
  }
  return modules;
}

std::vector<std::string> default_target_modules(const TensorNames& names) {
  std::vector<std::string> modules;
  for (const std::string_view name : names.default_targets)
    if (!name.empty()) modules.emplace_back(name);
  return modules;
}

std::string_view last_path_part(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

}  // namespace ftrun
