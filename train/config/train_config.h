#pragma once
/// A run's settings. A setting has the same name as a flag (--save-every), as a key of the JSON config file
/// and as a key of the run's config.json; settings.h lists all settings.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/allocator.h>
#include <gradtile/core/dtype.h>
#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/packing.h>
#include <gradtile/train/data/token_sequence.h>
#include <gradtile/train/optimizers/optimizers.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

enum class ScheduleKind { cosine, wsd, linear, constant };
/// How wsd's rate falls at the end, see Schedule.
enum class CooldownShape { linear, one_minus_sqrt, cosine };
enum class TrainDType { f32, bf16 };
enum class DeviceChoice { automatic, cpu, cuda };
/// What a run on a GPU keeps in host memory, a set. optimizer: masters and moments. gradients: their sums.
/// residuals: what blocks save for backward. weights: the values, in the model's dtype.
enum class Offload : std::uint8_t { none = 0, optimizer = 1, gradients = 2, residuals = 4, weights = 8 };
constexpr Offload operator|(Offload a, Offload b) {
    return static_cast<Offload>(static_cast<int>(a) | static_cast<int>(b));
}
constexpr bool has_part(Offload all, Offload part) {
    return (all | part) == all;
}

struct TrainConfig {
    ModelConfig model;
    TrainingOptions training;
    AdapterOptions adapters;

    // Data
    std::string data;                      ///< text, documents or tokens (.bin); see DatasetOptions
    std::string val_data;                  ///< empty: the last part of data
    double val_fraction = 0.1;             ///< fraction of data kept for validation when val_data is empty
    std::string tokenizer = "characters";  ///< or "bytes", or a BPE tokenizer's file (load_tokenizer)
    TokenType token_type = TokenType::automatic;  ///< for token files without a header
    std::int64_t ignore_token = -1;               ///< targets with this id do not count in the loss; -1: none
    std::string text_column;                      ///< column of documents that holds texts; see RowColumns
    std::string token_cache;                      ///< directory for the tokens of documents; empty: none
    std::int64_t stream_buffer = 0;  ///< documents that are encoded together during training; 0: all before
    /// Template for conversations; a run records the chosen template.
    ChatTemplate chat_template = ChatTemplate::automatic;
    TrainOn train_on = TrainOn::answers;  ///< targets of completions and conversations

    bool packed = false;               ///< attention within documents, which begin inside windows
    std::int64_t document_token = -1;  ///< packed: id that begins documents; -1: the data's own rule
    std::int64_t max_documents = 0;    ///< packed: limit per window; 0: context / 8, at least 8

    // Optimisation
    std::int64_t steps = 2000;
    /// Seconds of training, evaluation and saving after which the run ends ("90s", "5m", "1h30m"); empty: the
    /// run ends after `steps`, which must be 0 otherwise.
    std::string time_budget;
    std::string replay_clock;  ///< run whose metrics say how far the schedule is at each step; empty: none
    std::int64_t batch = 12;   ///< sequences per optimizer step, over all ranks
    /// Sequences that a rank, or the ranks that share them, process at once; 0: their part of the batch.
    std::int64_t micro_batch = 0;
    OptimizerKind optimizer = kind_of<AdamWSettings>;
    OptimizerSettings optimizer_settings;  ///< every optimizer's settings
    double lr = 1e-3;
    double min_lr = 1e-4;
    ScheduleKind schedule = ScheduleKind::cosine;
    std::int64_t warmup = 100;  ///< steps
    double wsd_decay = 0.2;     ///< wsd: fraction of the horizon, at its end, in which the rate falls
    CooldownShape wsd_shape = CooldownShape::linear;
    std::int64_t batch_start = 0;    ///< sequences of step 1; 0: batch
    std::int64_t batch_warmup = 0;   ///< steps in which batch_start doubles up to batch
    std::int64_t window_start = 0;   ///< keys that a token sees in any layer at step 1, at most; 0: no limit
    std::int64_t window_warmup = 0;  ///< steps in which window_start doubles up to the layers' windows
    double embedding_lr_factor = 1.0;  ///< of token and position embeddings on lr
    double head_lr_factor = 1.0;       ///< of an output head with its own weight on lr
    double vector_lr_factor = 1.0;     ///< of biases, norm weights and other vectors on lr
    double weight_decay = 0.1;
    bool cautious_decay = false;                    ///< see DecayFactors
    MomentFormat moment_dtype = MomentFormat::f32;  ///< of the optimizer's moments between steps
    MasterFormat masters = MasterFormat::f32;
    TrainDType gradient_dtype = TrainDType::f32;  ///< of the sums of gradients
    double clip = 1.0;                            ///< largest global gradient norm; 0: no clipping
    std::int64_t max_bad_steps = 5;               ///< non-finite steps in a row before training stops

