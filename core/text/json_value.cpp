#include <gradtile/core/text/json_value.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>

namespace gradtile {

using nlohmann::json;

namespace {

constexpr std::size_t max_shown_bytes = 60;
constexpr std::size_t max_reason_bytes = 160;

/// Untrusted text for a message: one shortened line of printable ASCII.
std::string shown(std::string_view text, std::size_t max_bytes = max_shown_bytes) {
    std::string result(text.substr(0, max_bytes));
    std::replace_if(
        result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return text.size() > max_bytes ? result + "..." : result;
}

/// Builds a value from the parser's events. The library's own builder accepts deeply nested texts, and then
/// exhausts the stack when it destroys, copies or prints them recursively. It also silently keeps the last of
/// two members with the same name. This builder refuses both while it reads the text.
class ValueBuilder final : public nlohmann::json_sax<json> {
  public:
    json take() { return std::move(root_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(std::int64_t value) override { return add(value); }
    bool number_unsigned(std::uint64_t value) override { return add(value); }
    bool number_float(double value, const std::string&) override { return add(value); }
    bool string(std::string& value) override { return add(std::move(value)); }
    bool binary(json::binary_t&) override { throw Error("binary values are not JSON"); }
    bool start_array(std::size_t) override { return open(json::array()); }
    bool start_object(std::size_t) override { return open(json::object()); }
    bool end_array() override { return close(); }
    bool end_object() override { return close(); }
    bool key(std::string& name) override {
        const auto [member, is_new] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
        check(is_new, "'", shown(name), "' occurs twice in one object");
        member_ = &member->second;
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
        throw Error(reason_of(error));
    }

  private:
    json& place(json value) {
        json* const target = open_.empty() ? &root_ : member_;
        if (!open_.empty() && open_.back()->is_array()) {
            open_.back()->push_back(std::move(value));
            return open_.back()->back();
        }
        return *target = std::move(value);
    }
    bool add(json value) {
        place(std::move(value));
        return true;
    }
    bool open(json empty) {
        check(std::ssize(open_) < max_json_depth, "nested more than ", max_json_depth, " levels deep");
        open_.push_back(&place(std::move(empty)));
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    json root_;
    std::vector<json*> open_;  // the open arrays and objects, from the outermost to the innermost
    json* member_ = nullptr;   // the member of the innermost object that the last key named
};

/// Returns the path of a string in `value` that is not UTF-8, like "a.b.3"; empty if there is none.
std::string place_of_bad_text(const json& value, const std::string& place) {
    const auto is_bad = [](const json& text) {
        try {
            static_cast<void>(text.dump());
            return false;
        } catch (const json::exception&) {
            return true;
        }
    };
    if (!value.is_structured()) return is_bad(value) ? place : "";
    for (const auto& [name, member] : value.items()) {
        const std::string inner = place.empty() ? name : concat(place, '.', name);
        if (is_bad(json(name))) return inner;
        if (std::string found = place_of_bad_text(member, inner); !found.empty()) return found;
    }
    return "";
}

}  // namespace

JsonValue::JsonValue() : value_(std::make_unique<json>()) {}
JsonValue::JsonValue(json value) : value_(std::make_unique<json>(std::move(value))) {}
JsonValue::JsonValue(bool value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(double value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(std::int64_t value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(std::uint64_t value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(std::string_view value) : value_(std::make_unique<json>(value)) {}
JsonValue::JsonValue(const std::vector<JsonValue>& values) : value_(std::make_unique<json>(json::array())) {
    for (const JsonValue& value : values) value_->push_back(*value);
}
JsonValue JsonValue::object(std::initializer_list<Member> members) {
    JsonValue value(json::object());
    for (const Member& member : members) value.set(member.name, member.value);
    return value;
}
void JsonValue::set(std::string_view name, JsonValue value) {
    (*value_)[std::string(name)] = std::move(*value);
}
std::vector<std::string> JsonValue::names() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : value_->items()) names.push_back(name);
    return names;
}

JsonValue::JsonValue(const JsonValue& other) : value_(std::make_unique<json>(*other)) {}
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue other) noexcept {
    value_ = std::move(other.value_);
    return *this;
}
JsonValue::~JsonValue() = default;

std::optional<JsonValue> JsonValue::parse(std::string_view text) {
    try {
        return parse_json(text);
    } catch (const Error&) {
        return std::nullopt;
    }
}

std::string JsonValue::dump(int indent) const {
    return json_text(*value_, indent);
}

std::string json_text(const json& value, int indent) {
    try {
        return value.dump(indent);
    } catch (const json::type_error&) {
        const std::string place = place_of_bad_text(value, "");
        throw Error(concat(shown(place), place.empty() ? "" : ": ",
                           "a text that is not UTF-8 cannot be written as JSON"));
    }
}

std::string json_excerpt(const json& value) {
    if (value.is_array()) return "[...]";
    if (value.is_object()) return "{...}";
    if (value.is_string()) return concat('"', shown(value.get_ref<const std::string&>()), '"');
    return value.dump();
}

json parse_json(std::string_view text) {
    ValueBuilder builder;
    json::sax_parse(text.begin(), text.end(), &builder);
    return builder.take();
}

std::string reason_of(const std::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ...; last read: '...'; expected ..."
    std::string_view what = error.what();
    for (const std::string_view before : {"] ", "parse error at ", "parse error: "})
        if (const std::size_t at = what.find(before); at < max_shown_bytes)
            what.remove_prefix(at + before.size());
    return shown(what.substr(0, what.find("; last read: ")), max_reason_bytes);
}

bool operator==(const JsonValue& a, const JsonValue& b) {
    return *a == *b;
}

}  // namespace gradtile
