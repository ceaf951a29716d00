// The checkpoint reader against three kinds of files: any bytes; a sound file with changed bytes under a
// header made good again, so that libhdf5 sees the change; and well-formed HDF5 files with any structure,
// which the reader has to judge. It may refuse with an Error, nothing else.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <span>

#include <nlohmann/json.hpp>

#include <gradtile/core/random.h>
#include <gradtile/train/checkpoint.h>

#include <support/memory_file_system.h>
#include <support/sealed_checkpoint.h>

// libhdf5 1.10 forgets a few hundred bytes whenever it gives up on a damaged structure; our own leaks still
// show.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
    return "leak:libhdf5";
}

namespace gradtile::test {
namespace {

/// The fuzzer's bytes as choices; zeros once they are used up.
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
    bool yes() { return (byte() & 1) != 0; }
    /// From first to last, both included.
    std::uint64_t between(std::uint64_t first, std::uint64_t last) {
        const std::uint64_t span = last - first + 1;
        return first + (span <= 256 ? byte() : word()) % span;
    }
    std::vector<std::byte> bytes(std::size_t most) {
        const auto taken = std::as_bytes(left_.first(std::min(most, left_.size())));
        left_ = left_.subspan(taken.size());
        return {taken.begin(), taken.end()};
    }

  private:
    std::span<const std::uint8_t> left_;
};

Checkpoint base_checkpoint() {
    const Context ctx(Device::cpu(), 1);
    Checkpoint c;
    c.params["a"] = randn(ctx, {5, 7}, DType::bf16, Seed{1});
    c.optimizer["m/a"] = randn(ctx, {5, 7}, DType::f32, Seed{2});
    *c.config = {{"layers", 2}};
    return c;
}

// Made once, before fuzzing begins: writing uses a thread, whose coverage would be taken for the input's.
const std::vector<std::byte> base_file = hdf5_of(base_checkpoint());

std::vector<std::byte> changed_file(Choices& data) {
    std::vector<std::byte> file = base_file;
    while (data.more()) {
        const std::uint64_t at = data.between(CheckpointHeader::kSize, file.size() - 1);
        const std::vector<std::byte> bytes = data.bytes(data.between(1, 16));
        std::copy_n(bytes.begin(), std::min<std::size_t>(bytes.size(), file.size() - at),
                    file.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return seal(std::move(file));
}

std::string any_name(Choices& data) {
    static constexpr const char* names[] = {"params",    "params/a",     "params/b",    "params/b/c",
                                            "master",    "config",       "config/json", "optimizer",
                                            "rng/json",  "params/b/c/d", "params/e",    "other",
                                            "meta/json", "data",         "optimizer/m"};
    return names[data.between(0, std::size(names) - 1)];
}

Hdf5Type any_type(Choices& data) {
    const hid_t simple[] = {H5T_IEEE_F32LE, H5T_IEEE_F64LE,  H5T_STD_I32LE, H5T_IEEE_F32BE,
                            H5T_STD_U8LE,   H5T_STD_REF_OBJ, H5T_C_S1,      H5T_STD_U32LE};
    Hdf5Type type(H5Tcopy(simple[data.between(0, std::size(simple) - 1)]), "type");
    switch (data.between(0, 5)) {
        case 0:
            return Hdf5Type(H5Tvlen_create(type.get()), "type");
        case 1: {
            const hsize_t dims[] = {data.between(1, 9)};
            return Hdf5Type(H5Tarray_create2(type.get(), 1, dims), "type");
        }
        case 2:
            H5Tset_size(type.get(), data.yes() ? H5T_VARIABLE : data.between(1, 99));
            return type;
        default:
            return type;
    }
}

void add_dataset(Choices& data, hid_t file) {
    const std::string name = any_name(data);
    const Hdf5Type type = any_type(data);
    const auto rank = static_cast<int>(data.between(0, 8));
    hsize_t dims[8];
    hsize_t chunk[8];
    for (int i = 0; i < rank; ++i) {
        dims[i] = data.yes() ? data.word() : data.between(0, 9);
        chunk[i] = data.between(1, 9);
    }
    const Hdf5Space space(rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, dims, nullptr), "space");
    const Hdf5PropertyList creation(H5Pcreate(H5P_DATASET_CREATE), "list");
    // One layout at a time: libhdf5 1.10 falls over some mixtures while it makes them.
    switch (data.between(0, 4)) {
        case 0:
            break;  // contiguous
        case 1:
            H5Pset_external(creation.get(), "/nowhere/else", 0, H5F_UNLIMITED);
            break;
        default:
            if (rank > 0) H5Pset_chunk(creation.get(), rank, chunk);
            if (data.byte() % 8 != 0) H5Pset_fletcher32(creation.get());
            if (data.byte() % 8 == 0) H5Pset_shuffle(creation.get());
    }
    H5Ldelete(file, name.c_str(), H5P_DEFAULT);
    const Hdf5Dataset dataset(
        H5Dcreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
        "dataset");
    const Hdf5Type attribute_type = data.yes() ? Hdf5Type(H5Tcopy(H5T_STD_U32LE), "type") : any_type(data);
    const Hdf5Space scalar(H5Screate(H5S_SCALAR), "space");
    const Hdf5Attribute crc(
        H5Acreate2(dataset.get(), "crc32c", attribute_type.get(),
                   data.yes() || rank == 0 ? scalar.get() : space.get(), H5P_DEFAULT, H5P_DEFAULT),
        "attribute");
    const std::vector<std::byte> elements = data.bytes(256);
    const hsize_t corner[8] = {};
    if (!elements.empty())
        H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, corner, elements.size(), elements.data());
}

std::vector<std::byte> structured_file(Choices& data) {
    return sealed_after(base_file, 0, [&](hid_t file) {
        for (int steps = 0; steps < 8 && data.more(); ++steps) {
            const std::string name = any_name(data);
            const std::string other = any_name(data);
            try {
                switch (data.between(0, 6)) {
                    case 0:
                        H5Lcreate_soft(other.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
                        break;
                    case 1:
                        H5Lcreate_hard(file, other.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
                        break;
                    case 2:
                        H5Lcreate_external("elsewhere.h5", "/", file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
                        break;
                    case 3:
                        H5Ldelete(file, name.c_str(), H5P_DEFAULT);
                        break;
                    case 4: {
                        const Hdf5Group group(
                            H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "group");
                        break;
                    }
                    default:
                        add_dataset(data, file);
                }
            } catch (const Error&) {
                // libhdf5 would not make that; the rest may still be interesting.
            }
        }
    });
}

}  // namespace
}  // namespace gradtile::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
    using namespace gradtile;
    test::Choices data(input, size);
    std::vector<std::byte> file;
    switch (data.between(0, 2)) {
        case 0:
            file = data.bytes(size);
            break;
        case 1:
            file = test::changed_file(data);
            break;
        default:
            file = test::structured_file(data);
    }
    test::MemoryFileSystem fs;
    fs.put("a.h5", std::move(file));
    const auto accepts = [](auto&& read) {
        try {
            read();
            return true;
        } catch (const Error&) {
            return false;
        }
    };
    const bool read = accepts([&] { read_checkpoint("a.h5", {}, fs); });
    const bool inspected = accepts([&] { inspect_checkpoint("a.h5", fs); });
    if (read != inspected) {
        std::cerr << "reading and inspecting disagree\n";
        std::abort();
    }
    return 0;
}
