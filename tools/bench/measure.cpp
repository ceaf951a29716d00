#include <gradtile/tools/bench/measure.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::cli {
namespace {

double now_milliseconds(Clock clock) {
    timespec now{};
    clock_gettime(clock == Clock::calling_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double milliseconds(const Context& ctx, Clock clock, const std::function<void()>& work) {
    if (ctx.device().is_cuda() && clock == Clock::device) {
        const cuda::Event start(ctx.device()), end(ctx.device());
        start.record(ctx.stream());
        work();
        end.record(ctx.stream());
        return end.milliseconds_since(start);
    }
    const double start = now_milliseconds(clock);
    work();
    if (ctx.device().is_cuda()) cuda::synchronize(ctx.device(), ctx.stream());
    return now_milliseconds(clock) - start;
}

void rest(const Context& ctx) {
    if (ctx.device().is_cuda()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

std::vector<double> interleaved_milliseconds(const Context& ctx, const Sampling& sampling,
                                             const std::vector<std::function<void()>>& works) {
    std::vector<int> repeats;
    for (const auto& work : works) {
        (void)milliseconds(ctx, sampling.clock, work);
        const double once = std::max(milliseconds(ctx, sampling.clock, work), 1e-6);
        repeats.push_back(static_cast<int>(std::clamp(sampling.min_sample_ms / once, 1.0, 100.0)));
    }
    std::vector<std::vector<double>> samples(works.size());
    for (std::int64_t run = 0; run < sampling.runs; ++run)
        for (std::size_t i = 0; i < works.size(); ++i)
            samples[i].push_back(milliseconds(ctx, sampling.clock,
                                              [&] {
                                                  for (int n = 0; n < repeats[i]; ++n) works[i]();
                                              }) /
                                 repeats[i]);
    std::vector<double> medians;
    for (const std::vector<double>& work_samples : samples)
        medians.push_back(std::max(median(work_samples), 1e-6));
    return medians;
}

double median_milliseconds(const Context& ctx, const Sampling& sampling, const std::function<void()>& work) {
    return interleaved_milliseconds(ctx, sampling, {work})[0];
}

std::string ProductCeiling::name() const {
    return concat("ceiling: ", size, "^3");
}

double graph_milliseconds(const Context& ctx, std::int64_t calls,
                          const std::function<void(std::int64_t i)>& call) {
    const auto all = [&] {
        for (std::int64_t i = 0; i < calls; ++i) call(i);
    };
    all();
    StepGraph graph;
    graph.capture(ctx, all);
    std::vector<double> times;
    for (int run = 0; run < 7; ++run) {
        graph.replay(ctx);
        times.push_back(milliseconds(ctx, Clock::device, [&] { graph.replay(ctx); }) /
                        static_cast<double>(calls));
    }
    return median(times);
}

ProductCeiling measure_product_ceiling(const Context& ctx, DType dtype, const Sampling& sampling) {
    // The matrices are larger than every cache. The ceiling is not a strict bound: on an H200 (709 TFLOP/s
    // here) some GPT-2 products reach 1.1 times it.
    const std::int64_t size = ctx.device().is_cuda() ? 8192 : 2048;
    const RandomNumbers numbers(ctx);
    const Tensor a = numbers(ctx, {size, size}, dtype), b = numbers(ctx, {size, size}, dtype);
    const Tensor c = empty(ctx, {size, size}, dtype);
    const auto product = [&] { gemm(ctx, c, a, b, {.trans_b = true}); };
    if (ctx.is_planning()) return {size, 1.0};
    return {size, median_milliseconds(ctx, sampling, product)};
}

double measure_read_rate(const Context& ctx, std::int64_t bytes, const Sampling& sampling) {
    // Uses GCC's vector types, because this file is compiled without automatic vectorisation.
    using Words = std::uint64_t __attribute__((vector_size(64)));
    constexpr std::int64_t words = 4, block = 256 * words;  // words per step; words per block, 64 KiB
    const std::int64_t blocks = std::max<std::int64_t>(1, bytes / (block * 64));
    const Tensor memory = zeros(ctx, {blocks * block * 16}, DType::f32);
    if (ctx.is_planning()) return 1.0;
    const auto* const data = reinterpret_cast<const Words*>(memory.data<float>());
    std::atomic<std::uint64_t> total{0};
    const auto read = [&] {
        parallel_for(ctx, blocks, [&](std::int64_t b) {
            Words sums[words] = {};
            for (const Words* position = data + b * block; position < data + (b + 1) * block;
                 position += words)
                for (std::int64_t i = 0; i < words; ++i) sums[i] += position[i];
            total += (sums[0] + sums[1] + sums[2] + sums[3])[0];
        });
    };
    const double ms = median_milliseconds(ctx, sampling, read);
    check(total == 0, "measure_read_rate: memory of zeros adds up to ", total.load());
    return static_cast<double>(blocks * block * 64) / ms * 1e3;
}

double measure_copy_rate(const Context& ctx) {
    const Shape shape{std::int64_t{1} << 28};  // 512 MiB of 16-bit numbers: larger than any cache
    const Tensor from = zeros(ctx, shape, DType::bf16), to = empty_like(ctx, from);
    const double ms = median_milliseconds(ctx, {}, [&] {
        cuda::copy_bytes(to.raw_data(), from.raw_data(), from.bytes(), ctx.device(), ctx.stream());
    });
    return 2e3 * static_cast<double>(from.bytes()) / ms;
}

RandomNumbers::RandomNumbers(const Context& ctx)
    : pool_(randn(ctx, {std::int64_t{1} << 20}, DType::f32, Seed{1})) {}

Tensor RandomNumbers::operator()(const Context& ctx, const Shape& shape, DType dtype) const {
    Tensor x = empty(ctx, shape, dtype);
    fill(ctx, x);
    return x;
}

void RandomNumbers::fill(const Context& ctx, const Tensor& x) const {
    if (ctx.is_planning()) return;
    const Tensor flat = x.reshape({x.elements()});
    for (std::int64_t begin = 0; begin < flat.size(0); begin += pool_.size(0)) {
        const std::int64_t length = std::min(pool_.size(0), flat.size(0) - begin);
        copy(ctx, flat.slice(0, begin, length), pool_.slice(0, 0, length));
    }
}

Context with_arena_for(const Context& ctx, const std::string& what,
                       const std::function<void(const Context& dry)>& work) {
    const auto counting = Arena::for_planning(ctx.device());
    work(ctx.plan(counting));
    const std::size_t needed = counting->peak_bytes(), available = available_memory(ctx.device());
    check(needed <= available, what, ": needs ", (needed >> 20) + 1, " MiB; expected at most the ",
          available >> 20, " MiB available (a smaller --batch needs less)");
    return ctx.with_allocator(std::make_shared<Arena>(ctx.device(), needed));
}

}  // namespace gradtile::cli
