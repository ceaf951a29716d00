#include <gradtile/train/parallel/process_group.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include <gradtile/core/check.h>
#include <gradtile/train/parallel/internal/socket.h>
#include <gradtile/train/parallel/run_key.h>

namespace gradtile {
namespace {

/// A launcher's environment variables. Messages call every MPI launcher "mpirun".
struct Variables {
    const char* launcher;
    const char *rank, *size, *local_rank, *local_size;
};

/// Launchers whose variables exist only in processes that they started. Earlier entries take precedence.
constexpr std::array launchers = {
    Variables{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Variables{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Variables{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

/// The environment; an empty variable counts as not set.
class Environment {
  public:
    explicit Environment(const EnvironmentLookup& lookup) : lookup_(lookup) {}

    std::optional<std::string> text(const char* name) const {
        const char* const value = lookup_(name);
        if (value == nullptr || *value == '\0') return std::nullopt;
        return value;
    }
    bool has(const char* name) const { return text(name).has_value(); }

    /// Returns a variable's whole number from `min` to `max`; empty when the variable is not set.
    std::optional<std::int64_t> number(const char* name, std::int64_t min, std::int64_t max) const {
        const std::optional<std::string> value = text(name);
        if (!value) return std::nullopt;
        std::int64_t number = 0;
        const char* const end = value->data() + value->size();
        const auto [stop, error] = std::from_chars(value->data(), end, number);
        check(error == std::errc() && stop == end && number >= min && number <= max, name, ": '", *value,
              "'; expected a whole number from ", min, " to ", max);
        return number;
    }

  private:
    const EnvironmentLookup& lookup_;
};

constexpr std::int64_t max_processes = 1'000'000;

/// A process's ranks according to one launcher; local ranks are empty when the launcher does not set them.
struct Place {
    const Variables* from;
    std::int64_t rank = 0, size = 1;
    std::optional<std::int64_t> local_rank = {}, local_size = {};
};

std::optional<Place> read_place(const Environment& environment, const Variables& names) {
    if (!environment.has(names.rank) && !environment.has(names.size)) return std::nullopt;
    check(environment.has(names.size), names.size, ": not set, while ", names.rank, " is '",
          environment.text(names.rank).value_or(""), "'; expected the number of processes");
    check(environment.has(names.rank), names.rank, ": not set, while ", names.size, " is '",
          environment.text(names.size).value_or(""), "'; expected this process's rank");
    Place place{.from = &names};
    place.size = *environment.number(names.size, 1, max_processes);
    place.rank = *environment.number(names.rank, 0, place.size - 1);
    place.local_size = environment.number(names.local_size, 1, place.size);
    place.local_rank = environment.number(names.local_rank, 0, place.local_size.value_or(place.size) - 1);
    return place;
}

/// Two launchers may set their variables at once if the values agree.
void require_agreement(const Place& a, const Place& b) {
    const auto same = [&](const std::optional<std::int64_t>& x, const char* x_name,
                          const std::optional<std::int64_t>& y, const char* y_name) {
        check(!x || !y || *x == *y, x_name, " is ", x.value_or(0), ", but ", y_name, " is ", y.value_or(0),
              "; expected them to be equal, or only one to be set");
    };
    same(a.rank, a.from->rank, b.rank, b.from->rank);
    same(a.size, a.from->size, b.size, b.from->size);
    same(a.local_rank, a.from->local_rank, b.local_rank, b.from->local_rank);
    same(a.local_size, a.from->local_size, b.local_size, b.from->local_size);
}

// ---- Slurm ----

/// srun sets SLURM_STEP_ID and SLURM_PROCID in every task. A shell inside an allocation may be a special
/// step, too; special steps have numbers from first_special_step on.
constexpr std::int64_t first_special_step = 0xfffffff0;

bool is_srun_task(const Environment& environment) {
    const auto step = environment.number("SLURM_STEP_ID", 0, std::numeric_limits<std::uint32_t>::max());
    return step && *step < first_special_step && environment.has("SLURM_PROCID");
}

/// Parses the task count on this node: "2(x3),1" stands for 2, 2, 2 and 1 tasks on four nodes.
std::optional<std::int64_t> tasks_of_node(const Environment& environment, const char* name) {
    const std::optional<std::string> text = environment.text(name);
    const std::int64_t node = environment.number("SLURM_NODEID", 0, max_processes).value_or(0);
    if (!text) return std::nullopt;
    std::int64_t first_node = 0;
    for (const char *position = text->data(), *const end = position + text->size(); position < end;) {
        std::int64_t tasks = 0, nodes = 1;
        const auto count = std::from_chars(position, end, tasks);
        bool valid = count.ec == std::errc() && tasks >= 1;
        position = count.ptr;
        if (valid && std::string_view(position, end).starts_with("(x")) {
            const auto times = std::from_chars(position + 2, end, nodes);
            valid = times.ec == std::errc() && times.ptr < end && *times.ptr == ')';
            position = times.ptr + 1;
        }
        valid = valid && (position == end || *position == ',');
        check(valid, name, ": '", *text, "'; expected tasks per node, like 2(x3),1");
        if (node < first_node + nodes) return tasks;
        first_node += nodes;
        ++position;
    }
    return std::nullopt;
}

/// The first host in a Slurm list: "node03" for "node[03-07,12],login".
std::string first_host(const char* name, const std::string& list) {
    std::string host;
    bool inside = false, number_done = false;  // inside brackets; their first number is complete
    for (const char c : list) {
        if (c == '[' || c == ']') {
            check(inside == (c == ']'), name, ": '", list, "'; expected hosts like node[03-07,12]");
            inside = !inside;
            number_done = false;
        } else if (inside) {
            number_done = number_done || c == '-' || c == ',';
            if (!number_done) host += c;
        } else if (c == ',') {
            break;
        } else {
            host += c;
        }
    }
    check(!inside && !host.empty(), name, ": '", list, "'; expected hosts like node[03-07,12]");
    return host;
}

/// The port is computed from job and step, so that every task computes the same one. The port is below
/// Linux's ephemeral ports.
int port_of_step(const Environment& environment) {
    constexpr std::int64_t max_id = std::numeric_limits<std::uint32_t>::max();
    const std::int64_t job = environment.number("SLURM_JOB_ID", 0, max_id).value_or(0);
    const std::int64_t step = environment.number("SLURM_STEP_ID", 0, max_id).value_or(0);
    return static_cast<int>(12'000 + (8 * job + step) % 20'000);
}

RankEnvironment read_srun_environment(const Environment& environment) {
    const char* const size_name =
        environment.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    const Variables names{"srun", "SLURM_PROCID", size_name, "SLURM_LOCALID", nullptr};
    check(environment.has(size_name), "SLURM_NTASKS: not set, while SLURM_PROCID is '",
          environment.text("SLURM_PROCID").value_or(""), "'; expected the number of tasks");
    RankEnvironment result{.launcher = names.launcher};
    result.size = static_cast<int>(*environment.number(names.size, 1, max_processes));
    result.rank = static_cast<int>(*environment.number(names.rank, 0, result.size - 1));
    const std::int64_t local_rank = environment.number(names.local_rank, 0, result.size - 1).value_or(0);
    std::optional<std::int64_t> local_size = tasks_of_node(environment, "SLURM_STEP_TASKS_PER_NODE");
    if (!local_size) local_size = tasks_of_node(environment, "SLURM_TASKS_PER_NODE");
    check(!local_size || local_rank < *local_size, "SLURM_LOCALID: ", local_rank,
          "; expected less than this node's ", local_size.value_or(0), " tasks");
    result.local_rank = static_cast<int>(local_rank);
    result.local_size = static_cast<int>(local_size.value_or(local_rank + 1));
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
        if (!result.address.empty() || !environment.has(name)) continue;
        result.address = first_host(name, *environment.text(name));
        result.port = port_of_step(environment);
    }
    return result;
}

// ---- Where rank 0 listens ----

/// MASTER_ADDR and MASTER_PORT take precedence over the launcher's address.
void apply_master_address(const Environment& environment, bool has_mpi, RankEnvironment& result) {
    const std::optional<std::string> address = environment.text("MASTER_ADDR");
    const std::optional<std::int64_t> port = environment.number("MASTER_PORT", 1, 65'535);
    if (address) result.address = *address;
    if (port) result.port = static_cast<int>(*port);
    check(result.address.empty() || result.port != 0, "MASTER_PORT: not set, while MASTER_ADDR is '",
          result.address, "'; expected a port that is free on that host");
    check(!result.address.empty() || has_mpi, "MASTER_ADDR: not set, while ", result.launcher, " started ",
          result.size, " processes; expected the host of rank 0");
    // torchrun itself listens on MASTER_PORT while its processes run.
    if (port && environment.has("TORCHELASTIC_RUN_ID")) {
        check(*port < 65'535, "MASTER_PORT: ", *port,
              "; expected less than 65535, because rank 0 listens at the next port under torchrun");
        ++result.port;
    }
}

}  // namespace

bool is_single_host(const RankEnvironment& environment) {
    return environment.local_size == environment.size || is_loopback(environment.address);
}

void require_key(const RankEnvironment& environment) {
    const bool uses_mpi_rendezvous = environment.address.empty();
    check(uses_mpi_rendezvous || is_single_host(environment) || !environment.key.empty(),
          "GRADTILE_RUN_KEY: not set, while rank 0 listens at ", environment.address,
          "; expected the same secret for every process: export GRADTILE_RUN_KEY=$(openssl rand -hex 32)");
}

RankEnvironment read_rank_environment(const EnvironmentLookup& lookup) {
    const Environment environment(lookup);
    std::optional<Place> place;
    bool has_mpi = false;
    for (const Variables& names : launchers) {
        const std::optional<Place> found = read_place(environment, names);
        if (!found) continue;
        has_mpi = has_mpi || &names != &launchers.front();
        if (place) {
            require_agreement(*place, *found);
            if (!place->local_rank) place->local_rank = found->local_rank;
            if (!place->local_size) place->local_size = found->local_size;
        } else {
            place = found;
        }
    }
    RankEnvironment result;
    if (place) {
        // Without local variables each host runs one process.
        const std::int64_t local_rank =
            place->local_rank.value_or(place->local_size ? place->rank % *place->local_size : 0);
        result = {.rank = static_cast<int>(place->rank),
                  .size = static_cast<int>(place->size),
                  .local_rank = static_cast<int>(local_rank),
                  .local_size = static_cast<int>(place->local_size.value_or(local_rank + 1)),
                  .launcher = place->from->launcher};
    } else if (is_srun_task(environment)) {
        // Slurm's variables are read last, because srun also starts the daemons of mpirun and torchrun, once
        // on each node.
        result = read_srun_environment(environment);
    }
    if (result.size > 1) {
        apply_master_address(environment, has_mpi, result);
        result.key = environment.text("GRADTILE_RUN_KEY").value_or("");
        if (!result.key.empty()) check_run_key(result.key);
    } else {
        result.address.clear();
        result.port = 0;
    }
    return result;
}

RankEnvironment read_rank_environment() {
    return read_rank_environment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace gradtile
