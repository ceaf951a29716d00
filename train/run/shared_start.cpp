#include <gradtile/train/run/shared_start.h>

#include <gradtile/core/text/json_reader.h>

namespace gradtile {

namespace {

/// Broadcasts a text that may be longer than one group message.
std::string broadcast_long_text(ProcessGroup& group, const std::string& text, int root) {
    constexpr std::size_t piece_bytes = std::size_t{1} << 20;
    const std::size_t size = std::stoull(group.broadcast(concat(text.size()), root));
    std::string full_text;
    while (full_text.size() < size)
        full_text += group.broadcast(
            group.rank() == root ? text.substr(full_text.size(), piece_bytes) : std::string(), root);
    return full_text;
}

}  // namespace

Start shared_start(ProcessGroup& group, const std::function<Start()>& read, int root) {
    if (group.is_alone()) return read();
    Start start;
    JsonValue message;
    const bool is_root = group.rank() == root;
    if (is_root) {
        start = read();
        message.set("source", start.source);
        if (const auto& from = start.checkpoint)
            message.set("checkpoint", JsonValue::object({{"step", from->step},
                                                         {"config", from->config},
                                                         {"data", from->data},
                                                         {"meta", from->meta}}));
    }
    message =
        parse_json(broadcast_long_text(group, message.dump(), root), concat("the checkpoint of rank ", root));
    std::string tokenizer =
        broadcast_long_text(group, start.checkpoint ? start.checkpoint->tokenizer : std::string(), root);
    if (is_root) return start;
    start.source = message["source"].text();
    const JsonValue* const sent = message.find("checkpoint");
    if (!sent) return start;
    start.checkpoint = Checkpoint{.step = (*sent)["step"].get<std::int64_t>(),
                                  .config = (*sent)["config"],
                                  .data = (*sent)["data"],
                                  .meta = (*sent)["meta"],
                                  .tokenizer = std::move(tokenizer)};
    return start;
}

TrainConfig shared_config(ProcessGroup& group, const std::optional<RunDirectory>& directory) {
    if (group.is_alone()) return directory->config();
    TrainConfig config;
    const std::string text = group.broadcast(directory ? to_json(directory->config()).dump() : std::string());
    apply_config_text(config, text, "the settings of rank 0");
    return config;
}

}  // namespace gradtile
