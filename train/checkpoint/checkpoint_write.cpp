#include <algorithm>
#include <array>
#include <set>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/train/checkpoint/checkpoint_header.h>
#include <gradtile/train/checkpoint/checkpoint_schema.h>
#include <gradtile/train/checkpoint/chunk_preparer.h>
#include <gradtile/train/checkpoint/internal/checkpoint_write.h>
#include <gradtile/train/checkpoint/internal/part_set.h>

namespace gradtile {

namespace {

namespace schema = checkpoint_schema;

// libhdf5 allocates its structures in blocks of this size, so that they do not lie between the chunks.
constexpr hsize_t kMetadataBlock = hsize_t{64} << 10;

Hdf5Type copy_of(hid_t type) {
    return Hdf5Type(H5Tcopy(type), "copy a type");
}

// A 16-bit IEEE-like float: sign, exponent and mantissa without padding.
Hdf5Type float_16_bit(std::size_t exponent_bits, std::size_t exponent_bias) {
    Hdf5Type type = copy_of(H5T_IEEE_F32LE);
    const std::size_t mantissa_bits = 15 - exponent_bits;
    // The fields are set first, because they must be inside the smaller size.
    hdf5_check(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits),
               "set float fields");
    hdf5_check(H5Tset_size(type.get(), 2), "set a type's size");
    hdf5_check(H5Tset_ebias(type.get(), exponent_bias), "set an exponent bias");
    return type;
}

/// Returns the HDF5 type for a dtype's elements in the file, little-endian. The type in memory is the same,
/// so libhdf5 converts nothing. bfloat16 is declared as a float with 8 exponent bits and 7 mantissa bits;
/// h5py reads it as float32.
Hdf5Type hdf5_type(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return copy_of(H5T_IEEE_F64LE);
        case DType::f32:
            return copy_of(H5T_IEEE_F32LE);
        case DType::bf16:
            return float_16_bit(8, 127);
        case DType::f16:
            return float_16_bit(5, 15);
        case DType::i32:
            return copy_of(H5T_STD_I32LE);
    }
    throw Error("unknown dtype");
}

std::array<hsize_t, Shape::max_rank> dims_of(const Shape& shape) {
    std::array<hsize_t, Shape::max_rank> dims{};
    std::copy(shape.begin(), shape.end(), dims.begin());
    return dims;
}

void check_storable(const std::string& name, const Shape& shape) {
    check(schema::is_stored_tensor_name(name), "\"", name, "\" cannot name a tensor");
    check(shape.rank() >= 1, name, ": a tensor without axes; store it as [1]");
}

std::string data_text(const Checkpoint& checkpoint) {
    std::string text;
    JsonWriter writer(text);
    write_checkpoint_data(writer, checkpoint.data, checkpoint.tokenizer);
    writer.finish();
    return text;
}

class Writer {
  public:
    Writer(CheckpointImage& image, std::uint64_t user_block) : image_(image) {
        const Hdf5PropertyList creation(H5Pcreate(H5P_FILE_CREATE), "create a property list");
        hdf5_check(H5Pset_userblock(creation.get(), user_block), "set the user block's size");
        hdf5_check(H5Pset_obj_track_times(creation.get(), false), "switch off time stamps");
        const Hdf5PropertyList access = image.access();
        hdf5_check(H5Pset_meta_block_size(access.get(), kMetadataBlock), "set the metadata block size");
        file_ =
            Hdf5File(H5Fcreate("checkpoint", H5F_ACC_TRUNC, creation.get(), access.get()), "create the file");
        // Readers expect the tensor groups even if a group is empty.
        for (const std::string_view group : schema::tensor_groups) make_groups(concat(group, '/'));
    }

