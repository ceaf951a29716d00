// From softmax(Q K^T) V to FlashAttention-2 in seven steps, in float64, each compared with the operator.
#include <cmath>
#include <iostream>
#include <limits>
#include <utility>
#include <vector>

#include <gradtile/attention/attention.h>
#include <gradtile/core/compare.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

using namespace gradtile;
using Vector = std::vector<double>;

constexpr int N = 48, d = 8;
constexpr double infinity = std::numeric_limits<double>::infinity();
const double scale = 1 / std::sqrt(double(d));

double dot(const double* x, const double* y) {
    double sum = 0;
    for (int c = 0; c < d; ++c) sum += x[c] * y[c];
    return sum;
}
void add(double a, const double* x, double* y) {
    for (int c = 0; c < d; ++c) y[c] += a * x[c];
}

/// One head: q, k, v [N, d].
struct Inputs {
    Vector q, k, v;
    double score(int i, int j) const { return scale * dot(&q[i * d], &k[j * d]); }
};

/// Steps 1 and 2. P is an N x N matrix. e^score overflows for large scores; safe softmax subtracts the
/// maximum.
Vector standard_attention(const Inputs& x, bool safe) {
    Vector p(N * N), o(N * d);
    for (int i = 0; i < N; ++i) {
        double maximum = safe ? -infinity : 0, sum = 0;
        for (int j = 0; safe && j < N; ++j) maximum = std::max(maximum, x.score(i, j));
        for (int j = 0; j < N; ++j) sum += p[i * N + j] = std::exp(x.score(i, j) - maximum);
        for (int j = 0; j < N; ++j) add(p[i * N + j] / sum, &x.v[j * d], &o[i * d]);
    }
    return o;
}

/// A row's largest score so far, and the sum of exp(score - maximum).
struct Statistics {
    double maximum = -infinity, sum = 0;
    /// Adds one score. Returns the factor that corrects earlier sums.
    double update(double s) {
        const double before = std::exchange(maximum, std::max(maximum, s));
        const double factor = std::exp(before - maximum);
        sum = sum * factor + std::exp(s - maximum);
        return factor;
    }
};

/// Step 3: online softmax. One pass finds maximum and sum, so no row of P needs to be stored.
Vector online_attention(const Inputs& x) {
    Vector o(N * d);
    for (int i = 0; i < N; ++i) {
        Statistics row;
        for (int j = 0; j < N; ++j) row.update(x.score(i, j));
        for (int j = 0; j < N; ++j)
            add(std::exp(x.score(i, j) - row.maximum) / row.sum, &x.v[j * d], &o[i * d]);
    }
    return o;
}

/// Step 4: tiling. Processes one tile: `size` rows from i0 on and `size` keys from j0 on. Tiles may come in
/// any order. O is rescaled when the maximum changes, so each key is read once per row.
void attend_tile(const Inputs& x, int i0, int j0, int size, std::vector<Statistics>& rows, Vector& o) {
    for (int i = i0; i < i0 + size; ++i)
        for (int j = j0; j < j0 + size; ++j) {
            const double s = x.score(i, j), factor = rows[i].update(s);
            for (int c = 0; c < d; ++c) o[i * d + c] *= factor;
            add(std::exp(s - rows[i].maximum), &x.v[j * d], &o[i * d]);
        }
}

/// Steps 5 and 6. flash1's outer loop is over keys, so every row's O, maximum and sum are loaded and stored
/// for each key block. flash2's outer loop is over rows, so these stay on the chip.
Vector tiled_attention(const Inputs& x, int size, bool keys_outside, Vector& lse) {
    Vector o(N * d);
    std::vector<Statistics> rows(N);
    for (int outer = 0; outer < N; outer += size)
        for (int inner = 0; inner < N; inner += size)
            attend_tile(x, keys_outside ? inner : outer, keys_outside ? outer : inner, size, rows, o);
    lse.resize(N);
    for (int i = 0; i < N; ++i) {
        for (int c = 0; c < d; ++c) o[i * d + c] /= rows[i].sum;
        lse[i] = rows[i].maximum + std::log(rows[i].sum);
    }
    return o;
}

struct Gradients {
    Vector q = Vector(N * d), k = q, v = q;
};
/// Step 7: backward. P is recomputed from the LSE, and O is needed only for D = rowsum(dO * O): dS = P * (dO
/// V^T - D).
Gradients backward(const Inputs& x, const Vector& o, const Vector& lse, const Vector& d_o) {
    Gradients gradients;
    for (int i = 0; i < N; ++i) {
        const double D = dot(&d_o[i * d], &o[i * d]);
        for (int j = 0; j < N; ++j) {
            const double p = std::exp(x.score(i, j) - lse[i]);
            const double d_s = p * (dot(&d_o[i * d], &x.v[j * d]) - D);
            add(p, &d_o[i * d], &gradients.v[j * d]);
            add(scale * d_s, &x.k[j * d], &gradients.q[i * d]);
            add(scale * d_s, &x.q[i * d], &gradients.k[j * d]);
        }
    }
    return gradients;
}

int main() {
    const Context ctx{Device::cpu()};
    const auto random = [&](std::uint64_t seed) { return randn(ctx, {1, N, 1, d}, DType::f64, Seed{seed}); };
    const Tensor q = random(1), k = random(2), v = random(3), d_o = random(4);
    const Inputs x{to_host(ctx, q), to_host(ctx, k), to_host(ctx, v)};
    bool ok = true;
    // Each result is a sum of at most N terms. A term has a magnitude of a few units and a few roundings.
    const double bound = 64 * N * std::numeric_limits<double>::epsilon();
    const auto agree = [&](const char* what, const Vector& result, const Tensor& expected) {
        const Comparison difference = compare(from_host(ctx, result, expected.shape(), DType::f64), expected);
        std::cout << what << ": " << difference;
        ok &= difference.absolute.error < bound;
    };

    using enum attention::Algorithm;
    attention::Saved saved;
    const auto o_of = [&](attention::Algorithm algorithm) {
        return attention::forward(ctx, q, k, v, {.algorithm = algorithm}, saved);
    };
    Vector lse;
    agree("1 naive softmax", standard_attention(x, false), o_of(naive));
    agree("2 safe softmax", standard_attention(x, true), o_of(naive));
    agree("3 online softmax", online_attention(x), o_of(naive));
    agree("4 tiling", tiled_attention(x, 3, false, lse), o_of(memory_efficient));
    agree("5 flash1", tiled_attention(x, 16, true, lse), o_of(flash1));
    const Vector o = tiled_attention(x, 16, false, lse);
    agree("6 flash2", o, o_of(flash2)), agree("6 LSE", lse, saved.lse);
    const Gradients mine = backward(x, o, lse, to_host(ctx, d_o));
    const attention::Gradients theirs = attention::backward(ctx, d_o, {}, saved);
    agree("7 dQ", mine.q, theirs.q), agree("7 dK", mine.k, theirs.k), agree("7 dV", mine.v, theirs.v);
    return ok ? 0 : 1;
}
