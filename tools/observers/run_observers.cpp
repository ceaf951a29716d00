#include <gradtile/tools/observers/run_observers.h>

#include <gradtile/core/io/file_system.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/tools/observers/loss_svg.h>
#include <gradtile/tools/observers/tensorboard_events.h>
#include <gradtile/train/run/metrics_file.h>
#include <gradtile/train/run/run_directory.h>

namespace gradtile {

void add_samples(Trainer& trainer) {
    trainer.on_sample([&config = trainer.config()](const LanguageModel& model) {
        constexpr double temperature = 0.8;
        return sample_text(model, {.prompt = config.sample_prompt,
                                   .tokens = config.sample_tokens,
                                   .temperature = temperature,
                                   .seed = config.seed})
            .text;
    });
}

void add_loss_curve(Trainer& trainer, const MessageHandler& on_message) {
    const RunDirectory* const directory = trainer.directory();
    if (directory == nullptr) return;
    const auto history = std::make_shared<LossHistory>(MetricsFile::read(directory->metrics_file()));
    trainer.on_step([history](const StepReport& report) { history->add(report); });
    trainer.on_save([history, directory, failures = FailureReporter(on_message)]() mutable {
        const std::filesystem::path run = absolute(directory->path() / "");
        failures([&] {
            write_loss_svg(directory->loss_curve_file(), *history, run.parent_path().filename().string());
        });
    });
}

void require_events_inside_run(const std::string& place, const std::filesystem::path& run,
                               const std::string& file) {
    check(is_inside(place, run), "tensorboard: '", place, "' in ", file, " is outside the run's directory ",
          run.string(), ", and holds no files of this run; name the place with --tensorboard ", place,
          ", or write nothing there with --tensorboard ''");
}

void add_tensorboard(Trainer& trainer, Named named, const MessageHandler& on_message) {
    const std::string& place = trainer.config().tensorboard;
    if (place.empty()) return;
    const bool resumed = !trainer.resumed_from().empty();
    if (resumed && named == Named::by_a_file && !TensorBoardEvents::exist_in(place, trainer.identity()))
        require_events_inside_run(place, trainer.config().out, trainer.resumed_from());
    const auto events = std::make_shared<TensorBoardEvents>(
        place, resumed ? TensorBoardEvents::Run::resumes : TensorBoardEvents::Run::starts,
        trainer.identity());
    trainer.on_step([events, failures = FailureReporter(on_message)](const StepReport& report) mutable {
        failures([&] { events->write(report); });
    });
}

}  // namespace gradtile
