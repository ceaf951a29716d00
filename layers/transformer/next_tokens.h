#pragma once
/// A step of generation whose inputs are all in device memory: one token of each of several texts. Shapes and
/// addresses do not depend on the lengths of the texts, so a CUDA graph of the step can be replayed for
/// every token.
#include <string_view>
#include <vector>

#include <gradtile/attention/decode.h>
#include <gradtile/layers/transformer/key_value_cache.h>
#include <gradtile/layers/transformer/transformer.h>

namespace gradtile {

/// int32 [R] each, contiguous, on the context's device: the token of each text, its position, which is the
/// number of the text's tokens in the cache, and the text's slot in the batch of the cache. Slots are
/// different.
struct NextTokens {
    Tensor tokens, positions, slots;
};

/// A field of ModelConfig, and whether next_logits() computes models with its value.
struct StepField {
    std::string_view name;
    bool is_computed;
};
/// Returns all fields of the config.
std::vector<StepField> step_fields(const ModelConfig& config);

/// Whether next_logits() computes models of this config and dtype on this device: every field must be
/// computed. On a GPU the bytes of a head must be a multiple of 16, and the dtype must not be float64.
bool can_step(Device device, const ModelConfig& config, DType dtype);

/// Reads the tokens into the cache and writes logits [R,V] in accumulator_of(dtype), equal to
/// Transformer::logits() up to rounding. Ignores cache.length. `scratch` is for at least R rows. A token or
/// position out of range is an Error on the CPU; on a GPU the row's logits are NaN. Throws Error for a model
/// with a field that is not computed.
void next_logits(const Context& ctx, const Tensor& logits, const Transformer& model, const NextTokens& next,
                 const KeyValueCache& cache, const attention::DecodeScratch& scratch);
/// The scratch memory for `rows` texts.
attention::DecodeScratch step_scratch(const Context& ctx, const Transformer& model,
                                      const KeyValueCache& cache, std::int64_t rows);

}  // namespace gradtile
