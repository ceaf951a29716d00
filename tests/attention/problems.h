#pragma once
/// The problems on which every algorithm, dtype and kernel is compared with float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <support/sanitized.h>

#include "attention_testing.h"

namespace gradtile::attention::test {

/// Problems whose lengths are one block or many blocks, are not multiples of a block, or leave some rows
/// without a visible key.
inline std::vector<Problem> problems_of_lengths() {
    std::vector<Problem> problems;
    for (const auto& [queries, keys] : {std::pair{1, 1},
                                        {2, 2},
                                        {5, 5},
                                        {17, 17},
                                        {64, 64},
                                        {1, 64},
                                        {64, 1},
                                        {113, 203},
                                        {203, 113},
                                        {799, 3},
                                        {3, 799},
                                        {239, 1},
                                        {1, 239},
                                        {108, 256},
                                        {256, 108}})
        for (const bool causal : {false, true})
            problems.push_back({.queries = queries,
                                .keys = keys,
                                .d_qk = 64,
                                .d_v = 64,
                                .causal = causal,
                                .heads = 2,
                                .key_heads = 2});
    return problems;
}

/// Problems with so many rows and keys that every kernel processes several row blocks and several key blocks.
inline std::vector<Problem> long_problems() {
    if (gradtile::test::sanitized)
        return {{.queries = 600, .keys = 601, .d_qk = 64, .d_v = 64, .causal = true},
                {.queries = 601, .keys = 600, .d_qk = 16, .d_v = 24}};
    return {{.queries = 1023, .keys = 1024, .d_qk = 64, .d_v = 64, .causal = true},
            {.queries = 1024, .keys = 1023, .d_qk = 32, .d_v = 32, .causal = true},
            {.queries = 1023, .keys = 1024, .d_qk = 16, .d_v = 16},
            {.queries = 1024, .keys = 1023, .d_qk = 16, .d_v = 24}};
}

inline std::vector<Problem> problems_of_head_dims(std::initializer_list<std::int64_t> head_dims) {
    std::vector<Problem> problems;
    for (const std::int64_t d : head_dims)
        for (const bool causal : {false, true})
            problems.push_back({.queries = 65, .keys = 81, .d_qk = d, .d_v = d, .causal = causal});
    return problems;
}

/// Problems with Dqk != Dv, with shared K/V heads, with windows, with both mask alignments, and with several
/// scales.
inline std::vector<Problem> problems_of_options() {
    std::vector<Problem> problems{
        {.queries = 65, .keys = 81, .d_qk = 40, .d_v = 96},
        {.queries = 65, .keys = 81, .d_qk = 128, .d_v = 8, .causal = true},
        {.queries = 65, .keys = 81, .d_qk = 8, .d_v = 256, .causal = true},
        {.queries = 300, .keys = 300, .d_qk = 16, .d_v = 16, .causal = true, .window = {.left = 70}},
        {.queries = 200, .keys = 300, .d_qk = 16, .d_v = 16, .window = {.left = 3, .right = 90}},
        {.queries = 300, .keys = 200, .d_qk = 16, .d_v = 16, .window = {.left = 90, .right = 3}},
        {.queries = 200, .keys = 300, .d_qk = 16, .d_v = 16, .causal = true, .top_left = true},
        {.queries = 300,
         .keys = 100,
         .d_qk = 16,
         .d_v = 16,
         .window = {.left = 0, .right = 0},
         .top_left = true}};
    for (const std::int64_t key_heads : {1, 2, 4})
        problems.push_back({.queries = 130,
                            .keys = 150,
                            .d_qk = 32,
                            .d_v = 32,
                            .causal = true,
                            .batch = 2,
                            .heads = 4,
                            .key_heads = key_heads});
    for (const double scale : {-0.25, 0.0, 2.0})
        problems.push_back(
            {.queries = 70, .keys = 90, .d_qk = 16, .d_v = 16, .causal = true, .scale = scale});
    return problems;
}

/// All options that change scores or probabilities in one problem: two sequences, heads that share keys.
inline Problem problem_with_every_score_option(std::int64_t queries, std::int64_t keys, std::int64_t d_qk,
                                               std::int64_t d_v) {
    return accuracy::score_option_problems({.queries = queries,
                                            .keys = keys,
                                            .d_qk = d_qk,
                                            .d_v = d_v,
                                            .causal = true,
                                            .batch = 2,
                                            .heads = 4,
                                            .key_heads = 2})
        .back()
        .problem;
}

/// Problems with every option that changes scores or probabilities, alone and combined. Several blocks in
/// both directions, heads that share keys, rows that see nothing.
inline std::vector<Problem> problems_of_score_options() {
    const Problem base{
        .queries = 70, .keys = 150, .d_qk = 16, .d_v = 24, .batch = 4, .heads = 4, .key_heads = 2};
    std::vector<Problem> problems;
    for (accuracy::NamedProblem& p : accuracy::score_option_problems(base))
        problems.push_back(std::move(p.problem));
    const auto add = [&](auto&& change) { change(problems.emplace_back(base)); };
    // A bias with every broadcast that papers use, and with others: length-1 axes in several combinations.
    for (const Shape& bias :
         {Shape{4, 4, 70, 150}, Shape{1, 4, 70, 150}, Shape{4, 1, 1, 150}, Shape{4, 1, 70, 150},
          Shape{1, 1, 70, 150}, Shape{4, 4, 70, 1}, Shape{1, 4, 1, 1}, Shape{1, 1, 1, 1}})
        add([&](Problem& p) { p.biases[0] = bias; });
    add([](Problem& p) {  // Evoformer: a mask bias and a pair bias over several sequences
        p.biases = {Shape{4, 1, 1, 150}, Shape{2, 4, 70, 150}};
        p.batch_divisor = 2;
    });
    add([](Problem& p) { p.causal = p.alibi = p.sink = true; });
    add([](Problem& p) {
        p.queries = 150;
        p.keys = 70;  // the first rows see no key
        p.causal = p.sink = p.d_lse = true;
        p.biases[0] = {1, 4, 150, 70};
    });
    add([](Problem& p) {
        p.queries = 150;
        p.keys = 70;
        p.causal = p.d_lse = true;
        p.softcap = 2;
        p.dropout_p = 0.5;
    });
    add([](Problem& p) {  // all options together
        p.causal = p.alibi = p.sink = p.d_lse = p.top_left = true;
        p.window.left = 40;
        p.softcap = 2;
        p.dropout_p = 0.1;
        p.biases = {Shape{1, 1, 70, 150}, Shape{4, 4, 1, 150}};
    });
    return problems;
}

/// Score options at lengths and head dims that no block divides: several tasks in both directions, grouped
/// heads, windows, positive and negative scales.
inline std::vector<Problem> problems_of_score_option_shapes() {
    const Problem base{.queries = 131,
                       .keys = 147,
                       .d_qk = 5,
                       .d_v = 3,
                       .heads = 2,
                       .key_heads = 1,
                       .softcap = 2,
                       .alibi = true,
                       .sink = true,
                       .dropout_p = 0.25,
                       .d_lse = true};
    std::vector<Problem> problems;
    const auto add = [&](auto&& change) {
        Problem& p = problems.emplace_back(base);
        change(p);
        p.biases = {Shape{1, p.heads, p.queries, p.keys}, Shape{p.batch, 1, 1, p.keys}};
    };
    add([](Problem& p) { p.causal = true; });
    add([](Problem& p) { p.window = {.left = 70, .right = 13}; });
    add([](Problem& p) { p.window = {.left = 9, .right = 77}, p.heads = 4, p.key_heads = 2, p.batch = 2; });
    add([](Problem& p) { p.queries = 1; });
    add([](Problem& p) { p.keys = 1; });
    add([](Problem& p) { p.scale = -0.5; });
    add([](Problem& p) { p.scale = 0.0; });
    add([&](Problem& p) { p.d_qk = 1, p.d_v = 33, p.causal = p.top_left = true; });
    add([](Problem& p) { p.queries = 531, p.keys = 275, p.heads = 1, p.causal = p.top_left = true; });
    add([](Problem& p) { p.queries = 275, p.keys = 531, p.heads = 1, p.causal = true; });
    return problems;
}

/// A problem whose bias is -inf in two rows. These rows therefore see no key.
class RowsOfMinusInfinity {
  public:
    explicit RowsOfMinusInfinity(bool with_sink)
        : problem_{.queries = 40,
                   .keys = 70,
                   .d_qk = 8,
                   .d_v = 8,
                   .sink = with_sink,
                   .biases = {Shape{1, 1, 40, 1}},
                   .d_lse = true} {}
    const Problem& problem() const { return problem_; }
    Inputs inputs(const Context& ctx, DType dtype) const {
        Inputs in = random_inputs(ctx, problem_, dtype);
        std::vector<double> bias(40, 0.5);
        for (const std::size_t row : rows) bias[row] = minus_infinity;
        in.biases[0] = from_host(ctx, bias, problem_.biases[0], DType::f32);
        return in;
    }
    /// Expects that these rows have O, dQ and bias gradient 0, and that their LSE is the sink (-inf without a
    /// sink) with an error of at most `lse_error`.
    void expect_zeros(const Context& ctx, const Inputs& in, const Result& result, double lse_error) const {
        for (const std::size_t row : rows) {
            if (problem_.sink) {
                EXPECT_NEAR(result.lse[row], to_host(ctx, in.sink)[0], lse_error);
            } else {
                EXPECT_EQ(result.lse[row], minus_infinity);
            }
            for (std::size_t c = 0; c < 8; ++c) {
                EXPECT_EQ(result.o[row * 8 + c], 0);
                EXPECT_EQ(result.d_q[row * 8 + c], 0);
            }
            EXPECT_EQ(result.d_bias_0[row], 0);
        }
        for (const auto* numbers : {&result.d_q, &result.d_k, &result.d_v, &result.d_bias_0, &result.d_sink})
            for (const double x : *numbers) EXPECT_TRUE(std::isfinite(x));
    }

