#include <gradtile/cli/setting_flags.h>

namespace gradtile::cli {

SettingFlags::SettingFlags(Command& command, const std::function<bool(std::string_view)>& takes)
    : given_(JsonValue::object()) {
    const TrainConfig defaults;
    visit_settings(defaults, [&](const char* name, const auto& member, const char* help) {
        if (!takes(name)) return;
        using Member = std::remove_cvref_t<decltype(member)>;
        const std::string flag = concat("--", name);
        if constexpr (std::is_same_v<Member, bool>) {
            command.add_switch(flag, help, [this, name](bool value) { given_.set(name, value); });
        } else {
            command.add_value<Member>(flag, help, [this, name](const Member& value) {
                if constexpr (NamedEnum<Member>) {
                    given_.set(name, name_of(value));
                } else {
                    given_.set(name, value);
                }
            });
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
