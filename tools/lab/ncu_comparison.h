#pragma once
/// `gradtile lab --ncu`: compares the bytes that Nsight Compute measured for gradtile's attention kernels
/// with the lab's counts for the same algorithms.
#include <cstdint>
#include <filesystem>

#include <gradtile/tools/lab/lab.h>

namespace gradtile::cli {

/// Reads kernels' memory traffic from a CSV file that
///   ncu --csv --page raw --metrics dram__bytes_read.sum,dram__bytes_write.sum,lts__t_bytes.sum PROGRAM
/// prints; --page details, one row for each metric, is accepted, too. Prints a table, or one JSON object.
/// `heads` is batch x heads of the measured call. The lab's count for one head is multiplied by `heads`.
/// Throws Error with the file's name, and the line number if the text is not such a table.
void print_ncu_comparison(const std::filesystem::path& csv, const attention::lab::Setup& setup,
                          std::int64_t heads, bool json);

}  // namespace gradtile::cli
