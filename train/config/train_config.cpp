#include <gradtile/train/config/train_config.h>

#include <charconv>
#include <cmath>
#include <filesystem>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/core/text/nearest_name.h>
#include <gradtile/core/text/parse_double.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/config/refused_combinations.h>
#include <gradtile/train/config/settings.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>

namespace gradtile {
namespace {

/// Returns "a string", "an array" and so on.
std::string type_of(const JsonValue& value) {
    const std::string_view name = value.type_name();
    return concat(name.starts_with('a') || name.starts_with('o') ? "an " : "a ", name);
}

[[noreturn]] void wrong_type(const std::string& where, const JsonValue& value, const std::string& expected) {
    throw Error(concat(where, ": ", json_excerpt(value), " is ", type_of(value), "; expected ", expected));
}

void assign(std::int64_t& member, const JsonValue& value, const std::string& where) {
    if (!value.is_number_integer()) wrong_type(where, value, "an integer");
    check(value.fits<std::int64_t>(), where, ": ", value, " is too large");
    member = value.get<std::int64_t>();
}
void assign(std::uint64_t& member, const JsonValue& value, const std::string& where) {
    if (!value.is_number_unsigned()) wrong_type(where, value, "an integer, 0 or more");
    member = value.get<std::uint64_t>();
}
void assign(double& member, const JsonValue& value, const std::string& where) {
    if (!value.is_number()) wrong_type(where, value, "a number");
    member = value.get<double>();
}
void assign(bool& member, const JsonValue& value, const std::string& where) {
    if (!value.is_boolean()) wrong_type(where, value, "true or false");
    member = value.get<bool>();
}
void assign(std::string& member, const JsonValue& value, const std::string& where) {
    if (!value.is_string()) wrong_type(where, value, "a string");
    member = value.get<std::string>();
}
void assign(std::vector<double>& member, const JsonValue& value, const std::string& where) {
    if (!value.is_array()) wrong_type(where, value, "an array of numbers");
    member.clear();
    for (const JsonValue& element : value.elements()) assign(member.emplace_back(), element, where);
}
template <NamedEnum Enum>
void assign(Enum& member, const JsonValue& value, const std::string& where) {
    if (!value.is_string()) wrong_type(where, value, choices_of<Enum>());
    member = enum_named<Enum>(value.get<std::string>(), where);
}

/// Returns a setting's value in files of earlier versions as it is written now: memory budgets were numbers.
JsonValue in_present_form(std::string_view name, const JsonValue& value) {
    if (name != "memory-budget" || !value.is_number_integer()) return value;
    return value == 0 ? std::string() : value.dump();
}

/// Whether a setting existed once, and was off: files of earlier versions hold all settings.
bool was_removed(std::string_view name, const JsonValue& value) {
    if (name == "average-decay" || name == "context-start" || name == "context-warmup") return value == 0;
    return (name == "smear" || name == "unet-skips") && value == false;
}

int usable_gpus(DeviceChoice choice) {
    switch (choice) {
        case DeviceChoice::cpu:
            return 0;
        case DeviceChoice::automatic:
        case DeviceChoice::cuda:
            return cuda_device_count();
    }
    throw Error("device: unknown choice");
}

}  // namespace

JsonValue to_json(const ModelConfig& model) {
    TrainConfig config;
    config.model = model;
    JsonValue settings = JsonValue::object();
    visit_settings(config, [&](const Setting& setting, const auto& member) {
        if (setting.group == SettingGroup::architecture) settings.set(setting.name, json_of_setting(member));
    });
    return settings;
}

JsonValue to_json(const TrainConfig& config) {
    JsonValue settings = JsonValue::object();
    visit_settings(config, [&](const Setting& setting, const auto& member) {
        if constexpr (std::is_same_v<decltype(member), const std::string&>)
            check(is_utf8(member), setting.name, ": '", member, "' is not UTF-8, a run's settings must be");
        settings.set(setting.name, json_of_setting(member));
    });
    return settings;
}

void apply_json(TrainConfig& config, const JsonValue& settings, const std::string& source) {
    check(settings.is_object(), source, ": is ", type_of(settings), "; expected an object of settings");
    std::vector<std::string> known{"preset"};
    visit_settings(config, [&](const Setting& setting, const auto&) { known.emplace_back(setting.name); });
    for (const auto& [key, value] : settings.items()) {
        if (std::ranges::find(known, key) == known.end() && !was_removed(key, value))
            throw Error(concat(source, ": unknown setting '", key, "'", did_you_mean(key, known)));
    }
    if (settings.contains("preset")) {
        std::string name;
        assign(name, settings["preset"], source + ": preset");
        config = preset(name);
    }
    // The end that is given last counts: a number of steps, or a time.
    const bool gives_budget = settings.contains("time-budget") && settings["time-budget"] != "";
    const bool gives_steps = settings.contains("steps") && settings["steps"] != 0;
    check(!gives_budget || !gives_steps, source, ": steps and time-budget; expected only one of them");
    if (gives_budget) config.steps = 0;
    if (gives_steps) config.time_budget.clear();
    visit_settings(config, [&](const Setting& setting, auto& member) {
        const char* const name = setting.name;
        if (settings.contains(name)) {
            assign(member, in_present_form(name, settings[name]), concat(source, ": ", name));
            config.given.insert(name);
        }
        // The system ends a path at a NUL byte, so that two different paths would be one file.
        if constexpr (std::is_same_v<decltype(member), std::string&>)
            check(member.find('\0') == std::string::npos, source, ": ", name, ": holds a NUL byte");
    });
}

void apply_config_text(TrainConfig& config, std::string_view text, const std::string& source) {
    apply_json(config, parse_json(text, source), source);
}

std::string config_file_text(const std::string& path, SymbolicLinks links) {
    check(!std::filesystem::is_directory(path), path, ": is a directory; expected a JSON file");
    return read_text_file(path, max_config_bytes, links);
}

void apply_config_file(TrainConfig& config, const std::string& path, SymbolicLinks links) {
    apply_config_text(config, config_file_text(path, links), path);
}

std::int64_t max_documents_of(const TrainConfig& c) {
    if (!c.packed) return 0;
    const std::int64_t wanted =
        c.max_documents > 0 ? c.max_documents : std::max<std::int64_t>(8, c.model.context / 8);
    return std::min(wanted, c.model.context);
}

Packing packing_of(const TrainConfig& c, const std::optional<Tokenizer>& tokenizer) {
    if (c.model.prefix)
        return {{.kind = DocumentRule::Kind::examples},
                c.packed ? max_documents_of(c) : 1,
                DocumentMask::prefix_ranges};
    if (!c.packed) return {};
    const bool finds_none = c.document_token < 0 && (!tokenizer || tokenizer->kind() == TokenizerKind::bpe);
    if (finds_none) return {{.kind = DocumentRule::Kind::examples}, max_documents_of(c)};
    return {document_rule(c.document_token, tokenizer), max_documents_of(c)};
}

double seconds_of(std::string_view time_budget) {
    constexpr double longest = 366.0 * 24 * 3600;
    double seconds = 0.0;
    std::string_view units = "hms";
    for (std::string_view rest = time_budget; !rest.empty();) {
        const bool is_negative = rest.front() == '-';
        double number = 0.0;
        const auto parsed = parse_double(rest.data(), rest.data() + rest.size(), number);
        rest.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest.data()));
        const std::size_t unit = rest.empty() ? std::string_view::npos : units.find(rest.front());
        if (parsed.ec != std::errc() || is_negative || unit == std::string_view::npos) {
            seconds = 0.0;
            break;
        }
        seconds += number * (units[unit] == 'h' ? 3600.0 : units[unit] == 'm' ? 60.0 : 1.0);
        units.remove_prefix(unit + 1);
        rest.remove_prefix(1);
    }
    check(seconds > 0.0 && seconds <= longest, "time-budget: '", time_budget,
          "'; expected a time such as 90s, 5m or 1h30m, at most a year");
    return seconds;
}

