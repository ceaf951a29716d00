#include <gradtile/core/parameter_store.h>

#include <utility>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/philox.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

std::uint64_t hash_of(const std::string& name) {  // FNV-1a
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

Tensor view_of(const Tensor& flat, std::int64_t offset, const Shape& shape) {
    return flat.slice(0, offset, shape.elements()).reshape(shape);
}

std::int64_t words_of_codes(const Parameter& parameter) {
    return quantized_layout(parameter.format(), parameter.shape().elements()).words;
}

void draw(const Context& ctx, const Parameter& parameter, const Tensor& target, Seed seed) {
    switch (parameter.init().kind) {
        case Init::Kind::constant:
            fill(ctx, target, parameter.init().value);
            break;
        case Init::Kind::normal:
            fill_normal(ctx, target, 0.0, parameter.init().value,
                        Seed{mix_seed(seed.value, hash_of(parameter.name()))});
            break;
    }
}

/// The codes of a quantized parameter's initial value.
Tensor drawn_codes(const Context& ctx, const Parameter& parameter, Seed seed) {
    const Context host = host_of(ctx);
    const Tensor drawn = zeros(host, parameter.shape(), DType::f32);
    draw(host, parameter, drawn, seed);
    const Tensor codes = empty(host, {words_of_codes(parameter)}, DType::i32);
    quantize_weights(host, codes, drawn, parameter.format());
    return to_device(ctx, codes);
}

}  // namespace

Tensor ready_to_add(const Context& ctx, const GradientTarget& target) {
    if (!target.accumulates() && target.grad.defined()) fill(ctx, target.grad, 0.0);
    return target.grad;
}

GradientTarget Parameter::begin_gradient_write() const {
    if (!defined()) return {};
    if (entry_->next_write == GradientWrite::overwrite && entry_->provide_gradient)
        entry_->provide_gradient(*this);
    return {entry_->grad, std::exchange(entry_->next_write, GradientWrite::accumulate)};
}

void Parameter::set_gradient(const Tensor& flat) const {
    Entry& own = entry();
    check(own.provide_gradient != nullptr, "parameter ", own.name,
          ": set_gradient without a gradient provider of its store");
    own.grad = own.padded_grad = {};
    if (!flat.defined()) return;
    check(flat.rank() == 1 && flat.elements() == own.padded_shape.elements() &&
              flat.dtype() == accumulator_of(own.dtype),
          "parameter ", own.name, ": gradient ", flat, "; expected flat ", accumulator_of(own.dtype),
          " with the elements of ", own.padded_shape);
    own.grad = view_of(flat, 0, own.shape);
    own.padded_grad = view_of(flat, 0, own.padded_shape);
}

void Parameter::set_value(const Tensor& flat) const {
    Entry& own = entry();
    check(own.allocated && !own.has_value_block, "parameter ", own.name,
          ": set_value; expected an allocated store without a value block");
    own.value = own.padded_value = own.codes = {};
    if (!flat.defined()) return;
    if (is_quantized()) {
        check(flat.shape() == Shape{words_of_codes(*this)} && flat.dtype() == DType::i32, "parameter ",
              own.name, ": codes ", flat, "; expected int32 [", words_of_codes(*this), ']');
        own.codes = flat;
        return;
    }
    check(flat.rank() == 1 && flat.elements() == own.padded_shape.elements() && flat.dtype() == own.dtype,
          "parameter ", own.name, ": value ", flat, "; expected flat ", own.dtype, " with the elements of ",
          own.padded_shape);
    own.value = view_of(flat, 0, own.shape);
    own.padded_value = view_of(flat, 0, own.padded_shape);
}

Tensor Parameter::dequantized(const Context& ctx) const {
    if (!is_quantized()) return value();
    const Tensor full = empty(ctx, shape(), dtype());
    dequantize_weights(ctx, full, codes(), format());
    return full;
}

Parameter ParameterStore::add(std::string name, const Shape& shape, Init init, std::int64_t row_multiple) {
    check(!allocated(), "parameter store: '", name, "' added after the store was allocated");
    check(row_multiple >= 1, "parameter store: '", name, "': row_multiple is ", row_multiple,
          "; expected at least 1");
    check(names_.insert(name).second, "parameter store: a second parameter named '", name, "'");
    auto entry = std::make_shared<Parameter::Entry>();
    entry->name = std::move(name);
    entry->shape = shape;
    entry->init = init;
    entry->padded_shape = shape;
    if (row_multiple > 1) entry->padded_shape[0] = rounded_up(shape[0], row_multiple);
    entry->offset = flat_elements_;
    entry->first_stage = entry->last_stage = stage_;
    flat_elements_ += rounded_up(entry->padded_shape.elements(), parameter_alignment);
    parameters_.push_back(Parameter(std::move(entry)));
    return parameters_.back();
}

void ParameterStore::begin_stage() {
    check(!allocated(), "parameter store: a stage begins after the store was allocated");
    ++stage_;
}

void ParameterStore::read_again(const Parameter& parameter) const {
    parameter.entry().last_stage = stage_;
}

