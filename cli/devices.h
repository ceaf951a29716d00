#pragma once
/// --device and what it means.
#include <gradtile/cli/command_line.h>
#include <gradtile/core/device.h>
#include <gradtile/train/train_config.h>

namespace gradtile::cli {

inline void add_device_flag(Command& command, DeviceChoice& device) {
    command.add_value("--device", device, "where to run");
}

}  // namespace gradtile::cli
