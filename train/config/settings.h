#pragma once
/// The list of a run's settings, with the traits that flags, config files, resume checks, `plan` and `bench`
/// read. A setting has the same name as a flag (--save-every), as a key of the JSON config file, and as a key
/// of the run's config.json and of a checkpoint's config.
#include <tuple>

#include <gradtile/train/config/train_config.h>

namespace gradtile {

namespace setting_limits {
inline constexpr double max_sequences = 1 << 30;
inline constexpr std::size_t max_sample_prompt_bytes = 1000;
}  // namespace setting_limits

/// What a setting describes: the model that a checkpoint holds, its training, its adapters, or the run.
enum class SettingGroup { architecture, training, adapters, run };

/// Whether a run may be resumed with another value.
enum class OnResume { fixed, may_change };

/// What a flag takes: a value, or a list of values, for rows with each of them.
enum class FlagTakes { value, list };

/// The commands that have a setting's flag, in addition to `train`, which has all flags.
struct SettingUsers {
    bool plan = false;
    bool bench_train = false, bench_generate = false, bench_gemm = false, bench_layers = false;
};

struct Setting {
    const char* name;
    const char* help;
    SettingGroup group;
    Range range = setting_limits::any_value;  ///< of a number
    SettingUsers used_by = {};
    OnResume on_resume = OnResume::fixed;
    FlagTakes in_bench = FlagTakes::value;  ///< in `gradtile bench`
};

/// The parts of the list, each in --help order.
namespace detail {

// Which commands have the flags of settings that describe a whole model, matrix products, shapes, a training
// step, its batch, and the kernels of its products.
inline constexpr SettingUsers train_only{};
inline constexpr SettingUsers model_users{.plan = true, .bench_train = true, .bench_generate = true};
inline constexpr SettingUsers product_users{
    .plan = true, .bench_train = true, .bench_generate = true, .bench_gemm = true};
inline constexpr SettingUsers shape_users{
    .plan = true, .bench_train = true, .bench_generate = true, .bench_gemm = true, .bench_layers = true};
inline constexpr SettingUsers benches{
    .bench_train = true, .bench_generate = true, .bench_gemm = true, .bench_layers = true};
inline constexpr SettingUsers step_users{.plan = true, .bench_train = true};
inline constexpr SettingUsers batch_users{
    .plan = true, .bench_train = true, .bench_gemm = true, .bench_layers = true};
inline constexpr SettingUsers product_kernel_users{.bench_train = true, .bench_gemm = true};

/// The layers and their sizes, the positions, and attention's options.
template <class Config, class Visit>
void visit_architecture_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    using enum SettingGroup;
    visit(Setting{"layers", "transformer blocks", architecture, model_limits::layers, product_users},
          c.model.layers);
    visit(Setting{"heads", "attention heads", architecture, model_limits::heads, shape_users}, c.model.heads);
    visit(Setting{"kv-heads", "key and value heads; 0: as many as heads", architecture,
                  model_limits::kv_heads, shape_users},
          c.model.kv_heads);
    visit(Setting{"width", "model width", architecture, model_limits::width, shape_users}, c.model.width);
    visit(Setting{"head-width", "elements of a head's query, key and value; 0: width / heads", architecture,
                  model_limits::head_width, shape_users},
          c.model.head_width);
    visit(Setting{"hidden", "MLP width; 0: 4*width, 8/3*width if the activation is gated", architecture,
                  model_limits::hidden, shape_users},
          c.model.hidden);
    visit(Setting{"context", "longest sequence, tokens", architecture, model_limits::context, shape_users},
          c.model.context);
    visit(Setting{"vocabulary", "vocabulary size; 0: from the tokenizer", architecture,
                  model_limits::vocabulary, shape_users},
          c.model.vocabulary);
    visit(Setting{"block", "where a block has its norms, and whether its branches have the same input",
                  architecture, any_value, model_users},
          c.model.block);
    visit(Setting{"norm", "normalisation", architecture, any_value, model_users}, c.model.norm);
    visit(Setting{"norm-offset", "norms multiply by 1 + weight instead of weight (Gemma)", architecture},
          c.model.norm_offset);
    visit(Setting{"activation", "MLP activation", architecture, any_value, product_users},
          c.model.activation);
    visit(Setting{"positions", "position encoding", architecture, any_value, model_users}, c.model.positions);
    visit(Setting{"norm-epsilon", "added to the variance in norms", architecture, model_limits::norm_epsilon},
          c.model.norm_epsilon);
    visit(Setting{"bias", "biases in linear layers and layer norms", architecture, any_value, product_users},
          c.model.bias);
    visit(Setting{"qkv-bias", "biases in the projection to q, k and v, also with no-bias", architecture,
                  any_value, product_users},
          c.model.qkv_bias);
    visit(
        Setting{"tied-head", "output head shares the token embedding", architecture, any_value, model_users},
        c.model.tied_head);
    visit(Setting{"scaled-embedding", "token embeddings are multiplied by sqrt(width)", architecture},
          c.model.scaled_embedding);
    visit(Setting{"embedding-norm", "a norm between the embeddings and the first block", architecture},
          c.model.embedding_norm);
    visit(Setting{"x0-lambdas", "a block's input is a learned sum of the stream and the first block's input",
                  architecture, any_value, model_users},
          c.model.x0_lambdas);
    visit(Setting{"attention-gate", "a sigmoid gate for each head of attention's output, from its input",
                  architecture, any_value, model_users},
          c.model.attention_gate);
    visit(Setting{"value-embeddings",
                  "every other layer adds a gated embedding of the token to attention's values", architecture,
                  any_value, model_users},
          c.model.value_embeddings);
    visit(Setting{"key-offset",
                  "keys have the unrotated columns of the token before, in layers that see the whole context",
                  architecture, any_value, model_users},
          c.model.key_offset);
    visit(Setting{"qk-norm", "RMSNorm on q and k", architecture, any_value, model_users}, c.model.qk_norm);
    visit(Setting{"qk-norm-kind", "qk-norm: of every head, or of all heads of a token together", architecture,
                  any_value, model_users},
          c.model.qk_norm_kind);
    visit(Setting{"query-scalar", "attention's scores are q.k / sqrt(query-scalar); 0: the head width",
                  architecture, model_limits::query_scalar},
          c.model.query_scalar);
    visit(Setting{"window",
                  "number of keys that a token sees in attention, itself included; 0: all up to itself",
                  architecture, model_limits::window, model_users},
          c.model.window);
    visit(Setting{"window-pattern",
                  "every N-th layer sees the whole context instead of the window; 0: no layer", architecture,
                  model_limits::window_pattern, model_users},
          c.model.window_pattern);
    visit(
        Setting{"prefix",
                "prefix-LM, for prompts with completions: the tokens of a prompt see each other, completions "
                "stay causal",
                architecture},
        c.model.prefix);
    visit(Setting{"softcap", "attention scores s become softcap*tanh(s/softcap); 0: off", architecture,
                  model_limits::softcap, model_users},
          c.model.softcap);
    visit(Setting{"sinks", "one learned logit per head in attention's softmax, without a key and a value",
                  architecture, any_value, model_users},
          c.model.sinks);
    visit(Setting{"logit-softcap", "output logits are limited to this size; 0: off", architecture,
                  model_limits::logit_softcap, model_users},
          c.model.logit_softcap.limit);
    visit(Setting{"logit-softcap-form", "c*tanh(x/c), or x/sqrt(1 + (x/c)^2)", architecture},
          c.model.logit_softcap.form);
}

/// Rotary positions.
template <class Config, class Visit>
void visit_rope_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    using enum SettingGroup;
    visit(Setting{"rope-base", "base of the rotary frequencies", architecture, model_limits::rope_base},
          c.model.rope_base);
    visit(Setting{"rotary-width", "number of a head's first columns that are rotated; 0: all", architecture,
                  model_limits::rotary_width},
          c.model.rotary_width);
    visit(Setting{"rope-pattern", "every N-th layer rotates nothing; 0: all layers rotate", architecture,
                  model_limits::rope_pattern},
          c.model.rope_pattern);
    visit(Setting{"window-rope-base", "base in layers with a window, without rope-scaling; 0: rope-base",
                  architecture, model_limits::window_rope_base},
          c.model.window_rope_base);
    auto& scaling = c.model.rope_scaling;
    visit(
        Setting{"rope-scaling", "how the rotary frequencies are changed, for longer contexts", architecture},
        scaling.kind);
    visit(Setting{"rope-factor", "rope-scaling: factor by which the context is extended", architecture,
                  model_limits::rope_factor},
          scaling.factor);
    visit(Setting{"rope-original-context", "rope-scaling: context before the extension; 0: context",
                  architecture, model_limits::rope_original_context},
          scaling.original_context);
    const auto visit_number = [&](const char* name, const char* help, const Range& range, auto& member) {
        visit(Setting{name, help, architecture, range}, member);
    };
    visit_number("rope-low-factor",
                 "llama3: frequencies with fewer rotations in the original context are low",
                 model_limits::rope_parameter, scaling.low_factor);
    visit_number("rope-high-factor", "llama3: frequencies with more rotations are high",
                 model_limits::rope_parameter, scaling.high_factor);
    visit_number("rope-beta-fast", "yarn: frequencies with more rotations stay unchanged",
                 model_limits::rope_parameter, scaling.beta_fast);
    visit_number("rope-beta-slow", "yarn: frequencies with fewer rotations are divided by the factor",
                 model_limits::rope_parameter, scaling.beta_slow);
    visit(Setting{"rope-truncate", "yarn: the ramp between them ends at whole indices", architecture},
          scaling.truncate);
    visit_number("rope-attention-factor",
                 "yarn, longrope: factor on cosines and sines; 0: follows from rope-factor",
                 model_limits::rope_magnitude, scaling.attention_factor);
    visit_number("rope-mscale", "yarn: scale of the attention factor's numerator; 0: none",
                 model_limits::rope_magnitude, scaling.mscale);
    visit_number("rope-mscale-all-dim", "yarn: scale of the attention factor's denominator; 0: none",
                 model_limits::rope_magnitude, scaling.mscale_all_dim);
    visit(Setting{"rope-short-factors", "longrope: divisors up to the original context", architecture},
          scaling.short_factors);
    visit(Setting{"rope-long-factors", "longrope: divisors in a longer context", architecture},
          scaling.long_factors);
}

