#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include <gradtile/core/os/internal/control_group.h>

namespace gradtile::os {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

std::optional<std::size_t> number_in(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::size_t value = 0;
    if (file >> value) return value;
    return std::nullopt;  // "max" is no limit
}

/// Where a version of control groups is mounted. A group is a folder with files that contain its memory
/// limit, its memory use, and the page cache's share of that use, which counts as available, because the
/// kernel frees it when memory runs short.
struct Version {
    const char *mount, *controller, *limit, *used, *active_pages, *inactive_pages;
};
constexpr Version versions[] = {
    {"sys/fs/cgroup", "", "memory.max", "memory.current", "active_file", "inactive_file"},
    {"sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file",
     "total_inactive_file"}};

std::size_t rest_of_group(const std::filesystem::path& group, const Version& version) {
    const auto limit = number_in(group / version.limit), used = number_in(group / version.used);
    if (!limit || !used) return unlimited;
    std::size_t reclaimable = 0;
    std::ifstream statistics(group / "memory.stat");
    std::string name;
    for (std::size_t value = 0; statistics >> name >> value;)
        if (name == version.active_pages || name == version.inactive_pages) reclaimable += value;
    const std::size_t kept = *used - std::min(*used, reclaimable);
    return *limit - std::min(*limit, kept);
}

/// The path of this process' group below the mount. In /proc/self/cgroup a line is "5:cpu,memory:/user/job";
/// without controllers it is version 2's.
std::filesystem::path group_of_process(const std::filesystem::path& root, const Version& version) {
    std::ifstream file(root / "proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
        if (controllers.find(std::string(",") + version.controller + ',') != std::string::npos)
            return std::filesystem::path(line.substr(second + 1)).relative_path();
    }
    return {};
}

}  // namespace

std::size_t rest_of_control_groups(const std::filesystem::path& root) {
    std::size_t rest = unlimited;
    for (const Version& version : versions) {
        const std::filesystem::path mount = root / version.mount;
        // A group's limit holds for the groups in it. Inside a container only the mount itself may exist.
        for (std::filesystem::path group = group_of_process(root, version);; group = group.parent_path()) {
            rest = std::min(rest, rest_of_group(mount / group, version));
            if (group.empty()) break;
        }
    }
    return rest;
}

}  // namespace gradtile::os
