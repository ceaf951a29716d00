#include <gradtile/core/text/long_json_strings.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <gradtile/core/check.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

/// Taking out a shorter string costs as much as it saves.
constexpr std::size_t min_long_string = 128;

constexpr std::array<bool, 256> word_ends = [] {
    std::array<bool, 256> ends{};
    for (const char c : {' ', '\t', '\r', '\n', ',', ':', '[', ']', '{', '}', '"'})
        ends[static_cast<unsigned char>(c)] = true;
    return ends;
}();

/// Bytes that stand for themselves in a string: ASCII without control characters and backslashes.
constexpr std::array<bool, 256> plain_bytes = [] {
    std::array<bool, 256> plain{};
    for (std::size_t byte = 0x20; byte < 0x80; ++byte) plain[byte] = byte != '\\';
    return plain;
}();

/// Returns whether an odd number of backslashes precedes a quotation mark that is inside a string or ends it.
bool is_escaped(std::string_view text, std::size_t quotation_mark) {
    std::size_t begin = quotation_mark;
    while (text[begin - 1] == '\\') --begin;
    return (quotation_mark - begin) % 2 == 1;
}

std::size_t end_of_string(std::string_view text, std::size_t begin) {
    std::size_t end = std::min(text.find('"', begin), text.size());
    while (end < text.size() && is_escaped(text, end)) end = std::min(text.find('"', end + 1), text.size());
    return end;
}

/// Takes "\uABCD" from the text.
std::optional<char32_t> take_code_unit(std::string_view& text) {
    constexpr std::size_t length = 6;
    if (text.size() < length || !text.starts_with("\\u")) return {};
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + 2, text.data() + length, value, 16);
    if (error != std::errc() || end != text.data() + length) return {};
    text.remove_prefix(length);
    return char32_t{value};
}

/// Takes "\uABCD", or a pair of surrogates, from the text and appends its character.
bool take_code_point(std::string_view& text, std::string& out) {
    const auto first = take_code_unit(text);
    if (!first || (*first & 0xFC00) == 0xDC00) return false;
    char32_t value = *first;
    if ((value & 0xFC00) == 0xD800) {
        const auto second = take_code_unit(text);
        if (!second || (*second & 0xFC00) != 0xDC00) return false;
        value = 0x10000 + ((value & 0x3FF) << 10 | (*second & 0x3FF));
    }
    append_utf8(out, value);
    return true;
}

/// Takes an escape, which begins with a backslash, from the text and appends its character.
bool take_escape(std::string_view& text, std::string& out) {
    constexpr std::string_view letters = "\"\\/bfnrt", characters = "\"\\/\b\f\n\r\t";
    const std::size_t found = text.size() < 2 ? std::string_view::npos : letters.find(text[1]);
    if (found == std::string_view::npos) return take_code_point(text, out);
    out += characters[found];
    text.remove_prefix(2);
    return true;
}

/// Returns a string's value; nothing if it is not valid JSON.
std::optional<std::string> decoded(std::string_view text) {
    std::string value;
    value.reserve(text.size());
    while (!text.empty()) {
        std::size_t end = 0;
        while (end < text.size() && text[end] != '\\') {
            if (plain_bytes[static_cast<unsigned char>(text[end])]) {
                ++end;
                continue;
            }
            const CodePoint point = decode_utf8(text, end);
            if (point.value < 0x80) return {};  // also if the bytes are not UTF-8
            end += static_cast<std::size_t>(point.length);
        }
        value.append(text, 0, end);
        text.remove_prefix(end);
        if (!text.empty() && !take_escape(text, value)) return {};
    }
    return value;
}

}  // namespace

ShortenedJson take_long_strings(std::string_view text, std::size_t max_string_bytes,
                                std::size_t max_number_bytes) {
    ShortenedJson result;
    std::size_t copied = 0, number = 0;
    const auto check_length = [](std::size_t begin, std::size_t end, std::size_t max, const char* what) {
        check(end - begin <= max, "at byte ", begin, ": ", what, " of more than ", max, " bytes");
    };
    for (std::size_t position = 0; position < text.size();) {
        std::size_t end = position + 1;
        if (text[position] == '"') {
            const std::size_t begin = end;
            end = end_of_string(text, begin);
            check_length(begin, end, max_string_bytes, "a string");
            if (end - begin >= min_long_string && end < text.size()) {
                if (auto value = decoded(text.substr(begin, end - begin))) {
                    result.text.append(text, copied, begin - copied);
                    copied = end;
                    result.strings.push_back({number, *std::move(value)});
                }
            }
            ++number;
            ++end;
        } else if (!word_ends[static_cast<unsigned char>(text[position])]) {
            while (end < text.size() && !word_ends[static_cast<unsigned char>(text[end])]) ++end;
            check_length(position, end, max_number_bytes, "a number or word");
        }
        position = end;
    }
    if (!result.strings.empty()) result.text.append(text, copied);
    return result;
}

}  // namespace gradtile
