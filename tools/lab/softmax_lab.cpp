// The lab's softmaxes.
#include <chrono>
#include <functional>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/lab/internal/slow_memory.h>
#include <gradtile/tools/lab/internal/softmax.h>
#include <gradtile/tools/lab/lab.h>

namespace gradtile::attention::lab {
namespace {

/// Softmax of one row in float64.
struct Expected {
    double sum = 0;  ///< sum of e^(x - maximum)
    std::vector<double> y;

    explicit Expected(const std::vector<float>& x) {
        const double maximum = *std::max_element(x.begin(), x.end());
        for (const float e : x) sum += y.emplace_back(std::exp(static_cast<double>(e) - maximum));
        for (double& e : y) e /= sum;
    }
    double error_of(const std::vector<float>& result) const {
        double largest = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
            largest = std::max(largest, std::abs(static_cast<double>(result[i]) - y[i]) / y[i]);
        return largest;
    }
};

}  // namespace

std::vector<SoftmaxMeasurement> measure_softmax(const Setup& setup) {
    const std::int64_t n = setup.length;
    check(n >= 1 && setup.fast_memory >= 64, "lab: a row of ", n, " elements and a fast memory of ",
          setup.fast_memory, " bytes; expected at least 1 and 64");
    const Context ctx(Device::cpu(), 1);
    const Tensor numbers = randn(ctx, {n}, DType::f32, Seed{5});
    SlowMemory slow;
    SlowTensor<float> x(slow, 1, n), y(slow, 1, n);
    x.assign(numbers.data<float>());
    const Expected expected(x.elements());

    const auto fast_bytes = static_cast<std::size_t>(setup.fast_memory);
    std::vector<std::byte> fast_elements(fast_bytes);
    // The lab models a row that does not fit the fast memory, so a block takes at most half the fast memory.
    const std::int64_t capacity = setup.fast_memory / static_cast<std::int64_t>(sizeof(float));
    const std::int64_t block = std::max<std::int64_t>(1, std::min(capacity / 2, n));
    std::vector<SoftmaxMeasurement> results;
    const auto measure = [&](const char* name, int accesses, const std::function<double(FastMemory&)>& work) {
        FastMemory fast(fast_elements.data(), fast_bytes);
        const auto begin = std::chrono::steady_clock::now();
        const double error_of_sum = work(fast);
        const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
        results.push_back(
            {.name = name,
             .loads = fast.traffic().loads,
             .stores = fast.traffic().stores,
             .slow_bytes = fast.traffic().bytes,
             .formula_bytes = static_cast<double>(sizeof(float)) * accesses * static_cast<double>(n),
             .ms = elapsed.count(),
             .error = fast.traffic().stores > 0 ? expected.error_of(y.elements()) : error_of_sum});
    };
    const SlowMatrix<const float> in = x.matrix();
    const SlowMatrix<float> out = y.matrix();
    const auto full_softmax = [&](auto&& softmax) {
        return [&, softmax](FastMemory& fast) {
            softmax(in, out, block, fast);
            return 0.0;
        };
    };
    measure("naive", 2 + 1, full_softmax(naive_softmax));
    measure("safe", 3 + 1, full_softmax(safe_softmax));
    measure("online", 2 + 1, full_softmax(online_softmax));
    measure("online_statistics", 1 + 0, [&](FastMemory& fast) {
        const RowSum row = online_statistics(in, block, fast);
        return std::abs(static_cast<double>(row.sum) - expected.sum) / expected.sum;
    });
    measure("unfused", 4 + 2, full_softmax(unfused_softmax));
    if (n <= capacity)
        measure("fused", 1 + 1, [&](FastMemory& fast) {
            fused_softmax(in, out, fast);
            return 0.0;
        });
    return results;
}

}  // namespace gradtile::attention::lab
