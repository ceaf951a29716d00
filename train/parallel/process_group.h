#pragma once
/// ProcessGroup: the processes that train one model together, one for each GPU. It knows who they are,
/// carries small texts between them (settings, addresses; tensors go through a Communicator), and watches
/// over them, so that none waits for ever for another that is gone.
///
/// The watch is a control connection of each process to rank 0, and a thread. A process that dies is known by
/// its closed connection, at once; one that hangs by its silence, or by others' waiting for it, after
/// `timeout`. Every process that is left is then told which rank it was, at which step, and what was waited
/// for.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/parallel/rank_environment.h>

namespace gradtile {

struct ProcessGroupOptions {
    double timeout = 300.0;  ///< seconds a process may be silent, or waited for
    /// Called with one line once a peer is lost, or once the timeout is over while MPI still starts: on
    /// another thread, while the main thread may be stuck in a call that will never end. So it ends the
    /// process, and does not return.
    std::function<void(const std::string& line)> on_loss = {};
};

class ProcessGroup {
  public:
    /// A process of its own: rank 0 of 1. Exchanges return at once and nothing is watched.
    ProcessGroup();
    /// Meets the others of `environment`, each of which proves that it knows the run's key (as rank 0 does):
    /// GRADTILE_RUN_KEY, or one that rank 0 makes and hands out through MPI or a file of this user and host.
    /// Throws Error naming the ranks that did not come within the timeout, the address that did not answer,
    /// or what is wrong with the key.
    ProcessGroup(const RankEnvironment& environment, ProcessGroupOptions options);
    /// Without leave() before it, the others take this process for lost.
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const { return environment_.rank; }
    int size() const { return environment_.size; }
    bool is_root() const { return rank() == 0; }
    bool is_alone() const { return size() == 1; }
    const RankEnvironment& environment() const { return environment_; }

    // Exchanges, in which every process takes part, in the same order. Called from the main thread.
    /// Rank 0's text, in every process.
    std::string broadcast(const std::string& text);
    /// Everybody's text, by rank.
    std::vector<std::string> all_gather(const std::string& text);
    /// Throws the same Error everywhere when a process's text is not rank 0's: "WHAT differs between ranks:
    /// ...", with the first JSON member that differs when both texts are JSON objects.
    void require_equal(const std::string& what, const std::string& text);

    /// Said on the way, for the line that a loss is told with.
    void at_step(std::int64_t step);
    /// While it lives, the main thread waits for others, for `what` ("the all-reduce of the gradients"): what
    /// the timeout is measured by.
    class Waiting;
    [[nodiscard]] Waiting waiting(const char* what);
    /// While it lives, the watch's thread calls `fault` between its signs of life. What that returns is why
    /// this process cannot go on, though its main thread may wait for ever: all of them end with it.
    class Inspection;
    using Fault = std::function<std::optional<std::string>()>;
    [[nodiscard]] Inspection inspect(Fault fault);

    /// The orderly end, once all have come to it.
    void leave();
    /// Tells the others that this process ends with an error, before it does. False: all of them end with the
    /// same one, and another process is to print it.
    bool fail(const std::string& message) noexcept;

  private:
    struct Watch;
    RankEnvironment environment_;
    std::unique_ptr<Watch> watch_;  // none when alone
};

class ProcessGroup::Waiting {
  public:
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

  private:
    friend class ProcessGroup;
    Waiting(Watch* watch, const char* what);
    Watch* watch_;
};

class ProcessGroup::Inspection {
  public:
    ~Inspection();
    Inspection(const Inspection&) = delete;
    Inspection& operator=(const Inspection&) = delete;

  private:
    friend class ProcessGroup;
    Inspection(Watch* watch, Fault fault);
    Watch* watch_;
};

}  // namespace gradtile
