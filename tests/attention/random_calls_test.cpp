// Judges random attention calls: every kernel against float64, with the derived bounds. A call follows from a
// seed. A failure prints the seed and a command that repeats it.
//
//     GRADTILE_TEST_SECONDS=600 attention_test --gtest_filter='*RandomCalls*'      # the long form
//     GRADTILE_TEST_SEED=17 GRADTILE_TEST_ROUNDS=1 attention_test --gtest_filter=..  # one call
#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

#include <support/environment_variable.h>

#include "cuda_fixture.h"
#include "every_kernel.h"
#include "random_calls.h"

namespace gradtile::attention::test {
namespace {

/// A test's seeds, until its call count or its time is used up.
class Seeds {
  public:
    explicit Seeds(int calls)
        : next_(number_in("GRADTILE_TEST_SEED").value_or(1)), seconds_(number_in("GRADTILE_TEST_SECONDS")) {
        calls_ = seconds_ ? std::numeric_limits<std::int64_t>::max() : rounds(calls);
    }
    /// Returns at most `most` seeds; none at the end.
    std::vector<std::uint64_t> take(std::size_t most) {
        std::vector<std::uint64_t> seeds;
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
        if (seconds_ && elapsed.count() >= static_cast<double>(*seconds_)) return seeds;
        while (seeds.size() < most && taken_ < calls_) {
            seeds.push_back(next_++);
            ++taken_;
        }
        return seeds;
    }
    std::int64_t taken() const { return taken_; }
    std::uint64_t next() const { return next_; }

