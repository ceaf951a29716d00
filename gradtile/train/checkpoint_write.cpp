#include <algorithm>
#include <cstring>
#include <set>

#include <gradtile/core/check.h>
#include <gradtile/train/checkpoint_file.h>
#include <gradtile/train/checkpoint_header.h>
#include <gradtile/train/checkpoint_schema.h>
#include <gradtile/train/checksum.h>
#include <gradtile/train/tensor_bytes.h>

namespace gradtile {

namespace {

namespace schema = checkpoint_schema;

// A chunk passes through copy, finiteness, two checksums and write() one after the other: half a MiB stays in
// a core's cache all the way, and is large enough for the disk and for the index to be small.
constexpr std::int64_t kChunkBytes = std::int64_t{512} << 10;
// libhdf5's structures lie together in blocks of this size instead of between the chunks.
constexpr hsize_t kMetadataBlock = hsize_t{64} << 10;
constexpr std::size_t kFletcherBytes = 4;

// How a tensor is cut: every chunk is `elements` consecutive elements of the row-major order, the last one
// along the cut axis padded with zeros.
struct Chunking {
    Shape shape;                // of a chunk: 1, .., 1, cut, whole axes
    int axis = 0;               // the cut one
    std::int64_t elements = 1;  // of a chunk
    std::int64_t inner = 1;     // elements of one index of the cut axis
};

Chunking chunking_of(const Shape& shape, std::size_t element_bytes) {
    Chunking c;
    c.shape = shape;
    // libhdf5 wants chunks of at least one element, even where there is nothing to store.
    for (int i = 0; i < shape.rank(); ++i) c.shape[i] = std::max<std::int64_t>(shape[i], 1);
    const std::int64_t limit = kChunkBytes / static_cast<std::int64_t>(element_bytes);
    c.axis = shape.rank() - 1;
    while (c.axis > 0 && c.inner * c.shape[c.axis] <= limit) c.inner *= c.shape[c.axis--];
    const std::int64_t length = c.shape[c.axis];
    const std::int64_t fitting = std::clamp<std::int64_t>(limit / c.inner, 1, length);
    const std::int64_t pieces = (length + fitting - 1) / fitting;
    c.shape[c.axis] = (length + pieces - 1) / pieces;  // equal pieces: less padding in the last
    for (int i = 0; i < c.axis; ++i) c.shape[i] = 1;
    c.elements = c.shape[c.axis] * c.inner;
    return c;
}

std::int64_t chunks_along(std::int64_t length, std::int64_t chunk) {
    return (length + chunk - 1) / chunk;
}

std::int64_t chunk_count(const Shape& shape, const Chunking& c) {
    std::int64_t count = chunks_along(shape[c.axis], c.shape[c.axis]);
    for (int i = 0; i < c.axis; ++i) count *= shape[i];
    return shape.elements() == 0 ? 0 : count;
}

std::array<hsize_t, Shape::max_rank> dims_of(const Shape& shape) {
    std::array<hsize_t, Shape::max_rank> dims{};
    std::copy(shape.begin(), shape.end(), dims.begin());
    return dims;
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

    void tensors(std::string_view group, const NamedTensors& tensors) {
        make_groups(std::string(group) + "/");
        for (const auto& [name, tensor] : tensors) write(std::string(group) + "/" + name, tensor);
    }

    void json(std::string_view group, const nlohmann::json& value) {
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
        chunk_.assign(bytes.begin(), bytes.end());
        write_chunk(dataset, {}, name);
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

    void write(const std::string& name, const Tensor& x) {
        check(x.defined(), name, ": no tensor");
        check(schema::is_tensor_name(name), "\"", name, "\" cannot name a tensor");
        check(x.device().is_cpu(), name, ": lies on ", x.device(), ", expected the cpu");
        check(x.rank() >= 1, name, ": a tensor without axes; store it as [1]");
        make_groups(name);
        const std::size_t element = size_of(x.dtype());
        const Chunking c = chunking_of(x.shape(), element);
        const Hdf5Dataset dataset = create(name, schema::file_type(x.dtype()), x.shape(), c.shape);

        const std::int64_t along = chunks_along(x.size(c.axis), c.shape[c.axis]);
        const std::int64_t slab =
            x.size(c.axis) * c.inner;  // elements under one index of the axes before the cut
        const std::int64_t count = chunk_count(x.shape(), c);
        std::uint32_t crc = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t begin = i / along * slab + i % along * c.elements;
            const std::int64_t end = std::min(begin + c.elements, (i / along + 1) * slab);
            const auto bytes = static_cast<std::size_t>(end - begin) * element;
            chunk_.resize(static_cast<std::size_t>(c.elements) * element);
            copy_row_major(x, begin, end, chunk_.data());
            std::memset(chunk_.data() + bytes, 0, chunk_.size() - bytes);
            check(all_finite(x.dtype(), chunk_.data(), bytes / element), name,
                  ": holds an infinity or a NaN; not saved");
            crc = crc32c({chunk_.data(), bytes}, crc);

            std::array<hsize_t, Shape::max_rank> corner{};
            corner[static_cast<std::size_t>(c.axis)] = static_cast<hsize_t>(i % along * c.shape[c.axis]);
            std::int64_t outer = i / along;
            for (int axis = c.axis - 1; axis >= 0; --axis) {
                corner[static_cast<std::size_t>(axis)] = static_cast<hsize_t>(outer % x.size(axis));
                outer /= x.size(axis);
            }
            write_chunk(dataset, corner, name);
        }
        attach_crc(dataset, crc, name);
        written_.push_back({name, x.dtype(), x.shape(), crc});
    }

    // Hands chunk_ over as it lies in the file. H5Dwrite would copy it twice more and sum it with libhdf5's
    // own, slower, fletcher32.
    void write_chunk(const Hdf5Dataset& dataset, const std::array<hsize_t, Shape::max_rank>& corner,
                     const std::string& name) {
        const std::uint32_t sum = fletcher32(chunk_);
        const std::size_t end = chunk_.size();
        chunk_.resize(end + kFletcherBytes);
        std::memcpy(chunk_.data() + end, &sum, kFletcherBytes);
        hdf5_check(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, corner.data(), chunk_.size(), chunk_.data()),
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
    std::vector<std::byte> chunk_;
    std::vector<TensorInfo> written_;
};

}  // namespace

std::vector<TensorInfo> write_hdf5(Hdf5Storage& storage, const Checkpoint& checkpoint) {
    Writer writer(storage);
    // In name order, as the reader lists them.
    writer.json("config", checkpoint.config);
    writer.json("data", checkpoint.data);
    writer.json("meta", checkpoint.meta);
    writer.json("rng", checkpoint.rng);
    writer.tensors("master", checkpoint.master);
    writer.tensors("optimizer", checkpoint.optimizer);
    writer.tensors("params", checkpoint.params);
    return writer.finish();
}

std::uint64_t estimated_file_bytes(const Checkpoint& checkpoint) {
    constexpr std::uint64_t kPerObject = 4096;  // header, attribute, links; measured below 700
    constexpr std::uint64_t kPerChunk = 64;     // checksum and index entry
    std::uint64_t bytes = CheckpointHeader::kSize + 4 * kMetadataBlock;
    for (const auto* tensors : {&checkpoint.params, &checkpoint.master, &checkpoint.optimizer}) {
        for (const auto& [name, x] : *tensors) {
            if (!x.defined() || x.rank() == 0) continue;  // refused later, by name
            const Chunking c = chunking_of(x.shape(), size_of(x.dtype()));
            const std::uint64_t chunk =
                static_cast<std::uint64_t>(c.elements) * size_of(x.dtype()) + kPerChunk;
            bytes += kPerObject + static_cast<std::uint64_t>(chunk_count(x.shape(), c)) * chunk;
        }
    }
    for (const auto* json : {&checkpoint.config, &checkpoint.data, &checkpoint.rng, &checkpoint.meta}) {
        bytes += kPerObject + json->dump().size();
    }
    return bytes;
}

}  // namespace gradtile
