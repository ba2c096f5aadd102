#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ftrun {

using Digest = std::array<uint8_t, 32>;

/// Computes SHA-256 (FIPS 180-4).
Digest sha256(std::string_view message);
/// Computes HMAC-SHA256 (RFC 2104), which nobody can make without the key.
Digest hmac_sha256(std::string_view key, std::string_view message);
/// Compares two byte sequences in a time that does not depend on where they differ.
bool equal_in_constant_time(std::span<const uint8_t> a, std::span<const uint8_t> b);

/// Returns bytes of the kernel's random generator. Throws Error(kEnvironment) if the kernel has
/// none.
std::string random_bytes(size_t count);
/// Formats bytes as hexadecimal digits, two for each byte: "0aff".
std::string hex_text(std::string_view bytes);

}  // namespace ftrun