/// How the blocks train: dropout, adapters and recomputation.
template <class Config, class Visit>
void visit_block_training_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    using enum SettingGroup;
    visit(Setting{"dropout", "dropout probability of embeddings and residual branches", training,
                  model_limits::dropout, step_users},
          c.training.dropout);
    visit(Setting{"attention-dropout", "dropout probability of attention's probabilities", training,
                  model_limits::dropout, step_users},
          c.training.attention_dropout);
    visit(Setting{"lora-rank",
                  "train only adapters of this rank on the blocks' matrices (LoRA), with init-from; 0: all "
                  "weights",
                  adapters, model_limits::lora_rank, step_users},
          c.adapters.rank);
    visit(Setting{"lora-alpha", "the adapters' term has the factor alpha / rank; 0: the rank", adapters,
                  model_limits::lora_alpha},
          c.adapters.alpha);
    visit(Setting{"lora-on", "matrices with adapters: all, attn, mlp, or names such as attn.qkv,mlp.fc",
                  adapters, any_value, step_users},
          c.adapters.on);
    visit(Setting{"frozen-dtype",
                  "with lora-rank: type of the blocks' frozen matrices; same: dtype, nf4: 4 bits (QLoRA), "
                  "int8: 8 bits",
                  adapters, any_value, step_users},
          c.adapters.frozen_format);
    visit(Setting{"zero-init",
                  "matrices whose output is added to the residual stream, and an output head that is not "
                  "tied, start at zero",
                  training},
          c.training.zero_init);
    visit(Setting{"embedding-std", "standard deviation of the token embedding at the start", training,
                  positive},
          c.training.embedding_std);
    visit(Setting{"recompute",
                  "what backward recomputes to save memory: nothing, cheap activations, whole blocks",
                  training, any_value, step_users, OnResume::fixed, FlagTakes::list},
          c.training.recompute);
}

