#pragma once

// Seen by this folder's sources only: brings c10d's headers.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace ftrun {

// A text of an exchange, as it lies in a store. Stores refuse values that are too long: the job's
// own those of kMostRequestBytes, torchrun's those of 8 MiB. So its key has one byte that says what
// follows, and the text; or the number of the values KEY/part/0, ... that hold the text, which are
// there before it; or the failure that came in its place.

/// No value is longer, but for the first byte.
inline constexpr size_t kPartBytes = size_t{4} << 20;

/// A failure that ends an exchange, or that a rank left in the store in place of a text: who
/// wants the text throws it.
class ExchangeError : public Error {
 public:
  /// `absent`: the one rank that was waited for in vain, where there is one.
  ExchangeError(const Error& error, std::optional<int> absent) : Error(error), absent_(absent) {}
  std::optional<int> absent() const { return absent_; }

 private:
  std::optional<int> absent_;
};

/// All keys of a text of so many bytes.
std::vector<std::string> text_keys(const std::string& key, size_t bytes);
void put_text(c10d::Store& store, const std::string& key, const std::string& text);
/// The value of a key whose text does not come.
std::vector<uint8_t> failure_value(const Error& error);

/// Texts that are there. Throws ExchangeError where one of them is a failure.
std::string read_text(c10d::Store& store, const std::string& key);
std::vector<std::string> read_texts(c10d::Store& store, const std::vector<std::string>& keys);

}  // namespace ftrun
