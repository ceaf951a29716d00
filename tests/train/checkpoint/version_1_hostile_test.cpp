// Files of format version 1 that are made to harm the reader, with a correct header: each is refused in one
// line that names the object.
#include <gmock/gmock.h>

#include <gradtile/train/checkpoint/checkpoint_version_1.h>

#include <support/memory_file_system.h>
#include <support/version_1_file.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::changed_version_1;
using test::error_of;
using test::MemoryFileSystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string refusal(const std::vector<std::byte>& file) {
    MemoryFileSystem fs;
    fs.put("bad.h5", file);
    const std::string read = error_of([&] { read_version_1("bad.h5", SymbolicLinks::follow, fs); });
    EXPECT_THAT(read, StartsWith("checkpoint bad.h5: "));
    EXPECT_THAT(read, Not(HasSubstr("\n")));
    return read;
}

struct BadDataset {
    std::vector<hsize_t> dims = {20, 30};
    std::vector<hsize_t> max_dims = {};
    std::vector<hsize_t> chunk = {20, 30};  // empty: not chunked
    bool fletcher = true;
    bool with_checksum = true;
    std::function<void(hid_t)> creation = [](hid_t) {};
};

// Adds /params/bad.
void add_dataset(hid_t file, hid_t type, const BadDataset& options = {}) {
    const Hdf5Space space(H5Screate_simple(static_cast<int>(options.dims.size()), options.dims.data(),
                                           options.max_dims.empty() ? nullptr : options.max_dims.data()),
                          "space");
    const Hdf5PropertyList creation(H5Pcreate(H5P_DATASET_CREATE), "list");
    if (!options.chunk.empty()) {
        hdf5_check(H5Pset_chunk(creation.get(), static_cast<int>(options.chunk.size()), options.chunk.data()),
                   "chunk");
        if (options.fletcher) hdf5_check(H5Pset_fletcher32(creation.get()), "fletcher32");
    }
    options.creation(creation.get());
    const Hdf5Dataset dataset(
        H5Dcreate2(file, "params/bad", type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
        "dataset");
    if (!options.with_checksum) return;
    const Hdf5Space scalar(H5Screate(H5S_SCALAR), "space");
    const Hdf5Attribute crc(
        H5Acreate2(dataset.get(), "crc32c", H5T_STD_U32LE, scalar.get(), H5P_DEFAULT, H5P_DEFAULT),
        "attribute");
}

std::string refusal_with_dataset(hid_t type, const BadDataset& options = {}) {
    return refusal(changed_version_1([&](hid_t file) { add_dataset(file, type, options); }));
}

TEST(HostileVersion1, AnUnchangedFileIsRead) {
    MemoryFileSystem fs;
    fs.put("good.h5", changed_version_1([](hid_t) {}));
    EXPECT_EQ(read_version_1("good.h5", SymbolicLinks::follow, fs).params.at("sound").shape(),
              (Shape{20, 30}));
}

TEST(HostileVersion1, LinksOtherThanHardOnesAreRefused) {
    const auto with_link = [](const char* name, const std::function<void(hid_t, const char*)>& link) {
        return refusal(changed_version_1([&](hid_t file) { link(file, name); }));
    };
    const auto soft = [](hid_t file, const char* name) {
        hdf5_check(H5Lcreate_soft("/params/sound", file, name, H5P_DEFAULT, H5P_DEFAULT), "link");
    };
    const auto external = [](hid_t file, const char* name) {
        hdf5_check(H5Lcreate_external("/etc/passwd", "/params", file, name, H5P_DEFAULT, H5P_DEFAULT),
                   "link");
    };
    EXPECT_THAT(with_link("params/bad", soft), HasSubstr("params/bad: a soft or external link"));
    EXPECT_THAT(with_link("params/bad", external), HasSubstr("params/bad: a soft or external link"));
    EXPECT_THAT(with_link("bad", external), HasSubstr("bad: a soft or external link"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    H5Ldelete(file, "config/json", H5P_DEFAULT);
                    H5Lcreate_soft("/data/json", file, "config/json", H5P_DEFAULT, H5P_DEFAULT);
                })),
                HasSubstr("config/json: a soft or external link"));
}

