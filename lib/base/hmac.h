#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ftrun {

using Digest = std::array<uint8_t, 32>;

/// SHA-256 (FIPS 180-4).
Digest sha256(std::string_view message);
/// HMAC-SHA256 (RFC 2104): who does not know the key cannot make it.
Digest hmac_sha256(std::string_view key, std::string_view message);
/// Takes the same time wherever they differ.
bool equal_in_constant_time(std::span<const uint8_t> a, std::span<const uint8_t> b);

/// Bytes of the kernel's generator. Error(kEnvironment) where it has none.
std::string random_bytes(size_t count);
/// "0aff": two digits a byte.
std::string hex_text(std::string_view bytes);

}  // namespace ftrun