    void text(StoredObject& object, const std::string& text) {
        make_groups(object.name);
        Hdf5Type type(H5Tcopy(H5T_C_S1), "copy a type");
        hdf5_check(H5Tset_size(type.get(), text.size()), "set a type's size");
        hdf5_check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "set a type's padding");
        hdf5_check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "set a type's character set");
        const Shape one{1};
        const Hdf5Dataset dataset = create(object.name, type, one, one);
        const std::span bytes = std::as_bytes(std::span(text));
        object.crc32c = crc32c(bytes);
        std::vector<std::byte> chunk(bytes.begin(), bytes.end());
        append_fletcher32(chunk);
        object.extents.at(0).begin = write_chunk(dataset, {}, chunk, crc32c(chunk), object.name);
        attach_crc(dataset, object.crc32c, object.name);
    }

    void tensor(StoredObject& object, const Tensor& x, ChunkPreparer& chunks) {
        make_groups(object.name);
        const Chunking cut(x.shape(), size_of(x.dtype()));
        const Hdf5Dataset dataset = create(object.name, hdf5_type(x.dtype()), x.shape(), cut.chunk_shape);
        for (std::int64_t i = 0; i < cut.count; ++i) {
            const PreparedChunk& chunk = chunks.next();
            check(chunk.finite, object.name, ": holds an infinity or a NaN; not saved");
            object.crc32c = crc32c_combine(object.crc32c, chunk.crc, chunk.data_bytes);
            object.extents.at(static_cast<std::size_t>(i)).begin =
                write_chunk(dataset, cut.corner(x.shape(), i), chunk.bytes, chunk.file_crc, object.name);
        }
        attach_crc(dataset, object.crc32c, object.name);
    }

    void finish() {
        file_.close("close the file");
        image_.rethrow_failure();
    }

  private:
    // Writes no time stamps, so that equal checkpoints are equal files.
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

    // Writes a chunk as it is in the file and returns its address. H5Dwrite would copy the chunk twice more
    // and compute its checksum with libhdf5's slower fletcher32. H5Dget_chunk_info_by_coord would search all
    // chunks for each address.
    std::uint64_t write_chunk(const Hdf5Dataset& dataset,
                              const std::array<std::int64_t, Shape::max_rank>& corner,
                              const std::vector<std::byte>& chunk, std::uint32_t crc,
                              const std::string& name) {
        std::array<hsize_t, Shape::max_rank> offset{};
        std::copy(corner.begin(), corner.end(), offset.begin());
        image_.expect_write(chunk, crc);
        hdf5_check(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, offset.data(), chunk.size(), chunk.data()),
                   "write " + name);
        image_.rethrow_failure();  // stops at the first failure
        const std::optional<std::uint64_t> address = image_.address_of_expected();
        check(address.has_value(), name, ": libhdf5 did not write a chunk as it was handed over");
        return *address;
    }

    void attach_crc(const Hdf5Dataset& dataset, std::uint32_t crc, const std::string& name) {
        const Hdf5Space scalar(H5Screate(H5S_SCALAR), "create a space");
        Hdf5Attribute attribute(H5Acreate2(dataset.get(), schema::crc_attribute, H5T_STD_U32LE, scalar.get(),
                                           H5P_DEFAULT, H5P_DEFAULT),
                                "create the checksum of " + name);
        hdf5_check(H5Awrite(attribute.get(), H5T_NATIVE_UINT32, &crc), "write the checksum of " + name);
        attribute.close("close the checksum of " + name);
    }

    CheckpointImage& image_;
    Hdf5File file_;
    std::set<std::string> groups_;
};

}  // namespace

CheckpointPlan::CheckpointPlan(const Checkpoint& checkpoint) {
    add_text("config/json", checkpoint.config.dump());
    add_text("data/json", data_text(checkpoint));
    add_tensors("master", checkpoint.master);
    add_text("meta/json", checkpoint.meta.dump());
    add_tensors("optimizer", checkpoint.optimizer);
    add_tensors("params", checkpoint.params);
    add_text("rng/json", checkpoint.rng.dump());
    if (checkpoint.parts) add_parts(*checkpoint.parts);
    check(manifest_.objects.size() <= schema::max_objects, manifest_.objects.size(), " tensors, at most ",
          schema::max_objects, " fit into a checkpoint");
    user_block_ = CheckpointHeader::user_block_for(manifest_.encoded_bytes());
}

