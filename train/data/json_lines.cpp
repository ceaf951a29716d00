#include <gradtile/train/data/json_lines.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {
void for_each_json_line(std::string_view text, std::string_view source,
                        const std::function<void(const JsonValue& value, const std::string& where)>& visit) {
    if (text.starts_with(utf8_byte_order_mark)) text.remove_prefix(utf8_byte_order_mark.size());
    for (std::int64_t number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string where = concat(source, ": line ", number);
        visit(parse_json(line, where), where);
    }
}

}  // namespace gradtile
