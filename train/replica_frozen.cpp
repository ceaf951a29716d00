#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/internal/frozen_values.h>
#include <gradtile/train/parallel/internal/shard_exchange.h>
#include <gradtile/train/replica.h>

/// The parameters that a replica with adapters does not train: how it draws, loads and saves them. Training
/// does not change them, so all checkpoints read one copy in host memory.
namespace gradtile {
namespace {

FrozenValues::Block block_of(bool codes) {
    return codes ? FrozenValues::Block::codes : FrozenValues::Block::values;
}

std::int64_t length_of(const ParameterStore& frozen, bool codes) {
    return codes ? frozen.code_words() : frozen.flat_elements();
}

/// The numbers that this process has. `slots` may be null.
const Tensor& block_at_rest(const ParameterStore& frozen, const FrozenValues* slots, bool codes) {
    if (slots != nullptr) return slots->own(block_of(codes));
    return codes ? frozen.codes() : frozen.values();
}

/// The same memory as a tensor of the host, which can read it.
Tensor as_host_tensor(const Tensor& x) {
    return {x.buffer(), x.raw_data(), Device::cpu(), x.dtype(), x.shape(), contiguous_strides(x.shape())};
}

/// The part of a block that process `rank` writes if every process has all of it.
FlatRange written_part(std::int64_t numbers, int rank, int processes) {
    const std::int64_t length = numbers / (parameter_alignment * processes) * parameter_alignment;
    const std::int64_t begin = rank * length;
    return {begin, rank + 1 == processes ? numbers - begin : length};
}

/// A parameter's shape in a checkpoint, and where its numbers are in the block.
Shape saved_shape(const Parameter& parameter) {
    return parameter.is_quantized() ? Shape{numbers_in_block(parameter)} : parameter.shape();
}
FlatRange saved_numbers(const Parameter& parameter) {
    return {parameter.offset(), saved_shape(parameter).elements()};
}

}  // namespace

void Replica::draw_frozen(Seed seed) {
    frozen_copy_ = FrozenCopy::none;
    KeepMasters keep;
    if (FrozenValues* const slots = parallel.frozen())
        keep = [this, slots](const Parameter& parameter, const Tensor& numbers) {
            slots->keep(model.ctx, parameter, numbers);
        };
    model.frozen.initialize(model.ctx, seed, keep);
}

void Replica::load_frozen(const Checkpoint& checkpoint, const std::string& source) {
    frozen_copy_ = FrozenCopy::none;  // of other weights
    if (FrozenValues* const slots = parallel.frozen()) {
        share_parameters(model.frozen, checkpoint, source,
                         [&](const Parameter& parameter, const Tensor& numbers) {
                             slots->keep(model.ctx, parameter, numbers);
                         });
        return;
    }
    if (is_root()) copy_parameters(model.ctx, model.frozen, checkpoint, source);
    std::vector<Tensor> blocks;
    add_frozen_blocks(blocks);
    for (const Tensor& block : blocks) communicator_.broadcast(model.ctx, block);
}

/// Adds the blocks that this process has.
void Replica::add_frozen_blocks(std::vector<Tensor>& blocks) const {
    for (const bool codes : {false, true})
        if (length_of(model.frozen, codes) > 0)
            blocks.push_back(block_at_rest(model.frozen, parallel.frozen(), codes));
}

/// Returns a flat tensor of the device in host memory.
Tensor Replica::frozen_on_host(const std::string& name, const Tensor& x) {
    if (model.ctx.device().is_cpu()) return x;
    return parallel.offloads_frozen() ? as_host_tensor(x) : to_host_memory(name, x);
}

Replica::FrozenBlock Replica::whole_frozen(bool codes, bool reserves) {
    const std::string name = codes ? "frozen codes" : "frozen values";
    const std::int64_t numbers = length_of(model.frozen, codes);
    FrozenBlock block{.ranges = {{0, numbers}}};
    FrozenValues* const slots = parallel.frozen();
    if (!slots || !slots->is_sharded()) {
        if (!is_root()) return block;
        block.numbers = frozen_on_host(name, block_at_rest(model.frozen, slots, codes));
        return block;
    }
    if (is_root()) block.numbers = host_memory(name, numbers, codes ? DType::i32 : model.frozen.dtype());
    if (reserves) return block;
    slots->read_all(model.ctx, block_of(codes), [&](const FlatRange& bucket, const Tensor& full) {
        if (is_root())
            copy_part(model.ctx, block.numbers.slice(0, bucket.begin, bucket.length), full, /*host=*/true);
    });
    return block;
}

Replica::FrozenBlock Replica::frozen_part(bool codes) {
    const std::string name = codes ? "frozen codes' part" : "frozen values' part";
    const FrozenValues* const slots = parallel.frozen();
    if (slots && slots->is_sharded())
        return {slots->own_ranges(block_of(codes)), frozen_on_host(name, slots->own(block_of(codes)))};
    const Tensor own = block_at_rest(model.frozen, slots, codes);
    const FlatRange part = written_part(own.elements(), communicator_.rank(), communicator_.size());
    if (part.length == 0) return {};
    return {{part}, frozen_on_host(name, own.slice(0, part.begin, part.length))};
}

/// Sets frozen_ to a copy of this kind.
void Replica::copy_frozen(FrozenCopy kind, bool reserves) {
    if (frozen_copy_ == kind) return;
    frozen_ = {};
    for (const bool codes : {false, true}) {
        if (length_of(model.frozen, codes) == 0) continue;
        frozen_[codes ? 1 : 0] =
            kind == FrozenCopy::whole ? whole_frozen(codes, reserves) : frozen_part(codes);
    }
    if (model.ctx.device().is_cuda()) cuda::synchronize(model.ctx.device(), model.ctx.stream());
    const bool has_values = !reserves || !parallel.frozen() || !parallel.frozen()->is_sharded();
    frozen_copy_ = has_values ? kind : FrozenCopy::none;
}

void Replica::add_frozen(Checkpoint& checkpoint, bool reserves) {
    copy_frozen(FrozenCopy::whole, reserves);
    if (!is_root()) return;
    for (const Parameter& parameter : model.frozen.parameters()) {
        const FlatRange numbers = saved_numbers(parameter);
        const Tensor& block = frozen_[parameter.is_quantized() ? 1 : 0].numbers;
        checkpoint.params[parameter.name()] =
            block.slice(0, numbers.begin, numbers.length).reshape(saved_shape(parameter));
        checkpoint.constant_params.insert(parameter.name());
    }
}

void Replica::add_frozen_pieces(Checkpoint& checkpoint) {
    copy_frozen(FrozenCopy::part, /*reserves=*/false);
    for (const Parameter& parameter : model.frozen.parameters()) {
        const FrozenBlock& block = frozen_[parameter.is_quantized() ? 1 : 0];
        const FlatRange numbers = saved_numbers(parameter);
        visit_packed(block.ranges, numbers, [&](const FlatRange& range, std::int64_t packed) {
            const std::string name = piece_name(parameter.name(), range.begin - numbers.begin);
            checkpoint.params.emplace(name, block.numbers.slice(0, packed, range.length));
            checkpoint.constant_params.insert(name);
        });
    }
}

}  // namespace gradtile
