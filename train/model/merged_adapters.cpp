#include <gradtile/train/model/merged_adapters.h>

#include <map>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {
namespace {

/// Parameters by name.
using Parameters = std::map<std::string, Parameter>;

/// The parameters that the checkpoint holds as codes.
Parameters quantized_in(const Checkpoint& checkpoint, const TrainConfig& config) {
    ParameterStore adapters, frozen;
    const Transformer model(config.model, adapters, frozen, {}, config.adapters);
    Parameters quantized;
    for (const Parameter& parameter : frozen.parameters())
        if (parameter.is_quantized() && checkpoint.params.at(parameter.name()).dtype() == DType::i32)
            quantized.emplace(parameter.name(), parameter);
    return quantized;
}

Tensor dequantized(const Context& ctx, const Parameter& parameter, const Tensor& codes) {
    Tensor weights = empty(ctx, parameter.shape(), DType::f32);
    dequantize_weights(ctx, weights, codes, parameter.format());
    return weights;
}

/// Returns the parameter's value in float32: its master if it has one. The result may be the value itself.
Tensor in_f32(const Context& ctx, const Checkpoint& checkpoint, const Parameters& quantized,
              const std::string& name) {
    if (const auto found = quantized.find(name); found != quantized.end())
        return dequantized(ctx, found->second, checkpoint.params.at(name));
    const auto master = checkpoint.master.find(name);
    const Tensor& x = master != checkpoint.master.end() ? master->second : checkpoint.params.at(name);
    return x.dtype() == DType::f32 ? x : cast(ctx, x, DType::f32);
}

/// Throws Error unless every master belongs to a parameter. The parameters have been checked.
void check_masters(const Checkpoint& checkpoint, const std::string& source) {
    for (const auto& [name, x] : checkpoint.master) {
        const auto parameter = checkpoint.params.find(name);
        check(parameter != checkpoint.params.end(), source, ": master '", name,
              "' is not one of this model's");
        check(x.shape() == parameter->second.shape() && x.dtype() == DType::f32, source, ": master '", name,
              "' is ", x, "; expected ", parameter->second.shape(), " float32");
    }
}

/// Removes a matrix's adapter from `weights`, and returns W + alpha/r B A.
Tensor merged(const Context& ctx, Checkpoint& weights, const Parameters& quantized, const std::string& module,
              double scale) {
    const std::string a = module + ".lora_a", b = module + ".lora_b";
    const Tensor sum = cast(ctx, in_f32(ctx, weights, quantized, module + ".weight"), DType::f32);
    gemm(ctx, sum, in_f32(ctx, weights, {}, b), in_f32(ctx, weights, {}, a),
         {.accumulate = true, .alpha = scale});
    for (const std::string& name : {a, b}) {
        weights.params.erase(name);
        weights.master.erase(name);
    }
    return sum;
}

/// The modules with adapters: "h.0.attn.qkv".
std::vector<std::string> adapted_modules(const Checkpoint& checkpoint) {
    constexpr std::string_view suffix = ".lora_a";
    std::vector<std::string> modules;
    for (const auto& [name, x] : checkpoint.params)
        if (name.ends_with(suffix)) modules.push_back(name.substr(0, name.size() - suffix.size()));
    return modules;
}

}  // namespace

Checkpoint merged_adapters(Checkpoint checkpoint, const std::string& source) {
    // Checkpoints from older versions have no such setting.
    if (!checkpoint.config.contains("lora-rank") || checkpoint.config["lora-rank"] == 0) return checkpoint;
    TrainConfig config;
    apply_json(config, checkpoint.config, source);
    check_model(config.model, checkpoint, source, config.adapters);
    check_masters(checkpoint, source);
    const Context ctx(Device::cpu());
    const bool has_masters = !checkpoint.master.empty();
    Checkpoint result = std::move(checkpoint);
    const Parameters quantized = quantized_in(result, config);
    const auto replace = [&](const std::string& weight, const Tensor& sum) {
        Tensor& value = result.params.at(weight);
        const DType dtype = value.dtype() == DType::i32 ? storage_dtype(config.dtype) : value.dtype();
        value = dtype == DType::f32 ? sum : cast(ctx, sum, dtype);
        if (has_masters) result.master[weight] = sum;
    };
    for (const std::string& module : adapted_modules(result))
        replace(module + ".weight", merged(ctx, result, quantized, module, config.adapters.scale()));
    for (const auto& [name, parameter] : quantized)  // those without an adapter
        if (const Tensor& value = result.params.at(name); value.dtype() == DType::i32)
            replace(name, dequantized(ctx, parameter, value));
    // Frozen weights have no masters in the file; a model has them for all weights or for none.
    if (has_masters)
        for (const auto& [name, x] : result.params)
            if (!result.master.contains(name)) result.master.emplace(name, cast(ctx, x, DType::f32));
    result.optimizer.clear();
    config.adapters = {};
    result.config = to_json(config);
    return result;
}

}  // namespace gradtile
