#pragma once
/// A constant host tensor, for example a table, with a copy on each device that needs one.
#include <memory>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// Copies of a DeviceCopies share the tensors.
class DeviceCopies {
  public:
    /// `values` is contiguous float64 on the CPU.
    explicit DeviceCopies(Tensor values);

    const Tensor& original() const;
    /// Returns the values in float32 or float64 on ctx's device. The first call for a GPU copies them to
    /// memory from the GPU's system allocator, and waits for the copy. In a dry run the result's elements
    /// cannot be read, and the result does not count in the memory plan.
    Tensor on_device(const Context& ctx, DType dtype) const;

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
};

}  // namespace gradtile