TEST(HostileVersion1, CyclicLinksAreRefused) {
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    const Hdf5Group group(H5Gcreate2(file, "params/a", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                          "group");
                    H5Lcreate_hard(file, "params", file, "params/a/up", H5P_DEFAULT, H5P_DEFAULT);
                })),
                HasSubstr("params/a/up: linked more than once"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    H5Lcreate_hard(file, "params/sound", file, "params/twice", H5P_DEFAULT, H5P_DEFAULT);
                })),
                HasSubstr("linked more than once"));
}

TEST(HostileVersion1, UnknownAndTooDeepGroupsAreRefused) {
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    const Hdf5Group group(H5Gcreate2(file, "more", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                          "group");
                })),
                HasSubstr("unknown group more"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    std::string name = "params";
                    for (int depth = 0; depth < 40; ++depth) {
                        name += "/g";
                        const Hdf5Group group(
                            H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "group");
                    }
                })),
                HasSubstr("deep"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    const Hdf5Group group(
                        H5Gcreate2(file, "params/a b", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "group");
                })),
                HasSubstr("invalid tensor name"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) { H5Ldelete(file, "rng", H5P_DEFAULT); })),
                HasSubstr("rng"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    const Hdf5Type type(H5Tcopy(H5T_STD_I32LE), "type");
                    H5Tcommit2(file, "params/bad", type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
                })),
                HasSubstr("params/bad: neither a group nor a dataset"));
}

TEST(HostileVersion1, UnknownElementTypesAreRefused) {
    const Hdf5Type text = [] {
        Hdf5Type type(H5Tcopy(H5T_C_S1), "type");
        H5Tset_size(type.get(), H5T_VARIABLE);
        return type;
    }();
    const Hdf5Type sequence(H5Tvlen_create(H5T_NATIVE_FLOAT), "type");
    const Hdf5Type compound = [] {
        Hdf5Type type(H5Tcreate(H5T_COMPOUND, 8), "type");
        H5Tinsert(type.get(), "a", 0, H5T_NATIVE_FLOAT);
        return type;
    }();
    const Hdf5Type array = [] {
        const hsize_t dims[] = {4};
        return Hdf5Type(H5Tarray_create2(H5T_NATIVE_FLOAT, 1, dims), "type");
    }();
    const Hdf5Type opaque(H5Tcreate(H5T_OPAQUE, 4), "type");
    for (const hid_t type : {text.get(), sequence.get(), compound.get(), array.get(), opaque.get(),
                             H5T_IEEE_F32BE, H5T_STD_I64LE, H5T_STD_U8LE, H5T_STD_REF_OBJ}) {
        // Written without the filter, because some of these types do not allow it.
        EXPECT_THAT(refusal_with_dataset(type, {.fletcher = false}),
                    HasSubstr("params/bad: elements of a type that tensors do not have"));
    }
}

TEST(HostileVersion1, DataOutsideTheFileIsNeverFollowed) {
    EXPECT_THAT(
        refusal_with_dataset(
            H5T_IEEE_F32LE,
            {.chunk = {}, .creation = [](hid_t list) { H5Pset_external(list, "/etc/passwd", 0, 2400); }}),
        HasSubstr("params/bad: not a chunked dataset"));
    EXPECT_THAT(
        refusal_with_dataset(H5T_IEEE_F32LE,
                             {.chunk = {},
                              .creation =
                                  [](hid_t list) {
                                      const hsize_t dims[] = {20, 30};
                                      const Hdf5Space space(H5Screate_simple(2, dims, nullptr), "space");
                                      H5Pset_virtual(list, space.get(), "/etc/passwd", "/x", space.get());
                                  }}),
        HasSubstr("params/bad: not a chunked dataset"));
}

