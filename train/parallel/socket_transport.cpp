// A TCP connection between every two processes. Both ends transfer the same pieces in the same order, so the
// bytes carry no headers.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <sstream>

#include <gradtile/core/check.h>
#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/byte_transport.h>
#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile::cpu {
namespace {

/// The first bytes on a connection. Each process sends its token through the authenticated control
/// connection, so only processes of the group know it.
struct Hello {
    Digest token;
    std::uint32_t rank;
};

/// Where a process listens.
struct Place {
    Digest token;
    std::vector<Address> addresses = {};
};

std::string to_text(const Place& place) {
    std::ostringstream text;
    text << bytes_of(place.token);
    for (const Address& address : place.addresses) text << address.host << ' ' << address.port << ' ';
    return text.str();
}

Place place_from(const std::string& text) {
    Place place{};
    check(text.size() > place.token.size(), "a process sent no address for its connections");
    std::memcpy(place.token.data(), text.data(), place.token.size());
    std::istringstream words(text.substr(place.token.size()));
    for (Address address; words >> address.host >> address.port;) place.addresses.push_back(address);
    return place;
}

/// Whether a call on a socket only found nothing to do yet.
bool must_wait() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

class SocketTransport final : public ByteTransport {
  public:
    explicit SocketTransport(ProcessGroup& group) : group_(group) { connect(); }

    bool can_reconnect() const override { return true; }
    void reconnect() override { connect(); }

    void barrier() override {
        std::byte sent{};
        std::vector<std::byte> received(peers_.size());
        for (const int r : others()) {
            send(r, &sent, 1);
            receive(r, &received[static_cast<std::size_t>(r)], 1);
        }
        finish_transfers();
    }

    void broadcast(std::byte* data, int bytes, int root) override {
        if (group_.rank() != root) {
            receive(root, data, bytes);
        } else {
            for (const int r : others()) send(r, data, bytes);
        }
        finish_transfers();
    }

    void all_to_all(const std::byte* sent, const ByteParts& sent_parts, std::byte* received,
                    const ByteParts& received_parts) override {
        for (const int r : others()) {
            const auto i = static_cast<std::size_t>(r);
            send(r, sent + sent_parts.offsets[i], sent_parts.sizes[i]);
            receive(r, received + received_parts.offsets[i], received_parts.sizes[i]);
        }
        const auto own = static_cast<std::size_t>(group_.rank());
        std::copy_n(sent + sent_parts.offsets[own], sent_parts.sizes[own],
                    received + received_parts.offsets[own]);
        finish_transfers();
    }

    void all_gather(std::byte* data, const ByteParts& parts) override {
        const auto own = static_cast<std::size_t>(group_.rank());
        for (const int r : others()) {
            const auto i = static_cast<std::size_t>(r);
            send(r, data + parts.offsets[own], parts.sizes[own]);
            receive(r, data + parts.offsets[i], parts.sizes[i]);
        }
        finish_transfers();
    }

    void start_transfer(const std::byte* sent, int to, std::byte* received, int from, int bytes) override {
        send(to, sent, bytes);
        receive(from, received, bytes);
        advance();
    }

    void finish_transfers() override {
        while (!advance()) wait_for_sockets();
    }

  private:
    template <class Byte>
    struct Piece {
        Byte* data;
        std::size_t left;
    };
    struct Peer {
        Descriptor socket;
        std::deque<Piece<const std::byte>> outgoing = {};
        std::deque<Piece<std::byte>> incoming = {};
    };

    Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

    /// All other ranks, those after this process first, so that not all processes send to rank 0 first.
    std::vector<int> others() const {
        std::vector<int> ranks;
        for (int i = 1; i < group_.size(); ++i) ranks.push_back((group_.rank() + i) % group_.size());
        return ranks;
    }

    // ---- Connections ----

    void connect() {
        peers_.clear();
        const auto waiting = group_.waiting("the connections between the processes");
        const bool single_host = is_single_host(group_.environment());
        const Listener listener = listen_at(single_host ? "127.0.0.1" : "", 0, SteadyClock::now());
        Place own{.token = random_digest()};
        for (const std::string& host :
             single_host ? std::vector<std::string>{"127.0.0.1"} : local_addresses())
            own.addresses.push_back({host, listener.port});
        const std::vector<std::string> places = group_.all_gather(to_text(own));
        peers_ = std::vector<Peer>(places.size());
        for (int r = 0; r < group_.rank(); ++r)
            peer(r).socket = connect_to(r, place_from(places[static_cast<std::size_t>(r)]));
        accept_higher_ranks(listener, own.token);
    }

