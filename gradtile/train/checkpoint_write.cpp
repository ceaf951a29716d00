#include <algorithm>
#include <array>
#include <set>

#include <gradtile/core/check.h>
#include <gradtile/train/checkpoint_file.h>
#include <gradtile/train/checkpoint_header.h>
#include <gradtile/train/checkpoint_schema.h>
#include <gradtile/train/checksum.h>
#include <gradtile/train/chunk_preparer.h>

namespace gradtile {

namespace {

namespace schema = checkpoint_schema;

// libhdf5's structures lie together in blocks of this size instead of between the chunks.
constexpr hsize_t kMetadataBlock = hsize_t{64} << 10;

std::array<hsize_t, Shape::max_rank> dims_of(const Shape& shape) {
    std::array<hsize_t, Shape::max_rank> dims{};
    std::copy(shape.begin(), shape.end(), dims.begin());
    return dims;
}

std::string full_name(std::string_view group, const std::string& name) {
    return concat(group, '/', name);
}

void check_storable(const std::string& name, const Tensor& x) {
    check(x.defined(), name, ": no tensor");
    check(schema::is_tensor_name(name), "\"", name, "\" cannot name a tensor");
    check(x.device().is_cpu(), name, ": lies on ", x.device(), ", expected the cpu");
    check(x.rank() >= 1, name, ": a tensor without axes; store it as [1]");
}

class Writer {
  public:
    explicit Writer(Hdf5Storage& storage) : storage_(storage) {
        const Hdf5PropertyList creation(H5Pcreate(H5P_FILE_CREATE), "create a property list");
        hdf5_check(H5Pset_userblock(creation.get(), CheckpointHeader::kSize), "set the user block's size");
        hdf5_check(H5Pset_obj_track_times(creation.get(), false), "switch off time stamps");
        const Hdf5PropertyList access = storage_access(storage);
        hdf5_check(H5Pset_meta_block_size(access.get(), kMetadataBlock), "set the metadata block size");
        file_ =
            Hdf5File(H5Fcreate("checkpoint", H5F_ACC_TRUNC, creation.get(), access.get()), "create the file");
    }

    void tensors(std::string_view group, const NamedTensors& tensors, ChunkPreparer& chunks) {
        make_groups(std::string(group) + "/");
        for (const auto& [name, tensor] : tensors) write(full_name(group, name), tensor, chunks);
    }

    void json(std::string_view group, const JsonValue& value) {
        const std::string text = value.dump();
        make_groups(std::string(group) + "/");
        Hdf5Type type(H5Tcopy(H5T_C_S1), "copy a type");
        hdf5_check(H5Tset_size(type.get(), text.size()), "set a type's size");
        hdf5_check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "set a type's padding");
        hdf5_check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "set a type's character set");
        const Shape one{1};
        const std::string name = std::string(group) + "/" + schema::json_dataset;
        const Hdf5Dataset dataset = create(name, type, one, one);
        const std::span bytes = std::as_bytes(std::span(text));
        std::vector<std::byte> chunk(bytes.begin(), bytes.end());
        append_fletcher32(chunk);
        write_chunk(dataset, {}, chunk, name);
        attach_crc(dataset, crc32c(bytes), name);
    }

    std::vector<TensorInfo> finish() {
        file_.close("close the file");
        storage_.rethrow_failure();
        return std::move(written_);
    }

