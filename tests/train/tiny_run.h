#pragma once
/// A short trainer run.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <support/temporary_directory.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/trainer.h>

namespace gradtile::test {

/// Returns a text with some structure: words from a small vocabulary in pseudo-random order.
inline std::string some_text(int words) {
    const char* vocabulary[] = {"the ", "cat ", "sat ", "on ", "a ", "mat.\n", "dog ", "ran "};
    std::string text;
    std::uint32_t state = 7;
    for (int i = 0; i < words; ++i) text += vocabulary[(state = state * 1664525u + 1013904223u) >> 29];
    return text;
}

/// Returns the same sentences as documents for packed training, with a blank line after each.
inline std::string some_documents(int words) {
    std::string text = some_text(words);
    for (std::size_t position = 0; (position = text.find('\n', position)) != std::string::npos; position += 2)
        text.insert(position, 1, '\n');
    return text;
}

/// Returns conversations as JSON Lines: questions and answers with different lengths, from some_text()'s
/// words.
inline std::string some_conversations(int count) {
    std::string lines, words = some_text(60 * count);
    std::erase(words, '\n');
    for (int i = 0; i < count; ++i) {
        std::string line = R"({"messages":[)";
        const auto add = [&](const char* role, std::size_t characters) {
            if (!line.ends_with('[')) line += ',';
            line +=
                std::string(R"({"role":")") + role + R"(","content":")" + words.substr(0, characters) + "\"}";
            words.erase(0, characters);
        };
        if (i % 3 == 0) add("system", 9);
        for (int turn = 0; turn <= i % 2; ++turn) {
            add("user", static_cast<std::size_t>(5 + i * 7 % 23));
            add("assistant", static_cast<std::size_t>(3 + i * 5 % 31));
        }
        lines += line + "]}\n";
    }
    return lines;
}

/// Returns prompts with one to three completions as JSON Lines, from some_text()'s words.
inline std::string some_shared_prompts(int count) {
    std::string lines, words = some_text(40 * count);
    std::erase(words, '\n');
    const auto take = [&](int characters) {
        const std::string text = words.substr(0, static_cast<std::size_t>(characters));
        words.erase(0, text.size());
        return text;
    };
    for (int i = 0; i < count; ++i) {
        nlohmann::json row{{"prompt", take(2 + i % 5)}, {"completions", nlohmann::json::array()}};
        for (int answer = 0; answer <= i % 3; ++answer)
            row["completions"].push_back(take(1 + (i + answer) % 4));
        lines += row.dump() + "\n";
    }
    return lines;
}

/// Returns the rows of some_shared_prompts() with a row for each completion.
inline std::string separate_completions(const std::string& rows) {
    std::istringstream lines(rows);
    std::string separate;
    for (std::string line; std::getline(lines, line);) {
        const nlohmann::json row = nlohmann::json::parse(line);
        for (const nlohmann::json& completion : row["completions"])
            separate += nlohmann::json{{"prompt", row["prompt"]}, {"completion", completion}}.dump() + "\n";
    }
    return separate;
}

/// Writes rows to several files in a folder, of which every third row goes to the same file.
inline std::string folder_of_rows(const std::string& folder, const std::string& rows) {
    std::filesystem::create_directories(folder);
    std::ofstream files[] = {std::ofstream(folder + "/a.jsonl"), std::ofstream(folder + "/b.jsonl"),
                             std::ofstream(folder + "/c.jsonl")};
    std::size_t line = 0;
    for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end + 1) {
        end = rows.find('\n', begin);
        files[line++ % 3] << rows.substr(begin, end - begin) << '\n';
    }
    return folder;
}

/// Returns rows with the sentences of some_text().
inline std::string some_rows(int words) {
    std::string rows = "{\"text\":\"", text = some_text(words);
    for (const char c : text) rows += c == '\n' ? "\"}\n{\"text\":\"" : std::string(1, c);
    return rows + "\"}\n";
}

