#pragma once
/// Secrets and message authentication codes (HMAC-SHA-256 from OpenSSL's libcrypto).
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradtile {

using Digest = std::array<std::uint8_t, 32>;

/// 32 unpredictable bytes from the operating system.
Digest random_digest();
/// Returns a new secret with 64 hexadecimal digits.
std::string random_key();

/// Returns the HMAC-SHA-256 of `text` under `key`.
Digest authentication_code(std::string_view key, std::string_view text);
/// Compares in constant time, so that the duration does not reveal where two digests differ.
bool is_same(const Digest& a, const Digest& b);

inline std::string_view bytes_of(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// Authentication keys for one end of a connection: one key per direction.
struct SessionKeys {
    Digest to_send, to_receive;
    /// Returns the other end's keys.
    SessionKeys mirrored() const { return {to_receive, to_send}; }
};

}  // namespace gradtile
