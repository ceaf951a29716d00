#include <gradtile/train/parallel/internal/socket.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include <gradtile/core/check.h>
#include <gradtile/core/io/file_system.h>
#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

using std::chrono::milliseconds;

constexpr int one = 1;

void set_option(const Descriptor& socket, int level, int option, int value) {
    // Errors are ignored: connections work without these options.
    static_cast<void>(::setsockopt(*socket, level, option, &value, sizeof value));
}

int milliseconds_until(SteadyTime deadline) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyClock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

/// A numeric address for bind().
struct LocalAddress {
    int family = AF_INET;
    in_addr v4{};
    in6_addr v6{};
};

/// Parses a numeric address or "localhost". Returns nullopt for other names.
std::optional<LocalAddress> parse_numeric_address(const std::string& address) {
    LocalAddress found;
    if (::inet_pton(AF_INET, address == "localhost" ? "127.0.0.1" : address.c_str(), &found.v4) == 1)
        return found;
    found.family = AF_INET6;
    if (::inet_pton(AF_INET6, address.c_str(), &found.v6) == 1) return found;
    return std::nullopt;
}

/// A bound socket's local port.
int port_of(const Descriptor& socket) {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    const int result = ::getsockname(*socket, reinterpret_cast<sockaddr*>(&own), &size);
    check(result == 0, "control connection: ", std::strerror(errno));
    return own.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(own).sin6_port)
                                     : ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

/// Returns an empty Descriptor and sets errno on failure.
Descriptor try_to_listen(const LocalAddress& address, int port) {
    Descriptor socket(os::make_socket(address.family));
    if (*socket < 0) return {};
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, one);
    if (address.family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    const auto network_port = htons(static_cast<std::uint16_t>(port));
    sockaddr_in6 address6{};
    address6.sin6_family = AF_INET6;
    address6.sin6_port = network_port;
    address6.sin6_addr = address.v6;
    sockaddr_in address4{};
    address4.sin_family = AF_INET;
    address4.sin_port = network_port;
    address4.sin_addr = address.v4;
    const bool is_6 = address.family == AF_INET6;
    const auto* const bound =
        is_6 ? reinterpret_cast<const sockaddr*>(&address6) : reinterpret_cast<const sockaddr*>(&address4);
    const socklen_t size = is_6 ? sizeof address6 : sizeof address4;
    if (::bind(*socket, bound, size) != 0 || ::listen(*socket, SOMAXCONN) != 0) return {};
    return socket;
}

/// An IPv6 socket accepts IPv4 connections as well; IPv4 alone is the fallback for hosts without IPv6.
Descriptor try_to_listen_everywhere(int port) {
    Descriptor socket = try_to_listen({.family = AF_INET6, .v6 = in6addr_any}, port);
    if (*socket < 0) socket = try_to_listen({.v4 = {htonl(INADDR_ANY)}}, port);
    return socket;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Connects before the deadline. On failure returns an empty Descriptor and sets `problem`.
Descriptor try_to_connect(const addrinfo& address, SteadyTime deadline, std::string& problem) {
    Descriptor socket(os::make_socket(address.ai_family));
    int error = *socket < 0 ? errno : 0;
    if (error == 0 && ::connect(*socket, address.ai_addr, address.ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
        pollfd waiting{*socket, POLLOUT, 0};
        error = ETIMEDOUT;
        if (::poll(&waiting, 1, milliseconds_until(deadline)) == 1) {
            socklen_t size = sizeof error;
            if (::getsockopt(*socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
        }
    }
    if (error != 0) {
        problem = std::strerror(error);
        return {};
    }
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, one);
    return socket;
}

Descriptor try_to_connect(const Address& address, SteadyTime deadline, std::string& problem) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error =
            ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
        error != 0) {
        problem = ::gai_strerror(error);
        return {};
    }
    const AddressList list(found, ::freeaddrinfo);
    for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
        Descriptor socket = try_to_connect(*info, deadline, problem);
        if (*socket >= 0) return socket;
    }
    return {};
}

}  // namespace