    // Run
    std::string out = "runs/default";
    std::int64_t sample_every = 0;    ///< steps between texts that the model writes to metrics.jsonl; 0: none
    std::int64_t sample_tokens = 60;  ///< tokens in each such text
    std::string sample_prompt;        ///< that it continues; empty: it starts after a line break
    /// Directory for TensorBoard's event files; empty: none. add_tensorboard() (tools/observers) reads it.
    std::string tensorboard;
    std::string init_from;  ///< checkpoint whose weights the run starts from, with a new optimizer state
    std::uint64_t seed = 1;
    std::int64_t threads = 0;  ///< 0: one per core
    TrainDType dtype = TrainDType::f32;
    DeviceChoice device = DeviceChoice::automatic;
    bool tf32 = false;              ///< see Context::with_tf32
    std::int64_t eval_every = 250;  ///< 0: only at the end
    std::int64_t save_every = 500;  ///< 0: only at the end
    std::int64_t keep_last = 2;
    std::int64_t keep_every = 0;  ///< also keeps checkpoints whose step is a multiple; 0: none
    std::string memory_budget;    ///< memory for training, see memory_bytes(); empty: what is available
    bool cuda_graph = true;  ///< replays a step as one CUDA graph instead of launching its kernels one by one
    std::int64_t context_parallel = 1;  ///< neighbouring ranks that share each sequence (SharedSequences)
    /// ZeRO level. 1: processes share masters and optimizer state between them; 2: gradients as well;
    /// 3: weights as well
    std::int64_t zero = 0;
    bool checkpoint_parts = false;  ///< each rank writes the part of a checkpoint that it holds (SharedSave)
    std::int64_t shard_copies = 0;  ///< 1: each process keeps a copy of another one's shard (ShardCopies)
    Offload offload = Offload::none;

    /// The settings that apply_json() has overwritten. A memory budget does not change them.
    std::set<std::string> given;

    /// How many groups of `ranks` processes train on different sequences.
    std::int64_t sequence_groups(std::int64_t ranks) const {
        return std::max<std::int64_t>(ranks / context_parallel, 1);
    }
    // Sequences of one micro-batch, and micro-batches of one step, if `ranks` processes share the step.
    std::int64_t micro_batch_size(std::int64_t ranks = 1) const {
        return micro_batch == 0 ? batch / sequence_groups(ranks) : micro_batch;
    }
    std::int64_t accumulation_steps(std::int64_t ranks = 1) const {
        return batch / (sequence_groups(ranks) * micro_batch_size(ranks));
    }
};

/// Whether a process with the whole state saves masters for which neither itself nor its sums of gradients
/// has memory.
inline bool joins_masters_to_save(const TrainConfig& config) {
    return config.masters == MasterFormat::split && config.gradient_dtype == TrainDType::bf16;
}

/// Returns the dtype of weights and activations.
constexpr DType storage_dtype(TrainDType dtype) {
    switch (dtype) {
        case TrainDType::f32:
            return DType::f32;
        case TrainDType::bf16:
            return DType::bf16;
    }
    throw Error("dtype: unknown");
}

/// Returns the largest document count in a window; 0 unless config.packed.
std::int64_t max_documents_of(const TrainConfig& config);

/// Returns the packing for a run's windows; none unless config.packed. If neither the settings nor the
/// tokenizer say where documents begin, examples alone are documents. With config.model.prefix, windows have
/// row ranges, and hold one example each unless config.packed.
Packing packing_of(const TrainConfig& config, const std::optional<Tokenizer>& tokenizer);

/// Returns the seconds of a time budget: "90s", "5m", "1h30m", "0.5h". Throws Error for any other text, and
/// for more than a year.
double seconds_of(std::string_view time_budget);

/// Returns the bytes of a memory budget: "16GiB", "1.5GiB", "900MiB", or a number of MiB; 0 for "0" and an
/// empty text. Throws Error for any other text.
std::size_t memory_bytes(std::string_view memory_budget);

/// Throws Error naming the setting, its value and what was expected. Checks the settings for a run with
/// `ranks` processes.
void validate(const TrainConfig& config, std::int64_t ranks = 1);

/// Returns the settings by name; enumerations as words.
JsonValue to_json(const TrainConfig& config);
/// Returns the settings of the architecture.
JsonValue to_json(const ModelConfig& model);
/// Overwrites the settings that the object `settings` contains. `source` names the file in errors. The error
/// for an unknown key names the nearest known key; the error for a wrong type names the expected type.
void apply_json(TrainConfig& config, const JsonValue& settings, const std::string& source);
/// Overwrites settings like the function above, from JSON text.
void apply_config_text(TrainConfig& config, std::string_view text, const std::string& source);
/// Returns the text in a JSON settings file, which must be a regular file of at most max_config_bytes.
constexpr std::uint64_t max_config_bytes = std::uint64_t{1} << 20;
std::string config_file_text(const std::string& path, SymbolicLinks links = SymbolicLinks::follow);
/// Reads a JSON settings file and applies it.
void apply_config_file(TrainConfig& config, const std::string& path,
                       SymbolicLinks links = SymbolicLinks::follow);

