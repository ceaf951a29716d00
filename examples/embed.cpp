// gradtile as a library: build a model, train it, save it, load it again, write with it.
#include <filesystem>
#include <fstream>
#include <iostream>

#include <gradtile/train/corpus/corpus.h>
#include <gradtile/train/sampler.h>
#include <gradtile/train/trainer.h>

using namespace gradtile;

int main() {
    const std::filesystem::path place = "embed_example";  // in the current directory
    std::filesystem::remove_all(place);
    std::filesystem::create_directories(place);
    std::ofstream(place / "stories.txt") << generate_corpus(100'000, Seed{1}).text;

    TrainConfig config;
    config.data = (place / "stories.txt").string();
    config.out = (place / "run").string();
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

    // Letters by their frequencies alone would lose about 3.1 nats each.
    return summary.saved && *summary.val_loss < 2.7 ? 0 : 1;
}
