#include <gradtile/cli/setting_flags.h>

namespace gradtile::cli {
namespace {

template <NamedEnum Enum>
std::string described(const char* help, const Enum&) {
    return concat(help, " (", choices_of<Enum>(), ")");
}
template <class T>
requires(!NamedEnum<T>) std::string described(const char* help, const T&) {
    return help;
}

template <class T>
using FlagType = std::conditional_t<NamedEnum<T>, std::string, T>;

}  // namespace

SettingFlags::SettingFlags(CLI::App& command) {
    const TrainConfig defaults;
    visit_settings(defaults, [&](const char* name, const auto& member, const char* help) {
        using Member = std::remove_cvref_t<decltype(member)>;
        const std::string flag = concat("--", name);
        if constexpr (std::is_same_v<Member, bool>) {
            command.add_flag_function(
                concat(flag, ",!--no-", name), [this, name](std::int64_t count) { given_[name] = count > 0; },
                help);
        } else {
            command.add_option_function<FlagType<Member>>(
                flag, [this, name](const FlagType<Member>& value) { given_[name] = value; },
                described(help, member));
        }
    });
}

std::vector<std::string> SettingFlags::given() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : given_.items()) names.push_back(name);
    return names;
}

}  // namespace gradtile::cli