/// Throws Error naming the first setting in `changes` that must not change when a run is resumed, or a number
/// out of its range. `prefix` precedes the names of the former in the message: "--" for flags.
void check_may_change(const JsonValue& changes, const std::string& prefix = "");

/// Makes the paths of all settings but `out` absolute, so that a run resumes from any working directory.
/// Throws Error naming a setting whose path is not UTF-8.
void make_paths_absolute(TrainConfig& config);

/// Returns the device for a choice. auto means a GPU if there is one, else the CPU. The process with number
/// `local_rank` on its host uses the GPU with this number, unless it sees only one GPU. Throws Error when
/// cuda is requested and there is no GPU.
Device resolve_device(DeviceChoice choice, int local_rank = 0);

/// Returns a preset's settings: demo, chat-demo, shakespeare-char-cpu, shakespeare-char, gpt2-124m,
/// gpt2-350m, gpt2-774m, llama-tiny, llama-0.5b, gemma2-tiny, gpt-oss-tiny, alibi-tiny, packed-tiny,
/// speedrun, speedrun-cpu, and depth-4 to depth-20 (recipe.h). The error for an unknown name names the
/// nearest known one.
TrainConfig preset(const std::string& name);
std::vector<std::string> preset_names();
/// The vocabulary size with which predictions and benchmarks replace 0, because a run computes it from the
/// text: the character count in tiny Shakespeare.
inline constexpr std::int64_t vocabulary_of_characters = 65;

template <>
struct EnumNames<ScheduleKind> {
    static constexpr std::array names = {std::pair{ScheduleKind::cosine, std::string_view("cosine")},
                                         std::pair{ScheduleKind::wsd, std::string_view("wsd")},
                                         std::pair{ScheduleKind::linear, std::string_view("linear")},
                                         std::pair{ScheduleKind::constant, std::string_view("constant")}};
};
template <>
struct EnumNames<CooldownShape> {
    static constexpr std::array names = {std::pair{CooldownShape::linear, std::string_view("linear")},
                                         std::pair{CooldownShape::one_minus_sqrt, std::string_view("1-sqrt")},
                                         std::pair{CooldownShape::cosine, std::string_view("cosine")}};
};
template <>
struct EnumNames<TrainDType> {
    static constexpr std::array names = {std::pair{TrainDType::f32, std::string_view("f32")},
                                         std::pair{TrainDType::bf16, std::string_view("bf16")}};
};
template <>
struct EnumNames<MomentFormat> {
    static constexpr std::array names = {std::pair{MomentFormat::f32, std::string_view("f32")},
                                         std::pair{MomentFormat::bf16, std::string_view("bf16")},
                                         std::pair{MomentFormat::int8, std::string_view("int8")}};
};
template <>
struct EnumNames<MasterFormat> {
    static constexpr std::array names = {std::pair{MasterFormat::f32, std::string_view("f32")},
                                         std::pair{MasterFormat::split, std::string_view("split")}};
};
template <>
struct EnumNames<Offload> {
    using enum Offload;
    static constexpr std::array names = {
        std::pair{none, std::string_view("none")},
        std::pair{optimizer, std::string_view("optimizer")},
        std::pair{gradients, std::string_view("gradients")},
        std::pair{optimizer | gradients, std::string_view("optimizer+gradients")},
        std::pair{residuals, std::string_view("residuals")},
        std::pair{optimizer | residuals, std::string_view("optimizer+residuals")},
        std::pair{gradients | residuals, std::string_view("gradients+residuals")},
        std::pair{optimizer | gradients | residuals, std::string_view("optimizer+gradients+residuals")},
        std::pair{weights, std::string_view("weights")},
        std::pair{optimizer | weights, std::string_view("optimizer+weights")},
        std::pair{gradients | weights, std::string_view("gradients+weights")},
        std::pair{optimizer | gradients | weights, std::string_view("optimizer+gradients+weights")},
        std::pair{residuals | weights, std::string_view("residuals+weights")},
        std::pair{optimizer | residuals | weights, std::string_view("optimizer+residuals+weights")},
        std::pair{gradients | residuals | weights, std::string_view("gradients+residuals+weights")},
        std::pair{optimizer | gradients | residuals | weights,
                  std::string_view("optimizer+gradients+residuals+weights")}};
};
template <>
struct EnumNames<DeviceChoice> {
    static constexpr std::array names = {std::pair{DeviceChoice::automatic, std::string_view("auto")},
                                         std::pair{DeviceChoice::cpu, std::string_view("cpu")},
                                         std::pair{DeviceChoice::cuda, std::string_view("cuda")}};
};

}  // namespace gradtile