void CheckpointPlan::add_text(std::string_view name, std::string value) {
    const std::string& text = texts_.emplace_back(std::move(value));
    check(text.size() <= schema::max_text_bytes, name, ": a text of ", text.size(), " bytes, at most ",
          schema::max_text_bytes, " are supported");
    // A text that a reader would refuse is refused here, while the older checkpoints still exist.
    SkippedJson skipped;
    parse_json(text, name, {{{"tokenizer"}, skipped}});
    StoredObject& object = manifest_.objects.emplace_back();
    object.name = name;
    object.shape = {static_cast<std::int64_t>(text.size())};
    object.extents = {{0, text.size()}};
}

void CheckpointPlan::add_tensors(std::string_view group, const NamedTensors& tensors) {
    for (const auto& [name, x] : tensors) {
        const std::string full_name = concat(group, '/', name);
        check(x.defined(), full_name, ": no tensor");
        check_storable(full_name, x.shape());
        tensors_.push_back(x);
        StoredObject& object = manifest_.objects.emplace_back();
        object.name = full_name;
        object.dtype = x.dtype();
        object.shape = x.shape();
        const Chunking cut(x.shape(), size_of(x.dtype()));
        for (std::int64_t i = 0; i < cut.count; ++i)
            object.extents.push_back(
                {0, static_cast<std::uint64_t>(cut.elements_of(x.shape(), i)) * size_of(x.dtype())});
    }
}

void CheckpointPlan::add_parts(const CheckpointParts& parts) {
    check(tensors_.empty(), "its tensors are in this process and in parts");
    manifest_.parts = parts.table;
    std::vector<StoredObject>& objects = manifest_.objects;
    for (const TensorInfo& tensor : parts.tensors) {
        check_storable(tensor.name, tensor.shape);
        objects.push_back({tensor.name, tensor.dtype, tensor.shape, 0, {}});
    }
    std::ranges::sort(objects, {}, &StoredObject::name);
}

void CheckpointPlan::set_checksums(const PartSet& parts) {
    for (StoredObject& object : manifest_.objects)
        if (object.dtype) object.crc32c = parts.checksum_of(object);
}

std::uint64_t CheckpointPlan::file_bytes() const {
    constexpr std::uint64_t kPerObject = 1024;  // header, attribute, links; measured below 700
    constexpr std::uint64_t kPerChunk = 64;     // checksum and index entry
    std::uint64_t bytes = user_block_ + 2 * kMetadataBlock;
    for (const std::string& text : texts_) bytes += kPerObject + text.size();
    for (const Tensor& x : tensors_) {
        const Chunking cut(x.shape(), size_of(x.dtype()));
        const std::uint64_t chunk = static_cast<std::uint64_t>(cut.elements) * size_of(x.dtype()) + kPerChunk;
        bytes += kPerObject + static_cast<std::uint64_t>(cut.count) * chunk;
    }
    return bytes;
}

void CheckpointPlan::require_host_memory() const {
    auto tensor = tensors_.begin();
    for (const StoredObject& object : manifest_.objects) {
        if (!object.dtype || manifest_.is_in_parts(object)) continue;
        check(tensor->device().is_cpu(), object.name, ": is on ", tensor->device(), ", expected the cpu");
        ++tensor;
    }
}

void write_hdf5(CheckpointImage& image, CheckpointPlan& plan) {
    ChunkPreparer chunks(plan.tensors_);
    Writer writer(image, plan.user_block_);
    auto text = plan.texts_.begin();
    auto tensor = plan.tensors_.begin();
    for (StoredObject& object : plan.manifest_.objects) {
        if (!object.dtype) {
            writer.text(object, *text++);
        } else if (!plan.manifest_.is_in_parts(object)) {
            writer.tensor(object, *tensor++, chunks);
        }
    }
    writer.finish();
}

}  // namespace gradtile
