#pragma once
/// Secrets and the codes that are made with them: HMAC-SHA-256 of OpenSSL's libcrypto.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradtile {

using Digest = std::array<std::uint8_t, 32>;

/// From the system's random source, which nobody can predict.
Digest random_digest();
/// A new secret: 64 hexadecimal digits.
std::string random_key();

/// HMAC-SHA-256 of `text` under `key`.
Digest authentication_code(std::string_view key, std::string_view text);
/// In a time that does not tell where they differ.
bool is_same(const Digest& a, const Digest& b);

inline std::string_view bytes_of(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// What one end of a connection authenticates its messages with, and those of the other end.
struct SessionKeys {
    Digest to_send, to_receive;
    /// Returns the keys of the other end.
    SessionKeys mirrored() const { return {to_receive, to_send}; }
};

}  // namespace gradtile
