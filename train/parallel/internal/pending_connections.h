#pragma once
/// Connections to rank 0 that have not proved yet that they belong to the run.
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
    /// At most `capacity` at a time.
    PendingConnections(std::string key, std::size_t capacity);

    /// Takes what waits at the listener. When there are too many, the one that has waited longest is dropped,
    /// first of those that have not said a word; a process of the run then tries again.
    void accept(const Listener& listener);

    /// Why a process that knows the key cannot be one of these; nothing when it can.
    using Objection = std::function<std::optional<std::string>(const Identity& identity)>;
    /// Takes the connection of a process whose verdict was favourable.
    using Admission = std::function<void(const Identity& identity, MessageStream stream)>;
    /// Goes on with every handshake as far as it can go now.
    void advance(const Objection& objection_to, const Admission& admit);

    void add_to(std::vector<pollfd>& watched) const;

  private:
    struct Connection {
        Descriptor socket;
        SteadyTime deadline;
        Challenge challenge;
        std::string received = {};  // of the message that is awaited
        std::optional<Greeting> greeting = {};
    };
    enum class Progress { waits, over };
    Progress advance(Connection& connection, const Objection& objection_to, const Admission& admit) const;
    Progress answer_greeting(Connection& connection) const;
    Progress answer_proof(Connection& connection, const Objection& objection_to,
                          const Admission& admit) const;

    const std::string key_;
    const std::size_t capacity_;
    std::list<Connection> connections_;
};

}  // namespace gradtile
