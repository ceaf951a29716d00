#pragma once
/// Reads kernels' memory traffic, measured by Nsight Compute, from a CSV file that
///   ncu --csv --page raw --metrics dram__bytes_read.sum,dram__bytes_write.sum,lts__t_bytes.sum PROGRAM
/// prints. --page details, one row for each metric, is accepted, too.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile::cli {

/// One kernel's traffic per launch, averaged over its launches.
struct KernelTraffic {
    std::string kernel;  ///< the kernel's name, without template arguments and parameters
    std::int64_t launches = 0;
    double dram_read = 0, dram_write = 0;
    double l2 = 0;  ///< L2 cache bytes; NaN if the file does not have this metric
};

/// Returns the kernels, ordered by their first launch. Lines before the header are ignored, because ncu and
/// the profiled program print such lines. Throws Error with the line number if the text is not such a table.
std::vector<KernelTraffic> parse_ncu_csv(std::string_view text);
/// Reads a file; see parse_ncu_csv. Throws Error with the file's name.
std::vector<KernelTraffic> read_ncu_csv(const std::filesystem::path& path);

/// The pass that a kernel belongs to. The algorithm is "every" for a kernel that every algorithm's backward
/// pass launches; algorithm and pass are "" for kernels that are not gradtile's attention.
struct KernelRole {
    std::string algorithm, pass;
};
KernelRole role_of_kernel(std::string_view kernel);

}  // namespace gradtile::cli
