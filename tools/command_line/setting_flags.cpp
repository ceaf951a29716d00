#include <gradtile/tools/command_line/setting_flags.h>

#include <algorithm>

#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {

SettingFlags::SettingFlags(Command& command) : SettingFlags(command, [](std::string_view) { return true; }) {
    show_defaults({});
}

SettingFlags::SettingFlags(Command& command, const std::function<bool(std::string_view)>& is_included)
    : command_(command), given_(JsonValue::object()) {
    const auto add = [&](const char* name, const auto& member, const char* help, const Range&) {
        if (!is_included(name)) return;
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
    };
    const TrainConfig any;
    visit_settings(any, add);
}

void SettingFlags::show_defaults(const TrainConfig& config) {
    visit_settings(config, [&](const char* name, const auto& member, const char* help, const Range&) {
        const std::string flag = concat("--", name);
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, bool>) {
            command_.show_help(flag, concat(help, " (default: ", member ? "yes" : "no", ")"));
        } else {
            command_.show_default(flag, text_of(member));
        }
    });
}

void SettingFlags::apply(TrainConfig& config) const {
    rethrow_as_usage_error([&] { apply_json(config, given_, "command line"); });
}

void apply_user_config(TrainConfig& config, const std::string& path) {
    const std::string text = config_file_text(path);
    rethrow_as_usage_error([&] { apply_config_text(config, text, path); });
}

std::vector<std::string> SettingFlags::given() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : given_.items()) names.push_back(name);
    return names;
}

bool SettingFlags::has(std::string_view name) const {
    const std::vector<std::string> names = given();
    return std::ranges::find(names, name) != names.end();
}

}  // namespace gradtile::cli
