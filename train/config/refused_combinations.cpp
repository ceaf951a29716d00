#include <gradtile/train/config/refused_combinations.h>

#include <bit>

#include <gradtile/train/config/step_shape.h>
#include <gradtile/train/data/token_file.h>

namespace gradtile {
namespace {

/// Whether `start` is 0, or `full` divided by 2, 4, 8, ...
bool doubles_to(std::int64_t start, std::int64_t full) {
    return start == 0 || (start < full && full % start == 0 &&
                          std::has_single_bit(static_cast<std::uint64_t>(full / start)));
}

/// Whether several processes share a sequence.
bool is_shared(const TrainConfig& c) {
    return c.context_parallel > 1;
}

bool rotates(const TrainConfig& c) {
    return c.model.positions == Positions::rope;
}

template <RopeKind... kinds>
bool scales_rotation(const TrainConfig& c) {
    return rotates(c) && ((c.model.rope_scaling.kind == kinds) || ...);
}

template <class Settings>
bool optimizes_by(const TrainConfig& c) {
    return c.optimizer == kind_of<Settings>;
}

}  // namespace

std::span<const RefusedCombination> refused_combinations() {
    static constexpr RefusedCombination list[] = {
        {"wsd-shape",
         [](const TrainConfig& c) {
             return c.wsd_shape != CooldownShape::linear && c.schedule != ScheduleKind::wsd;
         },
         "without schedule wsd; expected linear"},
        {"masters",
         [](const TrainConfig& c) { return c.masters == MasterFormat::split && c.dtype != TrainDType::bf16; },
         "without dtype bf16; expected f32"},
        {"frozen-dtype",
         [](const TrainConfig& c) {
             return c.adapters.frozen_format != WeightFormat::same && c.adapters.rank == 0;
         },
         "without lora-rank, so that no matrix is frozen; expected same"},
        {"batch-start", [](const TrainConfig& c) { return c.batch_start > 0 && c.batch_warmup == 0; },
         "without batch-warmup; expected the steps in which the batch grows"},
        {"batch-warmup", [](const TrainConfig& c) { return c.batch_warmup > 0 && c.batch_start == 0; },
         "without batch-start; expected the first batch"},
        {"batch-start", [](const TrainConfig& c) { return !doubles_to(c.batch_start, c.batch); },
         "does not double up to batch; expected batch divided by 2, 4, 8 or a higher power of two"},
        {"window-start", [](const TrainConfig& c) { return c.window_start > 0 && c.window_warmup == 0; },
         "without window-warmup; expected the steps in which the window grows"},
        {"window-warmup", [](const TrainConfig& c) { return c.window_warmup > 0 && c.window_start == 0; },
         "without window-start; expected the first window"},
        {"window-start",
         [](const TrainConfig& c) { return c.window_start > 0 && c.window_start >= largest_window(c.model); },
         "is not smaller than the window or the context of every layer; expected fewer keys"},
        {"token-cache", [](const TrainConfig& c) { return c.stream_buffer > 0 && !c.token_cache.empty(); },
         "with stream-buffer; expected none, because a cache keeps tokens that are encoded before the first "
         "step"},
        {"val-fraction",
         [](const TrainConfig& c) {
             return c.stream_buffer > 0 && c.val_fraction != 0.0 &&
                    c.val_fraction != TrainConfig().val_fraction;
         },
         "with stream-buffer; expected 0, or none: one row in 100 is for validation"},
        {"context-parallel", [](const TrainConfig& c) { return is_shared(c) && c.model.prefix; },
         "with prefix, whose mask has two ranges of rows for a key; expected 1"},
        {"context-parallel", [](const TrainConfig& c) { return is_shared(c) && c.model.window > 0; },
         "with window, which would need part of a chunk; expected 1"},
        {"context-parallel", [](const TrainConfig& c) { return is_shared(c) && c.window_start > 0; },
         "with window-start, which would need part of a chunk; expected 1"},
        {"context-parallel",
         [](const TrainConfig& c) { return is_shared(c) && c.model.positions == Positions::alibi; },
         "with positions alibi, which counts rows and not positions; expected 1"},
        {"context-parallel", [](const TrainConfig& c) { return is_shared(c) && c.training.dropout > 0.0; },
         "with dropout, whose masks count rows and not positions; expected 1"},
        {"context-parallel",
         [](const TrainConfig& c) { return is_shared(c) && c.training.attention_dropout > 0.0; },
         "with attention-dropout, whose masks count rows and not positions; expected 1"},
        {"context-parallel", [](const TrainConfig& c) { return is_shared(c) && c.model.key_offset; },
         "with key-offset, which reads the token before, of another chunk; expected 1"},
        {"checkpoint-parts", [](const TrainConfig& c) { return c.checkpoint_parts && c.zero == 0; },
         "without zero, so that every rank holds all of a checkpoint; expected false"},
        {"offload",
         [](const TrainConfig& c) { return has_part(c.offload, Offload::gradients) && c.adapters.rank > 0; },
         "with lora-rank, whose gradients are small; expected no gradients"},
        {"offload",
         [](const TrainConfig& c) {
             return has_part(c.offload, Offload::weights) && (c.zero == 1 || c.zero == 2);
         },
         "with zero 1 or 2, whose processes would each gather all weights in host memory; expected zero 0 or "
         "3"},
        {"gradient-dtype",
         [](const TrainConfig& c) { return c.gradient_dtype != TrainDType::f32 && c.adapters.rank > 0; },
         "with lora-rank, whose gradients are small; expected f32"},
        {"shard-copies", [](const TrainConfig& c) { return c.shard_copies > 0 && c.zero == 0; },
         "without zero, so that every process has the whole state; expected 0"},
        {"shard-copies", [](const TrainConfig& c) { return c.shard_copies > 0 && c.adapters.rank > 0; },
         "with lora-rank, whose frozen weights no process copies; expected 0"},
    };
    return list;
}

std::span<const ConditionalSetting> conditional_settings() {
    using enum RopeKind;
    static constexpr const char* rope = "positions rope";
    static constexpr const char* longer =
        "positions rope and rope-scaling linear, dynamic, llama3, yarn or longrope";
    static constexpr const char* from_length =
        "positions rope and rope-scaling dynamic, llama3, yarn or longrope";
    static constexpr const char* of_llama3 = "positions rope and rope-scaling llama3";
    static constexpr const char* of_yarn = "positions rope and rope-scaling yarn";
    static constexpr const char* of_longrope = "positions rope and rope-scaling longrope";
    static constexpr const char* of_magnitude = "positions rope and rope-scaling yarn or longrope";
    static constexpr auto has_window = [](const TrainConfig& c) { return c.model.window > 0; };
    static constexpr auto has_adapters = [](const TrainConfig& c) { return c.adapters.rank > 0; };
    static constexpr auto has_samples = [](const TrainConfig& c) { return c.sample_every > 0; };
    static constexpr auto is_packed = [](const TrainConfig& c) { return c.packed; };
    static constexpr auto draws_weights = [](const TrainConfig& c) { return c.init_from.empty(); };
    // Without data (--print-config) the kind of its files is not known.
    static constexpr auto reads_token_files = [](const TrainConfig& c) {
        return c.data.empty() || is_token_file(c.data) || is_token_file(c.val_data);
    };
    static constexpr auto has_adam_moments = [](const TrainConfig& c) {
        return !optimizes_by<LionSettings>(c);
    };
    static constexpr ConditionalSetting list[] = {
        {"rope-base", rotates, rope},
        {"rotary-width", rotates, rope},
        {"rope-pattern", rotates, rope},
        {"window-rope-base", [](const TrainConfig& c) { return rotates(c) && c.model.window > 0; },
         "positions rope and a window"},
        {"rope-scaling", rotates, rope},
        {"rope-factor", scales_rotation<linear, dynamic, llama3, yarn, longrope>, longer},
        {"rope-original-context", scales_rotation<dynamic, llama3, yarn, longrope>, from_length},
        {"rope-low-factor", scales_rotation<llama3>, of_llama3},
        {"rope-high-factor", scales_rotation<llama3>, of_llama3},
        {"rope-beta-fast", scales_rotation<yarn>, of_yarn},
        {"rope-beta-slow", scales_rotation<yarn>, of_yarn},
        {"rope-truncate", scales_rotation<yarn>, of_yarn},
        {"rope-mscale", scales_rotation<yarn>, of_yarn},
        {"rope-mscale-all-dim", scales_rotation<yarn>, of_yarn},
        {"rope-attention-factor", scales_rotation<yarn, longrope>, of_magnitude},
        {"rope-short-factors", scales_rotation<longrope>, of_longrope},
        {"rope-long-factors", scales_rotation<longrope>, of_longrope},
        {"window", [](const TrainConfig& c) { return c.model.window_pattern != 1; },
         "window-pattern 0, or more than 1; with 1 every layer sees the whole context"},
        {"window-pattern", has_window, "a window"},
        {"qk-norm-kind", [](const TrainConfig& c) { return c.model.qk_norm; }, "qk-norm"},
        {"logit-softcap-form", [](const TrainConfig& c) { return c.model.logit_softcap.limit > 0; },
         "logit-softcap"},
        {"lora-alpha", has_adapters, "lora-rank"},
        {"lora-on", has_adapters, "lora-rank"},
        {"zero-init", draws_weights, "new weights; init-from has its own"},
        {"embedding-std", draws_weights, "new weights; init-from has its own"},
        {"val-fraction", [](const TrainConfig& c) { return c.val_data.empty() || c.val_fraction == 0.0; },
         "validation on a part of data; val-data is another file"},
        {"token-type", reads_token_files, "token files, whose names end in .bin"},
        {"document-token", is_packed, "packed"},
        {"max-documents", is_packed, "packed"},
        {"min-lr", [](const TrainConfig& c) { return c.schedule != ScheduleKind::constant; },
         "schedule cosine, linear or wsd"},
        {"wsd-decay", [](const TrainConfig& c) { return c.schedule == ScheduleKind::wsd; }, "schedule wsd"},
        {"beta1", has_adam_moments, "optimizer adamw or muon"},
        {"beta2", has_adam_moments, "optimizer adamw or muon"},
        {"epsilon", has_adam_moments, "optimizer adamw or muon"},
        {"lion-beta1", optimizes_by<LionSettings>, "optimizer lion"},
        {"lion-beta2", optimizes_by<LionSettings>, "optimizer lion"},
        {"muon-lr", optimizes_by<MuonSettings>, "optimizer muon"},
        {"muon-momentum", optimizes_by<MuonSettings>, "optimizer muon"},
        {"muon-products", optimizes_by<MuonSettings>, "optimizer muon"},
        {"sample-tokens", has_samples, "sample-every"},
        {"sample-prompt", has_samples, "sample-every"},
    };
    return list;
}

void check_used(const TrainConfig& config, const JsonValue& given) {
    const JsonValue defaults = to_json(TrainConfig());
    for (const ConditionalSetting& conditional : conditional_settings()) {
        const char* const name = conditional.setting;
        if (!given.contains(name) || given[name] == defaults[name]) continue;
        check(conditional.is_used(config), name, ": ", given[name], " has no effect without ",
              conditional.condition);
    }
}

std::span<const RefusedCombination> refused_with_row_ranges() {
    static constexpr const char* by_rows = "expected 0, because windows count rows and not positions";
    static constexpr RefusedCombination list[] = {
        {"window", [](const TrainConfig& c) { return c.model.window > 0; }, by_rows},
        {"window-start", [](const TrainConfig& c) { return c.window_start > 0; }, by_rows},
        {"positions", [](const TrainConfig& c) { return c.model.positions == Positions::alibi; },
         "expected learned or rope, because ALiBi counts rows and not positions"},
        {"train-on", [](const TrainConfig& c) { return c.train_on == TrainOn::all; },
         "expected answers, because a prompt's tokens see what they would predict, or are shared"},
    };
    return list;
}

std::span<const RefusedCombination> refused_on_cpu() {
    static constexpr RefusedCombination list[] = {
        {"offload", [](const TrainConfig& c) { return c.offload != Offload::none; },
         "expected none, because its memory is the host's"},
    };
    return list;
}

std::span<const RefusedCombination> refused_on_gpu() {
    static constexpr RefusedCombination list[] = {
        {"shard-copies", [](const TrainConfig& c) { return c.shard_copies > 0; },
         "expected 0, because copies of shards are kept on CPUs only"},
    };
    return list;
}

void check_device(const TrainConfig& config, Device device) {
    for (const RefusedCombination& refused : device.is_cuda() ? refused_on_gpu() : refused_on_cpu())
        check(!refused.is_in(config), refused.setting, ": ", to_json(config)[refused.setting], " on ", device,
              "; ", refused.reason);
}

void check_row_ranges(const TrainConfig& config, const char* what) {
    for (const RefusedCombination& refused : refused_with_row_ranges())
        check(!refused.is_in(config), refused.setting, ": ", to_json(config)[refused.setting], " with ", what,
              "; ", refused.reason);
}

}  // namespace gradtile
