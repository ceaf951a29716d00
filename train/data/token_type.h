#pragma once
#include <array>
#include <string_view>
#include <utility>

#include <gradtile/core/enum_names.h>

namespace gradtile {

/// The integer type in a token file without a header; a header states its type itself. automatic means
/// uint16, but a file that looks like uint32 is refused.
enum class TokenType { automatic, uint16, uint32 };

template <>
struct EnumNames<TokenType> {
    static constexpr std::array names = {std::pair{TokenType::automatic, std::string_view("auto")},
                                         std::pair{TokenType::uint16, std::string_view("uint16")},
                                         std::pair{TokenType::uint32, std::string_view("uint32")}};
};

}  // namespace gradtile
