#include <gradtile/train/run/shared_start.h>

#include <nlohmann/json.hpp>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

Start shared_start(ProcessGroup& group, const std::function<Start()>& read) {
    if (group.is_alone()) return read();
    Start start;
    nlohmann::json text;
    if (group.is_root()) {
        start = read();
        text = {{"source", start.source}};
        if (const auto& from = start.checkpoint)
            text["checkpoint"] = {{"step", from->step},
                                  {"config", *from->config},
                                  {"data", *from->data},
                                  {"meta", *from->meta}};
    }
    text = parse_json(group.broadcast(json_text(text)));
    if (group.is_root()) return start;
    start.source = text["source"].get<std::string>();
    if (!text.contains("checkpoint")) return start;
    const nlohmann::json& told = text["checkpoint"];
    start.checkpoint = Checkpoint{.step = told["step"].get<std::int64_t>(),
                                  .config = told["config"],
                                  .data = told["data"],
                                  .meta = told["meta"]};
    return start;
}

TrainConfig shared_config(ProcessGroup& group, const std::optional<RunDirectory>& directory) {
    if (group.is_alone()) return directory->config();
    TrainConfig config;
    const std::string text =
        group.broadcast(directory ? json_text(to_json(directory->config())) : std::string());
    apply_config_text(config, text, "the settings of rank 0");
    return config;
}

}  // namespace gradtile