  private:
    static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
    static constexpr std::size_t rows[] = {3, 39};
    Problem problem_;
};

/// Models often mark hidden keys by a dtype's lowest number instead of -inf. In this problem all keys of row
/// 3 are marked so, and the row's LSE times log2(e) is outside the float32 range.
inline Problem problem_with_lowest_scores() {
    return {.queries = 40,
            .keys = 72,
            .d_qk = 32,
            .d_v = 32,
            .heads = 2,
            .key_heads = 2,
            .biases = {Shape{1, 2, 40, 72}}};
}
inline Inputs inputs_with_lowest_scores(const Context& ctx, DType dtype, DType bias_dtype) {
    Inputs in = random_inputs(ctx, problem_with_lowest_scores(), dtype);
    std::vector<double> bias = to_host(ctx, in.biases[0]);
    const double lowest = bias_dtype == DType::bf16 ? -0x1.fep127 : -std::numeric_limits<float>::max();
    for (std::size_t i = 0; i < bias.size(); ++i)
        if (i / 72 % 40 == 3) bias[i] = lowest;
    in.biases[0] = from_host(ctx, bias, in.biases[0].shape(), bias_dtype);
    return in;
}
inline void expect_finite(const Result& result) {
    EXPECT_FALSE(std::ranges::any_of(result.lse, [](double e) { return std::isnan(e) || e > 1e30; }));
    for (const std::vector<double>& x : {result.o, result.d_q, result.d_k, result.d_v, result.d_bias_0})
        EXPECT_TRUE(std::ranges::all_of(x, [](double e) { return std::isfinite(e); }));
}

}  // namespace gradtile::attention::test
