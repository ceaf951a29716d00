#include <gradtile/core/text/json_value.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_writer.h>

namespace gradtile {
namespace {

template <class Members>
auto place_of(Members& members, std::string_view name) {
    return std::ranges::lower_bound(members, name, std::less<>{}, &JsonValue::Member::name);
}

template <class T>
std::unique_ptr<T> copy_of(const std::unique_ptr<T>& value) {
    return std::make_unique<T>(*value);
}
template <class T>
T copy_of(const T& value) {
    return value;
}

template <class T>
bool are_equal(const std::unique_ptr<T>& a, const std::unique_ptr<T>& b) {
    return std::ranges::equal(*a, *b);
}
template <class T>
bool are_equal(const T& a, const T& b) {
    return a == b;
}

}  // namespace

JsonValue JsonValue::object(std::initializer_list<Member> members) {
    JsonValue value;
    value.value_ = std::make_unique<Object>();
    for (const Member& member : members) value.set(member.name, member.value);
    return value;
}

JsonValue JsonValue::object_of(Object members) {
    std::ranges::sort(members, std::less<>{}, &Member::name);
    const auto twice = std::ranges::adjacent_find(members, std::equal_to<>{}, &Member::name);
    if (twice != members.end())
        throw Error(concat('\'', shown_in_message(twice->name), "' occurs twice in one object"));
    JsonValue value;
    value.value_ = std::make_unique<Object>(std::move(members));
    return value;
}

JsonValue::JsonValue(const JsonValue& other)
    : value_(std::visit([](const auto& value) -> decltype(value_) { return copy_of(value); }, other.value_)) {
}

std::string_view JsonValue::type_name() const {
    if (is_null()) return "null";
    if (is_boolean()) return "boolean";
    if (is_number()) return "number";
    if (is_string()) return "string";
    return is_array() ? "array" : "object";
}

void JsonValue::refuse_type(std::string_view expected) const {
    throw Error(concat(json_excerpt(*this), " is ", is_array() || is_object() ? "an " : "a ", type_name(),
                       "; expected ", expected));
}

bool JsonValue::boolean() const {
    if (!is_boolean()) refuse_type("true or false");
    return std::get<bool>(value_);
}

double JsonValue::number() const {
    if (is_number_unsigned()) return static_cast<double>(unsigned_integer());
    if (is_number_integer()) return static_cast<double>(signed_integer());
    if (!is_number()) refuse_type("a number");
    return std::get<double>(value_);
}

const std::string& JsonValue::text() const {
    if (!is_string()) refuse_type("a string");
    return *std::get<std::unique_ptr<std::string>>(value_);
}

const JsonValue::Array& JsonValue::elements() const {
    if (!is_array()) refuse_type("an array");
    return *std::get<std::unique_ptr<Array>>(value_);
}

const JsonValue::Object& JsonValue::items() const {
    if (!is_object()) refuse_type("an object");
    return *std::get<std::unique_ptr<Object>>(value_);
}

std::size_t JsonValue::size() const {
    return is_array() ? elements().size() : is_object() ? items().size() : 0;
}

const JsonValue* JsonValue::find(std::string_view name) const {
    if (!is_object()) return nullptr;
    const auto place = place_of(items(), name);
    return place != items().end() && place->name == name ? &place->value : nullptr;
}

const JsonValue& JsonValue::operator[](std::string_view name) const {
    if (!is_object()) refuse_type(concat("an object with a member '", name, "'"));
    const JsonValue* const member = find(name);
    check(member != nullptr, "has no member '", name, "'");
    return *member;
}

const JsonValue& JsonValue::element(std::size_t index) const {
    check(index < elements().size(), "an array of ", size(), " elements has no element ", index);
    return elements()[index];
}

void JsonValue::set(std::string_view name, JsonValue value) {
    if (is_null()) value_ = std::make_unique<Object>();
    if (!is_object()) refuse_type("an object");
    Object& members = *std::get<std::unique_ptr<Object>>(value_);
    const auto place = place_of(members, name);
    if (place != members.end() && place->name == name) {
        place->value = std::move(value);
    } else {
        members.insert(place, {std::string(name), std::move(value)});
    }
}

void JsonValue::erase(std::string_view name) {
    if (!contains(name)) return;
    Object& members = *std::get<std::unique_ptr<Object>>(value_);
    members.erase(place_of(members, name));
}

std::string JsonValue::take_text(std::string_view name) {
    JsonValue& member = const_cast<JsonValue&>((*this)[name]);
    if (!member.is_string()) member.refuse_type("a string");
    return std::exchange(*std::get<std::unique_ptr<std::string>>(member.value_), {});
}

void JsonValue::push_back(JsonValue value) {
    if (is_null()) value_ = std::make_unique<Array>();
    if (!is_array()) refuse_type("an array");
    std::get<std::unique_ptr<Array>>(value_)->push_back(std::move(value));
}

std::string JsonValue::dump(int indent) const {
    std::string text;
    JsonWriter writer(text, indent);
    writer.write(*this);
    writer.finish();
    return text;
}

bool operator==(const JsonValue& a, const JsonValue& b) {
    if (a.value_.index() == b.value_.index())
        return std::visit(
            [&](const auto& value) {
                return are_equal(value, std::get<std::remove_cvref_t<decltype(value)>>(b.value_));
            },
            a.value_);
    // Integers of different types have different signs.
    const bool both_integers = a.is_number_integer() && b.is_number_integer();
    return a.is_number() && b.is_number() && !both_integers && a.number() == b.number();
}

std::string json_excerpt(const JsonValue& value) {
    if (value.is_array()) return "[...]";
    if (value.is_object()) return "{...}";
    if (value.is_string()) return concat('"', shown_in_message(value.text()), '"');
    return value.dump();
}

std::string shown_in_message(std::string_view text, std::size_t max_bytes) {
    std::string result(text.substr(0, max_bytes));
    std::ranges::replace_if(
        result, [](char c) { return c < ' ' || c > '~'; }, '?');
    return text.size() > max_bytes ? result + "..." : result;
}

std::ostream& operator<<(std::ostream& out, const JsonValue& value) {
    return out << value.dump();
}

}  // namespace gradtile
