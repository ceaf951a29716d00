#include <gradtile/train/parallel/internal/mpi.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <gradtile/core/shared_library.h>
#include <gradtile/core/version.h>

namespace gradtile::mpi {
namespace {

constexpr const char* plugin_name = "libgradtile_mpi.so";

const GradtileMpi* load_plugin() {
    // The loader searches the program's RUNPATH, which contains the plug-in's directory.
    const SharedLibrary library("mpi", {plugin_name},
                                "several processes on the CPU need the MPI that gradtile was built with "
                                "(apt-get install openmpi-bin), and gradtile's plug-in for it in "
                                "lib/gradtile or on LD_LIBRARY_PATH");
    decltype(&gradtile_mpi) functions = nullptr;
    library.find("gradtile_mpi", functions);
    const GradtileMpi* const plugin = functions();
    check(std::string_view(plugin->version) == version(), "mpi: ", plugin_name, " is of gradtile ",
          plugin->version, "; expected gradtile ", version());
    return plugin;
}

/// Under srun without PMI support, Open MPI aborts the process in MPI_Init and prints many lines. This check
/// throws a one-line Error before that.
void require_launcher() {
    const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
    check(!functions().is_open_mpi || !is_set("SLURM_STEP_NUM_TASKS") || is_set("PMIX_RANK") ||
              is_set("OMPI_COMM_WORLD_SIZE"),
          "mpi: srun started this process without telling Open MPI; start it with srun --mpi=pmix or mpirun");
}

void broadcast_bytes(void* data, std::size_t size) {
    mpi_check(functions().broadcast(data, static_cast<int>(size), /*root=*/0), "broadcast");
}

}  // namespace

const GradtileMpi& functions() {
    static const GradtileMpi* const plugin = load_plugin();
    return *plugin;
}

bool is_available() {
    try {
        functions();
        return true;
    } catch (const Error&) {
        return false;
    }
}

World start() {
    require_launcher();
    World world{};
    mpi_check(functions().start(&world.rank, &world.size), "start");
    return world;
}

std::string broadcast(const std::string& text) {
    std::string copy = text;
    auto length = static_cast<std::uint64_t>(copy.size());
    broadcast_bytes(&length, sizeof length);
    copy.resize(length);
    broadcast_bytes(copy.data(), length);
    return copy;
}

void mpi_check(int status, const char* what) {
    if (status == 0) return;
    std::array<char, 512> message{};
    functions().describe(status, message.data(), static_cast<int>(message.size()));
    throw Error(concat("mpi: ", what, ": ", message.data()));
}

}  // namespace gradtile::mpi
