#include <gradtile/train/parallel/internal/control_hub.h>

#include <poll.h>

#include <gradtile/core/check.h>
#include <gradtile/core/start_thread.h>

namespace gradtile {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::milliseconds;

// Connections without a finished handshake, in addition to one for each process.
constexpr std::size_t max_extra_connections = 64;
// A process may fail because another one died, and its message may arrive before the dead process's
// connection closes. The hub waits this long for the original cause.
constexpr auto failure_grace = milliseconds(500);
constexpr auto max_final_send_time = std::chrono::seconds(1);

SteadyClock::duration steady(Seconds seconds) {
    return std::chrono::duration_cast<SteadyClock::duration>(seconds);
}

/// "rank 3", "ranks 1, 2 and 7".
std::string names_of(const std::vector<int>& ranks) {
    constexpr std::size_t max_named = 16;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), max_named); ++i) {
        const bool last = i + 1 == ranks.size();
        text += concat(i == 0 ? "" : last ? " and " : ", ", ranks[i]);
    }
    if (ranks.size() > max_named) text += concat(" and ", ranks.size() - max_named, " others");
    return text;
}

}  // namespace

std::chrono::duration<double> heartbeat_interval(double timeout) {
    return Seconds(std::clamp(timeout / 10.0, 0.01, 1.0));
}

ControlHub::ControlHub(Listener listener, MessageStream own, Options options)
    : options_(std::move(options)),
      timeout_(options_.timeout),
      interval_(heartbeat_interval(options_.timeout)),
      listener_(std::move(listener)),
      peers_(static_cast<std::size_t>(options_.size)),
      pending_(options_.key, max_extra_connections + peers_.size()),
      start_(SteadyClock::now()),
      last_heartbeat_(start_ - steady(interval_)) {
    peers_[0] = std::make_unique<Peer>(Peer{.stream = std::move(own), .last_message = start_});
    if (options_.size == 1) send_all_connected();
    thread_ = start_thread("the connections of the processes", [this] { run(); });
}

ControlHub::~ControlHub() {
    stop_ = true;
    wake_.notify();
    thread_.join();
}

void ControlHub::run() {
    while (!stop_) {
        wait_for_events();
        if (finished_) continue;  // only the destructor closes the connections
        check_own_pause();
        if (!finished_) admit_pending();
        if (!finished_) receive_from_peers();
        if (!finished_) check_for_losses();
        if (!finished_) send_heartbeats();
    }
}

/// Waits until a socket is ready or the next heartbeat is due.
void ControlHub::wait_for_events() {
    std::vector<pollfd> watched = {{wake_.descriptor(), POLLIN, 0}};
    const auto watch = [&](const MessageStream& stream) {
        watched.push_back(
            {stream.descriptor(), static_cast<short>(POLLIN | (stream.has_unsent() ? POLLOUT : 0)), 0});
    };
    if (!finished_) {
        watched.push_back({*listener_.socket, POLLIN, 0});
        for (const auto& peer : peers_)
            if (peer) watch(peer->stream);
        pending_.add_to(watched);
    }
    SteadyTime next = last_heartbeat_ + steady(interval_);
    if (failure_) next = std::min(next, failure_->time + failure_grace);
    const auto left = std::chrono::ceil<milliseconds>(next - SteadyClock::now()).count();
    ::poll(watched.data(), watched.size(),
           finished_ ? -1 : static_cast<int>(std::max<std::int64_t>(left, 0)));
}

// ---- Admission ----

void ControlHub::admit_pending() {
    pending_.accept(listener_);
    pending_.advance([this](const Identity& identity) { return rejection_reason(identity); },
                     [this](const Identity& identity, MessageStream stream) {
                         peers_[static_cast<std::size_t>(identity.rank)] = std::make_unique<Peer>(
                             Peer{.stream = std::move(stream), .last_message = SteadyClock::now()});
                         if (connected_peers() == options_.size) send_all_connected();
                     });
}

/// Returns the reason why a process is refused; empty when it is admitted.
std::optional<std::string> ControlHub::rejection_reason(const Identity& identity) const {
    if (identity.version != options_.version)
        return concat("it is gradtile ", identity.version, ", rank 0 is gradtile ", options_.version);
    if (identity.size != options_.size)
        return concat("it expects ", identity.size, " processes, rank 0 expects ", options_.size);
    if (identity.rank < 0 || identity.rank >= options_.size)
        return concat("there is no rank ", identity.rank, " in a world of ", options_.size);
    if (peers_[static_cast<std::size_t>(identity.rank)])
        return concat("another process is connected as rank ", identity.rank, " already");
    return std::nullopt;
}

