#include <gradtile/tools/lab/machine.h>

#include <chrono>
#include <cmath>
#include <functional>

#include <gradtile/attention/attention.h>
#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::lab {
namespace {

/// Returns the seconds that the fastest of 3 calls takes. One more call before them is not measured.
double best_seconds(const std::function<void()>& work) {
    constexpr int runs = 3;
    double best = INFINITY;
    for (int i = 0; i <= runs; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        work();
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
        if (i > 0) best = std::min(best, elapsed.count());
    }
    return best;
}

/// Computes p = softmax(p), row by row.
void softmax_in_place(const Tensor& p) {
    const std::int64_t n = p.size(1);
    for (std::int64_t i = 0; i < p.size(0); ++i) {
        float* const row = p.data<float>() + i * n;
        float maximum = row[0], sum = 0;
        for (std::int64_t j = 1; j < n; ++j) maximum = std::max(maximum, row[j]);
        for (std::int64_t j = 0; j < n; ++j) row[j] = vector_math::exp(row[j] - maximum);
        for (std::int64_t j = 0; j < n; ++j) sum += row[j];
        for (std::int64_t j = 0; j < n; ++j) row[j] /= sum;
    }
}

/// Computes d_p = p * (d_p - rowsum(p * d_p)).
void differentiate_softmax_in_place(const Tensor& p, const Tensor& d_p) {
    const std::int64_t n = p.size(1);
    for (std::int64_t i = 0; i < p.size(0); ++i) {
        const float* const row = p.data<float>() + i * n;
        float *const d_row = d_p.data<float>() + i * n, sum = 0;
        for (std::int64_t j = 0; j < n; ++j) sum += row[j] * d_row[j];
        for (std::int64_t j = 0; j < n; ++j) d_row[j] = row[j] * (d_row[j] - sum);
    }
}

/// Computes standard attention as a framework does, forward and backward. The inputs are matrices [N, d].
void run_standard(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d_o) {
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(1)));
    const Tensor p = empty(ctx, {q.size(0), k.size(0)}, DType::f32), d_p = empty_like(ctx, p);
    const Tensor o = empty_like(ctx, q), d_q = empty_like(ctx, q), d_k = empty_like(ctx, k),
                 d_v = empty_like(ctx, v);
    gemm(ctx, p, q, k, {.trans_b = true, .alpha = scale});
    softmax_in_place(p);
    gemm(ctx, o, p, v);
    gemm(ctx, d_v, p, d_o, {.trans_a = true});
    gemm(ctx, d_p, d_o, v, {.trans_b = true});
    differentiate_softmax_in_place(p, d_p);
    gemm(ctx, d_q, d_p, k, {.alpha = scale});
    gemm(ctx, d_k, d_p, q, {.trans_a = true, .alpha = scale});
}

}  // namespace

Roofline measure_roofline() {
    const Context ctx(Device::cpu(), 1);
    // The copy has 128 MiB, and the product multiplies 1024 x 1024 matrices.
    constexpr std::int64_t copied = 32 << 20, size = 1024;
    const Tensor from = zeros(ctx, {copied}, DType::f32), to = zeros(ctx, {copied}, DType::f32);
    const double copy_seconds = best_seconds([&] { copy(ctx, to, from); });
    const Tensor a = randn(ctx, {size, size}, DType::f32, Seed{1}),
                 b = randn(ctx, {size, size}, DType::f32, Seed{2});
    const Tensor c = empty_like(ctx, a);
    const double product_seconds = best_seconds([&] { gemm(ctx, c, a, b); });
    return {.bytes_per_s = 2 * sizeof(float) * static_cast<double>(copied) / copy_seconds,
            .flops_per_s = 2.0 * size * size * size / product_seconds};
}

Speed measure_speed(const Setup& setup) {
    const Context ctx(Device::cpu(), 1);
    std::vector<Tensor> matrices, heads;  // Q, K, V and dO
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        matrices.push_back(randn(ctx, {setup.length, setup.head_dim}, DType::f32, Seed{seed}));
        heads.push_back(matrices.back().reshape({1, setup.length, 1, setup.head_dim}));
    }
    const double standard =
        best_seconds([&] { run_standard(ctx, matrices[0], matrices[1], matrices[2], matrices[3]); });
    const double flash2 = best_seconds([&] {
        Saved saved;
        forward(ctx, heads[0], heads[1], heads[2], {}, saved);
        backward(ctx, heads[3], {}, saved);
    });
    return {.standard_ms = 1e3 * standard, .flash2_ms = 1e3 * flash2};
}

}  // namespace gradtile::attention::lab
