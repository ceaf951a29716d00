// Inputs that nothing sees may hold anything, and biases that hide keys may be large finite numbers.
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/attention/attention.h>
#include <gradtile/core/tensor_ops.h>

#include "devices.h"

namespace gradtile::attention::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::array all_algorithms = {Algorithm::flash2, Algorithm::naive, Algorithm::memory_efficient,
                                       Algorithm::flash1};

/// The largest relative error when rounded factors are multiplied and summed: three 16-bit roundings, or
/// float32 sums with some hundred terms and an exponential.
double error_of(DType dtype) {
    return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : dtype == DType::bf16 ? 0x3p-8 : 0x3p-11;
}

using Numbers = std::vector<double>;
std::size_t index(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

struct Sizes {
    std::int64_t batch = 2, queries = 16, keys = 200, heads = 2, key_heads = 2, dim = 64;
};

/// A call's inputs on the CPU, as float64 numbers that the dtype can hold.
struct Call {
    Sizes sizes;
    DType dtype;
    Numbers q, k, v, d_o;
    Options options;
    Numbers bias;
    Shape bias_shape{0};
    DType bias_dtype = DType::f32;

    Call(const Sizes& s, DType type, unsigned seed = 1) : sizes(s), dtype(type) {
        std::mt19937 random(seed);
        // Multiples of 1/16 up to 2 are exact in every dtype.
        std::uniform_int_distribution<int> number(-32, 32);
        const auto fill_with = [&](Numbers& x, std::int64_t n) {
            x.resize(index(n));
            for (double& e : x) e = number(random) / 16.0;
        };
        fill_with(q, s.batch * s.queries * s.heads * s.dim);
        fill_with(k, s.batch * s.keys * s.key_heads * s.dim);
        fill_with(v, s.batch * s.keys * s.key_heads * s.dim);
        fill_with(d_o, s.batch * s.queries * s.heads * s.dim);
    }
    /// Sets one row [H, D] in x [B, S, H, D].
    static void set_row(Numbers& x, std::int64_t rows, std::int64_t batch, std::int64_t row, double value) {
        const std::int64_t batches = 2, width = std::ssize(x) / (rows * batches);
        for (std::int64_t c = 0; c < width; ++c) x[index((batch * rows + row) * width + c)] = value;
    }
};

struct Results {
    Numbers o, lse, d_q, d_k, d_v, d_bias, d_sink;
};

Results run(const Context& ctx, const Call& call, Algorithm algorithm) {
    const std::int64_t batch = call.sizes.batch, queries = call.sizes.queries, keys = call.sizes.keys,
                       heads = call.sizes.heads, key_heads = call.sizes.key_heads, dim = call.sizes.dim;
    Options options = call.options;
    options.algorithm = algorithm;
    if (!call.bias.empty()) options.biases[0] = from_host(ctx, call.bias, call.bias_shape, call.bias_dtype);
    const bool is_packed = options.cumulative_q.defined();
    const auto shape = [&](std::int64_t rows, std::int64_t h) {
        return is_packed ? Shape{batch * rows, h, dim} : Shape{batch, rows, h, dim};
    };
    const Tensor q = from_host(ctx, call.q, shape(queries, heads), call.dtype),
                 k = from_host(ctx, call.k, shape(keys, key_heads), call.dtype),
                 v = from_host(ctx, call.v, shape(keys, key_heads), call.dtype),
                 d_o = from_host(ctx, call.d_o, shape(queries, heads), call.dtype);
    Saved saved;
    const Tensor o = forward(ctx, q, k, v, options, saved);
    const Gradients gradients = backward(ctx, d_o, options, saved);
    Results results{to_host(ctx, o),
                    to_host(ctx, saved.lse),
                    to_host(ctx, gradients.q),
                    to_host(ctx, gradients.k),
                    to_host(ctx, gradients.v),
                    {},
                    {}};
    if (gradients.biases[0].defined()) results.d_bias = to_host(ctx, gradients.biases[0]);
    if (gradients.sink.defined()) results.d_sink = to_host(ctx, gradients.sink);
    return results;
}

/// Expects every element of `x` within `error` times the largest magnitude in `expected`.
void expect_near(const char* name, const Numbers& x, const Numbers& expected, double error) {
    ASSERT_EQ(x.size(), expected.size()) << name;
    double largest = 1e-6;
    for (const double e : expected)
        if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (x[i] == expected[i]) continue;
        ASSERT_LE(std::abs(x[i] - expected[i]), error * largest)
            << name << '[' << i << "] is " << x[i] << ", expected " << expected[i];
    }
}
void expect_near(const Results& x, const Results& expected, double error) {
    expect_near("O", x.o, expected.o, error);
    expect_near("LSE", x.lse, expected.lse, error);
    expect_near("dQ", x.d_q, expected.d_q, error);
    expect_near("dK", x.d_k, expected.d_k, error);
    expect_near("dV", x.d_v, expected.d_v, error);
    const double error_of_sums = std::max(error, 1e-6);  // may be float32
    expect_near("gradient of the bias", x.d_bias, expected.d_bias, error_of_sums);
    expect_near("gradient of the sink", x.d_sink, expected.d_sink, error_of_sums);
}

