#include <gradtile/train/replica.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/offload_allocator.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/configured_optimizer.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/parallel/internal/shard_exchange.h>

namespace gradtile {
namespace {

bool is_sharded(const TrainConfig& config, const Communicator& communicator) {
    return config.zero > 0 && communicator.size() > 1;
}

FlatOptions flat_options(const Context& ctx, const TrainConfig& config, const Communicator& communicator) {
    const bool sharded = is_sharded(config, communicator);
    const DataParallelOptions exchange = data_parallel_options(config);
    return {.masters = !sharded && config.masters == MasterFormat::f32 &&
                       !has_part(config.offload, Offload::optimizer),
            .gradient_block = !exchange.has_slots(communicator.size()),
            .value_block = !exchange.has_value_slots(communicator.size()),
            .allocator = communicator.symmetric_memory(ctx)};
}

/// Returns ctx with an allocator of host memory that the device can address.
Context host_memory_of(const Context& ctx) {
    return ctx.device().is_cpu() ? ctx : ctx.with_allocator(offload_allocator(ctx.device()));
}

DataParallelOptions exchange_options(const Context& ctx, const TrainConfig& config) {
    DataParallelOptions options = data_parallel_options(config);
    if (options.offloads_sums || options.offloads_values || options.offloads_frozen)
        options.host_allocator = host_memory_of(ctx).allocator();
    return options;
}

/// Adds each parameter's part in a flat block, under the parameter's name.
void add_views(const Tensor& flat, std::span<const Parameter> held, NamedTensors& tensors) {
    for (const Parameter& parameter : held)
        tensors[parameter.name()] =
            flat.slice(0, parameter.offset(), parameter.shape().elements()).reshape(parameter.shape());
}

/// Returns a function that copies what a packed tensor has of a bucket to `memory`, which holds the bucket.
DataParallel::BucketAccess packed_writer(const Context& ctx, std::span<const FlatRange> ranges,
                                         const Tensor& packed_numbers) {
    return [=, &ctx](const FlatRange& bucket, const Tensor& memory) {
        visit_packed(ranges, bucket, [&](const FlatRange& range, std::int64_t packed) {
            copy(ctx, memory.slice(0, range.begin - bucket.begin, range.length),
                 packed_numbers.slice(0, packed, range.length));
        });
    };
}

/// Adds what each parameter's part of a flat block holds of a sharded optimizer's state.
void add_state_views(const Tensor& flat, const StateTensor& part, NamedTensors& tensors) {
    for (const Parameter& parameter : part.parameters) {
        const FlatRange numbers = part.numbers_of(parameter);
        tensors[part.name + '/' + parameter.name()] =
            flat.slice(0, numbers.begin, numbers.length).reshape(part.shape_of(parameter));
    }
}

const Tensor& saved_state(const Checkpoint& checkpoint, const std::string& name, const Shape& shape,
                          DType dtype, const std::string& source) {
    const auto saved = checkpoint.optimizer.find(name);
    check(saved != checkpoint.optimizer.end(), source, ": has no optimizer state '", name, "'");
    check(saved->second.shape() == shape && saved->second.dtype() == dtype, source, ": optimizer state '",
          name, "' is ", saved->second, "; expected ", shape, ' ', dtype);
    return saved->second;
}

/// The first parameter whose name is among `names`.
std::string first_in_order(std::span<const Parameter> parameters, const std::vector<std::string>& names) {
    for (const Parameter& parameter : parameters)
        if (std::ranges::find(names, parameter.name()) != names.end()) return parameter.name();
    return {};
}

}  // namespace

Replica::Replica(const Context& ctx, const TrainConfig& config, std::optional<Tokenizer> tokenizer,
                 const Communicator& communicator)
    : model(ctx, config.model, storage_dtype(config.dtype), std::move(tokenizer),
            flat_options(ctx, config, communicator), config.training, config.adapters,
            !data_parallel_options(config).has_frozen_slots(communicator.size())),
      parallel(ctx, model.parameters, communicator, exchange_options(ctx, config), &model.frozen),
      communicator_(communicator) {
    const ParameterStore& store = model.parameters;
    const bool sharded = parallel.is_sharded();
    OptimizerShard shard{.ranges = parallel.own_ranges(),
                         .gradients = parallel.gradients(),
                         .values = parallel.own_values(),
                         .is_whole = !sharded};
    if (has_part(config.offload, Offload::optimizer)) shard.state_allocator = host_memory_of(ctx).allocator();
    if (is_16_bit(store.dtype()) && !store.has_master()) {
        const std::int64_t elements = parallel.own_elements();
        const Context state_ctx = shard.state_context(ctx);
        masters_ = config.masters == MasterFormat::split
                       ? zeros(state_ctx, {elements / remainders_per_word}, DType::i32)
                       : zeros(state_ctx, {elements}, DType::f32);
    }
    shard.masters = store.has_master() ? store.master() : masters_;
    optimizer = make_optimizer(ctx, store, config, shard);
    if (sharded && config.shard_copies > 0) {
        const OptimizerPart largest = largest_optimizer_part(store, config, communicator.size());
        shard_copies = std::make_unique<ShardCopies>(ctx, shard_memory(), largest.shard_bytes(store.dtype()),
                                                     communicator);
    }
}

/// Returns where the shard's values, masters and state are.
std::vector<std::span<std::byte>> Replica::shard_memory() const {
    std::vector<std::span<std::byte>> memory;
    const auto add = [&](const Tensor& x) {
        if (x.defined()) memory.emplace_back(x.raw_data(), x.bytes());
    };
    add(parallel.own_values());
    if (!parallel.own_values().defined())
        for (const FlatRange& range : parallel.own_ranges())
            add(model.parameters.values().slice(0, range.begin, range.length));
    add(masters_);
    for (const StateTensor& part : optimizer->state()) add(part.tensor);
    return memory;
}

void Replica::keep_masters(const Parameter& parameter, const Tensor& flat) {
    const Context& ctx = model.ctx;
    const std::int64_t first = parameter.offset();
    visit_packed(
        parallel.own_ranges(), {first, flat.elements()}, [&](const FlatRange& range, std::int64_t packed) {
            const Tensor part = flat.slice(0, range.begin - first, range.length);
            if (parallel.own_values().defined())
                round_masters(ctx, part, parallel.own_values().slice(0, packed, range.length));
            if (!masters_.defined()) return;
            if (masters_.dtype() == DType::f32) {
                copy(ctx, masters_.slice(0, packed, range.length), part);
            } else {
                split_masters(
                    ctx, part,
                    masters_.slice(0, packed / remainders_per_word, range.length / remainders_per_word));
            }
        });
}

void Replica::copy_masters(const FlatRange& elements, std::int64_t packed, const Tensor& masters) const {
    const Context& ctx = model.ctx;
    if (masters_.dtype() == DType::f32) {
        copy(ctx, masters, masters_.slice(0, packed, elements.length));
    } else {
        const Tensor& own = parallel.own_values();
        join_masters(ctx,
                     own.defined() ? own.slice(0, packed, elements.length)
                                   : model.parameters.values().slice(0, elements.begin, elements.length),
                     masters_.slice(0, packed / remainders_per_word, elements.length / remainders_per_word),
                     masters);
    }
}

void Replica::initialize(Seed seed) {
    if (model.has_adapters()) draw_frozen(seed);
    draw_weights(seed);
}

void Replica::draw_weights(Seed seed) {
    model.parameters.initialize(model.ctx, seed, [this](const Parameter& parameter, const Tensor& drawn) {
        keep_masters(parameter, drawn);
    });
}

void Replica::start_from(const Checkpoint& checkpoint, const std::string& source, Seed seed) {
    if (!model.has_adapters()) {
        load_weights(checkpoint, source);
        return;
    }
    load_frozen(checkpoint, source);
    draw_weights(seed);
}

void Replica::load_weights(const Checkpoint& checkpoint, const std::string& source) {
    const Context& ctx = model.ctx;
    const ParameterStore& store = model.parameters;
    if (!masters_.defined() && store.values().defined()) {
        if (is_root()) copy_parameters(ctx, store, checkpoint, source);
        communicator_.broadcast(ctx, store.values());
        if (store.has_master()) communicator_.broadcast(ctx, store.master());
        return;
    }
    share_parameters(store, checkpoint, source, [&](const Parameter& parameter, const Tensor& masters) {
        keep_masters(parameter, masters);
    });
    if (store.values().defined()) communicator_.broadcast(ctx, store.values());
}

void Replica::share_parameters(const ParameterStore& store, const Checkpoint& checkpoint,
                               const std::string& source, const KeepMasters& keep) const {
    const auto share = [&](const Parameter& parameter, const Tensor& numbers) {
        communicator_.broadcast(model.ctx, numbers);
        keep(parameter, numbers);
    };
    if (is_root()) {
        copy_parameters(model.ctx, store, checkpoint, source, share);
    } else {
        for (const Parameter& parameter : store.parameters())
            share(parameter, kept_numbers(model.ctx, parameter));
    }
}

void Replica::restore(const Checkpoint& checkpoint, const std::string& source) {
    if (is_root()) check_saved_dtypes(checkpoint, model.parameters.dtype(), model.frozen, source);
    if (model.has_adapters()) {
        load_frozen(weights_of(checkpoint, model.frozen, Membership::inside), source);
        load_weights(weights_of(checkpoint, model.frozen, Membership::outside), source);
    } else {
        load_weights(checkpoint, source);
    }
    restore_moments(checkpoint, source);
}

void Replica::restore_moments(const Checkpoint& checkpoint, const std::string& source) {
    const Context& ctx = model.ctx;
    for (const StateTensor& part : optimizer->state()) {
        if (part.parameters.empty()) {  // every process has the whole tensor
            if (is_root())
                copy(ctx, part.tensor,
                     to_device(ctx, saved_state(checkpoint, part.name, part.tensor.shape(),
                                                part.tensor.dtype(), source)));
            communicator_.broadcast(ctx, part.tensor);
            continue;
        }
        for (const Parameter& parameter : part.parameters) {
            const Shape shape = part.shape_of(parameter);
            const DType dtype = part.tensor.dtype();
            const Tensor saved =
                is_root() ? to_device(ctx, saved_state(checkpoint, part.name + '/' + parameter.name(), shape,
                                                       dtype, source))
                          : empty(ctx, shape, dtype);
            communicator_.broadcast(ctx, saved);
            const FlatRange numbers = part.numbers_of(parameter);
            const Tensor flat = saved.reshape({numbers.length});
            visit_packed(part.ranges, numbers, [&](const FlatRange& range, std::int64_t packed) {
                copy(ctx, part.tensor.slice(0, packed, range.length),
                     flat.slice(0, range.begin - numbers.begin, range.length));
            });
        }
    }
}

void Replica::share(int root) {
    check(!parallel.is_sharded(), "replica: its state is divided between the processes");
    std::vector<Tensor> tensors = {whole_values()};
    if (model.parameters.has_master()) tensors.push_back(model.parameters.master());
    if (masters_.defined()) tensors.push_back(masters_);
    if (model.has_adapters()) add_frozen_blocks(tensors);
    for (const StateTensor& part : optimizer->state()) tensors.push_back(part.tensor);
    for (const Tensor& x : tensors) communicator_.broadcast(model.ctx, x, root);
    parallel.forget_frozen();
}

void Replica::clear_optimizer() const {
    for (const StateTensor& part : optimizer->state()) fill(model.ctx, part.tensor, 0.0);
}

/// A backward pass does not write the padding, in which save_into() may have left numbers.
void Replica::clear_gradients() const {
    const Tensor& gradients = model.parameters.gradients();
    if (gradients.defined()) fill(model.ctx, gradients, 0.0);
}

const Tensor& Replica::whole_values() const {
    const Tensor& own = parallel.own_values();
    return own.defined() ? own : model.parameters.values();
}

const Tensor& Replica::whole_masters() {
    return masters_.dtype() == DType::f32 ? masters_ : joined_masters();
}

const Tensor& Replica::joined_masters() {
    const Tensor& sums = parallel.gradients();  // not used between steps
    if (sums.dtype() != DType::f32 && !joined_masters_.defined())
        joined_masters_ = empty(host_memory_of(model.ctx), {sums.elements()}, DType::f32);
    const Tensor& masters = sums.dtype() == DType::f32 ? sums : joined_masters_;
    std::int64_t packed = 0;
    for (const FlatRange& range : parallel.own_ranges()) {
        copy_masters(range, packed, masters.slice(0, packed, range.length));
        packed += range.length;
    }
    return masters;
}

void Replica::save_into(Checkpoint& checkpoint) {
    const Context& ctx = model.ctx;
    const ParameterStore& parameters = model.parameters;
    if (!parallel.is_sharded()) {
        if (model.has_adapters()) add_frozen(checkpoint);
        const auto held = parameters.parameters();
        add_views(whole_values(), held, checkpoint.params);
        if (parameters.has_master()) add_views(parameters.master(), held, checkpoint.master);
        if (masters_.defined()) add_views(whole_masters(), held, checkpoint.master);
        for (const StateTensor& part : optimizer->state()) checkpoint.optimizer[part.name] = part.tensor;
        return;
    }
    communicator_.barrier(ctx);  // the barrier reports a process that never arrives
    if (model.has_adapters()) add_frozen(checkpoint);
    // The processes gather one kind of tensor after the other; process 0 keeps them in host memory.
    const auto all = parameters.parameters();
    const Tensor values = gather_values();
    if (is_root()) add_views(values, all, checkpoint.params);
    if (masters_.defined()) {
        const Tensor masters = gather_masters();
        if (is_root()) add_views(masters, all, checkpoint.master);
    }
    for (const StateTensor& part : optimizer->state()) {
        if (!part.parameters.empty()) {
            const Tensor state = gather_state(part);
            if (is_root()) add_state_views(state, part, checkpoint.optimizer);
        } else if (is_root()) {
            checkpoint.optimizer[part.name] = to_host_memory(part.name, part.tensor);
        }
    }
    communicator_.synchronize(ctx);
}

Tensor Replica::gather_to_host(const std::string& name, std::int64_t numbers, DType dtype,
                               std::int64_t numbers_per_64, const DataParallel::BucketAccess& write) {
    const Tensor full = is_root() ? host_memory(name, numbers, dtype) : Tensor();
    parallel.gather_state(
        model.ctx, dtype, numbers_per_64, write, [&](const FlatRange& bucket, const Tensor& memory) {
            if (!is_root()) return;
            copy_part(model.ctx, full.slice(0, bucket.begin, bucket.length), memory, /*host=*/true);
        });
    return full;
}

Tensor Replica::gather_values() {
    const Context& ctx = model.ctx;
    const ParameterStore& store = model.parameters;
    if (store.values().defined()) {
        parallel.gather_values(ctx);
        return is_root() ? to_host_memory("values", store.values()) : Tensor();
    }
    return gather_to_host("values", store.flat_elements(), store.dtype(), parameter_alignment,
                          packed_writer(ctx, parallel.own_ranges(), parallel.own_values()));
}

Tensor Replica::gather_masters() {
    return gather_to_host(
        "masters", model.parameters.flat_elements(), DType::f32, parameter_alignment,
        [&](const FlatRange& bucket, const Tensor& memory) {
            visit_packed(parallel.own_ranges(), bucket, [&](const FlatRange& range, std::int64_t packed) {
                copy_masters(range, packed, memory.slice(0, range.begin - bucket.begin, range.length));
            });
        });
}

std::int64_t Replica::whole_numbers(const StateTensor& part) const {
    return model.parameters.flat_elements() / parameter_alignment * part.numbers_per_64();
}

Tensor Replica::gather_state(const StateTensor& part) {
    return gather_to_host(part.name, whole_numbers(part), part.tensor.dtype(), part.numbers_per_64(),
                          packed_writer(model.ctx, part.ranges, part.tensor));
}

void Replica::reserve_host_memory(Checkpoint& checkpoint) {
    const ParameterStore& store = model.parameters;
    const auto all = store.parameters();
    if (model.has_adapters()) add_frozen(checkpoint, /*reserves=*/true);
    add_views(host_memory("values", store.flat_elements(), store.dtype()), all, checkpoint.params);
    if (masters_.defined())
        add_views(host_memory("masters", store.flat_elements(), DType::f32), all, checkpoint.master);
    for (const StateTensor& part : optimizer->state()) {
        if (part.parameters.empty()) {
            checkpoint.optimizer[part.name] =
                host_memory(part.name, part.tensor.elements(), part.tensor.dtype());
        } else {
            add_state_views(host_memory(part.name, whole_numbers(part), part.tensor.dtype()), part,
                            checkpoint.optimizer);
        }
    }
}

const Tensor& Replica::host_memory(const std::string& name, std::int64_t numbers, DType dtype) {
    Tensor& reserved = on_host_[name];
    if (reserved.defined()) return reserved;
    const Context host = Context(Device::cpu(), 1).with_allocator(staging_allocator(model.ctx.device()));
    reserved = empty(host, {numbers}, dtype);
    return reserved;
}

const Tensor& Replica::to_host_memory(const std::string& name, const Tensor& x) {
    const Tensor& copied = host_memory(name, x.elements(), x.dtype());
    copy_part(model.ctx, copied, x, /*host=*/true);
    return copied;
}

std::string Replica::first_non_finite_gradient(const Context& ctx, ProcessGroup& group) const {
    std::string own;
    std::int64_t packed = 0;
    for (const FlatRange& range : parallel.own_ranges()) {
        for (const Parameter& parameter : model.parameters.parameters()) {
            const std::int64_t begin = std::max(parameter.offset(), range.begin);
            const std::int64_t end = std::min(parameter.offset() + parameter.shape().elements(), range.end());
            if (begin >= end || !own.empty()) continue;
            const Tensor part = parallel.gradients().slice(0, packed + begin - range.begin, end - begin);
            if (!std::isfinite(item(ctx, global_norm(ctx, part)))) own = parameter.name();
        }
        packed += range.length;
    }
    return first_in_order(model.parameters.parameters(), group.all_gather(own));
}

}  // namespace gradtile
