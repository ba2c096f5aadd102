#include "machine/price.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "machine/quantity.h"

namespace ftrun {
namespace {

constexpr double kMinPrice = 1e-6, kHighestPrice = 1e6;
constexpr size_t kLettersOfCurrency = 3;

/// Returns whether a text is "USD/h", with any three capital letters.
bool is_hourly(std::string_view unit) {
  return unit.size() == kLettersOfCurrency + 2 && unit.ends_with("/h") &&
         std::all_of(unit.begin(), unit.begin() + kLettersOfCurrency,
                     [](char letter) { return letter >= 'A' && letter <= 'Z'; });
}

}  // namespace

std::optional<DevicePrice> parse_price(std::string_view text, std::string& why) {
  const auto [number, unit] = split_quantity(text);
  if (!(number >= kMinPrice && number <= kHighestPrice))
    why = cat("\"", text, "\" is not a price of a device for an hour, such as 2.5 USD/h");
  else if (!unit.empty() && !is_hourly(unit))
    why = cat("\"", text, "\": the unit is money an hour, such as USD/h or EUR/h");
  else
    return DevicePrice{number, std::string(unit.substr(0, unit.empty() ? 0 : kLettersOfCurrency))};
  return std::nullopt;
}

std::string price_text(const DevicePrice& price) {
  return cat(format_number("%.5g", price.per_hour),
             price.currency.empty() ? "" : cat(" ", price.currency, "/h"));
}

std::string money_text(double amount, const DevicePrice& price) {
  return cat(fixed_text(amount, amount < 100 ? 2 : 0),
             price.currency.empty() ? "" : cat(" ", price.currency));
}

}  // namespace ftrun
