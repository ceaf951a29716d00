#include <gradtile/train/muon.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/gemm.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/global_norm.h>
#include <gradtile/train/muon_backend.h>

namespace gradtile {
namespace {

std::vector<Parameter> split(const ParameterStore& store,
                             const std::function<bool(const Parameter&)>& is_hidden_matrix, bool hidden) {
    std::vector<Parameter> chosen;
    for (const Parameter& parameter : store.parameters())
        if ((parameter.shape().rank() == 2 && is_hidden_matrix(parameter)) == hidden)
            chosen.push_back(parameter);
    return chosen;
}

}  // namespace

void newton_schulz(const Context& ctx, const Tensor& x) {
    check(x.rank() == 2 && x.is_contiguous(), "newton_schulz: ", x, "; expected a contiguous matrix");
    constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
    constexpr int steps = 5;
    static_assert(steps % 2 == 1);
    // A is the smaller of the two Gram matrices: for a tall X the iteration is that of its transpose.
    const bool tall = x.size(0) > x.size(1);
    const std::int64_t n = std::min(x.size(0), x.size(1));
    const Tensor norm = global_norm(ctx, x);
    on_device(ctx, cpu::divide_by_norm, cuda::divide_by_norm, x, norm);
    const Tensor gram = empty(ctx, {n, n}, x.dtype());
    const Tensor polynomial = empty(ctx, {n, n}, x.dtype());
    Tensor current = x, next = empty_like(ctx, x);
    for (int step = 0; step < steps; ++step) {
        gemm(ctx, gram, current, current, {.trans_a = tall, .trans_b = !tall});
        gemm(ctx, polynomial, gram, gram, {.alpha = c});
        axpy(ctx, polynomial, b, gram);
        if (tall) {
            gemm(ctx, next, current, polynomial);
        } else {
            gemm(ctx, next, polynomial, current);
        }
        axpy(ctx, next, a, current);
        std::swap(current, next);
    }
    copy(ctx, x, current);  // an odd number of swaps: the result stands in the other buffer
}

Muon::Muon(const Context& ctx, const ParameterStore& store,
           const std::function<bool(const Parameter&)>& is_hidden_matrix, const MuonOptions& options)
    : store_(store),
      matrices_(split(store, is_hidden_matrix, true)),
      options_(options),
      adamw_(ctx, store, split(store, is_hidden_matrix, false), options.adamw) {
    for (const Parameter& matrix : matrices_)
        momenta_.push_back(zeros(ctx, matrix.shape(), store.gradients().dtype()));
}

void Muon::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
        const Parameter& matrix = matrices_[i];
        const Tensor update = empty_like(ctx, matrix.grad());
        on_device(ctx, cpu::muon_momentum, cuda::muon_momentum, matrix.grad(), options.gradient_scale,
                  options_.momentum, momenta_[i], update);
        newton_schulz(ctx, update);
        const double rows = static_cast<double>(matrix.shape()[0]);
        const double cols = static_cast<double>(matrix.shape()[1]);
        const MuonRate derived{.lr_ratio = options_.lr_ratio,
                               .weight_decay = options_.weight_decay,
                               .shape_factor = std::sqrt(std::max(1.0, rows / cols))};
        on_device(ctx, cpu::muon_apply, cuda::muon_apply, update, rate, derived, store_.master_of(matrix),
                  matrix.value(), matrix.grad(), options);
    }
    adamw_.step(ctx, rate, options);
}

std::vector<StateTensor> Muon::state() const {
    std::vector<StateTensor> state;
    for (std::size_t i = 0; i < matrices_.size(); ++i)
        state.push_back({"momentum/" + matrices_[i].name(), momenta_[i]});
    for (StateTensor& part : adamw_.state()) state.push_back(std::move(part));
    return state;
}

}  // namespace gradtile
