#include <gradtile/tools/command_line/setting_flags.h>

#include <utility>

#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {
SettingFlags::SettingFlags(Command& command) : command_(command), given_(JsonValue::object()) {
    const TrainConfig defaults;
    visit_settings(defaults, [&](const Setting& setting, const auto& member) {
        declare<std::remove_cvref_t<decltype(member)>>(setting, FlagTakes::value);
    });
    show_defaults(defaults);
}

SettingFlags::SettingFlags(Command& command, bool SettingUsers::*user, FlagTakes takes)
    : command_(command), given_(JsonValue::object()) {
    const TrainConfig any;
    visit_settings(any, [&](const Setting& setting, const auto& member) {
        if (setting.used_by.*user) declare<std::remove_cvref_t<decltype(member)>>(setting, takes);
    });
}

template <class Member>
void SettingFlags::declare(const Setting& setting, FlagTakes takes) {
    const char* const name = setting.name;
    const std::string flag = concat("--", name);
    if constexpr (std::is_same_v<Member, bool>) {
        command_.add_switch(flag, setting.help, [this, name](bool value) { given_.set(name, value); });
    } else if (takes == FlagTakes::list && setting.in_bench == FlagTakes::list) {
        const auto use = [this, name](const std::vector<Member>& list) {
            JsonValue::Array array;
            for (const Member& value : list) array.push_back(json_of_setting(value));
            given_.set(name, std::move(array));
        };
        command_.add_row_values<Member>(flag, setting.help, use);
    } else {
        command_.add_value<Member>(flag, setting.help, [this, name](const Member& value) {
            given_.set(name, json_of_setting(value));
        });
    }
}

std::string help_of_setting(std::string_view name) {
    std::string help;
    const TrainConfig any;
    visit_settings(any, [&](const Setting& setting, const auto&) {
        if (setting.name == name) help = setting.help;
    });
    check(!help.empty(), "no setting ", name);
    return help;
}

std::vector<JsonValue> SettingFlags::combinations() const {
    std::vector<JsonValue> combinations{JsonValue::object()};
    for (const auto& [name, given] : given_.items()) {
        const JsonValue::Array values = given.is_array() ? given.elements() : JsonValue::Array{given};
        std::vector<JsonValue> longer;
        for (const JsonValue& shorter : combinations)
            for (const JsonValue& value : values) {
                longer.push_back(shorter);
                longer.back().set(name, value);
            }
        combinations = std::move(longer);
    }
    return combinations;
}

void SettingFlags::show_defaults(const TrainConfig& config) {
    visit_settings(config, [&](const Setting& setting, const auto& member) {
        const std::string flag = concat("--", setting.name);
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, bool>) {
            command_.show_help(flag, concat(setting.help, " (default: ", member ? "yes" : "no", ")"));
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

}  // namespace gradtile::cli
