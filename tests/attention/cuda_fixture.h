#pragma once
/// The fixture for attention tests on the GPU. Without a GPU these tests are skipped.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {

/// How many runs must give equal results. GRADTILE_TEST_ROUNDS overrides the default: more runs to search for
/// races, fewer under slow tools.
inline int rounds(int default_rounds) {
    const char* const text = std::getenv("GRADTILE_TEST_ROUNDS");
    return text ? std::max(1, std::atoi(text)) : default_rounds;
}

/// Whether to use neither an arena nor poisoned memory. compute-sanitizer needs this to detect accesses
/// beyond an allocation and reads from memory that was never written.
inline bool plain_memory() {
    return std::getenv("GRADTILE_TEST_PLAIN_MEMORY") != nullptr;
}

/// Whether a plan's explanation says that the GPU, the build or the environment has no kernels for Hopper.
inline bool lacks_hopper_kernels(const std::string& explanation) {
    const auto says = [&](const char* text) { return explanation.find(text) != std::string::npos; };
    return says("compute capability") || says("no code for sm_90a") ||
           says("GRADTILE_HOPPER_ATTENTION is off");
}

inline constexpr std::int64_t arena_bytes = std::int64_t{1} << 31;

class AttentionCuda : public testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable CUDA device on this machine";
        const Context gpu(Device::cuda(0), 1);
        gpu_.emplace(
            plain_memory() ? gpu : gpu.with_allocator(std::make_shared<Arena>(Device::cuda(0), arena_bytes)));
        poison();
    }
    const Context& gpu() const { return *gpu_; }
    const Context cpu{Device::cpu()};

    /// Fills all arena memory with NaN. No tensor may be allocated at this time.
    void poison() const {
        if (plain_memory()) return;
        fill(gpu(), empty(gpu(), {arena_bytes / 4 - 1024}, DType::f32),
             std::numeric_limits<double>::quiet_NaN());
    }
    Inputs on_gpu(const Inputs& in) const {
        Inputs moved = in;
        const auto move = [&](Tensor& x) {
            if (x.defined()) x = from_host(gpu(), to_host(cpu, x), x.shape(), x.dtype());
        };
        for (Tensor* x : {&moved.q, &moved.k, &moved.v, &moved.d_o}) move(*x);
        for (Tensor* x : moved.option_tensors()) move(*x);
        return moved;
    }
    Result run_on_gpu(const Inputs& in, const Options& options) const {
        poison();
        return run(gpu(), on_gpu(in), options);
    }
    /// Empty if the GPU has too little shared memory for memory_efficient or flash1.
    std::optional<Result> run_if_it_fits(const Inputs& in, const Options& options) const {
        if (!is_tiled(options.algorithm)) return run_on_gpu(in, options);
        try {
            return run_on_gpu(in, options);
        } catch (const Error& error) {
            if (std::string_view(error.what()).find("; choose flash2") == std::string_view::npos) throw;
            return {};
        }
    }

    /// The naive algorithm on the GPU must be as accurate as on the CPU, up to its summation order. Other
    /// algorithms must be within the dtype's bounds. Biases are float32 or, with typed_biases, have q's
    /// dtype.
    void expect_accurate(const Problem& problem, DType dtype, bool deterministic = false,
                         bool typed_biases = false) const {
        SCOPED_TRACE(::testing::Message() << problem << ' ' << dtype);
        // The bound for float64 results is derived from the same problem's float32 error.
        const DType coarse = dtype == DType::f64 ? DType::f32 : dtype;
        Inputs coarse_inputs = random_inputs(cpu, problem, coarse);
        for (Tensor& bias : coarse_inputs.biases)
            if (typed_biases && bias.defined()) bias = cast(cpu, bias, coarse);
        const Inputs in = coarse_inputs.to(cpu, dtype);
        const Result naive = run(cpu, coarse_inputs, problem.options(Algorithm::naive));
        const Reference reference = float64_reference(cpu, problem, in, roundoff_of(dtype, Device::cuda(0)));
        for (const Algorithm algorithm : algorithms) {
            if (deterministic && algorithm == Algorithm::naive) continue;        // naive has no such option
            if (problem.row_ranges.rank() > 0 && is_tiled(algorithm)) continue;  // which refuse row ranges
            SCOPED_TRACE(::testing::Message() << algorithm);
            Options options = problem.options(algorithm);
            options.deterministic = deterministic;
            const std::optional<Result> result = run_if_it_fits(in, options);
            if (!result) continue;
            if (dtype == DType::f64) {
                expect_float64_accuracy(naive, *result, reference);
            } else {
                expect_as_accurate_as(
                    naive, *result, reference,
                    algorithm == Algorithm::naive ? factors_of(DType::f32) : factors_of(dtype));
            }
        }
    }
    /// Options with which two runs have equal dK and dV.
    static Options repeatable_options(const Problem& problem, Algorithm algorithm) {
        Options options = problem.options(algorithm);
        options.deterministic = algorithm == Algorithm::memory_efficient;
        return options;
    }
    void expect_accurate(const std::vector<Problem>& problems, DType dtype) const {
        for (const Problem& problem : problems) expect_accurate(problem, dtype);
    }

  private:
    std::optional<Context> gpu_;
};

class AttentionCudaDtypes : public AttentionCuda, public testing::WithParamInterface<DType> {
  protected:
    void SetUp() override {
        AttentionCuda::SetUp();
        if (IsSkipped() || supports(gpu().device(), GetParam())) return;
        GTEST_SKIP() << "this build has no kernels for " << GetParam();
    }
};

}  // namespace gradtile::attention::test
