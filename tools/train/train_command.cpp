// gradtile train: starts a new run from a preset, a config file and flags, or resumes a run. The process
// trains alone, is one of several processes that a launcher started, or is the launcher.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>

#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/setting_flags.h>
#include <gradtile/tools/command_line/standard_streams.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/corpus/corpus.h>
#include <gradtile/tools/launch/group_member.h>
#include <gradtile/tools/observers/run_observers.h>
#include <gradtile/tools/plan/device_peak.h>
#include <gradtile/tools/train/train_display.h>
#include <gradtile/train/config/recipe.h>
#include <gradtile/train/config/refused_combinations.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/data/token_file.h>
#include <gradtile/train/run/metrics_file.h>
#include <gradtile/train/run/stop_signals.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/trainer.h>

namespace gradtile::cli {
namespace {

struct Flags {
    explicit Flags(Command& command) : settings(command) {}
    SettingFlags settings;
    std::string preset, config_file, resume, on_loss;
    std::int64_t depth = 0;  // 0: not given
    std::int64_t stop_after = 0;
    bool restart = false, memory = false, quiet = false, live = false, print_config = false;
    GroupFlags group;
    std::optional<std::int64_t> restarts;
};

/// The preset that --preset or --depth names; empty if neither was given.
std::string preset_name(const Flags& flags) {
    if (flags.depth == 0) return flags.preset;
    std::string name = preset_of_depth(flags.depth);
    check_usage(flags.preset.empty() || flags.preset == name, "--depth: ", flags.depth, " with --preset ",
                flags.preset, "; expected only one of them");
    return name;
}

/// Applies preset, --init-from model, config file and flags in this order; later values override earlier
/// ones.
TrainConfig config_of(const Flags& flags) {
    check_usage(!flags.restart, "--restart: needs --resume");
    constexpr std::int64_t not_given = std::numeric_limits<std::int64_t>::min();
    const std::string base = preset_name(flags);
    const auto settings = [&](const std::string& init_from) {
        TrainConfig config;
        config.steps = not_given;
        if (!base.empty()) config = preset(base);
        if (!init_from.empty()) adopt_model(config, init_from);
        if (!flags.config_file.empty()) apply_user_config(config, flags.config_file);
        flags.settings.apply(config);
        return config;
    };
    TrainConfig config = settings({});
    if (!config.init_from.empty()) config = settings(config.init_from);
    check_usage(config.steps != not_given || config.stream_buffer == 0,
                "--steps: not given; with --stream-buffer ", config.stream_buffer,
                " the length of the data is not known, expected --steps or --time-budget");
    if (config.steps == not_given) config.steps = TrainConfig().steps;
    check_usage(!config.out.empty(), "--out '': expected a directory for the run's files");
    check_usage(flags.print_config || !config.data.empty(), "data: no file given (--data FILE)");
    return config;
}

void validate_settings(const Flags& flags, const TrainConfig& config, std::int64_t ranks) {
    rethrow_as_usage_error([&] {
        validate(config, ranks);
        check_used(config, flags.settings.given());
    });
}

/// Refuses a place to write to that only the --config file names; see add_tensorboard().
void check_outputs(const Flags& flags, const TrainConfig& config) {
    if (config.tensorboard.empty() || flags.settings.given().contains("tensorboard")) return;
    rethrow_as_usage_error(
        [&] { require_events_inside_run(config.tensorboard, config.out, flags.config_file); });
}

/// Checks the flags of a run that is resumed.
ResumeOptions resume_options(const Flags& flags) {
    check_usage(flags.preset.empty() && flags.depth == 0 && flags.config_file.empty(),
                "--resume: uses the settings of the run; expected neither --preset, --depth nor --config");
    rethrow_as_usage_error([&] { check_may_change(flags.settings.given(), "--"); });
    return {.changes = flags.settings.given(), .restart = flags.restart};
}

/// The settings that a resumed run would have. Reads the run's files without locking the run.
TrainConfig config_of_run(const Flags& flags) {
    resume_options(flags);  // throws when a flag sets a setting that cannot change
    TrainConfig config;
    apply_config_file(config, (std::filesystem::path(flags.resume) / "config.json").string());
    flags.settings.apply(config);
    return config;
}

void print_setup(const Trainer& trainer, int ranks) {
    const TrainConfig& c = trainer.config();
    for (const std::string& line : trainer.data_description()) std::cout << printable(line) << '\n';
    std::cout << trainer.memory_plan() << "training on "
              << (c.stream_buffer > 0 ? std::string("a stream of") : concat(trainer.train_tokens()))
              << " tokens, validating on " << trainer.validation_tokens() << "; vocabulary "
              << c.model.vocabulary << ", "
              << (c.sequence_groups(ranks) > 1 ? concat(c.sequence_groups(ranks), " x ") : "")
              << c.accumulation_steps(ranks) << " x " << c.micro_batch_size(ranks) << " sequences of "
              << c.model.context << " tokens per step, "
              << (c.context_parallel > 1 ? concat("each shared by ", c.context_parallel, " processes, ") : "")
              << name_of(c.dtype) << " on " << trainer.model().ctx.device() << '\n';
}

/// Compares the model with the grammar that generated the validation stories. Per character, because losses
/// per token depend on the tokenizer.
void print_source(double val_loss, const SourceLoss& source) {
    std::printf(
        "nats per character: the model %.4f, the grammar itself %.4f\n"
        "  part of the difference is the short context: the grammar knows a story from its first word\n",
        val_loss / source.characters_per_token, source.nats_per_character);
}

/// `signal` is 0 when another process received the signal.
void print_stop(const RunSummary& summary, int signal) {
    std::cout << "stopped by " << (signal != 0 ? concat("signal ", signal) : "another process")
              << " after step " << summary.step;
    if (summary.dropped_micro_steps > 0)
        std::cout << "; step " << summary.step + 1 << " is dropped after micro-step "
                  << summary.dropped_micro_steps << " of " << summary.micro_steps_of_dropped;
    if (summary.evaluation_pending) std::cout << "; the evaluation will run when the run is resumed";
    std::cout << '\n';
}

/// Returns the names of a summary's losses that are not finite. Every process has the same losses. A run that
/// was stopped may still recover.
std::vector<std::string> losses_not_finite(const RunSummary& summary) {
    std::vector<std::string> names;
    if (summary.reason == RunSummary::Reason::requested) return names;
    if (summary.loss && !std::isfinite(*summary.loss)) names.emplace_back("loss");
    if (summary.val_loss && !std::isfinite(*summary.val_loss)) names.emplace_back("val_loss");
    return names;
}

void print_not_finite(const std::vector<std::string>& losses, std::int64_t step) {
    if (losses.empty()) return;
    print_message(concat("after step ", step, ": ", losses.front(),
                         losses.size() > 1 ? concat(" and ", losses.back(), " are") : " is",
                         " not finite; expected a lower --lr, from the start or with --init-from an earlier "
                         "checkpoint"));
}

/// Prints a run's last lines, for people and scripts: one "key: value" per line, with the names in
/// metrics.jsonl. A key without a finite value has no line.
void print_results(const RunSummary& summary, const TrainConfig& config) {
    std::cout << std::flush;
    std::printf("step: %lld\n", static_cast<long long>(summary.step));
    const auto print_loss = [](const char* key, const std::optional<double>& loss) {
        if (loss && std::isfinite(*loss)) std::printf("%s: %.6f\n", key, *loss);
    };
    print_loss("loss", summary.loss);
    print_loss("val_loss", summary.val_loss);
    print_loss("best_val_loss", summary.best_val_loss);
    std::printf("tokens: %lld\nwall_s: %.3f\n", static_cast<long long>(summary.tokens), summary.wall_s);
    if (summary.tokens_per_s > 0.0) std::printf("tokens_per_s: %.0f\n", summary.tokens_per_s);
    std::fflush(stdout);
    if (summary.checkpoint.empty()) return;
    const std::string out = printable(config.out);
    std::cout << "checkpoint: " << printable(summary.checkpoint.string()) << "\nmetrics: " << out
              << "/metrics.jsonl\nloss_curve: " << out << "/loss.svg\n";
}

std::unique_ptr<Trainer> make_trainer(const Flags& flags, const std::shared_ptr<ProcessGroup>& group,
                                      bool replaces_rank, TrainDisplay& display) {
    const auto on_message = [&display](const std::string& text) { display.message(text); };
    if (replaces_rank)
        return std::make_unique<Trainer>(Trainer::Replacement{}, on_message, group, parse_corpus);
    if (!flags.resume.empty() && !flags.memory)
        return std::make_unique<Trainer>(flags.resume, resume_options(flags), on_message, group,
                                         parse_corpus);
    const TrainConfig config = flags.resume.empty() ? config_of(flags) : config_of_run(flags);
    validate_settings(flags, config, group->size());
    if (!flags.memory) check_outputs(flags, config);
    return std::make_unique<Trainer>(config, on_message, group,
                                     flags.memory ? Trainer::Purpose::plan : Trainer::Purpose::train,
                                     parse_corpus);
}

void add_observers(Trainer& trainer, const Flags& flags, TrainDisplay& display) {
    const auto on_message = [&display](const std::string& text) { display.message(text); };
    // A config file that names a directory outside the run was refused before (check_outputs).
    add_tensorboard(trainer,
                    flags.settings.given().contains("tensorboard") ? Named::by_the_user : Named::by_a_file,
                    on_message);
    add_loss_curve(trainer, on_message);
    add_samples(trainer);
}

ProgressOptions progress_options(const Flags& flags, const Trainer& trainer, const ProcessGroup& group) {
    const TrainConfig& config = trainer.config();
    const std::int64_t last = config.time_budget.empty() ? trainer.last_step() : 0;
    return {.first_step = trainer.step(),
            .last_step = flags.stop_after > 0 ? std::min(flags.stop_after, last) : last,
            .flops_per_token = flops_per_token(config.model, config.model.context, config.adapters),
            .peak_flops = group.size() *
                          peak_flops(trainer.model().ctx.device(), storage_dtype(config.dtype), config.tf32)};
}

/// Trains to the end and returns the exit code. Only rank 0 prints. A process that replaces a rank runs also
/// when no step is left, because the others wait for what it saves. `link` may be null.
int train_to_end(const Flags& flags, Trainer& trainer, const ProcessGroup& group, const LauncherLink* link,
                 const StopSignals& signals, TrainDisplay& display) {
    const bool replaces_rank = link != nullptr && link->replaces_rank();
    const bool quiet = flags.quiet || !group.is_root();
    if (!flags.memory && !replaces_rank && trainer.is_finished()) {
        if (!group.is_root()) return 0;
        std::cout << "the run is finished at step " << trainer.step()
                  << (trainer.config().time_budget.empty() ? "; --steps M continues it up to step M\n"
                                                           : "; its time-budget is used up\n");
        // As when the run ended: a launcher that restarts it must not turn its failure into success.
        const std::vector<std::string> not_finite = MetricsFile::losses_not_finite(
            std::filesystem::path(trainer.config().out) / "metrics.jsonl", trainer.step());
        print_not_finite(not_finite, trainer.step());
        return not_finite.empty() ? 0 : 1;
    }
    if (group.is_root() && !replaces_rank && (flags.memory || !quiet)) print_setup(trainer, group.size());
    if (flags.memory) {
        check_output();
        return 0;
    }

    if (group.is_root()) add_observers(trainer, flags, display);
    trainer.stop_when([&] { return signals.requested(); });
    // The display ends before the results or an error are printed.
    std::shared_ptr<void> shown;
    if (!quiet) shown = display.show(trainer, progress_options(flags, trainer, group));
    if (link != nullptr) {
        // From now on a signal stops the run. The launcher sends none to a process that joins a run.
        static_cast<void>(signals.requested());
        link->report_training();
    }
    const RunSummary summary = trainer.run(flags.stop_after);
    shown.reset();
    const std::vector<std::string> not_finite = losses_not_finite(summary);
    if (!group.is_root()) return not_finite.empty() ? 0 : 1;

    if (summary.reason == RunSummary::Reason::requested) print_stop(summary, signals.signal());
    if (summary.val_loss && std::isfinite(*summary.val_loss) && trainer.source_loss())
        print_source(*summary.val_loss, *trainer.source_loss());
    print_results(summary, trainer.config());
    print_not_finite(not_finite, summary.step);
    return not_finite.empty() && (summary.saved || trainer.config().out.empty()) ? 0 : 1;
}

/// Prints the settings as in the run's config.json.
int print_config(const Flags& flags) {
    TrainConfig config = flags.resume.empty() ? config_of(flags) : config_of_run(flags);
    validate_settings(flags, config, 1);
    make_paths_absolute(config);
    if (config.model.vocabulary == 0 && !config.data.empty())
        config.model.vocabulary =
            load_dataset(dataset_options(config),
                         is_token_file(config.data) ? std::nullopt : tokenizer_of_setting(config.tokenizer))
                .vocabulary;
    std::cout << to_json(config).dump(2) << '\n';
    check_output();
    return 0;
}

/// Trains as a single process or as one rank.
int train(const Flags& flags) {
    check_flag("--stop-after", flags.stop_after, {0, setting_limits::max_steps});
    // Created before `signals`, whose thread must not receive the signal that the display waits for.
    TrainDisplay display(flags.quiet  ? DisplayKind::nothing
                         : flags.live ? DisplayKind::dashboard
                                      : DisplayKind::lines);
    // Static, so that signals stay handled until the process ends: a late SIGUSR1 after SIGTERM must not kill
    // a process that is about to exit.
    static const StopSignals signals;
    // Declared outside the lambda, because its destructor may wait for other processes.
    std::unique_ptr<Trainer> trainer;
    const std::shared_ptr<LauncherLink> link = LauncherLink::from_environment();
    const bool replaces_rank = link && link->replaces_rank();
    return run_in_group(flags.group.timeout, link, [&](const std::shared_ptr<ProcessGroup>& group) {
        trainer = make_trainer(flags, group, replaces_rank, display);
        return train_to_end(flags, *trainer, *group, link.get(), signals, display);
    });
}

/// Whether lost processes are replaced. Throws UsageError if --on-loss asks for what is not possible.
bool replaces_lost_ranks(const Flags& flags) {
    const std::string& choice = flags.on_loss;
    check_usage(choice.empty() || choice == "continue" || choice == "stop", "--on-loss '", choice,
                "'; expected continue or stop");
    const bool is_possible = flags.group.processes.value_or(flags.group.gpus.value_or(1)) > 1;
    check_usage(choice != "continue" || is_possible,
                "--on-loss continue: expected --processes or --gpus with 2 or more; other runs stop");
    return is_possible && choice != "stop";
}

/// Runs as the parent of the training processes.
int launch_training(const Flags& flags) {
    TrainConfig config;  // validated here, so that an error is printed once, not by every process
    if (flags.resume.empty()) {
        config = config_of(flags);
        check_outputs(flags, config);
    } else {
        resume_options(flags);
        flags.settings.apply(config);
    }
    Launch launch = make_launch(flags.group, config.device, "--restarts");
    launch.replaces_lost_ranks = replaces_lost_ranks(flags);
    launch.directory = flags.resume.empty() ? config.out : flags.resume;
    if (flags.resume.empty()) validate_settings(flags, config, launch.processes);
    if (flags.restarts) launch.restarts = checked_count("--restarts", *flags.restarts, 0);
    // --gpus overrides a run's device if the run began on the CPU.
    if (flags.group.gpus && !flags.resume.empty())
        launch.arguments.insert(launch.arguments.end(), {"--device", "cuda"});
    launch.resumes = !flags.resume.empty();
    launch.resume_arguments = launch.arguments;
    // --restart accepts a missing checkpoint at the first start only.
    std::erase(launch.resume_arguments, "--restart");
    if (flags.resume.empty()) {  // a restart reads the settings from the run's directory
        launch.resume_arguments = {"train", "--resume", config.out, "--timeout", concat(flags.group.timeout)};
        if (flags.stop_after > 0)
            launch.resume_arguments.insert(launch.resume_arguments.end(),
                                           {"--stop-after", concat(flags.stop_after)});
        if (flags.quiet) launch.resume_arguments.emplace_back("--quiet");
        if (flags.live) launch.resume_arguments.emplace_back("--live");
        if (flags.settings.given().contains("tensorboard"))
            launch.resume_arguments.insert(launch.resume_arguments.end(),
                                           {"--tensorboard", config.tensorboard});
    }
    return cli::launch(launch);
}

}  // namespace

void add_train(CommandLine& program) {
    Command command = program.add_command("train", "Train a model, or continue a run (--resume)");
    const auto flags = std::make_shared<Flags>(command);
    std::string presets = "settings to use as defaults (add --help to see them):";
    for (const std::string& name : preset_names()) presets += " " + name;
    command.add_value<std::string>("--preset", presets, [flags](const std::string& name) {
        flags->preset = name;
        flags->settings.show_defaults(preset(name));
    });
    command.add_value<std::int64_t>(
        "--depth",
        concat("one dial for sizes, batch, rates and steps: the preset depth-N, N from ", recipe::min_depth,
               " to ", recipe::max_depth),
        [flags](const std::int64_t& depth) {
            check_range("--depth", depth, {recipe::min_depth, recipe::max_depth});
            flags->depth = depth;
            flags->settings.show_defaults(preset(preset_of_depth(depth)));
        });
    command.add_path("--config", flags->config_file, "JSON file of settings, with the names of the flags");
    command.add_path("--resume", flags->resume, "directory of the run to continue");
    command.add_switch("--restart", flags->restart,
                       "with --resume: if the newest checkpoint is missing, train again from an older one or "
                       "from the start");
    command.add_value<std::int64_t>(
        "--stop-after", "stop after this step; --resume continues the run as if it had not stopped",
        [flags](const std::int64_t& step) { flags->stop_after = step; });
    add_group_flags(command, "train", flags->group);
    command.add_value("--restarts", flags->restarts,
                      "maximum number of restarts from the last valid checkpoint after failures");
    command.add_value(
        "--on-loss", flags->on_loss,
        "with --processes or --gpus, when a process dies or hangs: continue (default) with a new process in "
        "its place, or stop");
    command.add_switch("--memory", flags->memory, "print the memory plan and stop");
    command.add_switch("--print-config", flags->print_config,
                       "print the settings as JSON (as in config.json) and stop");
    command.add_switch("--quiet", flags->quiet, "print no progress");
    command.add_switch(
        "--live", flags->live,
        "draw the progress with a curve of the loss in the terminal; lines as usual if standard "
        "output is no terminal or TERM is dumb");
    command.set_action(
        [flags] {
            check_usage(!flags->live || !flags->quiet, "--live and --quiet: expected only one of them");
            check_usage(flags->on_loss.empty() || flags->group.launches(),
                        "--on-loss: needs --processes or --gpus; a run under mpirun, srun or torchrun stops");
            if (flags->print_config) return print_config(*flags);
            return flags->group.launches() || flags->restarts ? launch_training(*flags) : train(*flags);
        },
        Output::progress);
}

}  // namespace gradtile::cli
