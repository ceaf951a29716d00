// Trains a small character transformer on a text it makes itself, weekdays in their order from a random one
// on, saves nothing, and counts how many weekdays of a sample stand where they should.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include <gradtile/core/philox.h>
#include <gradtile/train/sampler.h>
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

/// Of the words that follow another in their line: how many are the next day, and how many there are.
std::pair<int, int> count_right(const std::string& text) {
    int right = 0, all = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line) && !lines.eof();) {  // the last line may be torn
        std::istringstream words(line);
        std::string previous, word;
        for (words >> previous; words >> word; previous = word) {
            const auto day = std::ranges::find(days, previous);
            right += day != days.end() && word == days[static_cast<std::size_t>(day - days.begin() + 1) % 7];
            ++all;
        }
    }
    return {right, all};
}

}  // namespace

int main() {
    const auto file = std::filesystem::temp_directory_path() / "gradtile_char_transformer.txt";
    std::ofstream(file) << weeks(4000);

    TrainConfig config;
    config.data = file.string();
    config.out = "";  // no directory: nothing is saved
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
    const auto [right, all] = count_right(text);
    std::cout << text << "\n\nvalidation loss " << *summary.val_loss << "; " << right << " of " << all
              << " days follow the one before\n";
    // A model that had learnt to spell but not to count would be right one time in seven.
    return all > 20 && right > 0.9 * all ? EXIT_SUCCESS : EXIT_FAILURE;
}
