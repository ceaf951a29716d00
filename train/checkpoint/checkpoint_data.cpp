#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/internal/checkpoint_data.h>

namespace gradtile {
namespace {

constexpr std::string_view tokenizer_name = "tokenizer";

/// Returns where the string that begins at `position` ends.
std::size_t string_end(std::string_view text, std::size_t position) {
    for (++position; position < text.size() && text[position] != '"'; ++position)
        if (text[position] == '\\') ++position;
    return std::min(position + 1, text.size());
}

struct Range {
    std::size_t begin = 0, end = 0;
};

/// Returns the range that the tokenizer's value has in an object's text; an empty range if there is none. In
/// a text that is not JSON, the range is any part of the text.
Range tokenizer_range(std::string_view text) {
    constexpr std::string_view name = "\"tokenizer\"", blanks = " \t\r\n";
    Range found;
    for (std::size_t position = 0, depth = 0; position < text.size();) {
        const char c = text[position];
        if (c == '"') {
            const std::size_t end = string_end(text, position);
            const std::size_t colon = std::min(text.find_first_not_of(blanks, end), text.size());
            if (depth == 1 && found.begin == 0 && text.substr(position, end - position) == name &&
                text.substr(colon, 1) == ":")
                found.begin = colon + 1;
            position = end;
            continue;
        }
        const bool ends_member = depth == 1 && (c == ',' || c == '}');
        if (ends_member && found.begin > 0) return {found.begin, position};
        if (c == '{' || c == '[') ++depth;
        if ((c == '}' || c == ']') && depth > 0) --depth;
        ++position;
    }
    return {};
}

}  // namespace

CheckpointData parse_checkpoint_data(std::string text) {
    CheckpointData parsed;
    const Range range = tokenizer_range(text);
    parsed.tokenizer = text.substr(range.begin, range.end - range.begin);
    if (!parsed.tokenizer.empty()) {
        text.replace(range.begin, range.end - range.begin, "null");
        text.shrink_to_fit();
    }
    parsed.data = parse_json(text, "data/json");
    std::string().swap(text);
    parsed.data.erase(tokenizer_name);
    SkippedJson skipped;
    if (!parsed.tokenizer.empty()) read_json(parsed.tokenizer, "data/json: tokenizer", skipped);
    return parsed;
}

void write_checkpoint_data(JsonWriter& writer, const JsonValue& data, std::string_view tokenizer) {
    if (tokenizer.empty()) return writer.write(data);
    const auto write_tokenizer = [&] {
        writer.write_name(tokenizer_name);
        read_json(tokenizer, concat("data/json: ", tokenizer_name), writer);
    };
    const JsonValue members = data.is_null() ? JsonValue::object() : data;
    writer.begin_object();
    bool is_written = false;
    for (const auto& [name, value] : members.items()) {
        // Members are in name order, so that equal checkpoints are equal files.
        if (!is_written && name > tokenizer_name) {
            write_tokenizer();
            is_written = true;
        }
        writer.write(name, value);
    }
    if (!is_written) write_tokenizer();
    writer.end();
}

}  // namespace gradtile
