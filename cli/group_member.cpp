#include <gradtile/cli/group_member.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include <gradtile/cli/usage_error.h>
#include <gradtile/core/text/message.h>

namespace gradtile::cli {
namespace {

constexpr Range timeout_range{.least = 0, .most = 1e7, .least_is_open = true};  // seconds

constexpr int exit_lost_peer = 3;  // beside 0, 1 (an error of this process) and 2 (the command line)

/// mpirun ends all processes a tenth of a second after the first has ended: by then each is to have said why.
constexpr auto time_to_speak = std::chrono::seconds(1);

/// Without destructors, and without MPI's own end: both may wait for others that are gone.
[[noreturn]] void end_without_others(int exit_code) {
    std::this_thread::sleep_for(time_to_speak);
    // Whoever holds the stream may be stuck.
    if (::ftrylockfile(stdout) == 0) ::fflush_unlocked(stdout);
    ::_exit(exit_code);
}

std::shared_ptr<ProcessGroup> join_group(const RankEnvironment& environment, double timeout) {
    ProcessGroupOptions options{.timeout = timeout};
    options.on_loss = [rank = environment.rank](const std::string& line) {
        print_message(concat("rank ", rank, ": ", line));
        end_without_others(exit_lost_peer);
    };
    try {
        return std::make_shared<ProcessGroup>(environment, std::move(options));
    } catch (const Error& error) {
        print_message(concat("rank ", environment.rank, ": ", error.what()));
        end_without_others(exit_lost_peer);
    }
}

}  // namespace

void add_group_flags(Command& command, const std::string& what, GroupFlags& flags) {
    command.add_value("--timeout", flags.timeout,
                      "of several processes: seconds one may be silent or waited for");
    const auto count = [&](const char* flag, const std::string& help, std::optional<std::int64_t>& value) {
        command.add_value<std::int64_t>(flag, help, [&value](const std::int64_t& n) { value = n; });
    };
    count("--gpus", what + " on this many GPUs of this host, with a process for each", flags.gpus);
    count("--processes", what + " on the CPU with this many processes, through mpirun", flags.processes);
}

int count_of(const char* flag, std::int64_t value, std::int64_t least) {
    check_flag(flag, value, {static_cast<double>(least), 4096});
    return static_cast<int>(value);
}

Launch launch_of(const GroupFlags& flags, DeviceChoice device, const char* flag) {
    check_flag("--timeout", flags.timeout, timeout_range);
    check_usage(!flags.gpus || !flags.processes, "--gpus and --processes: expected one of them");
    const RankEnvironment environment = read_rank_environment();
    check_usage(environment.size == 1,
                flags.gpus        ? "--gpus"
                : flags.processes ? "--processes"
                                  : flag,
                ": this is already rank ", environment.rank, " of ", environment.size, " that ",
                environment.launcher, " has started; leave it out");
    Launch launch;
    launch.arguments = own_arguments_without({"--gpus", "--processes", "--restarts"});
    if (flags.gpus) {
        launch.processes = count_of("--gpus", *flags.gpus, 1);
        check_usage(device != DeviceChoice::cpu,
                    "--gpus: does not go with --device cpu; expected --processes N for processes on the CPU");
        const int present = cuda_device_count();
        check(launch.processes <= present, "--gpus: ", launch.processes, "; this host has ", present);
    } else if (flags.processes) {
        launch.processes = count_of("--processes", *flags.processes, 1);
        check_usage(device != DeviceChoice::cuda,
                    "--processes: starts processes on the CPU; expected --gpus N for GPUs");
        launch.through = Launch::Through::mpirun;
        launch.arguments.insert(launch.arguments.end(), {"--device", "cpu"});
    }
    return launch;
}

int run_in_group(double timeout, const std::function<int(const std::shared_ptr<ProcessGroup>&)>& work) {
    check_flag("--timeout", timeout, timeout_range);
    const RankEnvironment environment = read_rank_environment();
    if (environment.size == 1) return work(std::make_shared<ProcessGroup>());
    require_key(environment);
    const std::shared_ptr<ProcessGroup> group = join_group(environment, timeout);
    try {
        const int exit_code = work(group);
        group->leave();
        return exit_code;
    } catch (const std::exception& error) {
        const std::string message = message_of(error);
        if (group->fail(message)) print_message(concat("rank ", group->rank(), ": ", message));
        end_without_others(exit_code_of(error));
    }
}

}  // namespace gradtile::cli
