#include <algorithm>
#include <array>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/train/checkpoint/checkpoint_schema.h>
#include <gradtile/train/checkpoint/internal/hdf5_checkpoint_reader.h>
#include <gradtile/train/checkpoint/internal/hdf5_types.h>

namespace gradtile {

namespace {

namespace schema = checkpoint_schema;

constexpr std::uint64_t kUserBlock = Hdf5CheckpointReader::user_block;

// The largest depth of nested groups. Only a file made to do harm reaches this limit.
constexpr int kMaxDepth = 16;

struct GroupLink {
    std::string name;
    bool hard;
};

struct LinkList {
    std::vector<GroupLink> links;
    bool complete = true;
};

herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* data) {
    auto& list = *static_cast<LinkList*>(data);
    try {
        if (list.links.size() == schema::max_objects) throw std::length_error("links");
        list.links.push_back({name, info->type == H5L_TYPE_HARD});
        return 0;
    } catch (...) {  // exceptions must not pass through C code
        list.complete = false;
        return 1;
    }
}

std::vector<GroupLink> links_of(const Hdf5Group& group, const std::string& name) {
    LinkList list;
    hdf5_check(H5Literate(group.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &list),
               "list group " + name);
    check(list.complete, "group ", name, ": more than ", schema::max_objects, " links");
    return std::move(list.links);
}

// Returns the number of links to an object.
unsigned link_count(const Hdf5Handle<H5Oclose>& object, const std::string& name) {
#if H5_VERSION_GE(1, 12, 0)
    H5O_info2_t info{};
    hdf5_check(H5Oget_info3(object.get(), &info, H5O_INFO_BASIC), "read about " + name);
#else
    H5O_info_t info{};
    hdf5_check(H5Oget_info2(object.get(), &info, H5O_INFO_BASIC), "read about " + name);
#endif
    return info.rc;
}

bool is_tensor_group(const std::string& name) {
    return std::find(schema::tensor_groups.begin(), schema::tensor_groups.end(), name) !=
           schema::tensor_groups.end();
}

bool is_json_group(const std::string& name) {
    return std::find(schema::json_names.begin(), schema::json_names.end(), name + "/json") !=
           schema::json_names.end();
}

std::uint32_t stored_crc(const Hdf5Dataset& dataset, const std::string& name) {
    const Hdf5Attribute attribute(H5Aopen(dataset.get(), schema::crc_attribute, H5P_DEFAULT),
                                  "open the checksum of " + name);
    const Hdf5Type type(H5Aget_type(attribute.get()), "read the checksum's type of " + name);
    const Hdf5Space space(H5Aget_space(attribute.get()), "read the checksum's shape of " + name);
    check(H5Tequal(type.get(), H5T_STD_U32LE) > 0 && H5Sget_simple_extent_type(space.get()) == H5S_SCALAR,
          name, ": the checksum is not one 32-bit number");
    std::uint32_t crc = 0;
    hdf5_check(H5Aread(attribute.get(), H5T_NATIVE_UINT32, &crc), "read the checksum of " + name);
    return crc;
}

Hdf5Dataset open_dataset(const Hdf5File& file, const std::string& name) {
    return Hdf5Dataset(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), "open " + name);
}

void check_crc(const std::string& name, std::uint32_t stored, std::span<const std::byte> bytes) {
    check(crc32c(bytes) == stored, name, ": damaged: the checksum of its elements does not match");
}

// Called before libhdf5 reads anything. The superblock of this format (version 3, HDF5 1.10) has a checksum,
// and so has every structure that it leads to. Older superblocks have none, and libhdf5 parses them with less
// care.
void check_superblock(Hdf5Storage& storage) {
    constexpr std::array<unsigned char, 9> kStart = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n', 3};
    std::array<std::byte, kStart.size()> start{};
    check(storage.size() >= kUserBlock + start.size(), "no HDF5 part");
    storage.read(start.data(), start.size(), kUserBlock);
    check(std::memcmp(start.data(), kStart.data(), start.size()) == 0,
          "the HDF5 part does not begin at byte ", kUserBlock, " in the format of HDF5 1.10");
}

}  // namespace

