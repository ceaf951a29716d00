#pragma once
/// The memory traffic of kernels as Nsight Compute measured it, from a CSV file that
///   ncu --csv --page raw --metrics dram__bytes_read.sum,dram__bytes_write.sum,lts__t_bytes.sum PROGRAM
/// prints. --page details, one row for each metric, is accepted, too.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile::cli {

/// All launches of one kernel; bytes per launch.
struct KernelTraffic {
    std::string kernel;  ///< without template arguments and parameters
    std::int64_t launches = 0;
    double dram_read = 0, dram_write = 0;
    double l2 = 0;  ///< NaN if the file does not have the metric
};

/// The kernels in the order of their first launch. Lines before the header are ignored, because ncu prints
/// them and the profiled program may. Throws Error with the line for a text that is not such a table.
std::vector<KernelTraffic> parse_ncu_csv(std::string_view text);
/// Throws Error with the file's name.
std::vector<KernelTraffic> read_ncu_csv(const std::filesystem::path& path);

/// What a kernel computes. The algorithm is "every" for a kernel that the backward passes of all algorithms
/// launch; algorithm and pass are "" for kernels that are not gradtile's attention.
struct KernelRole {
    std::string algorithm, pass;
};
KernelRole role_of_kernel(std::string_view kernel);

}  // namespace gradtile::cli
