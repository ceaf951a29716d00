#pragma once
/// INTERNAL. Linux' control groups, by which containers and job systems limit memory.
#include <cstddef>
#include <filesystem>

namespace gradtile::os {

/// Returns how many bytes this process' control groups (version 1 or 2) still allow; the largest number if
/// none has a memory limit. `root` is for tests.
std::size_t rest_of_control_groups(const std::filesystem::path& root = "/");

}  // namespace gradtile::os