class HiddenInputs : public EveryDevice {
  protected:
    /// On the CPU one head dim is enough: its kernels have the same tiles for all.
    std::vector<std::int64_t> head_dims(std::initializer_list<std::int64_t> all) const {
        if (ctx().device().is_cpu()) return {64};
        return all;
    }
};
INSTANTIATE_TEST_SUITE_P(Devices, HiddenInputs, testing::ValuesIn(devices_and_dtypes()), name_of_place);

/// With all keys 0 the scores are the biases: a row whose keys all have one bias has P = 1 / n, exactly.
Results with_keys_of_zero(const Call& call) {
    const std::int64_t batch = call.sizes.batch, queries = call.sizes.queries, keys = call.sizes.keys,
                       heads = call.sizes.heads, key_heads = call.sizes.key_heads, dim = call.sizes.dim;
    Results r;
    r.o.resize(call.q.size());
    r.d_q.resize(call.q.size());
    r.d_k.resize(call.k.size());
    r.d_v.resize(call.v.size());
    r.lse.resize(index(batch * heads * queries));
    r.d_bias.resize(call.bias.size());
    const std::int64_t group = heads / key_heads;
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t h = 0; h < heads; ++h)
            for (std::int64_t i = 0; i < queries; ++i) {
                const auto bias_at = [&](std::int64_t j) {
                    const Shape& s = call.bias_shape;
                    return index(((s[0] == 1 ? 0 : b) * s[1] + (s[1] == 1 ? 0 : h)) * s[2] * s[3] +
                                 (s[2] == 1 ? 0 : i) * s[3] + j);
                };
                const auto row_at = [&](std::int64_t c) {
                    return index(((b * queries + i) * heads + h) * dim + c);
                };
                const auto key_at = [&](std::int64_t j, std::int64_t c) {
                    return index(((b * keys + j) * key_heads + h / group) * dim + c);
                };
                double maximum = -infinity, sum = 0;
                for (std::int64_t j = 0; j < keys; ++j) maximum = std::max(maximum, call.bias[bias_at(j)]);
                Numbers p(index(keys));
                for (std::int64_t j = 0; j < keys; ++j)
                    sum += p[index(j)] = std::exp(call.bias[bias_at(j)] - maximum);
                r.lse[index((b * heads + h) * queries + i)] = maximum + std::log(sum);
                double delta = 0;
                Numbers d_p(index(keys));
                for (std::int64_t j = 0; j < keys; ++j) {
                    p[index(j)] /= sum;
                    for (std::int64_t c = 0; c < dim; ++c) {
                        r.o[row_at(c)] += p[index(j)] * call.v[key_at(j, c)];
                        d_p[index(j)] += call.d_o[row_at(c)] * call.v[key_at(j, c)];
                        r.d_v[key_at(j, c)] += p[index(j)] * call.d_o[row_at(c)];
                    }
                    delta += p[index(j)] * d_p[index(j)];
                }
                for (std::int64_t j = 0; j < keys; ++j) {
                    const double d_s = p[index(j)] * (d_p[index(j)] - delta);
                    r.d_bias[bias_at(j)] += d_s;
                    for (std::int64_t c = 0; c < dim; ++c)
                        r.d_k[key_at(j, c)] += scale * d_s * call.q[row_at(c)];
                }
            }
    return r;
}

