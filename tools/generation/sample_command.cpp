// gradtile sample: generates text with a trained model, and prints it while it grows.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <utility>

#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/model_argument.h>
#include <gradtile/tools/command_line/standard_streams.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/tools/generation/sampling_flags.h>
#include <gradtile/train/data/readers/data_files.h>
#include <gradtile/train/data/readers/json_lines.h>
#include <gradtile/train/data/readers/plain_text.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    SampleOptions options;
    std::string prompt_file, prompts_file;
    std::int64_t samples = 1, batch = 0;
    bool json = false;
};

constexpr Range samples_range{1, 1e6}, batch_range{0, 1 << 16};
/// The most texts that one command generates; texts that are not generated yet also take memory.
constexpr std::size_t max_texts = 10'000'000;
constexpr std::size_t max_prompt_bytes = std::size_t{1} << 26;

/// Returns the content of a prompt file, or of standard input for "-", without a byte order mark. Reads what
/// training data may be: UTF-8 text, also compressed.
std::string prompt_text(const std::string& path) {
    TextReader reader = open_text(path);
    require_plain_text(reader);
    std::string text(reader.peek(max_prompt_bytes + 1));
    check(text.size() <= max_prompt_bytes, reader.name(), ": a prompt of more than ", max_prompt_bytes,
          " bytes");
    if (text.starts_with(utf8_byte_order_mark)) text.erase(0, utf8_byte_order_mark.size());
    return text;
}

void remove_line_break(std::string& text) {
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
}

/// Returns the --prompt-file text without one line break at its end, which editors and echo add.
std::string prompt_of_file(const std::string& path) {
    std::string text = prompt_text(path);
    remove_line_break(text);
    return text;
}

/// Returns the prompts in JSON Lines: {"prompt": "..."}, other members are skipped.
std::vector<std::string> prompts_of_json(std::string_view text, const std::string& source) {
    std::vector<std::string> prompts;
    JsonLines lines(TextReader(text, source));
    for (JsonValue value; lines.next(value);) {
        const bool has_text = value.contains("prompt") && value["prompt"].is_string();
        check(has_text, lines.where(),
              R"(: expected an object with the text of a prompt, {"prompt": "..."})");
        prompts.push_back(value["prompt"].get<std::string>());
    }
    return prompts;
}

std::vector<std::string> prompts_of_lines(std::string_view text, const std::string& source) {
    std::vector<std::string> prompts;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string line(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        remove_line_break(line);
        check(!line.empty(), source, ": line ", prompts.size() + 1,
              " is empty; expected a prompt in each line");
        prompts.push_back(std::move(line));
    }
    return prompts;
}

/// Returns the --prompts file's prompts.
std::vector<std::string> prompts_of_file(const std::string& path) {
    const std::string text = prompt_text(path), source = path == "-" ? "standard input" : path;
    std::vector<std::string> prompts =
        is_json_lines_name(path) ? prompts_of_json(text, source) : prompts_of_lines(text, source);
    check(!prompts.empty(), source, ": holds no prompt");
    return prompts;
}

void print_json(const std::string& prompt, const SampledText& sampled) {
    const JsonValue line = JsonValue::object({{"prompt", replace_invalid_utf8(prompt)},
                                              {"text", replace_invalid_utf8(sampled.text)},
                                              {"tokens", sampled.tokens},
                                              {"stopped", sampled.stopped}});
    std::cout << line.dump() << '\n';
    check_output();
}

/// Prints each piece at once, and ends when nobody reads the output any more.
void print_sample(const LanguageModel& model, const SampleOptions& options) {
    bool prompt_is_printed = false;  // an error in the prompt leaves standard output empty
    const auto print_prompt = [&] {
        if (!prompt_is_printed) std::cout << text_for_output(options.prompt);
        prompt_is_printed = true;
    };
    sample_text(model, options, [&](std::string_view piece) {
        print_prompt();
        std::cout << text_for_output(std::string(piece));
        check_output();
    });
    print_prompt();
    std::cout << '\n';
    check_output();
}

/// Prints texts one after another although they are generated at the same time: the first incomplete text is
/// printed while it grows, and later texts are kept until their turn.
class OrderedTexts {
  public:
    OrderedTexts(const std::vector<std::string>& prompts, std::size_t samples)
        : prompts_(prompts), samples_(samples) {}

    void add(std::size_t text, std::string_view piece) {
        if (text != current_) {
            waiting_[text].text += piece;
            return;
        }
        begin();
        print(piece);
    }
    void end(std::size_t text) {
        waiting_[text].complete = true;
        for (auto first = waiting_.begin(); first != waiting_.end() && first->first == current_;) {
            begin();
            print(first->second.text);
            if (!first->second.complete) break;
            print("\n");
            is_begun_ = false;
            ++current_;
            first = waiting_.erase(first);
        }
        // The beginning of an incomplete text is printed already, and must not be printed again.
        if (const auto grown = waiting_.find(current_); grown != waiting_.end()) waiting_.erase(grown);
    }

