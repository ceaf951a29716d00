#include <gradtile/train/available_memory.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

std::optional<std::size_t> number_in(const char* path) {
    std::ifstream file(path);
    std::size_t value = 0;
    if (file >> value) return value;
    return std::nullopt;
}

/// "MemAvailable:  12345 kB" of /proc/meminfo.
std::size_t available_to_the_machine() {
    std::ifstream file("/proc/meminfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
    return unlimited;
}

std::size_t left_of_control_group() {
    const auto limit = number_in("/sys/fs/cgroup/memory.max");  // holds "max" where there is none
    const auto used = number_in("/sys/fs/cgroup/memory.current");
    if (!limit || !used) return unlimited;
    return *limit > *used ? *limit - *used : 0;
}

}  // namespace

std::size_t available_memory(Device device) {
    check(device.is_cpu(), "memory: the free memory of ", device, " is not known; give --memory-budget");
    return std::min(available_to_the_machine(), left_of_control_group());
}

}  // namespace gradtile
