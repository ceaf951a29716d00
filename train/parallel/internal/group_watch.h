#pragma once
/// A process's end of the control connection: a thread that sends heartbeats to rank 0, receives loss
/// reports, and sends the main thread's messages.
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include <gradtile/train/parallel/internal/control_hub.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile {

struct ProcessGroup::Watch {
    /// `stream` has completed its handshake. `hub` is null except on rank 0. Returns once all processes are
    /// connected.
    Watch(const RankEnvironment& environment, ProcessGroupOptions options, const std::atomic<bool>& survives,
          MessageStream stream, std::unique_ptr<ControlHub> hub, SteadyTime deadline);
    ~Watch();

    /// Returns all processes' texts, by rank.
    std::vector<std::string> exchange(const std::string& text);
    void report_step(std::int64_t step);
    /// Returns false if another wait is already active; reports then continue to name the other wait.
    bool begin_waiting(const char* what);
    void end_waiting();
    struct Inspector {
        FaultProbe probe;
        Interrupt interrupt;
    };
    void begin_inspection(const Inspection& inspection, Inspector inspector);
    /// Removes the inspector. Returns once the thread is no longer calling it.
    void end_inspection(const Inspection& inspection);
    int loss_descriptor() const { return loss_reported_.descriptor(); }
    [[noreturn]] void throw_loss();
    void leave();
    bool fail(const std::string& message);

  private:
    void run();
    bool exchange_messages();
    void send_heartbeat();
    void check_for_fault();
    bool interrupt_main_thread();
    void end_if_stuck();
    void handle(const Message& message);
    void handle_loss(const Message& loss);
    void handle_loss_of_root(const std::string& why);
    /// The exception that the main thread throws.
    struct Loss {
        std::string line;
        int rank = -1;
        bool failed = false;  // the other process ends with an error
    };
    void record_loss(Loss loss, bool notify);
    [[noreturn]] static void throw_error(const Loss& loss);
    void queue(Message message);
    /// Waits for the thread to make `done` true; throws Error if a process is lost meanwhile.
    template <class Done>
    void wait_until(std::unique_lock<std::mutex>& lock, Done done);

    const int rank_;
    const ProcessGroupOptions options_;
    const std::atomic<bool>& survives_;
    const std::unique_ptr<ControlHub> hub_;
    WakeUp wake_;
    WakeUp loss_reported_;  // for the main thread

    // Used by the thread only.
    MessageStream stream_;
    SteadyTime last_message_, next_heartbeat_;
    bool was_interrupted_ = false;  // the main thread, by an inspector
    bool has_fault_ = false;

    std::mutex inspectors_mutex_;
    std::map<const Inspection*, Inspector> inspectors_;  // guarded by inspectors_mutex_

    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_.
    std::vector<Message> queued_;
    std::int64_t step_ = -1;
    std::string waiting_for_;
    SteadyTime waiting_since_;
    bool complete_ = false, left_ = false, stop_ = false;
    std::string missing_;
    std::int64_t exchange_ = 0;
    std::optional<std::vector<std::string>> result_;
    std::optional<Loss> lost_;
    std::optional<std::string> own_failure_;
    bool printed_by_other_rank_ = false;  // another rank prints own_failure_

    std::thread thread_;
};

}  // namespace gradtile
