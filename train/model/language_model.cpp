#include <gradtile/train/model/language_model.h>

#include <set>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/checkpoint/checkpoint_names.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/model/merged_adapters.h>

namespace gradtile {
namespace {

Shape shape_of_codes(const Parameter& parameter) {
    return {quantized_layout(parameter.format(), parameter.shape().elements()).words};
}

/// `what` is "parameter" or "master", for messages.
void check_weights(std::span<const Parameter> parameters, const NamedTensors& tensors, const char* what,
                   const std::string& source) {
    for (const Parameter& parameter : parameters) {
        const auto found = tensors.find(parameter.name());
        check(found != tensors.end(), source, ": has no ", what, " '", parameter.name(), "'; expected ",
              parameter.shape());
        const Tensor& x = found->second;
        if (parameter.is_quantized() && x.dtype() == DType::i32) {
            const Shape codes = shape_of_codes(parameter);
            check(x.shape() == codes, source, ": ", what, " '", parameter.name(), "' is ", x.shape(), " in ",
                  name_of(parameter.format()), "; this model's is ", codes);
            continue;
        }
        check(x.shape() == parameter.shape(), source, ": ", what, " '", parameter.name(), "' is ", x.shape(),
              "; this model's is ", parameter.shape());
        check(is_floating(x.dtype()), source, ": ", what, " '", parameter.name(), "' is ", x.dtype(),
              "; expected a floating-point dtype");
    }
    std::set<std::string_view> known;
    for (const Parameter& parameter : parameters) known.insert(parameter.name());
    for (const auto& entry : tensors)
        check(known.contains(entry.first), source, ": ", what, " '", entry.first,
              "' is not one of this model's");
}

/// Returns a quantized parameter's codes, or quantizes weights on the host.
Tensor codes_of(const Context& ctx, const Parameter& parameter, const Tensor& weights) {
    if (!is_floating(weights.dtype())) return to_device(ctx, weights);
    const Context host = host_of(ctx);
    const Tensor codes = empty(host, shape_of_codes(parameter), DType::i32);
    const Tensor packed = weights.is_contiguous() ? weights : cast(host, weights, weights.dtype());
    with_source(concat("parameter '", parameter.name(), "'"),
                [&] { quantize_weights(host, codes, packed, parameter.format()); });
    return to_device(ctx, codes);
}

}  // namespace

void check_model(const ModelConfig& config, const Checkpoint& checkpoint, const std::string& source,
                 const AdapterOptions& adapters) {
    ParameterStore parameters, frozen;
    try {
        validate(config);
        const Transformer model(config, parameters, frozen, {}, adapters);
    } catch (const Error& error) {
        throw Error(concat(source, ": its config: ", error.what()));
    }
    std::vector<Parameter> all(parameters.parameters().begin(), parameters.parameters().end());
    all.insert(all.end(), frozen.parameters().begin(), frozen.parameters().end());
    check_weights(all, checkpoint.params, "parameter", source);
}

LanguageModel::LanguageModel(const Context& context, const ModelConfig& config, DType dtype,
                             std::optional<Tokenizer> the_tokenizer, const FlatOptions& flat,
                             const TrainingOptions& training, const AdapterOptions& adapters,
                             bool frozen_value_block)
    : ctx(context),
      tokenizer(std::move(the_tokenizer)),
      transformer(config, parameters, frozen, training, adapters) {
    if (tokenizer) check_tokenizer(*tokenizer, config.vocabulary, "language model");
    parameters.allocate(ctx, dtype, flat);
    if (has_adapters()) frozen.allocate(ctx, dtype, {.gradients = false, .value_block = frozen_value_block});
}

const Tokenizer& tokenizer_of(const LanguageModel& model, const char* purpose) {
    check(model.tokenizer.has_value(), purpose,
          ": the model has no tokenizer, because it was trained on token files or imported without one");
    return *model.tokenizer;
}

std::vector<std::int32_t> end_tokens_of(const ImportedText& imported,
                                        const std::optional<Tokenizer>& tokenizer,
                                        ChatTemplate chat_template) {
    if (!imported.empty()) return imported.end_tokens;
    return tokenizer ? end_tokens_of(*tokenizer, chat_template) : std::vector<std::int32_t>();
}

std::vector<std::int32_t> end_tokens_of(const LanguageModel& model) {
    return end_tokens_of(model.imported_text, model.tokenizer, model.chat_template);
}

void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Checkpoint& checkpoint,
                     const std::string& source) {
    copy_parameters(ctx, parameters, checkpoint, source, {});
}

Tensor kept_numbers(const Context& ctx, const Parameter& parameter) {
    if (parameter.is_quantized()) return empty(ctx, shape_of_codes(parameter), DType::i32);
    return zeros(ctx, {rounded_up(parameter.padded_elements(), parameter_alignment)},
                 parameter.is_frozen() ? parameter.dtype() : DType::f32);
}