/// All keys in batch 0, and some keys in batch 1, have a large negative bias.
TEST_P(HiddenInputs, LargeFiniteBiasesHideKeysOfPartsAndOfWholeRows) {
    const DType dtype = this->dtype();
    for (const std::int64_t dim : head_dims({32, 64, 128, 256}))
        for (const std::int64_t queries : {1, 16, 130})
            for (const bool is_matrix : {false, true})
                for (const bool is_typed : {false, true}) {
                    if (dtype == DType::f64 && (dim != 32 || queries != 16) && !ctx().device().is_cpu())
                        continue;
                    if (dim > 64 && queries == 16) continue;
                    Call call({.queries = queries, .dim = dim}, dtype);
                    std::ranges::fill(call.k, 0.0);
                    const std::int64_t batch = call.sizes.batch, keys = call.sizes.keys,
                                       heads = call.sizes.heads;
                    call.bias_shape =
                        is_matrix ? Shape{batch, heads, queries, keys} : Shape{batch, 1, 1, keys};
                    if (is_typed) call.bias_dtype = dtype;
                    const std::int64_t row_count = is_matrix ? heads * queries : 1;
                    for (const double mask : {-1e4, -1e6, -1e9, -1e30, -3.4028234663852886e38}) {
                        if (is_typed && dtype == DType::f16 && mask < -1e4) continue;
                        const double stored =
                            to_host(ctx(), from_host(ctx(), Numbers{mask}, {1}, call.bias_dtype))[0];
                        if (std::isinf(stored)) continue;
                        call.bias.assign(index(batch * row_count * keys), 0);
                        for (std::int64_t r = 0; r < batch * row_count; ++r)
                            for (std::int64_t j = 0; j < keys; ++j)
                                if (r < row_count || j % 3 == 0) call.bias[index(r * keys + j)] = stored;
                        const Results expected = with_keys_of_zero(call);
                        for (const Algorithm algorithm : all_algorithms) {
                            // naive stores the scores in the dtype, whose range hides more keys.
                            const bool fits =
                                !std::isinf(to_host(ctx(), from_host(ctx(), Numbers{mask}, {1}, dtype))[0]);
                            if (algorithm == Algorithm::naive && (dim > 64 || !fits)) continue;
                            SCOPED_TRACE(::testing::Message()
                                         << dtype << ' ' << algorithm << " head dim " << dim << ", "
                                         << queries << " queries, mask " << stored
                                         << (is_matrix ? ", matrix of " : ", keys' bias of ")
                                         << call.bias_dtype);
                            Results results = run(ctx(), call, algorithm);
                            expect_near(results, expected, 4 * error_of(dtype));
                            if (HasFatalFailure()) return;
                        }
                    }
                }
}

void hide_and_expect_no_change(const Context& ctx, Call& call, const std::function<void(Call&)>& poison) {
    Call poisoned = call;
    poison(poisoned);
    Call clean = poisoned;
    for (Numbers* x : {&clean.q, &clean.k, &clean.v, &clean.d_o})
        for (double& e : *x)
            if (!std::isfinite(e)) e = 0;
    for (const Algorithm algorithm : all_algorithms) {
        if ((call.options.cumulative_q.defined() || call.options.row_ranges.defined()) &&
            algorithm != Algorithm::flash2 && algorithm != Algorithm::naive)
            continue;
        SCOPED_TRACE(::testing::Message() << call.dtype << ' ' << algorithm);
        const Results expected = run(ctx, clean, algorithm), results = run(ctx, poisoned, algorithm);
        for (const double e : expected.o) ASSERT_TRUE(std::isfinite(e));
        expect_near(results, expected, 4 * error_of(call.dtype));
        if (testing::Test::HasFatalFailure()) return;
    }
}
void poison_rows(Call& call, std::int64_t batch, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
        Call::set_row(call.q, call.sizes.queries, batch, i, nan);
        Call::set_row(call.d_o, call.sizes.queries, batch, i, i % 2 == 0 ? nan : infinity);
    }
}
/// Infinities in single elements: their products with 0 are NaN in one column only.
void poison_elements(Call& call, std::int64_t batch, std::int64_t row, std::int64_t key) {
    const auto& [batches, queries, keys, heads, key_heads, dim] = call.sizes;
    if (row >= 0) call.q[index((batch * queries + row) * heads * dim + 5)] = infinity;
    call.k[index((batch * keys + key) * key_heads * dim + 7)] = infinity;
}
void poison_keys(Call& call, std::int64_t batch, std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
        Call::set_row(call.k, call.sizes.keys, batch, j, j % 2 == 0 ? nan : -infinity);
        Call::set_row(call.v, call.sizes.keys, batch, j, nan);
    }
}