std::size_t memory_bytes(std::string_view memory_budget) {
    if (memory_budget.empty()) return 0;
    constexpr double mebibyte = 1 << 20, max_mebibytes = double{1LL << 40};
    double number = 0.0;
    const char* const end = memory_budget.data() + memory_budget.size();
    const auto parsed = parse_double(memory_budget.data(), end, number);
    const std::string_view unit =
        memory_budget.substr(static_cast<std::size_t>(parsed.ptr - memory_budget.data()));
    if (unit == "GiB") number *= 1024.0;
    const bool is_size = parsed.ec == std::errc() && (unit.empty() || unit == "MiB" || unit == "GiB");
    check(is_size && number >= 0.0 && number <= max_mebibytes, "memory-budget: ", memory_budget,
          "; expected a size such as 16GiB or 900MiB, or a number of MiB");
    return static_cast<std::size_t>(number * mebibyte);
}

namespace {

/// Settings of Muon that runs of older versions may have with any optimizer, and must resume with.
constexpr std::array unchecked_muon_settings{std::string_view("muon-lr"), std::string_view("muon-momentum"),
                                             std::string_view("muon-products")};

/// Refuses settings of Muon that the run's optimizer would ignore.
void check_muon_is_chosen(const TrainConfig& c) {
    if (c.optimizer == kind_of<MuonSettings>) return;
    const JsonValue all = to_json(c), defaults = to_json(TrainConfig());
    for (const auto& [name, value] : all.items())
        check(!name.starts_with("muon-") || value == defaults[name] ||
                  std::ranges::find(unchecked_muon_settings, name) != unchecked_muon_settings.end(),
              name, ": ", value, " with optimizer ", name_of(c.optimizer), "; expected optimizer muon");
}

void check_values(const TrainConfig& c) {
    visit_settings(c, [](const Setting& setting, const auto& member) {
        using Member = std::remove_cvref_t<decltype(member)>;
        if constexpr (NamedEnum<Member>)
            check(static_cast<std::size_t>(member) < EnumNames<Member>::names.size(), setting.name,
                  ": value ", static_cast<int>(member), " has no name; expected ", choices_of<Member>());
        // The system's functions would read the text only up to the zero byte.
        if constexpr (std::is_same_v<Member, std::string>)
            check(member.find('\0') == std::string::npos, setting.name, ": '", printable_name(member),
                  "' contains a zero byte; expected text");
        if constexpr (std::is_same_v<Member, double>)
            check(std::isfinite(member), setting.name, ": ", member, "; expected a finite number");
        if constexpr (std::is_arithmetic_v<Member> && !std::is_same_v<Member, bool>)
            check_range(setting.name, member, setting.range);
    });
}

void check_end(const TrainConfig& c) {
    check(c.replay_clock.empty() || !c.time_budget.empty(), "replay-clock: '", c.replay_clock,
          "' without time-budget; expected the budget of that run");
    if (c.time_budget.empty()) {
        check(c.steps >= 1, "steps: 0; expected 1 to ", setting_limits::max_steps, ", or a time-budget");
    } else {
        seconds_of(c.time_budget);
        check(c.steps == 0, "steps: ", c.steps, " with time-budget ", c.time_budget,
              "; expected only one of them");
    }
}

void check_combinations(const TrainConfig& c) {
    for (const RefusedCombination& refused : refused_combinations())
        if (refused.is_in(c))
            throw Error(concat(refused.setting, ": ", to_json(c)[refused.setting], ' ', refused.reason));
    if (c.model.prefix) check_row_ranges(c, "prefix");
}

void check_optimization(const TrainConfig& c) {
    check_end(c);
    check_muon_is_chosen(c);
    check(c.head_lr_factor == 1.0 || !c.model.tied_head, "head-lr-factor: ", c.head_lr_factor,
          " with tied-head, where the head is the token embedding; expected embedding-lr-factor");
    check(c.adapters.rank == 0 ||
              (c.embedding_lr_factor == 1.0 && c.head_lr_factor == 1.0 && c.vector_lr_factor == 1.0),
          "embedding-lr-factor, head-lr-factor and vector-lr-factor: with lora-rank ", c.adapters.rank,
          " only adapters are trained; expected 1");
    check(!c.cautious_decay || c.weight_decay > 0.0,
          "cautious-decay: true with weight-decay 0; expected a weight decay");
    check(c.min_lr <= c.lr || c.schedule == ScheduleKind::constant, "min-lr: ", c.min_lr,
          "; expected 0 to lr (", c.lr, ")");
}

}  // namespace