  private:
    struct Waiting {
        std::string text;
        bool complete = false;
    };
    /// Prints the separator and the prompt, which precede the text.
    void begin() {
        if (std::exchange(is_begun_, true)) return;
        if (current_ > 0) std::cout << "---\n";
        print(prompts_[current_ / samples_]);
    }
    static void print(std::string_view piece) {
        std::cout << text_for_output(std::string(piece));
        check_output();
    }

    const std::vector<std::string>& prompts_;
    std::size_t samples_;
    std::size_t current_ = 0;  // the first text that is not complete on the output
    bool is_begun_ = false;
    std::map<std::size_t, Waiting> waiting_;
};

/// Prints a JSON object for each text, in their order.
class OrderedJson {
  public:
    OrderedJson(const std::vector<std::string>& prompts, std::size_t samples)
        : prompts_(prompts), samples_(samples) {}

    void end(std::size_t text, SampledText sampled) {
        waiting_.emplace(text, std::move(sampled));
        for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; ++next_) {
            print_json(prompts_[next_ / samples_], first->second);
            first = waiting_.erase(first);
        }
    }

  private:
    const std::vector<std::string>& prompts_;
    std::size_t samples_, next_ = 0;
    std::map<std::size_t, SampledText> waiting_;
};

void print_batch(const LanguageModel& model, const std::vector<std::string>& prompts, const Flags& flags) {
    const auto samples = static_cast<std::size_t>(flags.samples);
    BatchTextHandler handler;
    OrderedJson objects(prompts, samples);
    OrderedTexts texts(prompts, samples);
    if (flags.json) {
        handler.on_end = [&](std::size_t text, SampledText sampled) {
            objects.end(text, std::move(sampled));
        };
    } else {
        handler.on_text = [&](std::size_t text, std::string_view piece) { texts.add(text, piece); };
        handler.on_end = [&](std::size_t text, const SampledText&) { texts.end(text); };
    }
    sample_text_batch(model, prompts, samples, flags.options, flags.batch, handler);
}

int sample_texts(const Flags& flags) {
    SampleOptions options = flags.options;
    check_sampling_flags(options);
    check_flag("--num-samples", flags.samples, samples_range);
    check_flag("--batch", flags.batch, batch_range);
    check_usage(flags.prompt_file.empty() || options.prompt.empty(),
                "--prompt-file: the prompt is given by --prompt; expected one of them");
    check_usage(flags.prompts_file.empty() || (flags.prompt_file.empty() && options.prompt.empty()),
                "--prompts: a prompt is given by ", options.prompt.empty() ? "--prompt-file" : "--prompt",
                "; expected one of them");
    if (!flags.prompt_file.empty()) options.prompt = prompt_of_file(flags.prompt_file);
    std::vector<std::string> prompts{options.prompt};
    if (!flags.prompts_file.empty()) prompts = prompts_of_file(flags.prompts_file);
    check_usage(prompts.size() <= max_texts / static_cast<std::size_t>(flags.samples),
                "--num-samples: ", flags.samples, " texts of each of ", prompts.size(),
                " prompts; expected at most ", max_texts, " texts");
    const auto model = flags.model.load();
    if (prompts.size() > 1 || flags.samples > 1) {
        print_batch(*model, prompts, flags);
        return 0;
    }
    options.prompt = prompts.front();
    if (flags.json) {
        print_json(options.prompt, sample_text(*model, options));
    } else {
        print_sample(*model, options);
    }
    return 0;
}

}  // namespace

void add_sample(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("sample", "Generate text with a trained model");
    flags->model.add_to(command);
    SampleOptions& options = flags->options;
    command.add_value("--prompt", options.prompt,
                      "text that the model continues; empty: the text begins after a line break");
    command.add_path("--prompt-file", flags->prompt_file,
                     "file of the prompt, or - for standard input; one line break at its end is left out",
                     "a path or -");
    command.add_path(
        "--prompts", flags->prompts_file,
        "file with a prompt in each line, or of JSON objects with a prompt (.jsonl), or - for standard "
        "input; continues each as --prompt would",
        "a path or -");
    add_sampling_flags(command, options);
    command.add_switch("--ignore-eos", options.ignore_eos,
                       "go on after a token that ends a text, such as <|endoftext|>");
    command.add_value("--num-samples", flags->samples,
                      "number of texts for each prompt; lines --- separate them");
    command.add_value(
        "--batch", flags->batch,
        "largest number of texts generated at once; 0: up to 64, if the memory suffices for their caches");
    command.add_switch(
        "--json", flags->json,
        "print one JSON object for each text: prompt, text, tokens, stopped (true: ended by --stop or by a "
        "token that ends a text)");
    command.set_action([flags] { return sample_texts(*flags); });
}

}  // namespace gradtile::cli
