#pragma once
/// The middle of the control star: a thread of rank 0's process, to which every process (rank 0, too) has a
/// connection. It passes exchanges on, follows everybody's heartbeats, decides who is lost and tells the
/// others.
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include <gradtile/train/parallel/internal/pending_connections.h>

namespace gradtile {

/// Seconds between a process's signs of life.
std::chrono::duration<double> heartbeat_interval(double timeout);

class ControlHub {
  public:
    struct Options {
        int size = 1;
        double timeout = 300.0;
        std::string version, key;  ///< those of a process that belongs here
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
        std::string waits_for = {};  // empty: it does not
        double waited = 0.0;
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
    void wait_for_something();
    void admit_pending();
    std::optional<std::string> objection_to(const Identity& identity) const;
    void welcome_all();
    void receive_from_peers();
    void handle(int rank, const Message& message);
    void finish_exchange();
    void finish_leaving();
    void check_itself();
    void check_for_losses();
    std::vector<int> laggards(SteadyTime now) const;
    void send_heartbeats();
    void send_last(const Message& message);

    int peers_present() const;
    std::string missing_ranks() const;

    const Options options_;
    const std::chrono::duration<double> timeout_, interval_;
    Listener listener_;
    WakeUp wake_;
    std::atomic<bool> stop_{false};

    // Of the thread alone.
    std::vector<std::unique_ptr<Peer>> peers_;  // by rank; none: not come yet
    PendingConnections pending_;
    SteadyTime start_, last_heartbeat_;
    bool complete_ = false;  // all have come
    bool over_ = false;      // all have left, or been told of a loss
    std::int64_t exchange_ = 0;
    std::optional<Failure> failure_;

    std::thread thread_;
};

}  // namespace gradtile
