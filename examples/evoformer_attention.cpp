// Attention in AlphaFold's Evoformer (Jumper et al. 2021, supplement, algorithms 7, 13 and 14): MSA row
// attention with a mask bias and a pair bias, and triangle attention, which is the same call with other axis
// meanings. The results and the q, k, v and pair bias gradients are compared with those from the algorithm
// that stores S and P.
#include <iostream>
#include <limits>

#include <gradtile/attention/attention.h>
#include <gradtile/core/compare.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

using namespace gradtile;

constexpr std::int64_t heads = 4, head_dim = 16;

/// q, k, v [B N, L, H, D]: N rows of length L for each of B samples. The mask bias [B N, 1, 1, L] is -inf in
/// hidden columns, for all heads. All N rows in a sample share its pair bias [B, H, L, L].
struct RowAttention {
    Tensor q, k, v, mask_bias, pair_bias;

    attention::Options options(attention::Algorithm algorithm) const {
        attention::Options options{.algorithm = algorithm};
        options.biases = {mask_bias, pair_bias};
        options.batch_divisor = q.size(0) / pair_bias.size(0);  // N
        return options;
    }
};

/// Random inputs in which the last `hidden` columns are padding.
RowAttention random_rows(const Context& ctx, std::int64_t samples, std::int64_t rows, std::int64_t length,
                         std::int64_t hidden) {
    const Shape shape{samples * rows, length, heads, head_dim};
    const Tensor mask_bias = zeros(ctx, {samples * rows, 1, 1, length}, DType::f32);
    fill(ctx, mask_bias.slice(3, length - hidden, hidden), -std::numeric_limits<double>::infinity());
    return {.q = randn(ctx, shape, DType::f64, Seed{1}),
            .k = randn(ctx, shape, DType::f64, Seed{2}),
            .v = randn(ctx, shape, DType::f64, Seed{3}),
            .mask_bias = mask_bias,
            .pair_bias = randn(ctx, {samples, heads, length, length}, DType::f64, Seed{4})};
}

/// Whether flash2 and naive agree on O and on all gradients.
bool agree(const Context& ctx, const char* name, const RowAttention& x) {
    const Tensor d_o = randn(ctx, x.q.shape(), DType::f64, Seed{5});
    const auto run = [&](attention::Algorithm algorithm) {
        attention::Saved saved;
        const attention::Options options = x.options(algorithm);
        attention::forward(ctx, x.q, x.k, x.v, options, saved);
        const attention::Gradients d = attention::backward(ctx, d_o, options, saved);
        return std::array{saved.o, d.q, d.k, d.v, d.biases[1]};
    };
    const auto flash = run(attention::Algorithm::flash2), naive = run(attention::Algorithm::naive);
    // The longest sums, those in the pair bias gradient, have a term for every sequence and token in the
    // sample, and each term has a few roundings.
    const auto terms = static_cast<double>(x.q.size(0) * x.q.size(1));
    bool ok = true;
    for (std::size_t i = 0; i < flash.size(); ++i) {
        const Comparison difference = compare(flash[i], naive[i]);
        ok &= difference.absolute.error <
              4 * terms * std::numeric_limits<double>::epsilon() * difference.largest;
    }
    std::cout << name << ": gradient of the pair bias " << flash[4].shape() << (ok ? "" : ", WRONG") << '\n';
    return ok;
}

int main() {
    const Context ctx{Device::cpu()};
    // Two samples, each an alignment with 6 sequences and 40 residues, 3 of which are padding.
    bool ok = agree(ctx, "MSA row attention", random_rows(ctx, 2, 6, 40, 3));

    // Edges (i, j) in one sample's pair representation, [I, J, H, D]. Around the starting node i, edge (i, j)
    // attends to the edges (i, k): rows are i, columns k, and the bias for (j, k) comes from the third edge.
    RowAttention edges = random_rows(ctx, 1, 24, 24, 2);
    ok &= agree(ctx, "triangle attention, starting node", edges);

    // Around the ending node j, edge (i, j) attends to the edges (k, j), so the call's rows are the nodes j.
    // Transposed views swap the axes.
    for (Tensor* x : {&edges.q, &edges.k, &edges.v}) *x = x->transpose(0, 1);
    ok &= agree(ctx, "triangle attention, ending node", edges);
    return ok ? 0 : 1;
}
