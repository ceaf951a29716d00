#pragma once
/// Where other projects keep the parameters of a model: under which names, in how many tensors, in which
/// order of axes.
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

/// A tensor of another project that is all or a part of a parameter.
struct WeightPart {
    std::string name;
    Shape shape;               ///< as in the file
    bool transposed = false;   ///< the file has [in, out]
    std::int64_t rotated = 0;  ///< number of heads whose rows alternate between the halves of a head; 0: none
};

/// A parameter of this project's model and the tensors that hold it, stacked along the first axis.
struct WeightPlace {
    std::string parameter;
    Shape shape;
    std::vector<WeightPart> parts = {};
};

/// Lists all parameters in the order of the model. The config must fit the layout (see
/// huggingface_config.h).
std::vector<WeightPlace> weight_places(WeightLayout layout, const ModelConfig& config);

}  // namespace gradtile
