#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ftrun {

/// A Price is the price of one device for an hour; 0: not known.
struct Price {
  double per_hour = 0;
  /// Three letters ("USD"); "" where none was given.
  std::string currency;

  bool operator==(const Price&) const = default;
};

/// Reads "2.5 USD/h", or only "2.5". Returns nothing where the text is not a positive number with
/// such a unit; `why` then says so.
std::optional<Price> parse_price(std::string_view text, std::string& why);

/// Formats a price as parse_price() reads it, in five digits.
std::string price_text(const Price& price);

/// Formats an amount of money in a price's currency: "1234 USD".
std::string money_text(double amount, const Price& price);

}  // namespace ftrun
