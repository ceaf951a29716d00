// Fuzzes the checkpoint reader with malicious files: small valid checkpoints are modified byte by byte or in
// their manifest's structure, and all checksums (header, manifest, tensors, body) are then made valid, so
// that only the reader's own checks can reject them. Some checkpoints have parts; then one of their files is
// modified, and the main file lists it. The reader may throw Error and nothing else, and the data that it
// returns must not be larger than the files.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <span>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/checkpoint/checkpoint_names.h>

#include <support/checkpoint_in_parts.h>
#include <support/resealed_checkpoint.h>

namespace gradtile::test {
namespace {

/// Interprets the fuzzer's bytes as choices; after the last byte all choices are 0.
class Choices {
  public:
    Choices(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

    bool more() const { return !left_.empty(); }
    std::uint8_t byte() {
        if (left_.empty()) return 0;
        const std::uint8_t value = left_.front();
        left_ = left_.subspan(1);
        return value;
    }
    std::uint64_t word() {
        std::uint64_t value = 0;
        for (int i = 0; i < 8; ++i) value = value << 8 | byte();
        return value;
    }
    /// Returns a number from `first` to `last`, inclusive.
    std::uint64_t between(std::uint64_t first, std::uint64_t last) {
        const std::uint64_t span = last - first + 1;
        return first + (span == 0 ? word() : (span <= 256 ? byte() : word()) % span);
    }
    std::vector<std::byte> bytes(std::size_t max_count) {
        const auto taken = std::as_bytes(left_.first(std::min(max_count, left_.size())));
        left_ = left_.subspan(taken.size());
        return {taken.begin(), taken.end()};
    }
    /// Returns an edge-case size, a number near `usual`, or any number.
    std::uint64_t size(std::uint64_t usual) {
        constexpr std::uint64_t kEdges[] = {0,          1,          4095,       4096, 1ull << 31,
                                            1ull << 32, 1ull << 62, 1ull << 63, ~0ull};
        switch (between(0, 5)) {
            case 0:
                return kEdges[between(0, std::size(kEdges) - 1)];
            case 1:
                return usual + between(0, 15) - 8;
            case 2:
                return word();
            case 3:
                return usual * 2;
            default:
                return byte();
        }
    }

  private:
    std::span<const std::uint8_t> left_;
};

/// Models with several sizes, dtypes and optimizers.
std::vector<Checkpoint> checkpoints() {
    const Context ctx(Device::cpu(), 1);
    std::vector<Checkpoint> all(5);
    all[1].params["a"] = randn(ctx, {5, 7}, DType::bf16, Seed{1});
    all[1].master["a"] = randn(ctx, {5, 7}, DType::f32, Seed{2});
    all[1].optimizer["m/a"] = randn(ctx, {5, 7}, DType::f32, Seed{3});
    all[1].optimizer["v/a"] = randn(ctx, {5, 7}, DType::f32, Seed{4});
    all[1].config.set("layers", 2);
    for (int i = 0; i < 4; ++i) {
        const std::string block = concat("h.", i, ".attn.qkv.");
        all[2].params[block + "weight"] = randn(ctx, {12, 4}, DType::f32, Seed{5});
        all[2].params[block + "bias"] = randn(ctx, {12}, DType::f32, Seed{6});
        all[2].optimizer["momentum/" + block + "weight"] = randn(ctx, {12, 4}, DType::f32, Seed{7});
    }
    all[2].optimizer["updates"] = from_host(ctx, std::vector<std::int32_t>{3}, {1});
    all[2].meta.set("val_loss", 1.5);
    all[2].meta.set("nested", JsonValue::object({{"list", std::vector<int>{1, 2, 3}}}));
    all[2].tokenizer = R"({"kind":"bytes"})";
    all[3].params["six"] = randn(ctx, {1, 2, 1, 3, 1, 2}, DType::f64, Seed{8});
    all[3].params["none"] = zeros(ctx, {4, 0, 3}, DType::f16);
    all[4].step = 12;
    all[4].params["large"] = randn(ctx, {150, 1000}, DType::f32, Seed{9});  // two chunks
    return all;
}

struct SavedFile {
    std::string name;
    std::vector<std::byte> bytes;
};

/// Returns a checkpoint's parts, and at the end its main file.
std::vector<SavedFile> files_of(const Checkpoint& checkpoint, std::int64_t parts) {
    MemoryFileSystem fs;
    const CheckpointDirectory directory("", {}, fs);
    if (parts == 0) {
        directory.save(checkpoint);
    } else {
        save_in_parts(directory, checkpoint, /*save=*/1, parts);
    }
    std::vector<std::string> names;
    fs.list("", names);
    std::ranges::sort(names, {}, [](const std::string& name) { return !is_part_file_name(name); });
    std::vector<SavedFile> files;
    for (const std::string& name : names) files.push_back({name, fs.bytes(name)});
    return files;
}

// The files are created before fuzzing begins. Writing them uses a thread, whose coverage would otherwise be
// attributed to an input.
const std::vector<std::vector<SavedFile>> corpus = [] {
    std::vector<std::vector<SavedFile>> saves;
    for (const std::int64_t parts : {0, 1, 3})
        for (const Checkpoint& checkpoint : checkpoints()) saves.push_back(files_of(checkpoint, parts));
    return saves;
}();

// The largest file size; every valid file above is smaller. The limit is needed because changed_bytes() may
// double a file repeatedly.
constexpr std::uint64_t kLongestFile = 4 << 20;

/// Changes bytes in the file, mostly in the user block, and sometimes truncates or extends it.
std::vector<std::byte> changed_bytes(Choices& data, std::vector<std::byte> file) {
    const auto block = get_little_endian<std::uint64_t>(file.data() + kUserBlockField);
    while (data.more()) {
        const std::uint64_t end =
            data.byte() % 4 == 0 ? file.size() : std::min<std::uint64_t>(block, file.size());
        if (end == 0) break;
        const std::uint64_t position = data.between(0, end - 1);
        const std::uint8_t kind = data.byte();
        if (kind % 32 == 0) {
            file.resize(static_cast<std::size_t>(
                kind % 64 == 0 ? position : std::min<std::uint64_t>(file.size() + position, kLongestFile)));
            if (data.byte() % 2 == 0 && file.size() > kHeaderEnd)
                put_little_endian(file.data() + kLengthField, std::uint64_t{file.size()});
            continue;
        }
        const std::vector<std::byte> bytes = data.bytes(1 + kind % 8);
        std::copy_n(bytes.begin(),
                    std::min<std::size_t>(bytes.size(), file.size() - static_cast<std::size_t>(position)),
                    file.begin() + static_cast<std::ptrdiff_t>(position));
    }
    return file;
}

std::string any_name(Choices& data) {
    static constexpr const char* names[] = {
        "params",     "params/a",    "params/b",           "params/a/b",       "master/a",    "config/json",
        "data/json",  "rng/json",    "meta/json",          "optimizer/m/a",    "params/../a", "other/json",
        "",           "/",           "params/a\nb",        "master",           "params/zzzz", "rng/jsonx",
        "params/a/0", "params/a/17", "params/large/50000", "optimizer/m/a/12", "params/a/-1"};
    if (data.byte() % 8 != 0) return names[data.between(0, std::size(names) - 1)];
    const std::vector<std::byte> bytes = data.bytes(data.byte());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Shape any_shape(Choices& data, const Shape& usual) {
    std::array<std::int64_t, Shape::max_rank> axes{};
    const auto rank = static_cast<std::size_t>(data.between(0, Shape::max_rank));
    for (std::size_t i = 0; i < rank; ++i)
        axes[i] =
            static_cast<std::int64_t>(data.size(i < static_cast<std::size_t>(usual.rank())
                                                    ? static_cast<std::uint64_t>(usual[static_cast<int>(i)])
                                                    : 1));
    return Shape(std::span(axes).first(rank));
}

void change_extents(Choices& data, std::vector<FileExtent>& extents, const CheckpointManifest& manifest) {
    switch (extents.empty() ? 0 : data.between(0, 5)) {
        case 0:
            extents.insert(extents.begin(),
                           {data.size(extents.empty() ? 4096 : extents[0].begin), data.size(16)});
            break;
        case 1:
            extents.erase(extents.begin());
            break;
        case 2: {  // the same bytes in two pieces
            FileExtent& first = extents[0];
            const std::uint64_t part = data.between(0, 200);
            const FileExtent rest{first.begin + part, first.bytes - part};
            first.bytes = part;
            extents.insert(extents.begin() + 1, rest);
            break;
        }
        case 3: {
            const auto& other = manifest.objects[data.between(0, manifest.objects.size() - 1)].extents;
            if (!other.empty()) extents.front() = other.front();
            break;
        }
        case 4:
            std::reverse(extents.begin(), extents.end());
            break;
        default: {
            FileExtent& extent = extents[data.between(0, extents.size() - 1)];
            (data.byte() % 2 == 0 ? extent.begin : extent.bytes) =
                data.size(data.byte() % 2 == 0 ? extent.begin : extent.bytes);
        }
    }
}

void change_table(Choices& data, PartTable& table) {
    switch (data.between(0, 3)) {
        case 0:
            table.save = data.between(0, 2);
            break;
        case 1:
            table.files.resize(static_cast<std::size_t>(data.between(0, 5)));
            break;
        default:
            if (table.files.empty()) break;
            PartFile& file = table.files[static_cast<std::size_t>(data.between(0, table.files.size() - 1))];
            file.bytes = data.size(file.bytes);
    }
}

void change_list(Choices& data, CheckpointManifest& manifest) {
    std::vector<StoredObject>& objects = manifest.objects;
    if (manifest.parts && data.byte() % 4 == 0) change_table(data, *manifest.parts);
    for (int steps = 0; steps < 8 && data.more() && !objects.empty(); ++steps) {
        const auto index = static_cast<std::ptrdiff_t>(data.between(0, objects.size() - 1));
        StoredObject& object = objects[static_cast<std::size_t>(index)];
        switch (data.between(0, 7)) {
            case 0:
                object.name = any_name(data);
                break;
            case 1: {
                constexpr std::optional<DType> kTypes[] = {std::nullopt, DType::f64, DType::f32,
                                                           DType::bf16,  DType::f16, DType::i32};
                object.dtype = kTypes[data.between(0, std::size(kTypes) - 1)];
                break;
            }
            case 2:
                object.shape = any_shape(data, object.shape);
                break;
            case 3:
                change_extents(data, object.extents, manifest);
                break;
            case 4:
                objects.erase(objects.begin() + index);
                break;
            case 5: {
                StoredObject copy = object;
                copy.name = any_name(data);
                if (data.byte() % 2 == 0) copy.shape = {4, 0}, copy.extents.clear();
                objects.insert(objects.begin() + index, std::move(copy));
                break;
            }
            case 6:
                std::swap(object, objects[data.between(0, objects.size() - 1)]);
                break;
            default:
                std::sort(objects.begin(), objects.end(),
                          [](const StoredObject& a, const StoredObject& b) { return a.name < b.name; });
        }
    }
}

PartFile describe_file(const std::vector<std::byte>& file) {
    return {file.size(), crc32c(std::span(file).first(kHeaderEnd))};
}

std::uint64_t bytes_of(const Checkpoint& checkpoint) {
    std::uint64_t bytes = 0;
    for (const NamedTensors* tensors : {&checkpoint.params, &checkpoint.master, &checkpoint.optimizer})
        for (const auto& [name, x] : *tensors) bytes += x.bytes();
    return bytes;
}

[[noreturn]] void fail(const std::string& what) {
    std::cerr << what << '\n';
    std::abort();
}

}  // namespace
}  // namespace gradtile::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
    using namespace gradtile;
    test::Choices data(input, size);
    const std::uint8_t kind = data.byte();
    const std::vector<test::SavedFile>& saved = test::corpus[data.between(0, test::corpus.size() - 1)];
    const auto& [changed_name, sound] = saved[data.between(0, saved.size() - 1)];
    const std::string& main = saved.back().name;
    std::vector<std::byte> file;
    switch (kind % 8) {
        case 0:
            file = data.bytes(size);  // arbitrary bytes
            break;
        case 1:
            file = test::changed_bytes(data, sound);  // without valid checksums
            break;
        case 2:
        case 3:
        case 4:
            file = test::reseal(test::changed_bytes(data, sound));
            break;
        default:
            file = test::with_manifest(
                sound, [&](CheckpointManifest& manifest) { test::change_list(data, manifest); });
            if (kind % 16 >= 8) file = test::reseal(test::changed_bytes(data, std::move(file)));
    }
    test::MemoryFileSystem fs;
    for (const test::SavedFile& other : saved) fs.put(other.name, other.bytes);
    const std::uint64_t changed_bytes = file.size();
    fs.put(changed_name, std::move(file));
    if (changed_name != main && kind % 8 >= 2 && changed_bytes > test::kHeaderEnd)
        fs.put(main, test::with_manifest(saved.back().bytes, [&](CheckpointManifest& manifest) {
                   for (std::size_t i = 0; i < manifest.parts->files.size(); ++i)
                       manifest.parts->files[i] = test::describe_file(fs.bytes(saved[i].name));
               }));
    std::uint64_t bytes = 0;
    for (const test::SavedFile& other : saved) bytes += fs.bytes(other.name).size();
    const auto refusal_of = [](auto&& read) -> std::string {
        try {
            read();
            return {};
        } catch (const Error& error) {
            return error.what();
        }
    };
    const std::string read = refusal_of([&] {
        if (test::bytes_of(read_checkpoint(main, {}, fs)) > bytes)
            test::fail("the reader returned more bytes than the files have");
    });
    const std::string inspected = refusal_of([&] { inspect_checkpoint(main, fs); });
    if (read != inspected)
        test::fail("read_checkpoint: \"" + read + "\", inspect_checkpoint: \"" + inspected + "\"");
    if (read.find('\n') != std::string::npos) test::fail("more than one line: " + read);
    return 0;
}
