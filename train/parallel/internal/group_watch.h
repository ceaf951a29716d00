#pragma once
/// A process's own end of the control star: a thread that keeps the connection to rank 0 alive, learns of
/// losses, and sends what the main thread hands it.
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include <gradtile/train/parallel/internal/control_hub.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile {

struct ProcessGroup::Watch {
    /// `stream` has its handshake behind it. `hub` is rank 0's alone. Returns once all have come.
    Watch(const RankEnvironment& environment, ProcessGroupOptions options, MessageStream stream,
          std::unique_ptr<ControlHub> hub, SteadyTime deadline);
    ~Watch();

    /// Everybody's text, by rank.
    std::vector<std::string> exchange(const std::string& text);
    void at_step(std::int64_t step);
    /// False: it waits for something already, and that counts.
    bool begin_waiting(const char* what);
    void end_waiting();
    void begin_inspection(const Inspection& inspection, Fault fault);
    /// Once the thread is not in it.
    void end_inspection(const Inspection& inspection);
    void leave();
    bool fail(const std::string& message);

  private:
    void run();
    bool exchange_messages();
    void send_heartbeat();
    void check_for_fault();
    void handle(const Message& message);
    void handle_loss(const Message& loss);
    void handle_loss_of_root(const std::string& why);
    void lose(const std::string& line, bool tell);
    void queue(Message message);
    /// Waits for the thread to make `done` true; throws what was lost meanwhile.
    template <class Done>
    void wait_until(std::unique_lock<std::mutex>& lock, Done done);

    const int rank_, size_;
    const ProcessGroupOptions options_;
    const std::unique_ptr<ControlHub> hub_;
    WakeUp wake_;

    // Of the thread alone.
    MessageStream stream_;
    SteadyTime last_message_, next_heartbeat_;

    std::mutex inspecting_;
    std::map<const Inspection*, Fault> faults_;  // under it

    std::mutex mutex_;
    std::condition_variable changed_;
    // Under the mutex.
    std::vector<Message> queued_;
    std::int64_t step_ = -1;
    std::string waits_for_;
    SteadyTime waits_since_;
    bool complete_ = false, left_ = false, stop_ = false;
    std::string missing_;
    std::int64_t exchange_ = 0;
    std::optional<std::vector<std::string>> result_;
    std::optional<std::string> lost_;
    std::optional<std::string> failing_;
    bool others_tell_ = false;  // of the failure

    std::thread thread_;
};

}  // namespace gradtile
