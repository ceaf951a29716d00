#include <gradtile/train/parallel/internal/pending_connections.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

// A handshake takes two round trips.
constexpr auto max_handshake_time = std::chrono::seconds(5);
// The longest message that rank 0 accepts. Only an exchange's results are longer, and only rank 0 sends
// results.
constexpr std::size_t max_bytes_to_root = 2 * max_exchanged_bytes;

/// Sends without waiting: a new connection's buffer holds a whole message unless the connection is broken.
template <class T>
bool send_whole(const Descriptor& socket, const T& message) {
    const std::string_view bytes = wire_bytes(message);
    return os::send(*socket, bytes.data(), bytes.size()) == std::ssize(bytes);
}

/// Appends received bytes until `received` holds `bytes`, and never reads more. Returns false when the
/// connection was closed before that.
bool receive_up_to(std::size_t bytes, const Descriptor& socket, std::string& received) {
    std::array<char, 256> part;
    while (received.size() < bytes) {
        const ssize_t got = ::recv(*socket, part.data(), std::min(part.size(), bytes - received.size()), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (got == 0) return false;
        received.append(part.data(), static_cast<std::size_t>(got));
    }
    return true;
}

template <class T>
T message_from(const std::string& bytes) {
    T message;
    std::memcpy(&message, bytes.data(), sizeof message);
    return message;
}

}  // namespace

PendingConnections::PendingConnections(std::string key, std::size_t capacity)
    : key_(std::move(key)), capacity_(capacity) {}

void PendingConnections::accept(const Listener& listener) {
    // Accepts per call are limited, so that a flood cannot starve the run's own connections.
    for (std::size_t i = 0; i < capacity_; ++i) {
        Descriptor socket = accept_from(listener);
        if (*socket < 0) return;
        if (connections_.size() >= capacity_) {
            const auto silent = std::find_if(connections_.begin(), connections_.end(),
                                             [](const Connection& c) { return !c.greeting; });
            connections_.erase(silent != connections_.end() ? silent : connections_.begin());
        }
        connections_.push_back(
            {std::move(socket), SteadyClock::now() + max_handshake_time, make_challenge()});
    }
}

void PendingConnections::advance(const RejectionReason& rejection_reason, const Admission& admit) {
    connections_.remove_if([&](Connection& connection) {
        return advance(connection, rejection_reason, admit) == Progress::over ||
               SteadyClock::now() >= connection.deadline;
    });
}

PendingConnections::Progress PendingConnections::advance(Connection& connection,
                                                         const RejectionReason& rejection_reason,
                                                         const Admission& admit) const {
    const std::size_t awaited = connection.greeting ? sizeof(Proof) : sizeof(Greeting);
    if (!receive_up_to(awaited, connection.socket, connection.received)) return Progress::over;
    // A connection whose first bytes are wrong is closed at once.
    const std::size_t magic_size = std::min(connection.received.size(), handshake_magic.size());
    if (!connection.greeting && !std::equal(handshake_magic.begin(), handshake_magic.begin() + magic_size,
                                            connection.received.begin()))
        return Progress::over;
    if (connection.received.size() < awaited) return Progress::waits;
    return connection.greeting ? answer_proof(connection, rejection_reason, admit)
                               : answer_greeting(connection);
}

PendingConnections::Progress PendingConnections::answer_greeting(Connection& connection) const {
    connection.greeting = message_from<Greeting>(connection.received);
    connection.received.clear();
    return send_whole(connection.socket, connection.challenge) ? Progress::waits : Progress::over;
}

PendingConnections::Progress PendingConnections::answer_proof(Connection& connection,
                                                              const RejectionReason& rejection_reason,
                                                              const Admission& admit) const {
    const Handshake handshake(key_, *connection.greeting, connection.challenge);
    if (!is_same(message_from<Proof>(connection.received).code, handshake.proof())) {
        send_whole(connection.socket, handshake.verdict(Verdict::Kind::wrong_key));
        return Progress::over;
    }
    const Identity identity = identity_of(*connection.greeting);
    const std::optional<std::string> reason = rejection_reason(identity);
    const Verdict verdict =
        handshake.verdict(reason ? Verdict::Kind::refused : Verdict::Kind::accepted, reason.value_or(""));
    if (!send_whole(connection.socket, verdict) || reason) return Progress::over;
    admit(identity,
          MessageStream(std::move(connection.socket), handshake.keys().mirrored(), max_bytes_to_root));
    return Progress::over;
}

void PendingConnections::add_to(std::vector<pollfd>& watched) const {
    for (const Connection& connection : connections_) watched.push_back({*connection.socket, POLLIN, 0});
}

}  // namespace gradtile
