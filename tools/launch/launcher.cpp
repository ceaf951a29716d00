#include <gradtile/tools/launch/launcher.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>

#include <gradtile/core/io/data_file.h>
#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/launch/launcher_link.h>
#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/socket.h>
#include <gradtile/train/run/stop_signals.h>
#include <gradtile/train/run/terminal.h>

namespace gradtile::cli {
namespace {

using std::chrono::seconds;

// The launcher's process id, for its children.
constexpr const char* launcher_variable = "GRADTILE_LAUNCHER";

// A process that learns of another's failure ends within this time; otherwise it hangs.
constexpr auto survivor_grace = seconds(5);

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

/// Starts a child in its own process group, so that Ctrl-C in a terminal reaches the launcher only. The
/// kernel kills the child when the launcher ends. The child inherits `link`, unless it is negative.
pid_t start(const std::vector<std::string>& arguments, const Environment& environment, int link) {
    std::vector<std::string> command = {os::own_program()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const pid_t launcher = ::getpid();
    const pid_t child = ::fork();
    check(child >= 0, "cannot start a process: ", std::strerror(errno));
    if (child > 0) return child;
    ::setpgid(0, 0);
    os::end_with_parent(SIGKILL);
    if (::getppid() != launcher) ::_exit(1);  // the launcher ended before the call above
    ::setenv(launcher_variable, std::to_string(launcher).c_str(), 1);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    if (link >= 0) ::fcntl(link, F_SETFD, 0);
    reset_signals();
    ::execvp(words[0], words.data());
    print_message(concat("cannot run ", words[0], ": ", std::strerror(errno)));
    ::_exit(127);
}

/// Where the ranks of one group meet.
struct Meeting {
    int port = listen_at("127.0.0.1", 0, SteadyClock::now()).port;  // a port that was free a moment ago
    std::string key = random_key();
    SteadyTime start = SteadyClock::now();
};

struct Child {
    int rank;
    pid_t process = 0;  // 0: was lost
    LineLink link = {};
    std::optional<LossReport> report = {};  // the child waits for a new group
    bool joins = true;                      // the child does not train yet, and has no state to lose
    bool discarded = false;                 // the launcher kills the child: it joins a group that is lost

    bool runs() const { return process > 0; }
    std::string name() const { return concat("rank ", rank); }
};

/// The processes of one start; wait() returns when all have ended.
class ChildProcesses {
  public:
    ChildProcesses(const Launch& launch, const std::vector<std::string>& arguments,
                   const BlockedSignals& signals)
        : launch_(launch), arguments_(arguments), signals_(signals) {
        for (int rank = 0; rank < launch.processes; ++rank)
            start_child(children_.emplace_back(Child{.rank = rank}), /*replaces_rank=*/false);
    }

    /// Returns 0, or the first failure's exit code.
    int wait() {
        while (std::ranges::any_of(children_, &Child::runs)) {
            const int signal = signals_.next(deadline_.value_or(SteadyClock::now() + patience()));
            if (signal == SIGCHLD) {
                reap();
            } else if (signal != 0) {
                forward_signal(signal);
            } else if (deadline_) {
                if (SteadyClock::now() >= *deadline_) kill_survivors();
            } else {
                kill_if_all_are_stopped();
            }
            if (launch_.replaces_lost_ranks && !deadline_) replace_lost_ranks();
        }
        return exit_code_ != 0 ? exit_code_ : loss_exit_code_;
    }
    bool was_stopped() const { return stop_signal_ != 0; }

  private:
    void start_child(Child& child, bool replaces_rank = true) {
        const std::string rank = std::to_string(child.rank), size = std::to_string(launch_.processes);
        Environment environment = {{"RANK", rank},
                                   {"WORLD_SIZE", size},
                                   {"LOCAL_RANK", rank},
                                   {"LOCAL_WORLD_SIZE", size},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", std::to_string(meeting_.port)},
                                   {"GRADTILE_RUN_KEY", meeting_.key}};
        Descriptor own, inherited;
        if (launch_.replaces_lost_ranks) {
            std::tie(own, inherited) = connected_pair();
            environment.emplace_back(link_variable, std::to_string(*inherited));
        }
        if (replaces_rank) environment.emplace_back(replaces_variable, "1");
        child.process = start(arguments_, environment, *inherited);
        child.link = LineLink(std::move(own));
        child.report.reset();
        child.joins = true;
        child.discarded = false;
    }

    std::vector<Child*> running() {
        std::vector<Child*> found;
        for (Child& child : children_)
            if (child.runs()) found.push_back(&child);
        return found;
    }

    /// How long the launcher waits for a signal before it looks at its children.
    std::chrono::milliseconds patience() {
        if (!launch_.replaces_lost_ranks) return seconds(1);
        const bool regroups = !std::ranges::all_of(children_, &Child::runs) || first_report_;
        return std::chrono::milliseconds(regroups ? 20 : 200);
    }

    void reap() {
        int status = 0;
        for (pid_t process = 0; (process = ::waitpid(-1, &status, WNOHANG)) > 0;) {
            const auto child = std::ranges::find(children_, process, &Child::process);
            if (child == children_.end()) continue;
            child->process = 0;
            const bool killed = WIFSIGNALED(status);
            const int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            if (killed && !killed_by_launcher_ && !child->discarded)
                print_message(concat(child->name(), " was ended by signal ", WTERMSIG(status)));
            read_links();
            const bool lost = all_have_trained_ && (killed || (child->joins && code == exit_lost_peer));
            if (lost && !killed_by_launcher_ && !deadline_) {
                lose(*child, code);
            } else {
                record_exit(code);
            }
        }
    }

    void record_exit(int code) {
        if (code == 0 || killed_by_launcher_) return;
        if (code == exit_lost_peer && loss_exit_code_ != 0) code = loss_exit_code_;
        // A process that only reports a lost peer may be reaped before the process that failed.
        if (exit_code_ == 0 || exit_code_ == exit_lost_peer) exit_code_ = code;
        if (!deadline_) deadline_ = SteadyClock::now() + survivor_grace;
    }

    void forward_signal(int signal) {
        if (stop_signal_ == 0) {
            stop_signal_ = signal;
            // SIGUSR1 instead of SIGTERM: when a batch system has sent SIGTERM to every process, a second one
            // would end them without saving. A process that joins may not handle the signal yet, and the
            // others stop it.
            for (const Child* child : running())
                if (!child->joins || !all_have_trained_) ::kill(child->process, SIGUSR1);
        } else if (signal != SIGHUP) {  // a closed terminal may send SIGHUP more than once
            exit_code_ = 128 + signal;
            kill_all();
        }
    }

    void kill_if_all_are_stopped() {
        const SteadyTime now = SteadyClock::now();
        const std::vector<Child*> children = running();
        if (children.size() < 2 || !std::ranges::all_of(children, [](const Child* child) {
                return os::is_stopped(child->process);
            })) {
            stopped_since_.reset();
        } else if (!stopped_since_) {
            stopped_since_ = now;
        } else if (now - *stopped_since_ >= timeout()) {
            print_message(concat("all ", children.size(), " processes were stopped for ", launch_.timeout,
                                 " s and are killed"));
            exit_code_ = exit_lost_peer;
            kill_all();
        }
    }

    void kill_survivors() {
        if (!killed_by_launcher_ && exit_code_ != 0 && stop_signal_ == 0) {
            std::string names;
            for (const Child* child : running()) names += concat(names.empty() ? "" : ", ", child->name());
            print_message(
                concat(names, " still ran ", survivor_grace.count(), " s after the failure and is killed"));
        }
        kill_all();
    }

    void kill_all() {
        for (const Child* child : running()) ::kill(child->process, SIGKILL);
        killed_by_launcher_ = true;
        deadline_ = SteadyClock::now() + seconds(5);
    }

    // ---- Lost ranks ----

    void lose(Child& child, int code) {
        if (loss_exit_code_ == 0) loss_exit_code_ = code;
        if (std::ranges::none_of(children_, [](const Child& c) { return c.runs() && !c.joins; }))
            return give_up("every rank that trained was lost");
        // If the others still connect, they wait for the process where they meet; otherwise they will report
        // the loss, and the new process is discarded.
        const bool is_awaited = std::ranges::any_of(children_, &Child::joins) && code != exit_lost_peer;
        if (is_awaited && !child.discarded && may_replace()) start_child(child);
    }

    /// Counts a loss. Returns false, and ends the run, when losses follow each other without a step between.
    bool may_replace() {
        if (++losses_without_step_ <= max_losses_without_step) return true;
        give_up(concat("ranks were lost ", losses_without_step_, " times without a step between"));
        return false;
    }

    void give_up(const std::string& why) {
        print_message(concat(why, "; the run ends"));
        exit_code_ = loss_exit_code_ != 0 ? loss_exit_code_ : exit_lost_peer;
        kill_all();
    }

    void read_links() {
        for (Child& child : children_)
            while (const std::optional<std::string> line = child.link.next())
                if (*line == "trains") {
                    child.joins = false;
                } else {
                    receive(child, loss_report_from(*line));
                }
        all_have_trained_ = all_have_trained_ || std::ranges::none_of(children_, &Child::joins);
    }

    void receive(Child& child, LossReport report) {
        const SteadyTime now = SteadyClock::now();
        const bool may_meet =
            report.phase == RankLost::Phase::start && !first_report_ && now - meeting_.start < timeout();
        if (may_meet) {  // rank 0 was lost while the others connected, and is replaced
            send_to_meeting(child);
            return;
        }
        child.report = std::move(report);
        if (!first_report_) first_report_ = now;
    }

    std::chrono::duration<double> timeout() const { return std::chrono::duration<double>(launch_.timeout); }

    void send_to_meeting(Child& child) const { child.link.send(concat(meeting_.port, ' ', meeting_.key)); }

    /// Starts new processes once every other process has reported the loss and waits.
    void replace_lost_ranks() {
        read_links();
        if (!first_report_) return;
        reap();
        if (deadline_) return;
        const std::vector<Child*> children = running();
        const auto waits = [](const Child* child) { return child->report.has_value(); };
        if (std::ranges::all_of(children, waits)) return start_meeting(children);
        const bool is_late = SteadyClock::now() - *first_report_ >= timeout() + survivor_grace;
        for (Child* child : children) {
            if (waits(child)) continue;
            const bool is_named = std::ranges::any_of(children, [&](const Child* other) {
                return waits(other) && other->report->rank == child->rank;
            });
            // A process that joins the lost group has no state: another one will join the next group.
            child->discarded = child->joins;
            if (is_named || is_late || child->joins) ::kill(child->process, SIGKILL);
        }
    }

    void start_meeting(const std::vector<Child*>& children) {
        first_report_.reset();
        if (children.empty()) return;  // wait() returns
        std::int64_t step = -1;
        for (const Child* child : children) step = std::max(step, child->report->step);
        const bool is_complete = std::ranges::all_of(children_, &Child::runs);
        if (step > last_step_) losses_without_step_ = 0;
        last_step_ = std::max(step, last_step_);
        if (!may_replace()) return;
        print_message(concat(children.front()->report->line, "; the run continues",
                             is_complete ? "" : " with a new process"));
        meeting_ = Meeting();
        for (Child* child : children) {
            child->report.reset();
            send_to_meeting(*child);
        }
        for (Child& child : children_)
            if (!child.runs()) start_child(child);
        loss_exit_code_ = 0;
    }

    // A program that fails again in the same step is not started endlessly.
    static constexpr int max_losses_without_step = 5;

    const Launch& launch_;
    const std::vector<std::string>& arguments_;
    const BlockedSignals& signals_;
    Meeting meeting_;
    std::vector<Child> children_;  // by rank
    std::optional<SteadyTime> deadline_ = {}, stopped_since_ = {}, first_report_ = {};
    int exit_code_ = 0, stop_signal_ = 0;
    bool killed_by_launcher_ = false;
    bool all_have_trained_ = false;  // before, a lost rank ends the run
    int loss_exit_code_ = 0;         // of the first lost rank
    std::int64_t last_step_ = -1;    // the newest step in which a rank was lost
    int losses_without_step_ = 0;
};

bool contains_run(const std::filesystem::path& directory) {
    return !directory.empty() && (exists(directory / "config.json") || exists(directory / "checkpoints"));
}

}  // namespace

int launch(const Launch& launch) {
    // Checked here, because a process that cannot open a connection leaves the others waiting for it.
    constexpr std::size_t connections = 4;
    const auto processes = static_cast<std::size_t>(launch.processes);
    if (processes > 1) require_open_files(connections * processes, concat(processes, " processes"));
    const BlockedSignals signals;
    // Starting a new run in a directory that already contains a run fails; that other run must not be
    // resumed.
    const bool may_restart = launch.resumes || !contains_run(launch.directory);
    for (int restart = 0;; ++restart) {
        const bool resumes = restart > 0 && contains_run(launch.directory);
        const std::vector<std::string>& arguments = resumes ? launch.resume_arguments : launch.arguments;
        ChildProcesses children(launch, arguments, signals);
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
