#include <gradtile/cli/setting_flags.h>

#include <gradtile/cli/flag_values.h>

namespace gradtile::cli {

SettingFlags::SettingFlags(CLI::App& command) {
    const TrainConfig defaults;
    visit_settings(defaults, [&](const char* name, const auto& member, const char* help) {
        using Member = std::remove_cvref_t<decltype(member)>;
        const std::string flag = concat("--", name);
        if constexpr (std::is_same_v<Member, bool>) {
            command.add_flag_function(
                concat(flag, ",!--no-", name),
                [this, name, flag](std::int64_t count) {
                    check(count == 1 || count == -1, flag, ": expected ", flag, " or --no-", name, ", once");
                    given_[name] = count > 0;
                },
                help);
        } else {
            add_value<Member>(command, flag, help, [this, name](const Member& value) {
                if constexpr (NamedEnum<Member>) {
                    given_[name] = std::string(name_of(value));
                } else {
                    given_[name] = value;
                }
            });
        }
    });
}

std::vector<std::string> SettingFlags::given() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : given_.items()) names.push_back(name);
    return names;
}

}  // namespace gradtile::cli
