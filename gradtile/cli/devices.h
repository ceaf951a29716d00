#pragma once
/// --device and what it means.
#include <gradtile/cli/flag_values.h>
#include <gradtile/core/device.h>
#include <gradtile/train/train_config.h>

namespace gradtile::cli {

inline void add_device_flag(CLI::App& command, DeviceChoice& device) {
    add_value(command, "--device", device, "where to run");
}

}  // namespace gradtile::cli
