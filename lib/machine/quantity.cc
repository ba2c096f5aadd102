#include "machine/quantity.h"

#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

struct UnitFactor {
  std::string_view text;
  double factor;
};

constexpr UnitFactor kSeconds[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
constexpr UnitFactor kBytes[] = {{"TB", 1e12},    {"GB", 1e9},     {"MB", 1e6},
                                 {"KB", 1e3},     {"B", 1},        {"TiB", 0x1p40},
                                 {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}};
constexpr UnitFactor kByteRates[] = {{"TB/s", 1e12},    {"GB/s", 1e9},     {"MB/s", 1e6},
                                     {"KB/s", 1e3},     {"B/s", 1},        {"TiB/s", 0x1p40},
                                     {"GiB/s", 0x1p30}, {"MiB/s", 0x1p20}, {"KiB/s", 0x1p10}};
constexpr UnitFactor kNetworkRates[] = {{"TB/s", 1e12},    {"GB/s", 1e9},    {"MB/s", 1e6},
                                        {"KB/s", 1e3},     {"B/s", 1},       {"Tb/s", 1e12 / 8},
                                        {"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}};
constexpr UnitFactor kFlopRates[] = {
    {"PFLOP/s", 1e15}, {"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"MFLOP/s", 1e6}, {"FLOP/s", 1}};

std::span<const UnitFactor> units_of(QuantityUnit unit) {
  switch (unit) {
    case QuantityUnit::kSeconds:
      return kSeconds;
    case QuantityUnit::kBytes:
      return kBytes;
    case QuantityUnit::kByteRate:
      return kByteRates;
    case QuantityUnit::kNetworkRate:
      return kNetworkRates;
    case QuantityUnit::kFlopRate:
      return kFlopRates;
  }
  bug("unknown quantity unit");
}

/// Returns the smallest and the largest value that a quantity of a machine file may have, in the
/// unit without a prefix.
std::pair<double, double> bounds_of(QuantityUnit unit) {
  switch (unit) {
    case QuantityUnit::kSeconds:
      return {1e-12, 1e6};
    case QuantityUnit::kBytes:
      return {1, 1e18};
    case QuantityUnit::kByteRate:
    case QuantityUnit::kNetworkRate:
      return {1e3, 1e18};
    case QuantityUnit::kFlopRate:
      return {1e3, 1e21};
  }
  bug("unknown quantity unit");
}

const UnitFactor* find_unit(std::span<const UnitFactor> units, std::string_view text) {
  for (const UnitFactor& one : units)
    if (one.text == text) return &one;
  return nullptr;
}

std::string unit_list(std::span<const UnitFactor> units) {
  std::vector<std::string> names;
  for (const UnitFactor& one : units) names.emplace_back(one.text);
  return join(names, ", ");
}

}  // namespace

std::pair<double, std::string_view> split_quantity(std::string_view text) {
  const std::optional<double> number = consume_number(text);
  while (text.starts_with(' ')) text.remove_prefix(1);
  return {number.value_or(std::numeric_limits<double>::quiet_NaN()), text};
}

std::optional<double> parse_quantity(std::string_view text, QuantityUnit unit, std::string& why) {
  const std::span<const UnitFactor> units = units_of(unit);
  const auto [number, unit_text] = split_quantity(text);
  if (!(number > 0)) {
    why = cat("\"", text, "\" is not a number above 0 with one of the units ", unit_list(units));
    return std::nullopt;
  }
  if (const UnitFactor* one = find_unit(units, unit_text)) {
    const double value = number * one->factor;
    const auto [lowest, highest] = bounds_of(unit);
    if (value >= lowest && value <= highest) return value;
    why = cat("\"", text, "\" is too small or too large for a machine");
    return std::nullopt;
  }
  if (unit_text.empty())
    why = cat("\"", text, "\" has no unit; it is one of ", unit_list(units));
  else if (unit == QuantityUnit::kByteRate && find_unit(kNetworkRates, unit_text) != nullptr)
    why = cat("\"", text, "\" counts bits; this rate is in bytes: 8 Gb/s are 1 GB/s");
  else
    why = cat("\"", text, "\": the unit is one of ", unit_list(units));
  return std::nullopt;
}

std::string quantity_text(double value, QuantityUnit unit) {
  const UnitFactor* smallest = nullptr;
  const UnitFactor* best = nullptr;
  for (const UnitFactor& one : units_of(unit)) {
    const bool is_decimal = one.text.find_first_of("ib") == std::string_view::npos;
    if (!is_decimal) continue;
    if (smallest == nullptr || one.factor < smallest->factor) smallest = &one;
    if (one.factor <= value && (best == nullptr || one.factor > best->factor)) best = &one;
  }
  if (best == nullptr) best = smallest;
  return cat(format_number("%.5g", value / best->factor), " ", best->text);
}

}  // namespace ftrun
