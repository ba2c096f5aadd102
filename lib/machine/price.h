#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ftrun {

/// DevicePrice is the price of one device for an hour; 0: not known.
struct DevicePrice {
  double per_hour = 0;
  /// Three letters ("USD"); "" where none was given.
  std::string currency;

  bool operator==(const DevicePrice&) const = default;
};

/// Reads "2.5 USD/h", or only "2.5". Returns nothing where the text is not a positive number with
/// such a unit; `why` then says so.
std::optional<DevicePrice> parse_price(std::string_view text, std::string& why);

/// Formats a price as parse_price() reads it, in five digits.
std::string price_text(const DevicePrice& price);

/// Formats an amount of money in a price's currency: "1234 USD".
std::string money_text(double amount, const DevicePrice& price);

}  // namespace ftrun
