#include <gradtile/train/train_config.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include <nlohmann/json.hpp>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/json_value.h>
#include <gradtile/layers/memory_plan.h>
#include <gradtile/train/nearest_name.h>
#include <gradtile/train/utf8.h>

namespace gradtile {
namespace {

using nlohmann::json;

json value_of(std::int64_t value) {
    return value;
}
json value_of(std::uint64_t value) {
    return value;
}
json value_of(double value) {
    return value;
}
json value_of(bool value) {
    return value;
}
json value_of(const std::string& value) {
    return value;
}
template <NamedEnum Enum>
json value_of(Enum value) {
    return std::string(name_of(value));
}

/// "a string", "an array".
std::string type_of(const json& value) {
    const std::string_view name = value.type_name();
    return concat(name.starts_with('a') || name.starts_with('o') ? "an " : "a ", name);
}

[[noreturn]] void wrong_type(const std::string& where, const json& value, const std::string& expected) {
    // Arrays and objects are not printed: they may be long, and so deeply nested that printing exhausts the
    // stack.
    const std::string shown = value.is_array() ? "[...]" : value.is_object() ? "{...}" : json_text(value);
    throw Error(concat(where, ": ", shown, " is ", type_of(value), "; expected ", expected));
}

void assign(std::int64_t& member, const json& value, const std::string& where) {
    if (!value.is_number_integer()) wrong_type(where, value, "an integer");
    const bool fits =
        !value.is_number_unsigned() ||
        value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    check(fits, where, ": ", json_text(value), " is too large");
    member = value.get<std::int64_t>();
}
void assign(std::uint64_t& member, const json& value, const std::string& where) {
    if (!value.is_number_unsigned()) wrong_type(where, value, "an integer, 0 or more");
    member = value.get<std::uint64_t>();
}
void assign(double& member, const json& value, const std::string& where) {
    if (!value.is_number()) wrong_type(where, value, "a number");
    member = value.get<double>();
}
void assign(bool& member, const json& value, const std::string& where) {
    if (!value.is_boolean()) wrong_type(where, value, "true or false");
    member = value.get<bool>();
}
void assign(std::string& member, const json& value, const std::string& where) {
    if (!value.is_string()) wrong_type(where, value, "a string");
    member = value.get<std::string>();
}
template <NamedEnum Enum>
void assign(Enum& member, const json& value, const std::string& where) {
    if (!value.is_string()) wrong_type(where, value, choices_of<Enum>());
    member = enum_named<Enum>(value.get<std::string>(), where);
}

}  // namespace

json to_json(const TrainConfig& config) {
    json settings = json::object();
    visit_settings(config, [&](const char* name, const auto& member, const char*) {
        if constexpr (std::is_same_v<decltype(member), const std::string&>)
            check(is_utf8(member), name, ": '", member, "' is not UTF-8, as a run's settings are");
        settings[name] = value_of(member);
    });
    return settings;
}

void apply_json(TrainConfig& config, const json& settings, const std::string& source) {
    check(settings.is_object(), source, ": is ", type_of(settings), "; expected an object of settings");
    std::vector<std::string> known{"preset"};
    visit_settings(config, [&](const char* name, const auto&, const char*) { known.emplace_back(name); });
    for (const auto& [key, value] : settings.items()) {
        const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
        check(is_known, source, ": unknown setting '", key, "'; the nearest known one is '",
              nearest_name(key, known), "'");
    }
    if (settings.contains("preset")) {
        std::string name;
        assign(name, settings["preset"], source + ": preset");
        config = preset(name);
    }
    visit_settings(config, [&](const char* name, auto& member, const char*) {
        if (settings.contains(name)) assign(member, settings[name], concat(source, ": ", name));
    });
}

void apply_config_text(TrainConfig& config, std::string_view text, const std::string& source) {
    json settings;
    try {
        settings = parse_json(text);
    } catch (const json::exception& error) {
        const std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at ..."
        throw Error(concat(source, ": not JSON: ", what.substr(what.find("] ") + 2)));
    }
    apply_json(config, settings, source);
}

void apply_config_file(TrainConfig& config, const std::string& path) {
    check(!std::filesystem::is_directory(path), path, ": is a directory; expected a JSON file");
    std::ifstream file(path);
    check(file.good(), path, ": the config file cannot be opened");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    check(!file.bad(), path, ": the config file cannot be read");
    apply_config_text(config, text, path);
}

void validate(const TrainConfig& c, std::int64_t ranks) {
    visit_settings(c, [](const char* name, const auto& member, const char*) {
        if constexpr (std::is_same_v<decltype(member), const double&>)
            check(std::isfinite(member), name, ": ", member, "; expected a finite number");
    });
    validate(c.model);
    check(c.steps >= 1, "steps: ", c.steps, "; expected at least 1");
    check(c.batch >= 1, "batch: ", c.batch, "; expected at least 1");
    check(c.micro_batch >= 0, "micro-batch: ", c.micro_batch, "; expected 0 or more");
    check(c.batch % ranks == 0, "batch: ", c.batch, " is not a multiple of the ", ranks,
          " processes that share it");
    const std::int64_t sequences = c.batch / ranks;
    check(sequences % c.micro_batch_size(ranks) == 0, "micro-batch: ", c.micro_batch, " does not divide ",
          ranks == 1 ? concat("batch ", c.batch)
                     : concat("the ", sequences, " sequences of each of ", ranks, " processes"));
    check(c.val_fraction >= 0.0 && c.val_fraction < 1.0, "val-fraction: ", c.val_fraction,
          "; expected 0 <= fraction < 1");
    check(c.lr > 0.0, "lr: ", c.lr, "; expected more than 0");
    check(c.min_lr >= 0.0 && c.min_lr <= c.lr, "min-lr: ", c.min_lr, "; expected 0 to lr (", c.lr, ")");
    check(c.muon_lr > 0.0, "muon-lr: ", c.muon_lr, "; expected more than 0");
    check(c.muon_momentum >= 0.0 && c.muon_momentum < 1.0, "muon-momentum: ", c.muon_momentum,
          "; expected 0 <= momentum < 1");
    check(c.warmup >= 0, "warmup: ", c.warmup, "; expected 0 or more");
    check(c.wsd_decay >= 0.0 && c.wsd_decay <= 1.0, "wsd-decay: ", c.wsd_decay, "; expected 0 to 1");
    check(c.beta1 >= 0.0 && c.beta1 < 1.0, "beta1: ", c.beta1, "; expected 0 <= beta1 < 1");
    check(c.beta2 >= 0.0 && c.beta2 < 1.0, "beta2: ", c.beta2, "; expected 0 <= beta2 < 1");
    check(c.epsilon > 0.0, "epsilon: ", c.epsilon, "; expected more than 0");
    check(c.weight_decay >= 0.0, "weight-decay: ", c.weight_decay, "; expected 0 or more");
    check(c.clip >= 0.0, "clip: ", c.clip, "; expected 0 or more");
    check(c.max_bad_steps >= 1, "max-bad-steps: ", c.max_bad_steps, "; expected at least 1");
    check(c.ignore_token >= -1, "ignore-token: ", c.ignore_token, "; expected a token id, or -1 for none");
    check(c.threads >= 0 && c.threads <= 4096, "threads: ", c.threads, "; expected 0 (every core) to 4096");
    check(c.eval_every >= 0, "eval-every: ", c.eval_every, "; expected 0 or more");
    check(c.save_every >= 0, "save-every: ", c.save_every, "; expected 0 or more");
    check(c.keep_last >= 1, "keep-last: ", c.keep_last, "; expected at least 1");
    check(c.keep_every >= 0, "keep-every: ", c.keep_every, "; expected 0 or more");
    check(c.zero == 0 || c.zero == 1, "zero: ", c.zero, "; expected 0 or 1");
    check(c.zero == 0 || c.optimizer == OptimizerKind::adamw, "zero: 1 with optimizer ", name_of(c.optimizer),
          "; expected adamw, whose memory can be cut anywhere");
    constexpr std::int64_t most_mebibytes = std::int64_t{1} << 40;
    check(c.memory_budget >= 0 && c.memory_budget <= most_mebibytes, "memory-budget: ", c.memory_budget,
          "; expected MiB, or 0");
}

MemoryRequest memory_request(const TrainConfig& config, Device device, std::int64_t ranks) {
    const bool sharded = config.zero == 1 && ranks > 1;
    return {.model = config.model,
            .dtype = storage_dtype(config.dtype),
            .micro_batch = config.micro_batch_size(ranks),
            .snapshot = !config.out.empty() && (device.is_cpu() || !sharded),
            .optimizer_shards = sharded ? ranks : 1};
}

Device resolve_device(DeviceChoice choice, int local_rank) {
    const int gpus = choice == DeviceChoice::cpu ? 0 : cuda_device_count();
    if (choice == DeviceChoice::cuda && gpus == 0) cuda::make_stream(Device::cuda());  // says what is missing
    if (gpus == 0) return Device::cpu();
    check(local_rank < gpus || gpus == 1, "device cuda: process ", local_rank, " of this host sees ", gpus,
          " GPUs; expected one for each process");
    return Device::cuda(gpus == 1 ? 0 : local_rank);
}

}  // namespace gradtile
