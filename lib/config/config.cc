#include "config/config.h"

namespace ftrun {

const Origin* Origins::find(const std::string& path) const {
  const auto it = keys.find(path);
  return it == keys.end() ? nullptr : &it->second;
}

bool Origins::given(const std::string& path) const {
  const Origin* origin = find(path);
  return origin != nullptr && !origin->is_auto;
}

bool Origins::is_auto(const std::string& path) const {
  const Origin* origin = find(path);
  return origin != nullptr && origin->is_auto;
}

Position Origins::position(const std::string& path) const {
  const Origin* origin = find(path);
  return origin == nullptr ? Position{} : origin->at;
}

}  // namespace ftrun
