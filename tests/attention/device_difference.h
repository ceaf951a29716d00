#pragma once
/// Compares tensors on a GPU without a copy to the host, so that a test can repeat a call many thousand
/// times.
#include <cstdint>
#include <vector>

#include <gradtile/core/context.h>
#include <gradtile/core/tensor.h>

namespace gradtile::attention::test {

struct DeviceDifference {
    std::int64_t different_bits = 0;  ///< elements whose bits differ
    double largest_difference = 0;    ///< largest |a - b|; infinity unless both are finite
    double largest = 0;               ///< largest finite |a|
};

/// Compares each a[n] with b[n], contiguous tensors with equal shape and dtype on the GPU; undefined tensors
/// are equal. Waits for the work that computes the elements.
std::vector<DeviceDifference> device_differences(const Context& ctx, const std::vector<Tensor>& a,
                                                 const std::vector<Tensor>& b);

}  // namespace gradtile::attention::test
