// gradtile bench checkpoint: the cost of a checkpoint with AdamW's moments in float32. Compares the time that
// a step is blocked with one copy of the same memory, and the time until the file is durable with a plain
// sequential write and fsync of as many bytes. On a GPU the state is in device memory, and a step is blocked
// only for a copy within this memory.
#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/devices.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/checkpoint/snapshot_writer.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::string preset = "gpt2-124m", directory = ".";
    DeviceChoice device = DeviceChoice::cpu;
    std::int64_t runs = 5;
    bool json = false;
};

/// A new directory, which is removed with everything in it.
class ScratchDirectory {
  public:
    explicit ScratchDirectory(const std::filesystem::path& parent)
        : path_(parent / concat("gradtile-bench-", random_hex(8))) {
        with_file_name("directory", path_, [&] { make_directories(FileSystem::posix(), absolute(path_)); });
    }
    ~ScratchDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    ScratchDirectory(const ScratchDirectory&) = delete;
    ScratchDirectory& operator=(const ScratchDirectory&) = delete;
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

Checkpoint state_of(const Context& host, ModelConfig config) {
    if (config.vocabulary == 0) config.vocabulary = 65;  // the characters of tiny Shakespeare
    ParameterStore store;
    const Transformer model(config, store);
    const RandomNumbers numbers(host);
    Checkpoint state;
    for (const Parameter& parameter : store.parameters()) {
        const auto draw = [&] { return numbers(host, parameter.shape(), DType::f32); };
        state.params[parameter.name()] = draw();
        for (const char* moment : {"adamw/m/", "adamw/v/"})
            state.optimizer[moment + parameter.name()] = draw();
    }
    return state;
}

template <class Visit>
void for_each_tensor(const Checkpoint& state, Visit&& visit) {
    for (const NamedTensors* tensors : {&state.params, &state.optimizer})
        for (const auto& [name, x] : *tensors) visit(x);
}

/// Writes the tensors one after the other in pieces of 1 MiB, then calls fsync.
void write_plainly(const std::filesystem::path& path, const Checkpoint& state) {
    OpenFile file(FileSystem::posix(), path, O_WRONLY | O_CREAT | O_TRUNC);
    std::uint64_t offset = 0;
    for_each_tensor(state, [&](const Tensor& x) {
        for (std::size_t begin = 0; begin < x.bytes(); begin += std::size_t{1} << 20) {
            const std::size_t piece = std::min(x.bytes() - begin, std::size_t{1} << 20);
            file.write(x.raw_data() + begin, piece, offset);
            offset += piece;
        }
    });
    file.sync();
    file.close();
}

/// Seconds of each kind of work, in every run.
struct Times {
    std::vector<double> copy, blocked, plain, save, read;
};

/// Measures a save, and in the same run a copy, a plain write and a read.
void measure_run(const Context& ctx, SnapshotWriter& writer, const Checkpoint& live,
                 const Checkpoint& on_host, std::vector<std::byte>& memory, Times& times) {
    const auto seconds = [&](const std::function<void()>& work) {
        return 1e-3 * milliseconds(ctx, Clock::wall, work);
    };
    times.copy.push_back(seconds([&] {
        std::byte* to = memory.data();
        for_each_tensor(on_host, [&](const Tensor& x) {
            std::memcpy(to, x.raw_data(), x.bytes());
            to += x.bytes();
        });
    }));
    const std::filesystem::path plain = writer.directory().path() / "plain";
    times.plain.push_back(seconds([&] { write_plainly(plain, on_host); }));
    std::filesystem::remove(plain);
    writer.save(live);
    writer.wait();
    const SaveReport report = writer.poll().at(0);
    check(report.saved, report.message);
    times.blocked.push_back(report.copy_seconds);
    times.save.push_back(report.write_seconds);
    times.read.push_back(seconds([&] { read_checkpoint(report.path); }));
    std::filesystem::remove(report.path);
}

int bench_checkpoint(const Flags& flags) {
    check_flag("--runs", flags.runs, runs_range);
    const ModelConfig config = rethrow_as_usage_error([&] { return preset(flags.preset); }).model;
    const Context host, ctx = Context(resolve_device(flags.device));
    const Checkpoint on_host = state_of(host, config);
    Checkpoint live = on_host;
    for (NamedTensors* tensors : {&live.params, &live.optimizer})
        for (auto& [name, x] : *tensors) x = to_device(ctx, x);
    std::size_t bytes = 0;
    for_each_tensor(on_host, [&](const Tensor& x) { bytes += x.bytes(); });
    std::vector<std::byte> memory(bytes, std::byte{1});

    check_usage(std::filesystem::is_directory(flags.directory), "--directory: '", flags.directory,
                "'; expected an existing directory");
    const ScratchDirectory directory(flags.directory);
    // keep_last exceeds the number of runs, so that the timed saves delete no old files.
    SnapshotWriter writer(CheckpointDirectory(directory.path(), {.keep_last = flags.runs + 1}), ctx);
    writer.reserve(live);
    Times times;
    for (live.step = 0; live.step < flags.runs; ++live.step)
        measure_run(ctx, writer, live, on_host, memory, times);
    Table table({{"preset", "preset", Column::Kind::text, 20},
                 {"device", "device", Column::Kind::text, 7},
                 {"gigabytes", "GB"},
                 {"memcpy_s", "memcpy s"},
                 {"blocked_s", "step waits s", Column::Kind::number, 12},
                 {"plain_write_s", "plain write s", Column::Kind::number, 13},
                 {"durable_s", "durable s"},
                 {"read_s", "read s"}},
                flags.json);
    table.add({flags.preset, concat(ctx.device()), 1e-9 * static_cast<double>(bytes), median(times.copy),
               median(times.blocked), median(times.plain), median(times.save), median(times.read)});
    return 0;
}

}  // namespace

void add_bench_checkpoint(Command& bench) {
    Command command = bench.add_command("checkpoint", "Time saves of a model with AdamW's moments");
    const auto flags = std::make_shared<Flags>();
    command.add_value("--preset", flags->preset, "settings whose model is saved");
    add_device_flag(command, flags->device);
    command.add_value("--directory", flags->directory,
                      "where to write: in a new directory, which is removed at the end");
    command.add_value("--runs", flags->runs, "number of timings; their median is reported");
    command.add_switch("--json", flags->json, "print one JSON object per row");
    command.set_action([flags] { return bench_checkpoint(*flags); });
}

}  // namespace gradtile::cli
