#pragma once

// Only this folder's sources include this header, because it includes c10d's.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace ftrun {

// The texts of an exchange are stored as follows. Stores refuse values that are too long: the job's
// own store above kMaxRequestBytes, torchrun's above 8 MiB. So the value of a text's key begins
// with one byte that says what follows: the text; or the number of values KEY/part/0, ... that hold
// the text and are written first; or a failure that is stored instead of the text.

/// The maximum size of a value in bytes, except for the first byte.
inline constexpr size_t kPartBytes = size_t{4} << 20;

/// Lists all keys of a text of `bytes` bytes.
std::vector<std::string> text_keys(const std::string& key, size_t bytes);
void write_text(c10d::Store& store, const std::string& key, const std::string& text);
/// Returns the value that is stored in place of a text when its rank fails.
std::vector<uint8_t> failure_value(const Error& error);

/// Reads texts that are in the store. A rank that fails may store its failure instead of its text;
/// a rank that reads the text then throws it, as AbsentRankError.
std::string read_text(c10d::Store& store, const std::string& key);
std::vector<std::string> read_texts(c10d::Store& store, const std::vector<std::string>& keys);

}  // namespace ftrun
