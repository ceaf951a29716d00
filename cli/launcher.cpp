#include <gradtile/cli/launcher.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/socket.h>
#include <gradtile/train/terminal.h>

namespace gradtile::cli {
namespace {

using std::chrono::seconds;

// A process that another one's failure has reached ends within 5 s; who has not by then, will not.
constexpr auto grace_of_survivors = seconds(5);
// What a process ends with that was only told of another's failure.
constexpr int told_of_a_loss = 3;
constexpr int misunderstood_command_line = 2;

void say(const std::string& line) {
    print_message(line);
}

bool is_ignored(int signal) {
    struct sigaction action {};
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// The launcher's signals wait until it asks for them. One that it was told to ignore (nohup, a shell's
/// background) stays ignored, and so is a SIGHUP of the terminal's end: nobody has asked the run to stop.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigemptyset(&set_);
        for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP})
            if (!is_ignored(number)) sigaddset(&set_, number);
        sigaddset(&set_, SIGCHLD);
        sigprocmask(SIG_BLOCK, &set_, &former_);
    }
    ~BlockedSignals() { sigprocmask(SIG_SETMASK, &former_, nullptr); }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

    /// The next one that comes before the deadline; 0: none.
    int next(const std::optional<SteadyTime>& deadline) const {
        siginfo_t signal{};
        const int number = wait(deadline, signal);
        return number < 0 || (number == SIGHUP && terminal_.has_sent(signal)) ? 0 : number;
    }

  private:
    int wait(const std::optional<SteadyTime>& deadline, siginfo_t& signal) const {
        if (!deadline) return sigwaitinfo(&set_, &signal);
        const auto left = std::max(*deadline - SteadyClock::now(), SteadyClock::duration::zero());
        const auto whole = std::chrono::floor<seconds>(left);
        const timespec time{whole.count(), std::chrono::nanoseconds(left - whole).count()};
        return sigtimedwait(&set_, &signal, &time);
    }

    StartTerminal terminal_;
    sigset_t set_{}, former_{};
};