  private:
    // Without time stamps, so that equal checkpoints are equal files.
    void make_groups(const std::string& path) {
        for (std::size_t slash = path.find('/'); slash != std::string::npos;
             slash = path.find('/', slash + 1)) {
            const std::string group = path.substr(0, slash);
            if (!groups_.insert(group).second) continue;
            const Hdf5PropertyList creation(H5Pcreate(H5P_GROUP_CREATE), "create a property list");
            hdf5_check(H5Pset_obj_track_times(creation.get(), false), "switch off time stamps");
            Hdf5Group made(H5Gcreate2(file_.get(), group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                           "create group " + group);
            made.close("close group " + group);
        }
    }

    Hdf5Dataset create(const std::string& name, const Hdf5Type& type, const Shape& shape,
                       const Shape& chunk) {
        const Hdf5Space space(H5Screate_simple(shape.rank(), dims_of(shape).data(), nullptr),
                              "create a space");
        const Hdf5PropertyList creation(H5Pcreate(H5P_DATASET_CREATE), "create a property list");
        hdf5_check(H5Pset_obj_track_times(creation.get(), false), "switch off time stamps");
        hdf5_check(H5Pset_chunk(creation.get(), chunk.rank(), dims_of(chunk).data()), "set the chunk shape");
        hdf5_check(H5Pset_fletcher32(creation.get()), "set the checksum filter");
        hdf5_check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), "switch off filling");
        return Hdf5Dataset(H5Dcreate2(file_.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                      creation.get(), H5P_DEFAULT),
                           "create " + name);
    }

    void write(const std::string& name, const Tensor& x, ChunkPreparer& chunks) {
        make_groups(name);
        const Chunking cut(x.shape(), size_of(x.dtype()));
        const Hdf5Dataset dataset = create(name, schema::file_type(x.dtype()), x.shape(), cut.chunk_shape);
        std::uint32_t crc = 0;
        for (std::int64_t i = 0; i < cut.count; ++i) {
            const PreparedChunk& chunk = chunks.next();
            check(chunk.finite, name, ": holds an infinity or a NaN; not saved");
            crc = crc32c_combine(crc, chunk.crc, chunk.data_bytes);
            storage_.announce(chunk.bytes, chunk.file_crc);
            write_chunk(dataset, cut.corner(x.shape(), i), chunk.bytes, name);
        }
        attach_crc(dataset, crc, name);
        written_.push_back({name, x.dtype(), x.shape(), crc});
    }

    // Hands a chunk over as it lies in the file. H5Dwrite would copy it twice more and sum it with libhdf5's
    // own, slower, fletcher32.
    void write_chunk(const Hdf5Dataset& dataset, const std::array<std::int64_t, Shape::max_rank>& corner,
                     const std::vector<std::byte>& chunk, const std::string& name) {
        std::array<hsize_t, Shape::max_rank> offset{};
        std::copy(corner.begin(), corner.end(), offset.begin());
        hdf5_check(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, offset.data(), chunk.size(), chunk.data()),
                   "write " + name);
        storage_.rethrow_failure();  // no point in going on
    }

    void attach_crc(const Hdf5Dataset& dataset, std::uint32_t crc, const std::string& name) {
        const Hdf5Space scalar(H5Screate(H5S_SCALAR), "create a space");
        Hdf5Attribute attribute(H5Acreate2(dataset.get(), schema::crc_attribute, H5T_STD_U32LE, scalar.get(),
                                           H5P_DEFAULT, H5P_DEFAULT),
                                "create the checksum of " + name);
        hdf5_check(H5Awrite(attribute.get(), H5T_NATIVE_UINT32, &crc), "write the checksum of " + name);
        attribute.close("close the checksum of " + name);
    }

    Hdf5Storage& storage_;
    Hdf5File file_;
    std::set<std::string> groups_;
    std::vector<TensorInfo> written_;
};

}  // namespace

std::vector<TensorInfo> write_hdf5(Hdf5Storage& storage, const Checkpoint& checkpoint) {
    // In name order, as the reader lists them.
    const std::array<std::pair<std::string_view, const NamedTensors*>, 3> groups = {
        {{"master", &checkpoint.master},
         {"optimizer", &checkpoint.optimizer},
         {"params", &checkpoint.params}}};
    std::vector<Tensor> in_order;
    for (const auto& [group, tensors] : groups) {
        for (const auto& [name, x] : *tensors) {
            check_storable(full_name(group, name), x);
            in_order.push_back(x);
        }
    }
    ChunkPreparer chunks(std::move(in_order));
    Writer writer(storage);
    writer.json("config", checkpoint.config);
    writer.json("data", checkpoint.data);
    writer.json("meta", checkpoint.meta);
    writer.json("rng", checkpoint.rng);
    for (const auto& [group, tensors] : groups) writer.tensors(group, *tensors, chunks);
    return writer.finish();
}

std::uint64_t estimated_file_bytes(const Checkpoint& checkpoint) {
    constexpr std::uint64_t kPerObject = 4096;  // header, attribute, links; measured below 700
    constexpr std::uint64_t kPerChunk = 64;     // checksum and index entry
    std::uint64_t bytes = CheckpointHeader::kSize + 4 * kMetadataBlock;
    for (const auto* tensors : {&checkpoint.params, &checkpoint.master, &checkpoint.optimizer}) {
        for (const auto& [name, x] : *tensors) {
            if (!x.defined() || x.rank() == 0) continue;  // refused later, by name
            const Chunking cut(x.shape(), size_of(x.dtype()));
            const std::uint64_t chunk =
                static_cast<std::uint64_t>(cut.elements) * size_of(x.dtype()) + kPerChunk;
            bytes += kPerObject + static_cast<std::uint64_t>(cut.count) * chunk;
        }
    }
    for (const auto* json : {&checkpoint.config, &checkpoint.data, &checkpoint.rng, &checkpoint.meta}) {
        bytes += kPerObject + json->dump().size();
    }
    return bytes;
}

}  // namespace gradtile
