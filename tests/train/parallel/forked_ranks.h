#pragma once
/// A process group whose processes are forked from the test.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include <support/temporary_directory.h>

#include <gradtile/core/check.h>
#include <gradtile/train/parallel/internal/socket.h>
#include <gradtile/train/parallel/process_group.h>

#include <support/signal_process.h>

namespace gradtile::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// How often fault tests repeat: GRADTILE_FAULT_ROUNDS, or 2.
inline int fault_rounds() {
    const char* const rounds = std::getenv("GRADTILE_FAULT_ROUNDS");
    return rounds != nullptr ? std::atoi(rounds) : 2;
}

/// docs/multi_node.md promises that a hanging process is detected within the timeout and these seconds.
inline constexpr double slack_seconds = 5.0;

/// A port on this host that was just free.
inline int free_port() {
    return listen_at("127.0.0.1", 0, SteadyClock::now()).port;
}

/// How a process ended, its last line, and the seconds since exits() was called.
struct Exit {
    int exit_code = -1;
    int signal = 0;
    std::string output;
    double seconds = 0.0;
};

class ForkedRanks {
  public:
    using Body = std::function<void(ProcessGroup& group)>;
    /// The processes' exit codes: 0 when the body returns; 1 when it throws, with the message as output; 3
    /// when another process is lost, with the line that reports it as output.
    ForkedRanks(int size, double timeout) : size_(size), timeout_(timeout), port_(free_port()) {}
    ~ForkedRanks() {
        for (const auto& [process, rank] : running_) {
            kill(process, SIGKILL);
            waitpid(process, nullptr, 0);
        }
    }

    RankEnvironment environment(int rank) const {
        return {.rank = rank,
                .size = size_,
                .local_rank = rank,
                .local_size = size_,
                .launcher = "torchrun",
                .address = "127.0.0.1",
                .port = port_,
                .key = key_};
    }
    int port() const { return port_; }
    /// Sets how long processes that are started later wait for a heartbeat or a start, in seconds.
    void set_timeout(double timeout) { timeout_ = timeout; }
    /// If there is no key, rank 0 distributes one to the other processes through a KeyFile.
    void set_key(const std::string& key) { key_ = key; }

    /// Sets how processes that are started later find the group that replaces theirs.
    void set_next_environment(decltype(ProcessGroupOptions::next_environment) next_environment) {
        next_environment_ = std::move(next_environment);
    }

    void start(int rank, const Body& body) { start(environment(rank), rank, body); }
    /// `place` is the process's index in exits().
    void start(const RankEnvironment& environment, int place, const Body& body) {
        const std::string file = (directory_ / concat("rank", place)).string();
        const pid_t process = fork();
        check(process >= 0, "cannot fork");
        if (process > 0) {
            running_.push_back({process, place});
            return;
        }
        const auto end = [&](int code, const std::string& line) {
            std::ofstream(file, std::ios::app) << line;
            _exit(code);
        };
        try {
            ProcessGroup group(environment, {.timeout = timeout_,
                                             .on_loss = [&](const std::string& line) { end(3, line); },
                                             .next_environment = next_environment_});
            set_mark(place, "connected");
            body(group);
        } catch (const std::exception& error) {
            end(1, error.what());
        }
        end(0, "");
    }
    void start_all(const Body& body) {
        for (int rank = 0; rank < size_; ++rank) start(rank, body);
    }

    /// Called by a process: creates a marker file for the test.
    void set_mark(int place, const std::string& what) const {
        std::ofstream(directory_ / concat(what, place)) << "x";
    }
    /// Waits for such a marker file.
    void wait_for_mark(int place, const std::string& what) const {
        const auto deadline = SteadyClock::now() + seconds(60);
        while (!exists(directory_ / concat(what, place))) {
            check(SteadyClock::now() < deadline, "rank ", place, " never set the mark '", what, "'");
            std::this_thread::sleep_for(milliseconds(2));
        }
    }
    void wait_for_mark_of_all(const std::string& what) const {
        for (int rank = 0; rank < size_; ++rank) wait_for_mark(rank, what);
    }

    void send(int place, int signal) const {
        for (const auto& [process, place_of_process] : running_)
            if (place_of_process == place) signal_process(process, signal);
    }

    /// Waits for all processes except the one at `except`, which is stopped. Indexed by place.
    std::vector<Exit> exits(int except = -1) {
        const auto start = SteadyClock::now();
        std::vector<Exit> exits(static_cast<std::size_t>(size_) + extra_places);
        const auto awaited = [&] {
            return std::any_of(running_.begin(), running_.end(),
                               [&](const auto& r) { return r.second != except; });
        };
        while (awaited()) {
            std::erase_if(running_, [&](const auto& r) {
                int status = 0;
                if (r.second == except || waitpid(r.first, &status, WNOHANG) != r.first) return false;
                Exit& exit = exits[static_cast<std::size_t>(r.second)];
                if (WIFEXITED(status)) exit.exit_code = WEXITSTATUS(status);
                if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
                std::ostringstream output;
                output << std::ifstream(directory_ / concat("rank", r.second)).rdbuf();
                exit.output = output.str();
                exit.seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
                return true;
            });
            check(SteadyClock::now() - start < seconds(120), "processes of the group hang");
            std::this_thread::sleep_for(milliseconds(2));
        }
        return exits;
    }

  private:
    static constexpr std::size_t extra_places = 4;
    int size_;
    double timeout_;
    int port_;
    std::string key_;
    decltype(ProcessGroupOptions::next_environment) next_environment_;
    TemporaryDirectory directory_;
    std::vector<std::pair<pid_t, int>> running_;
};

}  // namespace gradtile::test
