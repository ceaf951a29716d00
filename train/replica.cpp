#include <gradtile/train/replica.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/configured_optimizer.h>
#include <gradtile/train/optimizers/global_norm.h>

namespace gradtile {
namespace {

bool is_sharded(const TrainConfig& config, const Communicator& communicator) {
    return config.zero == 1 && communicator.size() > 1;
}

FlatOptions flat_options(const Context& ctx, const TrainConfig& config, const Communicator& communicator) {
    const bool sharded = is_sharded(config, communicator);
    return {.multiple = flat_multiple(sharded ? communicator.size() : 1),
            .masters = !sharded && config.masters == MasterFormat::f32,
            .allocator = communicator.symmetric_memory(ctx)};
}

/// Returns the beginning of a parameter's part in a flat block.
Tensor view_of(const Tensor& flat, const Parameter& parameter, const Shape& shape) {
    return flat.slice(0, parameter.offset(), shape.elements()).reshape(shape);
}

/// Adds each parameter's part in a flat block, under the names PREFIX + the parameter's.
void add_views(const Tensor& flat, std::span<const Parameter> held, const std::string& prefix,
               NamedTensors& tensors) {
    for (const Parameter& parameter : held)
        tensors[prefix + parameter.name()] = view_of(flat, parameter, parameter.shape());
}

Tensor state_view(const Tensor& flat, const Parameter& parameter, const StateTensor& part) {
    const Shape shape = part.shape_of(parameter);
    const std::int64_t begin = parameter.offset() / parameter_alignment * part.numbers_per_64();
    return flat.slice(0, begin, shape.elements()).reshape(shape);
}

/// Adds what each parameter's part of a flat block holds of a sharded optimizer's state.
void add_state_views(const Tensor& flat, const StateTensor& part, NamedTensors& tensors) {
    for (const Parameter& parameter : part.parameters)
        tensors[part.name + '/' + parameter.name()] = state_view(flat, parameter, part);
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
            flat_options(ctx, config, communicator), config.training, config.adapters),
      parallel(ctx, model.parameters, communicator,
               {.sharded = is_sharded(config, communicator), .whole_cost = whole_cost(config)}),
      communicator_(communicator) {
    const ParameterStore& store = model.parameters;
    const bool sharded = parallel.is_sharded();
    ranges_ = sharded ? parallel.own_ranges() : std::vector<FlatRange>{{0, store.flat_elements()}};
    if (is_16_bit(store.dtype()) && !store.has_master()) {
        const std::int64_t elements = parallel.own_elements();
        masters_ = config.masters == MasterFormat::split
                       ? zeros(ctx, {elements / remainders_per_word}, DType::i32)
                       : zeros(ctx, {elements}, DType::f32);
    }
    optimizer = make_optimizer(ctx, store, config,
                               OptimizerShard{.ranges = ranges_,
                                              .gradients = parallel.gradients(),
                                              .masters = store.has_master() ? store.master() : masters_,
                                              .is_whole = !sharded});
}

void Replica::keep_masters(const Tensor& full) {
    if (masters_.dtype() == DType::f32) return pack(model.ctx, full, ranges_, masters_);
    std::int64_t packed = 0;
    for (const FlatRange& range : ranges_) {
        split_masters(model.ctx, full.slice(0, range.begin, range.length),
                      masters_.slice(0, packed / remainders_per_word, range.length / remainders_per_word));
        packed += range.length;
    }
}

Tensor Replica::whole_masters() {
    const Context& ctx = model.ctx;
    const Tensor full = workspace(DType::f32);
    if (masters_.dtype() == DType::f32) {
        parallel.unpack(ctx, masters_, ranges_, full);
        return full;
    }
    std::int64_t packed = 0;
    for (const FlatRange& range : ranges_) {
        join_masters(ctx, model.parameters.values().slice(0, range.begin, range.length),
                     masters_.slice(0, packed / remainders_per_word, range.length / remainders_per_word),
                     full.slice(0, range.begin, range.length));
        packed += range.length;
    }
    parallel.gather(ctx, full);
    return full;
}

Tensor Replica::workspace(DType dtype) const {
    const Tensor& gradients = model.parameters.gradients();
    check(size_of(dtype) <= size_of(gradients.dtype()), "replica: a workspace in ", dtype,
          "; expected no longer type than the gradients' ", gradients.dtype());
    return Tensor::from_blob(gradients.raw_data(), gradients.shape(), dtype, gradients.device());
}

Tensor Replica::workspace(const StateTensor& part) const {
    const std::int64_t elements = model.parameters.flat_elements();
    return workspace(part.tensor.dtype()).slice(0, 0, elements / parameter_alignment * part.numbers_per_64());
}

void Replica::initialize(Seed seed) {
    if (model.has_adapters()) model.frozen.initialize(model.ctx, seed);
    frozen_values_ = frozen_codes_ = {};
    draw_weights(seed);
}

void Replica::draw_weights(Seed seed) {
    model.parameters.initialize(model.ctx, seed);
    if (masters_.defined()) keep_masters(workspace(DType::f32));
}

void Replica::start_from(const Checkpoint& checkpoint, const std::string& source, Seed seed) {
    if (!model.has_adapters()) {
        load_weights(checkpoint, source);
        return;
    }
    load_frozen(checkpoint, source);
    draw_weights(seed);
}

void Replica::load_frozen(const Checkpoint& checkpoint, const std::string& source) {
    if (is_root()) copy_parameters(model.ctx, model.frozen, checkpoint, source);
    communicator_.broadcast(model.ctx, model.frozen.values());
    if (model.frozen.codes().defined()) communicator_.broadcast(model.ctx, model.frozen.codes());
    frozen_values_ = frozen_codes_ = {};  // a copy of other weights
}

void Replica::load_weights(const Checkpoint& checkpoint, const std::string& source) {
    const Context& ctx = model.ctx;
    const Tensor weights = masters_.defined() ? workspace(DType::f32) : model.parameters.master();
    if (is_root()) copy_parameters(ctx, model.parameters, weights, checkpoint, source);
    communicator_.broadcast(ctx, model.parameters.values());
    if (weights.raw_data() != model.parameters.values().raw_data()) communicator_.broadcast(ctx, weights);
    if (masters_.defined()) keep_masters(weights);
}

void Replica::restore(const Checkpoint& checkpoint, const std::string& source) {
    if (is_root()) check_saved_dtypes(checkpoint, model.parameters.dtype(), model.frozen, source);
    if (model.has_adapters()) {
        load_frozen(weights_of(checkpoint, model.frozen, Membership::inside), source);
        load_weights(weights_of(checkpoint, model.frozen, Membership::outside), source);
    } else {
        load_weights(checkpoint, source);
    }
    if (parallel.is_sharded()) {
        restore_moments(checkpoint, source);
        return;
    }
    const Context& ctx = model.ctx;
    for (const StateTensor& part : optimizer->state()) {
        if (is_root())
            copy(ctx, part.tensor,
                 to_device(ctx, saved_state(checkpoint, part.name, part.tensor.shape(), part.tensor.dtype(),
                                            source)));
        communicator_.broadcast(ctx, part.tensor);
    }
}

void Replica::restore_moments(const Checkpoint& checkpoint, const std::string& source) {
    const Context& ctx = model.ctx;
    for (const StateTensor& part : optimizer->state()) {
        if (part.parameters.empty()) {  // this part is a counter, not a tensor of the parameters
            if (is_root())
                copy(ctx, part.tensor,
                     to_device(ctx, saved_state(checkpoint, part.name, {1}, part.tensor.dtype(), source)));
            communicator_.broadcast(ctx, part.tensor);
            continue;
        }
        const Tensor full = workspace(part);
        if (is_root())
            for (const Parameter& parameter : part.parameters) {
                const Tensor view = state_view(full, parameter, part);
                copy(ctx, view,
                     to_device(ctx, saved_state(checkpoint, part.name + '/' + parameter.name(), view.shape(),
                                                part.tensor.dtype(), source)));
            }
        communicator_.broadcast(ctx, full);
        pack(ctx, full, part.ranges, part.tensor);
    }
    clear_workspace();
}

void Replica::add_frozen(Checkpoint& checkpoint) {
    if (!model.has_adapters() || !is_root()) return;
    const bool on_gpu = model.ctx.device().is_cuda();
    if (!frozen_values_.defined()) {
        const auto on_host = [&](const std::string& name, const Tensor& block) {
            return on_gpu && block.defined() ? to_host_memory(name, block) : block;
        };
        frozen_values_ = on_host("frozen values", model.frozen.values());
        frozen_codes_ = on_host("frozen codes", model.frozen.codes());
        if (on_gpu) cuda::synchronize(model.ctx.device(), model.ctx.stream());
    }
    for (const Parameter& parameter : model.frozen.parameters()) {
        const std::string& name = parameter.name();
        checkpoint.params[name] = parameter.is_quantized()
                                      ? view_of(frozen_codes_, parameter, parameter.codes().shape())
                                      : view_of(frozen_values_, parameter, parameter.shape());
        checkpoint.constant_params.insert(name);
    }
}

void Replica::save_into(Checkpoint& checkpoint) {
    const Context& ctx = model.ctx;
    const ParameterStore& parameters = model.parameters;
    if (!parallel.is_sharded()) {
        add_frozen(checkpoint);
        for (const Parameter& parameter : parameters.parameters()) {
            checkpoint.params[parameter.name()] = parameter.value();
            if (parameters.has_master())
                checkpoint.master[parameter.name()] = parameters.master_of(parameter);
        }
        if (masters_.defined()) add_views(whole_masters(), parameters.parameters(), "", checkpoint.master);
        for (const StateTensor& part : optimizer->state()) checkpoint.optimizer[part.name] = part.tensor;
        return;
    }
    communicator_.barrier(ctx);  // the barrier reports a process that never arrives
    // The processes gather one kind of tensor after the other; process 0 keeps them in host memory.
    const auto add = [&](const std::string& what, const Tensor& full, std::span<const Parameter> held,
                         const std::string& prefix, NamedTensors& tensors) {
        if (is_root()) add_views(to_host_memory(what, full), held, prefix, tensors);
    };
    parallel.gather_values(ctx);
    const auto all = parameters.parameters();
    add("values", parameters.values(), all, "", checkpoint.params);
    if (masters_.defined()) add("masters", whole_masters(), all, "", checkpoint.master);
    for (const StateTensor& part : optimizer->state()) {
        if (part.parameters.empty()) {
            if (is_root()) checkpoint.optimizer[part.name] = to_host_memory(part.name, part.tensor);
            continue;
        }
        const Tensor full = workspace(part);
        parallel.unpack(ctx, part.tensor, part.ranges, full, part.numbers_per_64());
        if (is_root()) add_state_views(to_host_memory(part.name, full), part, checkpoint.optimizer);
    }
    clear_workspace();
    if (ctx.device().is_cuda()) cuda::synchronize(ctx.device(), ctx.stream());
}

void Replica::reserve_host_memory(Checkpoint& checkpoint) {
    const auto all = model.parameters.parameters();
    add_views(host_memory("values", model.parameters.values()), all, "", checkpoint.params);
    if (masters_.defined())
        add_views(host_memory("masters", workspace(DType::f32)), all, "", checkpoint.master);
    for (const StateTensor& part : optimizer->state()) {
        if (part.parameters.empty()) {
            checkpoint.optimizer[part.name] = host_memory(part.name, part.tensor);
        } else {
            add_state_views(host_memory(part.name, workspace(part)), part, checkpoint.optimizer);
        }
    }
}

const Tensor& Replica::host_memory(const std::string& name, const Tensor& x) {
    Tensor& reserved = on_host_[name];
    if (reserved.defined()) return reserved;
    const Context host = Context(Device::cpu(), 1).with_allocator(staging_allocator(model.ctx.device()));
    reserved = empty(host, x.shape(), x.dtype());
    return reserved;
}

const Tensor& Replica::to_host_memory(const std::string& name, const Tensor& x) {
    const Context& ctx = model.ctx;
    const Tensor& copied = host_memory(name, x);
    if (ctx.device().is_cuda()) {
        cuda::copy_bytes(copied.raw_data(), x.raw_data(), x.bytes(), ctx.device(), ctx.stream());
    } else {
        copy(ctx, copied, x);
    }
    return copied;
}

std::string Replica::first_non_finite_gradient(const Context& ctx, ProcessGroup& group) const {
    if (!parallel.is_sharded()) return gradtile::first_non_finite_gradient(ctx, model.parameters);
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
