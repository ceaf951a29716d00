#pragma once
/// A run's settings. A setting has the same name as a flag (--save-every), as a key of the JSON config file
/// and as a key of the run's config.json; visit_settings() lists all settings.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/device.h>
#include <gradtile/core/dtype.h>
#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/packing.h>
#include <gradtile/train/data/token_type.h>
#include <gradtile/train/optimizers/optimizers.h>
#include <gradtile/train/optimizers/setting_limits.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

enum class ScheduleKind { cosine, wsd, linear, constant };
enum class TrainDType { f32, bf16 };
enum class DeviceChoice { automatic, cpu, cuda };

struct TrainConfig {
    ModelConfig model;

    // Data
    std::string data;                      ///< text, conversations (.jsonl) or tokens (.bin)
    std::string val_data;                  ///< empty: the last part of data
    double val_fraction = 0.1;             ///< fraction of data kept for validation when val_data is empty
    std::string tokenizer = "characters";  ///< or "bytes", or a BPE tokenizer's file (load_tokenizer)
    TokenType token_type = TokenType::automatic;  ///< for token files without a header
    std::int64_t ignore_token = -1;               ///< targets with this id do not count in the loss; -1: none
    /// Template for conversations; a run records the chosen template.
    ChatTemplate chat_template = ChatTemplate::automatic;

    bool packed = false;               ///< attention within documents, which begin inside windows
    std::int64_t document_token = -1;  ///< packed: id that begins documents; -1: the data's own rule
    std::int64_t max_documents = 0;    ///< packed: limit per window; 0: context / 8, at least 8

    // Optimisation
    std::int64_t steps = 2000;
    std::int64_t batch = 12;       ///< sequences per optimizer step, over all ranks
    std::int64_t micro_batch = 0;  ///< sequences that a rank processes at once; 0: its part of the batch
    OptimizerKind optimizer = kind_of<AdamWSettings>;
    OptimizerSettings optimizer_settings;  ///< every optimizer's settings
    double lr = 1e-3;
    double min_lr = 1e-4;
    ScheduleKind schedule = ScheduleKind::cosine;
    std::int64_t warmup = 100;  ///< steps
    double wsd_decay = 0.2;     ///< wsd: fraction of the horizon, at its end, in which the rate falls
    double weight_decay = 0.1;
    double clip = 1.0;               ///< largest global gradient norm; 0: no clipping
    std::int64_t max_bad_steps = 5;  ///< non-finite steps in a row before training stops

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
    std::int64_t keep_every = 0;     ///< also keeps checkpoints whose step is a multiple; 0: none
    std::int64_t memory_budget = 0;  ///< memory for a step, in MiB; 0: what the device has available
    bool cuda_graph = true;  ///< replays a step as one CUDA graph instead of launching its kernels one by one
    std::int64_t zero = 0;   ///< 1: processes share masters and optimizer state between them (ZeRO-1)

    // Sequences of one micro-batch, and micro-batches of one step, if `ranks` processes share the step.
    std::int64_t micro_batch_size(std::int64_t ranks = 1) const {
        return micro_batch == 0 ? batch / ranks : micro_batch;
    }
    std::int64_t accumulation_steps(std::int64_t ranks = 1) const {
        return batch / (ranks * micro_batch_size(ranks));
    }
};

/// The groups of settings for visit_settings(), each in --help order.
namespace detail {

/// The layers and their sizes, the positions, and attention's options.
template <class Config, class Visit>
void visit_architecture_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    visit("layers", c.model.layers, "transformer blocks", model_limits::layers);
    visit("heads", c.model.heads, "attention heads", model_limits::heads);
    visit("kv-heads", c.model.kv_heads, "key and value heads; 0: as many as heads", model_limits::kv_heads);
    visit("width", c.model.width, "model width", model_limits::width);
    visit("hidden", c.model.hidden, "MLP width; 0: 4*width, 8/3*width if the activation is gated",
          model_limits::hidden);
    visit("context", c.model.context, "longest sequence, tokens", model_limits::context);
    visit("vocabulary", c.model.vocabulary, "vocabulary size; 0: from the tokenizer",
          model_limits::vocabulary);
    visit("norm", c.model.norm, "normalisation", any_value);
    visit("activation", c.model.activation, "MLP activation", any_value);
    visit("positions", c.model.positions, "position encoding", any_value);
    visit("rope-base", c.model.rope_base, "base of the rotary frequencies", model_limits::rope_base);
    visit("norm-epsilon", c.model.norm_epsilon, "added to the variance in norms", model_limits::norm_epsilon);
    visit("bias", c.model.bias, "biases in linear layers and layer norms", any_value);
    visit("tied-head", c.model.tied_head, "output head shares the token embedding", any_value);
    visit("qk-norm", c.model.qk_norm, "RMSNorm on every head's q and k", any_value);
    visit("window", c.model.window,
          "number of keys that a token sees in attention, itself included; 0: all up to itself",
          model_limits::window);
    visit("window-pattern", c.model.window_pattern,
          "every N-th layer sees the whole context instead of the window; 0: no layer",
          model_limits::window_pattern);
    visit("softcap", c.model.softcap, "attention scores s become softcap*tanh(s/softcap); 0: off",
          model_limits::softcap);
    visit("sinks", c.model.sinks,
          "one learned logit per head in attention's softmax, without a key and a value", any_value);
}