    Descriptor connect_to(int rank, const Place& place) const {
        Connected connected;
        while (*connected.socket < 0) {
            try {
                connected =
                    connect_to_one_of(place.addresses, SteadyClock::now() + std::chrono::seconds(2), rank);
            } catch (const Error&) {
                if (is_loss_reported()) group_.throw_loss();
            }
        }
        const Hello hello{place.token, static_cast<std::uint32_t>(group_.rank())};
        // A new connection's buffer holds the whole message unless the connection is broken.
        if (os::send(*connected.socket, &hello, sizeof hello) != sizeof hello) group_.throw_loss();
        return std::move(connected.socket);
    }

    bool is_loss_reported() const {
        pollfd loss{group_.loss_descriptor(), POLLIN, 0};
        return ::poll(&loss, 1, 0) > 0;
    }

    /// A connection whose Hello is not complete. Other programs may connect, too.
    struct Pending {
        Descriptor socket;
        std::size_t received = 0;
        Hello hello = {};
    };

    void accept_higher_ranks(const Listener& listener, const Digest& token) {
        constexpr std::size_t max_strangers = 64;
        std::list<Pending> pending;
        for (int missing = group_.size() - 1 - group_.rank(); missing > 0;) {
            std::vector<pollfd> watched = {{group_.loss_descriptor(), POLLIN, 0},
                                           {*listener.socket, POLLIN, 0}};
            for (const Pending& p : pending) watched.push_back({*p.socket, POLLIN, 0});
            ::poll(watched.data(), watched.size(), -1);
            if (watched[0].revents != 0) group_.throw_loss();
            if (watched[1].revents != 0) pending.push_back({accept_from(listener)});
            if (pending.size() > peers_.size() + max_strangers) pending.pop_front();
            pending.remove_if([&](Pending& p) {
                if (*p.socket < 0 || !receive_hello(p)) return true;
                if (p.received < sizeof p.hello) return false;
                missing -= admit(p, token) ? 1 : 0;
                return true;
            });
        }
    }

    /// Returns false when the connection was closed.
    static bool receive_hello(Pending& p) {
        const ssize_t bytes =
            ::recv(*p.socket, reinterpret_cast<char*>(&p.hello) + p.received, sizeof p.hello - p.received, 0);
        if (bytes < 0) return must_wait();
        p.received += static_cast<std::size_t>(bytes);
        return bytes > 0;
    }

    bool admit(Pending& p, const Digest& token) {
        const auto rank = static_cast<std::int64_t>(p.hello.rank);
        if (!is_same(p.hello.token, token) || rank <= group_.rank() || rank >= group_.size()) return false;
        Peer& found = peer(static_cast<int>(rank));
        if (*found.socket >= 0) return false;
        found.socket = std::move(p.socket);
        return true;
    }

    // ---- Transfers ----

    void send(int to, const std::byte* data, int bytes) {
        if (bytes > 0) peer(to).outgoing.push_back({data, static_cast<std::size_t>(bytes)});
    }
    void receive(int from, std::byte* data, int bytes) {
        if (bytes > 0) peer(from).incoming.push_back({data, static_cast<std::size_t>(bytes)});
    }

    /// Moves as many bytes as the sockets accept now. Returns whether all transfers are complete.
    bool advance() {
        bool complete = true;
        for (Peer& p : peers_) {
            move_bytes(p.outgoing, [&](const std::byte* data, std::size_t bytes) {
                return os::send(*p.socket, data, bytes);
            });
            move_bytes(p.incoming,
                       [&](std::byte* data, std::size_t bytes) { return ::recv(*p.socket, data, bytes, 0); });
            complete = complete && p.outgoing.empty() && p.incoming.empty();
        }
        return complete;
    }

    template <class Byte, class Move>
    void move_bytes(std::deque<Piece<Byte>>& pieces, const Move& move) {
        while (!pieces.empty()) {
            Piece<Byte>& piece = pieces.front();
            const ssize_t bytes = move(piece.data, piece.left);
            if (bytes < 0 && must_wait()) return;
            if (bytes <= 0) group_.throw_loss();
            piece.data += bytes;
            piece.left -= static_cast<std::size_t>(bytes);
            if (piece.left == 0) pieces.pop_front();
        }
    }

    void wait_for_sockets() {
        std::vector<pollfd> watched = {{group_.loss_descriptor(), POLLIN, 0}};
        for (const Peer& p : peers_) {
            const int events = (p.incoming.empty() ? 0 : POLLIN) | (p.outgoing.empty() ? 0 : POLLOUT);
            if (events != 0) watched.push_back({*p.socket, static_cast<short>(events), 0});
        }
        ::poll(watched.data(), watched.size(), -1);
        if (watched[0].revents != 0) group_.throw_loss();
    }

    ProcessGroup& group_;
    std::vector<Peer> peers_;  // by rank; the own one has no socket
};

}  // namespace

std::unique_ptr<ByteTransport> make_socket_transport(ProcessGroup& group) {
    return std::make_unique<SocketTransport>(group);
}

}  // namespace gradtile::cpu
