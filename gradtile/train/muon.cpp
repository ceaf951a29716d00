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

/// Small matrices of one shape, which alone would occupy neither the threads nor a GPU, are orthogonalised as
/// one stack; large ones, whose scratch counts, one after another.
std::vector<std::vector<std::size_t>> stacks_of(const std::vector<Parameter>& matrices) {
    constexpr std::int64_t most_elements = std::int64_t{4} << 20;
    std::vector<std::vector<std::size_t>> stacks;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
        const Shape& shape = matrices[i].shape();
        const auto has_room = [&](const std::vector<std::size_t>& stack) {
            return matrices[stack.front()].shape() == shape &&
                   (std::ssize(stack) + 1) * shape.elements() <= most_elements;
        };
        const auto found = std::ranges::find_if(stacks, has_room);
        (found != stacks.end() ? *found : stacks.emplace_back()).push_back(i);
    }
    return stacks;
}

Tensor update_of(const Tensor& updates, std::size_t i) {
    return updates.select(0, static_cast<std::int64_t>(i));
}

}  // namespace

void newton_schulz(const Context& ctx, const Tensor& x) {
    check((x.rank() == 2 || x.rank() == 3) && x.is_contiguous(), "newton_schulz: ", x,
          "; expected a contiguous matrix or stack of matrices");
    constexpr int steps = 5;
    static_assert(steps % 2 == 1);
    const std::int64_t count = x.rank() == 3 ? x.size(0) : 1, rows = x.size(-2), cols = x.size(-1);
    // A is the smaller of the two Gram matrices: for a tall X the iteration is that of its transpose.
    const bool tall = rows > cols;
    const std::int64_t n = std::min(rows, cols);
    Tensor current = x.reshape({count, rows, cols}), next = empty_like(ctx, current);
    for (std::int64_t i = 0; i < count; ++i) {
        const Tensor matrix = current.select(0, i);
        on_device(ctx, cpu::divide_by_norm, cuda::divide_by_norm, matrix, global_norm(ctx, matrix));
    }
    const Tensor gram = empty(ctx, {count, n, n}, x.dtype()), polynomial = empty_like(ctx, gram);
    for (int step = 0; step < steps; ++step) {
        gemm(ctx, gram, current, current, {.trans_a = tall, .trans_b = !tall});
        gemm(ctx, polynomial, gram, gram);
        on_device(ctx, cpu::add_lower_powers, cuda::add_lower_powers, polynomial, gram);
        if (tall) {
            gemm(ctx, next, current, polynomial);
        } else {
            gemm(ctx, next, polynomial, current);
        }
        std::swap(current, next);
    }
    copy(ctx, x.reshape({count, rows, cols}), current);  // an odd number of swaps: it is the other buffer
}

Muon::Muon(const Context& ctx, const ParameterStore& store,
           const std::function<bool(const Parameter&)>& is_hidden_matrix, const MuonOptions& options)
    : store_(store),
      matrices_(split(store, is_hidden_matrix, true)),
      options_(options),
      adamw_(ctx, store, split(store, is_hidden_matrix, false), options.adamw) {
    for (const Parameter& matrix : matrices_)
        momenta_.push_back(zeros(ctx, matrix.shape(), store.gradients().dtype()));
    stacks_ = stacks_of(matrices_);
}

void Muon::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    for (const std::vector<std::size_t>& stack : stacks_) {
        const Shape& shape = matrices_[stack.front()].shape();
        const std::int64_t rows = shape[0], cols = shape[1];
        const Tensor updates = empty(ctx, {std::ssize(stack), rows, cols}, store_.gradients().dtype());
        for (std::size_t i = 0; i < stack.size(); ++i)
            on_device(ctx, cpu::muon_momentum, cuda::muon_momentum, matrices_[stack[i]].grad(),
                      options.gradient_scale, options_.momentum, momenta_[stack[i]], update_of(updates, i));
        newton_schulz(ctx, updates);
        const MuonRate derived{
            .lr_ratio = options_.lr_ratio,
            .weight_decay = options_.weight_decay,
            .shape_factor = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)))};
        for (std::size_t i = 0; i < stack.size(); ++i) {
            const Parameter& matrix = matrices_[stack[i]];
            on_device(ctx, cpu::muon_apply, cuda::muon_apply, update_of(updates, i), rate, derived,
                      store_.master_of(matrix), matrix.value(), options);
        }
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
