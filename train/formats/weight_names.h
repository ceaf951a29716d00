#pragma once
/// How other projects store the parameters of a model: the names, the number of tensors and the order of
/// axes.
#include <string>
#include <vector>

#include <gradtile/core/shape.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

enum class WeightLayout {
    huggingface_gpt2,   ///< transformer.h.0.attn.c_attn.weight; four matrices [in, out]
    huggingface_llama,  ///< model.layers.0.self_attn.q_proj.weight
    gguf_gpt2,          ///< blk.0.attn_qkv.weight
    gguf_llama,         ///< blk.0.attn_q.weight; pairs of rotated elements are neighbours
};

/// A tensor of another project that contains a whole parameter or a part of one.
struct WeightPart {
    std::string name;
    Shape shape;              ///< as in the file
    bool transposed = false;  ///< the file has [in, out]
    /// if not 0, the rows of each head alternate between the head's halves; the number of heads
    std::int64_t rotated = 0;
};

/// A parameter of this project's model, and the tensors whose rows, one tensor after the other, are the
/// parameter's rows.
struct WeightPlace {
    std::string parameter;
    Shape shape;
    std::vector<WeightPart> parts = {};
};

/// Lists the places of all parameters, in the order of the model. The config must fit the layout (see
/// huggingface_config.h).
std::vector<WeightPlace> weight_places(WeightLayout layout, const ModelConfig& config);

}  // namespace gradtile