/// The files, the tokens and the loss's targets.
template <class Config, class Visit>
void visit_data_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    using enum SettingGroup;
    using enum OnResume;
    visit(
        Setting{"data",
                "file, folder or pattern to train on: text, JSON Lines or Parquet, each also .gz or .zst, or "
                "tokens (.bin)",
                training, any_value, train_only, may_change},
        c.data);
    visit(Setting{"val-data", "the same, to validate on; empty: the last part of data", training, any_value,
                  train_only, may_change},
          c.val_data);
    visit(
        Setting{
            "text-column",
            "column of JSON Lines or Parquet that holds texts; empty: messages, conversations, prompt and "
            "completion, or text",
            training},
        c.text_column);
    visit(Setting{"token-cache",
                  "directory that keeps the tokens of documents, so that they are encoded once; empty: none",
                  training, any_value, train_only, may_change},
          c.token_cache);
    visit(
        Setting{"stream-buffer",
                "number of documents that are read, shuffled and encoded together while the model trains; 0: "
                "all documents are encoded before the first step",
                training, Range{0, 1 << 24}},
        c.stream_buffer);
    visit(Setting{"val-fraction", "fraction of data kept for validation", training, proper_fraction},
          c.val_fraction);
    visit(Setting{"tokenizer",
                  "how text becomes tokens: characters, bytes, or a tokenizer's file (tokenizer.json or "
                  "tokenizer.model), which also gives token files their text",
                  training},
          c.tokenizer);
    visit(Setting{"token-type", "integers of a token file that has no header; auto: uint16", training},
          c.token_type);
    visit(Setting{"ignore-token", "targets with this id do not count in the loss; -1: none", training,
                  Range{-1, 2147483647}},
          c.ignore_token);
}

