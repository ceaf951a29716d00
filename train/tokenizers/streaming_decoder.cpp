#include <gradtile/train/tokenizers/streaming_decoder.h>

#include <span>
#include <utility>

#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

/// Returns whether the bytes begin a character that more bytes can complete.
bool is_start_of_character(std::string_view bytes) {
    const auto lead = static_cast<unsigned char>(bytes.front());
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (bytes.size() >= length) return false;
    // An incomplete character can always be completed by continuation bytes that are all 0x80 or all 0xBF:
    // some first bytes exclude one end of the range 0x80 to 0xBF, but no first byte excludes both ends.
    for (const char filler : {'\x80', '\xBF'}) {
        std::string character(bytes);
        character.resize(length, filler);
        if (decode_utf8(character, 0).length > 0) return true;
    }
    return false;
}

/// Returns the text's length without the incomplete character at its end, if there is one.
std::size_t complete_length(std::string_view text) {
    constexpr std::size_t max_incomplete = 3;
    for (std::size_t count = std::min(max_incomplete, text.size()); count > 0; --count)
        if (is_start_of_character(text.substr(text.size() - count))) return text.size() - count;
    return text.size();
}

}  // namespace

std::string StreamingDecoder::next(std::int32_t id) {
    std::string text = std::exchange(incomplete_, {}) + tokenizer_.decode(std::span(&id, 1), place_);
    place_ = TextPlace::middle;
    const std::size_t complete = complete_length(text);
    incomplete_ = text.substr(complete);
    text.resize(complete);
    return text;
}

std::string StreamingDecoder::finish() {
    return std::exchange(incomplete_, {});
}

}  // namespace gradtile