struct TinyRun {
    TinyRun() {
        config.data = directory.write("text.txt", some_text(2000));
        config.model = {.layers = 2, .heads = 2, .width = 32, .context = 16};
        config.steps = 12;
        config.batch = 4;
        config.lr = 3e-3;
        config.warmup = 3;
        config.eval_every = 5;
        config.save_every = 5;
        config.threads = 1;
        config.device = DeviceChoice::cpu;  // GPU tests set this themselves
        config.out = (directory / "run").string();
    }
    /// Returns the lines of metrics.jsonl without times.
    static std::vector<nlohmann::json> metrics(const std::filesystem::path& run) {
        std::vector<nlohmann::json> lines;
        std::ifstream file(run / "metrics.jsonl");
        for (std::string line; std::getline(file, line);) {
            nlohmann::json object = nlohmann::json::parse(line);
            object.erase("ms");
            object.erase("wall_s");
            object.erase("tokens_per_s");
            lines.push_back(std::move(object));
        }
        return lines;
    }
    static std::vector<nlohmann::json> losses(const std::filesystem::path& run) {
        std::vector<nlohmann::json> lines = metrics(run);
        std::erase_if(lines, [](const nlohmann::json& line) { return line.contains("event"); });
        return lines;
    }
    /// Removes the announcements of checkpoints after `step` from metrics.jsonl, as if the run had been
    /// killed before it wrote them.
    void remove_announcements_after(std::int64_t step) const {
        const std::filesystem::path file = std::filesystem::path(config.out) / "metrics.jsonl";
        std::string kept;
        {
            std::ifstream lines(file);
            for (std::string line; std::getline(lines, line);) {
                const nlohmann::json object = nlohmann::json::parse(line);
                if (!object.contains("event") || object["step"] <= step) kept += line + '\n';
            }
        }
        std::ofstream(file) << kept;
    }
    /// Removes the checkpoints after `step`, as if the run had been killed before it saved them.
    void remove_saves_after(std::int64_t step) const {
        const CheckpointDirectory checkpoints(std::filesystem::path(config.out) / "checkpoints");
        for (const CheckpointDirectory::Entry& entry : checkpoints.list())
            if (entry.step > step) std::filesystem::remove(entry.path);
        std::filesystem::remove(checkpoints.best_path());
        remove_announcements_after(step);
    }

    TemporaryDirectory directory;
    TrainConfig config;
    std::vector<std::string> messages;
    MessageHandler on_message = [this](const std::string& message) { messages.push_back(message); };
};

/// Settings whose effect must survive a stop and a resume, and a graph replay.
struct RunSetting {
    const char* name;
    void (*change)(TrainConfig&);