void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Checkpoint& checkpoint,
                     const std::string& source, const KeepMasters& keep) {
    check_weights(parameters.parameters(), checkpoint.params, "parameter", source);
    if (!checkpoint.master.empty())
        check_weights(parameters.parameters(), checkpoint.master, "master", source);
    for (const Parameter& parameter : parameters.parameters()) {
        const auto master = checkpoint.master.find(parameter.name());
        const bool has_master = master != checkpoint.master.end();
        const Tensor& value = checkpoint.params.at(parameter.name());
        if (parameter.is_quantized()) {
            const Tensor codes = codes_of(ctx, parameter, has_master ? master->second : value);
            if (keep) {
                keep(parameter, codes);
            } else {
                copy(ctx, parameter.codes(), codes);
            }
            continue;
        }
        const Shape& shape = parameter.shape();
        const Tensor kept = keep ? kept_numbers(ctx, parameter) : Tensor();
        const DType dtype = keep ? kept.dtype() : parameters.master().dtype();
        const Tensor& weights = has_master && value.dtype() != dtype ? master->second : value;
        const Tensor own =
            keep ? kept.slice(0, 0, shape.elements()).reshape(shape) : parameters.master_of(parameter);
        copy(ctx, own, to_device(ctx, weights));
        if (parameters.has_master() || (keep && parameters.values().defined()))
            round_masters(ctx, own, parameter.value());
        if (keep) keep(parameter, kept);
    }
}

Checkpoint weights_of(const Checkpoint& checkpoint, const ParameterStore& store, Membership membership) {
    std::set<std::string_view> inside;
    for (const Parameter& parameter : store.parameters()) inside.insert(parameter.name());
    Checkpoint chosen;
    const auto choose = [&](const NamedTensors& from, NamedTensors& to) {
        for (const auto& [name, x] : from)
            if (inside.contains(name) == (membership == Membership::inside)) to.emplace(name, x);
    };
    choose(checkpoint.params, chosen.params);
    choose(checkpoint.master, chosen.master);
    return chosen;
}

void check_saved_dtypes(const Checkpoint& checkpoint, DType dtype, const ParameterStore& frozen,
                        const std::string& source) {
    std::set<std::string_view> quantized;
    for (const Parameter& parameter : frozen.parameters())
        if (parameter.is_quantized()) quantized.insert(parameter.name());
    const auto check_dtype = [&](const char* what, const std::string& name, DType found, DType expected) {
        check(found == expected, source, ": ", what, " '", name, "' is ", found, "; expected ", expected);
    };
    for (const auto& [name, x] : checkpoint.params)
        check_dtype("parameter", name, x.dtype(), quantized.contains(name) ? DType::i32 : dtype);
    for (const auto& [name, x] : checkpoint.master) check_dtype("master", name, x.dtype(), DType::f32);
    const bool has_masters = !checkpoint.master.empty();
    check(has_masters == is_16_bit(dtype), source, ": has ", has_masters ? "" : "no ", "masters of its ",
          dtype, " weights; expected ", has_masters ? "none" : "float32 masters");
}

Checkpoint load_checkpoint(const std::filesystem::path& path, const ReadOptions& options,
                           const MessageHandler& on_message) {
    check(exists(path), path.string(), ": no such file or directory");
    if (!is_directory(path)) {
        Checkpoint checkpoint = read_checkpoint(path, options);
        check(!checkpoint.meta.contains(part_number_key), path.string(),
              ": is a part of a checkpoint; expected its main file, ", step_file_name(checkpoint.step));
        return checkpoint;
    }
    const std::filesystem::path inner = path / "checkpoints";
    CheckpointDirectory::Loaded loaded =
        CheckpointDirectory(is_directory(inner) ? inner : path).load_newest(options);
    if (!loaded.checkpoint) {
        const std::string why = loaded.damaged.empty() ? std::string() : "; " + loaded.damaged.front();
        throw Error(concat(path.string(), ": holds no sound checkpoint", why));
    }
    if (on_message)
        for (const std::string& line : loaded.damaged) on_message(line);
    return *std::move(loaded.checkpoint);
}

void adopt_model(TrainConfig& config, const std::filesystem::path& path) {
    check(exists(path), path.string(), ": no such file or directory");
    TrainConfig found;
    const std::filesystem::path own = path / "config.json", run_config = path.parent_path() / "config.json";
    if (!is_directory(path)) {
        apply_json(found, inspect_checkpoint(path).config, path.string());
    } else if (exists(own) || exists(run_config)) {
        // The path is a run's directory, or the checkpoints folder in it.
        apply_config_file(found, (exists(own) ? own : run_config).string());
    } else {
        apply_json(found, load_checkpoint(path, {.training_state = false}).config, path.string());
    }
    config.model = found.model;
    config.chat_template = found.chat_template;
}

std::optional<Tokenizer> tokenizer_of(const Checkpoint& checkpoint, const std::string& source) {
    if (checkpoint.tokenizer.empty()) return std::nullopt;
    Tokenizer tokenizer = Tokenizer::from_json(checkpoint.tokenizer, source);
    TrainConfig config;
    apply_json(config, checkpoint.config, source);
    check_tokenizer(tokenizer, config.model.vocabulary, source);
    return tokenizer;
}

std::unique_ptr<LanguageModel> load_model(const std::filesystem::path& path, const LoadOptions& options) {
    const std::string source = path.string();
    const Checkpoint checkpoint =
        merged_adapters(load_checkpoint(path, {.training_state = false}, options.on_message), source);
    TrainConfig config;
    apply_json(config, checkpoint.config, source);
    check_model(config.model, checkpoint, source);
    auto model = std::make_unique<LanguageModel>(
        Context(options.device, options.threads), config.model, storage_dtype(config.dtype),
        tokenizer_of(checkpoint, source), FlatOptions{.gradients = false});
    model->ignore_token = config.ignore_token;
    model->chat_template = config.chat_template;
    model->train_on = config.train_on;
    model->imported_text = imported_text_of(checkpoint, config.model.vocabulary, source);
    model->packing = packing_of(config, model->tokenizer);
    copy_parameters(model->ctx, model->parameters, checkpoint, source);
    return model;
}

}  // namespace gradtile
