#include <gradtile/train/language_model.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint_directory.h>
#include <gradtile/train/train_config.h>

namespace gradtile {
namespace {

void check_parameters(const ParameterStore& parameters, const NamedTensors& tensors,
                      const std::string& source) {
    for (const Parameter& parameter : parameters.parameters()) {
        const auto found = tensors.find(parameter.name());
        check(found != tensors.end(), source, ": has no parameter '", parameter.name(), "'; expected ",
              parameter.shape());
        check(found->second.shape() == parameter.shape(), source, ": parameter '", parameter.name(), "' is ",
              found->second.shape(), "; this model's is ", parameter.shape());
    }
    for (const auto& entry : tensors) {
        const auto known = [&](const Parameter& parameter) { return parameter.name() == entry.first; };
        check(std::ranges::any_of(parameters.parameters(), known), source, ": parameter '", entry.first,
              "' is not one of this model's");
    }
}

}  // namespace

LanguageModel::LanguageModel(const Context& context, const ModelConfig& config, DType dtype,
                             std::optional<Tokenizer> the_tokenizer, const FlatOptions& flat)
    : ctx(context), tokenizer(std::move(the_tokenizer)), transformer(config, parameters) {
    parameters.allocate(ctx, dtype, flat);
}

void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Checkpoint& checkpoint,
                     const std::string& source) {
    copy_parameters(ctx, parameters, parameters.master(), checkpoint, source);
}

void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Tensor& masters,
                     const Checkpoint& checkpoint, const std::string& source) {
    const bool apart = masters.raw_data() != parameters.values().raw_data();
    check_parameters(parameters, checkpoint.params, source);
    for (const Parameter& parameter : parameters.parameters()) {
        const auto master = checkpoint.master.find(parameter.name());
        const bool has_master = master != checkpoint.master.end();
        const Tensor& weights = has_master ? master->second : checkpoint.params.at(parameter.name());
        const Shape& shape = parameter.shape();
        const Tensor own = masters.slice(0, parameter.offset(), shape.elements()).reshape(shape);
        copy(ctx, own, to_device(ctx, weights));
        if (apart) copy(ctx, parameter.value(), own);
    }
}

Checkpoint load_checkpoint(const std::filesystem::path& path, const ReadOptions& options,
                           const MessageHandler& on_message) {
    check(exists(path), path.string(), ": no such file or directory");
    if (!is_directory(path)) return read_checkpoint(path, options);
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

std::optional<Tokenizer> tokenizer_of(const Checkpoint& checkpoint, const std::string& source) {
    if (!checkpoint.data->contains("tokenizer")) return std::nullopt;
    return Tokenizer::from_json(checkpoint.data->at("tokenizer"), source);
}

std::unique_ptr<LanguageModel> load_model(const std::filesystem::path& path, const LoadOptions& options) {
    const std::string source = path.string();
    const Checkpoint checkpoint = load_checkpoint(path, {.training_state = false}, options.on_message);
    TrainConfig config;
    apply_json(config, *checkpoint.config, source);
    auto model =
        std::make_unique<LanguageModel>(Context(options.device, options.threads), config.model,
                                        storage_dtype(config.dtype), tokenizer_of(checkpoint, source));
    model->ignore_token = config.ignore_token;
    copy_parameters(model->ctx, model->parameters, checkpoint, source);
    return model;
}

}  // namespace gradtile
