#include <gradtile/core/check.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/internal/checkpoint_data.h>

namespace gradtile {
namespace {

constexpr std::string_view tokenizer_name = "tokenizer";

}  // namespace

CheckpointData parse_checkpoint_data(std::string_view text) {
    CheckpointData parsed;
    JsonWriter tokenizer([&](std::string_view piece) {
        if (piece.empty()) return;  // most texts have no tokenizer
        if (parsed.tokenizer.empty()) parsed.tokenizer.reserve(text.size());
        parsed.tokenizer += piece;
    });
    parsed.data = parse_json(text, "data/json", {{{tokenizer_name}, tokenizer}});
    tokenizer.finish();
    parsed.data.erase(tokenizer_name);
    return parsed;
}

void write_checkpoint_data(JsonWriter& writer, const JsonValue& data, std::string_view tokenizer) {
    if (tokenizer.empty()) return writer.write(data);
    const auto write_tokenizer = [&] {
        writer.write_name(tokenizer_name);
        read_json(tokenizer, concat("data/json: ", tokenizer_name), writer);
    };
    writer.begin_object();
    bool is_written = false;
    for (const auto& [name, value] : data.items()) {
        // Members are in the order of their names, so that equal checkpoints are equal files.
        if (!is_written && name > tokenizer_name) {
            write_tokenizer();
            is_written = true;
        }
        writer.write(name, value);
    }
    if (!is_written) write_tokenizer();
    writer.end();
}

}  // namespace gradtile