/// How the blocks train: dropout, adapters and recomputation.
template <class Config, class Visit>
void visit_block_training_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    visit("dropout", c.model.dropout, "dropout probability of embeddings and residual branches",
          model_limits::dropout);
    visit("attention-dropout", c.model.attention_dropout, "dropout probability of attention's probabilities",
          model_limits::dropout);
    visit("lora-rank", c.model.lora_rank,
          "train only adapters of this rank on the blocks' matrices (LoRA), with init-from; 0: all weights",
          model_limits::lora_rank);
    visit("lora-alpha", c.model.lora_alpha, "the adapters' term has the factor alpha / rank; 0: the rank",
          model_limits::lora_alpha);
    visit("lora-on", c.model.lora_on,
          "matrices with adapters: all, attn, mlp, or names such as attn.qkv,mlp.fc", any_value);
    visit("recompute", c.model.recompute,
          "what backward recomputes to save memory: nothing, cheap activations, whole blocks", any_value);
}

/// The files, the tokens and the loss's targets.
template <class Config, class Visit>
void visit_data_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    visit("data", c.data, "text file, conversations (.jsonl) or token file (.bin) to train on", any_value);
    visit("val-data", c.val_data, "file to validate on; empty: the last part of data", any_value);
    visit("val-fraction", c.val_fraction, "fraction of data kept for validation", proper_fraction);
    visit("tokenizer", c.tokenizer,
          "how text becomes tokens: characters, bytes, or the file of a BPE tokenizer (tokenizer.json)",
          any_value);
    visit("token-type", c.token_type, "integers of a token file that has no header; auto: uint16", any_value);
    visit("ignore-token", c.ignore_token, "targets with this id do not count in the loss; -1: none",
          Range{-1, 2147483647});
}

/// Conversations, and the packing of documents.
template <class Config, class Visit>
void visit_document_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    visit("chat-template", c.chat_template,
          "how conversations become text; auto: by the tokenizer's special tokens, else plain", any_value);
    visit("packed", c.packed,
          "attention within each document, whose positions start at 0; documents begin at the end-of-text "
          "token of llm.c's shards and of BPE tokenizers, with each conversation, and after blank lines in "
          "other "
          "text",
          any_value);
    visit("document-token", c.document_token, "packed: id that begins a document; -1: see packed",
          Range{-1, 2147483647});
    visit("max-documents", c.max_documents,
          "packed: largest number of documents in a window; tokens of further ones are not trained on; 0: "
          "context / 8, at least 8",
          Range{0, 1 << 24});
}

/// The batch, the optimizer and the learning rate's schedule.
template <class Config, class Visit>
void visit_optimization_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    visit("steps", c.steps, "number of optimizer steps; the horizon of the learning rate's schedule",
          Range{1, max_steps});
    visit("batch", c.batch, "sequences of an optimizer step, over all ranks", Range{1, max_sequences});
    visit("micro-batch", c.micro_batch,
          "sequences that a rank processes at once; 0: all of its part of the batch",
          Range{0, max_sequences});
    visit("optimizer", c.optimizer, "optimizer", any_value);
    visit("lr", c.lr, "peak learning rate", positive);
    visit("min-lr", c.min_lr, "learning rate at the horizon", Range{0, 1e30});
    const auto visit_all = [&](auto&... settings) { (settings.visit_settings(settings, visit), ...); };
    std::apply(visit_all, c.optimizer_settings);
    visit("schedule", c.schedule, "learning rate after warm-up", any_value);
    visit("warmup", c.warmup, "warm-up steps", Range{0, max_steps});
    visit("wsd-decay", c.wsd_decay, "wsd: fraction of the horizon, at its end, in which the rate falls",
          Range{0, 1});
    visit("weight-decay", c.weight_decay, "decoupled weight decay, of matrices only", Range{0, 1e30});
    visit("clip", c.clip, "largest global gradient norm; 0: no clipping", Range{0, 1e30});
    visit("max-bad-steps", c.max_bad_steps, "non-finite steps in a row before training stops",
          Range{1, max_steps});
}

