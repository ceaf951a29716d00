#include <gradtile/tools/formats/families/config_members.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>

namespace gradtile {

ConfigMembers::ConfigMembers(const JsonValue& object, std::string_view source)
    : object_(&object), source_(source) {
    check(object.is_object(), source_, ": ", json_excerpt(object), "; expected an object");
}

const JsonValue* ConfigMembers::find(const MemberNames& names) {
    const JsonValue* found = nullptr;
    const char* found_name = "";
    for (const char* const name : names) {
        remember(name);
        const JsonValue* const value = object_ ? object_->find(name) : nullptr;
        if (!value || (found && value->is_null())) continue;
        check(!found || found->is_null() || *found == *value, source_, ": ", found_name, ": ",
              found ? json_excerpt(*found) : "", ", but ", name, ": ", json_excerpt(*value),
              "; expected one of these members, or equal values");
        found = value;
        found_name = name;
    }
    return found;
}

void ConfigMembers::remember(const char* name) {
    if (std::ranges::find(names_, name) == names_.end()) names_.emplace_back(name);
}

void ConfigMembers::write(const char* name, JsonValue value) {
    remember(name);
    if (!reads()) written_.set(name, std::move(value));
}

const JsonValue* ConfigMembers::value_of(const MemberNames& names) {
    const JsonValue* const value = find(names);
    return value && !value->is_null() ? value : nullptr;
}

const char* ConfigMembers::name_in_file(const MemberNames& names) const {
    return *std::ranges::find_if(names, [&](const char* name) { return object_->contains(name); });
}

void ConfigMembers::refuse(const MemberNames& names, const JsonValue& value,
                           std::string_view expected) const {
    throw Error(
        concat(source_, ": ", name_in_file(names), ": ", json_excerpt(value), "; expected ", expected));
}

template <class T>
void ConfigMembers::map_value(const MemberNames& names, T& value, bool (*fits)(const JsonValue&),
                              std::string_view expected) {
    const JsonValue* const found = value_of(names);
    if (!reads()) return write(*names.begin(), value);
    if (!found) return;
    if (!fits(*found)) refuse(names, *found, expected);
    value = found->get<T>();
}

void ConfigMembers::map(const MemberNames& names, std::int64_t& value) {
    const auto is_count = [](const JsonValue& v) { return v.is_number_unsigned() && v.number() <= 1e15; };
    map_value(names, value, is_count, "an integer, 0 or more");
}
void ConfigMembers::map_size(const MemberNames& names, std::int64_t& value) {
    const JsonValue* const found = find(names);
    if (found && found->is_null()) refuse(names, *found, "an integer, 0 or more");
    map(names, value);
}
void ConfigMembers::map(const MemberNames& names, double& value) {
    map_value(
        names, value, [](const JsonValue& v) { return v.is_number(); }, "a number");
}
void ConfigMembers::map(const MemberNames& names, bool& value) {
    map_value(
        names, value, [](const JsonValue& v) { return v.is_boolean(); }, "true or false");
}
void ConfigMembers::map(const MemberNames& names, std::vector<double>& values) {
    const auto are_numbers = [](const JsonValue& v) {
        return v.is_array() && std::ranges::all_of(v.elements(), &JsonValue::is_number);
    };
    map_value(names, values, are_numbers, "a list of numbers");
}

void ConfigMembers::map_text(const MemberNames& names, std::string& text,
                             const std::vector<std::string_view>& known) {
    const JsonValue* const found = value_of(names);
    if (!reads()) return write(*names.begin(), text);
    if (!found) return;
    std::string expected;
    for (const std::string_view name : known) expected += concat(expected.empty() ? "" : " or ", name);
    if (!found->is_string()) refuse(names, *found, expected);
    if (std::ranges::find(known, found->text()) == known.end())
        throw Error(concat(source_, ": ", name_in_file(names), ": '", printable(found->text()),
                           "' is not supported; expected ", expected));
    text = found->text();
}

}  // namespace gradtile
