#pragma once
/// One flag for every setting of a run (see train_config.h). Flags override the config file.
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
    /// Declares all settings, with the defaults of TrainConfig in --help. The flags refer to this object, so
    /// it must live until the command line is parsed.
    explicit SettingFlags(Command& command);
    /// Declares the included settings without defaults, for a command that has other defaults.
    SettingFlags(Command& command, const std::function<bool(std::string_view name)>& is_included);

    /// Makes --help show the values of `config` as the defaults. Requires all settings to be declared.
    void show_defaults(const TrainConfig& config);
    /// Overwrites the settings that were given.
    void apply(TrainConfig& config) const;
    /// Names of the settings that were given.
    std::vector<std::string> given() const;
    bool has(std::string_view name) const;

  private:
    Command command_;
    JsonValue given_;  // a JSON object of the given settings
};

/// Reads the file of --config. Throws Error when it cannot be read, UsageError when its contents are invalid.
void apply_user_config(TrainConfig& config, const std::string& path);

}  // namespace gradtile::cli
