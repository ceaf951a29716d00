#pragma once
/// INTERNAL. The log-sum-exp of a row of scores of any size.
#include <cmath>

#include <gradtile/attention/score_rule.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cuda {

/// A log-sum-exp as a float32 and what its rounding lost.
struct ExactLse {
    float lse, remainder;

    /// Returns reference + ln(sum).
    GRADTILE_HOST_DEVICE static ExactLse of(float reference, float sum) {
        if (sum == 0) return {-INFINITY, 0};
        const float log_sum = logf(sum), lse = reference + log_sum;
        return {lse, reference - lse + log_sum};
    }
};

/// A flag in device memory: whether a backward pass has rows with a large LSE (see device::large_lse). Its
/// kernels then compute P in the exact form. Only biases make scores large.
class LargeLse {
  public:
    LargeLse(const Context& ctx, const ScoreOptions& scores)
        : flag_(scores.has_biases() ? empty(ctx, {1}, DType::i32) : Tensor()) {}
    void clear(const Context& ctx) const {
        if (flag_.defined()) fill(ctx, flag_, 0);
    }
    int* flag() const { return flag_.defined() ? flag_.data<std::int32_t>() : nullptr; }

  private:
    Tensor flag_;
};

}  // namespace gradtile::attention::cuda
