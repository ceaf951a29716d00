#pragma once
/// Connections to rank 0 whose handshake is not complete yet.
#include <functional>
#include <list>
#include <optional>
#include <vector>

#include <gradtile/train/parallel/internal/control_message.h>
#include <gradtile/train/parallel/internal/handshake.h>

struct pollfd;

namespace gradtile {

class PendingConnections {
  public:
    /// Holds at most `capacity` connections at a time.
    PendingConnections(std::string key, std::size_t capacity);

    /// Accepts waiting connections. At `capacity`, a new connection replaces the oldest one that has sent no
    /// greeting or, if all have sent one, the oldest. A process in the run whose connection is dropped
    /// connects again.
    void accept(const Listener& listener);

    /// Returns the reason why a process that knows the key is refused; empty when it is admitted.
    using RejectionReason = std::function<std::optional<std::string>(const Identity& identity)>;
    /// Receives an admitted process's connection.
    using Admission = std::function<void(const Identity& identity, MessageStream stream)>;
    /// Advances every handshake as far as the received bytes allow.
    void advance(const RejectionReason& rejection_reason, const Admission& admit);

    void add_to(std::vector<pollfd>& watched) const;

  private:
    struct Connection {
        Descriptor socket;
        SteadyTime deadline;
        Challenge challenge;
        std::string received = {};  // the expected message's bytes so far
        std::optional<Greeting> greeting = {};
    };
    enum class Progress { waits, over };
    Progress advance(Connection& connection, const RejectionReason& rejection_reason,
                     const Admission& admit) const;
    Progress answer_greeting(Connection& connection) const;
    Progress answer_proof(Connection& connection, const RejectionReason& rejection_reason,
                          const Admission& admit) const;

    const std::string key_;
    const std::size_t capacity_;
    std::list<Connection> connections_;
};

}  // namespace gradtile
