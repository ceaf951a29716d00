#include <gradtile/train/adamw.h>

#include <algorithm>
#include <cstring>

#include <gradtile/train/adamw_backend.h>

namespace gradtile {
namespace {

constexpr std::int64_t alignment = 64;  // elements, as in the store's flat blocks
constexpr std::int64_t block_elements =
    1 << 14;  // m, v, gradient and weight of a block fit the second-level cache

std::int64_t aligned(std::int64_t n) {
    return (n + alignment - 1) / alignment * alignment;
}

Tensor upload(const Context& ctx, const std::vector<AdamWBlock>& blocks) {
    std::vector<std::int32_t> words(blocks.size() * sizeof(AdamWBlock) / sizeof(std::int32_t));
    std::memcpy(words.data(), blocks.data(), blocks.size() * sizeof(AdamWBlock));
    return from_host(ctx, words, {std::ssize(words)});
}

}  // namespace

AdamW::AdamW(const Context& ctx, const ParameterStore& store, const AdamWOptions& options)
    : AdamW(ctx, store, store.parameters(), options) {}

AdamW::AdamW(const Context& ctx, const ParameterStore& store, std::span<const Parameter> parameters,
             const AdamWOptions& options)
    : store_(store), parameters_(parameters.begin(), parameters.end()), options_(options) {
    check(store.allocated(), "adamw: the parameter store is not allocated");
    // Neighbours that decay alike are one stretch; a stretch is then cut into blocks.
    std::vector<AdamWBlock> stretches;
    std::int64_t state_elements = 0;
    for (const Parameter& parameter : parameters_) {
        const std::int64_t length = aligned(parameter.shape().elements());
        state_offsets_.push_back(state_elements);
        if (!stretches.empty() && stretches.back().decays == parameter.decays() &&
            stretches.back().offset + stretches.back().length == parameter.offset()) {
            stretches.back().length += length;
        } else {
            stretches.push_back({parameter.offset(), state_elements, length, parameter.decays()});
        }
        state_elements += length;
    }
    for (const AdamWBlock& stretch : stretches)
        for (std::int64_t begin = 0; begin < stretch.length; begin += block_elements)
            blocks_.list.push_back({stretch.offset + begin, stretch.state_offset + begin,
                                    std::min(block_elements, stretch.length - begin), stretch.decays});
    if (ctx.device().is_cuda()) {
        blocks_.on_device = upload(ctx, blocks_.list);
        blocks_.scratch = zeros(ctx, {4}, DType::f64);
    }
    const DType dtype = store.gradients().dtype();
    m_ = zeros(ctx, {state_elements}, dtype);
    v_ = zeros(ctx, {state_elements}, dtype);
    updates_ = zeros(ctx, {1}, DType::i32);
}

void AdamW::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    on_device(ctx, cpu::adamw_step, cuda::adamw_step, store_, blocks_, m_, v_, updates_, rate, options_,
              options);
}

std::vector<StateTensor> AdamW::state() const {
    std::vector<StateTensor> state;
    for (const auto& [moment, flat] : {std::pair{"m/", m_}, std::pair{"v/", v_}})
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const Shape& shape = parameters_[i].shape();
            state.push_back({moment + parameters_[i].name(),
                             flat.slice(0, state_offsets_[i], shape.elements()).reshape(shape)});
        }
    state.push_back({"updates", updates_});
    return state;
}

}  // namespace gradtile
