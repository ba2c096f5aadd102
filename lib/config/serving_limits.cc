#include "config/serving_limits.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The values that --max-lora-rank takes, and its default.
constexpr std::array<int64_t, 9> kServedRanks{1, 8, 16, 32, 64, 128, 256, 320, 512};
constexpr int64_t kServedByDefault = 16;

/// Lists settings with which vLLM refuses the adapter or computes another one.
std::vector<std::string> unserved(const AdapterConfig& adapter) {
  std::vector<std::string> settings;
  if (adapter.use_dora) settings.emplace_back("use_dora");
  if (!adapter.modules_to_save.empty()) settings.emplace_back("modules_to_save");
  if (adapter.bias != AdapterBias::kNone) settings.emplace_back("bias");
  if (!adapter.rank_pattern.empty()) settings.emplace_back("rank_pattern");
  if (!adapter.alpha_pattern.empty()) settings.emplace_back("alpha_pattern");
  return settings;
}

}  // namespace

std::string serving_limits(const AdapterConfig& adapter) {
  if (adapter.type != AdapterType::kLora) return "";
  const std::vector<std::string> settings = unserved(adapter);
  if (!settings.empty())
    return cat("vLLM does not serve this adapter as it is (", join(settings, ", "),
               "); merged into its base it serves it: ftrun convert RUN --merge --out FOLDER");
  const auto* served = std::lower_bound(kServedRanks.begin(), kServedRanks.end(), adapter.r);
  if (served == kServedRanks.end())
    return cat("vLLM serves adapters of a rank up to ", kServedRanks.back(), ", this one has r ",
               adapter.r,
               "; merged into its base it serves it: ftrun convert RUN --merge --out FOLDER");
  return *served > kServedByDefault ? cat("vLLM serves this adapter with --max-lora-rank ", *served)
                                    : "";
}

}  // namespace ftrun
