#include <gradtile/cli/setting_flags.h>

namespace gradtile::cli {

SettingFlags::SettingFlags(Command& command) : given_(JsonValue::object()) {
    add(
        command, [](std::string_view) { return true; }, /*shows_defaults=*/true);
}

SettingFlags::SettingFlags(Command& command, const std::function<bool(std::string_view)>& takes)
    : given_(JsonValue::object()) {
    add(command, takes, /*shows_defaults=*/false);
}

void SettingFlags::add(Command& command, const std::function<bool(std::string_view)>& takes,
                       bool shows_defaults) {
    const TrainConfig defaults;
    visit_settings(defaults, [&](const char* name, const auto& member, const char* help) {
        if (!takes(name)) return;
        using Member = std::remove_cvref_t<decltype(member)>;
        const std::string flag = concat("--", name);
        if constexpr (std::is_same_v<Member, bool>) {
            const char* const shown = !shows_defaults ? "" : member ? " (default: yes)" : " (default: no)";
            command.add_switch(flag, concat(help, shown),
                               [this, name](bool value) { given_.set(name, value); });
        } else {
            const auto use = [this, name](const Member& value) {
                if constexpr (NamedEnum<Member>) {
                    given_.set(name, name_of(value));
                } else {
                    given_.set(name, value);
                }
            };
            if (shows_defaults) {
                command.add_value<Member>(flag, help, member, use);
            } else {
                command.add_value<Member>(flag, help, use);
            }
        }
    });
}

void SettingFlags::apply(TrainConfig& config) const {
    apply_json(config, *given_, "command line");
}

std::vector<std::string> SettingFlags::given() const {
    return given_.names();
}

}  // namespace gradtile::cli
