#pragma once
/// One flag for every setting of a run (see train_config.h); what was given on the command line wins over the
/// config.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/cli/command_line.h>
#include <gradtile/core/json_value.h>
#include <gradtile/train/train_config.h>

namespace gradtile::cli {

class SettingFlags {
  public:
    /// The flags refer to this object: it must live until the command line is parsed. A command may take
    /// only some of the settings.
    explicit SettingFlags(
        Command& command,
        const std::function<bool(std::string_view name)>& takes = [](std::string_view) { return true; });

    /// Overwrites the settings that were given.
    void apply(TrainConfig& config) const;
    /// Names of the settings that were given.
    std::vector<std::string> given() const;

  private:
    JsonValue given_;  // an object
};

}  // namespace gradtile::cli