WakeUp::WakeUp() {
    int ends[2] = {-1, -1};
    file_check(os::make_pipe(ends), "create a control connection");
    read_end_ = Descriptor(ends[0]);
    write_end_ = Descriptor(ends[1]);
}
void WakeUp::notify() const noexcept {
    static_cast<void>(!::write(*write_end_, "", 1));  // fails only when notifications fill the pipe
}
void WakeUp::clear() const noexcept {
    std::array<char, 64> bytes;
    while (::read(*read_end_, bytes.data(), bytes.size()) > 0) continue;
}

bool is_loopback(const std::string& address) {
    const std::optional<LocalAddress> number = parse_numeric_address(address);
    if (!number) return false;
    return number->family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&number->v6)
                                      : ntohl(number->v4.s_addr) >> 24 == IN_LOOPBACKNET;
}

Listener listen_at(const std::string& address, int port, SteadyTime deadline) {
    const std::optional<LocalAddress> number = parse_numeric_address(address);
    while (true) {
        Descriptor socket = number ? try_to_listen(*number, port) : Descriptor();
        // Behind a NAT router, other hosts reach this one through an address that no interface on this host
        // has.
        const bool is_elsewhere = number && !is_loopback(address) && *socket < 0 && errno == EADDRNOTAVAIL;
        if (!number || is_elsewhere) socket = try_to_listen_everywhere(port);
        if (*socket >= 0) {
            const int own_port = port_of(socket);
            return {std::move(socket), own_port};
        }
        const int error = errno;
        check(error == EADDRINUSE && SteadyClock::now() < deadline, "rank 0 cannot listen at port ", port,
              ": ", std::strerror(error));
        std::this_thread::sleep_for(milliseconds(100));
    }
}

Descriptor accept_from(const Listener& listener) {
    Descriptor socket(os::accept_connection(*listener.socket));
    if (*socket >= 0) set_option(socket, IPPROTO_TCP, TCP_NODELAY, one);
    return socket;
}

std::pair<Descriptor, Descriptor> connected_pair() {
    int ends[2] = {-1, -1};
    file_check(os::make_socket_pair(ends), "create a control connection");
    return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string text_of(const Address& address) {
    return concat(address.host, " port ", address.port);
}

Connected connect_to_one_of(const std::vector<Address>& addresses, SteadyTime deadline, int rank) {
    std::string problem = "no time to try", place;
    while (true) {
        for (const Address& address : addresses) {
            const SteadyTime attempt_deadline =
                std::min(deadline, SteadyClock::now() + std::chrono::seconds(2));
            Descriptor socket = try_to_connect(address, attempt_deadline, problem);
            if (*socket >= 0) return {std::move(socket), address};
            place = text_of(address);
        }
        if (SteadyClock::now() >= deadline)
            throw Error(concat("rank ", rank, " does not answer at ", place, ": ", problem));
        std::this_thread::sleep_for(std::min<SteadyClock::duration>(
            milliseconds(100),
            std::max(deadline - SteadyClock::now(), SteadyClock::duration(milliseconds(1)))));
    }
}

std::vector<std::string> local_addresses() {
    std::vector<std::string> addresses;
    ifaddrs* found = nullptr;
    if (::getifaddrs(&found) == 0) {
        const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, ::freeifaddrs);
        for (const ifaddrs* interface = list.get(); interface != nullptr; interface = interface->ifa_next) {
            const bool in_use =
                (interface->ifa_flags & IFF_UP) != 0 && (interface->ifa_flags & IFF_LOOPBACK) == 0;
            if (interface->ifa_addr == nullptr || !in_use) continue;
            const int family = interface->ifa_addr->sa_family;
            if (family != AF_INET && family != AF_INET6) continue;
            std::array<char, NI_MAXHOST> text{};
            const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
            if (::getnameinfo(interface->ifa_addr, size, text.data(), text.size(), nullptr, 0,
                              NI_NUMERICHOST) != 0)
                continue;
            const std::string address = text.data();
            const bool is_link_local =
                address.find('%') != std::string::npos;  // not reachable from elsewhere
            if (!is_link_local) addresses.push_back(address);
        }
    }
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0')
        addresses.emplace_back(name.data());
    return addresses;
}

}  // namespace gradtile
