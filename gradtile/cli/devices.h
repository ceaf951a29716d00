#pragma once
/// --device and what it means.
#include <CLI/CLI.hpp>

#include <gradtile/core/device.h>
#include <gradtile/train/train_config.h>

namespace gradtile::cli {

inline void add_device_flag(CLI::App& command, DeviceChoice& device) {
    command.add_option_function<std::string>(
        "--device",
        [&device](const std::string& name) { device = enum_named<DeviceChoice>(name, "--device"); },
        concat("where to run (", choices_of<DeviceChoice>(), ")"));
}

}  // namespace gradtile::cli
