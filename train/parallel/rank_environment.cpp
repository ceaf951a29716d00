#include <gradtile/train/parallel/rank_environment.h>

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

/// What a launcher calls a process's place. Several kinds of mpirun share a name in messages.
struct Variables {
    const char* launcher;
    const char *rank, *size, *local_rank, *local_size;
};

/// Those that say by themselves that a process is one of many. What stands further up is believed first.
constexpr std::array launchers = {
    Variables{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Variables{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Variables{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

/// The environment, in which an empty variable is one that is not set.
class Environment {
  public:
    explicit Environment(const EnvironmentLookup& lookup) : lookup_(lookup) {}

    std::optional<std::string> text(const char* name) const {
        const char* const value = lookup_(name);
        if (value == nullptr || *value == '\0') return std::nullopt;
        return value;
    }
    bool has(const char* name) const { return text(name).has_value(); }

    /// A whole number from `least` to `most`, when the variable is set.
    std::optional<std::int64_t> number(const char* name, std::int64_t least, std::int64_t most) const {
        const std::optional<std::string> value = text(name);
        if (!value) return std::nullopt;
        std::int64_t number = 0;
        const char* const end = value->data() + value->size();
        const auto [stop, error] = std::from_chars(value->data(), end, number);
        check(error == std::errc() && stop == end && number >= least && number <= most, name, ": '", *value,
              "'; expected a whole number from ", least, " to ", most);
        return number;
    }

  private:
    const EnvironmentLookup& lookup_;
};

constexpr std::int64_t most_processes = 1'000'000;

/// A launcher's word for this process; a local place it does not tell is empty.
struct Place {
    const Variables* from;
    std::int64_t rank = 0, size = 1;
    std::optional<std::int64_t> local_rank = {}, local_size = {};
};

std::optional<Place> place_told_by(const Environment& environment, const Variables& names) {
    if (!environment.has(names.rank) && !environment.has(names.size)) return std::nullopt;
    check(environment.has(names.size), names.size, ": not set, while ", names.rank, " is '",
          environment.text(names.rank).value_or(""), "'; expected the number of processes");
    check(environment.has(names.rank), names.rank, ": not set, while ", names.size, " is '",
          environment.text(names.size).value_or(""), "'; expected this process's rank");
    Place place{.from = &names};
    place.size = *environment.number(names.size, 1, most_processes);
    place.rank = *environment.number(names.rank, 0, place.size - 1);
    place.local_size = environment.number(names.local_size, 1, place.size);
    place.local_rank = environment.number(names.local_rank, 0, place.local_size.value_or(place.size) - 1);
    return place;
}

/// Both may speak, as long as they say the same.
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

/// A step that srun started, with its tasks as processes. A shell inside an allocation has SLURM_NTASKS, too,
/// and may be a step of its own kind; those have the numbers from here on.
constexpr std::int64_t first_special_step = 0xfffffff0;

bool is_srun_task(const Environment& environment) {
    const auto step = environment.number("SLURM_STEP_ID", 0, std::numeric_limits<std::uint32_t>::max());
    return step && *step < first_special_step && environment.has("SLURM_PROCID");
}

/// "2(x3),1": the tasks of each node in turn.
std::optional<std::int64_t> tasks_of_node(const Environment& environment, const char* name) {
    const std::optional<std::string> text = environment.text(name);
    const std::int64_t node = environment.number("SLURM_NODEID", 0, most_processes).value_or(0);
    if (!text) return std::nullopt;
    std::int64_t first_node = 0;
    for (const char *at = text->data(), *const end = at + text->size(); at < end;) {
        std::int64_t tasks = 0, nodes = 1;
        const auto count = std::from_chars(at, end, tasks);
        bool understood = count.ec == std::errc() && tasks >= 1;
        at = count.ptr;
        if (understood && std::string_view(at, end).starts_with("(x")) {
            const auto times = std::from_chars(at + 2, end, nodes);
            understood = times.ec == std::errc() && times.ptr < end && *times.ptr == ')';
            at = times.ptr + 1;
        }
        understood = understood && (at == end || *at == ',');
        check(understood, name, ": '", *text, "'; expected tasks per node, like 2(x3),1");
        if (node < first_node + nodes) return tasks;
        first_node += nodes;
        ++at;
    }
    return std::nullopt;
}

/// Of "node[03-07,12],login": node03.
std::string first_host(const char* name, const std::string& list) {
    std::string host;
    bool inside = false, taken = false;  // of brackets; of their first number
    for (const char c : list) {
        if (c == '[' || c == ']') {
            check(inside == (c == ']'), name, ": '", list, "'; expected hosts like node[03-07,12]");
            inside = !inside;
            taken = false;
        } else if (inside) {
            taken = taken || c == '-' || c == ',';
            if (!taken) host += c;
        } else if (c == ',') {
            break;
        } else {
            host += c;
        }
    }
    check(!inside && !host.empty(), name, ": '", list, "'; expected hosts like node[03-07,12]");
    return host;
}

/// Below the ports that connections are given by themselves, and the same in every task of the step.
int port_of_step(const Environment& environment) {
    constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
    const std::int64_t job = environment.number("SLURM_JOB_ID", 0, most).value_or(0);
    const std::int64_t step = environment.number("SLURM_STEP_ID", 0, most).value_or(0);
    return static_cast<int>(12'000 + (8 * job + step) % 20'000);
}

RankEnvironment of_srun(const Environment& environment) {
    const char* const size_name =
        environment.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    const Variables names{"srun", "SLURM_PROCID", size_name, "SLURM_LOCALID", nullptr};
    check(environment.has(size_name), "SLURM_NTASKS: not set, while SLURM_PROCID is '",
          environment.text("SLURM_PROCID").value_or(""), "'; expected the number of tasks");
    RankEnvironment result{.launcher = names.launcher};
    result.size = static_cast<int>(*environment.number(names.size, 1, most_processes));
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

/// What the user says of it wins over what the launcher implies.
void apply_master(const Environment& environment, bool mpi_can_tell, RankEnvironment& result) {
    const std::optional<std::string> address = environment.text("MASTER_ADDR");
    const std::optional<std::int64_t> port = environment.number("MASTER_PORT", 1, 65'535);
    if (address) result.address = *address;
    if (port) result.port = static_cast<int>(*port);
    check(result.address.empty() || result.port != 0, "MASTER_PORT: not set, while MASTER_ADDR is '",
          result.address, "'; expected a port that is free on that host");
    check(!result.address.empty() || mpi_can_tell, "MASTER_ADDR: not set, while ", result.launcher,
          " tells of ", result.size, " processes; expected the host of rank 0");
    // torchrun itself listens on MASTER_PORT, as long as its processes live.
    if (port && environment.has("TORCHELASTIC_RUN_ID")) {
        check(*port < 65'535, "MASTER_PORT: ", *port, "; expected a port with another one behind it");
        ++result.port;
    }
}

}  // namespace

bool are_all_here(const RankEnvironment& environment) {
    return environment.local_size == environment.size || is_loopback(environment.address);
}

void require_key(const RankEnvironment& environment) {
    const bool is_told_by_mpi = environment.address.empty();
    check(is_told_by_mpi || are_all_here(environment) || !environment.key.empty(),
          "GRADTILE_RUN_KEY: not set, while the processes meet at ", environment.address,
          "; expected the same secret for every process: export GRADTILE_RUN_KEY=$(openssl rand -hex 32)");
}

RankEnvironment read_rank_environment(const EnvironmentLookup& lookup) {
    const Environment environment(lookup);
    std::optional<Place> place;
    bool mpi_can_tell = false;
    for (const Variables& names : launchers) {
        const std::optional<Place> told = place_told_by(environment, names);
        if (!told) continue;
        mpi_can_tell = mpi_can_tell || &names != &launchers.front();
        if (place) {
            require_agreement(*place, *told);
            if (!place->local_rank) place->local_rank = told->local_rank;
            if (!place->local_size) place->local_size = told->local_size;
        } else {
            place = told;
        }
    }
    RankEnvironment result;
    if (place) {
        // Without a word of it there is one process on each host.
        const std::int64_t local_rank =
            place->local_rank.value_or(place->local_size ? place->rank % *place->local_size : 0);
        result = {.rank = static_cast<int>(place->rank),
                  .size = static_cast<int>(place->size),
                  .local_rank = static_cast<int>(local_rank),
                  .local_size = static_cast<int>(place->local_size.value_or(local_rank + 1)),
                  .launcher = place->from->launcher};
    } else if (is_srun_task(environment)) {
        // Only here: mpirun and torchrun are themselves started by srun, once on each node.
        result = of_srun(environment);
    }
    if (result.size > 1) {
        apply_master(environment, mpi_can_tell, result);
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