void ControlHub::send_all_connected() {
    complete_ = true;
    for (const auto& peer : peers_) {
        peer->last_message = SteadyClock::now();
        peer->stream.send({.kind = Message::Kind::all_connected});
        peer->stream.flush();
    }
}

int ControlHub::connected_peers() const {
    return static_cast<int>(std::count_if(peers_.begin(), peers_.end(), [](const auto& p) { return !!p; }));
}

std::string ControlHub::missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 0; rank < options_.size; ++rank)
        if (!peers_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    return names_of(missing);
}

// ---- Messages ----

void ControlHub::receive_from_peers() {
    for (int rank = 0; rank < options_.size && !finished_; ++rank) {
        Peer* const peer = peers_[static_cast<std::size_t>(rank)].get();
        if (peer == nullptr) continue;
        const bool open = peer->stream.receive() && peer->stream.flush();
        std::string why = "its connection closed";
        bool valid = true;
        try {
            while (!finished_) {
                const std::optional<Message> message = peer->stream.next();
                if (!message) break;
                peer->last_message = SteadyClock::now();
                handle(rank, *message);
            }
        } catch (const Error& error) {
            valid = false;
            why = concat("it sent ", error.what());
        }
        if ((open && valid) || finished_) continue;
        if (!complete_ && options_.keeps_place && rank != 0) {
            peers_[static_cast<std::size_t>(rank)].reset();
            continue;
        }
        if (failure_ && failure_->rank == rank) {
            failure_->time -= failure_grace;  // check_for_losses() reports the failure now
            continue;
        }
        send_final({.kind = Message::Kind::loss,
                    .rank = rank,
                    .text = concat("rank ", rank, " was lost"),
                    .texts = {why}});
    }
}

void ControlHub::handle(int rank, const Message& message) {
    Peer& peer = *peers_[static_cast<std::size_t>(rank)];
    switch (message.kind) {
        case Message::Kind::heartbeat:
            peer.step = message.step;
            peer.waiting_for = message.text;
            peer.wait_seconds = message.seconds;
            break;
        case Message::Kind::contribution:
            check(message.count == exchange_ && !peer.contribution, "exchange ", message.count,
                  " while the others are at ", exchange_);
            peer.contribution = message.text;
            finish_exchange();
            break;
        case Message::Kind::leave:
            peer.left = true;
            finish_leaving();
            break;
        case Message::Kind::failure:
            if (!failure_) failure_ = {rank, message.step, message.text, SteadyClock::now()};
            break;
        case Message::Kind::all_connected:
        case Message::Kind::result:
        case Message::Kind::all_left:
        case Message::Kind::loss:
            throw Error("a message that only rank 0 may send");
    }
}

void ControlHub::finish_exchange() {
    Message result{.kind = Message::Kind::result, .count = exchange_};
    for (const auto& peer : peers_) {
        if (!peer || !peer->contribution) return;
        result.texts.push_back(*peer->contribution);
    }
    ++exchange_;
    for (const auto& peer : peers_) {
        peer->contribution.reset();
        peer->stream.send(result);
        peer->stream.flush();
    }
}

void ControlHub::finish_leaving() {
    for (const auto& peer : peers_)
        if (!peer || !peer->left) return;
    send_final({.kind = Message::Kind::all_left});
}

void ControlHub::send_heartbeats() {
    const SteadyTime now = SteadyClock::now();
    if (now - last_heartbeat_ < interval_) return;
    last_heartbeat_ = now;
    Message heartbeat{.kind = Message::Kind::heartbeat};
    if (!complete_) heartbeat.text = missing_ranks();
    if (peers_[0]) heartbeat.step = peers_[0]->step;
    for (const auto& peer : peers_) {
        if (!peer) continue;
        peer->stream.send(heartbeat);
        peer->stream.flush();
    }
}

// ---- Losses ----

