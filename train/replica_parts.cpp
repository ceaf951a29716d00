#include <gradtile/train/parallel/internal/value_slots.h>
#include <gradtile/train/replica.h>

/// A sharded replica's process writes these pieces to its part of a checkpoint.
namespace gradtile {
namespace {

/// Adds the pieces of a tensor whose numbers are in `ranges` of a flat block. memory(range, packed) returns a
/// piece's numbers; see visit_packed().
template <class Memory>
void add_pieces(NamedTensors& pieces, const std::string& name, std::span<const FlatRange> ranges,
                const FlatRange& numbers, const Memory& memory) {
    visit_packed(ranges, numbers, [&](const FlatRange& range, std::int64_t packed) {
        pieces.emplace(piece_name(name, range.begin - numbers.begin), memory(range, packed));
    });
}

/// Where a parameter's elements are in a flat block.
FlatRange elements_of(const Parameter& parameter) {
    return {parameter.offset(), parameter.shape().elements()};
}

}  // namespace

void Replica::save_part_into(Checkpoint& checkpoint) {
    const ParameterStore& store = model.parameters;
    const std::vector<FlatRange>& own = parallel.own_ranges();
    const auto packed_in = [](const Tensor& packed_numbers) {
        return [&](const FlatRange& range, std::int64_t packed) {
            return packed_numbers.slice(0, packed, range.length);
        };
    };
    const auto value = [&](const FlatRange& range, std::int64_t packed) {
        return parallel.own_values().defined() ? parallel.own_values().slice(0, packed, range.length)
                                               : store.values().slice(0, range.begin, range.length);
    };
    for (const Parameter& parameter : store.parameters())
        add_pieces(checkpoint.params, parameter.name(), own, elements_of(parameter), value);

    if (masters_.defined()) {
        const Tensor& masters = whole_masters();
        for (const Parameter& parameter : store.parameters())
            add_pieces(checkpoint.master, parameter.name(), own, elements_of(parameter), packed_in(masters));
    }

    if (model.has_adapters()) add_frozen_pieces(checkpoint);

    for (const StateTensor& state : optimizer->state()) {
        if (state.parameters.empty() && is_root())
            checkpoint.optimizer[piece_name(state.name, 0)] = state.tensor;
        for (const Parameter& parameter : state.parameters)
            add_pieces(checkpoint.optimizer, state.name + '/' + parameter.name(), state.ranges,
                       state.numbers_of(parameter), packed_in(state.tensor));
    }
}

std::vector<TensorInfo> Replica::saved_tensors() const {
    const ParameterStore& store = model.parameters;
    std::vector<TensorInfo> tensors;
    const auto add = [&](const char* group, const std::string& name, DType dtype, const Shape& shape) {
        tensors.push_back({concat(group, '/', name), dtype, shape});
    };
    for (const Parameter& parameter : store.parameters()) {
        add("params", parameter.name(), store.dtype(), parameter.shape());
        if (masters_.defined()) add("master", parameter.name(), DType::f32, parameter.shape());
    }
    for (const Parameter& parameter : model.frozen.parameters())
        if (parameter.is_quantized()) {
            add("params", parameter.name(), DType::i32, {numbers_in_block(parameter)});
        } else {
            add("params", parameter.name(), model.frozen.dtype(), parameter.shape());
        }
    for (const StateTensor& state : optimizer->state()) {
        const DType dtype = state.tensor.dtype();
        if (state.parameters.empty()) add("optimizer", state.name, dtype, state.tensor.shape());
        for (const Parameter& parameter : state.parameters)
            add("optimizer", state.name + '/' + parameter.name(), dtype, state.shape_of(parameter));
    }
    return tensors;
}

}  // namespace gradtile
