#pragma once
/// Tests of the CUDA side against the CPU's: skipped, saying so, where there is no GPU.
#include <optional>

#include <gtest/gtest.h>

#include <gradtile/core/context.h>

namespace gradtile::test {

class CudaTest : public testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable CUDA device on this machine";
        device_.emplace(Device::cuda(0), 1);
    }
    const Context& gpu() const { return *device_; }
    const Context cpu{Device::cpu(), 2};

  private:
    std::optional<Context> device_;
};

}  // namespace gradtile::test