void ParameterStore::quantize(std::span<const Parameter> chosen, WeightFormat format) {
    check(!allocated(), "parameter store: quantized after the store was allocated");
    for (const Parameter& parameter : chosen) {
        check(names_.contains(parameter.name()), "parameter store: '", parameter.name(),
              "' to quantize is not one of its parameters");
        quantized_layout(format, parameter.shape().elements());  // throws for WeightFormat::same
        parameter.entry().format = format;
    }
    flat_elements_ = code_words_ = 0;
    for (const Parameter& parameter : parameters_) {
        std::int64_t& end = parameter.is_quantized() ? code_words_ : flat_elements_;
        parameter.entry().offset = end;
        end += rounded_up(parameter.is_quantized() ? words_of_codes(parameter) : parameter.padded_elements(),
                          parameter_alignment);
    }
}

void ParameterStore::allocate(const Context& ctx, DType dtype, const FlatOptions& options) {
    check(!allocated(), "parameter store: allocated twice");
    check(is_floating(dtype), "parameter store: parameters of type ", dtype, "; expected a floating type");
    check(code_words_ == 0 || !options.gradients,
          "parameter store: quantized parameters and gradients; expected FlatOptions::gradients = false");
    dtype_ = dtype;
    allocated_ = true;
    const Context blocks = options.allocator ? ctx.with_allocator(options.allocator) : ctx;
    if (options.value_block) values_ = zeros(blocks, {flat_elements_}, dtype);
    if (options.gradients && options.gradient_block)
        gradients_ = zeros(blocks, {flat_elements_}, accumulator_of(dtype));
    if (is_16_bit(dtype) && options.masters && options.gradients && options.value_block)
        master_ = zeros(ctx, {flat_elements_}, DType::f32);
    if (code_words_ > 0 && options.value_block) codes_ = zeros(blocks, {code_words_}, DType::i32);
    for (Parameter& parameter : parameters_) {
        Parameter::Entry& entry = *parameter.entry_;
        entry.dtype = dtype;
        entry.allocated = true;
        entry.has_value_block = options.value_block;
        if (parameter.is_quantized()) {
            if (codes_.defined()) entry.codes = codes_.slice(0, entry.offset, words_of_codes(parameter));
            entry.frozen = true;
            continue;
        }
        if (values_.defined()) {
            entry.value = view_of(values_, entry.offset, entry.shape);
            entry.padded_value = view_of(values_, entry.offset, entry.padded_shape);
        }
        entry.frozen = !options.gradients;
        if (!gradients_.defined()) continue;
        entry.grad = view_of(gradients_, entry.offset, entry.shape);
        entry.padded_grad = view_of(gradients_, entry.offset, entry.padded_shape);
    }
}

void ParameterStore::initialize(const Context& ctx, Seed seed, const KeepMasters& keep) {
    check(allocated(), "parameter store: initialized before it was allocated");
    for (const Parameter& parameter : parameters_) {
        if (parameter.is_quantized()) {
            const Tensor codes = drawn_codes(ctx, parameter, seed);
            if (codes_.defined()) {
                copy(ctx, parameter.codes(), codes);
            } else if (keep) {
                keep(parameter, codes);
            }
            continue;
        }
        if (values_.defined() && (!is_16_bit(dtype_) || has_master())) {
            draw(ctx, parameter, master_of(parameter), seed);
            if (has_master()) round_masters(ctx, master_of(parameter), parameter.value());
            continue;
        }
        const std::int64_t elements = rounded_up(parameter.padded_elements(), parameter_alignment);
        const Tensor flat = zeros(ctx, {elements}, accumulator_of(dtype_));
        const Tensor drawn = view_of(flat, 0, parameter.shape());
        draw(ctx, parameter, drawn, seed);
        if (values_.defined()) round_masters(ctx, drawn, parameter.value());
        if (!keep) continue;
        if (!parameter.is_frozen() || flat.dtype() == dtype_) {
            keep(parameter, flat);
            continue;
        }
        const Tensor values = empty(ctx, flat.shape(), dtype_);
        round_masters(ctx, flat, values);
        keep(parameter, values);
    }
}

const Parameter& ParameterStore::find(const std::string& name) const {
    for (const Parameter& parameter : parameters_)
        if (parameter.name() == name) return parameter;
    throw Error(concat("parameter store: no parameter named '", name, "' among ", parameters_.size()));
}

Tensor ParameterStore::master_of(const Parameter& parameter) const {
    return view_of(master(), parameter.offset(), parameter.shape());
}

std::int64_t ParameterStore::count() const {
    std::int64_t sum = 0;
    for (const Parameter& parameter : parameters_) sum += parameter.shape().elements();
    return sum;
}

void ParameterStore::reset_gradients() const {
    for (const Parameter& parameter : parameters_) parameter.reset_gradient();
}

void ParameterStore::set_gradient_provider(const GradientProvider& provider) const {
    check(!gradients_.defined(), "parameter store: a gradient provider, but the store has a gradient block");
    for (const Parameter& parameter : parameters_) parameter.entry().provide_gradient = provider;
}

void ParameterStore::zero_unwritten_gradients(const Context& ctx) const {
    for (const Parameter& parameter : parameters_) ready_to_add(ctx, parameter.begin_gradient_write());
}

}  // namespace gradtile