TEST_P(HiddenInputs, WhatTheMaskHidesChangesNothing) {
    const DType dtype = this->dtype();
    for (const std::int64_t dim : head_dims({64, 128}))
        for (const int variant : {0, 1, 2}) {  // plain, with a sink, with dropout
            const auto with_options = [&](Call& call) {
                if (variant == 1) call.options.sink = from_host(ctx(), Numbers{0.5, -0.25}, {2}, DType::f32);
                if (variant == 2) {
                    call.options.dropout_p = 0.25;
                    call.options.dropout_key = DropoutKey::from_step(3, 1);
                }
            };
            SCOPED_TRACE(::testing::Message() << "head dim " << dim << ", variant " << variant);
            {
                SCOPED_TRACE("rows before the first key");
                Call call({.queries = 140, .keys = 71, .dim = dim}, dtype);
                call.options.causal = true;
                with_options(call);
                hide_and_expect_no_change(ctx(), call, [](Call& c) {
                    for (const int batch : {0, 1}) poison_rows(c, batch, 0, 140 - 71);
                });
            }
            {
                SCOPED_TRACE("keys before the window");
                Call call({.queries = 3, .keys = 205, .dim = dim}, dtype);
                call.options.window = {.left = 100, .right = 0};
                with_options(call);
                hide_and_expect_no_change(ctx(), call, [](Call& c) {
                    for (const int batch : {0, 1}) poison_keys(c, batch, 0, 205 - 3 - 100);
                });
            }
            {
                SCOPED_TRACE("keys after the last row");
                Call call({.queries = 130, .keys = 333, .dim = dim}, dtype);
                call.options.causal = call.options.top_left = true;
                with_options(call);
                hide_and_expect_no_change(ctx(), call, [](Call& c) {
                    for (const int batch : {0, 1}) poison_keys(c, batch, 130, 333);
                });
            }
            {
                SCOPED_TRACE("packed sequences");
                Call call({.queries = 150, .keys = 150, .dim = dim}, dtype);
                call.options.window = {.left = 20, .right = 0};
                call.options.cumulative_q = from_host(ctx(), Numbers{0, 90, 100, 260}, {4}, DType::i32);
                call.options.cumulative_k = from_host(ctx(), Numbers{0, 40, 150, 290}, {4}, DType::i32);
                with_options(call);
                hide_and_expect_no_change(ctx(), call, [](Call& c) {
                    // Sequences (rows x keys): 90 x 40, 10 x 110 and 160 x 140. The remaining rows and keys
                    // belong to no sequence.
                    poison_rows(c, 0, 0, 50);
                    poison_keys(c, 0, 40, 40 + 110 - 10 - 20);
                    poison_rows(c, 0, 100, 120);
                    poison_rows(c, 1, 110, 150);
                    poison_keys(c, 1, 140, 150);
                });
            }
            {
                SCOPED_TRACE("packed sequences without keys or without rows");
                Call call({.queries = 150, .keys = 150, .dim = dim}, dtype);
                call.options.cumulative_q = from_host(ctx(), Numbers{0, 90, 90, 300}, {4}, DType::i32);
                call.options.cumulative_k = from_host(ctx(), Numbers{0, 0, 110, 300}, {4}, DType::i32);
                with_options(call);
                hide_and_expect_no_change(ctx(), call, [](Call& c) {
                    poison_rows(c, 0, 0, 90);
                    poison_keys(c, 0, 0, 110);
                });
            }
        }
}

