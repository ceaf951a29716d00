#include <gradtile/core/text/known_members.h>

#include <algorithm>
#include <unordered_map>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/message.h>

namespace gradtile {
namespace {

/// "false", "1 or 1.0", or "no such member".
std::string expected_values(const JsonValue::Array& neutral) {
    std::string text;
    for (const JsonValue& value : neutral) text += (text.empty() ? "" : " or ") + json_excerpt(value);
    return text.empty() ? "no such member" : text;
}

void check_refused(const JsonValue& value, const KnownMember& member, std::string_view source) {
    if (value.is_null()) return;
    const JsonValue parsed = parse_json(member.neutral, member.name);
    const JsonValue::Array& neutral = parsed.elements();
    check(std::ranges::find(neutral, value) != neutral.end(), source, ": ", member.name, ": ",
          json_excerpt(value), " is not supported; expected ", expected_values(neutral));
}

}  // namespace

void check_members(const JsonValue& object, std::span<const KnownMember> known, std::string_view source,
                   UnknownMembers& unknown) {
    check(object.is_object(), source, ": ", json_excerpt(object), "; expected an object");
    std::unordered_map<std::string_view, const KnownMember*> by_name;
    for (const KnownMember& member : known) by_name.emplace(member.name, &member);
    for (const auto& [name, value] : object.items()) {
        const auto member = by_name.find(name);
        if (member == by_name.end()) {
            check(unknown.allowed, source, ": '", printable_name(name),
                  "' has no known meaning, and may change the results", unknown.advice);
            unknown.found.push_back(concat(source, ": '", printable_name(name), "'"));
        } else if (member->second->meaning == MemberMeaning::refused) {
            check_refused(value, *member->second, source);
        }
    }
}

}  // namespace gradtile
