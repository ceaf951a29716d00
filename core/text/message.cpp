#include <gradtile/core/text/message.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

struct CodePoints {
    char32_t first, last;
};

/// Characters that control a terminal or are invisible. Joiners (U+200C, U+200D) are not in the list, because
/// words and emoji need them.
constexpr CodePoints escaped[] = {{0x0000, 0x001F}, {0x007F, 0x009F},  // control characters
                                  {0x00AD, 0x00AD}, {0x061C, 0x061C}, {0x180E, 0x180E},
                                  {0x200B, 0x200B}, {0x200E, 0x200F},  // direction
                                  {0x2028, 0x202E},  // line and paragraph separators, direction
                                  {0x2060, 0x206F},  // invisible, direction
                                  {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};

bool is_escaped(char32_t c) {
    for (const CodePoints& range : escaped)
        if (c >= range.first && c <= range.last) return true;
    return false;
}

std::string escape(char32_t c) {
    switch (c) {
        case '\n':
            return "\\n";
        case '\t':
            return "\\t";
        case '\r':
            return "\\r";
        case '\b':
            return "\\b";
        case '\f':
            return "\\f";
        default:
            break;
    }
    if (c < 0x10000) return formatted("\\u%04x", static_cast<unsigned>(c));
    const unsigned offset = c - 0x10000;  // JSON escapes such characters as UTF-16 surrogate pairs
    return formatted("\\u%04x\\u%04x", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
}

/// Removes the first character from `rest` and returns its printable form.
std::string take_shown(std::string_view& rest, bool multiline) {
    const CodePoint c = decode_utf8(rest, 0);
    const std::size_t length = c.length == 0 ? 1 : static_cast<std::size_t>(c.length);
    const std::string_view bytes = rest.substr(0, length);
    rest.remove_prefix(length);
    if (c.length == 0) return formatted("\\x%02x", static_cast<unsigned char>(bytes.front()));
    const bool stays = !is_escaped(c.value) || (multiline && (c.value == '\n' || c.value == '\t'));
    return stays ? std::string(bytes) : escape(c.value);
}

/// Counts the characters in valid UTF-8.
std::size_t length_of(std::string_view text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char byte) { return !continues_character(byte); }));
}

/// Removes characters from `rest` while their printable forms fit into `max_characters`; returns these forms.
std::string take_shown_up_to(std::size_t max_characters, std::string_view& rest, bool multiline) {
    std::string shown;
    for (std::size_t length = 0; !rest.empty();) {
        std::string_view after = rest;
        const std::string next = take_shown(after, multiline);
        length += length_of(next);
        if (length > max_characters) break;
        shown += next;
        rest = after;
    }
    return shown;
}

/// The last characters of `text` in printable form, as many as fit into `max_characters`.
std::string last_shown(std::size_t max_characters, std::string_view text, bool multiline) {
    // A character has at most 4 bytes. The cut may split a character, so its remaining bytes are removed,
    // too.
    if (text.size() > 4 * max_characters) text.remove_prefix(text.size() - 4 * max_characters);
    for (int i = 0; i < 3 && !text.empty() && continues_character(text.front()); ++i) text.remove_prefix(1);
    std::vector<std::string> pieces;
    while (!text.empty()) pieces.push_back(take_shown(text, multiline));
    std::string shown;
    std::size_t length = 0;
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
        length += length_of(*piece);
        if (length > max_characters) break;
        shown.insert(0, *piece);
    }
    return shown;
}

void write_to_stderr(std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;  // a failed write to stderr cannot be reported
        text.remove_prefix(static_cast<std::size_t>(written));
    }
}

}  // namespace

std::string printable(std::string_view text, const PrintableOptions& options) {
    const std::size_t max_characters =
        options.max_characters == 0 ? std::string::npos : options.max_characters;
    std::string_view rest = text;
    const std::string full_text = take_shown_up_to(max_characters, rest, options.multiline);
    if (rest.empty()) return full_text;
    // The middle is left out, because the beginning names the file and the end says what was expected.
    const std::string note = concat(" ...[", text.size(), " bytes]... ");
    const std::size_t kept = max_characters - std::min(max_characters, note.size());
    rest = text;
    const std::string head = take_shown_up_to((kept + 1) / 2, rest, options.multiline);
    return head + note + last_shown(kept / 2, rest, options.multiline);
}

std::string message_of(const std::exception& error) {
    if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
    // "filesystem error: status: File name too long [PATH]"
    if (const auto* failure = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
        return concat(failure->path1().string(), ": ", failure->code().message());
    return error.what();
}

void FailureReporter::operator()(const std::function<void()>& write) {
    try {
        write();
        failing_ = false;
    } catch (const Error& error) {
        if (!failing_) on_message_(error.what());
        failing_ = true;
    }
}

void print_error(const std::exception& error) noexcept {
    try {
        print_message(message_of(error));
    } catch (const std::exception&) {
        write_to_stderr("gradtile: out of memory\n");
    }
}

void print_message(const std::string& message) {
    write_to_stderr(concat("gradtile: ", printable(message), '\n'));
}

}  // namespace gradtile
