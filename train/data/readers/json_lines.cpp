#include <gradtile/train/data/readers/json_lines.h>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {

/// Sets `line` to the next line that is not empty.
bool JsonLines::next_line(std::string_view& line) {
    while (text_.next_line(line, max_json_line_bytes)) {
        if (++line_ == 1 && line.starts_with(utf8_byte_order_mark))
            line.remove_prefix(utf8_byte_order_mark.size());
        if (line.find_first_not_of(" \t\r") != std::string_view::npos) return true;
    }
    return false;
}

bool JsonLines::next(JsonValue& row) {
    std::string_view line;
    if (!next_line(line)) return false;
    row = parse_json(line, where());
    return true;
}

bool JsonLines::skip(std::int64_t rows) {
    std::string_view line;
    for (; rows > 0; --rows)
        if (!next_line(line)) return false;
    return true;
}

std::string JsonLines::where() const {
    return concat(text_.name(), ": line ", line_);
}

}  // namespace gradtile