    friend void PrintTo(const RunSetting& setting, std::ostream* out) { *out << setting.name; }
};
inline constexpr RunSetting run_settings[] = {
    RunSetting{"float32", [](TrainConfig&) {}},
    RunSetting{"bfloat16", [](TrainConfig& c) { c.dtype = TrainDType::bf16; }},
    RunSetting{"dropout", [](TrainConfig& c) { c.training.dropout = 0.2; }},
    RunSetting{"attention",
               [](TrainConfig& c) {
                   c.model.positions = Positions::alibi;
                   c.model.window = 5;
                   c.model.window_pattern = 2;
                   c.model.softcap = 10;
                   c.model.sinks = true;
                   c.training.attention_dropout = 0.2;
               }},
    RunSetting{"accumulation", [](TrainConfig& c) { c.micro_batch = 2; }},
    RunSetting{"muon", [](TrainConfig& c) { c.optimizer = kind_of<MuonSettings>; }},
    RunSetting{"normuon",
               [](TrainConfig& c) {
                   c.model.activation = Activation::swiglu;
                   c.optimizer = kind_of<MuonSettings>;
                   auto& muon = std::get<MuonSettings>(c.optimizer_settings);
                   muon.split = true;
                   muon.nesterov = false;
                   muon.momentum_warmup = 7;
                   muon.coefficients = MuonCoefficients::polar_express;
                   muon.beta2 = 0.9;
                   c.cautious_decay = true;
                   c.embedding_lr_factor = 2;
                   c.vector_lr_factor = 0.5;
               }},
    RunSetting{"bfloat16_moments",
               [](TrainConfig& c) {
                   c.dtype = TrainDType::bf16;
                   c.moment_dtype = MomentFormat::bf16;
                   c.micro_batch = 2;
               }},
    RunSetting{"bfloat16_moments_of_muon",
               [](TrainConfig& c) {
                   c.optimizer = kind_of<MuonSettings>;
                   c.moment_dtype = MomentFormat::bf16;
               }},
    RunSetting{"bfloat16_moments_of_lion",
               [](TrainConfig& c) {
                   c.optimizer = kind_of<LionSettings>;
                   c.lr = 3e-4;
                   c.moment_dtype = MomentFormat::bf16;
               }},
    RunSetting{"moments_in_8_bits",
               [](TrainConfig& c) {
                   c.dtype = TrainDType::bf16;
                   c.moment_dtype = MomentFormat::int8;
                   c.masters = MasterFormat::split;
               }},
    RunSetting{"moments_of_muon_in_8_bits",
               [](TrainConfig& c) {
                   c.optimizer = kind_of<MuonSettings>;
                   c.moment_dtype = MomentFormat::int8;
               }},
    RunSetting{"moments_of_lion_in_8_bits",
               [](TrainConfig& c) {
                   c.optimizer = kind_of<LionSettings>;
                   c.lr = 3e-4;
                   c.moment_dtype = MomentFormat::int8;
               }},
    RunSetting{"split_masters",
               [](TrainConfig& c) {
                   c.dtype = TrainDType::bf16;
                   c.masters = MasterFormat::split;
                   c.micro_batch = 2;
               }},
    RunSetting{"bfloat16_gradients",
               [](TrainConfig& c) {
                   c.dtype = TrainDType::bf16;
                   c.gradient_dtype = TrainDType::bf16;
                   c.masters = MasterFormat::split;
                   c.micro_batch = 1;
               }},
    RunSetting{"bfloat16_gradients_of_muon",
               [](TrainConfig& c) {
                   c.optimizer = kind_of<MuonSettings>;
                   c.gradient_dtype = TrainDType::bf16;
                   c.moment_dtype = MomentFormat::int8;
               }},
    RunSetting{"window_warmup",
               [](TrainConfig& c) {
                   c.model.window = 8;
                   c.model.window_pattern = 2;
                   c.window_start = 2;
                   c.window_warmup = 30;
               }},
    RunSetting{"batch_warmup",  // changes at steps 12 and 23
               [](TrainConfig& c) {
                   c.batch = 8;
                   c.micro_batch = 2;
                   c.batch_start = 2;
                   c.batch_warmup = 22;
                   c.packed = true;
                   c.document_token = 0;
               }},
    RunSetting{"packed",
               [](TrainConfig& c) {
                   c.packed = true;
                   c.document_token = 0;  // the line break, so that documents are lines
                   c.training.attention_dropout = 0.2;
               }},
    RunSetting{"conversations",
               [](TrainConfig& c) {
                   std::ofstream(c.data + ".jsonl") << some_conversations(60);
                   c.data += ".jsonl";
                   c.micro_batch = 1;
               }},
    RunSetting{"packed_conversations",
               [](TrainConfig& c) {
                   std::ofstream(c.data + ".jsonl") << some_conversations(60);
                   c.data += ".jsonl";
                   c.model.context = 96;
                   c.packed = true;
                   c.chat_template = ChatTemplate::chatml;
                   c.micro_batch = 2;
               }},
    RunSetting{"prefix",
               [](TrainConfig& c) {
                   std::ofstream(c.data + ".jsonl") << some_shared_prompts(60);
                   c.data += ".jsonl";
                   c.model.context = 31;  // rows that are not a multiple of 16 bytes
                   c.model.prefix = true;
                   c.micro_batch = 1;
                   c.training.attention_dropout = 0.1;
               }},
    RunSetting{"packed_shared_prompts",
               [](TrainConfig& c) {
                   std::ofstream(c.data + ".jsonl") << some_shared_prompts(150);
                   c.data += ".jsonl";
                   c.model.context = 33;
                   c.model.positions = Positions::rope;
                   c.packed = true;
                   c.micro_batch = 1;
               }},
    RunSetting{"stream",
               [](TrainConfig& c) {
                   c.val_data = c.data;
                   c.data = folder_of_rows(c.data + ".rows", some_rows(400));
                   c.tokenizer = "bytes";
                   c.stream_buffer = 7;
                   c.micro_batch = 2;
               }},
    RunSetting{"stream_of_packed_conversations",
               [](TrainConfig& c) {
                   c.val_data = c.data + ".jsonl";
                   std::ofstream(c.val_data) << some_conversations(20);
                   c.data = folder_of_rows(c.data + ".rows", some_conversations(60));
                   c.tokenizer = "bytes";
                   c.model.context = 96;
                   c.packed = true;
                   c.stream_buffer = 5;
               }},
    RunSetting{"everything", [](TrainConfig& c) {
                   c.dtype = TrainDType::bf16;
                   c.training.dropout = 0.1;
                   c.training.attention_dropout = 0.1;
                   c.model.sinks = true;
                   c.model.window = 7;
                   c.micro_batch = 1;
                   c.optimizer = kind_of<MuonSettings>;
                   c.schedule = ScheduleKind::wsd;
                   c.ignore_token = 0;
               }}};

/// Returns the state that a run resumes from, as numbers.
inline std::vector<std::vector<double>> state_of(const Trainer& trainer) {
    const LanguageModel& model = trainer.model();
    std::vector<std::vector<double>> state{to_host(model.ctx, model.parameters.values()),
                                           to_host(model.ctx, model.parameters.master())};
    for (const StateTensor& part : trainer.optimizer().state())
        state.push_back(to_host(model.ctx, part.tensor));
    return state;
}

}  // namespace gradtile::test
