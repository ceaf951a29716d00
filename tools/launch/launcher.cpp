#include <gradtile/tools/launch/launcher.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/socket.h>
#include <gradtile/train/run/terminal.h>

namespace gradtile::cli {
namespace {

using std::chrono::seconds;

// The launcher's process id, for its children.
constexpr const char* launcher_variable = "GRADTILE_LAUNCHER";

// A process that learns of another's failure ends within this time; otherwise it hangs.
constexpr auto survivor_grace = seconds(5);

bool is_ignored(int signal) {
    struct sigaction action {};
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// Blocks the launcher's signals; next() returns them one by one. A signal that was ignored at the start
/// (nohup, a shell's background job) stays ignored. A SIGHUP sent because the terminal closed is ignored too,
/// because it is not a request to stop the run.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigemptyset(&set_);
        for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP})
            if (!is_ignored(number)) sigaddset(&set_, number);
        sigaddset(&set_, SIGCHLD);
        ::signal(SIGCHLD, [](int) {});  // macOS drops a blocked SIGCHLD that has no handler
        sigprocmask(SIG_BLOCK, &set_, &former_);
    }
    ~BlockedSignals() { sigprocmask(SIG_SETMASK, &former_, nullptr); }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

    /// The next signal before the deadline; 0: none.
    int next(SteadyTime deadline) const {
        const auto left = std::max(deadline - SteadyClock::now(), SteadyClock::duration::zero());
        const os::ReceivedSignal signal = os::wait_for_signal(set_, left);
        return signal.number == SIGHUP && terminal_.has_sent(signal) ? 0 : signal.number;
    }

  private:
    StartTerminal terminal_;
    sigset_t set_{}, former_{};
};