void check_may_change(const JsonValue& changes, const std::string& prefix) {
    const TrainConfig any;
    std::vector<std::string> allowed;
    visit_settings(any, [&](const Setting& setting, const auto&) {
        if (setting.on_resume == OnResume::may_change) allowed.push_back(prefix + setting.name);
    });
    std::string expected;
    for (const std::string& name : allowed) expected += (expected.empty() ? "" : ", ") + name;
    for (const auto& [name, value] : changes.items())
        check(std::ranges::find(allowed, prefix + name) != allowed.end(), prefix, name,
              ": cannot change when a run is resumed; expected only ", expected);
    // The run's other settings are not known here, so combinations are not checked.
    TrainConfig changed;
    apply_json(changed, changes, "resume");
    check_values(changed);
    check_end(changed);
}

void validate(const TrainConfig& c, std::int64_t ranks) {
    check_values(c);
    validate(c.model);
    validate(c.training);
    validate(c.adapters, c.model);
    check_combinations(c);
    memory_bytes(c.memory_budget);
    check(ranks % c.context_parallel == 0, "context-parallel: ", c.context_parallel,
          " does not divide the number of processes, ", ranks);
    check(c.context_parallel == 1 || c.model.context % (2 * c.context_parallel) == 0,
          "context: ", c.model.context, " with context-parallel ", c.context_parallel,
          "; expected a multiple of ", 2 * c.context_parallel, ", two chunks for each process");
    const std::int64_t groups = c.sequence_groups(ranks);
    const char* const sharers = c.context_parallel > 1 ? " groups of processes" : " processes";
    check(c.batch % groups == 0, "batch: ", c.batch, " is not a multiple of the ", groups, sharers,
          " that share it");
    const std::int64_t sequences = c.batch / groups;
    check(sequences % c.micro_batch_size(ranks) == 0, "micro-batch: ", c.micro_batch, " does not divide ",
          groups == 1 ? concat("batch ", c.batch)
                      : concat("the ", sequences, " sequences of each of ", groups, sharers));
    check(c.batch_start % groups == 0, "batch-start: ", c.batch_start, " is not a multiple of the ", groups,
          sharers, " that share it");
    const std::int64_t first = c.batch_start / groups, micro = c.micro_batch_size(ranks);
    check(first == 0 || first % micro == 0 || micro % first == 0, "batch-start: ", first, " sequences of a ",
          "process and micro-batch ", micro, "; expected that one divides the other");
    check(activations_are_countable(c.model, c.micro_batch_size(ranks)),
          "micro-batch: ", c.micro_batch_size(ranks), " sequences of ", c.model.context, " tokens in ",
          c.model.layers, " layers of width ", c.model.width,
          " are too many; expected activations of at most 2^57 numbers");
    check(c.shard_copies == 0 || ranks > 1, "shard-copies: ", c.shard_copies,
          " with one process; expected 0, because no other process has a copy");
    check(c.sample_prompt.size() <= setting_limits::max_sample_prompt_bytes,
          "sample-prompt: ", c.sample_prompt.size(), " bytes; expected at most ",
          setting_limits::max_sample_prompt_bytes);
    check_optimization(c);
}

