#include <gradtile/train/parallel/internal/handshake.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

constexpr std::size_t bytes_before_code = sizeof(Verdict) - sizeof(Digest);

template <std::size_t count>
void assign_text(std::array<char, count>& target, std::string_view text) {
    target = {};
    std::copy_n(text.begin(), std::min(text.size(), count), target.begin());
}
template <std::size_t count>
std::string text_of(const std::array<char, count>& text) {
    return {text.begin(), std::find(text.begin(), text.end(), '\0')};
}

/// Result of waiting for the other end.
enum class Outcome { done, closed, too_late };

/// Waits until the socket is ready for `events`. Returns false when the deadline passes first.
bool wait_for(const Descriptor& socket, short events, SteadyTime deadline) {
    while (true) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
        if (left <= 0) return false;
        pollfd waiting{*socket, events, 0};
        if (::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000))) > 0) return true;
    }
}

/// Calls `transfer(begin, left)`, ::send or ::recv, until all bytes are transferred.
template <class Transfer>
Outcome transfer_all(const Descriptor& socket, std::size_t bytes, short events, SteadyTime deadline,
                     Transfer&& transfer) {
    for (std::size_t done = 0; done < bytes;) {
        if (!wait_for(socket, events, deadline)) return Outcome::too_late;
        const ssize_t moved = transfer(done, bytes - done);
        if (moved < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
        if (moved <= 0) return Outcome::closed;
        done += static_cast<std::size_t>(moved);
    }
    return Outcome::done;
}

template <class T>
Outcome send_message(const Descriptor& socket, const T& message, SteadyTime deadline) {
    const std::string_view bytes = wire_bytes(message);
    return transfer_all(socket, bytes.size(), POLLOUT, deadline, [&](std::size_t begin, std::size_t left) {
        return os::send(*socket, bytes.data() + begin, left);
    });
}

template <class T>
Outcome receive_message(const Descriptor& socket, T& message, SteadyTime deadline) {
    char* const bytes = reinterpret_cast<char*>(&message);
    return transfer_all(socket, sizeof message, POLLIN, deadline, [&](std::size_t begin, std::size_t left) {
        return ::recv(*socket, bytes + begin, left, 0);
    });
}

}  // namespace

Greeting make_greeting(const Identity& identity) {
    Greeting greeting{.magic = handshake_magic,
                      .version = {},
                      .rank = static_cast<std::uint32_t>(identity.rank),
                      .size = static_cast<std::uint32_t>(identity.size),
                      .random = random_digest()};
    assign_text(greeting.version, identity.version);
    return greeting;
}

Challenge make_challenge() {
    return {.magic = handshake_magic, .random = random_digest()};
}

Identity identity_of(const Greeting& greeting) {
    std::string version = text_of(greeting.version);
    std::replace_if(
        version.begin(), version.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return {.rank = greeting.rank, .size = greeting.size, .version = std::move(version)};
}

Handshake::Handshake(std::string key, const Greeting& greeting, const Challenge& challenge)
    : key_(std::move(key)), opening_(concat(wire_bytes(greeting), wire_bytes(challenge))) {}

Digest Handshake::code_of(std::string_view name, std::string_view more) const {
    std::array<char, 32>
        label;  // fixed length, so that a name plus the bytes after it cannot equal another name
    assign_text(label, concat("gradtile ", name));
    return authentication_code(key_, concat(wire_bytes(label), opening_, more));
}

Verdict Handshake::verdict(Verdict::Kind kind, const std::string& reason) const {
    Verdict verdict{.kind = kind, .reason = {}, .code = {}};
    assign_text(verdict.reason, reason);
    if (kind != Verdict::Kind::wrong_key)
        verdict.code = code_of("rank 0", wire_bytes(verdict).substr(0, bytes_before_code));
    return verdict;
}

bool Handshake::is_authentic(const Verdict& verdict) const {
    return is_same(verdict.code, code_of("rank 0", wire_bytes(verdict).substr(0, bytes_before_code)));
}

std::optional<SessionKeys> authenticate_to_root(const Descriptor& socket, const std::string& place,
                                                const Identity& identity,
                                                const std::function<std::string()>& key,
                                                SteadyTime deadline) {
    const auto is_done = [&](Outcome outcome) {
        check(outcome != Outcome::too_late, "rank 0 does not answer at ", place,
              ": it accepted the connection and sent nothing");
        return outcome == Outcome::done;
    };
    const Greeting greeting = make_greeting(identity);
    Challenge challenge{};
    if (!is_done(send_message(socket, greeting, deadline)) ||
        !is_done(receive_message(socket, challenge, deadline)))
        return std::nullopt;
    check(challenge.magic == handshake_magic, "the program that answers at ", place,
          " is not rank 0 of this gradtile; is it another program, or another version of gradtile?");
    const Handshake handshake(key(), greeting, challenge);
    Verdict verdict{};
    if (!is_done(send_message(socket, Proof{handshake.proof()}, deadline)) ||
        !is_done(receive_message(socket, verdict, deadline)))
        return std::nullopt;
    check(handshake.is_authentic(verdict), "rank 0 at ", place,
          " has another key than this process; expected the same GRADTILE_RUN_KEY in every process, and no "
          "other run there");
    check(verdict.kind == Verdict::Kind::accepted, "rank 0 refused this process: ", text_of(verdict.reason));
    return handshake.keys();
}

}  // namespace gradtile
