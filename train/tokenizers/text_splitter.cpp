#include <gradtile/train/tokenizers/internal/text_splitter.h>

#include <cstdint>
#include <cstring>

#include <gradtile/core/text/utf8.h>

namespace gradtile {

std::size_t end_of_utf8(std::string_view text, std::size_t from) {
    constexpr std::uint64_t high_bits = 0x8080808080808080u;
    while (from < text.size()) {
        if (text.size() - from >= sizeof(high_bits)) {
            std::uint64_t bytes = 0;
            std::memcpy(&bytes, text.data() + from, sizeof(bytes));
            if ((bytes & high_bits) == 0) {
                from += sizeof(bytes);
                continue;
            }
        }
        const int length = decode_utf8(text, from).length;
        if (length == 0) break;
        from += static_cast<std::size_t>(length);
    }
    return from;
}

std::size_t end_of_invalid_utf8(std::string_view text, std::size_t from) {
    while (from < text.size() && decode_utf8(text, from).length == 0) ++from;
    return from;
}

}  // namespace gradtile
