#pragma once
/// The JSON text "data/json" in a checkpoint. Its member "tokenizer" may hold several hundred thousand
/// values, so programs keep it as a text.
#include <string>
#include <string_view>

#include <gradtile/core/text/json_writer.h>

namespace gradtile {

struct CheckpointData {
    JsonValue data = {};         ///< all members but the tokenizer
    std::string tokenizer = {};  ///< a JSON text; empty: none
};

/// Throws Error that begins with "data/json: ".
CheckpointData parse_checkpoint_data(std::string text);

}  // namespace gradtile
