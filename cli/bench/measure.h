#pragma once
/// How long work takes, and what the machine reaches at best.
#include <functional>
#include <string>

#include <gradtile/core/tensor.h>

namespace gradtile::cli {

enum class Clock {
    device,         ///< a GPU's own, by events; on the CPU the wall's
    wall,           ///< with the wait for the device: what somebody waits for
    calling_thread  ///< time on a core of the calling thread: for one thread on a busy machine
};

struct Sampling {
    std::int64_t runs = 9;  ///< samples, of which the median counts
    Clock clock = Clock::device;
    double shortest_ms = 1.0;  ///< of a sample: shorter work is repeated within it, at most 100 times
};

/// Milliseconds `work` takes once it has run twice (the first run chooses algorithms): the median of samples.
double median_milliseconds(const Context& ctx, const Sampling& sampling, const std::function<void()>& work);
/// Milliseconds of one call.
double milliseconds(const Context& ctx, Clock clock, const std::function<void()>& work);

/// Floating-point operations a second of a large square product of `dtype`.
struct ProductCeiling {
    std::int64_t size;  ///< rows and columns
    double ms;
    double flops_per_s() const {
        return 2e3 * static_cast<double>(size) * static_cast<double>(size * size) / ms;
    }
    std::string name() const;
};
ProductCeiling measure_product_ceiling(const Context& ctx, DType dtype, const Sampling& sampling);

/// Normal numbers for large tensors: what a GPU draws, and so its clock, depends on the data. They repeat
/// after a million, so that the host need not draw hundreds of millions.
class Numbers {
  public:
    explicit Numbers(const Context& ctx);
    Tensor operator()(const Context& ctx, const Shape& shape, DType dtype) const;
    void fill(const Context& ctx, const Tensor& x) const;  ///< x contiguous

  private:
    Tensor pool_;
};

/// ctx with an Arena in which `work` just fits, as a dry run of it tells: what is timed allocates nothing
/// from the system. Throws Error "WHAT needs .." when the device has not as much.
Context with_memory_for(const Context& ctx, const std::string& what,
                        const std::function<void(const Context& dry)>& work);

}  // namespace gradtile::cli
