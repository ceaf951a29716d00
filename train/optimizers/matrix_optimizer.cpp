#include <gradtile/train/optimizers/matrix_optimizer.h>

#include <algorithm>
#include <cstring>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>

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

/// The maximum element count in a group. A product with a few million elements leaves most of a large GPU
/// idle, so a group has a dozen such products. On the CPU one such product occupies the threads, and small
/// groups need less scratch memory.
std::int64_t group_elements(const Context& ctx, const MatrixOptions& options) {
    if (options.group_elements > 0) return options.group_elements;
    return std::int64_t{ctx.device().is_cuda() ? 32 : 4} << 20;
}

}  // namespace

MatrixOptimizer::MatrixOptimizer(const Context& ctx, const ParameterStore& store,
                                 const std::function<bool(const Parameter&)>& is_hidden_matrix,
                                 const MatrixOptions& options, const std::optional<OptimizerShard>& shard)
    : hidden_(split(store, is_hidden_matrix, true)),
      is_shard_(shard.has_value()),
      options_(options),
      adamw_(std::make_unique<ElementwiseOptimizer>(ctx, store, split(store, is_hidden_matrix, false),
                                                    options.adamw, shard)) {
    const OptimizerShard held = shard ? *shard : whole_of(store);
    arrays_ = {.values = store.values(),
               .weights = held.masters.defined() ? held.masters : store.values(),
               .gradients = held.gradients};
    add_matrices(store, held);
    allocate(ctx);
}

void MatrixOptimizer::add_matrices(const ParameterStore& store, const OptimizerShard& held) {
    for (const Parameter& matrix : hidden_) {
        const std::vector<ShardPiece> pieces = pieces_of(store, matrix, held);
        if (pieces.empty()) continue;
        const auto& [range, packed] = pieces.front();
        check(range.length >= matrix.shape().elements(), "optimizer: a shard holds ", range.length,
              " of the ", matrix.shape().elements(), " elements of '", matrix.name(),
              "'; expected all or none");
        matrices_.push_back({matrix,
                             {.value = range.begin,
                              .weight = held.masters.defined() ? packed : range.begin,
                              .gradient = packed,
                              .momentum = 0}});
    }
}

/// Allocates the momentum and forms the groups.
void MatrixOptimizer::allocate(const Context& ctx) {
    const std::int64_t max_elements = group_elements(ctx, options_);
    std::int64_t elements = 0;
    for (auto& [parameter, offsets] : matrices_) {
        const Shape& shape = parameter.shape();
        offsets.momentum = elements;
        elements += rounded_up(shape.elements(), parameter_alignment);
        const auto has_room = [&](const MatrixGroup& group) {
            return group.shape == shape && (group.count() + 1) * shape.elements() <= max_elements;
        };
        auto group = std::ranges::find_if(groups_, has_room);
        if (group == groups_.end())
            group = groups_.insert(groups_.end(), MatrixGroup{.shape = shape, .matrices = {}});
        group->matrices.push_back(offsets);
    }
    arrays_.momentum = zeros(ctx, {elements}, arrays_.gradients.dtype());
    if (ctx.device().is_cpu()) return;
    for (MatrixGroup& group : groups_) {
        std::vector<std::int32_t> words(group.matrices.size() * sizeof(MatrixOffsets) / sizeof(std::int32_t));
        std::memcpy(words.data(), group.matrices.data(), group.matrices.size() * sizeof(MatrixOffsets));
        group.on_device = from_host(ctx, words, {std::ssize(words)});
    }
}

void MatrixOptimizer::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    for (const MatrixGroup& group : groups_) {
        const std::int64_t rows = group.shape[0], cols = group.shape[1];
        const Tensor u = empty(ctx, {group.count(), rows, cols}, arrays_.momentum.dtype());
        const Tensor squares = empty(ctx, {group.count(), matrix_norm_parts}, DType::f64);
        on_device(ctx, cpu::matrix_momentum, cuda::matrix_momentum, arrays_, group, options.gradient_scale,
                  options_.momentum, u, squares);
        const MatrixRate derived{.lr_ratio = options_.lr_ratio,
                                 .weight_decay = options_.weight_decay,
                                 .step_factor = step_factor(rows, cols)};
        on_device(ctx, cpu::matrix_apply, cuda::matrix_apply, arrays_, group, direction(ctx, u, squares),
                  rate, derived, options);
    }
    adamw_->step(ctx, rate, options);
}

std::vector<StateTensor> MatrixOptimizer::state() const {
    std::vector<StateTensor> state;
    if (is_shard_ && !hidden_.empty()) {
        std::vector<FlatRange> ranges;
        for (const Matrix& matrix : matrices_)
            ranges.push_back({matrix.parameter.offset(),
                              rounded_up(matrix.parameter.shape().elements(), parameter_alignment)});
        state.push_back({"momentum", arrays_.momentum, hidden_, std::move(ranges)});
    }
    if (!is_shard_)
        for (const auto& [parameter, offsets] : matrices_)
            state.push_back({"momentum/" + parameter.name(),
                             arrays_.momentum.slice(0, offsets.momentum, parameter.shape().elements())
                                 .reshape(parameter.shape())});
    for (StateTensor& part : adamw_->state()) state.push_back(std::move(part));
    return state;
}

bool is_block_matrix(const Parameter& parameter) {
    return parameter.shape().rank() == 2 && parameter.name().starts_with("h.");
}

ParameterUpdate matrix_update_of(const Parameter& parameter, double (*flops)(const Shape& shape)) {
    if (is_block_matrix(parameter)) return {.moments = 1, .product_flops = flops(parameter.shape())};
    return {.moments = AdamW::moments.size()};
}

namespace {

void check_matrices(const char* op, const Tensor& x) {
    check(x.rank() == 3 && x.is_contiguous() && is_floating(x.dtype()), op, ": ", x,
          "; expected contiguous floating-point [count, rows, columns]");
}

}  // namespace

Tensor matrix_squares(const Context& ctx, const Tensor& x) {
    check_matrices("matrix_squares", x);
    const Tensor squares = empty(ctx, {x.size(0), matrix_norm_parts}, DType::f64);
    on_device(ctx, cpu::sums_of_squares, cuda::sums_of_squares, x, squares);
    return squares;
}

void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& squares, const Tensor& out) {
    check_matrices("normalize_matrices", x);
    check_matrices("normalize_matrices", out);
    const Shape expected{x.size(0), matrix_norm_parts};
    check(out.shape() == x.shape() && squares.shape() == expected && squares.dtype() == DType::f64,
          "normalize_matrices: x ", x, ", squares ", squares, " and out ", out,
          "; expected the result of matrix_squares(), and equal shapes");
    check_sharing(ctx, "normalize_matrices", {"out", out}, {{"x", x}}, Sharing::same_view);
    check_sharing(ctx, "normalize_matrices", {"out", out}, {{"squares", squares}});
    on_device(ctx, cpu::normalize_matrices, cuda::normalize_matrices, x, squares, out);
}

void add_lower_powers(const Context& ctx, const Tensor& squares, const Tensor& gram,
                      const MatrixPolynomial& polynomial) {
    check_matrices("add_lower_powers", gram);
    check_matrices("add_lower_powers", squares);
    check(squares.shape() == gram.shape() && squares.dtype() == gram.dtype(), "add_lower_powers: squares ",
          squares, " and gram ", gram, "; expected equal shapes and dtypes");
    check_sharing(ctx, "add_lower_powers", {"squares", squares}, {{"gram", gram}});
    on_device(ctx, cpu::add_lower_powers, cuda::add_lower_powers, squares, gram, polynomial);
}

}  // namespace gradtile