/// Of a child, before it becomes another program: no signal is blocked, whatever this program blocks, and
/// none is ignored but those that a shell or nohup lets its programs ignore.
void reset_signals() {
    for (int number = 1; number < NSIG; ++number) {
        const bool is_the_shells = number == SIGHUP || number == SIGINT || number == SIGQUIT;
        if (!is_the_shells || !is_ignored(number)) ::signal(number, SIG_DFL);
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

std::string own_program() {
    return std::filesystem::read_symlink("/proc/self/exe").string();
}

/// In a process group of its own, so that a terminal's Ctrl-C reaches the launcher alone; it ends with the
/// launcher, whatever ends that.
pid_t start(const std::vector<std::string>& command, const Environment& environment, int signal_of_death) {
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    const pid_t launcher = ::getpid();
    const pid_t child = ::fork();
    check(child >= 0, "cannot start a process: ", std::strerror(errno));
    if (child > 0) return child;
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, signal_of_death);
    if (::getppid() != launcher) ::_exit(1);  // it died before we could ask to be told
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    reset_signals();
    ::execvp(arguments[0], arguments.data());
    say(concat("cannot run ", command[0], ": ", std::strerror(errno)));
    ::_exit(127);
}

std::vector<Child> start_ranks(int processes, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {own_program()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const int port = listen_at("127.0.0.1", 0, SteadyClock::now()).port;  // free a moment ago
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
        children.push_back({start(command, environment, SIGKILL), concat("rank ", rank)});
    }
    return children;
}

void require_mpirun() {
    std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
    for (std::string directory; std::getline(path, directory, ':');)
        if (::access((std::filesystem::path(directory) / "mpirun").c_str(), X_OK) == 0) return;
    throw Error("--processes: needs mpirun, and PATH has none; on Debian and Ubuntu it is in openmpi-bin");
}

/// Open MPI refuses to start as root unless both are set. Whoever runs gradtile as root has decided that.
void allow_root() {
    const std::array variables = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"};
    const auto is_set = [](const char* name) {
        const char* const value = std::getenv(name);
        return value != nullptr && std::string_view(value) == "1";
    };
    if (::geteuid() != 0 || std::all_of(variables.begin(), variables.end(), is_set)) return;
    for (const char* name : variables) ::setenv(name, "1", 1);
    say("--processes: this user is root; mpirun is told to allow that");
}

std::vector<Child> start_mpirun(int processes, const std::vector<std::string>& arguments) {
    require_mpirun();
    std::vector<std::string> command = {"mpirun", "-np", std::to_string(processes), own_program()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    // Open MPI alone would refuse more processes than cores, and give each process one core however many
    // threads it has. Other kinds of mpirun do neither, and do not read these.
    const Environment environment = {{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                     {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                     {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                     {"PRTE_MCA_hwloc_default_binding_policy", "none"}};
    allow_root();
    return {{start(command, environment, SIGTERM), "mpirun"}};
}

/// The processes of one start, until all have ended.
class Fleet {
  public:
    Fleet(std::vector<Child> children, Launch::Through through, const BlockedSignals& signals)
        : children_(std::move(children)), through_(through), signals_(signals) {}

    /// 0, or what the first failure was.
    int wait() {
        while (!children_.empty()) {
            const int signal = signals_.next(deadline_);
            if (signal == SIGCHLD) {
                reap();
            } else if (signal != 0) {
                pass_on(signal);
            } else if (deadline_ && SteadyClock::now() >= *deadline_) {
                end_all();
            }
        }
        return exit_code_;
    }
    bool was_told_to_stop() const { return told_to_stop_ != 0; }

  private:
    void reap() {
        int status = 0;
        for (pid_t process = 0; (process = ::waitpid(-1, &status, WNOHANG)) > 0;) {
            const auto child = std::find_if(children_.begin(), children_.end(),
                                            [&](const Child& c) { return c.process == process; });
            if (child == children_.end()) continue;
            const bool killed = WIFSIGNALED(status);
            if (killed && !ended_by_us_) say(concat(child->name, " was ended by signal ", WTERMSIG(status)));
            note(killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
            children_.erase(child);
        }
    }

    void note(int code) {
        if (code == 0 || ended_by_us_) return;
        // Who was only told of a failure may be seen to end before the one that failed.
        if (exit_code_ == 0 || exit_code_ == told_of_a_loss) exit_code_ = code;
        if (!deadline_) deadline_ = SteadyClock::now() + grace_of_survivors;
    }

    void pass_on(int signal) {
        if (told_to_stop_ == 0) {
            told_to_stop_ = signal;
            // Not as SIGTERM: that is mpirun's own to end by, and where everybody was sent one, a second one
            // would end a process at once.
            for (const Child& child : children_) ::kill(child.process, SIGUSR1);
        } else if (signal != SIGHUP) {  // which a closed terminal may send more than once
            exit_code_ = 128 + signal;
            end_all();
        }
    }

    void end_all() {
        if (!ended_by_us_ && exit_code_ != 0 && told_to_stop_ == 0) {
            std::string names;
            for (const Child& child : children_) names += concat(names.empty() ? "" : ", ", child.name);
            say(concat(names, " still ran ", grace_of_survivors.count(),
                       " s after the failure, and is ended"));
        }
        // mpirun has processes of its own to end before it goes.
        const bool ask_first = through_ == Launch::Through::mpirun && !ended_by_us_;
        for (const Child& child : children_) ::kill(child.process, ask_first ? SIGTERM : SIGKILL);
        ended_by_us_ = true;
        deadline_ = SteadyClock::now() + seconds(5);
    }

    std::vector<Child> children_;
    const Launch::Through through_;
    const BlockedSignals& signals_;
    std::optional<SteadyTime> deadline_ = {};
    int exit_code_ = 0, told_to_stop_ = 0;
    bool ended_by_us_ = false;
};

bool holds_a_run(const std::filesystem::path& directory) {
    return !directory.empty() && (exists(directory / "config.json") || exists(directory / "checkpoints"));
}

}  // namespace

int launch(const Launch& launch) {
    const BlockedSignals signals;
    // A new run's start refuses a directory that holds one already; that one is not ours to go on with.
    const bool is_ours = launch.goes_on || !holds_a_run(launch.directory);
    for (int restart = 0;; ++restart) {
        const bool resumes = restart > 0 && holds_a_run(launch.directory);
        const std::vector<std::string>& arguments = resumes ? launch.resume_arguments : launch.arguments;
        Fleet fleet(launch.through == Launch::Through::fork ? start_ranks(launch.processes, arguments)
                                                            : start_mpirun(launch.processes, arguments),
                    launch.through, signals);
        const int exit_code = fleet.wait();
        const bool is_final = exit_code == 0 || exit_code == misunderstood_command_line;
        if (is_final || !is_ours || fleet.was_told_to_stop() || restart == launch.restarts) return exit_code;
        say(concat(
            "failed with code ", exit_code, "; restart ", restart + 1, " of ", launch.restarts,
            holds_a_run(launch.directory) ? " from the last sound checkpoint" : " from the beginning"));
    }
}

std::vector<std::string> own_arguments_without(const std::vector<std::string>& flags) {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::vector<std::string> arguments;
    std::string argument;
    std::getline(file, argument, '\0');  // the program's name
    while (std::getline(file, argument, '\0')) {
        const std::string name = argument.substr(0, argument.find('='));
        const bool left_out = std::find(flags.begin(), flags.end(), name) != flags.end();
        if (!left_out) {
            arguments.push_back(argument);
        } else if (name == argument) {
            std::getline(file, argument, '\0');  // its value
        }
    }
    return arguments;
}

}  // namespace gradtile::cli
