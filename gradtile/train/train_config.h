#pragma once
/// Everything a run is made from. A setting's name is the same as a flag (--save-every), as a key of the JSON
/// config file and as a key of the run's config.json; visit_settings() is the one list of them.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <gradtile/core/device.h>
#include <gradtile/core/dtype.h>
#include <gradtile/layers/model_config.h>
#include <gradtile/train/tokenizer.h>

namespace gradtile {

struct MemoryRequest;

enum class OptimizerKind { adamw, muon };
enum class ScheduleKind { cosine, wsd, linear, constant };
enum class TrainDType { f32, bf16 };
enum class DeviceChoice { automatic, cpu, cuda };

struct TrainConfig {
    ModelConfig model;

    // Data
    std::string data;           ///< text file, or token file (.bin)
    std::string val_data;       ///< empty: the last part of data
    double val_fraction = 0.1;  ///< part of data kept for validation when val_data is empty
    TokenizerKind tokenizer = TokenizerKind::characters;
    std::int64_t ignore_token = -1;  ///< targets of this id do not count; -1: none

    // Optimisation
    std::int64_t steps = 2000;
    std::int64_t batch = 12;       ///< sequences an optimizer step sees, over all ranks
    std::int64_t micro_batch = 0;  ///< sequences a rank holds at once; 0: all of its part of the batch
    OptimizerKind optimizer = OptimizerKind::adamw;
    double lr = 1e-3;
    double min_lr = 1e-4;
    double muon_lr = 0.02;  ///< for matrices inside blocks, when optimizer is muon
    double muon_momentum = 0.95;
    ScheduleKind schedule = ScheduleKind::cosine;
    std::int64_t warmup = 100;  ///< steps
    double wsd_decay = 0.2;     ///< wsd: the last part of the horizon, where the rate falls
    double beta1 = 0.9;
    double beta2 = 0.99;
    double epsilon = 1e-8;
    double weight_decay = 0.1;
    double clip = 1.0;               ///< largest global gradient norm; 0: no clipping
    std::int64_t max_bad_steps = 5;  ///< non-finite steps in a row before training stops

    // Run
    std::string out = "runs/default";
    std::string init_from;  ///< start from this checkpoint's weights, with a new optimizer
    std::uint64_t seed = 1;
    std::int64_t threads = 0;  ///< 0: every core
    TrainDType dtype = TrainDType::f32;
    DeviceChoice device = DeviceChoice::automatic;
    bool tf32 = false;              ///< see Context::with_tf32
    std::int64_t eval_every = 250;  ///< 0: only at the end
    std::int64_t save_every = 500;  ///< 0: only at the end
    std::int64_t keep_last = 2;
    std::int64_t keep_every = 0;     ///< also keep checkpoints whose step is a multiple; 0: none
    std::int64_t memory_budget = 0;  ///< MiB for everything a step holds; 0: what the device has
    bool cuda_graph = true;          ///< replay a step as one graph instead of launching its kernels
    std::int64_t zero = 0;           ///< 1: processes share masters and optimizer state between them (ZeRO-1)

