#include "config/serving_limits.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The values that vLLM's --max-lora-rank accepts, and its default.
constexpr std::array<int64_t, 9> kServedRanks{1, 8, 16, 32, 64, 128, 256, 320, 512};
constexpr int64_t kDefaultServedRank = 16;

constexpr std::string_view kMerge =
    "; it serves the adapter merged into its base: ftrun convert RUN --merge --out FOLDER";

/// Lists the adapter's settings that neither server supports.
std::vector<std::string> list_unserved_settings(const AdapterConfig& adapter) {
  std::vector<std::string> settings;
  if (adapter.use_dora) settings.emplace_back("use_dora");
  if (!adapter.modules_to_save.empty()) settings.emplace_back("modules_to_save");
  if (adapter.bias != AdapterBias::kNone) settings.emplace_back("bias");
  return settings;
}

std::string unserved_text(std::string_view server, const std::vector<std::string>& settings) {
  return cat(server, " does not serve this adapter as it is (", join(settings, ", "), ")", kMerge);
}

/// Describes the limits of vLLM for an adapter; "" if there are none.
std::string vllm_limits(const AdapterConfig& adapter) {
  std::vector<std::string> settings = list_unserved_settings(adapter);
  if (!adapter.rank_pattern.empty()) settings.emplace_back("rank_pattern");
  if (!adapter.alpha_pattern.empty()) settings.emplace_back("alpha_pattern");
  if (!settings.empty()) return unserved_text("vLLM", settings);
  const auto* served = std::lower_bound(kServedRanks.begin(), kServedRanks.end(), adapter.r);
  if (served == kServedRanks.end())
    return cat("vLLM serves adapters of a rank up to ", kServedRanks.back(), ", this one has r ",
               adapter.r, kMerge);
  return *served > kDefaultServedRank
             ? cat("vLLM serves this adapter with --max-lora-rank ", *served)
             : "";
}

/// Describes the limits of llama.cpp for an adapter; "" if there are none.
std::string llama_cpp_limits(const AdapterConfig& adapter, const QuantizationConfig& base) {
  std::vector<std::string> settings = list_unserved_settings(adapter);
  if (!adapter.alpha_pattern.empty()) settings.emplace_back("alpha_pattern");
  if (adapter.use_rslora && !adapter.rank_pattern.empty())
    settings.emplace_back("use_rslora with rank_pattern");
  if (base.type != QuantizationType::kNone)
    settings.emplace_back("a base that is quantized in training");
  return settings.empty() ? "" : unserved_text("llama.cpp", settings);
}

}  // namespace

std::vector<std::string> serving_limits(const AdapterConfig& adapter,
                                        const QuantizationConfig& base) {
  if (adapter.type != AdapterType::kLora) return {};
  std::vector<std::string> limits{vllm_limits(adapter), llama_cpp_limits(adapter, base)};
  std::erase(limits, "");
  return limits;
}

}  // namespace ftrun
