// gradtile train: a new run from a preset, a config file and flags, or an old one going on; as one process,
// as one of several that a launcher has started, or as the launcher.
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/group_member.h>
#include <gradtile/cli/setting_flags.h>
#include <gradtile/cli/standard_streams.h>
#include <gradtile/cli/usage_error.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/cost_model/device_peak.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/progress.h>
#include <gradtile/train/stop_signals.h>
#include <gradtile/train/trainer.h>

namespace gradtile::cli {
namespace {

struct Flags {
    explicit Flags(Command& command) : settings(command) {}
    SettingFlags settings;
    std::string preset, config_file, resume;
    std::int64_t stop_after = 0;
    bool restart = false, memory = false, quiet = false, print_config = false;
    GroupFlags group;
    std::optional<std::int64_t> restarts;
};

/// Preset, then config file, then flags: the later wins.
TrainConfig config_of(const Flags& flags) {
    check_usage(!flags.restart, "--restart: only goes with --resume");
    TrainConfig config;
    if (!flags.preset.empty()) config = preset(flags.preset);
    if (!flags.config_file.empty()) apply_user_config(config, flags.config_file);
    flags.settings.apply(config);
    check_usage(!config.out.empty(), "--out '': expected a directory; without one nothing would be saved");
    return config;
}

Resume resume_of(const Flags& flags) {
    check_usage(flags.preset.empty() && flags.config_file.empty(),
                "--resume: goes on with the run's own settings; --preset and --config do not go with it");
    TrainConfig changed;
    flags.settings.apply(changed);
    as_usage([&] { validate(changed); });
    Resume resume{.directory = flags.resume, .restart = flags.restart};
    for (const std::string& name : flags.settings.given()) {
        if (name == "steps") {
            resume.steps = changed.steps;
        } else if (name == "save-every") {
            resume.save_every = changed.save_every;
        } else if (name == "threads") {
            resume.threads = changed.threads;
        } else if (name == "device") {
            resume.device = changed.device;
        } else if (name == "zero") {
            resume.zero = changed.zero;
        } else if (name == "data") {
            resume.data = changed.data;
        } else if (name == "val-data") {
            resume.val_data = changed.val_data;
        } else {
            throw UsageError(concat("--", name,
                                    ": cannot change when a run is resumed; steps, stop-after, save-every, "
                                    "threads, device, zero, and the place of data and val-data can"));
        }
    }
    return resume;
}

/// As a resumed run would have them. Only looked at, whoever trains there.
TrainConfig config_of_run(const Flags& flags) {
    resume_of(flags);  // refuses what cannot change
    TrainConfig config;
    apply_config_file(config, (std::filesystem::path(flags.resume) / "config.json").string());
    flags.settings.apply(config);
    return config;
}

void print_setup(const Trainer& trainer, int ranks) {
    const TrainConfig& c = trainer.config();
    for (const std::string& line : trainer.data_description()) std::cout << printable(line) << '\n';
    std::cout << trainer.memory_plan() << "training on " << trainer.train_tokens()
              << " tokens, validating on " << trainer.validation_tokens() << "; vocabulary "
              << c.model.vocabulary << ", " << (ranks > 1 ? concat(ranks, " x ") : "")
              << c.accumulation_steps(ranks) << " x " << c.micro_batch_size(ranks) << " sequences of "
              << c.model.context << " tokens a step, " << name_of(c.dtype) << " on "
              << trainer.model().ctx.device() << '\n';
}

/// How near the model came to the grammar that wrote the validation stories.
void print_source(double val_loss, double source_nll) {
    std::printf(
        "the stories' source itself reaches %.4f; the model is %.4f above it (nats per character)\n"
        "  part of that gap is the short context: the source remembers a story from its first word\n",
        source_nll, val_loss - source_nll);
}

/// `signal` is 0 where another process was told to stop.
void print_stop(const RunSummary& summary, int signal) {
    std::cout << "stopped by " << (signal != 0 ? concat("signal ", signal) : "another process")
              << " after step " << summary.step;
    if (summary.dropped_micro_steps > 0)
        std::cout << "; step " << summary.step + 1 << " is dropped after micro-step "
                  << summary.dropped_micro_steps << " of " << summary.micro_steps_of_dropped;
    if (summary.evaluation_pending) std::cout << "; its evaluation is made when the run is resumed";
    std::cout << '\n';
}

std::unique_ptr<Trainer> make_trainer(const Flags& flags, const std::shared_ptr<ProcessGroup>& group) {
    if (!flags.resume.empty() && !flags.memory)
        return std::make_unique<Trainer>(resume_of(flags), print_message, group);
    const TrainConfig config = flags.resume.empty() ? config_of(flags) : config_of_run(flags);
    as_usage([&] { validate(config, group->size()); });
    return std::make_unique<Trainer>(config, print_message, group,
                                     flags.memory ? Trainer::Purpose::plan : Trainer::Purpose::train);
}

/// Trains to the end; the exit code. Of several processes only rank 0 speaks.
int train_to_end(const Flags& flags, Trainer& trainer, const ProcessGroup& group,
                 const StopSignals& signals) {
    const bool quiet = flags.quiet || !group.is_root();
    if (!flags.memory && trainer.is_finished()) {
        if (group.is_root())
            std::cout << "the run is finished at step " << trainer.step() << "; --steps M goes further\n";
        return 0;
    }
    if (group.is_root() && (flags.memory || !quiet)) print_setup(trainer, group.size());
    if (flags.memory) {
        check_output();
        return 0;
    }

    const TrainConfig& config = trainer.config();
    std::optional<Progress> progress;
    if (!quiet) {
        progress.emplace(
            stdout, ProgressOptions{
                        .first_step = trainer.step(),
                        .last_step = flags.stop_after > 0 ? std::min(flags.stop_after, trainer.last_step())
                                                          : trainer.last_step(),
                        .flops_per_token = flops_per_token(config.model, config.model.context),
                        .peak_flops = group.size() * peak_flops(trainer.model().ctx.device(),
                                                                storage_dtype(config.dtype), config.tf32)});
        trainer.on_step([&](const StepReport& report) { (*progress)(report); });
        trainer.on_part([&](const StepPart& part) { (*progress)(part); });
    }
    trainer.stop_when([&] { return signals.requested(); });
    const RunSummary summary = trainer.run(flags.stop_after);
    progress.reset();
    if (!group.is_root()) return 0;

    if (summary.reason == RunSummary::Reason::requested) print_stop(summary, signals.signal());
    if (summary.val_loss)
        std::printf("validation loss %.4f (best %.4f)\n", *summary.val_loss,
                    summary.best_val_loss.value_or(*summary.val_loss));
    if (summary.val_loss && trainer.source_nll()) print_source(*summary.val_loss, *trainer.source_nll());
    if (!summary.checkpoint.empty()) {
        const std::string out = printable(config.out);
        std::cout << "checkpoint: " << printable(summary.checkpoint.string()) << "\nmetrics:    " << out
                  << "/metrics.jsonl\nloss curve: " << out << "/loss.svg\n";
    }
    return summary.saved || config.out.empty() ? 0 : 1;
}

/// The settings as the run's config.json would hold them.
int print_config(const Flags& flags) {
    TrainConfig config = flags.resume.empty() ? config_of(flags) : config_of_run(flags);
    as_usage([&] { validate(config); });
    make_paths_absolute(config);
    if (config.model.vocabulary == 0 && !config.data.empty())
        config.model.vocabulary = load_dataset({.data = config.data,
                                                .val_data = config.val_data,
                                                .val_fraction = config.val_fraction,
                                                .tokenizer = config.tokenizer,
                                                .token_type = config.token_type})
                                      .vocabulary;
    std::cout << json_text(to_json(config), 2) << '\n';
    check_output();
    return 0;
}

/// This process's part in the training.
int train(const Flags& flags) {
    check_flag("--stop-after", flags.stop_after, {0, setting_limits::max_steps});
    // To the end of the process: what comes late, as SIGUSR1 after SIGTERM, must not end one that has
    // stopped.
    static const StopSignals signals;
    std::unique_ptr<Trainer> trainer;  // outlives an error: its end may wait for the others
    return run_in_group(flags.group.timeout, [&](const std::shared_ptr<ProcessGroup>& group) {
        trainer = make_trainer(flags, group);
        return train_to_end(flags, *trainer, *group, signals);
    });
}

/// As the parent of the processes that train.
int launch_training(const Flags& flags) {
    TrainConfig config;  // what is wrong with it is said once, here
    if (flags.resume.empty()) {
        config = config_of(flags);
    } else {
        resume_of(flags);
        flags.settings.apply(config);
    }
    Launch launch = launch_of(flags.group, config.device, "--restarts");
    launch.directory = flags.resume.empty() ? config.out : flags.resume;
    if (flags.resume.empty()) as_usage([&] { validate(config, launch.processes); });
    if (flags.restarts) launch.restarts = count_of("--restarts", *flags.restarts, 0);
    // A run that began on the CPU goes on on the GPUs asked for.
    if (flags.group.gpus && !flags.resume.empty())
        launch.arguments.insert(launch.arguments.end(), {"--device", "cuda"});
    launch.goes_on = !flags.resume.empty();
    launch.resume_arguments = launch.arguments;
    // After a crash nothing is missing: what was lost before has been accepted once, at the first start.
    std::erase(launch.resume_arguments, "--restart");
    if (flags.resume.empty()) {  // the run knows its settings
        launch.resume_arguments = {"train", "--resume", config.out, "--timeout", concat(flags.group.timeout)};
        if (flags.stop_after > 0)
            launch.resume_arguments.insert(launch.resume_arguments.end(),
                                           {"--stop-after", concat(flags.stop_after)});
        if (flags.quiet) launch.resume_arguments.emplace_back("--quiet");
    }
    return cli::launch(launch);
}

}  // namespace

void add_train(CommandLine& program) {
    Command command = program.add_command("train", "Train a model, or continue a run (--resume)");
    const auto flags = std::make_shared<Flags>(command);
    std::string presets = "settings to use as defaults (shown with --help):";
    for (const std::string& name : preset_names()) presets += " " + name;
    command.add_value<std::string>("--preset", presets, [flags](const std::string& name) {
        flags->preset = name;
        flags->settings.show_defaults(preset(name));
    });
    command.add_value("--config", flags->config_file, "JSON file of settings, named as the flags are");
    command.add_value("--resume", flags->resume, "directory of the run to continue");
    command.add_switch("--restart", flags->restart,
                       "with --resume: where the newest checkpoint is gone, train again from an older one or "
                       "from the start");
    command.add_value<std::int64_t>(
        "--stop-after", "stop after this step; --resume continues the run as if it had not stopped",
        [flags](const std::int64_t& step) { flags->stop_after = step; });
    add_group_flags(command, "train", flags->group);
    command.add_value<std::int64_t>(
        "--restarts", "after a failure, restart from the last sound checkpoint, at most this often",
        [flags](const std::int64_t& n) { flags->restarts = n; });
    command.add_switch("--memory", flags->memory, "print the memory plan and stop");
    command.add_switch("--print-config", flags->print_config,
                       "print the run's settings as JSON (its config.json) and stop");
    command.add_switch("--quiet", flags->quiet, "print no progress");
    command.on_chosen(
        [flags] {
            if (flags->print_config) return print_config(*flags);
            return flags->group.launches() || flags->restarts ? launch_training(*flags) : train(*flags);
        },
        Output::progress);
}

}  // namespace gradtile::cli
