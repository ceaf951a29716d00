// The cost of a checkpoint of GPT-2 124M with AdamW's moments (1.5 GB in float32): the time that a training
// step is blocked, compared with one copy of the same memory, and the time until the file is durable,
// compared with a plain sequential write and fsync of as many bytes into the same directory. Measurements are
// interleaved; medians are printed. On a GPU the state is in device memory, and a step is blocked only for a
// copy within this memory.
//
//     checkpoint_bench [DIRECTORY] [ROUNDS] [--device cuda]
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/snapshot_writer.h>

using namespace gradtile;

namespace {

template <class Work>
double seconds(Work&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

Checkpoint gpt2_124m(const Context& ctx) {
    constexpr std::int64_t width = 768;
    Checkpoint c;
    const auto add = [&](const std::string& name, const Shape& shape) {
        const Seed seed{static_cast<std::uint64_t>(c.params.size())};
        c.params[name] = randn(ctx, shape, DType::f32, seed);
        c.optimizer["adamw/m/" + name] = randn(ctx, shape, DType::f32, seed);
        c.optimizer["adamw/v/" + name] = rand(ctx, shape, DType::f32, seed);
    };
    add("token_embedding.weight", {50257, width});
    add("position_embedding.weight", {1024, width});
    for (int block = 0; block < 12; ++block) {
        const std::string prefix = concat("blocks.", block, '.');
        add(prefix + "attention_norm.weight", {width});
        add(prefix + "attention_norm.bias", {width});
        add(prefix + "attention.qkv.weight", {3 * width, width});
        add(prefix + "attention.qkv.bias", {3 * width});
        add(prefix + "attention.projection.weight", {width, width});
        add(prefix + "attention.projection.bias", {width});
        add(prefix + "mlp_norm.weight", {width});
        add(prefix + "mlp_norm.bias", {width});
        add(prefix + "mlp.up.weight", {4 * width, width});
        add(prefix + "mlp.up.bias", {4 * width});
        add(prefix + "mlp.down.weight", {width, 4 * width});
        add(prefix + "mlp.down.bias", {width});
    }
    add("norm.weight", {width});
    add("norm.bias", {width});
    return c;
}

// Writes the same bytes without checksums or verification: one tensor after the other in pieces of 1 MiB,
// then fsync.
void write_plainly(const std::filesystem::path& path, const Checkpoint& c) {
    OpenFile file(FileSystem::posix(), path, O_WRONLY | O_CREAT | O_TRUNC);
    std::uint64_t offset = 0;
    for (const NamedTensors* tensors : {&c.params, &c.optimizer}) {
        for (const auto& [name, x] : *tensors) {
            for (std::size_t begin = 0; begin < x.bytes(); begin += std::size_t{1} << 20) {
                const std::size_t piece = std::min(x.bytes() - begin, std::size_t{1} << 20);
                file.write(x.raw_data() + begin, piece, offset);
                offset += piece;
            }
        }
    }
    file.sync();
    file.close();
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    bool gpu = false;
    if (arguments.size() >= 2 && arguments[arguments.size() - 2] == "--device") {
        gpu = arguments.back() == "cuda";
        arguments.resize(arguments.size() - 2);
    }
    const std::filesystem::path place = !arguments.empty() ? arguments[0] : "checkpoint_bench_files";
    const int rounds = arguments.size() > 1 ? std::max(1, std::stoi(arguments[1])) : 5;
    try {
        const Context host;
        const Context ctx = gpu ? Context(Device::cuda()) : host;
        Checkpoint c = gpt2_124m(host);
        const Checkpoint on_host = c;
        if (gpu) {
            for (NamedTensors* tensors : {&c.params, &c.optimizer})
                for (auto& [name, x] : *tensors) x = to_device(ctx, x);
        }
        std::uint64_t bytes = 0;
        for (const NamedTensors* tensors : {&c.params, &c.optimizer}) {
            for (const auto& [name, x] : *tensors) bytes += x.bytes();
        }
        const double gigabytes = static_cast<double>(bytes) / 1e9;
        std::vector<std::byte> memory(bytes, std::byte{1});
        const auto copy_plainly = [&] {
            std::byte* to = memory.data();
            for (const NamedTensors* tensors : {&on_host.params, &on_host.optimizer}) {
                for (const auto& [name, x] : *tensors) {
                    std::memcpy(to, x.raw_data(), x.bytes());
                    to += x.bytes();
                }
            }
        };

        // keep_last exceeds the number of rounds, so that the timed saves delete no old files.
        SnapshotWriter writer(CheckpointDirectory(place, {.keep_last = rounds + 1}), ctx);
        const double reserve = seconds([&] { writer.reserve(c); });
        std::vector<double> copy, blocked, plain, save, read;
        const std::filesystem::path plain_file = place / "plain";
        make_directories(FileSystem::posix(), place);
        for (int round = 0; round < rounds; ++round) {
            copy.push_back(seconds(copy_plainly));
            plain.push_back(seconds([&] { write_plainly(plain_file, on_host); }));
            std::filesystem::remove(plain_file);
            c.step = round;
            writer.save(c);
            writer.wait();
            const SaveReport report = writer.poll().at(0);
            check(report.saved, report.message);
            blocked.push_back(report.copy_seconds);
            save.push_back(report.write_seconds);
            read.push_back(seconds([&] { read_checkpoint(report.path); }));
            std::filesystem::remove(report.path);
        }
        std::filesystem::remove_all(place);
        const auto line = [&](const char* what, const std::vector<double>& times) {
            std::cout << what << ": " << median(times) << " s (" << gigabytes / median(times)
                      << " GB/s; from " << *std::min_element(times.begin(), times.end()) << " to "
                      << *std::max_element(times.begin(), times.end()) << " s)\n";
        };
        std::cout << "state: " << gigabytes << " GB, " << ctx.threads().size() << " threads, " << rounds
                  << " rounds; staging memory reserved once in " << reserve << " s\n";
        line("memcpy of the state, one thread   ", copy);
        line("a step is blocked for             ", blocked);
        line("plain sequential write and fsync  ", plain);
        line("checkpoint, verified and durable  ", save);
        line("reading it back, verified         ", read);
        std::cout << "blocked / memcpy: " << median(blocked) / median(copy)
                  << "\ncheckpoint speed / plain speed: " << median(plain) / median(save) << '\n';
    } catch (const std::exception& error) {
        std::cerr << "checkpoint_bench: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
