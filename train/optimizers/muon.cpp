#include <gradtile/train/optimizers/muon.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_library.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/optimizers.h>

namespace gradtile {
namespace {

constexpr int newton_schulz_steps = 5;
constexpr MatrixPolynomial quintic{.a = 3.4445, .b = -4.7750, .c = 2.0315};

/// Computes gram [count, n, n] = X^T X or X X^T for each matrix in x, whichever is smaller.
void compute_gram(const Context& ctx, const Tensor& gram, const Tensor& x, bool tall) {
    using Kind = SymmetricProduct::Kind;
    if (!symmetric_product(ctx, gram, x, {.kind = tall ? Kind::gram_of_columns : Kind::gram_of_rows}))
        gemm(ctx, gram, x, x, {.trans_a = tall, .trans_b = !tall});
}

/// Computes polynomial [count, n, n] = a I + b A + c A^2 for A in gram.
void compute_polynomial(const Context& ctx, const Tensor& polynomial, const Tensor& gram) {
    if (symmetric_product(ctx, polynomial, gram,
                          {.kind = SymmetricProduct::Kind::polynomial, .polynomial = quintic}))
        return;
    gemm(ctx, polynomial, gram, gram);
    add_lower_powers(ctx, polynomial, gram, quintic);
}

/// Returns x [count, rows, cols] orthogonalised, in the products' dtype. May overwrite x. `squares` is
/// matrix_squares(x).
Tensor orthogonalized(const Context& ctx, const Tensor& x, const Tensor& squares, DType products) {
    static_assert(newton_schulz_steps % 2 == 1);
    const std::int64_t count = x.size(0), rows = x.size(1), cols = x.size(2);
    // A is the smaller of the two Gram matrices: for a tall X the iteration runs on its transpose.
    const bool tall = rows > cols;
    const std::int64_t n = std::min(rows, cols);
    Tensor current = products == x.dtype() ? x : empty(ctx, x.shape(), products);
    normalize_matrices(ctx, x, squares, current);
    Tensor next = empty_like(ctx, current);
    const Tensor gram = empty(ctx, {count, n, n}, products), polynomial = empty_like(ctx, gram);
    for (int step = 0; step < newton_schulz_steps; ++step) {
        compute_gram(ctx, gram, current, tall);
        compute_polynomial(ctx, polynomial, gram);
        if (tall) {
            gemm(ctx, next, current, polynomial);
        } else {
            gemm(ctx, next, polynomial, current);
        }
        std::swap(current, next);
    }
    return current;
}

}  // namespace

void newton_schulz(const Context& ctx, const Tensor& x, DType products) {
    check((x.rank() == 2 || x.rank() == 3) && x.is_contiguous(), "newton_schulz: ", x,
          "; expected a contiguous matrix or stack of matrices");
    check(products == x.dtype() || (products == DType::bf16 && x.dtype() == DType::f32), "newton_schulz: ", x,
          " in products of ", products, "; expected its own dtype, or bfloat16 for float32");
    const Tensor stack = x.reshape({x.rank() == 3 ? x.size(0) : 1, x.size(-2), x.size(-1)});
    copy(ctx, stack, orthogonalized(ctx, stack, matrix_squares(ctx, stack), products));
}

DType newton_schulz_dtype(const Context& ctx) {
    return ctx.device().is_cuda() || cpu::library_has_bfloat16() ? DType::bf16 : DType::f32;
}

double newton_schulz_flops(const Shape& shape) {
    const auto n = static_cast<double>(std::min(shape[0], shape[1]));
    const auto m = static_cast<double>(std::max(shape[0], shape[1]));
    return newton_schulz_steps * (2.0 * n * n * m + 2.0 * n * n * n + 2.0 * n * n * m);
}

Muon::Muon(const Context& ctx, const ParameterStore& store,
           const std::function<bool(const Parameter&)>& is_hidden_matrix, const MuonOptions& options,
           const std::optional<OptimizerShard>& shard)
    : MatrixOptimizer(ctx, store, is_hidden_matrix,
                      {.lr_ratio = options.lr_ratio,
                       .momentum = options.momentum,
                       .weight_decay = options.weight_decay,
                       .adamw = options.adamw,
                       .group_elements = options.group_elements},
                      shard),
      products_(options.newton_schulz.value_or(newton_schulz_dtype(ctx))) {}

Tensor Muon::direction(const Context& ctx, const Tensor& u, const Tensor& squares) const {
    return orthogonalized(ctx, u, squares, u.dtype() == DType::f64 ? DType::f64 : products_);
}

double Muon::step_factor(std::int64_t rows, std::int64_t cols) const {
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
}

namespace {

std::optional<DType> dtype_of_products(MuonProducts products) {
    switch (products) {
        case MuonProducts::automatic:
            return std::nullopt;
        case MuonProducts::f32:
            return DType::f32;
        case MuonProducts::bf16:
            return DType::bf16;
    }
    throw Error("muon-products: unknown");
}

}  // namespace

std::unique_ptr<Optimizer> MuonSettings::make(const Context& ctx, const ParameterStore& store,
                                              const OptimizerSetup& setup,
                                              const std::optional<OptimizerShard>& shard) const {
    const AdamW adamw = std::get<AdamWSettings>(setup.settings).rule(setup.weight_decay);
    const MuonOptions options{.lr_ratio = lr / setup.lr,
                              .momentum = momentum,
                              .weight_decay = setup.weight_decay,
                              .adamw = adamw,
                              .newton_schulz = dtype_of_products(products)};
    return std::make_unique<Muon>(ctx, store, is_block_matrix, options, shard);
}

ParameterUpdate MuonSettings::update_of(const Parameter& parameter) const {
    return matrix_update_of(parameter, newton_schulz_flops);
}

}  // namespace gradtile
