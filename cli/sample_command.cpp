// gradtile sample: generates text with a trained model, and prints it while it grows.
#include <unistd.h>

#include <iostream>
#include <iterator>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/model_argument.h>
#include <gradtile/cli/sampling_flags.h>
#include <gradtile/cli/standard_streams.h>
#include <gradtile/cli/usage_error.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/sampler.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    SampleOptions options;
    std::string prompt_file;
    std::int64_t samples = 1;
    bool json = false;
};

constexpr Range samples_range{1, 1e6};
constexpr std::uint64_t max_prompt_bytes = std::uint64_t{1} << 26;

/// Returns the text of --prompt-file without one line break at its end, which editors and echo add.
std::string prompt_of_file(const std::string& path) {
    std::string text;
    if (path == "-") {
        std::cin >> std::noskipws;
        for (std::istreambuf_iterator<char> next(std::cin), end; next != end; ++next) {
            text += *next;
            check(text.size() <= max_prompt_bytes, "standard input: a prompt of more than ", max_prompt_bytes,
                  " bytes");
        }
    } else {
        text = read_text_file(path, max_prompt_bytes);
    }
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
    return text;
}

void print_json_sample(const LanguageModel& model, const SampleOptions& options) {
    const SampledText sampled = sample_text(model, options);
    const JsonValue line = JsonValue::object({{"prompt", replace_invalid_utf8(options.prompt)},
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

int sample_texts(const Flags& flags) {
    SampleOptions options = flags.options;
    check_sampling_flags(options);
    check_flag("--num-samples", flags.samples, samples_range);
    check_usage(flags.prompt_file.empty() || options.prompt.empty(),
                "--prompt-file: the prompt is given by --prompt; expected one of them");
    if (!flags.prompt_file.empty()) options.prompt = prompt_of_file(flags.prompt_file);
    const auto model = flags.model.load();
    for (std::int64_t i = 0; i < flags.samples; ++i) {
        options.number = static_cast<std::uint64_t>(i);
        if (flags.json) {
            print_json_sample(*model, options);
        } else {
            if (i > 0) std::cout << "---\n";
            print_sample(*model, options);
        }
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
    command.add_value("--prompt-file", flags->prompt_file,
                      "file of the prompt, or - for standard input; one line break at its end is left out");
    add_sampling_flags(command, options);
    command.add_value("--num-samples", flags->samples, "number of texts, separated by lines ---");
    command.add_switch("--json", flags->json,
                       "print one JSON object a text: prompt, text, tokens, stopped (by --stop)");
    command.set_action([flags] { return sample_texts(*flags); });
}

}  // namespace gradtile::cli
