#include <algorithm>
#include <utility>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/checkpoint_reader.h>
#include <gradtile/train/checkpoint/checkpoint_schema.h>
#include <gradtile/train/checkpoint/internal/checkpoint_data.h>
#include <gradtile/train/checkpoint/internal/checkpoint_image.h>
#include <gradtile/train/checkpoint/internal/checkpoint_write.h>
#include <gradtile/train/checkpoint/internal/part_set.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {

namespace {

namespace schema = checkpoint_schema;

// Returns a finished body's header and manifest, as bytes.
std::vector<std::byte> user_block_of(CheckpointHeader& header, const CheckpointManifest& manifest) {
    std::vector<std::byte> block(static_cast<std::size_t>(header.user_block));
    const std::vector<std::byte> list = manifest.encode();
    std::copy(list.begin(), list.end(), block.begin() + CheckpointHeader::kSize);
    header.manifest_bytes = list.size();
    header.manifest_crc = crc32c(std::span(block).subspan(CheckpointHeader::kSize));
    const CheckpointHeader::Bytes bytes = header.encode();
    std::copy(bytes.begin(), bytes.end(), block.begin());
    return block;
}

// Reads the file back and compares it with what was written.
void verify_written(const OpenFile& file, const CheckpointHeader& meant, const CheckpointManifest& manifest) {
    const CheckpointContents found = read_contents(file);
    check(found.header == meant && found.manifest == manifest,
          "the file read back differs from what was written");
    read_body(file, found, std::vector<std::byte*>(manifest.objects.size()));
}

// Returns the directory of a main file's parts. A link to the main file may lie elsewhere.
std::filesystem::path directory_of_parts(const std::filesystem::path& path) {
    return (is_symlink(path) ? canonical(path) : path).parent_path();
}

/// A checkpoint's files, whose lists of objects are checked.
struct OpenCheckpoint {
    const OpenFile& file;
    CheckpointContents contents;
    std::optional<PartSet> parts;

    OpenCheckpoint(FileSystem& fs, const std::filesystem::path& path, const OpenFile& main)
        : file(main), contents(read_contents(main)) {
        const auto& [header, manifest] = contents;
        if (!manifest.parts) return;
        parts.emplace(fs, directory_of_parts(path), header.step, *manifest.parts);
        parts->check_tensors(manifest);
    }
    std::uint64_t bytes() const { return contents.header.length + (parts ? parts->bytes() : 0); }
    /// Reads every byte of the files; see read_body().
    void read(std::span<std::byte* const> destinations) const {
        read_body(file, contents, destinations);
        if (parts) parts->read(contents.manifest, destinations);
    }
};

/// Returns work(checkpoint) for a checkpoint's files. Errors name `path`.
template <class Work>
auto with_files(FileSystem& fs, const std::filesystem::path& path, SymbolicLinks links, Work&& work) {
    return with_file_name("checkpoint", path, [&] {
        // A running process may replace a main file and then remove the parts of the old one.
        constexpr int max_looks = 100;
        for (int look = 1;; ++look) {
            const OpenFile main = open_regular_file(fs, path, links);
            try {
                return work(OpenCheckpoint(fs, path, main));
            } catch (const Error&) {
                if (look == max_looks || is_symlink(path) || fs.has_name(main.descriptor(), path)) throw;
            }
        }
    });
}

// Receives the file's texts while its body is read, and then parses them.
class Texts {
  public:
    explicit Texts(const CheckpointManifest& manifest) {
        for (const StoredObject& object : manifest.objects)
            if (!object.dtype) texts_[object.name].resize(static_cast<std::size_t>(object.bytes()));
    }
    std::byte* place_of(const std::string& name) {
        return reinterpret_cast<std::byte*>(texts_.at(name).data());
    }
    template <class Contents>
    void parse_into(Contents& contents) {
        contents.config = parse_json(take("config/json"), "config/json");
        contents.meta = parse_json(take("meta/json"), "meta/json");
        contents.rng = parse_json(take("rng/json"), "rng/json");
        CheckpointData data = parse_checkpoint_data(take("data/json"));
        contents.data = std::move(data.data);
        contents.tokenizer = std::move(data.tokenizer);
    }

