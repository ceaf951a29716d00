#include <gradtile/train/parallel/process_group.h>

#include <sstream>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/version.h>
#include <gradtile/train/parallel/internal/group_watch.h>
#include <gradtile/train/parallel/internal/mpi.h>
#include <gradtile/train/parallel/internal/start_deadline.h>
#include <gradtile/train/parallel/run_key.h>

namespace gradtile {
namespace {

constexpr std::size_t message_bytes_without_texts = 4096;
// The time that rank 0 waits for its port, which the previous run may still use for a moment.
constexpr auto max_wait_for_port = std::chrono::seconds(5);
// StartDeadline is this many seconds later than other waits' deadlines, because their messages have more
// detail.
constexpr double start_grace_seconds = 1.0;

SteadyTime after(SteadyTime start, double seconds) {
    return start + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

/// The run's key and the addresses at which rank 0 listens.
struct Rendezvous {
    std::string key = {};
    std::vector<Address> addresses = {};
};

std::string to_text(const Rendezvous& rendezvous) {
    std::ostringstream text;
    text << rendezvous.key;
    for (const Address& address : rendezvous.addresses) text << ' ' << address.host << ' ' << address.port;
    return text.str();
}
Rendezvous rendezvous_from(const std::string& text) {
    Rendezvous rendezvous;
    std::istringstream words(text);
    words >> rendezvous.key;
    for (Address address; words >> address.host >> address.port;) rendezvous.addresses.push_back(address);
    return rendezvous;
}

/// Without an address from the launcher, rank 0 broadcasts its addresses through MPI.
bool uses_mpi_rendezvous(const RankEnvironment& environment) {
    return environment.address.empty();
}
/// When all processes are on this host, rank 0 listens on the loopback interface only. Returns an empty text
/// for all interfaces.
std::string listen_host(const RankEnvironment& environment) {
    return is_single_host(environment) && !is_loopback(environment.address) ? "127.0.0.1"
                                                                            : environment.address;
}

void require_matching_mpi_world(const RankEnvironment& environment) {
    const mpi::World world = mpi::start();
    check(world.rank == environment.rank && world.size == environment.size, "MPI reports rank ", world.rank,
          " of ", world.size, ", the environment rank ", environment.rank, " of ", environment.size,
          "; expected the mpirun of the MPI that gradtile was built with");
}

/// Returns the key and the addresses that rank 0 broadcasts through MPI.
Rendezvous rendezvous_to_broadcast(const RankEnvironment& environment, int port) {
    Rendezvous rendezvous{.key = random_key()};
    if (is_single_host(environment)) {
        rendezvous.addresses = {{"127.0.0.1", port}};
    } else {
        for (const std::string& host : local_addresses()) rendezvous.addresses.push_back({host, port});
    }
    return rendezvous;
}

/// Without a key in the environment, the processes exchange one through a KeyFile.
Rendezvous rendezvous_from_environment(const RankEnvironment& environment) {
    const std::string host = listen_host(environment);
    Rendezvous rendezvous{.key = environment.key, .addresses = {{host, environment.port}}};
    // Rank 0's environment may not say that all processes are on this host; it then listens at this address.
    if (host != environment.address) rendezvous.addresses.push_back({environment.address, environment.port});
    return rendezvous;
}

/// A process's connection to the hub; on rank 0 also the hub itself.
struct Connection {
    MessageStream stream;
    std::unique_ptr<ControlHub> hub = {};
    std::unique_ptr<KeyFile> key_file = {};  // removed once all processes are connected
};

Connection open_hub(const RankEnvironment& environment, const ProcessGroupOptions& options,
                    SteadyTime deadline, std::size_t max_bytes) {
    Listener listener = listen_at(listen_host(environment), environment.port,
                                  std::min(deadline, SteadyClock::now() + max_wait_for_port));
    std::string key = environment.key;
    std::unique_ptr<KeyFile> key_file;
    if (uses_mpi_rendezvous(environment)) {
        const Rendezvous rendezvous = rendezvous_to_broadcast(environment, listener.port);
        mpi::broadcast(to_text(rendezvous));
        key = rendezvous.key;
    } else if (key.empty()) {
        key = random_key();
        key_file = std::make_unique<KeyFile>(listener.port, key);
    }
    auto [own, hub_end] = connected_pair();
    const SessionKeys keys{random_digest(), random_digest()};
    auto hub = std::make_unique<ControlHub>(std::move(listener),
                                            MessageStream(std::move(hub_end), keys.mirrored(), max_bytes),
                                            ControlHub::Options{.size = environment.size,
                                                                .timeout = options.timeout,
                                                                .keeps_place = options.replaces_rank,
                                                                .version = version(),
                                                                .key = key});
    return {MessageStream(std::move(own), keys, max_bytes), std::move(hub), std::move(key_file)};
}

/// Connects a rank other than 0 to rank 0. The connection is authenticated in both directions.
Connection connect_to_hub(const RankEnvironment& environment, SteadyTime deadline, std::size_t max_bytes) {
    const Rendezvous rendezvous = uses_mpi_rendezvous(environment) ? rendezvous_from(mpi::broadcast(""))
                                                                   : rendezvous_from_environment(environment);
    const Identity identity{.rank = environment.rank, .size = environment.size, .version = version()};
    while (true) {
        Connected hub = connect_to_one_of(rendezvous.addresses, deadline);
        const auto key = [&] {
            return rendezvous.key.empty() ? KeyFile::read(hub.address.port) : rendezvous.key;
        };
        if (const auto keys = authenticate_to_root(hub.socket, text_of(hub.address), identity, key, deadline))
            return {MessageStream(std::move(hub.socket), *keys, max_bytes)};
        // Rank 0 dropped the connection because too many were pending, or rank 0 is about to end.
        check(SteadyClock::now() < deadline, "rank 0 at ", text_of(hub.address), " closed the connection");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

/// Connects all processes within the timeout, which includes starting MPI.
Connection connect(const RankEnvironment& environment, const ProcessGroupOptions& options,
                   SteadyTime deadline) {
    StartDeadline start(after(deadline, start_grace_seconds), [&options](const std::string& what) {
        if (options.on_loss) options.on_loss(concat("start failed: after ", options.timeout, " s ", what));
    });
    if (uses_mpi_rendezvous(environment)) {
        start.set_waiting_for("MPI_Init still waits for a process that mpirun has started");
        require_matching_mpi_world(environment);
        start.set_waiting_for("the MPI broadcast of rank 0's address still waits");
    } else {
        start.set_waiting_for(concat("the look-up of ", environment.address, " still waits"));
    }
    const auto size = static_cast<std::size_t>(environment.size);
    const std::size_t max_bytes = size * max_exchanged_bytes + message_bytes_without_texts * size;
    return environment.rank == 0 ? open_hub(environment, options, deadline, max_bytes)
                                 : connect_to_hub(environment, deadline, max_bytes);
}

/// Describes how `mine` differs from `root`; empty when they are equal.
std::string difference(const std::string& root, const std::string& mine, int rank) {
    if (root == mine) return "";
    const JsonValue a = parse_json_or_null(root);
    const JsonValue b = parse_json_or_null(mine);
    constexpr std::size_t max_shown = 200;
    const auto shown = [](const JsonValue& object, const std::string& name) {
        return object.contains(name) ? object[name].dump().substr(0, max_shown) : std::string("missing");
    };
    if (a.is_object() && b.is_object()) {
        JsonValue names = a;
        for (const auto& [name, value] : b.items()) names.set(name, value);
        for (const auto& [name, value] : names.items())
            if (!a.contains(name) || !b.contains(name) || a[name] != b[name])
                return concat(name, " is ", shown(a, name), " on rank 0 and ", shown(b, name), " on rank ",
                              rank);
    }
    return concat("'", root.substr(0, max_shown), "' on rank 0 and '", mine.substr(0, max_shown),
                  "' on rank ", rank);
}

}  // namespace

ProcessGroup::ProcessGroup() = default;

ProcessGroup::ProcessGroup(const RankEnvironment& environment, ProcessGroupOptions options)
    : environment_(environment), options_(std::move(options)) {
    constexpr double max_timeout = 1e7;
    check(options_.timeout > 0.0 && options_.timeout <= max_timeout, "timeout: ", options_.timeout,
          "; expected seconds, more than 0 and at most ", max_timeout);
    if (is_alone()) return;
    require_key(environment);
    connect_all();
}

void ProcessGroup::connect_all() {
    const SteadyTime deadline = after(SteadyClock::now(), options_.timeout);
    Connection connection = connect(environment_, options_, deadline);
    // The hub's message at the deadline names the missing ranks. This process waits two seconds longer for
    // that message.
    watch_ = std::make_unique<Watch>(environment_, options_, survives_, std::move(connection.stream),
                                     std::move(connection.hub), deadline + std::chrono::seconds(2));
}

ProcessGroup::~ProcessGroup() = default;

std::string ProcessGroup::broadcast(const std::string& text, int root) {
    return watch_ ? watch_->exchange(rank() == root ? text : "").at(static_cast<std::size_t>(root)) : text;
}

std::vector<std::string> ProcessGroup::all_gather(const std::string& text) {
    return watch_ ? watch_->exchange(text) : std::vector{text};
}

void ProcessGroup::require_equal(const std::string& what, const std::string& text) {
    // Broadcasting rank 0's text and gathering only the differences avoids sending every text to every rank.
    const std::string root_text = broadcast(text);
    for (const std::string& found : all_gather(difference(root_text, text, rank())))
        check(found.empty(), what, " differs between ranks: ", found);
}

void ProcessGroup::report_step(std::int64_t step) {
    step_ = step;
    if (watch_) watch_->report_step(step);
}

ProcessGroup::Waiting ProcessGroup::waiting(const char* what) {
    return {watch_.get(), what};
}

ProcessGroup::Inspection ProcessGroup::inspect(FaultProbe probe, Interrupt interrupt) {
    return {watch_.get(), std::move(probe), std::move(interrupt)};
}

ProcessGroup::Survival ProcessGroup::survive_losses() {
    check(can_regroup(), "process group: lost processes are not replaced");
    return Survival(survives_);
}

void ProcessGroup::regroup(const RankLost& loss) {
    watch_.reset();  // the loss message was sent to all before this process received it
    environment_ = options_.next_environment(loss, step_);
    options_.replaces_rank = true;
    try {
        connect_all();
    } catch (const RankLost&) {
        throw;
    } catch (const Error& error) {
        throw RankLost(error.what(), -1, RankLost::Phase::start);
    }
}

int ProcessGroup::loss_descriptor() const {
    return watch_ ? watch_->loss_descriptor() : -1;
}

void ProcessGroup::throw_loss() {
    check(watch_ != nullptr, "process group: one process waits for another");
    watch_->throw_loss();
}

void ProcessGroup::leave() {
    if (watch_) watch_->leave();
}

bool ProcessGroup::fail(const std::string& message) noexcept {
    try {
        return !watch_ || watch_->fail(message);
    } catch (...) {  // the others notice the closed connection instead
        return true;
    }
}

ProcessGroup::Waiting::Waiting(Watch* watch, const char* what)
    : watch_(watch != nullptr && watch->begin_waiting(what) ? watch : nullptr) {}

ProcessGroup::Waiting::~Waiting() {
    if (watch_ != nullptr) watch_->end_waiting();
}

ProcessGroup::Inspection::Inspection(Watch* watch, FaultProbe probe, Interrupt interrupt) : watch_(watch) {
    if (watch_ != nullptr) watch_->begin_inspection(*this, {std::move(probe), std::move(interrupt)});
}

ProcessGroup::Inspection::~Inspection() {
    if (watch_ != nullptr) watch_->end_inspection(*this);
}

}  // namespace gradtile
