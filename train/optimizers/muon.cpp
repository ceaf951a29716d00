#include <gradtile/train/optimizers/muon.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_library.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/internal/muon_backend.h>
#include <gradtile/train/train_config.h>

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

/// The maximum number of elements in a group. A product with a few million elements leaves most of a large
/// GPU idle, so a group has a dozen such products. On the CPU one such product occupies the threads, and
/// small groups need less scratch memory.
std::int64_t group_elements(const Context& ctx, const MuonOptions& options) {
    if (options.group_elements > 0) return options.group_elements;
    return std::int64_t{ctx.device().is_cuda() ? 32 : 4} << 20;
}

constexpr int newton_schulz_steps = 5;

/// Returns x [count, rows, cols] orthogonalised, in the dtype of the products. May overwrite x.
Tensor orthogonalized(const Context& ctx, const Tensor& x, DType products) {
    static_assert(newton_schulz_steps % 2 == 1);
    const std::int64_t count = x.size(0), rows = x.size(1), cols = x.size(2);
    // A is the smaller of the two Gram matrices: for a tall X the iteration is that of its transpose.
    const bool tall = rows > cols;
    const std::int64_t n = std::min(rows, cols);
    Tensor current = products == x.dtype() ? x : empty(ctx, x.shape(), products);
    const Tensor partial = empty(ctx, {count, muon_norm_parts}, DType::f64);
    on_device(ctx, cpu::normalize_matrices, cuda::normalize_matrices, x, partial, current);
    Tensor next = empty_like(ctx, current);
    const Tensor gram = empty(ctx, {count, n, n}, products), polynomial = empty_like(ctx, gram);
    for (int step = 0; step < newton_schulz_steps; ++step) {
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
    return current;
}

}  // namespace

void newton_schulz(const Context& ctx, const Tensor& x, DType products) {
    check((x.rank() == 2 || x.rank() == 3) && x.is_contiguous(), "newton_schulz: ", x,
          "; expected a contiguous matrix or stack of matrices");
    check(products == x.dtype() || (products == DType::bf16 && x.dtype() == DType::f32), "newton_schulz: ", x,
          " in products of ", products, "; expected its own dtype, or bfloat16 for float32");
    const Tensor stack = x.reshape({x.rank() == 3 ? x.size(0) : 1, x.size(-2), x.size(-1)});
    copy(ctx, stack, orthogonalized(ctx, stack, products));
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

void Muon::add_matrices(const ParameterStore& store, const OptimizerShard& held) {
    for (const Parameter& matrix : hidden_) {
        const std::vector<ShardPiece> pieces = pieces_of(store, matrix, held);
        if (pieces.empty()) continue;
        const auto& [range, packed] = pieces.front();
        check(range.length >= matrix.shape().elements(), "muon: a shard holds ", range.length, " of the ",
              matrix.shape().elements(), " elements of '", matrix.name(), "'; expected all or none");
        matrices_.push_back({matrix,
                             {.value = range.begin,
                              .weight = held.masters.defined() ? packed : range.begin,
                              .gradient = packed,
                              .momentum = 0}});
    }
}

/// Allocates the momentum and forms the groups.
void Muon::allocate(const Context& ctx) {
    const std::int64_t max_elements = group_elements(ctx, options_);
    std::int64_t elements = 0;
    for (auto& [parameter, offsets] : matrices_) {
        const Shape& shape = parameter.shape();
        offsets.momentum = elements;
        elements += rounded_up(shape.elements(), parameter_alignment);
        const auto has_room = [&](const MuonGroup& group) {
            return group.shape == shape && (group.count() + 1) * shape.elements() <= max_elements;
        };
        auto group = std::ranges::find_if(groups_, has_room);
        if (group == groups_.end())
            group = groups_.insert(groups_.end(), MuonGroup{.shape = shape, .matrices = {}});
        group->matrices.push_back(offsets);
    }
    arrays_.momentum = zeros(ctx, {elements}, arrays_.gradients.dtype());
    products_ = arrays_.momentum.dtype() == DType::f64
                    ? DType::f64
                    : options_.newton_schulz.value_or(newton_schulz_dtype(ctx));
    if (ctx.device().is_cpu()) return;
    for (MuonGroup& group : groups_) {
        std::vector<std::int32_t> words(group.matrices.size() * sizeof(MuonOffsets) / sizeof(std::int32_t));
        std::memcpy(words.data(), group.matrices.data(), group.matrices.size() * sizeof(MuonOffsets));
        group.on_device = from_host(ctx, words, {std::ssize(words)});
    }
}

void Muon::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    for (const MuonGroup& group : groups_) {
        const std::int64_t rows = group.shape[0], cols = group.shape[1];
        const Tensor updates = empty(ctx, {group.count(), rows, cols}, arrays_.momentum.dtype());
        on_device(ctx, cpu::muon_momentum, cuda::muon_momentum, arrays_, group, options.gradient_scale,
                  options_.momentum, updates);
        const MuonRate derived{
            .lr_ratio = options_.lr_ratio,
            .weight_decay = options_.weight_decay,
            .shape_factor = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)))};
        on_device(ctx, cpu::muon_apply, cuda::muon_apply, arrays_, group,
                  orthogonalized(ctx, updates, products_), rate, derived, options);
    }
    adamw_->step(ctx, rate, options);
}

std::vector<StateTensor> Muon::state() const {
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

namespace {

bool is_in_block(const Parameter& parameter) {
    return parameter.name().starts_with("h.");
}

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
                                              const TrainConfig& config,
                                              const std::optional<OptimizerShard>& shard) const {
    const AdamW adamw = std::get<AdamWSettings>(config.optimizer_settings).rule(config.weight_decay);
    const MuonOptions options{.lr_ratio = lr / config.lr,
                              .momentum = momentum,
                              .weight_decay = config.weight_decay,
                              .adamw = adamw,
                              .newton_schulz = dtype_of_products(products)};
    return std::make_unique<Muon>(ctx, store, is_in_block, options, shard);
}

ParameterUpdate MuonSettings::update_of(const Parameter& parameter) const {
    if (parameter.shape().rank() == 2 && is_in_block(parameter))
        return {.moments = 1, .product_flops = newton_schulz_flops(parameter.shape())};
    return {.moments = AdamW::moments.size()};
}

}  // namespace gradtile