Hdf5CheckpointReader::Hdf5CheckpointReader(Hdf5Storage& storage, std::uint64_t file_bytes)
    : file_bytes_(file_bytes), access_(storage_access(storage)) {
    check_superblock(storage);
    file_ = Hdf5File(H5Fopen("checkpoint", H5F_ACC_RDONLY, access_.get()), "open the HDF5 part");
    const Hdf5PropertyList creation(H5Fget_create_plist(file_.get()), "read the file's properties");
    hsize_t user_block = 0;
    hdf5_check(H5Pget_userblock(creation.get(), &user_block), "read the user block's size");
    check(user_block == kUserBlock, "the HDF5 part begins at byte ", user_block, ", expected ", kUserBlock);

    const Hdf5Group root(H5Gopen2(file_.get(), "/", H5P_DEFAULT), "open the root group");
    for (const GroupLink& link : links_of(root, "/")) {
        check(link.hard, link.name, ": a soft or external link");
        if (is_tensor_group(link.name)) {
            walk(link.name, 1);
        } else {
            check(is_json_group(link.name), "unknown group ", link.name);
        }
    }
    // The order by groups differs from the order by names: "a-b" comes before "a/c".
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
}

void Hdf5CheckpointReader::walk(const std::string& group_name, int depth) {
    check(depth <= kMaxDepth, "group ", group_name, ": nested more than ", kMaxDepth, " deep");
    const Hdf5Group group(H5Gopen2(file_.get(), group_name.c_str(), H5P_DEFAULT), "open group " + group_name);
    for (const GroupLink& link : links_of(group, group_name)) {
        const std::string name = group_name + "/" + link.name;
        check(schema::is_tensor_name(name), "group ", group_name, ": has an invalid tensor name");
        check(link.hard, name, ": a soft or external link");
        check(++objects_ <= schema::max_objects, name, ": the file holds more than ", schema::max_objects,
              " objects");
        // An object with two names could be the group that contains it.
        const Hdf5Handle<H5Oclose> object(H5Oopen(file_.get(), name.c_str(), H5P_DEFAULT), "open " + name);
        check(link_count(object, name) == 1, name, ": linked more than once");
        switch (H5Iget_type(object.get())) {
            case H5I_GROUP:
                walk(name, depth + 1);
                break;
            case H5I_DATASET:
                accept_tensor(open_dataset(file_, name), name);
                break;
            default:
                throw Error(name + ": neither a group nor a dataset");
        }
    }
}

void Hdf5CheckpointReader::accept_tensor(const Hdf5Dataset& dataset, const std::string& name) {
    const Hdf5Type type(H5Dget_type(dataset.get()), "read the type of " + name);
    const auto dtype =
        std::find_if(schema::all_dtypes.begin(), schema::all_dtypes.end(),
                     [&](DType candidate) { return H5Tequal(type.get(), hdf5_type(candidate).get()) > 0; });
    check(dtype != schema::all_dtypes.end(), name, ": elements of a type that tensors do not have");
    TensorInfo tensor{name, *dtype, accept_dataset(dataset, name, size_of(*dtype)),
                      stored_crc(dataset, name)};
    // Each tensor fits in the file. Their sum must fit, too; otherwise many names could make the reader
    // allocate more memory than the file's size.
    tensor_bytes_ += tensor.bytes();
    check(tensor_bytes_ <= file_bytes_, name, ": the tensors are larger than the file");
    tensors_.push_back(std::move(tensor));
}

