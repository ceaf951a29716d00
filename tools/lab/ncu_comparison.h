#pragma once
/// `gradtile lab --ncu`: compares the bytes that Nsight Compute measured for gradtile's attention kernels
/// with the lab's counts for the same algorithms.
#include <gradtile/tools/lab/lab.h>
#include <gradtile/tools/lab/ncu_csv.h>

namespace gradtile::cli {

/// Prints a table, or one JSON object. `heads` is batch x heads of the measured call. The lab's count for one
/// head is multiplied by `heads`.
void print_ncu_comparison(const std::vector<KernelTraffic>& kernels, const attention::lab::Setup& setup,
                          std::int64_t heads, bool json);

}  // namespace gradtile::cli
