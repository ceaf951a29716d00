#include <gradtile/train/available_memory.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include <gradtile/core/cuda_runtime.h>

namespace gradtile {
namespace {

constexpr std::size_t cuda_overhead = std::size_t{512} << 20;
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
    if (device.is_cuda()) {
        const std::size_t free_bytes = cuda::device_memory(device).free_bytes;
        return free_bytes - std::min(free_bytes, cuda_overhead);
    }
    return std::min(available_to_the_machine(), left_of_control_group());
}

}  // namespace gradtile
