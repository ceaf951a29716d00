// gradtile train: a new run from a preset, a config file and flags, or an old one going on; as one process,
// as one of several that a launcher has started, or as the launcher.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/launcher.h>
#include <gradtile/cli/setting_flags.h>
#include <gradtile/parallel/process_group.h>
#include <gradtile/train/device_peak.h>
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
    bool memory = false, quiet = false;
    double timeout = ProcessGroupOptions{}.timeout;
    std::optional<std::int64_t> gpus, processes, restarts;
};

constexpr int exit_lost_peer = 3;  // beside 0, 1 (an error of this process) and 2 (the command line)

/// Preset, then config file, then flags: the later wins.
TrainConfig config_of(const Flags& flags) {
    TrainConfig config;
    if (!flags.preset.empty()) config = preset(flags.preset);
    if (!flags.config_file.empty()) apply_config_file(config, flags.config_file);
    flags.settings.apply(config);
    if (flags.memory) config.out.clear();  // only a look: no run begins
    return config;
}

Resume resume_of(const Flags& flags) {
    check(flags.preset.empty() && flags.config_file.empty(),
          "--resume: goes on with the run's own settings; --preset and --config do not go with it");
    TrainConfig changed;
    flags.settings.apply(changed);
    Resume resume{.directory = flags.resume};
    for (const std::string& name : flags.settings.given()) {
        if (name == "steps") {
            resume.steps = changed.steps;
        } else if (name == "save-every") {
            resume.save_every = changed.save_every;
        } else if (name == "threads") {
            resume.threads = changed.threads;
        } else if (name == "device") {
            resume.device = changed.device;
        } else {
            throw Error(concat("--", name,
                               ": cannot change when a run is resumed; steps, stop-after, save-every, "
                               "threads and device can"));
        }
    }
    return resume;
}

void print_setup(const Trainer& trainer) {
    const TrainConfig& c = trainer.config();
    std::cout << trainer.memory_plan() << "training on " << trainer.train_tokens()
              << " tokens, validating on " << trainer.validation_tokens() << "; vocabulary "
              << c.model.vocabulary << ", " << c.accumulation_steps() << " x " << c.micro_batch_size()
              << " sequences of " << c.model.context << " tokens a step, " << name_of(c.dtype) << " on "
              << trainer.model().ctx.device() << '\n';
}

/// How near the model came to the grammar that wrote the validation stories.
void print_source(double val_loss, double source_nll) {
    std::printf(
        "the stories' source itself reaches %.4f; the model is %.4f above it (nats per character)\n"
        "  part of that gap is the short context: the source remembers a story from its first word\n",
        source_nll, val_loss - source_nll);
}

std::unique_ptr<Trainer> make_trainer(const Flags& flags, const std::shared_ptr<ProcessGroup>& group) {
    check(group->is_alone(), "training with ", group->size(), " processes: not in this build yet");
    if (!flags.resume.empty()) return std::make_unique<Trainer>(resume_of(flags), print_message);
    return std::make_unique<Trainer>(config_of(flags), print_message);
}

/// Trains to the end; the exit code. Of several processes only rank 0 speaks.
int train_to_end(const Flags& flags, Trainer& trainer, const ProcessGroup& group,
                 const StopSignals& signals) {
    const bool quiet = flags.quiet || !group.is_root();
    if (group.is_root() && (flags.memory || !quiet)) print_setup(trainer);
    if (flags.memory) return 0;

    const TrainConfig& config = trainer.config();
    std::optional<Progress> progress;
    if (!quiet) {
        progress.emplace(
            stdout, ProgressOptions{.first_step = trainer.step(),
                                    .last_step = flags.stop_after > 0
                                                     ? std::min(flags.stop_after, trainer.last_step())
                                                     : trainer.last_step(),
                                    .flops_per_token = flops_per_token(config.model, config.model.context),
                                    .peak_flops = peak_flops(trainer.model().ctx.device(),
                                                             storage_dtype(config.dtype), config.tf32)});
        trainer.on_step([&](const StepReport& report) { (*progress)(report); });
    }
    trainer.stop_when([&] { return signals.requested(); });
    const RunSummary summary = trainer.run(flags.stop_after);
    progress.reset();
    if (!group.is_root()) return 0;

    if (summary.reason == RunSummary::Reason::requested)
        std::cout << "stopped by signal " << signals.signal() << " after step " << summary.step << '\n';
    if (summary.val_loss)
        std::printf("validation loss %.4f (best %.4f)\n", *summary.val_loss,
                    summary.best_val_loss.value_or(*summary.val_loss));
    if (summary.val_loss && trainer.source_nll()) print_source(*summary.val_loss, *trainer.source_nll());
    if (!summary.checkpoint.empty()) {
        std::cout << "checkpoint: " << summary.checkpoint.string() << "\nmetrics:    " << config.out
                  << "/metrics.jsonl\nloss curve: " << config.out << "/loss.svg\n";
    }
    return summary.saved || config.out.empty() ? 0 : 1;
}

/// One line in one piece, as several processes may write to the same place.
void print_line(const std::string& line) {
    const std::string whole = concat("gradtile: ", line, '\n');
    static_cast<void>(!::write(STDERR_FILENO, whole.data(), whole.size()));
}

/// Without destructors, and without MPI's own end: both may wait for others that are gone.
[[noreturn]] void end_at_once(int exit_code) {
    // Whoever holds the stream may be stuck.
    if (::ftrylockfile(stdout) == 0) ::fflush_unlocked(stdout);
    ::_exit(exit_code);
}

