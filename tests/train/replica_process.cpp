// One rank that restores a checkpoint into a Replica and makes checkpoints from the Replica again, a whole
// one and, if ZERO is not 0, one in parts: replica_process CHECKPOINT DEVICE ZERO... does this with each ZERO
// in turn. The exit code is 0 if every tensor has the same bits as before.
#include <cstring>
#include <iostream>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/train/parallel/data_parallel.h>
#include <gradtile/train/replica.h>
#include <gradtile/train/run/shared_save.h>

using namespace gradtile;

namespace {

Tensor on_host(const Context& ctx, const Tensor& x) {
    if (x.device().is_cpu()) return x;
    Tensor copied = empty(Context(Device::cpu(), 1), x.shape(), x.dtype());
    cuda::copy_bytes(copied.raw_data(), x.raw_data(), x.bytes(), ctx.device(), ctx.stream());
    cuda::synchronize(ctx.device(), ctx.stream());
    return copied;
}

int count_differences(const Context& ctx, const char* group, const NamedTensors& expected,
                      const NamedTensors& got) {
    int differences = 0;
    const auto differs = [&](const std::string& name) {
        std::cout << group << '/' << name << " differs\n";
        ++differences;
    };
    for (const auto& [name, x] : expected) {
        const auto found = got.find(name);
        if (found == got.end() || found->second.shape() != x.shape() || found->second.dtype() != x.dtype() ||
            std::memcmp(on_host(ctx, found->second).raw_data(), x.raw_data(), x.bytes()) != 0)
            differs(name);
    }
    if (got.size() != expected.size()) differs("the number of tensors");
    return differences;
}

int count_differences(const Context& ctx, const Checkpoint& expected, const Checkpoint& got) {
    return count_differences(ctx, "params", expected.params, got.params) +
           count_differences(ctx, "master", expected.master, got.master) +
           count_differences(ctx, "optimizer", expected.optimizer, got.optimizer);
}

/// Saves the replica's state in parts, and reads it in rank 0.
Checkpoint saved_in_parts(Replica& replica, ProcessGroup& group, const std::filesystem::path& directory) {
    const CheckpointDirectory checkpoints(directory);
    SnapshotWriter writer(checkpoints, replica.model.ctx);
    SharedSave save(group, writer);
    Checkpoint part;
    replica.save_part_into(part);
    save.start(std::move(part), Checkpoint(), replica.saved_tensors(), /*best=*/false);
    save.finish();
    for (const SaveReport& report : save.poll()) check(report.saved, report.message);
    Checkpoint saved = group.is_root() ? read_checkpoint(checkpoints.path_of(0)) : Checkpoint();
    if (group.is_root()) std::filesystem::remove_all(directory);
    return saved;
}

/// Returns how many tensors differ, in rank 0.
int count_differences_of_zero(const Context& ctx, const std::string& path, const Checkpoint& checkpoint,
                              ProcessGroup& group, Communicator& communicator, int zero) {
    TrainConfig config;
    apply_json(config, checkpoint.config, path);
    config.zero = zero;
    int differences = 0;
    Replica replica(ctx, config, tokenizer_of(checkpoint, path), communicator);
    replica.initialize(Seed{5});
    replica.restore(group.is_root() ? checkpoint : Checkpoint{}, path);
    Checkpoint again;
    replica.save_into(again);
    if (group.is_root()) differences = count_differences(ctx, checkpoint, again);
    if (replica.parallel.is_sharded()) {
        const Checkpoint parts =
            saved_in_parts(replica, group, std::filesystem::path(path).parent_path() / "parts");
        if (group.is_root()) differences += count_differences(ctx, checkpoint, parts);
    }
    if (differences > 0) std::cout << "with zero " << zero << std::endl;
    communicator.barrier(ctx);
    return differences;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        check(argc >= 4, "usage: replica_process CHECKPOINT DEVICE ZERO...");
        const std::string path = argv[1];
        const RankEnvironment environment = read_rank_environment();
        ProcessGroup group(environment, {.timeout = 60.0, .on_loss = [](const std::string& line) {
                                             std::cerr << line << std::endl;
                                             std::_Exit(101);
                                         }});
        const Checkpoint checkpoint = read_checkpoint(path);
        const bool on_gpu = std::string(argv[2]) == "cuda";
        const Context ctx(on_gpu ? Device::cuda(environment.local_rank) : Device::cpu(), 1);
        int differences = 0;
        {
            const auto communicator = make_communicator(ctx, group);
            for (int i = 3; i < argc; ++i)
                differences += count_differences_of_zero(ctx, path, checkpoint, group, *communicator,
                                                         std::stoi(argv[i]));
        }
        group.leave();
        return std::min(differences, 100);
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 102;
    }
}
