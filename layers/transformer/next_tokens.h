#pragma once
/// A generation step whose inputs are all in device memory: one token for each of several texts. Shapes and
/// addresses do not depend on text lengths, so a CUDA graph that contains the step can be replayed for every
/// token.
#include <string_view>
#include <vector>

#include <gradtile/attention/decode.h>
#include <gradtile/layers/transformer/key_value_cache.h>
#include <gradtile/layers/transformer/transformer.h>

namespace gradtile {

/// int32 [R] each, contiguous, on the context's device: each text's token, its position, which is how many of
/// the text's tokens the cache holds, and the text's slot in the cache's batch. All slots are different.
struct NextTokens {
    Tensor tokens, positions, slots;
};

/// A ModelConfig field, and whether next_logits() supports models with its value.
struct StepField {
    std::string_view name;
    bool is_computed;
};
/// Returns all config fields.
std::vector<StepField> step_fields(const ModelConfig& config);

/// Whether next_logits() supports models with this config and dtype on this device: every field must be
/// supported (StepField::is_computed). On a GPU the head size in bytes must be divisible by 16, and the dtype
/// must not be float64.
bool can_step(Device device, const ModelConfig& config, const AdapterOptions& adapters, DType dtype);

/// Reads the tokens into the cache and writes logits [R,V] in accumulator_of(dtype), equal to
/// Transformer::logits() up to rounding. Ignores cache.length. `scratch` is for at least R rows. A token or
/// position out of range is an Error on the CPU; on a GPU the row's logits are NaN. Throws Error for a model
/// with an unsupported field.
void next_logits(const Context& ctx, const Tensor& logits, const Transformer& model, const NextTokens& next,
                 const KeyValueCache& cache, const attention::DecodeScratch& scratch);
/// The scratch memory for `rows` texts.
attention::DecodeScratch step_scratch(const Context& ctx, const Transformer& model,
                                      const KeyValueCache& cache, std::int64_t rows);

}  // namespace gradtile
