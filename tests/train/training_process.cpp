// A process that trains, for tests that stop and kill it: training_process CONFIG.json begins the run or goes
// on with it. Each step takes a little longer than it must, so that signals fall between any two.
#include <chrono>
#include <iostream>
#include <thread>

#include <gradtile/train/stop_signals.h>
#include <gradtile/train/trainer.h>

using namespace gradtile;

int main(int argc, char** argv) try {
    check(argc == 2, "usage: training_process CONFIG.json");
    const StopSignals signals;
    TrainConfig config;
    apply_config_file(config, argv[1]);
    const bool begun = exists(std::filesystem::path(config.out) / "config.json");
    const auto trainer = begun ? std::make_unique<Trainer>(Resume{.directory = config.out})
                               : std::make_unique<Trainer>(config);
    trainer->stop_when([&] { return signals.requested(); });
    trainer->on_step([](const StepReport&) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    return trainer->run().saved ? 0 : 2;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