void make_paths_absolute(TrainConfig& config) {
    const auto make_absolute = [](const char* name, std::string& path) {
        if (path.empty()) return;  // no file was given
        std::error_code error;
        const std::string full_path = std::filesystem::absolute(path, error).string();
        check(!error, name, ": '", path, "': the working directory is not known: ", error.message());
        check(is_utf8(full_path), name, ": '", full_path, "' is not UTF-8, a run's settings must be");
        path = full_path;
    };
    make_absolute("data", config.data);
    make_absolute("val-data", config.val_data);
    make_absolute("token-cache", config.token_cache);
    if (tokenizer_kind_of(config.tokenizer) == TokenizerKind::bpe)
        make_absolute("tokenizer", config.tokenizer);
    make_absolute("tensorboard", config.tensorboard);
    make_absolute("init-from", config.init_from);
    make_absolute("replay-clock", config.replay_clock);
}

Device resolve_device(DeviceChoice choice, int local_rank) {
    const int gpus = usable_gpus(choice);
    if (choice == DeviceChoice::cuda && gpus == 0)
        cuda::make_stream(Device::cuda());  // throws an Error that names what is missing
    if (gpus == 0) return Device::cpu();
    check(local_rank < gpus || gpus == 1, "device cuda: process ", local_rank, " of this host sees ", gpus,
          " GPUs; expected one for each process");
    return Device::cuda(gpus == 1 ? 0 : local_rank);
}

}  // namespace gradtile