/// Conversations, and the packing of documents.
template <class Config, class Visit>
void visit_document_settings(Config& c, Visit& visit) {
    using enum SettingGroup;
    visit(Setting{"chat-template",
                  "how conversations become text; auto: by the tokenizer's special tokens, else plain",
                  training},
          c.chat_template);
    visit(
        Setting{"train-on",
                "targets in conversations and in prompts with completions: answers, or all tokens", training},
        c.train_on);
    visit(Setting{"packed",
                  "attention within each document, whose positions start at 0; documents begin at the "
                  "end-of-text token of llm.c's shards and of BPE tokenizers, with each conversation, and "
                  "after blank lines in other text",
                  training},
          c.packed);
    visit(Setting{"document-token", "packed: id that begins a document; -1: see packed", training,
                  Range{-1, 2147483647}},
          c.document_token);
    visit(Setting{"max-documents",
                  "packed: largest number of documents in a window; tokens of further ones are not trained "
                  "on; 0: context / 8, at least 8",
                  training, Range{0, 1 << 24}},
          c.max_documents);
}

/// The batch, the optimizer and the learning rate's schedule.
template <class Config, class Visit>
void visit_optimization_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    using enum SettingGroup;
    using enum OnResume;
    visit(Setting{"steps", "number of optimizer steps; the horizon of the learning rate's schedule", training,
                  Range{0, max_steps}, SettingUsers{.plan = true}, may_change},
          c.steps);
    visit(Setting{"time-budget",
                  "time after which the run ends, 90s, 5m or 1h30m, with evaluation and saving; the schedule "
                  "follows the clock; empty: steps",
                  training},
          c.time_budget);
    visit(Setting{"replay-clock", "time-budget: a run whose progress at each step is used again, to the bit",
                  training},
          c.replay_clock);
    visit(Setting{"batch", "sequences of an optimizer step, over all ranks", training,
                  Range{1, max_sequences}, batch_users, fixed, FlagTakes::list},
          c.batch);
    visit(Setting{"micro-batch", "sequences that a rank processes at once; 0: all of its part of the batch",
                  training, Range{0, max_sequences}, step_users},
          c.micro_batch);
    visit(Setting{"optimizer", "optimizer", training, any_value, step_users}, c.optimizer);
    visit(Setting{"lr", "peak learning rate", training, positive}, c.lr);
    visit(Setting{"min-lr", "learning rate at the horizon", training, Range{0, 1e30}}, c.min_lr);
    const auto visit_optimizer = [&](const char* name, auto& member, const char* help, const Range& range) {
        visit(Setting{name, help, training, range}, member);
    };
    const auto visit_all = [&](auto&... settings) {
        (settings.visit_settings(settings, visit_optimizer), ...);
    };
    std::apply(visit_all, c.optimizer_settings);
    visit(Setting{"schedule", "learning rate after warm-up", training}, c.schedule);
    visit(Setting{"warmup", "warm-up steps", training, Range{0, max_steps}}, c.warmup);
    visit(Setting{"wsd-decay", "wsd: fraction of the horizon, at its end, in which the rate falls", training,
                  Range{0, 1}},
          c.wsd_decay);
    visit(
        Setting{"embedding-lr-factor", "multiplies lr for token and position embeddings", training, positive},
        c.embedding_lr_factor);
    visit(Setting{"head-lr-factor", "multiplies lr for an output head that is not tied", training, positive},
          c.head_lr_factor);
    visit(Setting{"vector-lr-factor", "multiplies lr for biases, norm weights and other vectors", training,
                  positive},
          c.vector_lr_factor);
    visit(Setting{"weight-decay", "decoupled weight decay, of matrices only", training, Range{0, 1e30}},
          c.weight_decay);
    visit(Setting{"cautious-decay",
                  "weight decay only where weight and update have one sign, so that both shrink the weight",
                  training},
          c.cautious_decay);
    visit(Setting{"moment-dtype",
                  "type of the optimizer's moments between steps; bf16: half the memory, int8: a quarter, "
                  "both rounded stochastically",
                  training, any_value, step_users},
          c.moment_dtype);
    visit(Setting{"masters",
                  "how bf16 runs keep float32 masters; split: as the bf16 weight and 16 bits beside it, with "
                  "equal results",
                  training, any_value, step_users, OnResume::may_change},
          c.masters);
    visit(
        Setting{
            "gradient-dtype",
            "type of the sums of gradients; bf16: half the memory; passes compute float32, and the sums of "
            "several micro-steps are rounded stochastically",
            training, any_value, step_users},
        c.gradient_dtype);
    visit(Setting{"clip", "largest global gradient norm; 0: no clipping", training, Range{0, 1e30}}, c.clip);
    visit(Setting{"max-bad-steps", "non-finite steps in a row before training stops", training,
                  Range{1, max_steps}},
          c.max_bad_steps);
}

