#include <algorithm>
#include <iterator>
#include <new>

#include <gradtile/train/checkpoint/internal/hdf5_storage.h>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace gradtile {

namespace {

// The data that the property list passes to open_file().
struct DriverInfo {
    Hdf5Storage* storage;
};

// libhdf5 uses only the first member.
struct DriverFile {
    H5FD_t common;
    Hdf5Storage* storage;
    haddr_t end_of_addresses;
};

Hdf5Storage& storage_of(H5FD_t* file) {
    return *reinterpret_cast<DriverFile*>(file)->storage;
}

// Exceptions must not pass through C code.
template <class Call>
bool kept(Hdf5Storage& storage, Call&& call) noexcept {
    try {
        call();
        return true;
    } catch (...) {
        storage.keep_failure(std::current_exception());
        return false;
    }
}

H5FD_t* open_file(const char*, unsigned, hid_t access, haddr_t) {
    const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
    if (info == nullptr) return nullptr;
    auto* file = new (std::nothrow) DriverFile{};
    if (file != nullptr) file->storage = info->storage;
    return reinterpret_cast<H5FD_t*>(file);
}

herr_t close_file(H5FD_t* file) {
    delete reinterpret_cast<DriverFile*>(file);
    return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_IGNORE_DRVRINFO;
    return 0;
}

haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) {
    return reinterpret_cast<const DriverFile*>(file)->end_of_addresses;
}

herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
    reinterpret_cast<DriverFile*>(file)->end_of_addresses = address;
    return 0;
}

haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) {
    return reinterpret_cast<const DriverFile*>(file)->storage->size();
}

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, void* data) {
    Hdf5Storage& storage = storage_of(file);
    return kept(storage, [&] { storage.read(static_cast<std::byte*>(data), bytes, address); }) ? 0 : -1;
}

herr_t write(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t bytes, const void* data) {
    Hdf5Storage& storage = storage_of(file);
    if (!storage.failed()) {
        const auto* const from = static_cast<const std::byte*>(data);
        storage.note_address({from, bytes}, address);
        kept(storage, [&] { storage.write(from, bytes, address, type != H5FD_MEM_DRAW); });
    }
    return 0;
}

herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
    Hdf5Storage& storage = storage_of(file);
    const haddr_t end = reinterpret_cast<DriverFile*>(file)->end_of_addresses;
    if (!storage.failed() && end != storage.size()) kept(storage, [&] { storage.truncate(end); });
    return 0;
}

hid_t register_driver() {
    // libhdf5 copies the struct. Its members are set one by one, because other versions of libhdf5 have other
    // members.
    H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
    driver.version = H5FD_CLASS_VERSION;
    driver.value = static_cast<H5FD_class_value_t>(3401);  // outside the range that The HDF Group assigns
#endif
    driver.name = "gradtile_storage";
    driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
    driver.fc_degree = H5F_CLOSE_STRONG;
    driver.fapl_size = sizeof(DriverInfo);
    driver.open = open_file;
    driver.close = close_file;
    driver.query = query;
    driver.get_eoa = get_eoa;
    driver.set_eoa = set_eoa;
    driver.get_eof = get_eof;
    driver.read = read;
    driver.write = write;
    driver.truncate = truncate;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), driver.fl_map);
    return hdf5_check(H5FDregister(&driver), "register the storage driver");
}

}  // namespace

Hdf5PropertyList storage_access(Hdf5Storage& storage) {
    static const hid_t driver = register_driver();
    Hdf5PropertyList access(H5Pcreate(H5P_FILE_ACCESS), "create a property list");
    const DriverInfo info{&storage};
    hdf5_check(H5Pset_driver(access.get(), driver, &info), "choose the storage driver");
    hdf5_check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "set the close degree");
    hdf5_check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110),
               "set the format version");
    return access;
}

}  // namespace gradtile