    // What each of `ranks` processes does of a step.
    std::int64_t micro_batch_size(std::int64_t ranks = 1) const {
        return micro_batch == 0 ? batch / ranks : micro_batch;
    }
    std::int64_t accumulation_steps(std::int64_t ranks = 1) const {
        return batch / (ranks * micro_batch_size(ranks));
    }
};

/// Calls visit(name, member, help) for every setting, in the order --help prints them.
template <class Config, class Visit>
void visit_settings(Config& c, Visit&& visit) {
    visit("layers", c.model.layers, "transformer blocks");
    visit("heads", c.model.heads, "attention heads");
    visit("kv-heads", c.model.kv_heads, "key and value heads; 0: as many as heads");
    visit("width", c.model.width, "model width");
    visit("hidden", c.model.hidden, "MLP width; 0: 4*width, 8/3*width with swiglu");
    visit("context", c.model.context, "longest sequence, tokens");
    visit("vocabulary", c.model.vocabulary, "vocabulary size; 0: from the tokenizer");
    visit("norm", c.model.norm, "normalisation");
    visit("activation", c.model.activation, "MLP activation");
    visit("positions", c.model.positions, "position encoding");
    visit("rope-base", c.model.rope_base, "base of the rotary frequencies");
    visit("norm-epsilon", c.model.norm_epsilon, "added to the variance in norms");
    visit("bias", c.model.bias, "biases in linear layers and layer norms");
    visit("tied-head", c.model.tied_head, "output head shares the token embedding");
    visit("qk-norm", c.model.qk_norm, "RMSNorm on every head's q and k");
    visit("dropout", c.model.dropout, "on embeddings and residual branches");
    visit("recompute", c.model.recompute,
          "what backward computes again to save memory: nothing, cheap activations, whole blocks");

    visit("data", c.data, "text file, or token file (.bin) to train on");
    visit("val-data", c.val_data, "file to validate on; empty: the last part of data");
    visit("val-fraction", c.val_fraction, "part of data kept for validation");
    visit("tokenizer", c.tokenizer, "how text becomes tokens");
    visit("ignore-token", c.ignore_token, "targets of this id do not count; -1: none");

    visit("steps", c.steps, "optimizer steps; the schedule's horizon");
    visit("batch", c.batch, "sequences an optimizer step sees, over all ranks");
    visit("micro-batch", c.micro_batch, "sequences a rank holds at once; 0: all of its part of the batch");
    visit("optimizer", c.optimizer, "optimizer");
    visit("lr", c.lr, "peak learning rate");
    visit("min-lr", c.min_lr, "learning rate at the horizon");
    visit("muon-lr", c.muon_lr, "muon: peak learning rate of the blocks' matrices");
    visit("muon-momentum", c.muon_momentum, "muon: momentum");
    visit("schedule", c.schedule, "learning rate after warm-up");
    visit("warmup", c.warmup, "warm-up steps");
    visit("wsd-decay", c.wsd_decay, "wsd: last part of the horizon, where the rate falls");
    visit("beta1", c.beta1, "AdamW: decay of the first moment");
    visit("beta2", c.beta2, "AdamW: decay of the second moment");
    visit("epsilon", c.epsilon, "AdamW: added to the root of the second moment");
    visit("weight-decay", c.weight_decay, "decoupled, on matrices only");
    visit("clip", c.clip, "largest global gradient norm; 0: no clipping");
    visit("max-bad-steps", c.max_bad_steps, "non-finite steps in a row before training stops");

    visit("out", c.out, "directory of the run");
    visit("init-from", c.init_from, "checkpoint whose weights to start from");
    visit("seed", c.seed, "of weights, data order and dropout");
    visit("threads", c.threads, "0: every core");
    visit("dtype", c.dtype, "of weights and activations; bf16 keeps float32 masters");
    visit("device", c.device, "where to train");
    visit("deterministic", c.model.deterministic,
          "on a GPU: the same bits in every run, at some cost; the CPU always is");
    visit("cuda-graph", c.cuda_graph, "on a GPU: replay each step as one captured graph");
    visit("zero", c.zero, "1: ranks share the optimizer's state and masters between them; 0: each has all");
    visit("tf32", c.tf32, "f32 matrix products on GPUs may round operands to TF32");
    visit("eval-every", c.eval_every, "steps between evaluations; 0: only at the end");
    visit("save-every", c.save_every, "steps between checkpoints; 0: only at the end");
    visit("keep-last", c.keep_last, "newest checkpoints kept");
    visit("keep-every", c.keep_every, "also keep steps that are a multiple; 0: none");
    visit("memory-budget", c.memory_budget, "MiB a step may hold; 0: what the device has");
}

/// What the weights and activations of such a run are stored in.
constexpr DType storage_dtype(TrainDType dtype) {
    return dtype == TrainDType::bf16 ? DType::bf16 : DType::f32;
}

/// Throws Error naming the setting, its value and what was expected; of a run of `ranks` processes.
void validate(const TrainConfig& config, std::int64_t ranks = 1);

/// What each of `ranks` processes of a valid run on such a device asks plan_memory() for.
MemoryRequest memory_request(const TrainConfig& config, Device device, std::int64_t ranks = 1);

/// Settings by name; enumerations as words.
nlohmann::json to_json(const TrainConfig& config);
/// Overwrites the settings that stand in `settings` (an object). `source` names the file in errors; an
/// unknown key is refused with the nearest known one, a wrong type with what was expected.
void apply_json(TrainConfig& config, const nlohmann::json& settings, const std::string& source);
/// The same from JSON text.
void apply_config_text(TrainConfig& config, std::string_view text, const std::string& source);
/// Reads and applies a JSON file.
void apply_config_file(TrainConfig& config, const std::string& path);

/// auto: a GPU where there is one, else the CPU. Processes of one host are numbered by local_rank and take a
/// GPU each, unless each is shown only its own. Throws Error when cuda is asked for and there is none.
Device resolve_device(DeviceChoice choice, int local_rank = 0);

/// demo, shakespeare-char-cpu, shakespeare-char, gpt2-124m, gpt2-350m, gpt2-774m, llama-tiny; an unknown name
/// is refused with the nearest known one.
TrainConfig preset(const std::string& name);
std::vector<std::string> preset_names();

template <>
struct EnumNames<OptimizerKind> {
    static constexpr std::array names = {std::pair{OptimizerKind::adamw, std::string_view("adamw")},
                                         std::pair{OptimizerKind::muon, std::string_view("muon")}};
};
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
