#include <gradtile/train/data/readers/plain_text.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile {
namespace {

/// Bytes at a file's beginning that decide whether it is a text; git looks at as many.
constexpr std::size_t binary_prefix = 8000;

/// Its last character may be cut.
bool is_binary(std::string_view begin) {
    if (begin.find('\0') == std::string_view::npos) return false;
    for (std::size_t cut = 0; cut < std::min<std::size_t>(4, begin.size()); ++cut)
        if (is_utf8(begin.substr(0, begin.size() - cut))) return false;
    return true;
}

enum class ByteOrder { little, big };

/// Whether a file that begins so is UTF-16 or UTF-32 (units of 2 or 4 bytes), without a mark. Fewer than 16
/// bytes do not tell. No unit is a control character or above U+10FFFF, and of n units of UTF-16 at least
/// 2 + n / 16 are below U+0100. If the bytes are UTF-8 as well, three in eight are below a space: each unit
/// has such a byte except in Chinese and Japanese, whose UTF-16 is not UTF-8.
bool is_wide_text(std::string_view begin, std::size_t unit_bytes, ByteOrder order) {
    std::size_t units = 0, latin = 0;
    for (std::size_t place = 0; place + unit_bytes <= begin.size(); place += unit_bytes, ++units) {
        char32_t unit = 0;
        for (std::size_t i = 0; i < unit_bytes; ++i) {
            const std::size_t from_high = order == ByteOrder::big ? i : unit_bytes - 1 - i;
            unit = unit << 8 | static_cast<unsigned char>(begin[place + from_high]);
        }
        if (unit > 0x10FFFF || (unit < ' ' && (unit < '\t' || unit > '\r'))) return false;
        latin += unit < 0x100;
    }
    const std::size_t low = static_cast<std::size_t>(
        std::ranges::count_if(begin, [](char c) { return static_cast<unsigned char>(c) < ' '; }));
    return begin.size() >= 16 && (unit_bytes == 4 || latin >= 2 + units / 16) &&
           (is_binary(begin) || 8 * low >= 3 * begin.size());
}

/// Returns the encoding's name in iconv if a file that begins so is UTF-16 or UTF-32; otherwise an empty
/// name.
std::string_view wide_encoding_of(std::string_view begin) {
    using namespace std::string_view_literals;
    if (begin.find('\0') == std::string_view::npos) return {};
    if (begin.starts_with("\xFF\xFE\0\0"sv) || begin.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
    if (is_binary(begin) && (begin.starts_with("\xFF\xFE") || begin.starts_with("\xFE\xFF"))) return "UTF-16";
    if (is_wide_text(begin, 4, ByteOrder::little)) return "UTF-32LE";
    if (is_wide_text(begin, 4, ByteOrder::big)) return "UTF-32BE";
    if (is_wide_text(begin, 2, ByteOrder::little)) return "UTF-16LE";
    if (is_wide_text(begin, 2, ByteOrder::big)) return "UTF-16BE";
    return {};
}

bool is_tar(std::string_view begin) {
    return begin.size() >= 512 && begin.substr(257, 5) == "ustar";
}

}  // namespace

bool is_binary(TextReader& text) {
    return is_binary(text.peek(binary_prefix));
}

void require_plain_text(TextReader& text) {
    const std::string_view prefix = text.peek(binary_prefix);
    const bool is_compressed = prefix.starts_with(gzip_magic) || prefix.starts_with(zstd_magic);
    check(!is_compressed, text.name(), ": is compressed twice; expected text, or text compressed once");
    check(!is_tar(prefix), text.name(),
          ": is a tar archive; expected text (extract it, and name its folder)");
    const std::string_view wide = wide_encoding_of(prefix);
    check(wide.empty(), text.name(), ": is ", wide, " by its zero byte at offset ", prefix.find('\0'),
          "; expected UTF-8 text (iconv -f ", wide, " -t UTF-8)");
}

}  // namespace gradtile