/// Sizes and shapes that change during a run. visit_optimization_settings() has the learning rate.
template <class Config, class Visit>
void visit_schedule_settings(Config& c, Visit& visit) {
    using enum SettingGroup;
    visit(Setting{"wsd-shape", "wsd: how the rate falls at the end, from lr to min-lr", training},
          c.wsd_shape);
    visit(Setting{"batch-start",
                  "sequences of the first step; they double in batch-warmup steps up to batch; 0: batch",
                  training, Range{0, setting_limits::max_sequences}},
          c.batch_start);
    visit(Setting{"batch-warmup", "steps in which batch-start grows", training,
                  Range{0, setting_limits::max_steps}},
          c.batch_warmup);
    visit(
        Setting{"window-start",
                "keys that a token sees in any layer at step 1, at most; the limit doubles in window-warmup "
                "steps up to the layers' windows; 0: no limit",
                training, model_limits::window},
        c.window_start);
    visit(Setting{"window-warmup", "steps in which window-start grows", training,
                  Range{0, setting_limits::max_steps}},
          c.window_warmup);
}

/// What the run writes in addition to checkpoints, and where it starts.
template <class Config, class Visit>
void visit_output_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    using enum SettingGroup;
    visit(Setting{"out", "directory of the run", run}, c.out);
    visit(Setting{"sample-every", "steps between texts that the model writes to metrics.jsonl; 0: none", run,
                  Range{0, max_steps}},
          c.sample_every);
    visit(Setting{"sample-tokens", "number of tokens of each of these texts", run, Range{1, 1000}},
          c.sample_tokens);
    visit(
        Setting{"sample-prompt", "text that these texts continue; empty: they begin after a line break", run},
        c.sample_prompt);
    visit(Setting{"tensorboard", "directory for TensorBoard's event files; empty: none", run, any_value,
                  train_only, OnResume::may_change},
          c.tensorboard);
    visit(Setting{"init-from", "run or checkpoint whose model and weights to start from", run}, c.init_from);
}

