#include <gradtile/train/config/refused_combinations.h>

#include <bit>

#include <gradtile/train/config/step_shape.h>

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
         "expected 0, because lost processes are replaced on CPUs only"},
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
