#include "config/contradicted_keys.h"

#include <iterator>
#include <string>
#include <vector>

#include "axes/keys.h"
#include "base/error.h"

namespace ftrun {
namespace {

enum class Exclusion {
  kAlways,
  kUnlessEqual,  // two names of one value
  kBothTrue,     // two switches
};

struct KeyPair {
  const char* first;
  const char* second;
  Exclusion exclusion;
  /// The value of the second key up to which it counts as not set.
  double second_off = -1e300;
};

/// Pairs of keys that contradict each other. A key in a later source replaces the other key of its
/// pair in an earlier source; within one source resolve() refuses the pair.
/// remove_contradicted_keys() adds the pairs of two names for an axis's degree.
constexpr KeyPair kAlternatives[] = {
    {"train.steps", "train.epochs", Exclusion::kAlways},
    {"train.learning_rate", "optimizer.params.lr", Exclusion::kUnlessEqual},
    {"train.weight_decay", "optimizer.params.weight_decay", Exclusion::kUnlessEqual},
    {"train.warmup_steps", "scheduler.params.warmup_num_steps", Exclusion::kUnlessEqual},
    {"parallel.data_replicate", "zero_optimization.mics_shard_size", Exclusion::kAlways, 0},
    {"fp16.enabled", "bf16.enabled", Exclusion::kBothTrue},
};

bool contradict(const KeyPair& pair, const ConfigNode& a, const ConfigNode& b) {
  if (b.kind == ConfigNodeKind::kInt && b.number <= pair.second_off) return false;
  switch (pair.exclusion) {
    case Exclusion::kAlways:
      return true;
    case Exclusion::kUnlessEqual:
      return a.text != b.text && (a.number != b.number || a.number == 0);
    case Exclusion::kBothTrue:
      return a.boolean && b.boolean;
  }
  return false;
}

bool has_written_value(const ConfigNode* value) {
  return value != nullptr && !value->is_unset_or_auto();
}

/// Removes from `base` the key of a pair that contradicts the other key in `over`.
void remove_earlier_key(const KeyPair& pair, bool second_is_later, ConfigNode& base,
                        const ConfigNode& over, Problems& problems) {
  const char* later = second_is_later ? pair.second : pair.first;
  const char* earlier = second_is_later ? pair.first : pair.second;
  const ConfigNode *later_value = over.at_path(later), *earlier_value = base.at_path(earlier);
  if (!has_written_value(later_value) || !has_written_value(earlier_value) ||
      over.at_path(earlier) != nullptr)
    return;
  if (!contradict(pair, second_is_later ? *earlier_value : *later_value,
                  second_is_later ? *later_value : *earlier_value))
    return;
  problems.notice(later_value->at,
                  cat(later, " ", value_text(*later_value), " replaces ", earlier, " ",
                      value_text(*earlier_value), " (", to_text(earlier_value->at), ")"));
  base.erase_path(earlier);
}

}  // namespace

void remove_contradicted_keys(ConfigNode& base, const ConfigNode& over, Problems& problems) {
  std::vector<KeyPair> pairs(std::begin(kAlternatives), std::end(kAlternatives));
  for (const AxisKeys* axis : kAxes)
    if (axis->deepspeed_key.value != nullptr)
      pairs.push_back({axis->key.value, axis->deepspeed_key.value, Exclusion::kUnlessEqual, 1});
  for (const KeyPair& pair : pairs)
    for (const bool second_is_later : {false, true})
      remove_earlier_key(pair, second_is_later, base, over, problems);
}

}  // namespace ftrun
