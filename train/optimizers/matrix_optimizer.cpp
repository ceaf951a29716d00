#include <gradtile/train/optimizers/matrix_optimizer.h>

#include <algorithm>
#include <string_view>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/upload.h>

namespace gradtile {
namespace {

std::vector<Parameter> split(const ParameterStore& store, const PackedRows& packed_rows, bool hidden) {
    std::vector<Parameter> chosen;
    for (const Parameter& parameter : store.parameters())
        if ((parameter.shape().rank() == 2 && !packed_rows(parameter).empty()) == hidden)
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

/// The space of a parameter's state in a packed array.
std::int64_t padded(std::int64_t elements) {
    return rounded_up(elements, parameter_alignment);
}

}  // namespace

MatrixOptimizer::MatrixOptimizer(const Context& ctx, const ParameterStore& store,
                                 const PackedRows& packed_rows, const MatrixOptions& options,
                                 const std::optional<OptimizerShard>& shard)
    : all_hidden_(split(store, packed_rows, true)),
      is_shard_(shard && !shard->is_whole),
      options_(options),
      adamw_(std::make_unique<ElementwiseOptimizer>(ctx, store, split(store, packed_rows, false),
                                                    options.adamw, shard, options.lr_factor,
                                                    options.moments)) {
    const OptimizerShard held = shard ? *shard : whole_of(store);
    arrays_ = {.values = held.values_in(store),
               .weights = held.masters.defined() ? held.masters : held.values_in(store),
               .gradients = held.gradients,
               .updates = adamw_->updates(),
               .seed = options.moments.seed};
    find_hidden(ctx, store, held);
    form_groups(ctx, packed_rows);
}

MatrixOptimizer::~MatrixOptimizer() = default;

/// Finds the parameters that this process updates as matrices, and allocates their moments.
void MatrixOptimizer::find_hidden(const Context& ctx, const ParameterStore& store,
                                  const OptimizerShard& held) {
    std::int64_t elements = 0, rows = 0;
    for (const Parameter& parameter : all_hidden_) {
        const std::vector<ShardPiece> pieces = pieces_of(store, parameter, held);
        if (pieces.empty()) continue;
        const auto& [range, packed] = pieces.front();
        check(range.length >= parameter.shape().elements(), "optimizer: a shard holds ", range.length,
              " of the ", parameter.shape().elements(), " elements of '", parameter.name(),
              "'; expected all or none");
        const std::int64_t value = held.values.defined() ? packed : range.begin;
        hidden_.push_back({parameter,
                           {.element = range.begin,
                            .value = value,
                            .weight = held.masters.defined() ? packed : value,
                            .gradient = packed,
                            .momentum = elements,
                            .second_moment = rows}});
        elements += padded(parameter.shape().elements());
        rows += padded(parameter.shape()[0]);
    }
    const Context state_ctx = held.state_context(ctx);
    arrays_.momentum = zeros(state_ctx, {options_.moments.numbers(elements)},
                             moment_dtype(options_.moments, arrays_.arithmetic()));
    if (options_.beta2 > 0.0) arrays_.second_moment = zeros(state_ctx, {rows}, arrays_.arithmetic());
}

/// Adds a matrix to a group of its shape that has room, or to a new group.
void MatrixOptimizer::add_to_group(const Shape& shape, const MatrixOffsets& offsets,
                                   std::int64_t max_elements) {
    const auto has_room = [&](const MatrixGroup& group) {
        return group.shape == shape && (group.count() + 1) * shape.elements() <= max_elements;
    };
    auto group = std::ranges::find_if(groups_, has_room);
    if (group == groups_.end())
        group = groups_.insert(groups_.end(), MatrixGroup{.shape = shape, .matrices = {}});
    MatrixOffsets& added = group->matrices.emplace_back(offsets);
    if (!options_.moments.in_blocks()) return;
    added.momentum_block = offsets.momentum / moment_block;
    added.momentum = (group->count() - 1) * shape.elements();
}

void MatrixOptimizer::form_groups(const Context& ctx, const PackedRows& packed_rows) {
    const std::int64_t max_elements = group_elements(ctx, options_);
    for (const auto& [parameter, first] : hidden_) {
        const std::int64_t cols = parameter.shape()[1];
        std::int64_t row = 0;
        for (const std::int64_t rows : packed_rows(parameter)) {
            check(!options_.moments.in_blocks() || row * cols % moment_block == 0, "optimizer: a matrix in '",
                  parameter.name(), "' begins at element ", row * cols, "; expected a multiple of ",
                  moment_block, " for moments in 8 bits");
            add_to_group({rows, cols},
                         {.element = first.element + row * cols,
                          .value = first.value + row * cols,
                          .weight = first.weight + row * cols,
                          .gradient = first.gradient + row * cols,
                          .momentum = first.momentum + row * cols,
                          .second_moment = first.second_moment + row},
                         max_elements);
            row += rows;
        }
        check(row == parameter.shape()[0], "optimizer: the matrices in '", parameter.name(), "' have ", row,
              " rows; expected ", parameter.shape()[0]);
    }
    if (ctx.device().is_cpu()) return;
    for (MatrixGroup& group : groups_) group.on_device = uploaded(ctx, group.matrices);
}

void MatrixOptimizer::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    for (const MatrixGroup& group : groups_) {
        const std::int64_t rows = group.shape[0], cols = group.shape[1];
        const Tensor u = empty(ctx, {group.count(), rows, cols}, arrays_.arithmetic());
        const Tensor squares = empty(ctx, {group.count(), matrix_norm_parts}, DType::f64);
        MatrixArrays arrays = arrays_;
        if (options_.moments.in_blocks()) {
            arrays.momentum = empty(ctx, {group.count() * rows * cols}, DType::f32);
            on_device(ctx, cpu::decode_momentum, cuda::decode_momentum, arrays_, group, arrays.momentum);
        }
        on_device(ctx, cpu::matrix_momentum, cuda::matrix_momentum, arrays, group, options.gradient_scale,
                  options_.momentum, u, squares);
        if (options_.moments.in_blocks())
            on_device(ctx, cpu::encode_momentum, cuda::encode_momentum, arrays_, group,
                      options.gradient_scale, arrays.momentum);
        const Tensor update = direction(ctx, u, squares);
        RowFactors row_factors;
        if (arrays_.second_moment.defined()) {
            row_factors = {.factors = empty(ctx, {group.count(), rows}, arrays_.second_moment.dtype()),
                           .squares = empty(ctx, {group.count(), matrix_norm_parts, 2}, DType::f64)};
            on_device(ctx, cpu::row_factors, cuda::row_factors, arrays_, group, update,
                      options.gradient_scale, options_.beta2, row_factors);
        }
        const MatrixRate derived{.lr_ratio = options_.lr_ratio,
                                 .weight_decay = options_.weight_decay,
                                 .cautious_decay = options_.cautious_decay,
                                 .step_factor = step_factor(rows, cols)};
        on_device(ctx, cpu::matrix_apply, cuda::matrix_apply, arrays_, group, update, row_factors, rate,
                  derived, options);
    }
    adamw_->step(ctx, rate, options);
}

void MatrixOptimizer::add_packed_state(std::vector<StateTensor>& state) const {
    std::vector<FlatRange> ranges, row_ranges;
    for (const auto& [parameter, offsets] : hidden_) {
        ranges.push_back({parameter.offset(), padded(parameter.shape().elements())});
        row_ranges.push_back({parameter.offset(), padded(parameter.shape()[0])});
    }
    state.push_back({"momentum", arrays_.momentum, all_hidden_, options_.moments.numbers(ranges),
                     options_.moments.layout()});
    if (arrays_.second_moment.defined())
        state.push_back(
            {"second_moment", arrays_.second_moment, all_hidden_, std::move(row_ranges), StateLayout::rows});
}

std::vector<StateTensor> MatrixOptimizer::state() const {
    std::vector<StateTensor> state;
    if (is_shard_) {
        if (!all_hidden_.empty()) add_packed_state(state);
    } else {
        for (const auto& [parameter, offsets] : hidden_)
            state.push_back({"momentum/" + parameter.name(),
                             moments_of(options_.moments, arrays_.momentum, parameter, offsets.momentum)});
        if (arrays_.second_moment.defined())
            for (const auto& [parameter, offsets] : hidden_)
                state.push_back(
                    {"second_moment/" + parameter.name(),
                     arrays_.second_moment.slice(0, offsets.second_moment, parameter.shape()[0])});
    }
    for (StateTensor& part : adamw_->state()) state.push_back(std::move(part));
    return state;
}

std::vector<std::int64_t> block_matrix_rows(const Parameter& parameter, const ModelConfig& model) {
    const std::string& name = parameter.name();
    if (parameter.shape().rank() != 2 || !name.starts_with("h.")) return {};
    const std::int64_t rows = parameter.shape()[0];
    const auto is_of = [&](std::string_view layer) { return name.find(layer) != std::string::npos; };
    if (is_of(".attn.value_embedding.") || is_of(".attn.value_gate.") || is_of(".attn.gate.")) return {};
    if (name.ends_with(".lora_a")) return {rows};  // its rows are the adapter's, not the matrix's
    if (is_of(".attn.qkv.")) {
        const std::int64_t key_rows = model.key_value_heads() * model.head_dim();
        return {rows - 2 * key_rows, key_rows, key_rows};
    }
    if (is_of(".mlp.gate_up.")) return {rows / 2, rows / 2};
    return {rows};
}

ParameterUpdate matrix_update_of(const Parameter& parameter, std::span<const std::int64_t> packed_rows,
                                 const MatrixOptions& options,
                                 const std::function<double(const Shape&)>& flops) {
    if (packed_rows.empty()) return {.moments = AdamW::moments.size()};
    ParameterUpdate update{.moments = 1, .row_moments = options.beta2 > 0.0 ? 1u : 0u};
    for (const std::int64_t rows : packed_rows) update.product_flops += flops({rows, parameter.shape()[1]});
    return update;
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