/// The device, the evaluations and the checkpoints.
template <class Config, class Visit>
void visit_run_settings(Config& c, Visit& visit) {
    using namespace setting_limits;
    using enum SettingGroup;
    using enum OnResume;
    visit(Setting{"seed", "seed of weights, data order and dropout", run, Range{0, 18446744073709551615.0}},
          c.seed);
    visit(Setting{"threads", "number of threads; 0: one per core", run, Range{0, 4096}, benches, may_change},
          c.threads);
    visit(Setting{"dtype", "type of weights and activations; bf16 keeps float32 masters", run, any_value,
                  shape_users, fixed, FlagTakes::list},
          c.dtype);
    visit(Setting{"device", "where to train", run, any_value, benches, may_change}, c.device);
    visit(Setting{"deterministic",
                  "on a GPU: the same bits in every run, but slower; the CPU is always deterministic",
                  training, any_value, product_kernel_users},
          c.training.deterministic);
    visit(Setting{"cuda-graph",
                  "on a GPU: replay each step as one captured graph, unless it would be too large", run,
                  any_value, step_users},
          c.cuda_graph);
    visit(Setting{"zero",
                  "1: each rank holds a part of the optimizer's state and masters; 2: of the gradients, too; "
                  "3: of the weights, too; 0: all of it",
                  run, Range{0, 3}, SettingUsers{.plan = true}, may_change},
          c.zero);
    visit(
        Setting{
            "shard-copies",
            "with zero and --processes: 1: each rank keeps a copy of its neighbour's shard, so that a lost "
            "rank is replaced from memory; 0: from the last checkpoint",
            run, Range{0, 1}, train_only, may_change},
        c.shard_copies);
    visit(
        Setting{"offload",
                "on a GPU: keep in page-locked host memory the optimizer's state with the masters, the sums "
                "of gradients, residuals, which blocks save for backward, or the weights; or several, joined "
                "by +",
                run, any_value, SettingUsers{.plan = true, .bench_train = true}, may_change, FlagTakes::list},
        c.offload);
    visit(Setting{"context-parallel",
                  "number of neighbouring ranks that share each sequence, by ring attention", run,
                  Range{1, 1 << 16}, train_only, may_change},
          c.context_parallel);
    visit(Setting{"tf32", "f32 matrix products on GPUs may round operands to TF32", run, any_value,
                  product_kernel_users},
          c.tf32);
    visit(Setting{"eval-every", "steps between evaluations; 0: only at the end", run, Range{0, max_steps}},
          c.eval_every);
    visit(Setting{"save-every", "steps between checkpoints; 0: only at the end", run, Range{0, max_steps},
                  train_only, may_change},
          c.save_every);
    visit(Setting{"checkpoint-parts",
                  "with zero: each rank writes its part of a checkpoint, to a directory that all ranks share",
                  run, any_value, SettingUsers{.plan = true}, may_change},
          c.checkpoint_parts);
    visit(Setting{"keep-last", "number of newest checkpoints to keep", run, Range{1, max_steps}},
          c.keep_last);
    visit(Setting{"keep-every", "also keep checkpoints whose step is a multiple of this; 0: none", run,
                  Range{0, max_steps}},
          c.keep_every);
    visit(Setting{"memory-budget",
                  "memory that training may use, 16GiB, 900MiB or a number of MiB: chooses recompute, "
                  "micro-batch, offload and state formats that were not given; empty: what the device has",
                  run, any_value, SettingUsers{.bench_train = true}},
          c.memory_budget);
}

}  // namespace detail

/// Returns a setting's value; an enumeration as its name.
template <class Member>
JsonValue json_of_setting(const Member& value) {
    if constexpr (NamedEnum<Member>) {
        return name_of(value);
    } else {
        return value;
    }
}

/// Calls visit(setting, member) for every setting, in --help order.
template <class Config, class Visit>
void visit_settings(Config& c, Visit&& visit) {
    detail::visit_architecture_settings(c, visit);
    detail::visit_rope_settings(c, visit);
    detail::visit_block_training_settings(c, visit);
    detail::visit_data_settings(c, visit);
    detail::visit_document_settings(c, visit);
    detail::visit_optimization_settings(c, visit);
    detail::visit_schedule_settings(c, visit);
    detail::visit_output_settings(c, visit);
    detail::visit_run_settings(c, visit);
}

}  // namespace gradtile