  private:
    static std::optional<std::uint64_t> number_in(const char* name) {
        const char* const text = std::getenv(name);
        if (text == nullptr) return {};
        return std::strtoull(text, nullptr, 10);
    }
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    std::uint64_t next_;
    std::optional<std::uint64_t> seconds_;
    std::int64_t calls_, taken_ = 0;
};

/// What a call's results are compared with.
struct Expected {
    RandomCall call;
    RandomInputs in;
    Result naive;  ///< for a float64 call, computed in float32
    Reference reference;
};

Expected expect(std::uint64_t seed, double max_work, const Device& device) {
    const Context cpu(Device::cpu(), 1);
    Expected e{.call = random_call(seed, max_work), .in = {}, .naive = {}, .reference = {}};
    const DType dtype = e.call.dtype, coarse = dtype == DType::f64 ? DType::f32 : dtype;
    const RandomInputs coarse_inputs = inputs_of(cpu, e.call, coarse);
    const Roundoff roundoff = roundoff_of(dtype, device);
    if (e.call.is_packed) {
        e.in.packed = coarse_inputs.packed.to(cpu, dtype);
        e.naive = run_each(cpu, e.call.packed, coarse_inputs.packed, Algorithm::naive);
        e.reference = float64_reference(cpu, e.call.packed, e.in.packed, roundoff);
    } else {
        e.in.dense = dtype == coarse ? coarse_inputs.dense : coarse_inputs.dense.to(cpu, dtype);
        e.naive = accuracy::run(cpu, coarse_inputs.dense, e.call.problem.options(Algorithm::naive));
        e.reference = float64_reference(cpu, e.call.problem, e.in.dense, roundoff);
    }
    return e;
}

/// Computes the expected results for several calls, one thread per call.
std::vector<Expected> expect(const std::vector<std::uint64_t>& seeds, double max_work, const Device& device) {
    std::vector<Expected> all(seeds.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < seeds.size(); ++i)
        threads.emplace_back([&, i] { all[i] = expect(seeds[i], max_work, device); });
    for (std::thread& thread : threads) thread.join();
    return all;
}

/// Averages over so many errors are near their expected values.
bool has_averages(const Result& result) {
    constexpr std::size_t enough = 4096;
    return std::min({result.o.size(), result.d_q.size(), result.d_k.size(), result.d_v.size()}) >= enough;
}

void judge(const Context& ctx, const Expected& e, Algorithm algorithm) {
    SCOPED_TRACE(::testing::Message() << algorithm);
    const Result result = run(ctx, e.call, e.in, algorithm, e.reference.value);
    if (e.call.dtype == DType::f64) return expect_float64_accuracy(e.naive, result, e.reference);
    if (algorithm != Algorithm::naive) {
        expect_as_accurate_as(e.naive, result, e.reference, factors_of(e.call.dtype));
    } else {
        expect_as_accurate_as(e.naive, result, e.reference, factors_of(DType::f32));
    }
    if (algorithm != Algorithm::flash || !has_averages(result)) return;
    for (const Finding& finding :
         root_mean_square_errors(e.naive, result, e.reference, average_factors_of(e.call.dtype))) {
        const bool has_many_elements = !finding.what.starts_with("LSE") &&
                                       !finding.what.starts_with("dBias") &&
                                       !finding.what.starts_with("dSink");
        EXPECT_TRUE(finding.ok() || !has_many_elements) << finding;
    }
}

std::string how_to_repeat(const RandomCall& call) {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    return concat("to repeat: GRADTILE_TEST_SEED=", call.seed,
                  " GRADTILE_TEST_ROUNDS=1 attention_test --gtest_filter=", test->test_suite_name(), '.',
                  test->name());
}

/// Calls body(expected) for every seed. Ends after a few calls that failed.
template <class Make, class Body>
void for_each_call(int calls, Make&& make, Body&& body) {
    Seeds seeds(calls);
    const std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
    int failed = 0;
    constexpr int enough_failures = 10;
    for (auto some = seeds.take(threads); !some.empty() && failed < enough_failures;
         some = seeds.take(threads))
        for (const auto& e : make(some)) {
            SCOPED_TRACE(::testing::Message() << e.call << "; " << how_to_repeat(e.call));
            // A crash or a hang must leave the seed behind, too.
            if (std::getenv("GRADTILE_TEST_VERBOSE")) {
                std::cout << e.call.seed << ": " << e.call << std::endl;
            }
            const int before =
                ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
            try {
                body(e);
            } catch (const std::exception& error) {
                ADD_FAILURE() << error.what();  // with the trace, which says how to repeat the call
            }
            if (::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count() >
                before)
                ++failed;
        }
    std::printf("%lld calls, seeds up to %llu, %d failed\n", static_cast<long long>(seeds.taken()),
                static_cast<unsigned long long>(seeds.next() - 1), failed);
}

TEST(AttentionRandomCalls, AreAsAccurateAsNaive) {
    const Context cpu(Device::cpu());
    const int calls = gradtile::test::sanitized ? 5 : 60;
    for_each_call(
        calls, [](const auto& seeds) { return expect(seeds, 5e6, Device::cpu()); },
        [&](const Expected& e) {
            const auto judge_flash = [&] { judge(cpu, e, Algorithm::flash); };
            if (e.call.problem.queries <= 8) {
                for_every_kernel_of_few_queries(e.call.dtype, judge_flash);
            } else {
                for_every_kernel(e.call.dtype, judge_flash);
            }
            if (e.call.is_packed || e.call.problem.row_ranges.rank() > 0) return;
            for (const Algorithm algorithm : tiled_algorithms) judge(cpu, e, algorithm);
        });
}

/// A call that is too large for a reference pair by pair, and its inputs.
struct LargeCall {
    RandomCall call;
    RandomInputs in;
};
std::vector<LargeCall> large_calls(const std::vector<std::uint64_t>& seeds, std::int64_t max_scores) {
    std::vector<LargeCall> all(seeds.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < seeds.size(); ++i)
        threads.emplace_back([&, i] {
            all[i].call = large_random_call(seeds[i], max_scores);
            all[i].in = inputs_of(Context(Device::cpu(), 1), all[i].call, all[i].call.dtype);
        });
    for (std::thread& thread : threads) thread.join();
    return all;
}

double root_mean_square_difference(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> differences(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) differences[i] = a[i] == b[i] ? 0 : a[i] - b[i];
    return root_mean_square(differences);
}

/// Runs the naive algorithm in `dtype`, with inputs in the call's dtype.
Result naive_result(const Context& ctx, const LargeCall& large, DType dtype) {
    RandomInputs in = large.in;
    in.dense = in.dense.to(Context(Device::cpu(), 1), dtype);
    RandomCall call = large.call;
    call.deterministic = false;  // the naive form has no such option
    call.dtype = dtype;
    return run(ctx, call, in, Algorithm::naive, {});
}

/// Bounds for the errors in dQ and dK that rounding the stored O causes. The naive form computes D from P and
/// dP and lacks this error, which exceeds its other errors in rows that see few keys. As in Reference::floor,
/// D has the error e = 3 u |dO * O|, with the norm over a row's columns. dQ = scale dS K then has the error
/// scale e P K, and dK has at most the error scale e P |q|, summed over the rows. Another attention call
/// computes these two bounds as its O and dV.
struct ErrorsFromO {
    std::vector<double> d_q, d_k;
};
ErrorsFromO errors_from_o(const Context& ctx, const LargeCall& large, const Result& exact) {
    const Context cpu(Device::cpu(), 1);
    const Problem& p = large.call.problem;
    const double u = roundoff_of(large.call.dtype, ctx.device()).storage,
                 scale = std::abs(p.scale_or_default());
    const std::vector<double> d_o = to_host(cpu, large.in.dense.d_o);
    std::vector<double> weighted = to_host(cpu, large.in.dense.q), e_of_rows;
    const auto columns = static_cast<std::size_t>(p.d_qk), v_columns = static_cast<std::size_t>(p.d_v);
    for (std::size_t row = 0; row < d_o.size() / v_columns; ++row) {
        double squares = 0;
        for (std::size_t i = row * v_columns; i < (row + 1) * v_columns; ++i)
            squares += (d_o[i] * exact.o[i]) * (d_o[i] * exact.o[i]);
        e_of_rows.push_back(3 * u * std::sqrt(squares));
        for (std::size_t i = row * columns; i < (row + 1) * columns; ++i)
            weighted[i] = scale * e_of_rows.back() * std::abs(weighted[i]);
    }
    LargeCall other = large;
    Inputs& in = other.in.dense;
    in.v = in.k;
    in.d_o = from_host(cpu, weighted, in.q.shape(), DType::f64);
    in.d_lse = {};
    Result result = naive_result(ctx, other, DType::f64);
    for (std::size_t i = 0; i < result.o.size(); ++i)
        result.o[i] = scale * e_of_rows[i / columns] * std::abs(result.o[i]);
    return {std::move(result.o), std::move(result.d_v)};
}

/// Expects each error to be at most the sum of three terms: the naive form's largest error (naive rounds at
/// more steps), the rounding of the stored result, and errors_from_o().
void expect_no_worse_than(const Result& naive, const Result& result, const Result& exact,
                          const ErrorsFromO& from_o, DType dtype) {
    const double u = roundoff_of(dtype, Device::cpu()).storage;
    const auto expect = [&](const char* name, std::vector<double> Result::*part,
                            const std::vector<double>& more) {
        SCOPED_TRACE(name);
        const std::vector<double>&expected = exact.*part, &values = result.*part;
        const double naive_error = largest_difference(naive.*part, expected);
        std::size_t worst = 0;
        double worst_excess = -1;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double error = values[i] == expected[i] ? 0 : std::abs(values[i] - expected[i]),
                         floor = u * std::abs(expected[i]) + (more.empty() ? 0 : more[i]),
                         excess = std::isnan(error) ? infinity : error - floor;
            if (excess > worst_excess) worst = i, worst_excess = excess;
        }
        if (!values.empty()) {
            EXPECT_LE(worst_excess, naive_error)
                << "element " << worst << ": " << values[worst] << ", float64 " << expected[worst];
        }
        EXPECT_LE(root_mean_square_difference(values, expected),
                  root_mean_square_difference(naive.*part, expected) + root_mean_square(more));
    };
    expect("O", &Result::o, {});
    expect("LSE", &Result::lse, {});
    expect("dQ", &Result::d_q, from_o.d_q);
    expect("dK", &Result::d_k, from_o.d_k);
    expect("dV", &Result::d_v, {});
}

TEST(AttentionRandomCalls, LargeOnesAreNoWorseThanNaive) {
    const Context cpu(Device::cpu());
    for_each_call(
        4, [](const auto& seeds) { return large_calls(seeds, 1 << 18); },
        [&](const LargeCall& large) {
            const DType dtype = large.call.dtype;
            const Result exact = naive_result(cpu, large, DType::f64),
                         naive = naive_result(cpu, large, dtype);
            const ErrorsFromO from_o = errors_from_o(cpu, large, exact);
            for_every_kernel(dtype, [&] {
                expect_no_worse_than(naive, run(cpu, large.call, large.in, Algorithm::flash, {}), exact,
                                     from_o, dtype);
            });
        });
}

class AttentionCudaRandomCalls : public AttentionCuda {
  protected:
    /// Calls body() for the kernels that the operator chooses. If these may be Hopper kernels, also calls
    /// body() for the kernels that run on all GPUs.
    template <class Body>
    void for_every_gpu_kernel(const RandomCall& call, Body&& body) const {
        {
            SCOPED_TRACE("chosen kernels");
            poison();
            body();
        }
        if (!is_16_bit(call.dtype)) return;
        SCOPED_TRACE("kernels of all GPUs");
        const gradtile::test::EnvironmentVariable off("GRADTILE_HOPPER_ATTENTION", "off");
        poison();
        body();
    }
};

TEST_F(AttentionCudaRandomCalls, AreAsAccurateAsNaive) {
    for_each_call(
        60, [&](const auto& seeds) { return expect(seeds, 3e7, gpu().device()); },
        [&](const Expected& e) {
            if (!supports(gpu().device(), e.call.dtype)) return;
            for_every_gpu_kernel(e.call, [&] { judge(gpu(), e, Algorithm::flash); });
            if (e.call.seed % 4 != 0) return;  // flash has most kernels
            judge(gpu(), e, Algorithm::naive);
            const bool may_be_refused =
                e.call.dtype == DType::f64 && std::max(e.call.problem.d_qk, e.call.problem.d_v) > 128;
            if (e.call.is_packed || may_be_refused || e.call.problem.row_ranges.rank() > 0) return;
            for (const Algorithm algorithm : tiled_algorithms) judge(gpu(), e, algorithm);
        });
}

TEST_F(AttentionCudaRandomCalls, LargeOnesAreNoWorseThanNaive) {
    for_each_call(
        8, [](const auto& seeds) { return large_calls(seeds, 1 << 22); },
        [&](const LargeCall& large) {
            if (!supports(gpu().device(), large.call.dtype)) return;
            const DType dtype = large.call.dtype;
            poison();
            const Result exact = naive_result(gpu(), large, DType::f64);
            const Result naive = naive_result(gpu(), large, dtype);
            const ErrorsFromO from_o = errors_from_o(gpu(), large, exact);
            for_every_gpu_kernel(large.call, [&] {
                expect_no_worse_than(naive, run(gpu(), large.call, large.in, Algorithm::flash, {}), exact,
                                     from_o, dtype);
            });
        });
}

}  // namespace
}  // namespace gradtile::attention::test
