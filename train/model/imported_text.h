#pragma once
/// ImportedText: text settings that come with imported weights, for example their end tokens and chat
/// template.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_value.h>
#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

/// A checkpoint with imported weights keeps ImportedText in its data; so do the checkpoints of a run that
/// starts from it with the same tokenizer and chat template. Export writes the files again, unchanged.
struct ImportedText {
    std::vector<std::int32_t> end_tokens = {};  ///< tokens that end a text
    /// Texts by name: config.json, generation_config.json, and TokenizerFolder's texts.
    std::map<std::string, std::string> files = {};
    /// The files have a chat template, but ChatTemplate does not list it.
    bool has_unknown_template = false;

    bool empty() const { return end_tokens.empty() && files.empty(); }
};

/// Adds the value to a checkpoint's data, unless it is empty.
void add_imported_text(JsonValue& data, const ImportedText& text);

/// Returns the ImportedText in a checkpoint's data; an empty one if there is none. Throws Error that begins
/// with `source` when the value is not what add_imported_text() writes, or has an end token outside
/// `vocabulary`.
ImportedText imported_text_of(const Checkpoint& checkpoint, std::int64_t vocabulary,
                              const std::string& source);

}  // namespace gradtile
