#pragma once
#include <array>
#include <string_view>
#include <utility>

#include <gradtile/core/enum_names.h>

namespace gradtile {

/// What the integers of a token file without a header are; a header says it itself. automatic: uint16, unless
/// the file looks like uint32, which is refused then.
enum class TokenType { automatic, uint16, uint32 };

template <>
struct EnumNames<TokenType> {
    static constexpr std::array names = {std::pair{TokenType::automatic, std::string_view("auto")},
                                         std::pair{TokenType::uint16, std::string_view("uint16")},
                                         std::pair{TokenType::uint32, std::string_view("uint32")}};
};

}  // namespace gradtile
