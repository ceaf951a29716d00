#pragma once
/// A transformer with its parameters, its tokenizer and a context to run it.
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/packing.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

struct TrainConfig;

/// Text settings that come with imported weights, for example their end tokens and chat template. A
/// checkpoint with imported weights keeps them in its data; so do the checkpoints of a run that
/// starts from it with the same tokenizer and chat template. Export writes the files again, unchanged.
struct ImportedText {
    std::vector<std::int32_t> end_tokens = {};  ///< tokens that end a text
    /// Texts by name: config.json, generation_config.json, and TokenizerFolder's texts.
    std::map<std::string, std::string> files = {};
    /// The files have a chat template, but ChatTemplate does not list it.
    bool has_unknown_template = false;

    bool empty() const { return end_tokens.empty() && files.empty(); }
};

/// Adds `text` to a checkpoint's data, unless it is empty.
void add_imported_text(JsonValue& data, const ImportedText& text);

/// Returns the ImportedText in a checkpoint's data; an empty one if there is none. Throws Error that begins
/// with `source` when the value is not what add_imported_text() writes, or has an end token outside
/// `vocabulary`.
ImportedText imported_text_of(const Checkpoint& checkpoint, std::int64_t vocabulary,
                              const std::string& source);

struct LanguageModel {
    /// Allocates the parameters without initialising them. `frozen_value_block`: see FlatOptions, for the
    /// store of frozen parameters. Throws Error if a tokenizer id is outside the model's vocabulary.
    LanguageModel(const Context& ctx, const ModelConfig& config, DType dtype,
                  std::optional<Tokenizer> tokenizer, const FlatOptions& flat = {},
                  const TrainingOptions& training = {}, const AdapterOptions& adapters = {},
                  bool frozen_value_block = true);

    Context ctx;
    std::optional<Tokenizer> tokenizer;  ///< empty for token files without one
    ParameterStore parameters;           ///< what training changes: everything, or the adapters
    ParameterStore frozen;               ///< with adapters: all other parameters
    Transformer transformer;
    /// Targets with this id were ignored in training; -1: no target was ignored.
    std::int64_t ignore_token = -1;
    Packing packing = {};  ///< how the windows that the model was trained on were packed
    /// The template for the conversations that the model was trained on.
    ChatTemplate chat_template = ChatTemplate::automatic;
    TrainOn train_on = TrainOn::answers;  ///< the targets in conversations and completions
    ImportedText imported_text = {};

    bool has_adapters() const { return transformer.adapters.rank > 0; }
};

/// Returns the model's tokenizer. Throws Error "PURPOSE: ..." if it has none.
const Tokenizer& tokenizer_of(const LanguageModel& model, const char* purpose);

/// Returns the tokens that end a text: the imported text's end tokens if there are any, else end_tokens_of()
/// the tokenizer.
std::vector<std::int32_t> end_tokens_of(const ImportedText& imported,
                                        const std::optional<Tokenizer>& tokenizer,
                                        ChatTemplate chat_template);
std::vector<std::int32_t> end_tokens_of(const LanguageModel& model);

/// Copies a checkpoint's weights into an allocated store, between any floating-point dtypes: from its masters
/// if it has them, else from its values. A quantized parameter is copied if the checkpoint has its codes,
/// else it is quantized on the host. Throws Error "SOURCE: ..." naming the first parameter or master that is
/// missing, unknown, not floating-point or has another shape. After an error nothing has been copied.
void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Checkpoint& checkpoint,
                     const std::string& source);
/// Copies the weights like the function above into a store of 16-bit values without masters, or into a store
/// without a value block, which keeps none of them, and hands them to `keep`.
void copy_parameters(const Context& ctx, const ParameterStore& parameters, const Checkpoint& checkpoint,
                     const std::string& source, const KeepMasters& keep);
/// Returns new memory for what KeepMasters receives of a parameter: zeros with padding up to the next
/// parameter, or codes.
Tensor kept_numbers(const Context& ctx, const Parameter& parameter);

enum class Membership { inside, outside };
/// Returns a checkpoint with only those parameters and masters from `checkpoint` whose names are in the
/// store, or only those whose names are not.
Checkpoint weights_of(const Checkpoint& checkpoint, const ParameterStore& store, Membership membership);

/// Throws Error "SOURCE: ..." unless the checkpoint's parameters match a model with this config and these
/// adapters. Allocates nothing.
void check_model(const ModelConfig& config, const Checkpoint& checkpoint, const std::string& source,
                 const AdapterOptions& adapters = {});

/// Checks what a resumed run needs in addition: parameters of `dtype`, codes of the quantized parameters in
/// `frozen`, and float32 masters exactly if `dtype` has 16 bits. Throws Error "SOURCE: ..." naming the
/// tensor, the dtype found and the dtype expected.
void check_saved_dtypes(const Checkpoint& checkpoint, DType dtype, const ParameterStore& frozen,
                        const std::string& source);

/// Loads a checkpoint file, or the newest sound one in a run's directory (or in its checkpoints/). Throws
/// Error when there is none. on_message receives a line for each damaged file that is skipped.
Checkpoint load_checkpoint(const std::filesystem::path& path, const ReadOptions& options = {},
                           const MessageHandler& on_message = {});
/// Replaces the model's architecture and the chat template by those of a checkpoint, or of a run's
/// config.json. Throws Error naming the file.
void adopt_model(TrainConfig& config, const std::filesystem::path& path);
/// Returns the tokenizer that a checkpoint's model was trained with; empty for token files. Throws Error
/// "SOURCE: ..." if it is no tokenizer, or if one of its ids is outside the vocabulary in the checkpoint's
/// config.
std::optional<Tokenizer> tokenizer_of(const Checkpoint& checkpoint, const std::string& source);

struct LoadOptions {
    Device device = Device::cpu();
    int threads = 0;                 ///< thread count; 0: one per core
    MessageHandler on_message = {};  ///< see load_checkpoint
};

/// Loads the model from load_checkpoint(path). If the model has adapters, the adapters are merged into its
/// matrices (merged_adapters()). The loaded parameters are frozen, so that the model takes no memory for
/// gradients. To train a model further, start a run from its checkpoint (TrainConfig::init_from).
std::unique_ptr<LanguageModel> load_model(const std::filesystem::path& path, const LoadOptions& options = {});

}  // namespace gradtile
