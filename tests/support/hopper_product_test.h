#pragma once
/// Base class for tests of gradtile's own Hopper products.
#include <cmath>
#include <vector>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/hopper_product.h>

#include <support/cuda_test.h>

namespace gradtile::test {

class HopperProductTest : public CudaTest {
  protected:
    /// op(a) op(b), or the same product with the elements' magnitudes, in float64 on the CPU.
    std::vector<double> product(const cuda::ProductOperands& operands, bool magnitudes) const {
        const Tensor c = empty(cpu, operands.to[0].shape(), DType::f64);
        gemm(cpu, c, exact(operands.a, magnitudes), exact(operands.b[0], magnitudes),
             {.trans_a = operands.trans_a, .trans_b = operands.trans_b});
        return to_host(cpu, c);
    }

  private:
    Tensor exact(const Tensor& x, bool magnitudes) const {
        std::vector<double> values = to_host(gpu(), x);
        if (magnitudes)
            for (double& value : values) value = std::abs(value);
        return from_host(cpu, values, x.shape(), DType::f64);
    }
};

}  // namespace gradtile::test