TEST_P(HiddenInputs, WhatRowRangesHideChangesNothing) {
    for (const std::int64_t dim : head_dims({64, 128}))
        for (const std::int64_t queries : {2, 8, 200})
            for (const bool is_packed : {false, true}) {
                SCOPED_TRACE(::testing::Message() << "head dim " << dim << ", " << queries << " queries"
                                                  << (is_packed ? ", packed" : ""));
                Call call({.queries = queries, .keys = 304, .dim = dim}, dtype());
                const std::int64_t keys = call.sizes.keys;
                const auto hidden_row = static_cast<double>(queries / 2);
                Numbers ranges;
                for (std::int64_t j = 0; j < (is_packed ? 2 * keys : keys); ++j)
                    for (const double end :
                         j % keys < 210 ? Numbers{0, hidden_row, hidden_row + 1, 1e6} : Numbers{5, 5, 7, -3})
                        ranges.push_back(end);
                if (is_packed) {
                    for (const auto& [offsets, length] :
                         {std::pair{&call.options.cumulative_q, queries}, {&call.options.cumulative_k, keys}})
                        *offsets = from_host(
                            ctx(), Numbers{0, static_cast<double>(length), static_cast<double>(2 * length)},
                            {3}, DType::i32);
                    call.options.row_ranges = from_host(ctx(), ranges, {1, 2 * keys, 4}, DType::i32);
                } else {
                    call.options.row_ranges = from_host(ctx(), ranges, {1, 1, keys, 4}, DType::i32);
                }
                hide_and_expect_no_change(ctx(), call, [&](Call& c) {
                    for (const int b : {0, 1}) {
                        poison_keys(c, b, 211, keys);
                        poison_rows(c, b, queries / 2, queries / 2 + 1);
                    }
                });
                if (HasFatalFailure()) return;
                hide_and_expect_no_change(ctx(), call,
                                          [&](Call& c) { poison_elements(c, 1, queries / 2, 250); });
                if (HasFatalFailure()) return;
            }
}

TEST_P(HiddenInputs, WhatABiasHidesChangesNothing) {
    const DType dtype = this->dtype();
    for (const std::int64_t dim : head_dims({32, 64, 128}))
        for (const std::int64_t queries : {1, 8, 200})
            for (const bool is_matrix : {false, true})
                for (const bool is_typed : {false, true}) {
                    Call call({.queries = queries, .keys = 304, .dim = dim}, dtype);
                    const std::int64_t batch = call.sizes.batch, keys = call.sizes.keys,
                                       heads = call.sizes.heads;
                    if (is_typed) call.bias_dtype = dtype;
                    call.bias_shape = is_matrix ? Shape{1, heads, queries, keys} : Shape{batch, 1, 1, keys};
                    const std::int64_t count = is_matrix ? heads * queries : batch;
                    call.bias.assign(index(count * keys), 0);
                    for (std::int64_t r = 0; r < count; ++r)
                        for (std::int64_t j = 0; j < keys; ++j) {
                            const bool hides_row = is_matrix && queries > 1 && r % queries == queries / 2;
                            call.bias[index(r * keys + j)] =
                                hides_row || j >= 210 ? -infinity : static_cast<double>(j % 8) / 8;
                        }
                    SCOPED_TRACE(::testing::Message() << "head dim " << dim << ", " << queries << " queries"
                                                      << (is_matrix ? ", matrix" : ", keys' bias")
                                                      << (is_typed ? " of the dtype" : " of float32"));
                    hide_and_expect_no_change(ctx(), call, [&](Call& c) {
                        for (const int b : {0, 1}) {
                            poison_keys(c, b, 211, 304);
                            if (is_matrix && queries > 1) poison_rows(c, b, queries / 2, queries / 2 + 1);
                        }
                    });
                    if (HasFatalFailure()) return;
                    hide_and_expect_no_change(ctx(), call, [&](Call& c) {
                        poison_elements(c, 1, is_matrix && queries > 1 ? queries / 2 : -1, 250);
                    });
                    if (HasFatalFailure()) return;
                }
}

// ---- Keys that some rows see ----

/// The heads and rows of batch 0 that a NaN in a key of K/V head 0 may reach: rows near one that sees the
/// key, or all rows.
enum class Reach : std::uint8_t { neighbouring_rows, all_rows };

