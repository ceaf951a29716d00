// A process that trains, alone or as a rank, for tests that stop and kill it. `training_process CONFIG.json`
// starts or resumes the run that this config file describes. Each step has an extra delay, so that signals
// also arrive between steps. GRADTILE_UNREADABLE=RANK:STEP makes that step's data unreadable in that rank.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

#include <unistd.h>

#include <gradtile/train/run/stop_signals.h>
#include <gradtile/train/trainer.h>

using namespace gradtile;

namespace {

std::shared_ptr<ProcessGroup> join_group() {
    const RankEnvironment environment = read_rank_environment();
    if (environment.size == 1) return std::make_shared<ProcessGroup>();
    const auto end = [](const std::string& line) {
        std::cerr << line << std::endl;
        _exit(3);
    };
    return std::make_shared<ProcessGroup>(environment, ProcessGroupOptions{.timeout = 60.0, .on_loss = end});
}

void make_unreadable(Trainer& trainer, int rank) {
    const char* const where = std::getenv("GRADTILE_UNREADABLE");
    int unreadable_rank = -1, unreadable_step = 0;
    if (where == nullptr || std::sscanf(where, "%d:%d", &unreadable_rank, &unreadable_step) != 2) return;
    if (rank == unreadable_rank)
        trainer.on_prepare(
            [=](std::int64_t step) { check(step != unreadable_step, "text.txt: is shorter than it was"); });
}

}  // namespace

int main(int argc, char** argv) try {
    check(argc == 2, "usage: training_process CONFIG.json");
    const StopSignals signals;
    TrainConfig config;
    apply_config_file(config, argv[1]);
    const std::shared_ptr<ProcessGroup> group = join_group();
    const bool begun =
        group->broadcast(exists(std::filesystem::path(config.out) / "config.json") ? "y" : "n") == "y";
    const auto trainer = begun ? std::make_unique<Trainer>(config.out, ResumeOptions{}, print_message, group)
                               : std::make_unique<Trainer>(config, print_message, group);
    trainer->stop_when([&] { return signals.requested(); });
    trainer->on_step([](const StepReport&) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    make_unreadable(*trainer, group->rank());
    const bool saved = trainer->run().saved;
    group->leave();
    return saved ? 0 : 2;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    std::this_thread::sleep_for(std::chrono::seconds(
        read_rank_environment().size > 1 ? 1 : 0));  // time for the other ranks' messages
    std::_Exit(1);
}
