#pragma once
/// GPT-2 models in llm.c's .bin format (github.com/karpathy/llm.c, train_gpt2.py, write_model): 256 int32,
/// then the weights.
///
/// Header: magic 20240326, version 3 (float32) or 5 (bfloat16), context, vocabulary, layers, heads, width,
/// padded vocabulary. Weights: wte [padded vocabulary, C] and wpe, then the blocks' weights by kind: ln_1 of
/// all blocks, then qkv of all blocks and so on (ln_1, qkv, proj, ln_2, fc, fc's projection; weight before
/// bias; matrices [out, in]), then ln_f.
#include <string>

#include <gradtile/tools/formats/import.h>

namespace gradtile {

/// Reads a model. Throws Error that names the file if the version is another one, if a size is outside the
/// model's limits, or if the file's length is not the length that the header gives.
ImportedModel read_llmc_model(const std::string& path);

}  // namespace gradtile
