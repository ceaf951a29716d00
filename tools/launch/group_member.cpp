#include <gradtile/tools/launch/group_member.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {
namespace {

constexpr Range timeout_range{.min = 0, .max = 1e7, .min_is_open = true};  // seconds

/// mpirun kills all processes 0.1 seconds after the first one ends. Each process waits one second so that
/// every message is printed before that.
constexpr auto message_grace = std::chrono::seconds(1);

/// Ends the process without destructors and without MPI_Finalize: both may wait for processes that are gone.
[[noreturn]] void exit_without_cleanup(int exit_code) {
    std::this_thread::sleep_for(message_grace);
    // Does not wait for the stream's lock, because the thread that holds it may be stuck.
    if (::ftrylockfile(stdout) == 0) ::fflush_unlocked(stdout);
    ::_exit(exit_code);
}

std::shared_ptr<ProcessGroup> join_group(const RankEnvironment& environment, double timeout,
                                         const std::shared_ptr<LauncherLink>& link) {
    ProcessGroupOptions options{.timeout = timeout};
    if (link) {
        options.replaces_rank = link->replaces_rank();
        options.next_environment = [environment, link](const RankLost& loss, std::int64_t step) {
            return link->next_environment(environment, loss, step);
        };
    }
    options.on_loss = [rank = environment.rank](const std::string& line) {
        print_message(concat("rank ", rank, ": ", line));
        exit_without_cleanup(exit_lost_peer);
    };
    try {
        return std::make_shared<ProcessGroup>(environment, std::move(options));
    } catch (const Error& error) {
        print_message(concat("rank ", environment.rank, ": ", error.what()));
        exit_without_cleanup(exit_lost_peer);
    }
}

}  // namespace

void add_group_flags(Command& command, const std::string& what, GroupFlags& flags) {
    command.add_value("--timeout", flags.timeout,
                      "with several processes: maximum seconds without a heartbeat or in one wait");
    command.add_value("--gpus", flags.gpus, what + " on this many GPUs of this host, one process each");
    command.add_value("--processes", flags.processes,
                      what + " on the CPU with this many processes of this host");
}

int checked_count(const char* flag, std::int64_t value, std::int64_t min_value) {
    check_flag(flag, value, {static_cast<double>(min_value), 4096});
    return static_cast<int>(value);
}

Launch make_launch(const GroupFlags& flags, DeviceChoice device, const char* flag) {
    check_flag("--timeout", flags.timeout, timeout_range);
    check_usage(!flags.gpus || !flags.processes, "--gpus and --processes: expected only one of them");
    const RankEnvironment environment = read_rank_environment();
    check_usage(environment.size == 1,
                flags.gpus        ? "--gpus"
                : flags.processes ? "--processes"
                                  : flag,
                ": this process is already rank ", environment.rank, " of ", environment.size,
                ", started by ", environment.launcher, "; remove the flag");
    Launch launch{.timeout = flags.timeout};
    launch.arguments =
        without_flags(CommandLine::arguments(), {"--gpus", "--processes", "--restarts", "--on-loss"});
    if (flags.gpus) {
        launch.processes = checked_count("--gpus", *flags.gpus, 1);
        check_usage(device != DeviceChoice::cpu,
                    "--gpus: not with --device cpu; expected --processes N for processes on the CPU");
        const int present = cuda_device_count();
        check(launch.processes <= present, "--gpus: ", launch.processes, "; expected at most the ", present,
              " of this host");
    } else if (flags.processes) {
        launch.processes = checked_count("--processes", *flags.processes, 1);
        check_usage(device != DeviceChoice::cuda,
                    "--processes: starts processes on the CPU; expected --gpus N for GPUs");
        launch.arguments.insert(launch.arguments.end(), {"--device", "cpu"});
    }
    return launch;
}

int run_in_group(double timeout, const std::shared_ptr<LauncherLink>& link,
                 const std::function<int(const std::shared_ptr<ProcessGroup>&)>& work) {
    check_flag("--timeout", timeout, timeout_range);
    const RankEnvironment environment = read_rank_environment();
    if (environment.size == 1) return work(std::make_shared<ProcessGroup>());
    require_key(environment);
    const std::shared_ptr<ProcessGroup> group = join_group(environment, timeout, link);
    try {
        const int exit_code = work(group);
        group->leave();
        return exit_code;
    } catch (const RankLost& loss) {
        print_message(concat("rank ", group->rank(), ": ", loss.what()));
        exit_without_cleanup(exit_lost_peer);
    } catch (const std::exception& error) {
        const std::string message = message_of(error);
        if (group->fail(message)) print_message(concat("rank ", group->rank(), ": ", message));
        exit_without_cleanup(exit_code_of(error));
    }
}

}  // namespace gradtile::cli