/// The run's output, its start, its device and its checkpoints.
template <class Config, class Visit>
void visit_run_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    visit("out", c.out, "directory of the run", any_value);
    visit("sample-every", c.sample_every,
          "steps between texts that the model writes to metrics.jsonl; 0: none", Range{0, max_steps});
    visit("sample-tokens", c.sample_tokens, "number of tokens of each of these texts", Range{1, 1000});
    visit("sample-prompt", c.sample_prompt,
          "text that these texts continue; empty: they begin after a line break", any_value);
    visit("tensorboard", c.tensorboard, "directory for TensorBoard's event files; empty: none", any_value);
    visit("init-from", c.init_from, "run or checkpoint whose model and weights to start from", any_value);
    visit("seed", c.seed, "seed of weights, data order and dropout", Range{0, 18446744073709551615.0});
    visit("threads", c.threads, "number of threads; 0: one per core", Range{0, 4096});
    visit("dtype", c.dtype, "type of weights and activations; bf16 keeps float32 masters", any_value);
    visit("device", c.device, "where to train", any_value);
    visit("deterministic", c.model.deterministic,
          "on a GPU: the same bits in every run, but slower; the CPU is always deterministic", any_value);
    visit("cuda-graph", c.cuda_graph, "on a GPU: replay each step as one captured graph", any_value);
    visit("zero", c.zero, "1: each rank holds a part of the optimizer's state and masters; 0: all of it",
          Range{0, 1});
    visit("tf32", c.tf32, "f32 matrix products on GPUs may round operands to TF32", any_value);
    visit("eval-every", c.eval_every, "steps between evaluations; 0: only at the end", Range{0, max_steps});
    visit("save-every", c.save_every, "steps between checkpoints; 0: only at the end", Range{0, max_steps});
    visit("keep-last", c.keep_last, "number of newest checkpoints to keep", Range{1, max_steps});
    visit("keep-every", c.keep_every, "also keep checkpoints whose step is a multiple of this; 0: none",
          Range{0, max_steps});
    visit("memory-budget", c.memory_budget, "memory in MiB that training may use; 0: what the device has",
          Range{0, max_mebibytes});
}

}  // namespace detail

/// Calls visit(name, member, help, range) for every setting, in --help order; `range` limits a number.
template <class Config, class Visit>
void visit_settings(Config& c, Visit&& visit) {
    detail::visit_architecture_settings(c, visit);
    detail::visit_block_training_settings(c, visit);
    detail::visit_data_settings(c, visit);
    detail::visit_document_settings(c, visit);
    detail::visit_optimization_settings(c, visit);
    detail::visit_run_settings(c, visit);
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

/// Returns the packing for a run's windows; none unless config.packed. Throws Error if it is not known where
/// documents begin.
Packing packing_of(const TrainConfig& config, const std::optional<Tokenizer>& tokenizer);

/// Throws Error naming the setting, its value and what was expected. Checks the settings for a run with
/// `ranks` processes.
void validate(const TrainConfig& config, std::int64_t ranks = 1);

/// Returns the settings by name; enumerations as words.
JsonValue to_json(const TrainConfig& config);
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

/// Makes data, val-data and init-from absolute, so that a run resumes from any working directory. Throws
/// Error naming a setting whose path is not UTF-8.
void make_paths_absolute(TrainConfig& config);

/// Returns the device for a choice. auto means a GPU if there is one, else the CPU. The process with number
/// `local_rank` on its host uses the GPU with this number, unless it sees only one GPU. Throws Error when
/// cuda is requested and there is no GPU.
Device resolve_device(DeviceChoice choice, int local_rank = 0);

/// Returns a preset's settings: demo, chat-demo, shakespeare-char-cpu, shakespeare-char, gpt2-124m,
/// gpt2-350m, gpt2-774m, llama-tiny, llama-0.5b, gemma2-tiny, gpt-oss-tiny, alibi-tiny, packed-tiny. The
/// error for an unknown name names the nearest known one.
TrainConfig preset(const std::string& name);
std::vector<std::string> preset_names();

template <>
struct EnumNames<ScheduleKind> {
    static constexpr std::array names = {std::pair{ScheduleKind::cosine, std::string_view("cosine")},
                                         std::pair{ScheduleKind::wsd, std::string_view("wsd")},
                                         std::pair{ScheduleKind::linear, std::string_view("linear")},
                                         std::pair{ScheduleKind::constant, std::string_view("constant")}};
};
template <>
struct EnumNames<TrainDType> {
    static constexpr std::array names = {std::pair{TrainDType::f32, std::string_view("f32")},
                                         std::pair{TrainDType::bf16, std::string_view("bf16")}};
};
template <>
struct EnumNames<DeviceChoice> {
    static constexpr std::array names = {std::pair{DeviceChoice::automatic, std::string_view("auto")},
                                         std::pair{DeviceChoice::cpu, std::string_view("cpu")},
                                         std::pair{DeviceChoice::cuda, std::string_view("cuda")}};
};

}  // namespace gradtile
