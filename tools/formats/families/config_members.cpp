#include <gradtile/tools/formats/families/config_members.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>

namespace gradtile {

ConfigMembers::ConfigMembers(const JsonValue& object, std::string_view source)
    : object_(&object), source_(source) {
    check(object.is_object(), source_, ": expected an object");
}

const JsonValue* ConfigMembers::find(const MemberNames& names) {
    const JsonValue* found = nullptr;
    const char* found_name = "";
    for (const char* const name : names) {
        if (std::ranges::find(names_, name) == names_.end()) names_.emplace_back(name);
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

bool ConfigMembers::has(const MemberNames& names) {
    return value_of(names) != nullptr;
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
    throw Error(concat(source_, ": ", name_in_file(names), ": ", json_excerpt(value), expected));
}

void ConfigMembers::map(const MemberNames& names, std::int64_t& value) {
    const JsonValue* const found = value_of(names);
    if (!reads()) return write(*names.begin(), value);
    if (!found) return;
    if (!found->is_number_unsigned() || found->number() > 1e15)
        refuse(names, *found, "; expected an integer, 0 or more");
    value = found->get<std::int64_t>();
}

void ConfigMembers::map(const MemberNames& names, double& value) {
    const JsonValue* const found = value_of(names);
    if (!reads()) return write(*names.begin(), value);
    if (!found) return;
    if (!found->is_number()) refuse(names, *found, "; expected a number");
    value = found->number();
}

void ConfigMembers::map(const MemberNames& names, bool& value) {
    const JsonValue* const found = value_of(names);
    if (!reads()) return write(*names.begin(), value);
    if (!found) return;
    if (!found->is_boolean()) refuse(names, *found, "; expected true or false");
    value = found->boolean();
}

void ConfigMembers::map(const MemberNames& names, std::vector<double>& values) {
    const JsonValue* const found = value_of(names);
    if (!reads()) return write(*names.begin(), values);
    if (!found) return;
    const bool are_numbers =
        found->is_array() && std::ranges::all_of(found->elements(), &JsonValue::is_number);
    if (!are_numbers) refuse(names, *found, "; expected a list of numbers");
    values = found->get<std::vector<double>>();
}

void ConfigMembers::map_text(const MemberNames& names, std::string& text,
                             const std::vector<std::string_view>& known) {
    const JsonValue* const found = value_of(names);
    if (!reads()) return write(*names.begin(), text);
    if (!found) return;
    std::string expected;
    for (const std::string_view name : known) expected += concat(expected.empty() ? "" : " or ", name);
    if (!found->is_string()) refuse(names, *found, concat("; expected ", expected));
    if (std::ranges::find(known, found->text()) == known.end())
        throw Error(concat(source_, ": ", name_in_file(names), ": '", printable(found->text()),
                           "' is not supported; expected ", expected));
    text = found->text();
}

}  // namespace gradtile
