// Trains a small character transformer on generated text: lines of weekdays in order, from a random first
// day. Saves nothing, and counts the weekdays in a sample that follow the day before.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include <gradtile/core/philox.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/train/trainer.h>

using namespace gradtile;

namespace {

const std::array<std::string, 7> days = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                         "Friday", "Saturday", "Sunday"};

/// Lines such as "Friday Saturday Sunday Monday": three to six days, the first one random.
std::string weeks(std::uint32_t lines) {
    std::string text;
    for (std::uint32_t line = 0; line < lines; ++line) {
        const auto random = Philox::draw({line, 0, 0, 0}, {1, 0});
        const std::size_t first = random[0] % 7, count = 3 + random[1] % 4;
        for (std::size_t i = 0; i < count; ++i) text += days[(first + i) % 7] + (i + 1 < count ? ' ' : '\n');
    }
    return text;
}

/// Counts all pairs of neighbouring words within lines, and the pairs in which the second word is the day
/// after the first.
std::pair<int, int> count_correct(const std::string& text) {
    int correct = 0, all = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line) && !lines.eof();) {  // skips an incomplete last line
        std::istringstream words(line);
        std::string previous, word;
        for (words >> previous; words >> word; previous = word) {
            const auto day = std::ranges::find(days, previous);
            correct +=
                day != days.end() && word == days[static_cast<std::size_t>(day - days.begin() + 1) % 7];
            ++all;
        }
    }
    return {correct, all};
}

}  // namespace

int main() {
    const auto file = std::filesystem::temp_directory_path() / "gradtile_char_transformer.txt";
    std::ofstream(file) << weeks(4000);

    TrainConfig config;
    config.data = file.string();
    config.out = "";  // saves nothing
    config.model = {.layers = 2, .heads = 2, .width = 32, .context = 32};
    config.steps = 600;
    config.batch = 16;
    config.lr = 5e-3;
    config.warmup = 20;
    config.eval_every = 0;

    Trainer trainer{config};
    std::cout << trainer.memory_plan();
    trainer.on_step([](const StepReport& report) {
        if (report.step % 100 == 0) std::cout << "step " << report.step << "  loss " << report.loss << '\n';
    });
    const RunSummary summary = trainer.run();
    std::filesystem::remove(file);

    const std::string text =
        sample(trainer.model(), {.prompt = "Monday Tuesday", .tokens = 500, .temperature = 0.8, .seed = 1});
    const auto [correct, all] = count_correct(text);
    std::cout << text << "\n\nvalidation loss " << *summary.val_loss << "; " << correct << " of " << all
              << " days follow the one before\n";
    // A model that has learnt the spelling but not the order would be correct in one of seven cases.
    return all > 20 && correct > 0.9 * all ? EXIT_SUCCESS : EXIT_FAILURE;
}
