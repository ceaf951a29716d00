#pragma once
/// TCP connections as the control connection needs them: never blocking, closed on exec, IPv4 and IPv6.
#include <chrono>
#include <string>
#include <vector>

#include <gradtile/core/descriptor.h>

namespace gradtile {

using SteadyClock = std::chrono::steady_clock;
using SteadyTime = SteadyClock::time_point;

/// What one thread wakes another's poll() with.
class WakeUp {
  public:
    WakeUp();
    int descriptor() const { return *event_; }
    void call() const noexcept;
    /// Until the next call.
    void clear() const noexcept;

  private:
    Descriptor event_;
};

struct Listener {
    Descriptor socket;
    int port = 0;
};
/// Whether `address` means this host alone: localhost, 127.0.0.1, ::1.
bool is_loopback(const std::string& address);
/// Listens at a port (0: one that is free): for this host alone when `address` is a loopback address; at the
/// interface that has it when it is a number; else on every interface, since other hosts may look a name up
/// with another result, or reach this one through an address that it does not have itself. Tries a port in
/// use until the deadline, as its former owner may be about to end.
Listener listen_at(const std::string& address, int port, SteadyTime deadline);
/// The next connection that waits; an empty Descriptor when there is none.
Descriptor accept_from(const Listener& listener);

/// Both ends of a connection inside this process.
std::pair<Descriptor, Descriptor> connected_pair();

struct Address {
    std::string host;
    int port = 0;
};
/// "node0 port 29500"
std::string text_of(const Address& address);
/// A connection, and the address that answered.
struct Connected {
    Descriptor socket;
    Address address;
};
/// Tries the addresses in turn, again and again, until one answers. Throws Error at the deadline, naming what
/// the last attempt said.
Connected connect_to_one_of(const std::vector<Address>& addresses, SteadyTime deadline);

/// Under which other hosts may reach this one: its name, and the addresses of its interfaces.
std::vector<std::string> own_addresses();

}  // namespace gradtile
