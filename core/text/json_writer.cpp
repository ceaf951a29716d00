#include <gradtile/core/text/json_writer.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 16;

std::string text_of_number(const JsonValue& value) {
    if (value.is_number_unsigned()) return std::to_string(value.get<std::uint64_t>());
    if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
    // The shortest digits that give the same number. Without a fraction, they end in ".0".
    return nlohmann::json(value.number()).dump();
}

/// Returns a character's escaped form inside a string; empty: the character stays as it is.
std::string_view escaped_form(char c, std::array<char, 8>& place) {
    switch (c) {
        case '"':
            return "\\\"";
        case '\\':
            return "\\\\";
        case '\b':
            return "\\b";
        case '\f':
            return "\\f";
        case '\n':
            return "\\n";
        case '\r':
            return "\\r";
        case '\t':
            return "\\t";
        default:
            break;
    }
    if (static_cast<unsigned char>(c) >= ' ') return {};
    std::snprintf(place.data(), place.size(), "\\u%04x", static_cast<unsigned>(c));
    return place.data();
}

}  // namespace

JsonWriter::JsonWriter(std::string& text, int indent)
    : JsonWriter([&text](std::string_view piece) { text += piece; }, indent) {}

void JsonWriter::append(std::string_view piece) {
    buffer_ += piece;
}

void JsonWriter::finish() {
    sink_(buffer_);
    buffer_.clear();
}

void JsonWriter::break_line() {
    if (indent_ < 0) return;
    buffer_ += '\n';
    buffer_.append(open_.size() * static_cast<std::size_t>(indent_), ' ');
}

/// Precedes each array element and each name.
void JsonWriter::begin_value() {
    if (buffer_.size() >= piece_bytes) finish();
    if (open_.empty()) return;
    Open& into = open_.back();
    if (into.is_object) return;
    if (into.count++ > 0) buffer_ += ',';
    break_line();
}

void JsonWriter::write_name(std::string_view name) {
    Open& into = open_.back();
    into.name = name;
    if (into.count++ > 0) buffer_ += ',';
    break_line();
    append_string(name);
    append(indent_ < 0 ? ":" : ": ");
}

void JsonWriter::begin(bool is_object) {
    begin_value();
    open_.push_back({.is_object = is_object});
    buffer_ += is_object ? '{' : '[';
}

void JsonWriter::end() {
    const Open closed = std::move(open_.back());
    open_.pop_back();
    if (closed.count > 0) break_line();
    buffer_ += closed.is_object ? '}' : ']';
}

void JsonWriter::write_text(std::string_view text) {
    begin_value();
    append_string(text);
}

void JsonWriter::write(const JsonValue& value) {
    if (value.is_object()) {
        begin_object();
        for (const auto& [name, member] : value.items()) write(name, member);
        return end();
    }
    if (value.is_array()) {
        begin_array();
        for (const JsonValue& element : value.elements()) write(element);
        return end();
    }
    if (value.is_string()) return write_text(value.text());
    begin_value();
    if (value.is_null()) return append("null");
    if (value.is_boolean()) return append(value.boolean() ? "true" : "false");
    append(text_of_number(value));
}

/// Appends a string part, which may be as long as a file.
void JsonWriter::append_long(std::string_view text) {
    while (buffer_.size() + text.size() > piece_bytes) {
        std::size_t end = std::min(text.size(), piece_bytes);
        while (end < text.size() && end > 0 && continues_character(text[end])) --end;
        append(text.substr(0, end));
        text.remove_prefix(end);
        finish();
    }
    append(text);
}

void JsonWriter::append_string(std::string_view text) {
    if (!is_utf8(text)) refuse_text();
    std::array<char, 8> place;
    buffer_ += '"';
    std::size_t begin = 0;
    for (std::size_t position = 0; position < text.size(); ++position) {
        const std::string_view form = escaped_form(text[position], place);
        if (form.empty()) continue;
        append_long(text.substr(begin, position - begin));
        append(form);
        begin = position + 1;
    }
    append_long(text.substr(begin));
    buffer_ += '"';
}

void JsonWriter::refuse_text() const {
    std::string place;
    for (const Open& level : open_)
        place +=
            concat(place.empty() ? "" : ".", level.is_object ? level.name : std::to_string(level.count - 1));
    throw Error(concat(shown_in_message(place), place.empty() ? "" : ": ",
                       "a text that is not UTF-8 cannot be written as JSON"));
}

}  // namespace gradtile