Shape Hdf5CheckpointReader::accept_dataset(const Hdf5Dataset& dataset, const std::string& name,
                                           std::uint64_t element_bytes) const {
    // Reads the layout first: reading the shape of a virtual dataset can open other files.
    const Hdf5PropertyList creation(H5Dget_create_plist(dataset.get()), "read the layout of " + name);
    check(H5Pget_layout(creation.get()) == H5D_CHUNKED, name, ": not a chunked dataset");
    check(H5Pget_external_count(creation.get()) == 0, name, ": its elements are in another file");
    unsigned flags = 0;
    unsigned config = 0;
    std::size_t parameters = 0;
    check(H5Pget_nfilters(creation.get()) == 1 &&
              H5Pget_filter2(creation.get(), 0, &flags, &parameters, nullptr, 0, nullptr, &config) ==
                  H5Z_FILTER_FLETCHER32,
          name, ": has filters other than one fletcher32");

    const Hdf5Space space(H5Dget_space(dataset.get()), "read the shape of " + name);
    const int rank = H5Sget_simple_extent_ndims(space.get());
    check(H5Sget_simple_extent_type(space.get()) == H5S_SIMPLE && rank >= 1 && rank <= Shape::max_rank, name,
          ": has no shape of 1 to ", Shape::max_rank, " axes");
    std::array<hsize_t, Shape::max_rank> dims{};
    std::array<hsize_t, Shape::max_rank> max_dims{};
    std::array<hsize_t, Shape::max_rank> chunk{};
    hdf5_check(H5Sget_simple_extent_dims(space.get(), dims.data(), max_dims.data()),
               "read the shape of " + name);
    check(H5Pget_chunk(creation.get(), Shape::max_rank, chunk.data()) == rank, name,
          ": chunks of another rank than the data");

    // Empty axes count as 1: strides are products of axes, too.
    std::uint64_t bytes = element_bytes;
    std::uint64_t chunk_bytes = element_bytes;
    bool is_empty = false;
    std::array<std::int64_t, Shape::max_rank> axes{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
        check(dims[i] == max_dims[i], name, ": can be extended");
        is_empty = is_empty || dims[i] == 0;
        check(!__builtin_mul_overflow(bytes, std::max<hsize_t>(dims[i], 1), &bytes) && bytes <= file_bytes_ &&
                  dims[i] <= static_cast<hsize_t>(INT64_MAX) &&
                  !__builtin_mul_overflow(chunk_bytes, chunk[i], &chunk_bytes) && chunk_bytes <= file_bytes_,
              name, ": larger than the file");
        axes[i] = static_cast<std::int64_t>(dims[i]);
    }
    check(is_empty || H5Dget_storage_size(dataset.get()) >= bytes, name, ": not all of it is stored");
    return Shape(std::span(axes.data(), static_cast<std::size_t>(rank)));
}

void Hdf5CheckpointReader::read(const TensorInfo& tensor, std::byte* data) const {
    const Hdf5Dataset dataset = open_dataset(file_, tensor.name);
    hdf5_check(H5Dread(dataset.get(), hdf5_type(tensor.dtype).get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
               "read " + tensor.name);
    check_crc(tensor.name, tensor.crc32c, {data, static_cast<std::size_t>(tensor.bytes())});
}

std::string Hdf5CheckpointReader::read_text(const std::string& name) const {
    for (const std::string& link : {std::string(schema::group_of(name)), name}) {
        H5L_info_t info{};
        hdf5_check(H5Lget_info(file_.get(), link.c_str(), &info, H5P_DEFAULT), "find " + link);
        check(info.type == H5L_TYPE_HARD, link, ": a soft or external link");
    }
    const Hdf5Dataset dataset = open_dataset(file_, name);
    const Hdf5Type type(H5Dget_type(dataset.get()), "read the type of " + name);
    check(H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0, name,
          ": not a text of fixed length");
    const std::size_t length = H5Tget_size(type.get());
    check(accept_dataset(dataset, name, length) == Shape{1}, name, ": not one text");
    std::string text(length, '\0');
    hdf5_check(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()),
               "read " + name);
    check_crc(name, stored_crc(dataset, name), std::as_bytes(std::span(text)));
    return text;
}

}  // namespace gradtile
