#pragma once
/// Base64 (RFC 4648).
#include <optional>
#include <string>
#include <string_view>

namespace gradtile {

std::string base64_of_bytes(std::string_view bytes);
/// Returns nullopt if the text is empty or not base64.
std::optional<std::string> bytes_of_base64(std::string_view text);

}  // namespace gradtile
