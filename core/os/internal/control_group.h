#pragma once
/// INTERNAL. Linux' control groups, by which containers and job systems limit memory.
#include <cstddef>
#include <filesystem>

namespace gradtile::os {

/// Returns the bytes that are left of the memory limits of this process' control groups, in both versions of
/// control groups; the largest number if there is no limit. `root` is for tests.
std::size_t rest_of_control_groups(const std::filesystem::path& root = "/");

}  // namespace gradtile::os
