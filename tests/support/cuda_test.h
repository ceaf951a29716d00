#pragma once
/// Base class for GPU tests; without a GPU they are skipped.
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile::test {

class CudaTest : public testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable CUDA device on this machine";
        device_.emplace(Device::cuda(0), 1);
    }
    const Context& gpu() const { return *device_; }
    const Context cpu{Device::cpu(), 2};

    /// A tensor filled with NaN, so that elements that an operator does not write are detected.
    Tensor poisoned(const Shape& shape, DType type) const {
        const Tensor x = empty(gpu(), shape, type);
        fill(gpu(), x, std::numeric_limits<double>::quiet_NaN());
        return x;
    }

  private:
    std::optional<Context> device_;
};

}  // namespace gradtile::test