  private:
    /// Returns a text, which needs memory only until it is parsed.
    std::string take(const std::string& name) { return std::move(texts_.extract(name).mapped()); }

    std::map<std::string, std::string> texts_;
};

}  // namespace

NamedTensors& tensors_of(Checkpoint& checkpoint, std::string_view group) {
    if (group == "params") return checkpoint.params;
    if (group == "master") return checkpoint.master;
    check(group == "optimizer", "no group ", group);
    return checkpoint.optimizer;
}

void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint, FileSystem& fs,
                      Existing existing) {
    with_file_name("checkpoint", path, [&] {
        check(checkpoint.step >= 0, "step ", checkpoint.step, " is negative");
        CheckpointPlan plan(checkpoint);
        plan.require_host_memory();
        if (checkpoint.parts) {
            const PartSet parts(fs, path.parent_path(), checkpoint.step, checkpoint.parts->table);
            plan.set_checksums(parts);
            parts.check_tensors(plan.manifest());
        }
        DurableFile durable(path, fs, existing);
        durable.reserve(plan.file_bytes());
        CheckpointImage image(durable.file(), plan.user_block());
        try {
            const Hdf5Lock lock;
            write_hdf5(image, plan);
        } catch (const std::exception&) {
            image.rethrow_failure();  // reports the file system's error, which is more precise than libhdf5's
            throw;
        }
        CheckpointHeader header;
        header.version = checkpoint.parts ? CheckpointHeader::kInParts : CheckpointHeader::kWhole;
        header.step = checkpoint.step;
        header.user_block = plan.user_block();
        header.body_crc = image.finish();
        header.length = image.size();
        const std::vector<std::byte> block = user_block_of(header, plan.manifest());
        durable.file().write(block.data(), block.size(), 0);
        verify_written(durable.file(), header, plan.manifest());
        durable.commit(header.length);
    });
}

std::uint64_t checkpoint_bytes(const Checkpoint& checkpoint) {
    return CheckpointPlan(checkpoint).file_bytes();
}

Checkpoint read_checkpoint(const std::filesystem::path& path, const ReadOptions& options, FileSystem& fs) {
    const SymbolicLinks links = options.follow_links ? SymbolicLinks::follow : SymbolicLinks::refuse;
    return with_files(fs, path, links, [&](const OpenCheckpoint& open) {
        const CheckpointContents& contents = open.contents;
        Checkpoint checkpoint;
        checkpoint.step = contents.header.step;
        Texts texts(contents.manifest);
        std::vector<std::byte*> destinations;
        for (const StoredObject& object : contents.manifest.objects) {
            const std::string_view group = schema::group_of(object.name);
            if (!object.dtype) {
                destinations.push_back(texts.place_of(object.name));
            } else if (!options.training_state && group != "params") {
                destinations.push_back(nullptr);
            } else {
                const Tensor x = empty_on_host(object.shape, *object.dtype);
                destinations.push_back(x.raw_data());
                tensors_of(checkpoint, group).emplace(object.name.substr(group.size() + 1), x);
            }
        }
        open.read(destinations);
        texts.parse_into(checkpoint);
        return checkpoint;
    });
}

CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, FileSystem& fs) {
    return with_files(fs, path, SymbolicLinks::follow, [&](const OpenCheckpoint& open) {
        const CheckpointContents& contents = open.contents;
        CheckpointInfo info;
        info.step = contents.header.step;
        info.file_bytes = open.bytes();
        info.parts = contents.manifest.parts ? contents.manifest.parts->files.size() : 0;
        Texts texts(contents.manifest);
        std::vector<std::byte*> destinations;
        for (const StoredObject& object : contents.manifest.objects) {
            destinations.push_back(object.dtype ? nullptr : texts.place_of(object.name));
            if (object.dtype)
                info.tensors.push_back({object.name, *object.dtype, object.shape, object.crc32c});
        }
        open.read(destinations);
        texts.parse_into(info);
        return info;
    });
}

}  // namespace gradtile
