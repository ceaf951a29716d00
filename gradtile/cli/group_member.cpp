#include <gradtile/cli/group_member.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace gradtile::cli {
namespace {

constexpr int exit_lost_peer = 3;  // beside 0, 1 (an error of this process) and 2 (the command line)

/// One line in one piece, as several processes may write to the same place.
void print_line(const std::string& line) {
    const std::string whole = concat("gradtile: ", line, '\n');
    static_cast<void>(!::write(STDERR_FILENO, whole.data(), whole.size()));
}

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
        print_line(concat("rank ", rank, ": ", line));
        end_without_others(exit_lost_peer);
    };
    try {
        return std::make_shared<ProcessGroup>(environment, std::move(options));
    } catch (const Error& error) {
        print_line(concat("rank ", environment.rank, ": ", error.what()));
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
    constexpr std::int64_t most = 4096;
    check(value >= least && value <= most, flag, ": ", value, "; expected ", least, " to ", most);
    return static_cast<int>(value);
}

Launch launch_of(const GroupFlags& flags, DeviceChoice device, const char* flag) {
    check(!flags.gpus || !flags.processes, "--gpus and --processes: expected one of them");
    const RankEnvironment environment = read_rank_environment();
    check(environment.size == 1,
          flags.gpus        ? "--gpus"
          : flags.processes ? "--processes"
                            : flag,
          ": this is already rank ", environment.rank, " of ", environment.size, " that ",
          environment.launcher, " has started; leave it out");
    Launch launch;
    launch.arguments = own_arguments_without({"--gpus", "--processes", "--restarts"});
    if (flags.gpus) {
        launch.processes = count_of("--gpus", *flags.gpus, 1);
        check(device != DeviceChoice::cpu,
              "--gpus: does not go with --device cpu; expected --processes N for processes on the CPU");
        const int present = cuda_device_count();
        check(launch.processes <= present, "--gpus: ", launch.processes, "; this host has ", present);
    } else if (flags.processes) {
        launch.processes = count_of("--processes", *flags.processes, 1);
        check(device != DeviceChoice::cuda,
              "--processes: starts processes on the CPU; expected --gpus N for GPUs");
        launch.through = Launch::Through::mpirun;
        launch.arguments.insert(launch.arguments.end(), {"--device", "cpu"});
    }
    return launch;
}

int run_in_group(double timeout, const std::function<int(const std::shared_ptr<ProcessGroup>&)>& work) {
    constexpr double longest_timeout = 1e7;
    check(timeout > 0.0 && timeout <= longest_timeout, "--timeout: ", timeout,
          "; expected seconds, more than 0 and at most ", longest_timeout);
    const RankEnvironment environment = read_rank_environment();
    if (environment.size == 1) return work(std::make_shared<ProcessGroup>());
    const std::shared_ptr<ProcessGroup> group = join_group(environment, timeout);
    try {
        const int exit_code = work(group);
        group->leave();
        return exit_code;
    } catch (const std::exception& error) {
        if (group->fail(error.what())) print_line(concat("rank ", group->rank(), ": ", error.what()));
        end_without_others(1);
    }
}

}  // namespace gradtile::cli