TEST(HostileVersion1, LayoutsAndFiltersTheFormatDoesNotUseAreRefused) {
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F32LE, {.chunk = {}}), HasSubstr("not a chunked dataset"));
    EXPECT_THAT(
        refusal_with_dataset(H5T_IEEE_F32LE,
                             {.chunk = {}, .creation = [](hid_t list) { H5Pset_layout(list, H5D_COMPACT); }}),
        HasSubstr("not a chunked dataset"));
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F32LE, {.fletcher = false}), HasSubstr("filters other than"));
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F32LE, {.creation = [](hid_t list) { H5Pset_shuffle(list); }}),
                HasSubstr("filters other than"));
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F32LE, {.max_dims = {H5S_UNLIMITED, 30}}),
                HasSubstr("can be extended"));
}

TEST(HostileVersion1, SizesTheFileCannotHoldAreRefusedBeforeMemoryIsAllocated) {
    const hsize_t huge = hsize_t{1} << 40;
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F32LE, {.dims = {huge, 30}}),
                HasSubstr("larger than the file"));
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F64LE, {.dims = {huge, huge}}),
                HasSubstr("larger than the file"));
    // The strides of this empty shape would overflow.
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F32LE,
                                     {.dims = {0, hsize_t{1} << 62, 4}, .max_dims = {}, .chunk = {1, 1, 4}}),
                HasSubstr("larger than the file"));
    EXPECT_THAT(refusal_with_dataset(H5T_IEEE_F32LE, {.dims = {20, 30}, .max_dims = {}, .chunk = {20, 1}}),
                HasSubstr("not all of it is stored"));
    EXPECT_THAT(
        refusal_with_dataset(H5T_IEEE_F32LE, {.dims = {1, 1, 1, 1, 1, 1, 1}, .chunk = {1, 1, 1, 1, 1, 1, 1}}),
        HasSubstr("no shape of 1 to 6 axes"));
}

TEST(HostileVersion1, ChecksumsOfAnotherKindAreRefused) {
    EXPECT_THAT(refusal(changed_version_1(
                    [](hid_t file) { H5Adelete_by_name(file, "params/sound", "crc32c", H5P_DEFAULT); })),
                HasSubstr("checksum of params/sound"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    H5Adelete_by_name(file, "params/sound", "crc32c", H5P_DEFAULT);
                    const hsize_t many[] = {1000};
                    const Hdf5Space space(H5Screate_simple(1, many, nullptr), "space");
                    const Hdf5Attribute attribute(
                        H5Acreate_by_name(file, "params/sound", "crc32c", H5T_STD_U32LE, space.get(),
                                          H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                        "attribute");
                })),
                HasSubstr("params/sound: the checksum is not one 32-bit number"));
    EXPECT_THAT(refusal(changed_version_1([](hid_t file) {
                    const Hdf5Dataset dataset(H5Dopen2(file, "params/sound", H5P_DEFAULT), "dataset");
                    const Hdf5Attribute attribute(H5Aopen(dataset.get(), "crc32c", H5P_DEFAULT), "attribute");
                    const std::uint32_t wrong = 1;
                    hdf5_check(H5Awrite(attribute.get(), H5T_NATIVE_UINT32, &wrong), "write");
                })),
                HasSubstr("params/sound: damaged"));
}

TEST(HostileVersion1, AUserBlockOfAnotherSizeIsRefused) {
    const Hdf5Lock lock;
    test::MemoryStorage storage;
    {
        const Hdf5PropertyList creation(H5Pcreate(H5P_FILE_CREATE), "list");
        H5Pset_userblock(creation.get(), 8192);
        const Hdf5PropertyList access = storage_access(storage);
        const Hdf5File file(H5Fcreate("sealed", H5F_ACC_TRUNC, creation.get(), access.get()), "create");
    }
    const auto read = [&] { Hdf5CheckpointReader(storage, storage.bytes.size()); };
    EXPECT_THAT(error_of(read), HasSubstr("does not begin at byte 4096"));
}

TEST(HostileVersion1, GarbageUnderACorrectHeaderIsRefused) {
    EXPECT_THAT(refusal(test::seal_version_1({})), HasSubstr("HDF5 part"));
    EXPECT_THAT(refusal(test::seal_version_1(std::vector(100'000, std::byte{0x89}))), HasSubstr("HDF5 part"));
}

}  // namespace
}  // namespace gradtile
