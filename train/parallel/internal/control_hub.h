#pragma once
/// The center of the control star: a thread in rank 0's process to which every process (rank 0 included) is
/// connected. The hub forwards exchanges, tracks heartbeats, detects lost processes and notifies the others.
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include <gradtile/train/parallel/internal/pending_connections.h>

namespace gradtile {

/// Seconds between a process's heartbeats.
std::chrono::duration<double> heartbeat_interval(double timeout);

class ControlHub {
  public:
    struct Options {
        int size = 1;
        double timeout = 300.0;
        bool keeps_place = false;  ///< until all are connected, a closed connection is not a loss
        std::string version, key;  ///< every process must send this value
    };
    /// `own` is the hub's end of rank 0's own connection, which needs no handshake.
    ControlHub(Listener listener, MessageStream own, Options options);
    /// Closes all connections.
    ~ControlHub();
    ControlHub(const ControlHub&) = delete;
    ControlHub& operator=(const ControlHub&) = delete;

  private:
    struct Peer {
        MessageStream stream;
        SteadyTime last_message;
        std::int64_t step = -1;
        std::string waiting_for = {};  // empty: the process does not wait
        double wait_seconds = 0.0;
        bool left = false;
        std::optional<std::string> contribution = {};
    };
    struct Failure {
        int rank;
        std::int64_t step;
        std::string message;
        SteadyTime time;
    };

    void run();
    void wait_for_events();
    void admit_pending();
    std::optional<std::string> rejection_reason(const Identity& identity) const;
    void send_all_connected();
    void receive_from_peers();
    void handle(int rank, const Message& message);
    void finish_exchange();
    void finish_leaving();
    void check_own_pause();
    void check_for_losses();
    std::vector<int> blocking_ranks(SteadyTime now) const;
    void send_heartbeats();
    void send_final(const Message& message);

    int connected_peers() const;
    std::string missing_ranks() const;

    const Options options_;
    const std::chrono::duration<double> timeout_, interval_;
    Listener listener_;
    WakeUp wake_;
    std::atomic<bool> stop_{false};

    // Only `thread_` uses the following members.
    std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: not connected yet
    PendingConnections pending_;
    SteadyTime start_, last_heartbeat_;
    bool complete_ = false;  // all processes are connected
    bool finished_ = false;  // the final message (all left, or a loss) was sent
    std::int64_t exchange_ = 0;
    std::optional<Failure> failure_;

    std::thread thread_;
};

}  // namespace gradtile
