#pragma once
/// The recipe of docs/speedrun.md for models of any size, with their depth as the only choice. "One dial"
/// there says which numbers were measured and which were not.
#include <cstdint>
#include <string>

#include <gradtile/train/config/train_config.h>

namespace gradtile {

/// Constants that every depth shares. Rates, step tokens and width were measured at `reference_depth`.
namespace recipe {
inline constexpr std::int64_t min_depth = 4, max_depth = 20, reference_depth = 12;
inline constexpr std::int64_t layer_width = 64;  ///< width / depth
inline constexpr std::int64_t context = 1024;
/// Training tokens for each weight in the blocks' matrices (Hoffmann et al. 2022).
inline constexpr double tokens_per_weight = 20;
/// The measured run: 200 steps of 65,536 tokens.
inline constexpr std::int64_t reference_steps = 200, reference_step_tokens = 65'536;
/// Step tokens grow as the run's tokens to this power, which leads from the measured run to
/// modded-nanogpt's track 3: 3,250 steps of 524,288 tokens, 20 tokens a weight, with the same rates.
inline constexpr double batch_exponent = 0.427;
/// Sequences that a GPU of 80 GB computes at once; measured at reference_depth, planned at max_depth.
inline constexpr std::int64_t max_micro_batch = 64;
}  // namespace recipe

/// Returns the run for a model with `depth` layers and `tokens` training tokens, at least one step's. Throws
/// Error for a depth outside min_depth to max_depth.
TrainConfig recipe_config(std::int64_t depth, double tokens);

/// Returns the tokens that recipe::tokens_per_weight gives a model of this depth.
double recipe_tokens(std::int64_t depth);

/// Returns "depth-N", the preset of recipe_config(depth, recipe_tokens(depth)).
std::string preset_of_depth(std::int64_t depth);

}  // namespace gradtile