std::shared_ptr<ProcessGroup> join_group(const RankEnvironment& environment, double timeout) {
    ProcessGroupOptions options{.timeout = timeout};
    options.on_loss = [rank = environment.rank](const std::string& line) {
        print_line(concat("rank ", rank, ": ", line));
        end_at_once(exit_lost_peer);
    };
    try {
        return std::make_shared<ProcessGroup>(environment, std::move(options));
    } catch (const Error& error) {
        print_line(concat("rank ", environment.rank, ": ", error.what()));
        end_at_once(exit_lost_peer);
    }
}

/// This process's part in the training.
int train(const Flags& flags) {
    check(flags.stop_after >= 0, "--stop-after: ", flags.stop_after, "; expected a step number");
    constexpr double longest_timeout = 1e7;
    check(flags.timeout > 0.0 && flags.timeout <= longest_timeout, "--timeout: ", flags.timeout,
          "; expected seconds, more than 0 and at most ", longest_timeout);
    const StopSignals signals;
    const RankEnvironment environment = read_rank_environment();
    if (environment.size == 1) {
        const auto alone = std::make_shared<ProcessGroup>();
        return train_to_end(flags, *make_trainer(flags, alone), *alone, signals);
    }
    const std::shared_ptr<ProcessGroup> group = join_group(environment, flags.timeout);
    std::unique_ptr<Trainer> trainer;  // outlives an error: its end may wait for the others
    try {
        trainer = make_trainer(flags, group);
        const int exit_code = train_to_end(flags, *trainer, *group, signals);
        group->leave();
        return exit_code;
    } catch (const std::exception& error) {
        if (group->fail(error.what())) print_line(concat("rank ", group->rank(), ": ", error.what()));
        end_at_once(1);
    }
}

// ---- Launching ----

/// Of a flag that only counts something.
int count_of(const char* flag, std::int64_t value, std::int64_t least) {
    constexpr std::int64_t most = 4096;
    check(value >= least && value <= most, flag, ": ", value, "; expected ", least, " to ", most);
    return static_cast<int>(value);
}

/// As the parent of the processes that train.
int launch_training(const Flags& flags) {
    check(!flags.gpus || !flags.processes, "--gpus and --processes: expected one of them");
    const RankEnvironment environment = read_rank_environment();
    const char* const flag = flags.gpus ? "--gpus" : flags.processes ? "--processes" : "--restarts";
    check(environment.size == 1, flag, ": this is already rank ", environment.rank, " of ", environment.size,
          " that ", environment.launcher, " has started; leave it out");

    TrainConfig config;  // what is wrong with it is said once, here
    if (flags.resume.empty()) {
        config = config_of(flags);
    } else {
        resume_of(flags);
        flags.settings.apply(config);
    }
    Launch launch{.directory = flags.resume.empty() ? config.out : flags.resume};
    if (flags.gpus) {
        launch.processes = count_of("--gpus", *flags.gpus, 1);
        check(config.device != DeviceChoice::cpu,
              "--gpus: does not go with --device cpu; expected --processes N for processes on the CPU");
        const int present = cuda_device_count();
        check(launch.processes <= present, "--gpus: ", launch.processes, "; this host has ", present);
    } else if (flags.processes) {
        launch.processes = count_of("--processes", *flags.processes, 1);
        check(config.device != DeviceChoice::cuda,
              "--processes: starts processes on the CPU; expected --gpus N for GPUs");
        launch.through = Launch::Through::mpirun;
    }
    if (flags.resume.empty()) validate(config, launch.processes);
    if (flags.restarts) launch.restarts = count_of("--restarts", *flags.restarts, 0);

    launch.arguments = own_arguments_without({"--gpus", "--processes", "--restarts"});
    if (flags.processes) launch.arguments.insert(launch.arguments.end(), {"--device", "cpu"});
    launch.resume_arguments = launch.arguments;
    if (flags.resume.empty()) {  // the run knows its settings
        launch.resume_arguments = {"train", "--resume", config.out, "--timeout", concat(flags.timeout)};
        if (flags.stop_after > 0)
            launch.resume_arguments.insert(launch.resume_arguments.end(),
                                           {"--stop-after", concat(flags.stop_after)});
        if (flags.quiet) launch.resume_arguments.emplace_back("--quiet");
    }
    return cli::launch(launch);
}

}  // namespace

void add_train(CommandLine& program) {
    Command command = program.add_command("train", "Train a model, or go on with a run (--resume)");
    const auto flags = std::make_shared<Flags>(command);
    std::string presets = "settings to start from:";
    for (const std::string& name : preset_names()) presets += " " + name;
    command.add_value("--preset", flags->preset, presets);
    command.add_value("--config", flags->config_file, "JSON file of settings, named as the flags are");
    command.add_value("--resume", flags->resume, "directory of a run to go on with");
    command.add_value<std::int64_t>("--stop-after",
                                    "stop after this step; a later --resume goes on unchanged",
                                    [flags](const std::int64_t& step) { flags->stop_after = step; });
    command.add_value("--timeout", flags->timeout,
                      "of several processes: seconds one may be silent or waited for");
    const auto count = [&](const char* flag, const char* help, std::optional<std::int64_t>& value) {
        command.add_value<std::int64_t>(flag, help, [flags, &value](const std::int64_t& n) { value = n; });
    };
    count("--gpus", "train on this many GPUs of this host, with a process for each", flags->gpus);
    count("--processes", "train on the CPU with this many processes, through mpirun", flags->processes);
    count("--restarts", "after a failure start again from the last sound checkpoint, at most this often",
          flags->restarts);
    command.add_switch("--memory", flags->memory, "print the memory plan and stop");
    command.add_switch("--quiet", flags->quiet, "no progress line");
    command.on_chosen([flags] {
        return flags->gpus || flags->processes || flags->restarts ? launch_training(*flags) : train(*flags);
    });
}

}  // namespace gradtile::cli
