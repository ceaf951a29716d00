#pragma once
/// ProcessGroup: the processes that train one model together, one per GPU. The group exchanges small texts
/// (settings, addresses; tensors go through a Communicator) and detects lost processes, so that no process
/// waits forever for a lost process.
///
/// Each process has a control connection to rank 0 and a thread that serves it. A process that dies is
/// detected at once by its closed connection. A process that hangs is detected after `timeout`, by missing
/// heartbeats or because the others wait for it. Every remaining process is then told the rank, the step and
/// the operation that waited.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/core/check.h>

namespace gradtile {

/// This process's rank and world size, from the environment variables that mpirun, srun, torchrun or
/// `gradtile train --gpus` set.
struct RankEnvironment {
    int rank = 0;
    int size = 1;
    int local_rank = 0;         ///< rank among the processes on this host; selects the GPU
    int local_size = 1;         ///< process count on this host
    std::string launcher = {};  ///< "mpirun", "srun", "torchrun"; empty: a single process
    std::string address = {};   ///< host where rank 0 listens; empty: broadcast through MPI
    int port = 0;               ///< if 0, rank 0 chooses a port and broadcasts it through MPI
    std::string key = {};       ///< GRADTILE_RUN_KEY; empty: not set
};

/// Whether this process's variables say that all processes are on this host.
bool is_single_host(const RankEnvironment& environment);
/// Throws Error unless a key is set or can be distributed: through MPI, or through a file when all processes
/// are on this host. Without a key, any program that reaches the port could pose as a rank.
void require_key(const RankEnvironment& environment);

/// Looks a variable up; nullptr when it is not set.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Reads the launcher's variables. Throws Error (one line with the variable, its value and the expected
/// value) when a value is not a number, a rank is outside the world, rank or world size is set without the
/// other, or two launchers contradict each other.
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);
/// Reads this process's environment.
RankEnvironment read_rank_environment();

/// Another process was lost: it died, hangs or is not reachable. what() is the line that on_loss receives.
class RankLost : public Error {
  public:
    /// When the process was lost: once all were connected, or before.
    enum class Phase { connected, start };
    RankLost(const std::string& line, int rank, Phase phase = Phase::connected)
        : Error(line), rank_(rank), phase_(phase) {}
    /// The lost process; -1: several, or not known.
    int rank() const { return rank_; }
    Phase phase() const { return phase_; }

  private:
    int rank_;
    Phase phase_;
};

struct ProcessGroupOptions {
    double timeout = 300.0;  ///< maximum seconds without a heartbeat, or in one wait for another process
    /// Called with one line once a process is lost, or when MPI's start exceeds the timeout. The call is made
    /// on another thread, and the main thread may be stuck in a call that never ends, so on_loss must end the
    /// process and not return.
    std::function<void(const std::string& line)> on_loss = {};
    /// Called by regroup(), with the newest step that this process has reported. Returns the environment of
    /// the new group, in which this process keeps its rank. Empty: lost processes are not replaced.
    std::function<RankEnvironment(const RankLost& loss, std::int64_t step)> next_environment = {};
    /// Whether this process replaces a lost one. Until such a group is complete, a process whose connection
    /// closes is not reported: another one may take its place.
    bool replaces_rank = false;
};

class ProcessGroup {
  public:
    /// A single process: rank 0 of 1. Exchanges return at once, and no thread is started.
    ProcessGroup();
    /// Connects all processes in `environment`. Each process and rank 0 prove to each other that they know
    /// the run's key: GRADTILE_RUN_KEY, or a key that rank 0 creates and distributes through MPI or through a
    /// file that belongs to this user and host. Throws Error naming the ranks that did not connect within the
    /// timeout, the address that did not answer, or the problem with the key.
    ProcessGroup(const RankEnvironment& environment, ProcessGroupOptions options);
    /// Unless leave() was called, the others report this process as lost.
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const { return environment_.rank; }
    int size() const { return environment_.size; }
    bool is_root() const { return rank() == 0; }
    bool is_alone() const { return size() == 1; }
    const RankEnvironment& environment() const { return environment_; }

    // Collective exchanges: every process calls them in the same order, from its main thread.
    /// Returns rank `root`'s text in every process.
    std::string broadcast(const std::string& text, int root = 0);
    /// Returns all processes' texts, by rank.
    std::vector<std::string> all_gather(const std::string& text);
    /// Throws the same Error in every process when one process's text differs from rank 0's: "WHAT differs
    /// between ranks: ...", naming the first JSON member that differs when both texts are JSON objects.
    void require_equal(const std::string& what, const std::string& text);

    /// Records the current step, for the message that reports a lost process.
    void report_step(std::int64_t step);
    /// While the returned object exists, the main thread counts as waiting for other processes in the
    /// operation `what` ("the gradient all-reduce"). The timeout limits this time.
    class Waiting;
    [[nodiscard]] Waiting waiting(const char* what);
    /// While the returned object exists, the control thread calls `probe` with every heartbeat. A probe that
    /// returns a text reports a fault in this process, for example in NCCL while the main thread is stuck in
    /// it; all processes then end with that text. `interrupt` is called on the same thread, once, when
    /// another process is lost and the main thread survives that: it ends the main thread's waits that do not
    /// end by themselves. If the main thread does not come to regroup() nevertheless, on_loss is called.
    class Inspection;
    using FaultProbe = std::function<std::optional<std::string>()>;
    using Interrupt = std::function<void()>;
    [[nodiscard]] Inspection inspect(FaultProbe probe, Interrupt interrupt = {});

    /// Whether lost processes can be replaced.
    bool can_regroup() const { return static_cast<bool>(options_.next_environment); }
    /// While the returned object exists, the main thread gets a lost process as RankLost from its next call
    /// that waits for other processes, and on_loss is not called. A process that fails with an error still
    /// ends all processes. Throws Error unless can_regroup().
    class Survival;
    [[nodiscard]] Survival survive_losses();
    /// Collective, after a RankLost: leaves this group, and connects the remaining processes and those that
    /// replace the lost ones. No Inspection may exist. Throws RankLost when another process is lost
    /// meanwhile.
    void regroup(const RankLost& loss);

    /// Becomes readable once a process is lost, for a wait for other processes in poll(). -1: this process is
    /// alone.
    int loss_descriptor() const;
    /// Called when a connection to another process has broken: waits until the loss is reported, and throws
    /// it as RankLost, or as Error if the other process failed with an error.
    [[noreturn]] void throw_loss();

    /// Ends the run: returns once all processes have called it.
    void leave();
    /// Notifies the others that this process is about to end with an error. Returns false if all processes
    /// end with the same error and another process prints it.
    bool fail(const std::string& message) noexcept;

  private:
    struct Watch;
    void connect_all();

    RankEnvironment environment_;
    ProcessGroupOptions options_;
    std::atomic<bool> survives_{false};
    std::int64_t step_ = -1;
    std::unique_ptr<Watch> watch_;  // null with one process
};

class ProcessGroup::Survival {
  public:
    ~Survival() { survives_ = false; }
    Survival(const Survival&) = delete;
    Survival& operator=(const Survival&) = delete;

  private:
    friend class ProcessGroup;
    explicit Survival(std::atomic<bool>& survives) : survives_(survives) { survives_ = true; }
    std::atomic<bool>& survives_;
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
    Inspection(Watch* watch, FaultProbe probe, Interrupt interrupt);
    Watch* watch_;
};

}  // namespace gradtile
