#pragma once
/// The flag --device.
#include <gradtile/tools/command_line/command_line.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile::cli {

inline void add_device_flag(Command& command, DeviceChoice& device) {
    command.add_value("--device", device, "device to run on");
}

}  // namespace gradtile::cli