/// This process may have been stopped (SIGSTOP) itself. The other processes then waited until the timeout,
/// and ended. The remaining processes must learn that rank 0 was the cause, not those that ended.
void ControlHub::check_own_pause() {
    if (SteadyClock::now() - last_heartbeat_ < timeout_) return;
    send_final({.kind = Message::Kind::loss,
                .rank = 0,
                .text = "rank 0 was lost",
                .texts = {concat("it was silent for ", options_.timeout, " s")}});
}

void ControlHub::check_for_losses() {
    const SteadyTime now = SteadyClock::now();
    if (failure_ && now - failure_->time >= failure_grace) {
        return send_final({.kind = Message::Kind::loss,
                           .rank = failure_->rank,
                           .step = failure_->step,
                           .text = concat("rank ", failure_->rank, " failed"),
                           .texts = {failure_->message}});
    }
    if (!complete_) {
        if (now - start_ < timeout_) return;
        return send_final({.kind = Message::Kind::loss,
                           .rank = -1,
                           .text = concat(missing_ranks(), " of ", options_.size, " did not connect within ",
                                          options_.timeout, " s")});
    }
    for (int rank = 0; rank < options_.size; ++rank) {
        const Peer& peer = *peers_[static_cast<std::size_t>(rank)];
        if (now - peer.last_message < timeout_) continue;
        return send_final({.kind = Message::Kind::loss,
                           .rank = rank,
                           .step = peer.step,
                           .text = concat("rank ", rank, " was lost"),
                           .texts = {concat("it was silent for ", options_.timeout, " s")}});
    }
    const bool waited_too_long = std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
        return !peer->waiting_for.empty() && peer->wait_seconds >= options_.timeout;
    });
    if (!waited_too_long) return;
    const std::vector<int> late = blocking_ranks(now);
    Message loss{.kind = Message::Kind::loss, .rank = -1};
    if (late.empty()) {
        loss.text = concat("all ranks have waited for ", options_.timeout, " s, and none is behind");
    } else {
        const Peer& first = *peers_[static_cast<std::size_t>(late[0])];
        if (late.size() == 1) loss.rank = late[0];
        loss.step = first.step;
        loss.text = concat(names_of(late), late.size() == 1 ? " was lost" : " were lost");
        loss.texts = {concat("the others waited for ", options_.timeout, " s")};
    }
    send_final(loss);
}

/// Returns the ranks that the others wait for: the ranks without a recent heartbeat; if there are none, the
/// ranks that do not wait; if all wait, the ranks at the lowest step. Empty: all wait at the same step.
std::vector<int> ControlHub::blocking_ranks(SteadyTime now) const {
    const auto those = [&](auto&& is_late) {
        std::vector<int> late;
        for (int rank = 0; rank < options_.size; ++rank)
            if (is_late(*peers_[static_cast<std::size_t>(rank)])) late.push_back(rank);
        return late;
    };
    const Seconds silence = std::max(timeout_ / 2, 3 * interval_);
    if (const auto silent = those([&](const Peer& p) { return now - p.last_message > silence; });
        !silent.empty())
        return silent;
    if (const auto busy = those([](const Peer& p) { return p.waiting_for.empty(); }); !busy.empty())
        return busy;
    const auto [lowest, highest] = std::minmax_element(
        peers_.begin(), peers_.end(), [](const auto& a, const auto& b) { return a->step < b->step; });
    if ((*lowest)->step == (*highest)->step) return {};
    return those([step = (*lowest)->step](const Peer& p) { return p.step == step; });
}

/// Sends the run's final message, to rank 0 last: rank 0's process, and with it this thread, may end on
/// receipt.
void ControlHub::send_final(const Message& message) {
    finished_ = true;
    const SteadyTime deadline = SteadyClock::now() + max_final_send_time;
    std::vector<Peer*> unsent;
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
        if (!peers_[rank]) continue;
        peers_[rank]->stream.send(message);
        unsent.push_back(peers_[rank].get());
    }
    while (true) {
        std::erase_if(unsent, [](Peer* p) { return !p->stream.flush() || !p->stream.has_unsent(); });
        const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyClock::now()).count();
        if (unsent.empty() || left <= 0) break;
        std::vector<pollfd> watched;
        for (const Peer* p : unsent) watched.push_back({p->stream.descriptor(), POLLOUT, 0});
        ::poll(watched.data(), watched.size(), static_cast<int>(left));
    }
    if (peers_[0]) {
        peers_[0]->stream.send(message);
        peers_[0]->stream.flush();
    }
}

}  // namespace gradtile
