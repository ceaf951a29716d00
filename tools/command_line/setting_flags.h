#pragma once
/// One flag for every run setting (see settings.h). Flags override the config file.
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/command_line/command_line.h>
#include <gradtile/train/config/settings.h>

namespace gradtile::cli {

class SettingFlags {
  public:
    /// Declares all settings, with TrainConfig's defaults in --help. The flags refer to this object, so it
    /// must live until the command line is parsed.
    explicit SettingFlags(Command& command);
    /// Declares the settings that a command uses, without defaults, because the command has its own ones.
    /// With FlagTakes::list, flags take lists where the settings' traits say so.
    SettingFlags(Command& command, bool SettingUsers::*user, FlagTakes takes = FlagTakes::value);

    /// Makes --help show `config`'s values as the defaults. Requires all settings to be declared.
    void show_defaults(const TrainConfig& config);
    /// Overwrites the settings that were given.
    void apply(TrainConfig& config) const;
    /// Returns the given settings, a JSON object. A list is an array.
    const JsonValue& given() const { return given_; }
    /// Returns the given settings with one value of each list, for every combination of values.
    std::vector<JsonValue> combinations() const;

  private:
    template <class Member>
    void declare(const Setting& setting, FlagTakes takes);

    Command command_;
    JsonValue given_;
};

/// Returns a setting's help text, for a command with a flag of the same name and meaning.
std::string help_of_setting(std::string_view name);

/// Reads the --config file. Throws Error when it cannot be read, UsageError when its contents are invalid.
void apply_user_config(TrainConfig& config, const std::string& path);

}  // namespace gradtile::cli