/// Puts NaN or infinities into K and V of key `key` in K/V head 0 of batch 0, which the rows from first_row
/// to last_row see, and expects finite numbers in O and dQ wherever docs/numerics.md promises them.
void expect_reach(const Context& ctx, const Call& clean, std::int64_t key, std::int64_t first_row,
                  std::int64_t last_row, Reach reach) {
    const auto& [batch, queries, keys, heads, key_heads, dim] = clean.sizes;
    constexpr std::int64_t neighbours = 255;  // a block has at most 256 rows
    for (const Algorithm algorithm : all_algorithms) {
        const bool is_plain = !clean.options.cumulative_q.defined() && !clean.options.row_ranges.defined();
        const bool has_blocks = algorithm != Algorithm::naive;
        if (!is_plain && (algorithm == Algorithm::memory_efficient || algorithm == Algorithm::flash1))
            continue;
        for (const bool in_k : {false, true}) {
            SCOPED_TRACE(::testing::Message() << clean.dtype << ' ' << algorithm << ", key " << key
                                              << (in_k ? ", infinities in K" : ", NaN in V"));
            Call call = clean;
            Numbers& x = in_k ? call.k : call.v;
            for (std::int64_t c = 0; c < dim; ++c)
                x[index(key * key_heads * dim + c)] = in_k ? infinity : nan;
            const Results results = run(ctx, call, algorithm);
            for (std::int64_t b = 0; b < batch; ++b)
                for (std::int64_t i = 0; i < queries; ++i)
                    for (std::int64_t h = 0; h < heads; ++h) {
                        if (b == 0 && h < heads / key_heads &&
                            (reach == Reach::all_rows || !has_blocks ||
                             (i >= first_row - neighbours && i <= last_row + neighbours)))
                            continue;
                        const std::int64_t row = ((b * queries + i) * heads + h) * dim;
                        for (std::int64_t c = 0; c < dim; ++c)
                            ASSERT_TRUE(std::isfinite(results.o[index(row + c)]) &&
                                        std::isfinite(results.d_q[index(row + c)]))
                                << "batch " << b << ", row " << i << ", head " << h;
                    }
            for (const Numbers* gradient : {&results.d_k, &results.d_v})
                for (std::int64_t i = 0; i < batch * keys * key_heads; ++i)
                    for (std::int64_t c = 0; c < dim && (i >= keys * key_heads || i % key_heads != 0); ++c)
                        ASSERT_TRUE(std::isfinite((*gradient)[index(i * dim + c)])) << "key row " << i;
        }
    }
}

TEST_P(HiddenInputs, ANaNInAKeyReachesOnlyNeighboursOfTheRowsThatSeeIt) {
    constexpr std::int64_t rows = 560;
    Call call({.queries = rows, .keys = rows, .dim = 32}, dtype());
    call.options.causal = true;
    expect_reach(ctx(), call, 437, 437, rows - 1, Reach::neighbouring_rows);
    call.options.window = {.left = 40, .right = 0};
    expect_reach(ctx(), call, 390, 390, 390 + 40, Reach::neighbouring_rows);
}

/// Row ranges, and biases on the CPU, hide keys from rows only after the scores are computed.
TEST_P(HiddenInputs, ANaNInAKeyThatRangesOrBiasesHideStaysInItsHead) {
    constexpr std::int64_t rows = 150, key = 70;
    Call call({.queries = rows, .keys = rows, .heads = 4, .dim = 32}, dtype());
    Call biased = call;
    Numbers ranges;
    for (std::int64_t j = 0; j < rows; ++j)
        for (const double end : j == key ? Numbers{7, 8, 0, 0} : Numbers{0, rows, 0, 0})
            ranges.push_back(end);
    call.options.row_ranges = from_host(ctx(), ranges, {1, 1, rows, 4}, DType::i32);
    expect_reach(ctx(), call, key, 7, 7, Reach::all_rows);
    biased.bias_shape = Shape{1, 1, rows, rows};
    biased.bias.assign(index(rows * rows), 0);
    for (std::int64_t i = 0; i < rows; ++i)
        if (i != 7) biased.bias[index(i * rows + key)] = -infinity;
    expect_reach(ctx(), biased, key, 7, 7, Reach::all_rows);
}

}  // namespace
}  // namespace gradtile::attention::test
