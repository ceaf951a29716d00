#pragma once
/// Times work on a device, and measures the device's peak rate for matrix products.
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/tensor.h>

namespace gradtile::cli {

enum class Clock {
    device,         ///< time on a GPU, measured by events; on the CPU equal to `wall`
    wall,           ///< elapsed time, including the wait for the device
    calling_thread  ///< the calling thread's CPU time, for one thread on a busy machine
};

struct Sampling {
    std::int64_t runs = 9;  ///< sample count; the median sample is the result
    Clock clock = Clock::device;
    double min_sample_ms = 1.0;  ///< shorter work is repeated within a sample, at most 100 times
};

/// Returns the middle value, or the larger middle value if their number is even.
double median(std::vector<double> values);

/// Median milliseconds for `work`, after two warm-up runs (the first chooses algorithms).
double median_milliseconds(const Context& ctx, const Sampling& sampling, const std::function<void()>& work);
/// Median milliseconds for each entry in `works`. Their samples alternate, so that a change in the GPU's
/// clock rate affects all entries.
std::vector<double> interleaved_milliseconds(const Context& ctx, const Sampling& sampling,
                                             const std::vector<std::function<void()>>& works);
/// Waits half a second on a GPU. After heavy work its clock stays low for as long, so that without a pause a
/// measurement would depend on the one before it.
void rest(const Context& ctx);
/// Milliseconds for one call.
double milliseconds(const Context& ctx, Clock clock, const std::function<void()>& work);

/// Milliseconds for call(i) on a GPU, in CUDA graphs, so that launches by the host take no part. A
/// graph replays call(0) to call(calls - 1) twice, and the second replay is timed; the median of seven.
double graph_milliseconds(const Context& ctx, std::int64_t calls,
                          const std::function<void(std::int64_t i)>& call);

/// Floating-point operations per second in a large square `dtype` product.
struct ProductCeiling {
    std::int64_t size;  ///< rows and columns
    double ms;
    double flops_per_s() const {
        return 2e3 * static_cast<double>(size) * static_cast<double>(size * size) / ms;
    }
    std::string name() const;
};
ProductCeiling measure_product_ceiling(const Context& ctx, DType dtype, const Sampling& sampling);

/// Bytes per second when all threads of a CPU context read `bytes` bytes and do nothing else.
double measure_read_rate(const Context& ctx, std::int64_t bytes, const Sampling& sampling);

/// Bytes per second that a GPU reads and writes together in a large copy within its memory.
double measure_copy_rate(const Context& ctx);

/// Normally distributed numbers for large tensors. Zeros would give wrong times, because a GPU's power draw,
/// and so its clock, depends on the data. The numbers repeat after a million, because generating more on the
/// host is slow.
class RandomNumbers {
  public:
    explicit RandomNumbers(const Context& ctx);
    Tensor operator()(const Context& ctx, const Shape& shape, DType dtype) const;
    void fill(const Context& ctx, const Tensor& x) const;  ///< x must be contiguous

  private:
    Tensor pool_;
};

/// Returns ctx with an Arena as large as a dry run of `work` needs, so that timed work allocates nothing from
/// the system. Throws Error "WHAT: needs .." when the device has less memory.
Context with_arena_for(const Context& ctx, const std::string& what,
                       const std::function<void(const Context& dry)>& work);

}  // namespace gradtile::cli
