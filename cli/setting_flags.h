#pragma once
/// One flag for every setting of a run (see train_config.h); what was given on the command line wins over the
/// config.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/cli/command_line.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/train/train_config.h>

namespace gradtile::cli {

class SettingFlags {
  public:
    /// All settings, with a TrainConfig's defaults in --help. The flags refer to this object: it must live
    /// until the command line is parsed.
    explicit SettingFlags(Command& command);
    /// Some settings, of a command that starts from other defaults than a TrainConfig's.
    SettingFlags(Command& command, const std::function<bool(std::string_view name)>& takes);

    /// Makes --help show the values of `config` as the defaults; of flags for all settings.
    void show_defaults(const TrainConfig& config);
    /// Overwrites the settings that were given.
    void apply(TrainConfig& config) const;
    /// Names of the settings that were given.
    std::vector<std::string> given() const;

  private:
    Command command_;
    JsonValue given_;  // an object
};

/// Reads --config. A file that cannot be read fails the command; wrong contents are a UsageError.
void apply_user_config(TrainConfig& config, const std::string& path);

}  // namespace gradtile::cli
