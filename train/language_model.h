#pragma once
/// A transformer with what is needed to run it: its parameters, its tokenizer, a context.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

struct LanguageModel {
    /// Allocates the parameters, which are not initialised yet.
    LanguageModel(const Context& ctx, const ModelConfig& config, DType dtype,
                  std::optional<Tokenizer> tokenizer, const FlatOptions& flat = {});

    Context ctx;
    std::optional<Tokenizer> tokenizer;  ///< none for models of token files
    ParameterStore parameters;
    Transformer transformer;
    std::int64_t ignore_token = -1;  ///< targets of this id did not count in training; -1: all did
};

/// Copies a checkpoint's weights into an allocated store, whatever the floating-point dtypes: from its
/// masters where it has them, else from the values. Throws Error "SOURCE: ..." naming the first parameter or
/// master that is missing, unknown, of another shape or of integers; nothing is copied then.
void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Checkpoint& checkpoint,
                     const std::string& source);
/// The same for masters that another flat block than the store's holds.
void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Tensor& masters,
                     const Checkpoint& checkpoint, const std::string& source);

/// What a run that goes on needs beyond that: parameters of `dtype`, and float32 masters exactly when `dtype`
/// has 16 bits. Throws Error "SOURCE: ..." naming the tensor, the dtype found and the dtype expected.
void check_saved_dtypes(const Checkpoint& checkpoint, DType dtype, const std::string& source);

/// Hears one line that a user should see.
using MessageHandler = std::function<void(const std::string&)>;

/// A checkpoint file, or the newest sound one of a run's directory (or of its checkpoints/). Throws Error
/// when there is none; on_message hears of damaged ones that were passed over.
Checkpoint load_checkpoint(const std::filesystem::path& path, const ReadOptions& options = {},
                           const MessageHandler& on_message = {});
/// The tokenizer that a checkpoint's model was trained with; none for token files.
std::optional<Tokenizer> tokenizer_of(const Checkpoint& checkpoint, const std::string& source);

struct LoadOptions {
    Device device = Device::cpu();
    int threads = 0;                 ///< 0: every core
    MessageHandler on_message = {};  ///< see load_checkpoint
};

/// The model of load_checkpoint(path).
std::unique_ptr<LanguageModel> load_model(const std::filesystem::path& path, const LoadOptions& options = {});

}  // namespace gradtile
