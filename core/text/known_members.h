#pragma once
/// The members in another project's JSON object, and what each one means to this program. A member without a
/// known meaning is an error, because it may change the result.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

enum class MemberMeaning {
    used,      ///< read, or compared with other members
    harmless,  ///< changes no result of this program
    refused    ///< would change a result; see KnownMember::neutral
};

struct KnownMember {
    std::string_view name;
    MemberMeaning meaning = MemberMeaning::used;
    /// For refused members: a JSON array with the values that change nothing. null changes nothing, either.
    std::string_view neutral = "[]";
};

/// Members without a known meaning.
struct UnknownMembers {
    bool allowed = false;                 ///< whether to collect them instead of throwing Error
    std::string advice = {};              ///< ends the error message: what the user can do
    std::vector<std::string> found = {};  ///< "config.json: 'some_member'"
};

/// Throws Error that begins with `source` and names the member, if the object has a refused member with
/// another value than a neutral one, or, unless unknown.allowed, a member that is not in `known`.
void check_members(const JsonValue& object, std::span<const KnownMember> known, std::string_view source,
                   UnknownMembers& unknown);

}  // namespace gradtile
