#pragma once
/// A group whose processes are forked from the test.
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

/// How often the tests of faults repeat; more with GRADTILE_FAULT_ROUNDS.
inline int fault_rounds() {
    const char* const rounds = std::getenv("GRADTILE_FAULT_ROUNDS");
    return rounds != nullptr ? std::atoi(rounds) : 2;
}

/// A port of this host that was free a moment ago.
inline int free_port() {
    return listen_at("127.0.0.1", 0, SteadyClock::now()).port;
}

/// How a process ended, what it said, and how long after the fault.
struct Ending {
    int exit_code = -1;
    int signal = 0;
    std::string said;
    double seconds = 0.0;
};

class ForkedRanks {
  public:
    using Body = std::function<void(ProcessGroup& group)>;
    /// Ends of a process: 0 when the body returns, 1 with what it threw, 3 with the line of a loss.
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
    /// Of the processes started from here on.
    void set_timeout(double timeout) { timeout_ = timeout; }
    /// Without it rank 0 leaves one for the others in a file.
    void set_key(const std::string& key) { key_ = key; }

    void start(int rank, const Body& body) { start(environment(rank), rank, body); }
    /// `place` is where its ending is found.
    void start(const RankEnvironment& environment, int place, const Body& body) {
        const std::string file = (said_ / concat("rank", place)).string();
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
                                             .on_loss = [&](const std::string& line) { end(3, line); }});
            mark(place, "met");
            body(group);
        } catch (const std::exception& error) {
            end(1, error.what());
        }
        end(0, "");
    }
    void start_all(const Body& body) {
        for (int rank = 0; rank < size_; ++rank) start(rank, body);
    }

    /// Leaves a sign for the test, from a process.
    void mark(int place, const std::string& what) const { std::ofstream(said_ / concat(what, place)) << "x"; }
    /// Waits for such a sign.
    void await(int place, const std::string& what) const {
        const auto deadline = SteadyClock::now() + std::chrono::seconds(60);
        while (!exists(said_ / concat(what, place))) {
            check(SteadyClock::now() < deadline, "rank ", place, " never came to '", what, "'");
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
    void await_all(const std::string& what) const {
        for (int rank = 0; rank < size_; ++rank) await(rank, what);
    }

    void send(int place, int signal) const {
        for (const auto& [process, its_place] : running_)
            if (its_place == place) signal_process(process, signal);
    }

    /// Waits for all but those that are stopped; by place.
    std::vector<Ending> endings(int but = -1) {
        const auto start = SteadyClock::now();
        std::vector<Ending> endings(static_cast<std::size_t>(size_) + extra_places);
        const auto awaited = [&] {
            return std::any_of(running_.begin(), running_.end(),
                               [&](const auto& r) { return r.second != but; });
        };
        while (awaited()) {
            std::erase_if(running_, [&](const auto& r) {
                int status = 0;
                if (r.second == but || waitpid(r.first, &status, WNOHANG) != r.first) return false;
                Ending& ending = endings[static_cast<std::size_t>(r.second)];
                if (WIFEXITED(status)) ending.exit_code = WEXITSTATUS(status);
                if (WIFSIGNALED(status)) ending.signal = WTERMSIG(status);
                std::ostringstream said;
                said << std::ifstream(said_ / concat("rank", r.second)).rdbuf();
                ending.said = said.str();
                ending.seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
                return true;
            });
            check(SteadyClock::now() - start < std::chrono::seconds(120), "processes of the group hang");
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        return endings;
    }

  private:
    static constexpr std::size_t extra_places = 4;
    int size_;
    double timeout_;
    int port_;
    std::string key_;
    TemporaryDirectory said_;
    std::vector<std::pair<pid_t, int>> running_;
};

}  // namespace gradtile::test
