#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ftrun {

/// QuantityUnit says what a number of a machine file measures. Rates of memory and of links inside
/// a node are bytes per second; rates of a network may also be written in bits per second, as its
/// makers do.
enum class QuantityUnit : uint8_t { kSeconds, kBytes, kByteRate, kNetworkRate, kFlopRate };

/// Divides "3.35 TB/s" into its number and its unit, which is a part of `text` and may be empty.
/// The number is NaN if the text does not begin with a finite number.
std::pair<double, std::string_view> split_quantity(std::string_view text);

/// Reads a quantity such as "3.35 TB/s". Returns seconds, bytes, bytes per second or operations per
/// second. KB, MB, ... are powers of 1,000, KiB, MiB, ... powers of 1,024. Returns nothing where
/// the text is not a positive number with a unit of that kind; `why` then says so.
std::optional<double> parse_quantity(std::string_view text, QuantityUnit unit, std::string& why);

/// Formats a quantity with the largest unit that leaves at least 1 before the point, in five
/// digits.
std::string quantity_text(double value, QuantityUnit unit);

}  // namespace ftrun
