#include <gradtile/layers/transformer/multi_head_attention.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

ModelConfig shape_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t width) {
    return {.layers = 1, .heads = heads, .kv_heads = kv_heads, .width = width, .context = 9, .vocabulary = 2};
}

struct AttentionFixture {
    Context ctx;
    ParameterStore parameters;
    MultiHeadAttention attn;

    explicit AttentionFixture(const ModelConfig& config, DType dtype = DType::f64, int threads = 2)
        : ctx(Device::cpu(), threads), attn(parameters, "attn", config) {
        parameters.allocate(ctx, dtype);
        copy(ctx, parameters.values(), randn(ctx, parameters.values().shape(), dtype, Seed{5}));
    }
    // A training pass, so that the fixture has a layer's signature.
    using Saved = MultiHeadAttention::Saved;
    Tensor forward(const Context& c, const Tensor& x, Saved& saved) const {
        return attn.forward(c, x, TrainingPass{}, saved);
    }
    Tensor backward(const Context& c, const Tensor& dy, const Saved& saved) const {
        return attn.backward(c, dy, saved);
    }
};

void expect_exact_gradients(const ModelConfig& config) {
    AttentionFixture f(config);
    const Tensor x = randn(f.ctx, {2, 7, config.width}, DType::f64, Seed{3});
    const auto report = gradient_check_layer(f.ctx, f, x, f.parameters.parameters());
    EXPECT_TRUE(report.ok()) << report;
}

TEST(MultiHeadAttention, GradientsEqualFiniteDifferences) {
    expect_exact_gradients(shape_of(2, 0, 8));
}
TEST(MultiHeadAttention, GradientsOfGroupedQueriesEqualFiniteDifferences) {
    expect_exact_gradients(shape_of(4, 2, 12));
    expect_exact_gradients(shape_of(4, 1, 12));
}
TEST(MultiHeadAttention, GradientsThroughRotationAndHeadNormsEqualFiniteDifferences) {
    ModelConfig config = shape_of(4, 2, 16);
    config.positions = Positions::rope;
    expect_exact_gradients(config);
    config.qk_norm = true;
    expect_exact_gradients(config);
    config.positions = Positions::learned;
    expect_exact_gradients(config);
}

TEST(MultiHeadAttention, EqualsTheTextbookFormulasForEachHead) {
    const std::int64_t heads = 3, width = 12, head_dim = width / heads, length = 5;
    AttentionFixture f(shape_of(heads, 0, width));
    const Tensor x = randn(f.ctx, {1, length, width}, DType::f64, Seed{3});
    MultiHeadAttention::Saved saved;
    const auto y = to_host(f.ctx, f.forward(f.ctx, x, saved));

    Linear::Saved unused;
    const Tensor qkv = f.attn.qkv.forward(f.ctx, x, unused).reshape({length, 3 * width});
    const Tensor o = zeros(f.ctx, {length, width}, DType::f64);
    for (std::int64_t h = 0; h < heads; ++h) {
        const Tensor q = qkv.slice(1, h * head_dim, head_dim);
        const Tensor k = qkv.slice(1, width + h * head_dim, head_dim);
        const Tensor v = qkv.slice(1, 2 * width + h * head_dim, head_dim);
        const Tensor p = zeros(f.ctx, {length, length}, DType::f64);
        gemm(f.ctx, p, q, k, {.trans_b = true, .alpha = 1.0 / std::sqrt(static_cast<double>(head_dim))});
        for (std::int64_t i = 0; i < length; ++i) {
            double* row = p.data<double>() + i * length;
            double sum = 0.0;
            for (std::int64_t j = 0; j < length; ++j) sum += row[j] = j <= i ? std::exp(row[j]) : 0.0;
            for (std::int64_t j = 0; j < length; ++j) row[j] /= sum;
        }
        gemm(f.ctx, o.slice(1, h * head_dim, head_dim), p, v);
    }
    const auto expected = to_host(f.ctx, f.attn.proj.forward(f.ctx, o, unused));
    ASSERT_EQ(y.size(), expected.size());
    // An output has about two dozen roundings, relative to terms of size |W| |o| * width < 100.
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 24 * 2.3e-16 * 100.0);
}

/// The keys with an offset against those of the same model without one. With half-truncated frequencies
/// columns 2, 3, 6 and 7 of 8 are not rotated, with a rotary width of 4 the last four.
TEST(MultiHeadAttention, AKeyOffsetTakesUnrotatedColumnsFromTheTokenBefore) {
    ModelConfig truncated = shape_of(4, 2, 32), partial = truncated;
    truncated.positions = partial.positions = Positions::rope;
    truncated.rope_scaling.kind = RopeKind::half_truncated;
    truncated.qk_norm = true;
    partial.rotary_width = 4;
    for (ModelConfig config : {truncated, partial}) {
        const auto keys_of = [&](bool offset) {
            config.key_offset = offset;
            const AttentionFixture f(config);
            MultiHeadAttention::Saved saved;
            f.forward(f.ctx, randn(f.ctx, {2, 5, 32}, DType::f64, Seed{3}), saved);
            return to_host(f.ctx, saved.attention.k);  // [2,5,2,8]
        };
        const auto plain = keys_of(false), offset = keys_of(true);
        for (std::size_t i = 0; i < plain.size(); ++i) {
            const std::size_t column = i % 8, token = i / 16 % 5;
            const bool is_unrotated = config.rotary_width == 4 ? column >= 4 : column % 4 >= 2;
            EXPECT_EQ(offset[i], is_unrotated && token > 0 ? plain[i - 16] : plain[i]) << i;
        }
    }
}

TEST(MultiHeadAttention, SavesViewsOfOneProjectionAndNothingOfSizeTxT) {
    AttentionFixture f(shape_of(2, 0, 8));
    const Tensor x = randn(f.ctx, {2, 9, 8}, DType::f64, Seed{3});
    const auto arena = std::make_shared<Arena>(Device::cpu(), std::size_t{1} << 20);
    const Context ctx = f.ctx.with_allocator(arena);
    MultiHeadAttention::Saved saved;
    f.forward(ctx, x, saved);
    EXPECT_EQ(saved.attention.k.raw_data() - saved.attention.q.raw_data(), 8 * 8);
    EXPECT_EQ(saved.attention.v.raw_data() - saved.attention.q.raw_data(), 2 * 8 * 8);
    const std::size_t rows = 2 * 9;
    const auto rounded = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
    const std::size_t qkv = rounded(rows * 24 * 8), o = rounded(rows * 8 * 8), lse = rounded(rows * 2 * 8);
    EXPECT_EQ(arena->bytes_in_use(), qkv + o + 2 * lse);  // LSE and its remainder
}

TEST(MultiHeadAttention, BitsDoNotDependOnTheNumberOfThreads) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        std::vector<double> expected;
        for (const int threads : {1, 2, 3}) {
            ModelConfig config = shape_of(4, 2, 64);
            config.context = 150;
            config.positions = Positions::rope;
            config.qk_norm = true;
            AttentionFixture f(config, dtype, threads);
            const Tensor x = randn(f.ctx, {2, 150, 64}, dtype, Seed{3});
            MultiHeadAttention::Saved saved;
            const Tensor y = f.forward(f.ctx, x, saved);
            std::vector<double> all = to_host(f.ctx, f.attn.backward(f.ctx, y, saved));
            for (const double g : to_host(f.ctx, f.parameters.gradients())) all.push_back(g);
            if (threads == 1) expected = all;
            EXPECT_EQ(all, expected) << threads << " threads";
        }
    }
}

}  // namespace
}  // namespace gradtile
