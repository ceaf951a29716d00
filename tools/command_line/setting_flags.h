#pragma once
/// One flag for every run setting (see train_config.h). Flags override the config file.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/command_line/command_line.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile::cli {

class SettingFlags {
  public:
    /// Declares all settings, with TrainConfig's defaults in --help. The flags refer to this object, so it
    /// must live until the command line is parsed.
    explicit SettingFlags(Command& command);
    /// Declares the included settings without defaults, for a command that has other defaults.
    SettingFlags(Command& command, const std::function<bool(std::string_view name)>& is_included);

    /// Makes --help show `config`'s values as the defaults. Requires all settings to be declared.
    void show_defaults(const TrainConfig& config);
    /// Overwrites the settings that were given.
    void apply(TrainConfig& config) const;
    /// Returns the names of the given settings.
    std::vector<std::string> given() const;
    bool has(std::string_view name) const;

  private:
    Command command_;
    JsonValue given_;  // a JSON object with the given settings
};

/// Reads the --config file. Throws Error when it cannot be read, UsageError when its contents are invalid.
void apply_user_config(TrainConfig& config, const std::string& path);

}  // namespace gradtile::cli
