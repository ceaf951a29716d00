#include <gradtile/train/optimizers/muon.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_library.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/optimizers.h>

namespace gradtile {
namespace {

template <std::size_t steps>
using Quintics = std::array<MatrixPolynomial, steps>;

template <std::size_t steps>
constexpr Quintics<steps> repeated(const MatrixPolynomial& quintic) {
    Quintics<steps> quintics{};
    quintics.fill(quintic);
    return quintics;
}

/// Returns the quintic of s / divisor.
constexpr MatrixPolynomial of_divided(const MatrixPolynomial& p, double divisor) {
    const double square = divisor * divisor;
    return {p.a / divisor, p.b / (divisor * square), p.c / (divisor * square * square)};
}

/// The published quintics, each of s / 1.01, so that a singular value that rounding has made larger than
/// expected does not leave the interval of the next quintic. The iteration also starts from X / (1.01 |X|_F).
constexpr Quintics<5> polar_express() {
    constexpr double safety = 1.01;
    Quintics<5> quintics{{{8.28721201814563, -23.595886519098837, 17.300387312530933},
                          {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                          {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                          {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                          {2.300652019954817, -1.6689039845747493, 0.4188073119525673}}};
    for (MatrixPolynomial& quintic : quintics) quintic = of_divided(quintic, safety);
    quintics.front() = of_divided(quintics.front(), safety);
    return quintics;
}

std::span<const MatrixPolynomial> quintics_of(MuonCoefficients coefficients) {
    static constexpr auto jordan = repeated<5>({.a = 3.4445, .b = -4.7750, .c = 2.0315});
    static constexpr auto express = polar_express();
    static constexpr auto convergent = repeated<12>({.a = 2.0, .b = -1.5, .c = 0.5});
    switch (coefficients) {
        case MuonCoefficients::jordan:
            return jordan;
        case MuonCoefficients::polar_express:
            return express;
        case MuonCoefficients::convergent:
            return convergent;
    }
    throw Error("muon-coefficients: unknown");
}

/// Computes gram [count, n, n] = X^T X or X X^T for each matrix in x, whichever is smaller.
void compute_gram(const Context& ctx, const Tensor& gram, const Tensor& x, bool tall) {
    using Kind = SymmetricProduct::Kind;
    if (!symmetric_product(ctx, gram, x, {.kind = tall ? Kind::gram_of_columns : Kind::gram_of_rows}))
        gemm(ctx, gram, x, x, {.trans_a = tall, .trans_b = !tall});
}

/// Computes polynomial [count, n, n] = a I + b A + c A^2 for A in gram.
void compute_polynomial(const Context& ctx, const Tensor& polynomial, const Tensor& gram,
                        const MatrixPolynomial& quintic) {
    if (symmetric_product(ctx, polynomial, gram,
                          {.kind = SymmetricProduct::Kind::polynomial, .polynomial = quintic}))
        return;
    gemm(ctx, polynomial, gram, gram);
    add_lower_powers(ctx, polynomial, gram, quintic);
}

/// Returns x [count, rows, cols] orthogonalised, in the products' dtype. May overwrite x. `squares` is
/// matrix_squares(x).
Tensor orthogonalized(const Context& ctx, const Tensor& x, const Tensor& squares, DType products,
                      MuonCoefficients coefficients) {
    const std::int64_t count = x.size(0), rows = x.size(1), cols = x.size(2);
    // A is the smaller of the two Gram matrices: for a tall X the iteration runs on its transpose.
    const bool tall = rows > cols;
    const std::int64_t n = std::min(rows, cols);
    Tensor current = products == x.dtype() ? x : empty(ctx, x.shape(), products);
    normalize_matrices(ctx, x, squares, current);
    Tensor next = empty_like(ctx, current);
    const Tensor gram = empty(ctx, {count, n, n}, products), polynomial = empty_like(ctx, gram);
    for (const MatrixPolynomial& quintic : quintics_of(coefficients)) {
        compute_gram(ctx, gram, current, tall);
        compute_polynomial(ctx, polynomial, gram, quintic);
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

void newton_schulz(const Context& ctx, const Tensor& x, DType products, MuonCoefficients coefficients) {
    check((x.rank() == 2 || x.rank() == 3) && x.is_contiguous(), "newton_schulz: ", x,
          "; expected a contiguous matrix or stack of matrices");
    check(products == x.dtype() || (products == DType::bf16 && x.dtype() == DType::f32), "newton_schulz: ", x,
          " in products of ", products, "; expected its own dtype, or bfloat16 for float32");
    const Tensor stack = x.reshape({x.rank() == 3 ? x.size(0) : 1, x.size(-2), x.size(-1)});
    copy(ctx, stack, orthogonalized(ctx, stack, matrix_squares(ctx, stack), products, coefficients));
}

DType newton_schulz_dtype(const Context& ctx) {
    return ctx.device().is_cuda() || cpu::library_has_bfloat16() ? DType::bf16 : DType::f32;
}

double newton_schulz_flops(const Shape& shape, MuonCoefficients coefficients) {
    const auto n = static_cast<double>(std::min(shape[0], shape[1]));
    const auto m = static_cast<double>(std::max(shape[0], shape[1]));
    return static_cast<double>(quintics_of(coefficients).size()) *
           (2.0 * n * n * m + 2.0 * n * n * n + 2.0 * n * n * m);
}

Muon::Muon(const Context& ctx, const ParameterStore& store, const PackedRows& packed_rows,
           const MuonOptions& options, const std::optional<OptimizerShard>& shard)
    : MatrixOptimizer(ctx, store, packed_rows, options.matrix, shard),
      coefficients_(options.coefficients),
      scale_(options.scale),
      products_(options.newton_schulz.value_or(newton_schulz_dtype(ctx))) {}

Tensor Muon::direction(const Context& ctx, const Tensor& u, const Tensor& squares) const {
    return orthogonalized(ctx, u, squares, u.dtype() == DType::f64 ? DType::f64 : products_, coefficients_);
}

double Muon::step_factor(std::int64_t rows, std::int64_t cols) const {
    switch (scale_) {
        case MuonScale::shape:
            return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
        case MuonScale::rms:
            return 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
    }
    throw Error("muon-scale: unknown");
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

std::vector<std::int64_t> MuonSettings::packed_rows(const Parameter& parameter,
                                                    const ModelConfig& model) const {
    const std::vector<std::int64_t> rows = block_matrix_rows(parameter, model);
    if (rows.empty() || split) return rows;
    return {parameter.shape()[0]};
}

MatrixOptions MuonSettings::matrix_options(const OptimizerSetup& setup) const {
    const double peak = lr > 0.0 ? lr : scale == MuonScale::rms ? setup.lr : default_lr;
    return {.lr_ratio = peak / setup.lr,
            .momentum = {.decay = momentum, .nesterov = nesterov, .warmup = momentum_warmup},
            .beta2 = beta2,
            .weight_decay = weight_decay < 0.0 ? setup.weight_decay : weight_decay,
            .cautious_decay = setup.cautious_decay,
            .moments = setup.moments,
            .adamw = std::get<AdamWSettings>(setup.settings).rule(setup.weight_decay, setup.cautious_decay),
            .lr_factor = setup.lr_factor};
}

std::unique_ptr<Optimizer> MuonSettings::make(const Context& ctx, const ParameterStore& store,
                                              const OptimizerSetup& setup,
                                              const std::optional<OptimizerShard>& shard) const {
    const MuonOptions options{.matrix = matrix_options(setup),
                              .coefficients = coefficients,
                              .scale = scale,
                              .newton_schulz = dtype_of_products(products)};
    const auto rows = [&](const Parameter& parameter) { return packed_rows(parameter, setup.model); };
    return std::make_unique<Muon>(ctx, store, rows, options, shard);
}

ParameterUpdate MuonSettings::update_of(const Parameter& parameter, const ModelConfig& model) const {
    return matrix_update_of(parameter, packed_rows(parameter, model), {.beta2 = beta2},
                            [&](const Shape& shape) { return newton_schulz_flops(shape, coefficients); });
}

}  // namespace gradtile