/// Called in a child before exec: unblocks all signals and resets their actions. Signals that a shell or
/// nohup ignores for its programs stay ignored.
void reset_signals() {
    for (int number = 1; number < NSIG; ++number) {
        const bool may_stay_ignored = number == SIGHUP || number == SIGINT || number == SIGQUIT;
        if (!may_stay_ignored || !is_ignored(number)) ::signal(number, SIG_DFL);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
}

using Environment = std::vector<std::pair<std::string, std::string>>;

struct Child {
    pid_t process;
    std::string name;
};

/// Starts a child in its own process group, so that Ctrl-C in a terminal reaches the launcher only. The
/// kernel kills the child when the launcher ends.
pid_t start(const std::vector<std::string>& command, const Environment& environment) {
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    const pid_t launcher = ::getpid();
    const pid_t child = ::fork();
    check(child >= 0, "cannot start a process: ", std::strerror(errno));
    if (child > 0) return child;
    ::setpgid(0, 0);
    os::end_with_parent(SIGKILL);
    if (::getppid() != launcher) ::_exit(1);  // the launcher ended before the call above
    ::setenv(launcher_variable, std::to_string(launcher).c_str(), 1);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    reset_signals();
    ::execvp(arguments[0], arguments.data());
    print_message(concat("cannot run ", command[0], ": ", std::strerror(errno)));
    ::_exit(127);
}

std::vector<Child> start_ranks(int processes, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {os::own_program()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const int port = listen_at("127.0.0.1", 0, SteadyClock::now()).port;  // a port that was free a moment ago
    const std::string key = random_key();
    std::vector<Child> children;
    for (int rank = 0; rank < processes; ++rank) {
        const std::string size = std::to_string(processes);
        const Environment environment = {{"RANK", std::to_string(rank)},
                                         {"WORLD_SIZE", size},
                                         {"LOCAL_RANK", std::to_string(rank)},
                                         {"LOCAL_WORLD_SIZE", size},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", std::to_string(port)},
                                         {"GRADTILE_RUN_KEY", key}};
        children.push_back({start(command, environment), concat("rank ", rank)});
    }
    return children;
}

/// The processes of one start; wait() returns when all have ended.
class ChildProcesses {
  public:
    ChildProcesses(std::vector<Child> children, const Launch& launch, const BlockedSignals& signals)
        : children_(std::move(children)), launch_(launch), signals_(signals) {}

    /// Returns 0, or the first failure's exit code.
    int wait() {
        while (!children_.empty()) {
            const int signal = signals_.next(deadline_.value_or(SteadyClock::now() + seconds(1)));
            if (signal == SIGCHLD) {
                reap();
            } else if (signal != 0) {
                forward_signal(signal);
            } else if (deadline_) {
                if (SteadyClock::now() >= *deadline_) kill_survivors();
            } else {
                kill_if_all_are_stopped();
            }
        }
        return exit_code_;
    }
    bool was_stopped() const { return stop_signal_ != 0; }

  private:
    void reap() {
        int status = 0;
        for (pid_t process = 0; (process = ::waitpid(-1, &status, WNOHANG)) > 0;) {
            const auto child = std::find_if(children_.begin(), children_.end(),
                                            [&](const Child& c) { return c.process == process; });
            if (child == children_.end()) continue;
            const bool killed = WIFSIGNALED(status);
            if (killed && !killed_by_launcher_)
                print_message(concat(child->name, " was ended by signal ", WTERMSIG(status)));
            record_exit(killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
            children_.erase(child);
        }
    }

    void record_exit(int code) {
        if (code == 0 || killed_by_launcher_) return;
        // A process that only reports a lost peer may be reaped before the process that failed.
        if (exit_code_ == 0 || exit_code_ == exit_lost_peer) exit_code_ = code;
        if (!deadline_) deadline_ = SteadyClock::now() + survivor_grace;
    }

    void forward_signal(int signal) {
        if (stop_signal_ == 0) {
            stop_signal_ = signal;
            // SIGUSR1 instead of SIGTERM: when a batch system has sent SIGTERM to every process, a second one
            // would end them without saving.
            for (const Child& child : children_) ::kill(child.process, SIGUSR1);
        } else if (signal != SIGHUP) {  // a closed terminal may send SIGHUP more than once
            exit_code_ = 128 + signal;
            kill_all();
        }
    }

    void kill_if_all_are_stopped() {
        const SteadyTime now = SteadyClock::now();
        if (children_.size() < 2 || !std::ranges::all_of(children_, os::is_stopped, &Child::process)) {
            stopped_since_.reset();
        } else if (!stopped_since_) {
            stopped_since_ = now;
        } else if (now - *stopped_since_ >= std::chrono::duration<double>(launch_.timeout)) {
            print_message(concat("all ", children_.size(), " processes were stopped for ", launch_.timeout,
                                 " s and are killed"));
            exit_code_ = exit_lost_peer;
            kill_all();
        }
    }

    void kill_survivors() {
        if (!killed_by_launcher_ && exit_code_ != 0 && stop_signal_ == 0) {
            std::string names;
            for (const Child& child : children_) names += concat(names.empty() ? "" : ", ", child.name);
            print_message(
                concat(names, " still ran ", survivor_grace.count(), " s after the failure and is killed"));
        }
        kill_all();
    }

    void kill_all() {
        for (const Child& child : children_) ::kill(child.process, SIGKILL);
        killed_by_launcher_ = true;
        deadline_ = SteadyClock::now() + seconds(5);
    }

    std::vector<Child> children_;
    const Launch& launch_;
    const BlockedSignals& signals_;
    std::optional<SteadyTime> deadline_ = {}, stopped_since_ = {};
    int exit_code_ = 0, stop_signal_ = 0;
    bool killed_by_launcher_ = false;
};

bool contains_run(const std::filesystem::path& directory) {
    return !directory.empty() && (exists(directory / "config.json") || exists(directory / "checkpoints"));
}

}  // namespace

int launch(const Launch& launch) {
    const BlockedSignals signals;
    // Starting a new run in a directory that already contains a run fails; that other run must not be
    // resumed.
    const bool may_restart = launch.resumes || !contains_run(launch.directory);
    for (int restart = 0;; ++restart) {
        const bool resumes = restart > 0 && contains_run(launch.directory);
        const std::vector<std::string>& arguments = resumes ? launch.resume_arguments : launch.arguments;
        ChildProcesses children(start_ranks(launch.processes, arguments), launch, signals);
        const int exit_code = children.wait();
        const bool is_final = exit_code == 0 || exit_code == exit_usage;
        if (is_final || !may_restart || children.was_stopped() || restart == launch.restarts)
            return exit_code;
        print_message(concat(
            "failed with code ", exit_code, "; restart ", restart + 1, " of ", launch.restarts,
            contains_run(launch.directory) ? " from the last sound checkpoint" : " from the beginning"));
    }
}

std::vector<std::string> without_flags(const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& flags) {
    std::vector<std::string> kept;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const std::string name = arguments[i].substr(0, arguments[i].find('='));
        const bool removed = std::find(flags.begin(), flags.end(), name) != flags.end();
        if (!removed) {
            kept.push_back(arguments[i]);
        } else if (name == arguments[i]) {
            ++i;  // skips the flag's value
        }
    }
    return kept;
}

bool has_launcher() {
    const char* const launcher = std::getenv(launcher_variable);
    return launcher != nullptr && launcher == std::to_string(::getppid());
}

}  // namespace gradtile::cli
