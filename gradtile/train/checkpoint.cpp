#include <algorithm>

#include <fcntl.h>

#include <gradtile/core/allocator.h>
#include <gradtile/train/checkpoint.h>
#include <gradtile/train/checkpoint_file.h>
#include <gradtile/train/checkpoint_header.h>
#include <gradtile/train/checkpoint_image.h>
#include <gradtile/train/durable_file.h>

namespace gradtile {

namespace {

// A finished file as libhdf5 reads it. It never looks beyond what the header's checksum vouches for.
class FileStorage final : public Hdf5Storage {
  public:
    explicit FileStorage(const OpenFile& file) : file_(file), size_(file.size()) {}
    std::uint64_t size() const override { return size_; }
    void read(std::byte* data, std::size_t bytes, std::uint64_t address) override {
        file_.read(data, bytes, address);
    }
    void write(const std::byte*, std::size_t, std::uint64_t, bool) override {
        throw Error("opened for reading");
    }
    void truncate(std::uint64_t) override { throw Error("opened for reading"); }

  private:
    const OpenFile& file_;
    std::uint64_t size_;
};

// The bytes and the HDF5 tree as a reader will find them, against what was meant.
void verify_written(const OpenFile& file, const CheckpointHeader& meant,
                    const std::vector<TensorInfo>& tensors) {
    const CheckpointHeader found = check_file_bytes(file);
    check(found.step == meant.step && found.body_crc == meant.body_crc,
          "what was read back is not what was written");
    const Hdf5Lock lock;
    FileStorage storage(file);
    const CheckpointReader reader(storage, found.length);
    check(reader.tensors() == tensors, "the tensors that were read back are not those that were written");
}

void read_texts(const CheckpointReader& reader, JsonValue& config, JsonValue& data, JsonValue& rng,
                JsonValue& meta) {
    config = reader.read_json("config");
    data = reader.read_json("data");
    rng = reader.read_json("rng");
    meta = reader.read_json("meta");
}

Tensor empty_on_host(const Shape& shape, DType dtype, std::size_t bytes) {
    auto buffer = std::make_shared<Buffer>(system_allocator(Device::cpu()), std::max<std::size_t>(bytes, 1));
    std::byte* const data = buffer->data();
    return Tensor(std::move(buffer), data, Device::cpu(), dtype, shape, contiguous_strides(shape));
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint, FileSystem& fs) {
    with_file_name("checkpoint", path, [&] {
        check(checkpoint.step >= 0, "step ", checkpoint.step, " is negative");
        DurableFile durable(path, fs);
        durable.reserve(estimated_file_bytes(checkpoint));
        CheckpointImage image(durable.file());
        std::vector<TensorInfo> tensors;
        try {
            const Hdf5Lock lock;
            tensors = write_hdf5(image, checkpoint);
        } catch (const std::exception&) {
            image.rethrow_failure();  // the file system's reason says more than libhdf5's
            throw;
        }
        CheckpointHeader header;
        header.step = checkpoint.step;
        header.body_crc = image.finish();
        header.length = image.size();
        const CheckpointHeader::Bytes bytes = header.encode();
        durable.file().write(bytes.data(), bytes.size(), 0);
        verify_written(durable.file(), header, tensors);
        durable.commit(header.length);
    });
}

Checkpoint read_checkpoint(const std::filesystem::path& path, const ReadOptions& options, FileSystem& fs) {
    return with_file_name("checkpoint", path, [&] {
        const OpenFile file(fs, path, O_RDONLY);
        const CheckpointHeader header = check_file_bytes(file);
        const Hdf5Lock lock;
        FileStorage storage(file);
        const CheckpointReader reader(storage, header.length);
        Checkpoint checkpoint;
        checkpoint.step = header.step;
        read_texts(reader, checkpoint.config, checkpoint.data, checkpoint.rng, checkpoint.meta);
        for (const TensorInfo& info : reader.tensors()) {
            const std::size_t slash = info.name.find('/');
            const std::string group = info.name.substr(0, slash);
            if (!options.training_state && group != "params") continue;
            NamedTensors& tensors = group == "params"   ? checkpoint.params
                                    : group == "master" ? checkpoint.master
                                                        : checkpoint.optimizer;
            const Tensor x = empty_on_host(info.shape, info.dtype, static_cast<std::size_t>(info.bytes()));
            reader.read(info, x.raw_data());
            tensors.emplace(info.name.substr(slash + 1), x);
        }
        return checkpoint;
    });
}

CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, FileSystem& fs) {
    return with_file_name("checkpoint", path, [&] {
        const OpenFile file(fs, path, O_RDONLY);
        const CheckpointHeader header = check_file_bytes(file);
        const Hdf5Lock lock;
        FileStorage storage(file);
        const CheckpointReader reader(storage, header.length);
        CheckpointInfo info;
        info.step = header.step;
        info.file_bytes = header.length;
        info.body_crc32c = header.body_crc;
        info.tensors = reader.tensors();
        read_texts(reader, info.config, info.data, info.rng, info.meta);
        std::vector<std::byte> elements;
        for (const TensorInfo& tensor : info.tensors) {
            elements.resize(static_cast<std::size_t>(tensor.bytes()));
            reader.read(tensor, elements.data());
        }
        return info;
    });
}

}  // namespace gradtile
