// gradtile as a library: builds, trains, saves and loads a model, and generates text with it.
#include <filesystem>
#include <fstream>
#include <iostream>

#include <gradtile/tools/corpus/corpus.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/train/trainer.h>

using namespace gradtile;

int main() {
    const std::filesystem::path directory = "embed_example";
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "stories.txt") << generate_corpus(100'000, Seed{1}).text;

    TrainConfig config;
    config.data = (directory / "stories.txt").string();
    config.out = (directory / "run").string();
    config.model = {.layers = 2, .heads = 2, .width = 32, .context = 32};
    config.batch = 16;
    config.steps = 200;
    config.lr = 5e-3;
    config.warmup = 20;

    Trainer trainer(config);
    trainer.on_step([](const StepReport& report) {
        if (report.step % 50 == 0) std::cout << "step " << report.step << "  loss " << report.loss << '\n';
    });
    const RunSummary summary = trainer.run();
    std::cout << "validation loss " << *summary.val_loss << ", saved as " << summary.checkpoint.string()
              << '\n';

    const auto model = load_model(summary.checkpoint);
    std::cout << sample(*model, {.prompt = "One day", .tokens = 80, .temperature = 0.8}) << '\n';

    // Knowing only letter frequencies gives a loss of about 3.1 nats per letter.
    return summary.saved && *summary.val_loss < 2.7 ? 0 : 1;
}
