#pragma once
/// The fixture for tests that run on every device and in every dtype. Without a GPU the GPU tests are
/// skipped.
#include <string>

#include <support/environment_variable.h>
#include <support/error_message.h>

#include "every_kernel.h"
#include "reference.h"

namespace gradtile::attention::test {

struct Place {
    bool on_gpu;
    DType dtype;
};
inline std::vector<Place> devices_and_dtypes() {
    std::vector<Place> list;
    for (const bool on_gpu : {false, true})
        for (const DType dtype : floating_dtypes) list.push_back({on_gpu, dtype});
    return list;
}
/// For INSTANTIATE_TEST_SUITE_P: "Cuda_float32".
inline std::string name_of_place(const testing::TestParamInfo<Place>& info) {
    return concat(info.param.on_gpu ? "Cuda" : "Cpu", '_', name_of(info.param.dtype));
}

class EveryDevice : public testing::TestWithParam<Place> {
  protected:
    void SetUp() override {
        if (!GetParam().on_gpu) return;
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable CUDA device on this machine";
        gpu_.emplace(Device::cuda(0), 1);
        if (!supports(gpu_->device(), dtype())) GTEST_SKIP() << "this build has no kernels for " << dtype();
    }
    DType dtype() const { return GetParam().dtype; }
    const Context& ctx() const { return gpu_ ? *gpu_ : cpu; }

    /// Calls body(algorithm) for the naive form, and for flash with each of the device's kernel sets.
    template <class Body>
    void for_every_packed_implementation(Body&& body) const {
        if (!gpu_) return for_every_packed_algorithm(dtype(), body);
        for (const Algorithm algorithm : packed_algorithms) {
            SCOPED_TRACE(::testing::Message() << algorithm);
            body(algorithm);
        }
        if (!is_16_bit(dtype())) return;
        SCOPED_TRACE("kernels of all GPUs");
        const gradtile::test::EnvironmentVariable off("GRADTILE_HOPPER_ATTENTION", "off");
        body(Algorithm::flash);
    }
    /// Calls body(algorithm) for all algorithms, and for flash with each of the device's kernel sets. A GPU
    /// with little shared memory refuses memory_efficient and flash1 for wide heads in float64.
    template <class Body>
    void for_every_implementation(std::int64_t head_dim, Body&& body) const {
        for_every_packed_implementation(body);
        if (gpu_ && dtype() == DType::f64 && head_dim > 128) return;
        for (const Algorithm algorithm : tiled_algorithms) {
            SCOPED_TRACE(::testing::Message() << dtype() << ' ' << algorithm);
            body(algorithm);
        }
    }
    /// Copies all tensors to the device.
    Inputs on_device(const Inputs& in) const {
        Inputs moved = in;
        const auto move = [&](Tensor& x) {
            if (gpu_ && x.defined()) x = from_host(*gpu_, to_host(cpu, x), x.shape(), x.dtype());
        };
        for (Tensor* x : {&moved.q, &moved.k, &moved.v, &moved.d_o}) move(*x);
        for (Tensor* x : moved.option_tensors()) move(*x);
        return moved;
    }

    const Context cpu{Device::cpu(), 2};

  private:
    std::optional<Context> gpu_;
};

}  // namespace gradtile::attention::test
